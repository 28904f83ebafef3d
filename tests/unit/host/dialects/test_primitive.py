"""`PrimitiveDialectClient`: SEP-2076 as a host uses it, against servers with scripted answers."""

from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import METHOD_NOT_FOUND

from skillwire.core.dialects import Dialect
from skillwire.core.errors import INTERNAL_ERROR, INVALID_PARAMS, LimitError, NotFoundError
from skillwire.core.uri import SkillUri
from skillwire.host.calls.exchange import ListingLimits
from skillwire.host.dialects.base import DialectOptions
from skillwire.host.dialects.by_name import PrimitiveDialectClient, find_primitive, missing_dependencies
from skillwire.host.model.errors import (
    ArgumentsNeededError,
    EndlessListingError,
    InvalidAnswerError,
    PeerError,
)
from skillwire.wire.by_name import SkillDependencies
from unit.host.calls.strangers import MODES, Answers, Params, Stranger, always, listing
from unit.host.dialects.speaking import speaking

both_generations = pytest.mark.parametrize("mode", MODES)
OPTIONS = DialectOptions(seconds=20)
SKILLS = {"skills": {"listChanged": True}}
REFUNDS = SkillUri.parse("skill://refunds/SKILL.md")
ITEM = {"name": "refunds", "description": "Use when asked."}
SKILL = {"instructions": "Steps.\n", "files": [{"name": "notes", "uri": "file:///n.md"}]}


def stranger(*items: Any, got: Any = SKILL, **more: Answers) -> Stranger:
    answers = got if callable(got) else always(got)
    methods = {"skills/list": always({"skills": list(items or (ITEM,))}), "skills/get": answers, **more}
    return Stranger(methods, declares=False)


def failing(code: int) -> Answers:
    def answers(_params: Params) -> Any:
        raise MCPError(code, "no")

    return answers


def reading(uri: str, text: str = "Notes.\n") -> Answers:
    terms = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
    return always({"contents": [{"uri": uri, "text": text}], **terms})


@both_generations
@pytest.mark.requirement("NEG-11")
async def test_nothing_is_sent_without_the_capability_or_with_the_scripts_of_the_other_dialect(
    mode: str,
) -> None:
    there = stranger()
    async with speaking(there, {}, mode) as peer:
        assert await find_primitive(peer, OPTIONS) is None
        assert await find_primitive(peer, DialectOptions(dialect=Dialect.PRIMITIVE)) is None
    async with speaking(there, {"skills": True}, mode) as peer:
        assert await find_primitive(peer, OPTIONS) is None
    async with speaking(there, {"skills": {"scripts": False}}, mode) as peer:
        assert await find_primitive(peer, OPTIONS) is None
        assert there.requests == []
        assert await find_primitive(peer, DialectOptions(dialect=Dialect.PRIMITIVE)) is not None


@both_generations
@pytest.mark.requirement("P2076-02")
@pytest.mark.requirement("P2076-09")
async def test_a_listing_is_read_page_by_page_and_one_bad_item_costs_only_itself(mode: str) -> None:
    full = {
        **ITEM,
        "title": "Refunds",
        "version": "1.2",
        "tags": ["a", "b"],
        "icons": [],
        "dependencies": {"tools": ["pay"]},
        "_meta": {"x": 1},
    }
    pages = {
        None: {
            "skills": [full, {"title": "no name"}, {"name": "Bad Name"}],
            "nextCursor": "2",
            "ttlMs": 7000,
        },
        "2": {"skills": [{"name": "b"}, {"name": "c"}, {"name": "c", "description": "x"}], "ttlMs": 9000},
    }
    there = Stranger({"skills/list": listing(pages)}, declares=False)
    async with speaking(there, SKILLS, mode) as peer:
        found = await find_primitive(peer, OPTIONS)

        assert found is not None
        listed = found.listing
        assert [entry.uri.path for entry in listed.entries] == ["refunds", "b"]
        assert listed.entries[0].frontmatter.fields == {
            "name": "refunds",
            "description": "Use when asked.",
            "metadata": {"title": "Refunds", "version": "1.2", "tags": "a, b"},
        }
        assert listed.entries[0].extra == {"dependencies": {"tools": ["pay"]}, "_meta": {"x": 1}}
        codes = [[finding.code for finding in refused.findings] for refused in listed.refused]
        assert codes == [["primitive-item-invalid"], ["name-invalid"], ["duplicate-uri"], ["duplicate-uri"]]
        assert (listed.ttl_ms, listed.dialect, listed.problem) == (7000, Dialect.PRIMITIVE, None)
        assert there.requests == [("skills/list", {}), ("skills/list", {"cursor": "2"})]


@both_generations
async def test_a_listing_without_end_is_cut_off_and_what_came_is_kept(mode: str) -> None:
    numbers = iter(range(1000))
    there = Stranger(
        {
            "skills/list": lambda _params: {
                "skills": [{"name": f"s{next(numbers)}"}],
                "nextCursor": f"c{next(numbers)}",
            }
        },
        declares=False,
    )
    async with speaking(there, SKILLS, mode) as peer:
        found = await find_primitive(peer, DialectOptions(limits=ListingLimits(max_pages=5), seconds=20))

        assert found is not None
        assert len(found.listing.entries) == 5
        assert isinstance(found.listing.problem, EndlessListingError)


