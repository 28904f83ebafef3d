"""Ready answers: which requests are plain enough for them, and the bytes they are made of."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folders import write_files, write_skill
from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.server import listed as pages_module
from skillwire.server.fast.hot import MODERN_VERSION, HotAnswers
from skillwire.server.fast.requests import FastRequest, RequestReader, parse_request, response
from skillwire.server.listed import MAX_PAGE_BYTES, ListedSkills
from skillwire.server.options import ServeOptions
from skillwire.server.standalone import SkillServer
from skillwire.sources import DynamicSkill, Snapshot
from skillwire.sources.combined import MAX_SMALL_FILE
from skillwire.wire.core import read_cursor, write_entry

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
ENVELOPE: Mapping[str, Any] = {VERSION_KEY: MODERN_VERSION, CAPABILITIES_KEY: {}}

# --- Entries of any kind ---

_characters = st.characters(exclude_categories=["Cs"])
_texts = st.text(_characters, max_size=12)
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(_texts, children, max_size=3),
    max_leaves=6,
)
_fields = st.dictionaries(_texts, _values, max_size=4)
_extras = st.dictionaries(_texts.map("x-{}".format), _values, max_size=2)
# Anything that may be a path's segment: no separator, no control character, no percent sign to decode again.
_letters = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\%.")
_segments = st.text(_letters, min_size=1, max_size=6)
_digests = st.sampled_from([f"sha256:{digit * 64}" for digit in "09af"])
_sizes = st.integers(0, 2**63 - 1)
_names = st.text("abc-019", min_size=1, max_size=4)


@st.composite
def entries(draw: st.DrawFn) -> SkillEntry:
    """Make an entry as it may come from any source, a relay of strangers included."""
    path = "/".join([*draw(st.lists(_segments, max_size=2)), draw(_names)])
    uri = SkillUri.build(path, scheme=draw(st.sampled_from(["skill", "github", "a+b.c-d"])))
    frontmatter = Frontmatter({"name": uri.name, "description": draw(_texts), **draw(_fields)})
    paths = draw(st.lists(st.lists(_segments, min_size=1, max_size=2).map("/".join), max_size=3))
    lines = {uri.join(path): (draw(_digests), draw(_sizes)) for path in ["SKILL.md", *paths]}
    oddity = draw(st.sampled_from(["none", "dynamic", "uri", "extra", "line uri", "line extra"]))
    files = [
        ManifestFile(
            line,
            *promise,
            spelling=line.upper() if oddity == "line uri" else "",
            extra=draw(_extras) if oddity == "line extra" else None,
        )
        for line, promise in lines.items()
    ]
    return SkillEntry(
        SkillUri(uri.text, uri.text.upper() if oddity == "uri" else ""),
        frontmatter,
        None if oddity == "dynamic" else Manifest.of(files),
        draw(_extras) if oddity == "extra" else {},
    )


def spelled(value: object) -> str:
    """Return a JSON value as text that tells true from 1, 1 from 1.0, and one order of keys from another."""
    return repr(value)


@settings(deadline=None, max_examples=200)
@given(entry=entries())
def test_an_entry_is_written_as_the_json_it_stands_for(entry: SkillEntry) -> None:
    written = json.loads(write_entry(entry))

    assert spelled(written) == spelled(json.loads(json.dumps(entry.to_json())))


def test_an_integer_beyond_64_bits_is_written_to_the_digit() -> None:
    entry = simple_entry("big", {"number": 10**40, "text": "é\u2028\x7f\x00"})

    assert json.loads(write_entry(entry)) == entry.to_json()


def test_half_a_character_survives_writing() -> None:
    entry = simple_entry("half", {"text": "\ud800"})

    assert json.loads(write_entry(entry)) == entry.to_json()


def simple_entry(name: str, fields: Mapping[str, Any] | None = None, *, digest: str = "0" * 64) -> SkillEntry:
    uri = SkillUri.build(name)
    frontmatter = Frontmatter({"name": name, "description": "Use when testing.", **(fields or {})})
    return SkillEntry(uri, frontmatter, Manifest.of([ManifestFile(uri.text, f"sha256:{digest}", 1)]))


# --- Pages ---


def listing(entries: Sequence[SkillEntry], page_size: int) -> ListedSkills:
    return ListedSkills(page_size=page_size).update(Snapshot.of(entries))


def walk(pages: ListedSkills) -> list[list[Any]]:
    """Follow the cursors from the first page to the last, and return the items of each page."""
    found: list[list[Any]] = []
    after = None
    while True:
        assert len(found) <= len(pages.entries), "there are never more pages than entries"
        page = pages.after(after)
        whole = json.loads(b"{%b}" % page)
        found.append(whole["skills"])
        if "nextCursor" not in whole:
            return found
        after = read_cursor("skills/list", whole["nextCursor"])


@pytest.mark.requirement("LIST-12")
@settings(deadline=None, max_examples=200)
@given(
    lengths=st.lists(st.integers(0, 400), max_size=12),
    page_size=st.integers(1, 14),
    page_bytes=st.integers(1, 3000),
)
def test_walking_pages_of_any_size_gives_each_entry_once_in_order_and_no_page_is_too_large(
    lengths: list[int], page_size: int, page_bytes: int
) -> None:
    entries = [simple_entry(f"n{index:02}", {"note": "é" * size}) for index, size in enumerate(lengths)]
    sizes = {entry.uri.text: len(write_entry(entry)) + 1 for entry in entries}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages_module, "MAX_PAGE_BYTES", page_bytes)

        found = walk(listing(entries, page_size))

    assert [item for page in found for item in page] == [entry.to_json() for entry in entries]
    assert all(1 <= len(page) <= page_size for page in found) or not entries
    weights = [[sizes[item["uri"]] for item in page] for page in found]
    assert all(sum(weight) <= page_bytes or len(weight) == 1 for weight in weights)
    # A page ends only because it is full, or because nothing is left.
    for weight, following in pairwise(weights):
        assert len(weight) == page_size or sum(weight) + following[0] > page_bytes


def test_a_page_of_large_entries_stays_below_a_mebibyte() -> None:
    entries = [simple_entry(f"skill-{number:02}", {"note": "x" * 100_000}) for number in range(30)]
    pages = listing(entries, 100)

    found = walk(pages)

    assert [len(page) for page in found] == [8, 8, 8, 6]
    assert len(pages.after(None)) <= MAX_PAGE_BYTES < 1024 * 1024


def test_an_entry_larger_than_any_page_is_a_page_of_its_own() -> None:
    sizes = {"a": 10, "b": 2_000_000, "c": 10}
    entries = [simple_entry(name, {"note": "x" * size}) for name, size in sizes.items()]

    found = walk(listing(entries, 100))

    assert [[item["frontmatter"]["name"] for item in page] for page in found] == [["a"], ["b"], ["c"]]


def test_the_only_page_of_nothing_is_empty() -> None:
    page = listing((), 10).after(None)

    assert page == b'"skills":[]'


@settings(deadline=None, max_examples=150)
@given(data=st.data(), page_size=st.integers(1, 5))
def test_pages_taken_over_from_older_snapshots_are_those_a_fresh_listing_has(
    data: st.DataObject, page_size: int
) -> None:
    names = [f"n{number}" for number in range(9)]
    versions = {name: [simple_entry(name, digest=f"{version:064}") for version in range(2)] for name in names}
    histories = st.lists(st.dictionaries(st.sampled_from(names), st.integers(0, 1)), min_size=1, max_size=6)
    pages = listing((), page_size)
    for chosen in data.draw(histories):
        entries = [versions[name][version] for name, version in chosen.items()]
        pages = pages.update(Snapshot.of(entries))
        fresh = listing(entries, page_size)
        for name in [None, *data.draw(st.lists(st.sampled_from([*names, "a", "z"]), max_size=4))]:
            after = None if name is None else SkillUri.build(name).text

            assert pages.after(after) == fresh.after(after)
        assert walk(pages) == walk(fresh)


def test_pages_that_did_not_change_are_taken_over_and_not_written_again() -> None:
    entries = [simple_entry(f"n{number}") for number in range(6)]
    pages = listing(entries, 2)
    before = [pages.after(None), pages.after(entries[1].uri.text), pages.after(entries[3].uri.text)]
    changed = [*entries[:2], simple_entry("n2", digest="1" * 64), *entries[3:]]

    newer = pages.update(Snapshot.of(changed))
    after = [newer.after(None), newer.after(entries[1].uri.text), newer.after(entries[3].uri.text)]

    assert [old is new for old, new in zip(before, after, strict=True)] == [True, False, True]


# --- Requests that are plain enough ---


ODD: tuple[Any, ...] = (None, True, False, 1, 1.5, "", [], {})


def request_text(**changes: object) -> bytes:
    fields: dict[str, object] = {"jsonrpc": "2.0", "id": 1, "method": "skills/list", "params": {}}
    return orjson.dumps({key: value for key, value in {**fields, **changes}.items() if value is not ...})


@pytest.mark.parametrize("identifier", [0, 1, -1, 2**53 - 1, 1 - 2**53, "", "a", "é\u2028\x00😀"])
def test_a_plain_id_comes_back_as_it_was(identifier: int | str) -> None:
    request = parse_request(request_text(id=identifier))

    assert request is not None
    assert json.loads(b"".join(response(request, (b"{", b"}")))) == {
        "jsonrpc": "2.0",
        "id": identifier,
        "result": {},
    }


@pytest.mark.parametrize(
    "text",
    [
        *(request_text(id=value) for value in (*ODD, 1.0, 2**53, -(2**53), ...) if value not in (1, "")),
        *(request_text(jsonrpc=value) for value in (*ODD, "1.0", 2.0, ...)),
        *(request_text(method=value) for value in (*ODD, "tools/list", "skills/List", ...)),
        *(request_text(params=value) for value in (*ODD, ...) if value != {}),
        *(request_text(params={key: ""}) for key in ("extra", "name", "uri")),
        *(request_text(params={"cursor": value}) for value in ODD if value != ""),
        *(
            request_text(method=method)
            for method in ("skills/get", "resources/read", "resources/directory/read")
        ),
        *(request_text(method="skills/get", params={"uri": value}) for value in ODD if value != ""),
        request_text(method="resources/read", params={"uri": "skill://a", "cursor": "b"}),
        request_text(extra=1),
        *(b"", b" ", b"{", b"null", b"1", b'"x"', b"[]", b"{}", b"[%b]" % request_text()),
        b"\xef\xbb\xbf" + request_text(),
        request_text().decode().encode("utf-16"),
        request_text() + b"x",
        request_text().replace(b"1", b"NaN"),
        request_text().replace(b"1", b'"\\ud800"'),
        pytest.param(request_text().replace(b"1", b"9" * 5000), id="an integer of 5000 digits"),
        pytest.param(b"[" * 100_000, id="a hundred thousand brackets"),
        b"\xff",
    ],
)
def test_whatever_is_not_plainly_good_is_no_request_for_ready_answers(text: bytes) -> None:
    assert parse_request(text) is None


@settings(deadline=None, max_examples=100)
@given(fields=st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params"]), _values))
def test_no_message_at_all_makes_reading_a_request_fail(fields: dict[str, Any]) -> None:
    whole = json.loads(request_text()) | fields

    request = parse_request(json.dumps(whole).encode())

    assert request is None or (
        request.method == "skills/list" and request.params.keys() <= {"_meta", "cursor"}
    )


_numbers = st.sampled_from(
    [
        *("0", "1", "2", "12", "999999999999999", "9007199254740991", "9007199254740992", "9" * 30),
        *(
            "-1",
            "-0",
            "00",
            "01",
            "1.0",
            "1e2",
            "+1",
            "",
            " 1",
            "1 ",
            '"1"',
            "true",
            "null",
            "1,2",
            '1,"id":2',
        ),
        "\u0661",
    ]
)
_beginnings = st.sampled_from(
    [
        *('{"jsonrpc":"2.0","id":', '{"jsonrpc": "2.0", "id": ', '{"jsonrpc":"2.0", "id":', '{"id":'),
        *('{"method":"skills/list","params":{},"jsonrpc":"2.0","id":', '{"params":{"_meta":{"a":1,"id":'),
        *(
            '{"jsonrpc":"2.0","id":7,"method":"skills/list","params":{},"id":',
            '{"params":{"cursor":",\\"id\\":',
        ),
    ]
)
_endings = st.sampled_from(
    [
        *("}", "} ", "}\r", "", "}}", ',"method":"skills/list","params":{}}', ',"id":3}', ', "id": 3}'),
        *(f',"method":"skills/list","params":{{}},"id":{number}}}' for number in (1, 2, 5)),
        *(', "method": "skills/list", "params": {}}'),
        *(',"method":"skills/get","params":{"uri":"skill://a/SKILL.md"}}', '}},"id":3}', '"},"id":3}'),
        ',"jsonrpc":"2.0","method":"skills/list","params":{"_meta":{"id":4}}}',
    ]
)


@settings(deadline=None, max_examples=300)
@given(texts=st.lists(st.tuples(_beginnings, _numbers, _endings).map("".join), min_size=1, max_size=30))
def test_having_read_other_requests_changes_nothing_about_reading_this_one(texts: list[str]) -> None:
    reader = RequestReader(lambda meta: meta is not None)
    for text in texts:
        fresh = RequestReader(lambda meta: meta is not None)

        assert reader.read(text.encode()) == fresh.read(text.encode())


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize(
    "keys", [("jsonrpc", "id", "method", "params"), ("method", "params", "jsonrpc", "id")]
)
def test_a_request_that_differs_in_its_id_alone_means_the_same(
    separators: tuple[str, str], keys: tuple[str, ...]
) -> None:
    reader = RequestReader(lambda meta: True)
    params = {"uri": "skill://a/SKILL.md", "_meta": {"progressToken": 1}}
    for identifier in (1, 2, 7, 0, 10**14, 2**53 - 1, "7", -7):
        fields = {"jsonrpc": "2.0", "id": identifier, "method": "skills/get", "params": params}
        text = json.dumps({key: fields[key] for key in keys}, separators=separators)

        assert reader.read(text.encode()) == (json.dumps(identifier).encode(), "skills/get", params, True)


def test_more_requests_than_are_remembered_are_still_read_rightly() -> None:
    reader = RequestReader(lambda meta: True)
    for number in range(5000):
        cursor = f"c{number % 2500}"
        text = request_text(id=number, params={"cursor": cursor})

        assert reader.read(text) == (b"%d" % number, "skills/list", {"cursor": cursor}, True)


# --- Answers ---


@pytest.fixture
def served() -> SkillServer:
    standalone = SkillServer(ServeOptions(folders=(), page_size=2))
    standalone.skills.add(
        Skill("built", description="Use when testing.", body="Do it.\n").with_reference("a b.md", "é"),
        DynamicSkill("live", description="Use when testing.", body=lambda: "now"),
    )
    return standalone


def asked(method: str, **params: Any) -> FastRequest:
    return FastRequest(b"1", method, params)


def text_of(parts: Sequence[bytes] | None) -> Any:
    assert parts is not None, "the plain path need not answer this"
    return json.loads(b"".join(parts))


@pytest.mark.parametrize("uri", ["skill://built/a%20b.md", "SKILL://built/a%20b.m%64"])
async def test_a_small_file_is_read_at_once_and_under_the_uri_it_was_asked_for(
    served: SkillServer, uri: str
) -> None:
    hot, request = served.hot, asked("resources/read", uri=uri)
    async with served.skills.open():
        at_once = hot.result(request, modern=False)
        fetched = await hot.fetch(request, modern=False)

    assert text_of(at_once) == text_of(fetched)
    assert text_of(at_once) == {"contents": [{"mimeType": "text/markdown", "text": "é", "uri": uri}]}


async def test_a_large_file_is_fetched(tmp_path: Path) -> None:
    write_skill(tmp_path / "tea", {"small.md": "x" * MAX_SMALL_FILE, "large.md": "x" * (MAX_SMALL_FILE + 1)})
    standalone = SkillServer(ServeOptions(folders=(tmp_path,), watch=False))
    async with standalone.skills.open():
        small = await read(standalone, "skill://tea/small.md")
        large = await read(standalone, "skill://tea/large.md")

    assert (small, large) == (("x" * MAX_SMALL_FILE, True), ("x" * (MAX_SMALL_FILE + 1), False))


async def read(served: SkillServer, uri: str) -> tuple[str | None, bool]:
    """Read a file as servers do; return its text, and whether it was read at once."""
    request = asked("resources/read", uri=uri)
    ready = served.hot.result(request, modern=True)
    parts = ready or await served.hot.fetch(request, modern=True)
    return (None if parts is None else text_of(parts)["contents"][0]["text"]), ready is not None


async def test_a_file_that_is_removed_or_replaced_is_not_answered_as_before(served: SkillServer) -> None:
    uri = "skill://built/a%20b.md"
    replacement = Skill("built", description="Use when testing.", body="New.\n").with_reference(
        "a b.md", "new"
    )
    async with served.skills.open():
        before = await read(served, uri)
        served.skills.remove(SkillUri.build("built"))
        await served.skills.source.refresh()
        removed = await read(served, uri)
        served.skills.add(replacement)
        await served.skills.source.refresh()
        replaced = await read(served, uri)

    assert (before, removed, replaced) == (("é", True), (None, False), ("new", True))


@pytest.mark.parametrize("modern", [True, False])
async def test_what_a_dynamic_skill_says_is_left_to_the_plain_path(modern: bool) -> None:
    made: list[str] = []
    standalone = SkillServer(ServeOptions(folders=()))
    live = DynamicSkill("live", description="Use when testing.", body=lambda: made.append("now") or "now")
    standalone.skills.add(live)
    request = asked("resources/read", uri="skill://live/SKILL.md")
    async with standalone.skills.open():
        ready = standalone.hot.result(request, modern=modern)
        fetched = await standalone.hot.fetch(request, modern=modern)

    assert (ready, fetched) == (None, None)
    assert made == []


async def test_a_file_that_has_changed_is_not_read_at_once_and_fetched_as_it_is_now(tmp_path: Path) -> None:
    write_skill(tmp_path / "tea", {"a.md": "old"})
    standalone = SkillServer(ServeOptions(folders=(tmp_path,), watch=False))
    async with standalone.skills.open():
        write_files(tmp_path, {"tea/a.md": "newer"})

        answers = [await read(standalone, "skill://tea/a.md") for _ in range(2)]

    assert answers == [("newer", False), ("newer", True)]


@pytest.mark.parametrize(
    "request_",
    [
        asked("skills/list", cursor="abc"),
        asked("skills/list", cursor=""),
        asked("skills/get", uri="skill://gone/SKILL.md"),
        asked("skills/get", uri="skill://built"),
        asked("skills/get", uri=""),
        asked("resources/directory/read", uri="skill://gone"),
        asked("resources/directory/read", uri="skill://built/"),
        asked("resources/directory/read", uri="skill://built", cursor="abc"),
        asked("resources/read", uri="skill://built/gone"),
    ],
)
async def test_every_error_is_left_to_the_plain_path(served: SkillServer, request_: FastRequest) -> None:
    async with served.skills.open():
        answer = served.hot.result(request_, modern=True)

    assert answer is None


async def test_ready_answers_of_a_server_that_does_not_run_are_left_to_the_plain_path(
    served: SkillServer,
) -> None:
    assert served.hot.result(asked("skills/list"), modern=True) is None
    assert await served.hot.fetch(asked("resources/read", uri="skill://built/SKILL.md"), modern=True) is None


# --- Envelopes ---


@pytest.fixture
def hot(served: SkillServer) -> HotAnswers:
    return served.hot


def test_an_envelope_is_known_the_first_time_and_every_time(hot: HotAnswers) -> None:
    meta = {**ENVELOPE, "progressToken": "a", "example.com/note": [1, {"é": None}]}

    assert [hot.is_valid_envelope(meta) for _ in range(3)] == [True, True, True]


@pytest.mark.parametrize(
    "meta",
    [
        *(None, [], "", 1, {}),
        {VERSION_KEY: MODERN_VERSION},
        {CAPABILITIES_KEY: {}},
        {**ENVELOPE, VERSION_KEY: "2025-11-25"},
        {**ENVELOPE, VERSION_KEY: None},
        {**ENVELOPE, CAPABILITIES_KEY: 1},
        {**ENVELOPE, "progressToken": []},
        {**ENVELOPE, "progressToken": 1.5},
        {**ENVELOPE, "io.modelcontextprotocol/clientInfo": {"version": "1"}},
        {**ENVELOPE, "example.com/long": "x" * 10_000},
        {**ENVELOPE, "example.com/deep": json.loads("[" * 150 + "]" * 150)},
        {**ENVELOPE, "example.com/deep": json.loads("[" * 300 + "]" * 300)},
    ],
)
def test_an_envelope_the_sdk_might_refuse_is_never_known(hot: HotAnswers, meta: object) -> None:
    assert [hot.is_valid_envelope(meta) for _ in range(2)] == [False, False]


def test_more_envelopes_than_are_remembered_are_still_judged_rightly(hot: HotAnswers) -> None:
    good = [hot.is_valid_envelope({**ENVELOPE, "progressToken": number}) for number in range(3000)]
    bad = hot.is_valid_envelope({**ENVELOPE, "progressToken": []})

    assert all(good)
    assert not bad
