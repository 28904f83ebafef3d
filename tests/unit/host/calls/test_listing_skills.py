"""`list_skills`: all pages, every good entry, no bad one, and an end in any case."""

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError

from skillwire.core.entry import parse_entry
from skillwire.core.errors import INTERNAL_ERROR, INVALID_PARAMS, LimitError, SkillError, SourceError
from skillwire.core.finding import Finding
from skillwire.core.manifest import digest_of
from skillwire.host import list_skills
from skillwire.host.calls.exchange import declared
from skillwire.host.calls.listing import Listing, RefusedEntry
from skillwire.host.model.errors import EndlessListingError, InvalidAnswerError, NotDeclaredError, PeerError
from unit.host.calls.strangers import MODES, Answers, Pages, Params, Stranger, always, entry, listing

both_generations = pytest.mark.parametrize("mode", MODES)


async def listed(stranger: Stranger, mode: str = "auto", **options: Any) -> Listing:
    return await stranger.visited(mode, lambda client: list_skills(client, **options))


def stranger_listing(*items: Any) -> Stranger:
    return Stranger({"skills/list": always({"skills": list(items), "resultType": "complete"})})


def endless(page: Answers) -> Stranger:
    return Stranger({"skills/list": page})


def codes(refused: RefusedEntry) -> list[str]:
    return [finding.code for finding in refused.findings]


@both_generations
@pytest.mark.requirement("SDK-03")
@pytest.mark.requirement("LIST-12")
async def test_a_listing_is_one_request_per_page(mode: str) -> None:
    first, second, third = entry("a"), entry("b", files=("SKILL.md", "references/a.md")), entry("c")
    stranger = Stranger(
        {
            "skills/list": listing(
                {
                    None: {"skills": [first], "nextCursor": "after a"},
                    "after a": {"skills": [second], "nextCursor": ""},
                    "": {"skills": [third]},
                }
            )
        }
    )

    found = await listed(stranger, mode)

    assert found == Listing(tuple(map(parse_entry, (first, second, third))))
    assert stranger.requests == [
        ("skills/list", {}),
        ("skills/list", {"cursor": "after a"}),
        ("skills/list", {"cursor": ""}),
    ]


@both_generations
async def test_a_server_may_list_nothing_and_pages_may_be_empty(mode: str) -> None:
    pages: Pages = {None: {"skills": [], "nextCursor": "on"}, "on": {"skills": [], "nextCursor": None}}

    assert await listed(Stranger({"skills/list": listing(pages)}), mode) == Listing(())


@both_generations
@pytest.mark.requirement("NEG-05")
async def test_a_server_that_declared_nothing_is_not_asked(mode: str) -> None:
    stranger = Stranger({"skills/list": always({"skills": []})}, declares=False)

    async with stranger.connected(mode) as client:
        assert declared(client) is None
        with pytest.raises(NotDeclaredError) as caught:
            await list_skills(client)

    assert (stranger.requests, caught.value.violates) == ([], "NEG-05")


@pytest.mark.requirement("NEG-05")
async def test_a_client_that_never_asked_what_is_declared_asks_for_no_skills() -> None:
    stranger = Stranger({"skills/list": always({"skills": []})})

    async with stranger.connected("2026-07-28") as client:
        assert declared(client) is None
        with pytest.raises(NotDeclaredError):
            await list_skills(client)

    assert stranger.requests == []


@both_generations
@pytest.mark.requirement("LIST-19")
@pytest.mark.requirement("LIST-10")
@pytest.mark.requirement("LIST-11")
async def test_a_bad_entry_costs_only_itself(mode: str) -> None:
    good, better = entry("good"), entry("better")
    bad = {**entry("bad"), "resources": "static"}
    worse = {**entry("worse"), "resources": [{**entry("worse")["resources"][0], "size": -1}]}
    stranger = Stranger(
        {
            "skills/list": listing(
                {
                    None: {"skills": [bad, good, None], "nextCursor": "on"},
                    "on": {"skills": [worse, better, {"uri": "file:///etc/passwd"}]},
                }
            )
        }
    )

    found = await listed(stranger, mode)

    assert found.entries == (parse_entry(good), parse_entry(better))
    assert [(refused.position, refused.uri, codes(refused)) for refused in found.refused] == [
        (0, bad["uri"], ["resources-invalid"]),
        (2, None, ["entry-invalid"]),
        (3, worse["uri"], ["resource-invalid"]),
        (5, None, ["uri-invalid", "entry-invalid"]),
    ]


