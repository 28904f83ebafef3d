"""`ExecDialectClient`: the skills page as a host uses it, against servers with scripted answers."""

from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from skillwire.core.dialects import Dialect
from skillwire.core.errors import INTERNAL_ERROR, INVALID_PARAMS, LimitError, NotFoundError
from skillwire.core.uri import SkillUri
from skillwire.host.dialects.base import DialectOptions
from skillwire.host.dialects.by_name import ExecDialectClient, find_exec
from skillwire.host.model.errors import InvalidAnswerError, NotDeclaredError, PeerError
from skillwire.wire.execute import ExecutionResult, ResultPart
from unit.host.calls.strangers import MODES, Answers, Params, Stranger, always
from unit.host.dialects.speaking import speaking

both_generations = pytest.mark.parametrize("mode", MODES)
OPTIONS = DialectOptions(seconds=20)
SKILLS = {"skills": {"scripts": True}}
CHARTS = SkillUri.parse("skill://charts/SKILL.md")
ITEM = {"name": "charts", "description": "Use to plot.", "keywords": ["plot", "draw"]}


def file(path: str, name: str = "") -> dict[str, str]:
    return {"name": name or path.rpartition("/")[2], "description": "A file.", "path": path}


def skill(**more: Any) -> dict[str, Any]:
    return {"skill": {**ITEM, "instructions": "Plot.\n", **more}}


def stranger(got: Any, content: Any = None, executed: Any = None) -> Stranger:
    methods: dict[str, Answers] = {
        "skills/list": always({"skills": [ITEM]}),
        "skills/read": got if callable(got) else always(got),
        "skills/read_reference": content if callable(content) else always(content),
        "skills/execute": always(executed),
    }
    return Stranger(methods, declares=False)


def failing(code: int) -> Answers:
    def answers(_params: Params) -> Any:
        raise MCPError(code, "no")

    return answers


@both_generations
@pytest.mark.requirement("NEG-11")
@pytest.mark.parametrize("scripts", [True, False, None])
async def test_the_dialect_is_told_by_scripts_whatever_they_are_set_to(scripts: object, mode: str) -> None:
    there = stranger(skill())
    async with speaking(there, {}, mode) as peer:
        assert await find_exec(peer, OPTIONS) is None
        assert await find_exec(peer, DialectOptions(dialect=Dialect.EXEC)) is None
    async with speaking(there, {"skills": {}}, mode) as peer:
        assert await find_exec(peer, OPTIONS) is None
        assert there.requests == []
        assert await find_exec(peer, DialectOptions(dialect=Dialect.EXEC)) is not None
    async with speaking(there, {"skills": {"scripts": scripts}}, mode) as peer:
        found = await find_exec(peer, OPTIONS)

        assert found is not None and found.listing.dialect is Dialect.EXEC
        [entry] = found.listing.entries
        assert entry.frontmatter.fields == {
            "name": "charts",
            "description": "Use to plot.",
            "metadata": {"keywords": "plot, draw"},
        }


@both_generations
@pytest.mark.requirement("EXEC-18")
@pytest.mark.requirement("EXEC-19")
async def test_files_are_asked_for_by_name_and_scripts_never(mode: str) -> None:
    got = skill(
        references=[file("references/a.md"), file("references/same.md"), file("SKILL.md"), file("../x.md")],
        assets=[file("assets/same.md"), file("references/a.md/b"), file("References/A.md")],
        scripts=[file("scripts/plot.py"), file("references/a.md")],
    )
    there = stranger(got, {"content": {"uri": "file:///elsewhere", "text": "Text.\n"}})
    async with speaking(there, SKILLS, mode) as peer:
        client = ExecDialectClient()
        await client.list(peer, OPTIONS)
        entry = await client.get(peer, CHARTS)
        content = await client.read(peer, "skill://charts/references/a.md", max_bytes=100)
        await client.read(peer, "skill://charts/assets/same.md", max_bytes=100)
        so_far = list(there.requests)
        with pytest.raises(NotDeclaredError):
            await client.read(peer, "skill://charts/scripts/plot.py", max_bytes=100)
        for path in ("references/b.md", "x.md", "references/a.md/b"):
            with pytest.raises(NotFoundError):
                await client.read(peer, f"skill://charts/{path}", max_bytes=100)

        assert entry.dynamic_files == tuple(
            f"skill://charts/{path}"
            for path in ("references/a.md", "references/same.md", "assets/same.md", "scripts/plot.py")
        )
        assert content == b"Text.\n"
        assert (
            so_far
            == there.requests
            == [
                ("skills/list", {}),
                ("skills/read", {"name": "charts"}),
                ("skills/read_reference", {"name": "charts", "reference": "a.md"}),
                ("skills/read_reference", {"name": "charts", "reference": "assets/same.md"}),
            ]
        )


