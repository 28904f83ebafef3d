"""`skill://index.json`: what is read of it, what is refused, and what a server without one still offers."""

import json
from dataclasses import replace

import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import METHOD_NOT_FOUND

from skillwire.core.dialects import Dialect
from skillwire.core.errors import InvalidEntryError, SkillError
from skillwire.core.json import MAX_VALUES
from skillwire.core.manifest import Coverage, digest_of
from skillwire.core.uri import SkillUri
from skillwire.host.calls import Session
from skillwire.host.calls.exchange import ListingLimits
from skillwire.host.dialects import index
from skillwire.host.dialects.base import DialectMatch, DialectOptions
from skillwire.host.model.errors import EndlessListingError, InvalidAnswerError, PeerError
from skillwire.wire.index import INDEX_URI
from unit.host.calls.strangers import MODES
from unit.host.dialects.indexed import (
    TEA,
    TEA_URI,
    april,
    codes,
    in_april,
    in_june,
    june,
    peer_of,
    read_index,
    reads,
    serving,
)

both_generations = pytest.mark.parametrize("mode", MODES)
PINNED_JUNE = DialectOptions(dialect=Dialect.INDEX_JUNE)
PINNED_APRIL = DialectOptions(dialect=Dialect.INDEX_APRIL)


async def found(peer: Session, options: DialectOptions | None = None) -> DialectMatch:
    result = await index.find(peer, options or DialectOptions())
    assert result is not None
    return result


async def failure_of(call: object) -> SkillError:
    with pytest.raises(SkillError) as caught:
        await call  # type: ignore[misc]  # every caller hands over a coroutine
    return caught.value


# Its form


@pytest.mark.requirement("NEG-13")
@pytest.mark.requirement("OPEN-07")
@pytest.mark.parametrize(
    ("data", "dialect"),
    [
        (in_june(june()), Dialect.INDEX_JUNE),
        (in_june(), Dialect.INDEX_JUNE),
        (in_june(june(), **{"$schema": "https://example.com/any"}), Dialect.INDEX_JUNE),
        (in_april(april()), Dialect.INDEX_APRIL),
        (in_april(), Dialect.INDEX_APRIL),
    ],
)
def test_the_entries_tell_which_dialect_an_index_is_written_in(data: bytes, dialect: Dialect) -> None:
    assert read_index(data).dialect is dialect


@pytest.mark.requirement("NEG-13")
@pytest.mark.parametrize(
    "value",
    [
        [],
        "skills",
        {},
        {"skills": {}},
        {"skills": [{"name": "tea"}]},
        {"skills": ["tea"]},
        {"tools": []},
        {"$schema": "x", "skills": [{"name": "tea"}]},
    ],
)
def test_an_index_of_an_unknown_form_is_refused_with_the_rule_it_breaks(value: object) -> None:
    with pytest.raises(InvalidAnswerError) as caught:
        read_index(json.dumps(value).encode())

    assert caught.value.violates == "NEG-13"


@pytest.mark.requirement("NEG-12")
def test_a_form_that_the_user_chose_is_taken_and_the_other_is_not() -> None:
    assert len(read_index(in_june(june()), PINNED_JUNE).entries) == 1
    assert len(read_index(in_april(april()), PINNED_APRIL).entries) == 1
    for data, options in ((in_june(june()), PINNED_APRIL), (in_april(april()), PINNED_JUNE)):
        with pytest.raises(InvalidAnswerError):
            read_index(data, options)
    assert read_index(in_june(), PINNED_APRIL).dialect is Dialect.INDEX_APRIL


# Its JSON


@pytest.mark.requirement("NEG-13")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b'{"skills":[]',
        b'{"skills":[],"skills":[]}',
        b'{"skills":[{"frontmatter":{"name":"a","name":"b"}}]}',
        b'{"skills":[{"frontmatter":{"x":NaN}}]}',
        b'{"skills":[{"frontmatter":{"x":"\\ud800"}}]}',
        b'{"skills":[{"frontmatter":{"\\udfff":1}}]}',
        b'{"skills":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"skills":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"skills":[' + b'{"x":' * 70 + b"1" + b"}" * 70 + b"]}",
        b'{"skills":[1' + b"," * MAX_VALUES + b"]}",
        b'{"skills":[' + b"9" * 10_000 + b"]}",
    ],
    ids=range(14),
)
def test_json_that_readers_disagree_about_or_choke_on_is_refused_whole(data: bytes) -> None:
    with pytest.raises(InvalidAnswerError) as caught:
        read_index(data)

    assert caught.value.violates == "NEG-13" and len(str(caught.value)) < 400


def test_a_byte_order_mark_in_front_of_an_index_is_no_part_of_it() -> None:
    assert len(read_index(b"\xef\xbb\xbf" + in_june(june())).entries) == 1


