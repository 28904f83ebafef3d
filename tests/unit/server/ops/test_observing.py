"""What is counted and told of a request, whatever the application does with it."""

import gc
import json
import weakref
from typing import Any

import anyio
import pytest

from skillwire.server.fast.requests import App, Message, Receive, Scope, Send
from skillwire.server.http.observe import ObservedApp, note
from skillwire.server.ops.accesslog import AccessLog
from skillwire.server.ops.metrics import BYTES_AT, METHODS, OUTCOMES, WorkerMetrics
from skillwire.server.ops.peers import Proxies

Pairs = list[tuple[bytes, bytes]]

OK = b'{"jsonrpc":"2.0","id":1,"result":{}}'
MODERN: Pairs = [(b"mcp-method", b"skills/list"), (b"user-agent", b"tests/1")]


def answering(
    body: bytes = OK, status: int = 200, *, kind: bytes = b"application/json", is_complete: bool = True
) -> App:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": body, "more_body": not is_complete})

    return app


def scope_of(method: str = "POST", path: str = "/mcp", headers: Pairs | None = None) -> dict[str, Any]:
    given = MODERN if headers is None else headers
    return {"type": "http", "method": method, "path": path, "headers": given, "client": ("192.0.2.1", 1)}


async def ask(observed: ObservedApp, scope: dict[str, Any] | None = None) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await observed(scope or scope_of(), receive, send)
    return sent


def counted(meter: WorkerMetrics) -> dict[tuple[str, str], int]:
    """Return how many requests of which method ended how."""
    counts = meter.rows()[0].counts
    every = [(method, outcome) for method in METHODS for outcome in OUTCOMES]
    return {pair: counts[place] for place, pair in enumerate(every) if counts[place]}


async def outcome_of(app: App, scope: dict[str, Any] | None = None) -> tuple[str, str]:
    """Return method and outcome of one request."""
    meter = WorkerMetrics()
    await ask(ObservedApp(app, meter, path="/mcp"), scope)
    ((pair, count),) = counted(meter).items()
    assert count == 1
    assert (meter.requests, meter.streams) == (0, 0)
    return pair


async def lines_of(app: App, *scopes: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """Return what the log says of requests."""
    written: list[bytes] = []

    def write(piece: bytes) -> int:
        written.append(piece)
        return len(piece)

    with AccessLog(write, on_drop=lambda count: None).open() as log:
        observed = ObservedApp(app, WorkerMetrics(), path="/mcp", log=log, **options)
        for scope in scopes:
            await ask(observed, scope)
    return [json.loads(line) for line in b"".join(written).splitlines()]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "ok"),
        (202, "ok"),
        (304, "ok"),
        (400, "invalid"),
        (401, "refused"),
        (403, "refused"),
        (404, "invalid"),
        (413, "invalid"),
        (429, "refused"),
        (500, "failed"),
        (503, "failed"),
    ],
)
async def test_the_status_tells_how_a_request_ended(status: int, outcome: str) -> None:
    assert await outcome_of(answering(b"words", status)) == ("skills/list", outcome)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (OK, "ok"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}', "error"),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}', "error"),
        (b'{"jsonrpc":"2.0","id":"a\\",\\"b","error":{"code":-32602,"message":"no"}}', "error"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}', "failed"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"x":1,"error":{"code":-32602}}}', "ok"),
        (b'{"jsonrpc":"2.0","id":"x,\\"error\\":{\\"code\\":-1","result":{}}', "ok"),
    ],
)
async def test_an_error_of_the_protocol_is_told_from_an_answer(body: bytes, outcome: str) -> None:
    assert await outcome_of(answering(body)) == ("skills/list", outcome)


async def test_an_answer_that_never_ends_was_aborted() -> None:
    assert await outcome_of(answering(is_complete=False)) == ("skills/list", "aborted")


async def test_a_request_without_any_answer_was_aborted() -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

    assert await outcome_of(silent) == ("skills/list", "aborted")


@pytest.mark.parametrize(
    "scope",
    [scope_of(headers=[(b"mcp-method", b"subscriptions/listen")]), scope_of("GET", headers=[])],
    ids=["listen", "stream"],
)
async def test_a_stream_ends_well_when_its_client_leaves(scope: dict[str, Any]) -> None:
    app = answering(b"data: {}\n\n", kind=b"text/event-stream", is_complete=False)

    assert (await outcome_of(app, scope))[1] == "ok"


async def test_open_streams_and_requests_are_known() -> None:
    meter = WorkerMetrics()
    seen: list[tuple[int, int]] = []

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        seen.append((meter.requests, meter.streams))

    await ask(ObservedApp(streaming, meter, path="/mcp"), scope_of("GET"))

    assert seen == [(1, 1)]
    assert (meter.requests, meter.streams) == (0, 0)


async def test_a_failure_is_counted_and_passed_on() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("a bug")

    meter = WorkerMetrics()
    with pytest.raises(RuntimeError):
        await ask(ObservedApp(failing, meter, path="/mcp"))

    assert counted(meter) == {("skills/list", "failed"): 1}
    assert meter.requests == 0


@pytest.mark.parametrize("is_logged", [False, True])
async def test_a_request_that_is_cancelled_was_aborted(is_logged: bool) -> None:
    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await anyio.sleep(60)

    meter = WorkerMetrics()
    log = AccessLog(len, on_drop=lambda count: None) if is_logged else None
    with anyio.move_on_after(0.01):
        await ask(ObservedApp(waiting, meter, path="/mcp", log=log))

    assert counted(meter) == {("skills/list", "aborted"): 1}


