"""The fast path against the plain one: whatever is asked, both must give the same answer."""

import json
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.from_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folders import skill_md, write_files
from integration.both_paths import (
    PAGE_SIZE,
    BothPaths,
    Outcome,
    StdioClient,
    Talk,
    converse,
    exchange,
    meaning,
    standalone,
    write_catalog,
)
from integration.odd_requests import (
    BROWSE,
    CAPABILITIES_KEY,
    CLIENT_KEY,
    GET,
    HANDSHAKE_VERSIONS,
    LIST,
    MESSAGE_CHANGES,
    MODERN,
    READ,
    VERSION_KEY,
    Draft,
    HttpRequest,
    Members,
    Raw,
    Targets,
    drafts,
    envelope,
    good,
    good_request,
    http_requests,
    huge_body,
    line,
    nested,
    odd_request,
    sentinel,
    write,
)
from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import NotFoundError
from skillwire.core.uri import SkillUri
from skillwire.server.limits import MAX_MESSAGE_BYTES
from skillwire.sources import DirectorySource, DynamicSkill

Portal = anyio.from_thread.BlockingPortal


@pytest.fixture(scope="module")
def portal() -> Generator[Portal]:
    with anyio.from_thread.start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    folder = tmp_path_factory.mktemp("skills")
    write_catalog(folder)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield folder


@pytest.fixture(scope="module")
def both(portal: Portal, folder: Path) -> Generator[BothPaths]:
    """A server in one process, with sessions for older clients."""
    served = BothPaths(lambda is_fast: standalone(folder, is_fast=is_fast), is_stateless=False)
    with portal.wrap_async_context_manager(served.serving()):
        yield served


@pytest.fixture(scope="module")
def stateless(portal: Portal, folder: Path) -> Generator[BothPaths]:
    """A server in one of several processes, without sessions."""
    served = BothPaths(lambda is_fast: standalone(folder, is_fast=is_fast), is_stateless=True)
    with portal.wrap_async_context_manager(served.serving()):
        yield served


@pytest.fixture(scope="module")
def targets(both: BothPaths) -> Targets:
    return both.targets