@pytest.mark.requirement("CONF-17")
@pytest.mark.parametrize(
    ("got", "error"),
    [
        (failing(-32002), NotFoundError),
        (failing(INVALID_PARAMS), NotFoundError),
        (failing(INTERNAL_ERROR), PeerError),
        ({}, InvalidAnswerError),
        ({"skill": {"name": "charts"}}, InvalidAnswerError),
        (skill(name="other"), InvalidAnswerError),
        (skill(instructions="x" * 1000), LimitError),
        ({**skill(), "resultType": "input_required"}, InvalidAnswerError),
    ],
)
async def test_an_answer_that_is_no_skill_is_one_clear_error(got: Any, error: type[Exception]) -> None:
    async with speaking(stranger(got), SKILLS) as peer:
        client = ExecDialectClient()
        await client.list(peer, OPTIONS)
        with pytest.raises(error):
            await client.read(peer, CHARTS.text, max_bytes=500)


@pytest.mark.requirement("CONF-17")
@pytest.mark.parametrize(
    ("content", "error"),
    [
        (failing(-32004), NotFoundError),
        (failing(-32002), NotFoundError),
        (failing(INTERNAL_ERROR), PeerError),
        ({"content": {"uri": "x"}}, InvalidAnswerError),
        ({"content": {"uri": "x", "text": "a", "blob": "YQ=="}}, InvalidAnswerError),
        ({"content": {"uri": "x", "blob": "!"}}, InvalidAnswerError),
        ({"content": {"uri": "x", "text": "x" * 501}}, LimitError),
        ({"content": {"uri": "x", "blob": "eHh4" * 200}}, LimitError),
    ],
)
async def test_a_reference_that_cannot_be_had_is_one_clear_error(
    content: Any, error: type[Exception]
) -> None:
    async with speaking(stranger(skill(references=[file("references/a.md")]), content), SKILLS) as peer:
        client = ExecDialectClient()
        await client.list(peer, OPTIONS)
        with pytest.raises(error):
            await client.read(peer, "skill://charts/references/a.md", max_bytes=500)


@both_generations
@pytest.mark.requirement("EXEC-05")
@pytest.mark.requirement("EXEC-15")
async def test_a_script_is_run_by_its_name_and_by_its_path_where_the_name_means_two(mode: str) -> None:
    got = skill(scripts=[file("scripts/plot.py"), file("a/same.py"), file("b/same.py"), file("../x.py")])
    there = stranger(got, executed={"content": [{"type": "text", "text": "ran"}]})
    async with speaking(there, SKILLS, mode) as peer:
        client = ExecDialectClient()
        await client.list(peer, OPTIONS)
        paths = await client.scripts(peer, CHARTS)
        found = await client.execute(peer, CHARTS, "scripts/plot.py", {"a": 1})
        await client.execute(peer, CHARTS, "b/same.py", {})
        for path in ("scripts/other.py", "same.py"):
            with pytest.raises(NotDeclaredError):
                await client.execute(peer, CHARTS, path, {})

        assert paths == ("scripts/plot.py", "a/same.py", "b/same.py")
        assert found == ExecutionResult((ResultPart("text", b"ran", is_text=True),))
        assert [params for method, params in there.requests if method == "skills/execute"] == [
            {"name": "charts", "script": "plot.py", "arguments": {"a": 1}},
            {"name": "charts", "script": "b/same.py", "arguments": {}},
        ]


@pytest.mark.requirement("EXEC-14")
@pytest.mark.parametrize("scripts", [False, None, "yes", 1])
async def test_a_server_that_does_not_declare_scripts_is_never_asked_to_run_one(scripts: object) -> None:
    there = stranger(skill(scripts=[file("scripts/plot.py")]))
    async with speaking(there, {"skills": {"scripts": scripts}}, MODES[0]) as peer:
        client = ExecDialectClient()
        await client.list(peer, OPTIONS)
        so_far = list(there.requests)
        with pytest.raises(NotDeclaredError):
            await client.scripts(peer, CHARTS)
        with pytest.raises(NotDeclaredError):
            await client.execute(peer, CHARTS, "scripts/plot.py", {})

        assert there.requests == so_far
