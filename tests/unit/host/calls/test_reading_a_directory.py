"""`read_directory`: the direct children of one directory, and nothing from elsewhere."""

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError

from skillwire.core.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    InvalidUriError,
    NotFoundError,
    SkillError,
    SourceError,
)
from skillwire.host.calls.exchange import Declaration, declared
from skillwire.host.calls.listing import DirectoryItem, read_directory
from skillwire.host.model.errors import EndlessListingError, InvalidAnswerError, NotDeclaredError, PeerError
from unit.host.calls.strangers import MODES, Answers, Params, Stranger, always, listing

both_generations = pytest.mark.parametrize("mode", MODES)

METHOD = "resources/directory/read"
URI = "skill://acme/refunds"
FILE: Params = {"uri": f"{URI}/SKILL.md", "name": "refunds", "mimeType": "text/markdown", "size": 4}
FOLDER: Params = {"uri": f"{URI}/references", "name": "references", "mimeType": "inode/directory"}


def keeper(answers: Answers, *, settings: Any = None) -> Stranger:
    return Stranger({METHOD: answers}, settings={"directoryRead": True} if settings is None else settings)


async def found(
    answers: Answers, mode: str = "auto", uri: str = URI, **options: Any
) -> tuple[DirectoryItem, ...]:
    return await keeper(answers).visited(mode, lambda client: read_directory(client, uri, **options))


@both_generations
@pytest.mark.requirement("SDK-03")
@pytest.mark.requirement("DIR-05")
async def test_a_directory_is_one_request_per_page(mode: str) -> None:
    stranger = keeper(
        listing({None: {"resources": [FILE], "nextCursor": "on"}, "on": {"resources": [FOLDER]}})
    )

    items = await stranger.visited(mode, lambda client: read_directory(client, URI))

    assert items == (
        DirectoryItem(f"{URI}/SKILL.md", "SKILL.md", "text/markdown", 4, False),
        DirectoryItem(f"{URI}/references", "references", "inode/directory", None, True),
    )
    assert stranger.requests == [(METHOD, {"uri": URI}), (METHOD, {"uri": URI, "cursor": "on"})]


@both_generations
async def test_a_directory_may_be_empty(mode: str) -> None:
    assert await found(always({"resources": [], "resultType": "complete"}), mode) == ()


async def test_an_item_is_named_by_its_uri_and_keeps_the_servers_spelling() -> None:
    spelling = f"{URI}/Q%26A%20notes.md"

    [item] = await found(always({"resources": [{"uri": spelling, "name": "../../.bashrc"}]}))

    assert item == DirectoryItem(f"{URI}/Q&A%20notes.md", "Q&A notes.md", None, None, False)
    assert item.published == spelling


@both_generations
@pytest.mark.requirement("NEG-06")
@pytest.mark.requirement("NEG-03")
@pytest.mark.parametrize(
    "value", [{}, *({"directoryRead": value} for value in (False, None, 1, "true", [True]))], ids=repr
)
async def test_without_directory_read_declared_as_true_nothing_is_sent(mode: str, value: Params) -> None:
    stranger = keeper(always({"resources": []}), settings=value)

    async with stranger.connected(mode) as client:
        assert declared(client) == Declaration(False, value)
        with pytest.raises(NotDeclaredError) as caught:
            await read_directory(client, URI)

    assert (stranger.requests, caught.value.violates) == ([], "NEG-06")


@both_generations
@pytest.mark.requirement("NEG-06")
async def test_without_the_extension_nothing_is_sent(mode: str) -> None:
    stranger = Stranger({METHOD: always({"resources": []})}, declares=False)

    with pytest.raises(NotDeclaredError):
        await stranger.visited(mode, lambda client: read_directory(client, URI))

    assert stranger.requests == []


@both_generations
@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("NEG-19")
async def test_a_declaration_is_seen_in_both_generations_with_settings_of_tomorrow(mode: str) -> None:
    settings = {"directoryRead": True, "tomorrow": {"a": 1}}

    async with keeper(always({}), settings=settings).connected(mode) as client:
        assert declared(client) == Declaration(True, settings)


@both_generations
@pytest.mark.requirement("DIR-13")
@pytest.mark.parametrize(
    "uri",
    [
        "skill://acme/other/SKILL.md",
        "skill://acme",
        URI,
        f"{URI}/references/guide.md",
        f"{URI}-too/SKILL.md",
        f"{URI}/../other",
        f"{URI}/%2e%2e",
        f"{URI}/a%2Fb",
        f"{URI}/",
        "other://acme/refunds/SKILL.md",
        "skill://ACME/refunds/SKILL.md",
        "file:///etc/passwd",
        "https://example.com/refunds/SKILL.md",
        "SKILL.md",
        "",
    ],
)
async def test_something_from_outside_the_directory_is_refused(mode: str, uri: str) -> None:
    with pytest.raises(InvalidAnswerError) as caught:
        await found(always({"resources": [FILE, {**FOLDER, "uri": uri}]}), mode)

    assert caught.value.violates == "DIR-13"


@both_generations
@pytest.mark.parametrize(
    "item",
    [
        None,
        "SKILL.md",
        {},
        {**FILE, "uri": None},
        {**FILE, "uri": 7},
        {**FILE, "size": -1},
        {**FILE, "size": 4.0},
        {**FILE, "size": True},
        {**FILE, "size": 2**63},
        {**FILE, "mimeType": 7},
        {**FILE, "mimeType": ""},
        {**FILE, "mimeType": "text/plain\x1b[2J"},
        {**FILE, "mimeType": "t" * 300},
    ],
    ids=lambda item: repr(item)[:60],
)
async def test_a_malformed_item_is_one_clear_error(mode: str, item: Any) -> None:
    with pytest.raises(InvalidAnswerError):
        await found(always({"resources": [item]}), mode)


