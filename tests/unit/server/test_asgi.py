"""The fast path as an ASGI application: what it answers, and how it passes on everything else."""

import json
from collections.abc import AsyncGenerator, Iterable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mcp.server.streamable_http import check_accept_headers
from starlette.requests import Request

from skillwire.core.skill import Skill
from skillwire.server.fast.asgi import FastPath
from skillwire.server.fast.requests import Message, Receive, Scope, Send
from skillwire.server.hosts import AllowedHosts
from skillwire.server.ops.metrics import BYTES_AT, METHOD_NUMBERS, OUTCOMES, REQUESTS_AT, WorkerMetrics
from skillwire.server.options import ServeOptions
from skillwire.server.standalone import SkillServer

META: dict[str, object] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEADERS: dict[bytes, bytes] = {
    b"host": b"localhost:8000",
    b"accept": b"application/json",
    b"content-type": b"application/json",
    b"mcp-protocol-version": b"2026-07-28",
    b"mcp-method": b"skills/list",
}


class Inner:
    """The application behind the fast path: takes in everything it is given, and says a word."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.messages: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        while True:
            message = await receive()
            self.messages.append(message)
            if message["type"] != "http.request" or not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 299, "headers": []})


@pytest.fixture
async def served() -> AsyncGenerator[SkillServer]:
    standalone = SkillServer(ServeOptions(folders=()))
    standalone.skills.add(
        Skill("tea", description="Use when testing.", body="Brew.\n").with_reference("é.txt", "é")
    )
    async with standalone.skills.open():
        yield standalone


def body(method: str = "skills/list", **params: object) -> bytes:
    request: dict[str, object] = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": method,
        "params": {"_meta": META, **params},
    }
    return json.dumps(request).encode()


def scope_of(headers: Iterable[tuple[bytes, bytes]], **changes: object) -> Scope:
    return {"type": "http", "method": "POST", "path": "/mcp", "headers": list(headers), **changes}


async def ask(
    served: SkillServer,
    *messages: Message,
    scope: Scope | None = None,
) -> tuple[list[Message], Inner]:
    """Send messages through a new fast path; return what came back, and what stood behind."""
    inner, sent, waiting = Inner(), list[Message](), list(messages)
    path = FastPath(inner, served.hot, path="/mcp")

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await path(scope or scope_of(HEADERS.items()), receive, send)
    return sent, inner


def whole(content: bytes) -> Message:
    return {"type": "http.request", "body": content, "more_body": False}


async def test_an_ordinary_request_is_answered_and_nobody_else_hears_of_it(served: SkillServer) -> None:
    sent, inner = await ask(served, whole(body()))

    start, content = sent
    assert start["status"] == 200
    length = b"%d" % len(content["body"])
    assert start["headers"] == [(b"content-length", length), (b"content-type", b"application/json")]
    answer = json.loads(content["body"])
    assert [skill["uri"] for skill in answer["result"]["skills"]] == ["skill://tea/SKILL.md"]
    assert inner.scopes == []


async def test_as_the_front_it_judges_names_and_counts_what_it_answers(served: SkillServer) -> None:
    names, meter, inner = AllowedHosts("localhost"), WorkerMetrics(), Inner()
    path = FastPath(inner, served.hot, path="/mcp", check_host=names.check, meter=meter)
    sizes: list[int] = []

    async def receive() -> Message:
        return whole(body())

    async def send(message: Message) -> None:
        sizes.append(len(message.get("body", b"")))

    await path(scope_of(HEADERS.items()), receive, send)
    await path(scope_of({**HEADERS, b"host": b"evil.example"}.items()), receive, send)
    await path(scope_of([*HEADERS.items(), (b"host", b"localhost")]), receive, send)

    [row] = meter.rows()
    assert row.counts[REQUESTS_AT + METHOD_NUMBERS["skills/list"] * len(OUTCOMES)] == 1
    assert row.counts[BYTES_AT] == max(sizes)
    assert len(inner.scopes) == 2


async def test_a_message_without_more_body_is_whole(served: SkillServer) -> None:
    sent, _ = await ask(served, {"type": "http.request", "body": body()})

    assert sent[0]["status"] == 200


async def test_a_file_with_a_name_beyond_ascii_is_read_by_its_canonical_uri(served: SkillServer) -> None:
    uri = "skill://tea/%C3%A9.txt"
    headers = {**HEADERS, b"mcp-method": b"resources/read", b"mcp-name": uri.encode()}

    sent, _ = await ask(served, whole(body("resources/read", uri=uri)), scope=scope_of(headers.items()))

    assert json.loads(sent[1]["body"])["result"]["contents"] == [
        {"mimeType": "text/plain", "text": "é", "uri": uri}
    ]


@pytest.mark.parametrize(
    "messages",
    [
        [whole(b"not JSON")],
        [whole(b"")],
        [{"type": "http.request"}],
        [whole(body("skills/get", uri="skill://gone/SKILL.md"))],
        [whole(body().ljust(65_537))],
        [{"type": "http.request", "body": body()[:9], "more_body": True}, whole(body()[9:])],
        [{"type": "http.request", "body": body(), "more_body": True}, whole(b"")],
        [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}],
        [{"type": "http.disconnect"}],
    ],
)
async def test_what_is_not_answered_is_passed_on_untouched(
    served: SkillServer, messages: list[Message]
) -> None:
    scope = scope_of(HEADERS.items())

    sent, inner = await ask(served, *messages, scope=scope)

    assert sent == [{"type": "http.response.start", "status": 299, "headers": []}]
    assert inner.scopes == [scope]
    assert inner.scopes[0] is scope
    assert inner.messages == messages


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "lifespan"},
        {"type": "websocket", "path": "/mcp", "headers": list(HEADERS.items())},
        scope_of(HEADERS.items(), path="/mcp/"),
        scope_of(HEADERS.items(), path="/"),
        scope_of(HEADERS.items(), method="GET"),
        scope_of(HEADERS.items(), method="PUT"),
    ],
)
async def test_what_is_no_call_of_a_method_is_passed_on_unread(served: SkillServer, scope: Scope) -> None:
    sent, inner = await ask(served, whole(body()), scope=scope)

    assert sent[0]["status"] == 299
    assert inner.messages == [whole(body())]


@pytest.mark.parametrize("name", [*HEADERS, b"mcp-name", b"origin", b"content-length"])
async def test_a_header_the_sdk_looks_at_is_left_to_it_when_it_comes_twice(
    served: SkillServer, name: bytes
) -> None:
    once = {b"mcp-name": b"skill://tea/SKILL.md", b"content-length": b"%d" % len(body()), **HEADERS}
    pairs = [*once.items(), (name, once.get(name, b"http://localhost:1"))]
    if name == b"origin":
        pairs.append(pairs[-1])

    _, inner = await ask(served, whole(body()), scope=scope_of(pairs))

    assert len(inner.scopes) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"mcp-protocol-version", b"2025-11-25"),
        (b"mcp-protocol-version", b"2026-07-28 "),
        (b"mcp-protocol-version", None),
        (b"mcp-method", b"skills/get"),
        (b"mcp-method", b"Skills/List"),
        (b"mcp-method", None),
        (b"content-type", b"text/plain"),
        (b"content-type", b" application/json"),
        (b"content-type", None),
        (b"origin", b"http://localhost:1"),
        (b"origin", b""),
        (b"content-length", b"-1"),
        (b"content-length", b"x"),
        (b"content-length", b""),
        (b"content-length", b"1000000"),
        (b"content-length", "٣".encode()),
        (b"accept", b"text/html"),
        (b"accept", b""),
        (b"accept", None),
    ],
)
async def test_a_header_that_is_not_ordinary_leaves_the_request_to_the_sdk(
    served: SkillServer, name: bytes, value: bytes | None
) -> None:
    headers = {key: text for key, text in {**HEADERS, name: value}.items() if text is not None}

    _, inner = await ask(served, whole(body()), scope=scope_of(headers.items()))

    assert inner.messages == [whole(body())]


@pytest.mark.parametrize(
    "name",
    [
        *(None, b"", b"skill://tea", b"skill://tea/SKILL.md ", b"SKILL://tea/SKILL.md"),
        *(b"=?base64?c2tpbGw6Ly90ZWEvU0tJTEwubWQ=?=", b"=?", b"\xff"),
    ],
)
async def test_a_read_whose_header_does_not_plainly_say_the_same_is_left_to_the_sdk(
    served: SkillServer, name: bytes | None
) -> None:
    headers = {**HEADERS, b"mcp-method": b"resources/read"}
    if name is not None:
        headers[b"mcp-name"] = name
    content = whole(body("resources/read", uri="skill://tea/SKILL.md"))

    _, inner = await ask(served, content, scope=scope_of(headers.items()))

    assert inner.messages == [content]


_media = st.sampled_from(
    [
        *("application/json", "APPLICATION/Json", "application/*", "*/*", "text/html", "text/event-stream"),
        *(",", ";", " ", "\t", "q=0", "\xa0", "*", "/", "json", "\x85"),
    ]
)


@settings(
    deadline=None,
    max_examples=200,
    # Nothing changes the server, so one is enough for all examples.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(accept="text/html, APPLICATION/Json ; q=0")
@example(accept="application/json;q=0")
@example(accept=" \xa0application/json")
@given(accept=st.just("*/*") | st.lists(_media, max_size=4).map("".join))
async def test_the_sdk_and_the_fast_path_agree_on_whom_to_answer(served: SkillServer, accept: str) -> None:
    headers = {**HEADERS, b"accept": accept.encode("latin-1")}
    scope = scope_of(headers.items())
    request = Request({**scope})
    is_welcome = check_accept_headers(request)[0]

    sent, _ = await ask(served, whole(body()), scope=scope)

    assert (sent[0]["status"] == 200) == is_welcome