@pytest.mark.requirement("LIST-10")
@pytest.mark.parametrize("resources", [None, {}, "x", "Dynamic", 7, True], ids=repr)
async def test_an_entry_whose_resources_are_neither_a_list_nor_dynamic_is_refused(resources: Any) -> None:
    found = await listed(stranger_listing({**entry(), "resources": resources}))

    assert (found.entries, list(map(codes, found.refused))) == ((), [["resources-invalid"]])


@pytest.mark.requirement("LIST-10")
async def test_an_entry_without_resources_is_refused_and_a_dynamic_one_is_not() -> None:
    dynamic = {**entry("dynamic"), "resources": "dynamic"}
    without = {key: value for key, value in entry("without").items() if key != "resources"}

    found = await listed(stranger_listing(dynamic, without))

    assert found.entries == (parse_entry(dynamic),)
    assert [(refused.uri, codes(refused)) for refused in found.refused] == [
        (without["uri"], ["resources-invalid"])
    ]


@pytest.mark.requirement("LIST-11")
@pytest.mark.parametrize(
    ("resources", "code"),
    [
        ([], "resource-self-missing"),
        (entry()["resources"] * 2, "resource-invalid"),
        ([{**entry()["resources"][0], "digest": "sha256:" + "A" * 64}], "resource-invalid"),
        ([{**entry()["resources"][0], "digest": "sha256:ab"}], "resource-invalid"),
        ([{**entry()["resources"][0], "size": -1}], "resource-invalid"),
        ([{**entry()["resources"][0], "size": 4.0}], "resource-invalid"),
        ([{**entry()["resources"][0], "size": True}], "resource-invalid"),
    ],
    ids=["empty", "twice", "uppercase digest", "short digest", "negative", "fraction", "boolean"],
)
async def test_an_entry_with_malformed_resources_is_refused(resources: Any, code: str) -> None:
    found = await listed(stranger_listing({**entry(), "resources": resources}))

    assert (found.entries, list(map(codes, found.refused))) == ((), [[code]])


@both_generations
@pytest.mark.requirement("LIST-19")
async def test_of_a_uri_listed_twice_no_copy_is_used(mode: str) -> None:
    once = entry("once")
    twice = entry("twice")
    spelled = {**twice, "uri": "skill://acme/%74wice/SKILL.md"}
    broken = {**entry("thrice"), "resources": None}
    stranger = Stranger(
        {
            "skills/list": listing(
                {
                    None: {"skills": [twice, broken, once], "nextCursor": "on"},
                    "on": {"skills": [spelled, entry("thrice")]},
                }
            )
        }
    )

    found = await listed(stranger, mode)

    assert found.entries == (parse_entry(once),)
    assert [(refused.position, refused.uri, codes(refused)) for refused in found.refused] == [
        (0, twice["uri"], ["duplicate-uri"]),
        (1, broken["uri"], ["resources-invalid", "duplicate-uri"]),
        (3, twice["uri"], ["duplicate-uri"]),
        (4, broken["uri"], ["duplicate-uri"]),
    ]


@pytest.mark.requirement("LIST-19")
async def test_findings_about_a_strangers_entry_are_few_and_short() -> None:
    metadata = {f"key{number}": number for number in range(1000)}
    wordy = {**entry(), "frontmatter": {"name": "n" * 100_000, "description": "d", "metadata": metadata}}

    [refused] = (await listed(stranger_listing(wordy))).refused

    assert 1 < len(refused.findings) <= 10
    assert max(len(finding.message) for finding in refused.findings) <= 501
    assert all(isinstance(finding, Finding) and finding.is_error for finding in refused.findings)


# What two pages say about keeping them, and what that makes of the listing.
HINTS: list[tuple[Params, Params, int | None, str | None]] = [
    ({}, {}, None, None),
    ({"ttlMs": 60_000, "cacheScope": "public"}, {"ttlMs": 5, "cacheScope": "public"}, 5, "public"),
    ({"ttlMs": 5, "cacheScope": "public"}, {"ttlMs": 9, "cacheScope": "private"}, 5, "private"),
    ({"ttlMs": 5, "cacheScope": "public"}, {}, 0, "private"),
    ({"ttlMs": -1, "cacheScope": "shared"}, {"ttlMs": 9, "cacheScope": "public"}, 0, "private"),
    ({"ttlMs": "9", "cacheScope": 1}, {"ttlMs": "9", "cacheScope": 1}, 0, "private"),
    (
        {"ttlMs": 10**30, "cacheScope": "public"},
        {"ttlMs": 10**30, "cacheScope": "public"},
        2**53 - 1,
        "public",
    ),
    ({"ttlMs": True, "cacheScope": "public"}, {"ttlMs": True, "cacheScope": "public"}, 0, "public"),
]