async def test_an_item_listed_twice_is_refused() -> None:
    again = {**FILE, "uri": f"{URI}/%53KILL.md"}

    with pytest.raises(InvalidAnswerError, match="twice"):
        await found(listing({None: {"resources": [FILE], "nextCursor": "on"}, "on": {"resources": [again]}}))


@both_generations
@pytest.mark.parametrize("resources", [None, {}, "x", 7], ids=repr)
async def test_resources_that_are_no_list_are_one_clear_error(mode: str, resources: Any) -> None:
    with pytest.raises(InvalidAnswerError, match="`resources`"):
        await found(always({"resources": resources}), mode)


@both_generations
@pytest.mark.requirement("NEG-18")
async def test_a_result_of_another_type_is_no_directory(mode: str) -> None:
    with pytest.raises(InvalidAnswerError) as caught:
        await found(always({"resources": [FILE], "resultType": "input_required"}), mode)

    assert caught.value.violates == "NEG-18"


@both_generations
async def test_a_directory_the_server_does_not_have_is_not_found(mode: str) -> None:
    def unknown(_params: Params) -> Params:
        raise MCPError(INVALID_PARAMS, "not a directory resource")

    with pytest.raises(NotFoundError) as caught:
        await found(unknown, mode)

    assert caught.value.uri == URI


@both_generations
async def test_any_other_error_of_the_server_names_the_method(mode: str) -> None:
    def failing(_params: Params) -> Params:
        raise MCPError(INTERNAL_ERROR, "out of order")

    with pytest.raises(PeerError, match=METHOD):
        await found(failing, mode)


@pytest.mark.requirement("LIST-13")
async def test_a_cursor_the_server_forgot_starts_the_directory_again() -> None:
    asked: list[Params] = []

    def changing(params: Params) -> Params:
        asked.append(params)
        if "cursor" in params:
            raise MCPError(INVALID_PARAMS, "Invalid cursor")
        return (
            {"resources": [FILE], "nextCursor": "old"} if len(asked) == 1 else {"resources": [FILE, FOLDER]}
        )

    assert [item.name for item in await found(changing)] == ["SKILL.md", "references"]
    assert len(asked) == 3


async def test_a_server_that_takes_none_of_its_cursors_still_has_the_directory() -> None:
    def forgetful(params: Params) -> Params:
        if "cursor" in params:
            raise MCPError(INVALID_PARAMS, "Invalid cursor")
        return {"resources": [], "nextCursor": "on"}

    with pytest.raises(InvalidAnswerError):
        await found(forgetful)


@both_generations
@pytest.mark.requirement("LIST-18")
async def test_a_directory_that_never_ends_is_given_up(mode: str) -> None:
    def one_more(params: Params) -> Params:
        number = int(params.get("cursor") or 0)
        return {"resources": [{"uri": f"{URI}/{number}"}], "nextCursor": str(number + 1)}

    with pytest.raises(EndlessListingError):
        await found(one_more, mode, max_pages=5)
    with pytest.raises(EndlessListingError):
        await found(one_more, mode, max_entries=5)
    with pytest.raises(EndlessListingError):
        await found(one_more, mode, max_bytes=100)
    with pytest.raises(EndlessListingError):
        await found(always({"resources": [], "nextCursor": "again"}), mode)


@both_generations
@pytest.mark.parametrize("uri", [f"{URI}/", "skill://", "skill://a/../b", "file:///etc", "references"])
async def test_a_uri_no_directory_may_have_is_not_sent(mode: str, uri: str) -> None:
    stranger = keeper(always({"resources": []}))

    with pytest.raises(InvalidUriError):
        await stranger.visited(mode, lambda client: read_directory(client, uri))

    assert stranger.requests == []


@both_generations
async def test_a_server_that_does_not_answer_is_given_up(mode: str) -> None:
    async def silent(_params: Params) -> Params:
        await anyio.sleep_forever()
        raise AssertionError

    with pytest.raises(SourceError, match="too long"):
        await found(silent, mode, max_seconds=0.05)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
segments = st.sampled_from(["", ".", "..", "%2e", "%2E%2e", "a", "b", "%2F", "%5C", "SKILL.md", "ä", "\x00"])
uris = st.lists(segments, max_size=4).map(lambda parts: "/".join([URI, *parts])) | st.text(max_size=30)
items = st.fixed_dictionaries(
    {},
    optional={
        "uri": uris | json_values,
        "mimeType": st.sampled_from(["text/markdown", "inode/directory"]) | json_values,
        "size": st.integers() | json_values,
        "name": json_values,
    },
)


@pytest.mark.requirement("DIR-13")
@settings(deadline=None, max_examples=150)
@given(resources=st.lists(items | st.just(FILE), max_size=3) | json_values, mode=st.sampled_from(MODES))
def test_whatever_is_listed_only_direct_children_are_returned(resources: Any, mode: str) -> None:
    async def run() -> None:
        try:
            children = await found(always({"resources": resources}), mode)
        except SkillError as error:
            assert str(error).isprintable() and len(str(error)) < 1000
            return
        assert len(children) == len(resources)
        for child in children:
            assert child.uri.startswith(f"{URI}/")
            assert "/" not in child.uri.removeprefix(f"{URI}/")
            assert child.name not in ("", ".", "..") and not set(child.name) & set("/\\\x00")

    anyio.run(run)
