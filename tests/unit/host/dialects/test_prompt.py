"""`PromptDialectClient`: prompts as skills, against servers that say whatever a test tells them."""

from typing import Any

import pytest

from skillwire.core.dialects import Dialect
from skillwire.core.errors import LimitError, NotFoundError
from skillwire.core.uri import SkillUri
from skillwire.host.dialects.base import DialectOptions
from skillwire.host.dialects.prompt import PromptDialectClient, find, parse_named_skill
from skillwire.host.model.errors import InvalidAnswerError
from unit.host.calls.strangers import MODES, Stranger, always
from unit.host.dialects.speaking import speaking

both_generations = pytest.mark.parametrize("mode", MODES)
OPTIONS = DialectOptions(seconds=20)
CODE = SkillUri.parse("skill://start-code-mode/SKILL.md")
TOP = "---\nname: code-mode\ndescription: Another.\n---\n\nUse code.\n"


def message(text: Any, role: str = "user", kind: str = "text") -> dict[str, Any]:
    return {"role": role, "content": {"type": kind, "text": text}}


def stranger(*messages: Any, prompts: tuple[Any, ...] = ({"name": "start_code_mode"},)) -> Stranger:
    terms = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
    methods = {
        "prompts/list": always({"prompts": list(prompts), **terms}),
        "prompts/get": always({"messages": list(messages), "resultType": "complete"}),
    }
    return Stranger(methods, declares=False)


async def read(there: Stranger, uri: str, mode: str = "auto", max_bytes: int = 10_000) -> bytes:
    async with speaking(there, mode=mode) as peer:
        client = PromptDialectClient()
        await client.list(peer, OPTIONS)
        return await client.read(peer, uri, max_bytes=max_bytes)


@both_generations
@pytest.mark.requirement("DUAL-12")
async def test_nothing_is_sent_to_a_server_without_prompts(mode: str) -> None:
    there = stranger()
    async with speaking(there, {"skills": {}}, mode) as peer:
        assert await find(peer, OPTIONS) is None
        assert await find(peer, DialectOptions(dialect=Dialect.PROMPT)) is None
        assert there.requests == []


@both_generations
@pytest.mark.requirement("DUAL-12")
async def test_a_prompts_name_becomes_a_skills_and_leads_back(mode: str) -> None:
    prompts = (
        {"name": "start_code_mode", "title": "Code", "description": "Use to code."},
        {"name": "Same Name"},
        {"name": "same-name"},
        {"name": "☃"},
        {"name": "needy", "arguments": [{"name": "region", "required": True}]},
        {"name": "easy", "arguments": [{"name": "region", "required": False}, {"name": "tone"}]},
    )
    async with speaking(stranger(message(TOP), prompts=prompts), mode=mode) as peer:
        listed = await PromptDialectClient().list(peer, OPTIONS)

        assert [(entry.uri.path, entry.extra) for entry in listed.entries] == [
            ("start-code-mode", {"prompt": "start_code_mode"}),
            ("needy", {"prompt": "needy", "arguments": [{"name": "region", "required": True}]}),
            (
                "easy",
                {
                    "prompt": "easy",
                    "arguments": [
                        {"name": "region", "required": False},
                        {"name": "tone", "required": False},
                    ],
                },
            ),
        ]
        assert listed.entries[0].frontmatter.fields == {
            "name": "start-code-mode",
            "description": "Use to code.",
            "metadata": {"title": "Code"},
        }
        codes = [[finding.code for finding in refused.findings] for refused in listed.refused]
        assert codes == [["duplicate-uri"], ["duplicate-uri"], ["name-invalid"]]
        assert listed.dialect is Dialect.PROMPT