async def test_a_server_that_does_not_know_the_method_does_not_speak_the_dialect() -> None:
    async with speaking(Stranger({}, declares=False), SKILLS) as peer:
        assert await find_primitive(peer, OPTIONS) is None
    broken = Stranger({"skills/list": failing(INTERNAL_ERROR)}, declares=False)
    async with speaking(broken, SKILLS) as peer:
        with pytest.raises(PeerError):
            await find_primitive(peer, OPTIONS)


@both_generations
@pytest.mark.requirement("P2076-10")
@pytest.mark.requirement("CONF-16")
async def test_getting_asks_once_and_reading_asks_for_nothing_but_what_was_declared(mode: str) -> None:
    there = stranger(**{"resources/read": reading("file:///n.md")})
    async with speaking(there, SKILLS, mode) as peer:
        client = PrimitiveDialectClient()
        await client.list(peer, OPTIONS)
        entry = await client.get(peer, REFUNDS)
        skill_md = await client.read(peer, REFUNDS.text, max_bytes=1000)
        notes = await client.read(peer, "skill://refunds/files/notes", max_bytes=1000)
        for uri in (
            "skill://refunds/n.md",
            "file:///n.md",
            "skill://refunds/files/notes/..",
            "skill://refunds",
        ):
            with pytest.raises(NotFoundError):
                await client.read(peer, uri, max_bytes=1000)

        assert entry.dynamic_files == ("skill://refunds/files/notes",)
        assert entry.is_dynamic and not entry.is_summary
        assert skill_md == b'---\nname: refunds\ndescription: "Use when asked."\n---\nSteps.\n'
        assert notes == b"Notes.\n"
        assert there.requests == [
            ("skills/list", {}),
            ("skills/get", {"name": "refunds"}),
            ("skills/get", {"name": "refunds"}),
            ("resources/read", {"uri": "file:///n.md"}),
        ]


@both_generations
async def test_a_skill_that_is_not_listed_can_be_got_by_the_uri_its_name_becomes(mode: str) -> None:
    got = {"instructions": "Hidden.\n", "description": "Use in secret."}
    async with speaking(stranger(got=got), SKILLS, mode) as peer:
        client = PrimitiveDialectClient()
        await client.list(peer, OPTIONS)
        entry = await client.get(peer, SkillUri.parse("skill://acme/hidden/SKILL.md"))
        content = await client.read(peer, "skill://acme/hidden/SKILL.md", max_bytes=1000)

        assert entry.frontmatter.fields == {"name": "hidden", "description": "Use in secret."}
        assert content.endswith(b"---\nHidden.\n") and b"Use in secret." in content
        with pytest.raises(NotFoundError):
            await client.get(peer, SkillUri.parse("skill://refunds/inner/SKILL.md"))


@pytest.mark.requirement("CONF-17")
@pytest.mark.parametrize(
    ("got", "error"),
    [
        (failing(INVALID_PARAMS), NotFoundError),
        (failing(-32002), NotFoundError),
        (failing(INTERNAL_ERROR), PeerError),
        (failing(METHOD_NOT_FOUND), PeerError),
        ({}, InvalidAnswerError),
        ({"instructions": None}, InvalidAnswerError),
        ({"instructions": ["x"]}, InvalidAnswerError),
        ({"instructions": "half \ud800"}, InvalidAnswerError),
        ({"instructions": "x", "resultType": "input_required"}, InvalidAnswerError),
        ({"instructions": "x" * 1000}, LimitError),
    ],
)
async def test_an_answer_that_is_no_skill_is_one_clear_error(got: Any, error: type[Exception]) -> None:
    async with speaking(stranger(got=got), SKILLS) as peer:
        client = PrimitiveDialectClient()
        await client.list(peer, OPTIONS)
        with pytest.raises(error):
            await client.read(peer, REFUNDS.text, max_bytes=500)


async def test_required_arguments_are_named_and_never_guessed() -> None:
    item = {**ITEM, "arguments": [{"name": "region\n\x1b[2J", "required": True}, {"name": "tone"}]}
    there = stranger(item)
    async with speaking(there, SKILLS) as peer:
        client = PrimitiveDialectClient()
        await client.list(peer, OPTIONS)
        with pytest.raises(ArgumentsNeededError) as caught:
            await client.get(peer, REFUNDS)
        with pytest.raises(ArgumentsNeededError):
            await client.read(peer, REFUNDS.text, max_bytes=1000)

        assert "region\\n\\x1b[2J" in str(caught.value) and "tone" not in str(caught.value)
        assert there.requests == [("skills/list", {})]


@pytest.mark.requirement("ASK-15")
async def test_what_a_skill_needs_and_its_server_lacks_can_be_told() -> None:
    needs = {"tools": ["pay", "refund"], "prompts": [{"type": "ref/prompt", "name": "bye"}]}
    there = stranger({**ITEM, "dependencies": needs})
    async with speaking(there, SKILLS) as peer:
        [entry] = (await PrimitiveDialectClient().list(peer, OPTIONS)).entries
        missing = await missing_dependencies(peer, OPTIONS, entry)

        assert missing == SkillDependencies(tools=("pay", "refund"), prompts=("bye",))
        assert there.requests == [("skills/list", {})]