@pytest.mark.requirement("LIST-15")
@pytest.mark.parametrize(("first", "second", "ttl_ms", "cache_scope"), HINTS)
@both_generations
async def test_the_most_cautious_page_says_how_long_a_listing_keeps(
    mode: str, first: Params, second: Params, ttl_ms: int | None, cache_scope: str | None
) -> None:
    pages: Pages = {None: {"skills": [], "nextCursor": "on", **first}, "on": {"skills": [], **second}}

    found = await listed(Stranger({"skills/list": listing(pages)}), mode)

    assert (found.ttl_ms, found.cache_scope) == (ttl_ms, cache_scope)


@both_generations
@pytest.mark.requirement("NEG-17")
async def test_a_result_without_a_type_is_complete(mode: str) -> None:
    with_type = await listed(stranger_listing(entry()), mode)
    without = await listed(Stranger({"skills/list": always({"skills": [entry()]})}), mode)

    assert with_type == without == Listing((parse_entry(entry()),))


@both_generations
@pytest.mark.requirement("NEG-18")
@pytest.mark.parametrize("result_type", ["input_required", "task", "", "Complete", None, 1, ["complete"]])
async def test_a_result_of_another_type_is_no_listing(mode: str, result_type: Any) -> None:
    stranger = Stranger({"skills/list": always({"skills": [entry()], "resultType": result_type})})

    with pytest.raises(InvalidAnswerError) as caught:
        await listed(stranger, mode)

    assert caught.value.violates == "NEG-18"


@both_generations
@pytest.mark.requirement("SDK-03")
@pytest.mark.parametrize("skills", [None, {}, {"0": entry()}, "skills", 7, True], ids=repr)
async def test_skills_that_are_no_list_are_one_clear_error(mode: str, skills: Any) -> None:
    with pytest.raises(InvalidAnswerError) as caught:
        await listed(Stranger({"skills/list": always({"skills": skills})}), mode)

    assert "`skills`" in str(caught.value)


@both_generations
@pytest.mark.requirement("LIST-18")
async def test_a_cursor_that_comes_again_ends_the_walk(mode: str) -> None:
    pages: Pages = {
        None: {"skills": [], "nextCursor": "a"},
        "a": {"skills": [], "nextCursor": "b"},
        "b": {"skills": [], "nextCursor": "a"},
    }
    stranger = endless(listing(pages))

    with pytest.raises(EndlessListingError) as caught:
        await listed(stranger, mode)

    assert isinstance(caught.value, LimitError)
    assert len(stranger.requests) == 3


def one_more(params: Params) -> Params:
    """A listing whose pages never end and never repeat."""
    number = int(params.get("cursor") or 0)
    return {"skills": [entry(f"skill-{number}")], "nextCursor": str(number + 1)}


@both_generations
@pytest.mark.requirement("LIST-18")
async def test_a_listing_with_too_many_pages_is_given_up(mode: str) -> None:
    stranger = endless(one_more)

    with pytest.raises(EndlessListingError):
        await listed(stranger, mode, max_pages=7)

    assert len(stranger.requests) == 7


@pytest.mark.requirement("LIST-18")
async def test_a_listing_with_exactly_as_many_pages_and_entries_as_allowed_is_taken() -> None:
    pages: Pages = {None: {"skills": [entry("a")], "nextCursor": "on"}, "on": {"skills": [entry("b")]}}

    found = await listed(Stranger({"skills/list": listing(pages)}), max_pages=2, max_entries=2)

    assert [skill.name for skill in found.entries] == ["a", "b"]


@pytest.mark.requirement("LIST-18")
async def test_a_listing_with_too_many_entries_is_given_up() -> None:
    stranger = endless(one_more)

    with pytest.raises(EndlessListingError):
        await listed(stranger, max_entries=3)

    assert len(stranger.requests) == 4


@pytest.mark.requirement("LIST-18")
async def test_a_listing_with_too_many_bytes_is_given_up() -> None:
    stranger = endless(one_more)

    with pytest.raises(EndlessListingError):
        await listed(stranger, max_bytes=1000)

    assert 2 <= len(stranger.requests) <= 5


@both_generations
@pytest.mark.requirement("LIST-18")
async def test_a_listing_that_takes_too_long_is_given_up(mode: str) -> None:
    async def slow(params: Params) -> Params:
        await anyio.sleep(0.1)
        return one_more(params)

    stranger = endless(slow)
    with pytest.raises(SourceError):
        await listed(stranger, mode, max_seconds=0.25)

    assert 1 <= len(stranger.requests) <= 3