@pytest.mark.requirement("LIST-18")
def test_of_an_index_with_too_many_entries_the_first_are_kept_with_the_problem() -> None:
    data = in_june(june(), *[june(url=f"skill://{n}/tea/SKILL.md") for n in range(5)])

    listing = read_index(data, DialectOptions(limits=ListingLimits(max_entries=3)))

    assert len(listing.entries) == 3
    assert isinstance(listing.problem, EndlessListingError)


@pytest.mark.requirement("ASK-38")
@both_generations
async def test_an_index_that_is_too_large_is_not_parsed(mode: str) -> None:
    files = {INDEX_URI: in_june(june(), filling="x" * 100_000)}
    small = DialectOptions(limits=ListingLimits(max_bytes=100_000))
    async with peer_of(serving(files), mode) as peer:
        refused = await found(peer, small)
        taken = await found(peer, DialectOptions(limits=ListingLimits(max_bytes=200_000)))

    assert isinstance(refused.listing.problem, EndlessListingError)
    assert refused.is_last_resort and refused.listing.entries == ()
    assert len(taken.listing.entries) == 1 and not taken.is_last_resort


# Whether there is one


@pytest.mark.requirement("IDX-01")
@pytest.mark.requirement("NEG-12")
@both_generations
async def test_an_index_is_read_blind_where_the_extension_is_declared(mode: str) -> None:
    server = serving({INDEX_URI: in_june(june())})
    async with peer_of(server, mode) as peer:
        result = await found(peer)

    assert server.requests == [("resources/read", {"uri": INDEX_URI})]
    assert (result.client.dialect, result.listing.dialect) == (Dialect.INDEX_JUNE, Dialect.INDEX_JUNE)
    assert [entry.uri.text for entry in result.listing.entries] == [TEA_URI]
    assert not result.is_last_resort


@pytest.mark.requirement("NEG-05")
@both_generations
async def test_a_server_that_declared_nothing_is_not_asked(mode: str) -> None:
    server = serving({INDEX_URI: in_june(june())}, declares=False)
    async with peer_of(server, mode) as peer:
        assert await index.find(peer, DialectOptions()) is None

    assert server.requests == []


@pytest.mark.requirement("IDX-07")
@both_generations
@pytest.mark.parametrize(
    "answer",
    [MCPError(-32602, "no"), MCPError(-32002, "no"), MCPError(METHOD_NOT_FOUND, "no")],
    ids=["invalid params", "not found", "no method"],
)
async def test_without_an_index_a_skill_still_loads_by_its_uri(mode: str, answer: MCPError) -> None:
    server = serving({INDEX_URI: answer, TEA_URI: TEA})
    async with peer_of(server, mode) as peer:
        result = await found(peer)
        entry = await result.client.get(peer, SkillUri.parse(TEA_URI))

    assert result.is_last_resort
    assert (result.listing.entries, result.listing.problem) == ((), None)
    assert (entry.uri.text, entry.name, entry.manifest) == (TEA_URI, "tea", None)


@pytest.mark.requirement("IDX-07")
@pytest.mark.requirement("NEG-13")
@pytest.mark.parametrize(
    "answer", [MCPError(-32603, "out of order"), b"no json", b'{"skills":{}}'], ids=["error", "text", "form"]
)
async def test_an_unreadable_index_is_a_problem_to_show_and_keeps_no_skill_from_loading(
    answer: bytes | MCPError,
) -> None:
    async with peer_of(serving({INDEX_URI: answer, TEA_URI: TEA})) as peer:
        result = await found(peer)
        again = await result.client.list(peer, DialectOptions())
        entry = await result.client.get(peer, SkillUri.parse(TEA_URI))

    assert result.is_last_resort
    for listing in (result.listing, again):
        assert listing.entries == ()
        assert isinstance(listing.problem, PeerError | InvalidAnswerError)
    assert entry.is_dynamic


@pytest.mark.requirement("IDX-07")
async def test_an_empty_index_is_an_answer_and_no_problem() -> None:
    async with peer_of(serving({INDEX_URI: in_june(), TEA_URI: TEA})) as peer:
        result = await found(peer)

        assert (await result.client.get(peer, SkillUri.parse(TEA_URI))).is_dynamic
    assert not result.is_last_resort
    assert (result.listing.entries, result.listing.refused, result.listing.problem) == ((), (), None)


async def test_the_april_finder_is_for_those_who_chose_it() -> None:
    server = serving({INDEX_URI: in_april(april())})
    async with peer_of(server) as peer:
        assert await index.find_april(peer, DialectOptions()) is None
        assert server.requests == []
        chosen = await index.find_april(peer, PINNED_APRIL)

    assert chosen is not None and len(chosen.listing.entries) == 1