@both_generations
@pytest.mark.requirement("DUAL-12")
async def test_a_stitched_text_is_taken_apart_and_its_frontmatter_counts_for_nothing(mode: str) -> None:
    there = stranger(message(f"{TOP}\n--- references/a.md ---\nA.\n\n--- b.md ---\nB.\n"))
    async with speaking(there, mode=mode) as peer:
        client = PromptDialectClient()
        await client.list(peer, OPTIONS)
        entry = await client.get(peer, CODE)
        skill_md = await client.read(peer, CODE.text, max_bytes=1000)
        file = await client.read(peer, "skill://start-code-mode/b.md", max_bytes=1000)

        assert entry.dynamic_files == (
            "skill://start-code-mode/references/a.md",
            "skill://start-code-mode/b.md",
        )
        assert (entry.is_dynamic, entry.name) == (True, "start-code-mode")
        assert skill_md == b"---\nname: start-code-mode\n---\n\nUse code.\n"
        assert file == b"B.\n"
        assert {method for method, _ in there.requests} == {"prompts/list", "prompts/get"}
        assert ("prompts/get", {"name": "start_code_mode"}) in there.requests


@both_generations
@pytest.mark.requirement("DUAL-04")
@pytest.mark.parametrize(
    "text", ["Just do it.\n", "skill://elsewhere/SKILL.md\n", "---\nno frontmatter", "", "---\n: [\n---\nx"]
)
async def test_any_other_text_is_the_body_as_it_stands_and_no_pointer_is_followed(
    text: str, mode: str
) -> None:
    there = stranger(message(text))

    content = await read(there, CODE.text, mode)

    assert content == b"---\nname: start-code-mode\n---\n" + text.encode()
    assert [method for method, _ in there.requests] == ["prompts/list", "prompts/get"]


async def test_a_text_that_contradicts_itself_is_kept_whole() -> None:
    twice = f"{TOP}\n--- a.md ---\nA.\n\n--- a.md ---\nB.\n"

    content = await read(stranger(message(twice)), CODE.text)

    assert content.endswith(b"Use code.\n\n--- a.md ---\nA.\n\n--- a.md ---\nB.\n")


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (message("a"), message("b")),
        (message("a", role="assistant"),),
        ({"role": "user", "content": {"type": "resource_link", "uri": "skill://x/SKILL.md", "name": "x"}},),
        (
            {
                "role": "user",
                "content": {"type": "resource", "resource": {"uri": "skill://x/SKILL.md", "text": "x"}},
            },
        ),
        (message("half \ud800"),),
    ],
)
async def test_anything_but_one_text_of_the_user_is_no_skill(messages: tuple[Any, ...]) -> None:
    async with speaking(stranger(*messages)) as peer:
        client = PromptDialectClient()
        await client.list(peer, OPTIONS)
        with pytest.raises(InvalidAnswerError):
            await client.read(peer, CODE.text, max_bytes=1000)


async def test_what_is_not_listed_or_not_in_the_text_is_not_found_and_what_is_too_large_refused() -> None:
    there = stranger(message(f"{TOP}\n--- a.md ---\n{'A' * 100}\n"))
    async with speaking(there) as peer:
        client = PromptDialectClient()
        await client.list(peer, OPTIONS)
        for uri in (
            "skill://other/SKILL.md",
            "skill://start-code-mode/b.md",
            "skill://start-code-mode/../a.md",
        ):
            with pytest.raises(NotFoundError):
                await client.read(peer, uri, max_bytes=1000)
        with pytest.raises(NotFoundError):
            await client.get(peer, SkillUri.parse("skill://start-code-mode/inner/SKILL.md"))
        for uri in (CODE.text, "skill://start-code-mode/a.md"):
            with pytest.raises(LimitError):
                await client.read(peer, uri, max_bytes=20)


@pytest.mark.parametrize(
    "value", [None, [], {}, {"name": ""}, {"name": 1}, {"name": "x" * 300}, {"name": "\ud800"}]
)
def test_a_prompt_without_a_usable_name_is_refused(value: object) -> None:
    card, findings = parse_named_skill(value)

    assert card is None
    assert any(finding.is_error for finding in findings)