@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        ("POST", "/mcp", [(b"mcp-method", b"resources/read")], "resources/read"),
        ("POST", "/mcp", [(b"mcp-method", b"initialize")], "initialize"),
        ("POST", "/mcp", [(b"mcp-method", b"page")], "other"),
        ("POST", "/mcp", [(b"mcp-method", b"stranger/method")], "other"),
        ("POST", "/mcp", [], "other"),
        ("GET", "/mcp", [], "stream"),
        ("DELETE", "/mcp", [], "end-session"),
        ("BREW", "/mcp", [], "other"),
        ("GET", "/healthz", [], "health"),
        ("GET", "/readyz", [], "health"),
        ("GET", "/metrics", [], "metrics"),
        ("GET", "/.well-known/agent-skills/index.json", [], "well-known"),
        ("GET", "/", [], "page"),
        ("GET", "/wp-login.php", [(b"mcp-method", b"skills/list")], "page"),
    ],
)
async def test_what_is_asked_for_has_one_of_few_names(
    method: str, path: str, headers: Pairs, expected: str
) -> None:
    assert await outcome_of(answering(), scope_of(method, path, headers)) == (expected, "ok")


@pytest.mark.parametrize(("method", "expected"), [("skills/get", "skills/get"), ("made/up", "other")])
async def test_layers_inside_may_tell_more(method: str, expected: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # Layers hand on copies.
        note({**scope}, method=method, caller="reader")
        await answering()(scope, receive, send)

    (line,) = await lines_of(app, scope_of(headers=[]))

    assert (line["mcp"], line["caller"]) == (expected, "reader")


async def test_nothing_is_noted_where_nobody_observes() -> None:
    note({"type": "http"}, method="skills/get", caller="reader")


class Connection:
    """Sends answers and knows what was asked, as the objects of a real server do."""

    def __init__(self) -> None:
        self.scope = scope_of()

    async def send(self, message: Message) -> None:
        pass


@pytest.mark.parametrize("is_told", [False, True])
async def test_what_was_observed_is_gone_when_it_is_over_and_not_when_the_collector_comes_by(
    is_told: bool,
) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    connection = Connection()
    gone = weakref.ref(connection)
    gc.disable()
    try:
        observed = ObservedApp(answering(), WorkerMetrics(), path="/mcp", spans=is_told)
        await observed(connection.scope, receive, connection.send)
        del connection
        assert gone() is None
    finally:
        gc.enable()


async def test_bytes_are_those_of_the_body() -> None:
    meter = WorkerMetrics()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"12345", "more_body": True})
        await send({"type": "http.response.body", "body": b"678"})

    await ask(ObservedApp(app, meter, path="/mcp"))

    assert meter.rows()[0].counts[BYTES_AT] == 8


async def test_other_things_than_requests_pass_untouched() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    meter = WorkerMetrics()
    await ask(ObservedApp(app, meter, path="/mcp"), {"type": "lifespan"})

    assert seen == ["lifespan"]
    assert counted(meter) == {}


async def test_without_a_log_an_answer_is_passed_on_as_it_is() -> None:
    sent = await ask(ObservedApp(answering(), WorkerMetrics(), path="/mcp"))

    assert sent == [
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]},
        {"type": "http.response.body", "body": OK, "more_body": False},
    ]


@pytest.mark.parametrize(
    "given",
    [b"", b"a b", b"x" * 129, b'"\r\nset-cookie: a=b', b"\xff", b"a/b"],
)
async def test_an_id_that_is_not_plain_is_replaced(given: bytes) -> None:
    first, second = await lines_of(answering(), *[scope_of(headers=[(b"x-request-id", given)])] * 2)

    assert first["id"] != second["id"]
    assert len(first["id"]) == 16


async def test_a_plain_id_is_kept_and_the_answer_carries_it() -> None:
    log = AccessLog(len, on_drop=lambda count: None)
    observed = ObservedApp(answering(), WorkerMetrics(), path="/mcp", log=log)

    sent = await ask(observed, scope_of(headers=[(b"x-request-id", b"A-1.b_2")]))

    assert (b"x-request-id", b"A-1.b_2") in sent[0]["headers"]


async def test_the_log_tells_of_a_request_and_not_of_its_secrets() -> None:
    secret = b"hunter2"
    headers = [*MODERN, (b"authorization", b"Bearer " + secret), (b"x-forwarded-for", b"203.0.113.9")]
    scope = {**scope_of(headers=headers), "query_string": b"token=" + secret}

    (line,) = await lines_of(answering(b"content with hunter2"), scope)

    assert "hunter2" not in json.dumps(line)
    del line["time"], line["seconds"], line["id"]
    assert line == {
        "remote": "192.0.2.1",
        "method": "POST",
        "path": "/mcp",
        "mcp": "skills/list",
        "status": 200,
        "outcome": "ok",
        "bytes": 20,
        "agent": "tests/1",
    }


async def test_a_trusted_proxy_tells_where_a_request_comes_from() -> None:
    scope = scope_of(headers=[(b"x-forwarded-for", b"203.0.113.9")])

    (line,) = await lines_of(answering(), scope, proxies=Proxies(["192.0.2.1"]))

    assert line["remote"] == "203.0.113.9"