# One skill


@both_generations
async def test_the_index_is_read_again_for_the_current_entry_of_one_skill(mode: str) -> None:
    files: dict[str, bytes | MCPError] = {INDEX_URI: in_june(june())}
    server = serving(files)
    async with peer_of(server, mode) as peer:
        client = (await found(peer)).client
        files[INDEX_URI] = in_june(june(digest=digest_of(b"other")))
        entry = await client.get(peer, SkillUri.parse(TEA_URI))

    assert entry.manifest is not None and entry.manifest.digests == (digest_of(b"other"),)
    assert reads(server) == [INDEX_URI, INDEX_URI]


@pytest.mark.requirement("IDX-09")
@pytest.mark.requirement("ASK-36")
@pytest.mark.requirement("CONF-07")
@pytest.mark.parametrize("root", ["skill://acme/tea", "github://acme/tools/skills/tea"])
async def test_a_skill_outside_the_index_is_one_when_somebody_names_it_under_any_scheme(root: str) -> None:
    uri = f"{root}/SKILL.md"
    server = serving({INDEX_URI: in_june(june()), uri: TEA})
    async with peer_of(server) as peer:
        result = await found(peer)
        assert [entry.uri.text for entry in result.listing.entries] == [TEA_URI]
        entry = await result.client.get(peer, SkillUri.parse(uri))

    assert (entry.uri.text, entry.coverage, entry.is_summary) == (uri, None, True)
    assert dict(entry.frontmatter.fields) == {"name": "tea"}
    assert uri not in reads(server)


async def test_what_the_index_lists_and_breaks_a_rule_is_not_read_around_the_index() -> None:
    server = serving({INDEX_URI: in_june(june(digest="sha256:short")), TEA_URI: TEA})
    async with peer_of(server) as peer:
        client = (await found(peer)).client
        server.requests.clear()
        failure = await failure_of(client.get(peer, SkillUri.parse(TEA_URI)))

    assert isinstance(failure, InvalidEntryError)
    assert reads(server) == [INDEX_URI]


async def test_a_listed_skill_keeps_its_promise_while_the_index_cannot_be_read() -> None:
    files: dict[str, bytes | MCPError] = {INDEX_URI: in_june(june()), TEA_URI: TEA}
    async with peer_of(serving(files)) as peer:
        client = (await found(peer)).client
        files[INDEX_URI] = MCPError(-32603, "out of order")
        failure = await failure_of(client.get(peer, SkillUri.parse(TEA_URI)))

    assert isinstance(failure, PeerError)


@pytest.mark.requirement("DRAFT-09")
async def test_an_unlisted_skill_may_have_another_name_where_the_user_chose_an_old_dialect() -> None:
    files = {TEA_URI: b"---\nname: coffee\ndescription: Use when asked.\n---\n"}
    async with peer_of(serving(files)) as peer:
        client = (await found(peer, PINNED_APRIL)).client
        entry = await client.get(peer, SkillUri.parse(TEA_URI))

    assert (entry.uri.text, dict(entry.frontmatter.fields)) == (TEA_URI, {})


# Together


@pytest.mark.requirement("LIST-19")
@pytest.mark.parametrize("spelling", [TEA_URI, "skill://te%61/SKILL.md"])
def test_a_uri_that_is_listed_twice_costs_all_its_copies_and_nothing_else(spelling: str) -> None:
    other = june(url="skill://a/tea/SKILL.md")

    listing = read_index(
        in_june(june(), other, june(url=spelling, digest=digest_of(b"2")), june(digest=None))
    )

    assert [entry.uri.text for entry in listing.entries] == ["skill://a/tea/SKILL.md"]
    assert [(refused.position, refused.uri) for refused in listing.refused] == [
        (0, TEA_URI),
        (2, TEA_URI),
        (3, TEA_URI),
    ]
    assert codes(listing) == [
        ["duplicate-uri"],
        ["duplicate-uri"],
        ["index-digest-invalid", "duplicate-uri"],
    ]


async def test_a_server_that_changes_the_form_of_its_index_is_understood_without_a_new_connection() -> None:
    files: dict[str, bytes | MCPError] = {INDEX_URI: in_april(april())}
    async with peer_of(serving(files)) as peer:
        result = await found(peer)
        files[INDEX_URI] = in_june(june())
        listing = await result.client.list(peer, DialectOptions())

    assert result.listing.dialect is Dialect.INDEX_APRIL
    assert (listing.dialect, result.client.dialect) == (Dialect.INDEX_JUNE, Dialect.INDEX_JUNE)
    [entry] = listing.entries
    assert entry.coverage is Coverage.SKILL_FILE and not entry.is_summary
    assert replace(entry, extra={}) == entry