@pytest.fixture(autouse=True)
def no_hidden_failure(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """Fail a test in which something of ours went wrong, even if the SDK put it right."""
    yield
    records = caplog.get_records("call")
    assert [
        record.getMessage()
        for record in records
        if record.name.startswith("skillwire") and record.levelno >= logging.ERROR
    ] == []


async def ask_all(both: BothPaths, requests: Iterable[HttpRequest]) -> tuple[list[str], Counter[int], int]:
    """Ask both for everything; return each difference, how often each status came, and the fast answers."""
    differences: list[str] = []
    statuses: Counter[int] = Counter()
    fast_answers = 0
    for request in requests:
        fast, plain, is_fast = await both.ask(request)
        statuses[plain.status] += 1
        fast_answers += is_fast
        if fast != plain:
            differences.append(f"{request}\n  fast:  {fast}\n  plain: {plain}")
    return differences, statuses, fast_answers


def test_good_requests_are_answered_by_the_fast_path_alone_and_as_the_sdk_would(
    portal: Portal, both: BothPaths, targets: Targets
) -> None:
    rng = Random(2640)
    requests = [good_request(rng, targets) for _ in range(1000)]

    differences, statuses, fast_answers = portal.call(ask_all, both, requests)

    assert differences == []
    assert statuses == {200: 1000}
    assert fast_answers == 1000


@pytest.mark.parametrize(("is_stateless", "count", "seed"), [(False, 3000, 1), (True, 1500, 2)])
def test_odd_requests_get_the_same_answer_on_both_paths(
    portal: Portal,
    both: BothPaths,
    stateless: BothPaths,
    targets: Targets,
    is_stateless: bool,
    count: int,
    seed: int,
) -> None:
    served = stateless if is_stateless else both
    rng = Random(seed)
    requests = (odd_request(rng, targets) for _ in range(count))

    differences, statuses, fast_answers = portal.call(ask_all, served, requests)

    assert differences == []
    # The requests are worth sending: some odd ones are still ordinary, and the rest fail in many ways.
    assert count / 10 < fast_answers < count / 2
    assert {200, 202, 400, 404, 405, 406, 413} <= statuses.keys()
    assert statuses[400] > count / 4


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_request_gets_the_same_answer_on_both_paths(
    portal: Portal, both: BothPaths, targets: Targets, data: st.DataObject
) -> None:
    request = data.draw(http_requests(targets))

    fast, plain, _ = portal.call(both.ask, request)

    assert fast == plain


def test_bodies_around_the_largest_allowed_get_the_same_answer_on_both_paths(
    portal: Portal, both: BothPaths, targets: Targets
) -> None:
    rng = Random(4)
    requests: list[HttpRequest] = []
    for number in range(8):
        draft = good(rng, targets)
        huge_body(draft, rng, targets)
        draft.has_length, draft.splits = number % 2 == 0, number % 4
        requests.append(draft.finish(rng))

    differences, statuses, fast_answers = portal.call(ask_all, both, requests)

    assert differences == []
    assert statuses.keys() == {200, 413}
    assert fast_answers == 0


IDS = (
    *("1", "2", "0", "10", "999999999999999", "1000000000000000", "9007199254740991", "9007199254740992"),
    *("-1", "-0", "01", "00", "1.0", "1e3", "1.", "+1", "", " 3", "3 ", "\t3", "1 2", "9" * 40, "1" * 5000),
    *('"1"', '""', "true", "null", "[1]", "{}", "NaN", "1,2", '1,"id":2', '1,"jsonrpc":"1.0"', '1,"x":1'),
    *('1,"method":"ping"', '1,"params":{}', "1}", "1]", "1/**/", "\u0661", "1\x00"),
)
TEMPLATES = (
    '{"jsonrpc":"2.0","id":%s,"method":"skills/get","params":%s}',
    '{"jsonrpc": "2.0", "id": %s, "method": "skills/get", "params": %s}',
    '{"id":%s,"jsonrpc":"2.0","method":"skills/get","params":%s}',
    '{"jsonrpc":"2.0","method":"skills/get","params":%2$s,"id":%1$s}',
    '{"jsonrpc":"2.0","id":%s,"method":"skills/get","params":%s,"id":1}',
    '{"jsonrpc":"2.0","id":%s,"method":"skills/get","params":%s,"id":7}',
    '{"jsonrpc":"2.0","id":%s,"params":%s,"method":"skills/list","method":"skills/get"}',
    '{"jsonrpc":"2.0","id":%s,"method":"skills/get","params":%s,"extra":1}',
    ' {"jsonrpc":"2.0","id":%s,"method":"skills/get","params":%s}',
)
"""Requests in which only what stands for the id differs; the fast path knows some of them again."""


def texts_with_all_ids(params: str) -> list[bytes]:
    return [
        template.replace("%2$s", params).replace("%1$s", identifier).encode()
        if "%1$s" in template
        else (template % (identifier, params)).encode()
        for template in TEMPLATES
        for identifier in ("1", *IDS, "2", *IDS)
    ]


def test_what_stands_for_the_id_is_judged_anew_in_each_request(portal: Portal, both: BothPaths) -> None:
    headers = draft_for(GET, uri="skill://tea/SKILL.md").headers
    params = write(Members([("uri", "skill://tea/SKILL.md"), ("_meta", envelope())]))
    requests = [HttpRequest(tuple(headers), (text,)) for text in texts_with_all_ids(params)]

    differences, statuses, fast_answers = portal.call(ask_all, both, requests)

    assert differences == []
    assert {200, 400} <= statuses.keys()
    assert len(requests) / 5 < fast_answers <= statuses[200]


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
def test_what_stands_for_the_id_is_judged_anew_in_each_line(
    portal: Portal, both: BothPaths, version: str
) -> None:
    meta = [("_meta", envelope())] if version == MODERN else []
    texts = texts_with_all_ids(write(Members([("uri", "skill://tea/SKILL.md"), *meta])))

    def talk(client: StdioClient) -> None:
        greet(client, version)
        client.send(b"\n".join([*texts, b""]))

    _, given = converse_with_both(portal, both, talk)

    assert given > len(texts) / 5


# --- What exactly is answered by the fast path ---


def draft_for(method: str, **params: object) -> Draft:
    """Draft a good request with these parameters."""
    nothing = Targets(
        ("skill://a/SKILL.md",), ("skill://a/b",), ("skill://a",), ("c",), (("skill://a", "c"),)
    )
    draft = good(Random(0), nothing, method)
    draft.params[:] = [("_meta", draft.meta), *params.items()]
    draft.name_in_header(params.get("uri"))
    draft.members.put("id", 1)
    return draft


def reading(uri: str = "skill://tea/SKILL.md") -> Draft:
    return draft_for(READ, uri=uri)


def with_header(name: bytes, value: bytes | None, draft: Draft | None = None) -> Draft:
    draft = draft or draft_for(LIST)
    draft.header(name, value)
    return draft


def with_second_header(name: bytes, value: bytes) -> Draft:
    draft = draft_for(LIST)
    draft.headers.append((name, value))
    return draft


def with_meta(key: str, value: object, draft: Draft | None = None) -> Draft:
    draft = draft or draft_for(LIST)
    draft.meta.put(key, value)
    return draft


def with_member(key: str, value: object) -> Draft:
    draft = draft_for(LIST)
    draft.members.put(key, value)
    return draft


def with_body(change: Callable[[bytes], bytes], draft: Draft | None = None) -> Draft:
    draft = draft or draft_for(LIST)
    draft.remake.append(change)
    return draft


def in_two_pieces() -> Draft:
    draft = draft_for(LIST)
    draft.splits = 1
    return draft


def legacy() -> Draft:
    draft = with_header(b"mcp-protocol-version", b"2025-11-25")
    draft.params.drop("_meta")
    return draft


def twice(draft: Draft, key: str, value: object) -> Draft:
    """Repeat a key; the last one counts."""
    for members in (draft.members, draft.params):
        if members.find(key) is not None:
            members.insert(0, (key, value))
    return draft


NAMED: dict[str, tuple[Callable[[], Draft], bool, int]] = {
    "the first page": (lambda: draft_for(LIST), True, 200),
    "a skill": (lambda: draft_for(GET, uri="skill://tea/SKILL.md"), True, 200),
    "a skill in another spelling": (lambda: draft_for(GET, uri="SKILL://t%65a/SKILL.md"), True, 200),
    "a dynamic skill": (lambda: draft_for(GET, uri="skill://live/SKILL.md"), True, 200),
    "a directory": (lambda: draft_for(BROWSE, uri="skill://tea/references"), True, 200),
    "an empty directory": (lambda: draft_for(BROWSE, uri="skill://tea/nothing/here"), True, 200),
    "a prefix of skills": (lambda: draft_for(BROWSE, uri="skill://acme/billing"), True, 200),
    "a text": (reading, True, 200),
    "a binary file": (lambda: reading("skill://tea/assets/leaf.png"), True, 200),
    "a file too large to be kept": (lambda: reading("skill://tea/assets/large.txt"), True, 200),
    "a file in another spelling": (lambda: reading("skill://tea/SKILL%2emd"), True, 200),
    "a file with a media type of its own": (lambda: reading("skill://built/query.gql"), True, 200),
    "a string for an id": (lambda: with_member("id", "é\u2028"), True, 200),
    "the largest plain id": (lambda: with_member("id", 2**53 - 1), True, 200),
    "a progress token": (lambda: with_meta("progressToken", 7), True, 200),
    "a trace": (
        lambda: with_meta("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        True,
        200,
    ),
    "no client info": (lambda: (draft := draft_for(LIST), draft.meta.drop(CLIENT_KEY))[0], True, 200),
    "a repeated key": (lambda: twice(reading(), "uri", "skill://plain-0/SKILL.md"), True, 200),
    "any media type": (lambda: with_header(b"accept", b"*/*"), True, 200),
    "a charset": (lambda: with_header(b"content-type", b"application/json; charset=utf-8"), True, 200),
    "an unknown header": (lambda: with_second_header(b"x-request-id", b"1"), True, 200),
    "another name of this machine": (lambda: with_header(b"host", b"localhost:1"), True, 200),
    "white space around": (lambda: with_body(lambda body: b" \r\n" + body + b"\t\n"), True, 200),
    "escaped keys": (lambda: with_body(lambda body: body.replace(b'"id"', b'"\\u0069d"')), True, 200),
    "64 KiB": (lambda: with_body(lambda body: body.ljust(65_536)), True, 200),
    "more than 64 KiB": (lambda: with_body(lambda body: body.ljust(65_537)), False, 200),
    "two pieces": (in_two_pieces, False, 200),
    "no body": (lambda: with_body(lambda body: b""), False, 400),
    "a byte order mark": (lambda: with_body(lambda body: b"\xef\xbb\xbf" + body), False, 400),
    "UTF-16": (lambda: with_body(lambda body: body.decode().encode("utf-16")), False, 400),
    "a tail": (lambda: with_body(lambda body: body + b"x"), False, 400),
    "a batch": (lambda: with_body(lambda body: b"[" + body + b"]"), False, 400),
    "a notification": (lambda: (draft := draft_for(LIST), draft.members.drop("id"))[0], False, 202),
    "an id beyond doubles": (lambda: with_member("id", 2**53), False, 200),
    "a fractional id": (lambda: with_member("id", 1.5), False, 400),
    "an id that is true": (lambda: with_member("id", True), False, 400),
    "no id": (lambda: with_member("id", None), False, 400),
    "half a character in the id": (lambda: with_member("id", Raw('"\\ud800"')), False, 400),
    "a method that is an object": (lambda: with_member("method", {}), False, 400),
    "another version of JSON-RPC": (lambda: with_member("jsonrpc", "1.0"), False, 400),
    "an unknown member": (lambda: with_member("extra", 1), False, 200),
    "an unknown parameter": (lambda: draft_for(LIST, extra=1), False, 200),
    "a cursor that is null": (lambda: draft_for(LIST, cursor=None), False, 400),
    "a cursor of nobody": (lambda: draft_for(LIST, cursor="abc"), False, 400),
    "a URI that is a number": (lambda: draft_for(GET, uri=1), False, 400),
    "no URI": (lambda: draft_for(GET), False, 400),
    "an unknown skill": (lambda: draft_for(GET, uri="skill://gone/SKILL.md"), False, 400),
    "an unknown file": (lambda: reading("skill://tea/gone.md"), False, 400),
    "a directory read as a file": (lambda: reading("skill://tea"), False, 400),
    "a file read as a directory": (lambda: draft_for(BROWSE, uri="skill://tea/SKILL.md"), False, 400),
    "a way out": (lambda: reading("skill://tea/../../etc/passwd"), False, 400),
    "a dynamic file": (lambda: reading("skill://live/SKILL.md"), False, 200),
    "no envelope": (lambda: (draft := draft_for(LIST), draft.params.drop("_meta"))[0], False, 400),
    "no capabilities": (lambda: (draft := draft_for(LIST), draft.meta.drop(CAPABILITIES_KEY))[0], False, 400),
    "capabilities of the wrong type": (lambda: with_meta(CAPABILITIES_KEY, 1), False, 200),
    "capabilities of the wrong type, for a file": (
        lambda: with_meta(CAPABILITIES_KEY, 1, reading()),
        False,
        400,
    ),
    "a client without a name": (lambda: with_meta(CLIENT_KEY, {"version": "1"}), False, 200),
    "a client without a name, for a file": (lambda: with_meta(CLIENT_KEY, {}, reading()), False, 400),
    "a progress token that is a list": (lambda: with_meta("progressToken", []), False, 400),
    "deep nesting": (lambda: with_meta("deep", nested(150, Random(0))), False, 200),
    "too deep nesting": (lambda: with_meta("deep", nested(300, Random(0))), False, 400),
    "another revision in the body": (lambda: with_meta(VERSION_KEY, "2025-11-25"), False, 400),
    "an unknown revision": (lambda: with_header(b"mcp-protocol-version", b"2099-01-01"), False, 400),
    "an older revision": (legacy, False, 400),
    "no method header": (lambda: with_header(b"mcp-method", None), False, 400),
    "another method in the header": (lambda: with_header(b"mcp-method", b"skills/get"), False, 400),
    "two method headers": (lambda: with_second_header(b"mcp-method", b"skills/list"), False, 400),
    "two types": (lambda: with_second_header(b"content-type", b"application/json"), False, 200),
    "no name header": (lambda: with_header(b"mcp-name", None, reading()), False, 400),
    "a wrapped name header": (
        lambda: with_header(b"mcp-name", sentinel("skill://tea/SKILL.md"), reading()),
        False,
        200,
    ),
    "another name in the header": (lambda: with_header(b"mcp-name", b"skill://tea", reading()), False, 400),
    # Under which name a request comes was judged before; a page's is left to the SDK all the same.
    "a foreign host": (lambda: with_header(b"host", b"evil.example"), True, 200),
    "no host": (lambda: with_header(b"host", None), True, 200),
    "a page of this machine": (lambda: with_header(b"origin", b"http://localhost:3000"), False, 200),
    "a page of someone else": (lambda: with_header(b"origin", b"https://evil.example"), False, 200),
    "no JSON accepted": (lambda: with_header(b"accept", b"text/html"), False, 406),
    "no type": (lambda: with_header(b"content-type", None), False, 400),
}


@pytest.mark.parametrize("name", NAMED)
def test_it_is_known_which_requests_the_fast_path_answers(portal: Portal, both: BothPaths, name: str) -> None:
    draft, is_expected_fast, status = NAMED[name]
    request = draft().finish(Random(1))

    fast, plain, is_fast = portal.call(both.ask, request)

    assert fast == plain
    assert (is_fast, fast.status) == (is_expected_fast, status)


def every_request(targets: Targets) -> list[Draft]:
    """Draft a request for everything there is."""
    return [
        draft_for(LIST),
        *(draft_for(LIST, cursor=cursor) for cursor in targets.cursors),
        *(draft_for(GET, uri=uri) for uri in targets.skills),
        *(draft_for(READ, uri=uri) for uri in targets.files),
        *(draft_for(BROWSE, uri=uri) for uri in targets.directories),
        *(draft_for(BROWSE, uri=uri, cursor=cursor) for uri, cursor in targets.directory_cursors),
    ]


def test_everything_there_is_reads_the_same_byte_for_byte_but_for_escapes(
    portal: Portal, both: BothPaths, targets: Targets
) -> None:
    for draft in every_request(targets):
        fast, plain, is_fast = portal.call(both.ask, draft.finish(Random(0)))

        assert escaped(fast.raw) == plain.raw
        assert fast.headers == plain.headers
        assert is_fast


def escaped(text: bytes) -> bytes:
    """Escape what is not ASCII, as the standard library does, by which the SDK writes."""
    return re.sub(r"[^\x00-\x7e]+", lambda found: json.dumps(found[0])[1:-1], text.decode()).encode()


@pytest.mark.requirement("LIST-12")
@pytest.mark.requirement("DIR-05")
def test_walking_a_listing_by_its_cursors_gives_everything_once_and_in_order(
    portal: Portal, both: BothPaths, targets: Targets
) -> None:
    skills = walk(portal, both, "skills", LIST)
    children = walk(portal, both, "resources", BROWSE, uri="skill://plain-0/many")

    assert [skill["uri"] for page in skills for skill in page] == list(targets.skills)
    assert [child["name"] for page in children for child in page] == [f"{number}.md" for number in range(10)]
    assert [len(page) for page in children] == [PAGE_SIZE] * 3 + [1]


def walk(portal: Portal, both: BothPaths, key: str, method: str, **params: object) -> list[list[Any]]:
    pages: list[list[Any]] = []
    cursor: dict[str, object] = {}
    while True:
        fast, plain, is_fast = portal.call(both.ask, draft_for(method, **params, **cursor).finish(Random(0)))
        assert fast == plain
        assert is_fast
        result = json.loads(fast.raw)["result"]
        pages.append(result[key])
        if "nextCursor" not in result:
            return pages
        cursor = {"cursor": result["nextCursor"]}


def test_many_clients_who_want_the_same_file_at_once_get_it(portal: Portal, both: BothPaths) -> None:
    uris = ["skill://tea/assets/bom.txt", "skill://tea/assets/large.txt", "skill://tea/assets/gone.txt"]
    requests = [reading(uri).finish(Random(0)) for uri in uris * 20]

    async def ask_at_once() -> list[tuple[Outcome, Outcome, bool]]:
        answers: list[tuple[Outcome, Outcome, bool]] = []

        async def ask(request: HttpRequest) -> None:
            answers.append(await both.ask(request))

        async with anyio.create_task_group() as group:
            for request in requests:
                group.start_soon(ask, request)
        return answers

    answers = portal.call(ask_at_once)

    assert all(fast == plain for fast, plain, _ in answers)
    assert Counter(fast.status for fast, _, _ in answers) == {200: 40, 400: 20}


def test_a_session_of_an_older_client_is_served_by_the_sdk_alone(portal: Portal, both: BothPaths) -> None:
    before = both.hot.given

    fast, plain = (portal.call(legacy_session, both, is_fast) for is_fast in (True, False))

    assert fast == plain
    assert [outcome.status for outcome in fast] == [200, 202, 200, 200, 200, 200, 400, 200]
    assert both.hot.given == before


async def legacy_session(both: BothPaths, is_fast: bool) -> list[Outcome]:
    app = both.fast_app if is_fast else both.plain_app
    headers = [(b"host", b"localhost:1"), (b"accept", b"application/json, text/event-stream")]
    headers.append((b"content-type", b"application/json"))
    outcomes = [await exchange(app, HttpRequest(tuple(headers), (handshake("2025-11-25"),)))]
    headers += [(b"mcp-session-id", outcomes[0].session or b""), (b"mcp-protocol-version", b"2025-11-25")]
    params: list[tuple[str, dict[str, object]]] = [
        (LIST, {}),
        (GET, {"uri": "skill://tea/SKILL.md"}),
        (READ, {"uri": "skill://tea/assets/leaf.png"}),
        (BROWSE, {"uri": "skill://tea"}),
    ]
    bodies = [INITIALIZED, *(message(number, *call) for number, call in enumerate(params, 1)), b"[]"]
    for body in bodies:
        outcomes.append(await exchange(app, HttpRequest(tuple(headers), (body,))))
    outcomes.append(await exchange(app, HttpRequest(tuple(headers), (b"",), "DELETE")))
    return outcomes


def test_after_an_edit_both_paths_tell_the_same_new_story(portal: Portal, tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    write_catalog(folder)
    served = BothPaths(lambda is_fast: standalone(tmp_path / "nothing", is_fast=is_fast), is_stateless=False)
    (tmp_path / "nothing").mkdir()
    sources = [DirectorySource(folder, watch=False) for _ in range(2)]
    for side, source in zip((served.fast, served.plain), sources, strict=True):
        side.skills.add(source)

    async def refresh() -> None:
        for side, source in zip((served.fast, served.plain), sources, strict=True):
            await source.refresh()
            await side.skills.source.refresh()

    with portal.wrap_async_context_manager(served.serving()):
        before, answers_before = served.targets, ask_everything(portal, served, every_request(served.targets))
        write_files(folder, {"tea/SKILL.md": skill_md("tea", body="New.\n"), "tea/new.md": "new\n"})
        write_files(folder, {"added/SKILL.md": skill_md("added")})
        (folder / "tea" / "assets" / "bom.txt").unlink()
        (folder / "plain-3" / "SKILL.md").unlink()
        portal.call(refresh)
        after = served.targets
        answers_again = ask_everything(portal, served, every_request(before))
        answers_after = ask_everything(portal, served, every_request(after))

    assert answers_before == {200: len(every_request(before))}
    assert set(before.files) ^ set(after.files) == {
        *("skill://added/SKILL.md", "skill://plain-3/SKILL.md"),
        *("skill://tea/new.md", "skill://tea/assets/bom.txt"),
    }
    # What is gone: a skill's entry, its directory, its file, and another's file.
    assert answers_again[400] == 4
    assert answers_after == {200: len(every_request(after))}


class Stranger:
    """A source of someone else, with half of a character in what it publishes."""

    entry = SkillEntry(
        SkillUri.build("half"),
        Frontmatter({"name": "half", "description": "Use when \ud800.", "big": 10**40}),
        None,
    )

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        yield self.entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        if uri != self.entry.uri:
            raise NotFoundError("there is but one skill here", uri=uri.text)
        return self.entry

    async def read_file(self, uri: str) -> bytes:
        raise NotFoundError("there is nothing to read here", uri=uri)


@pytest.fixture
def strange(portal: Portal, tmp_path: Path) -> Generator[BothPaths]:
    served = BothPaths(lambda is_fast: standalone(tmp_path, is_fast=is_fast), is_stateless=False)
    for side in (served.fast, served.plain):
        side.skills.add(Stranger())
    with portal.wrap_async_context_manager(served.serving()):
        yield served


def test_an_entry_no_encoding_can_hold_is_told_alike_over_http(portal: Portal, strange: BothPaths) -> None:
    requests = [
        draft_for(LIST),
        draft_for(GET, uri="skill://half/SKILL.md"),
        draft_for(BROWSE, uri="skill://half"),
    ]

    statuses = ask_everything(portal, strange, requests)

    assert statuses == {200: 3}


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
def test_an_entry_no_encoding_can_hold_is_told_alike_over_pipes(
    portal: Portal, strange: BothPaths, version: str
) -> None:
    calls: list[tuple[str, dict[str, object]]] = [
        (LIST, {}),
        (GET, {"uri": "skill://half/SKILL.md"}),
        (BROWSE, {"uri": "skill://half"}),
        ("resources/list", {}),
    ]
    lines = [
        modern(number, method, **params) if version == MODERN else message(number, method, params)
        for number, (method, params) in enumerate(calls)
    ]

    def talk(client: StdioClient) -> None:
        greet(client, version)
        client.send(b"\n".join([*lines, b""]))

    answers, given = converse_with_both(portal, strange, talk)

    assert all(b'"result"' in answer for answer in answers)
    assert set(identifiers(answers)) - {GREETING, PING} == set(range(len(lines)))
    assert given == 3


def ask_everything(portal: Portal, both: BothPaths, requests: Sequence[Draft]) -> Counter[int]:
    differences, statuses, fast_answers = portal.call(
        ask_all, both, [draft.finish(Random(0)) for draft in requests]
    )
    assert differences == []
    assert fast_answers == statuses[200]
    return statuses


# --- Standard input and output ---

INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
GREETING, PING = "hello", "there?"


def message(identifier: object, method: str, params: object) -> bytes:
    members = Members([("jsonrpc", "2.0"), ("id", identifier), ("method", method), ("params", params)])
    return write(members).encode()


def handshake(version: str) -> bytes:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    return message(GREETING, "initialize", params)


def modern(identifier: object, method: str, **params: object) -> bytes:
    return message(identifier, method, Members([("_meta", envelope()), *params.items()]))


def greet(client: StdioClient, version: str) -> None:
    """Open a connection, and wait until the server knows the client's era."""
    if version == MODERN:
        client.send(modern(GREETING, "server/discover") + b"\n")
        client.wait_for(GREETING)
        return
    client.send(handshake(version) + b"\n")
    client.wait_for(GREETING)
    # The server takes note of an answer after it is sent, and before it sends the next.
    client.send(INITIALIZED + b"\n" + message(PING, "ping", {}) + b"\n")
    client.wait_for(PING)


def converse_with_both(portal: Portal, both: BothPaths, talk: Talk) -> tuple[list[bytes], int]:
    """Say the same to both; check that the same answers come, in any order, and count the fast ones."""
    before = both.hot.given
    fast = converse(portal, both.fast, both.hot, talk)
    given = both.hot.given - before
    plain = converse(portal, both.plain, None, talk)
    assert Counter(map(meaning, fast)) == Counter(map(meaning, plain))
    return fast, given


@pytest.mark.parametrize("version", [MODERN, *HANDSHAKE_VERSIONS])
def test_good_lines_are_answered_at_once_and_as_the_sdk_would(
    portal: Portal, both: BothPaths, targets: Targets, version: str
) -> None:
    rng = Random(version)
    lines = [line(rng, targets, n, is_modern=version == MODERN, is_odd=False) for n in range(120)]

    def talk(client: StdioClient) -> None:
        greet(client, version)
        client.send(b"".join(text + b"\n" for text in lines))

    answers, given = converse_with_both(portal, both, talk)

    assert len(answers) == len(lines) + (1 if version == MODERN else 2)
    assert given == len(lines)


@pytest.mark.parametrize("version", [MODERN, *HANDSHAKE_VERSIONS])
def test_odd_lines_get_the_same_answers_on_both_paths(
    portal: Portal, both: BothPaths, targets: Targets, version: str
) -> None:
    rng = Random(f"odd {version}")
    is_modern = version == MODERN
    lines = [
        line(rng, targets, n, is_modern=is_modern, is_odd=True) for n in range(700 if is_modern else 250)
    ]

    def talk(client: StdioClient) -> None:
        greet(client, version)
        client.send(b"".join(text + b"\n" for text in lines))

    answers, given = converse_with_both(portal, both, talk)

    assert len(lines) / 10 < given < len(lines) * 0.7
    assert sum(b'"error"' in answer for answer in answers) > len(lines) / 10


@settings(deadline=None, max_examples=60)
@given(data=st.data(), is_modern=st.booleans())
def test_any_lines_in_any_chunks_get_the_same_answers_on_both_paths(
    portal: Portal, both: BothPaths, targets: Targets, data: st.DataObject, is_modern: bool
) -> None:
    made = data.draw(st.lists(drafts(targets, MESSAGE_CHANGES), max_size=6))
    for draft, _ in made:
        if not is_modern:
            draft.params.drop("_meta")
    ends = data.draw(st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \n"]))
    text = b"".join(draft.body + ends for draft, _ in made)
    text = text.removesuffix(ends) if data.draw(st.booleans()) else text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    chunks = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def talk(client: StdioClient) -> None:
        greet(client, MODERN if is_modern else "2025-11-25")
        client.send(*chunks)

    converse_with_both(portal, both, talk)


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
def test_a_line_that_is_too_long_gets_an_error_and_the_next_an_answer(
    portal: Portal, both: BothPaths, version: str
) -> None:
    question = modern(1, LIST) if version == MODERN else message(1, LIST, {})

    def talk(client: StdioClient) -> None:
        greet(client, version)
        client.send(b" " * MAX_MESSAGE_BYTES + question + b"\n" + question + b"\n")

    answers, given = converse_with_both(portal, both, talk)

    errors = [json.loads(answer) for answer in answers if b'"error"' in answer]
    assert [(error["id"], error["error"]["code"]) for error in errors] == [(None, -32600)]
    assert Counter(identifiers(answers)) - Counter([GREETING, PING]) == {None: 1, 1: 1}
    assert given == 1


@pytest.mark.parametrize("size", [70_000, 250 * 1024])
def test_a_long_line_is_answered_like_a_short_one(portal: Portal, both: BothPaths, size: int) -> None:
    def talk(client: StdioClient) -> None:
        greet(client, MODERN)
        client.send(modern(1, LIST).ljust(size) + b"\n")

    answers, given = converse_with_both(portal, both, talk)

    assert len(answers) == 2
    assert given == 1


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_requests_that_come_before_the_handshake_is_answered_are_answered(
    portal: Portal, both: BothPaths, version: str
) -> None:
    requests = [message(number, GET, {"uri": "skill://tea/SKILL.md"}) for number in range(20)]

    def talk(client: StdioClient) -> None:
        client.send(b"\n".join([handshake(version), INITIALIZED, *requests, b""]))

    answers, _ = converse_with_both(portal, both, talk)

    assert sorted(identifiers(answers), key=str) == sorted([GREETING, *range(20)], key=str)


def test_noise_before_the_first_request_decides_nothing_about_the_era(
    portal: Portal, both: BothPaths
) -> None:
    noise = b"\n".join([b"", b"{", b"[]", INITIALIZED, b'{"jsonrpc":"2.0","id":1,"result":{}}', b""])
    legacy_request, modern_request = message(1, LIST, {}), modern(2, LIST)

    def talk_legacy(client: StdioClient) -> None:
        client.send(noise)
        greet(client, "2025-11-25")
        client.send(legacy_request + b"\n" + modern_request + b"\n")

    def talk_modern(client: StdioClient) -> None:
        client.send(noise + modern_request + b"\n")
        client.wait_for(2)
        client.send(legacy_request + b"\n" + handshake("2025-11-25") + b"\n" + modern(3, LIST) + b"\n")

    _, given_to_legacy = converse_with_both(portal, both, talk_legacy)
    _, given_to_modern = converse_with_both(portal, both, talk_modern)

    assert given_to_legacy == 1
    assert given_to_modern == 1


def test_a_refused_opening_leaves_both_paths_in_the_same_era(portal: Portal, both: BothPaths) -> None:
    unknown = envelope()
    unknown.put(VERSION_KEY, "2099-01-01")
    openings = [
        message(GREETING, LIST, {"_meta": {VERSION_KEY: "2099-01-01"}}),
        message(GREETING, LIST, Members([("_meta", unknown)])),
        message(GREETING, LIST, {}),
        message(GREETING, "initialize", {}),
        message(GREETING, "initialize", Members([("_meta", envelope())])),
        message(GREETING, "nothing", {"_meta": {"progressToken": 1}}),
    ]
    rest = [
        modern(1, LIST),
        message(2, LIST, {}),
        handshake("2025-11-25"),
        message(3, LIST, {}),
        modern(4, LIST),
    ]
    for opening in openings:

        def talk(client: StdioClient, opening: bytes = opening) -> None:
            client.send(opening + b"\n")
            client.wait_for(GREETING)
            for request in rest:
                client.send(request + b"\n")
                client.wait_for(json.loads(request)["id"])

        answers, _ = converse_with_both(portal, both, talk)

        assert len(answers) == 1 + len(rest)


def test_a_request_cut_off_by_the_end_is_refused_and_a_whole_one_is_answered(
    portal: Portal, both: BothPaths
) -> None:
    request = modern(1, READ, uri="skill://tea/assets/leaf.png")

    def talk(whole: bytes) -> Callable[[StdioClient], None]:
        def say(client: StdioClient) -> None:
            greet(client, MODERN)
            client.send(request[:50], whole)

        return say

    cut_off, _ = converse_with_both(portal, both, talk(request[50:-1]))
    whole, _ = converse_with_both(portal, both, talk(request[50:]))

    assert identifiers(cut_off) == [GREETING, None]
    assert identifiers(whole) == [GREETING, 1]


def test_every_request_is_answered_even_when_they_share_an_id(portal: Portal, both: BothPaths) -> None:
    uris = ["skill://tea/assets/large.txt", "skill://tea/assets/leaf.png", "skill://gone/x", "skill://tea"]
    requests = [modern("same", READ, uri=uri) for uri in uris * 3]

    def talk(client: StdioClient) -> None:
        greet(client, MODERN)
        client.send(b"\n".join([*requests, b""]))

    answers, _ = converse_with_both(portal, both, talk)

    assert Counter(identifiers(answers)) == {GREETING: 1, "same": len(requests)}


@pytest.fixture
def slow(portal: Portal, tmp_path: Path) -> Generator[BothPaths]:
    """A server with a skill that nobody ever gets to read."""

    async def never() -> str:
        await anyio.sleep_forever()
        raise AssertionError

    served = BothPaths(lambda is_fast: standalone(tmp_path, is_fast=is_fast), is_stateless=False)
    for side in (served.fast, served.plain):
        side.skills.add(DynamicSkill("slow", description="Use when testing.", body=never))
    with portal.wrap_async_context_manager(served.serving()):
        yield served


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
def test_nobody_waits_at_the_end_for_what_was_cancelled(
    portal: Portal, slow: BothPaths, version: str
) -> None:
    uri = "skill://slow/SKILL.md"
    request = modern(7, READ, uri=uri) if version == MODERN else message(7, READ, {"uri": uri})
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}'

    def talk(client: StdioClient) -> None:
        greet(client, version)
        client.send(b"\n".join([request, cancel % b"7", cancel % b"[]", cancel % b'"gone"', b""]))

    started = time.monotonic()
    answers, given = converse_with_both(portal, slow, talk)

    assert set(identifiers(answers)) <= {GREETING, PING}
    assert given == 0
    assert time.monotonic() - started < 8


def identifiers(answers: Iterable[bytes]) -> list[Any]:
    return [json.loads(answer)["id"] for answer in answers]