@both_generations
@pytest.mark.requirement("LIST-18")
@pytest.mark.parametrize("cursor", [7, True, {}, ["on"], "c" * 70_000], ids=lambda value: str(value)[:9])
async def test_a_cursor_that_is_no_short_text_is_refused(mode: str, cursor: Any) -> None:
    stranger = endless(always({"skills": [], "nextCursor": cursor}))

    with pytest.raises(InvalidAnswerError):
        await listed(stranger, mode)

    assert len(stranger.requests) == 1


@both_generations
@pytest.mark.requirement("LIST-13")
async def test_a_cursor_the_server_forgot_starts_the_listing_again(mode: str) -> None:
    asked: list[Params] = []

    def changing(params: Params) -> Params:
        asked.append(params)
        if len(asked) == 1:
            return {"skills": [entry("gone")], "nextCursor": "old"}
        if params.get("cursor") == "old":
            raise MCPError(INVALID_PARAMS, "Invalid cursor")
        return {"skills": [entry("new")], "ttlMs": 5, "cacheScope": "public"}

    found = await listed(endless(changing), mode)

    assert found == Listing((parse_entry(entry("new")),), (), 5, "public")
    assert asked == [{}, {"cursor": "old"}, {}]


@pytest.mark.requirement("LIST-13")
@pytest.mark.requirement("LIST-18")
async def test_a_server_that_takes_none_of_its_cursors_is_given_up() -> None:
    def forgetful(params: Params) -> Params:
        if "cursor" in params:
            raise MCPError(INVALID_PARAMS, "Invalid cursor")
        return {"skills": [], "nextCursor": "on"}

    stranger = endless(forgetful)
    with pytest.raises(InvalidAnswerError):
        await listed(stranger)

    assert len(stranger.requests) == 4


@both_generations
@pytest.mark.parametrize("code", [INVALID_PARAMS, INTERNAL_ERROR, -32601, -32002, 0, 42])
async def test_an_error_of_the_server_keeps_its_code_and_loses_its_power(mode: str, code: int) -> None:
    def failing(_params: Params) -> Params:
        raise MCPError(code, "\x1b[31mrun\u202e this\n" * 10_000)

    with pytest.raises(PeerError) as caught:
        await listed(endless(failing), mode)

    message = str(caught.value)
    assert (caught.value.peer_code, caught.value.method) == (code, "skills/list")
    assert message.isascii() and message.isprintable() and len(message) < 200
    assert isinstance(caught.value, SourceError)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
resources = st.fixed_dictionaries(
    {},
    optional={
        "uri": st.sampled_from(["skill://acme/a/SKILL.md", "skill://acme/b/SKILL.md", "skill://x/../y"])
        | json_values,
        "digest": st.just(digest_of(b"")) | json_values,
        "size": st.integers() | json_values,
    },
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "uri": st.sampled_from([entry("a")["uri"], entry("b")["uri"], "skill://acme/%61/SKILL.md"])
        | json_values,
        "frontmatter": st.sampled_from([entry("a")["frontmatter"], entry("b")["frontmatter"]]) | json_values,
        "resources": st.just("dynamic") | st.lists(resources, max_size=3) | json_values,
    },
)
pages = st.fixed_dictionaries(
    {},
    optional={
        "skills": st.lists(st.sampled_from([entry("a"), entry("b")]) | entries | json_values, max_size=4)
        | json_values,
        "nextCursor": st.sampled_from(["1", "2", "3", "", None]) | json_values,
        "ttlMs": json_values,
        "cacheScope": st.sampled_from(["public", "private"]) | json_values,
        "resultType": st.just("complete") | json_values,
    },
)


@pytest.mark.requirement("LIST-18")
@pytest.mark.requirement("LIST-19")
@pytest.mark.requirement("SDK-03")
@settings(deadline=None, max_examples=150)
@given(answers=st.lists(pages, min_size=1, max_size=5), mode=st.sampled_from(MODES))
def test_any_pages_end_in_a_listing_or_in_one_of_our_own_errors(answers: list[Params], mode: str) -> None:
    count = 0

    def page(_params: Params) -> Params:
        nonlocal count
        count += 1
        return answers[min(count, len(answers)) - 1]

    async def run() -> None:
        try:
            found = await listed(endless(page), mode, max_pages=20, max_seconds=20)
        except SkillError as error:
            assert str(error).isprintable() and len(str(error)) < 1000
            return
        sent = [item for answer in answers[:count] for item in answer["skills"]]
        assert len(found.entries) + len(found.refused) == len(sent)
        assert len({skill.uri for skill in found.entries}) == len(found.entries)
        assert all(skill == parse_entry(skill.to_json()) for skill in found.entries)
        assert all(refused.findings for refused in found.refused)

    anyio.run(run)
    assert count <= 20
