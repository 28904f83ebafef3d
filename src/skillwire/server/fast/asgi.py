"""`FastPath`: an ASGI application in front of the SDK's, which answers the most common requests.

It runs after authorization, or first in the stack when all callers are served
the same. A request in the usual form is answered from prepared bytes; any other
is passed to the SDK unchanged.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import anyio

from skillwire.server.fast.hot import MODERN_VERSION, HotAnswers
from skillwire.server.fast.requests import METHODS, App, FastRequest, Message, Receive, Scope, Send, response
from skillwire.server.ops.metrics import METHOD_NUMBERS, WorkerMetrics
from skillwire.wire.core import READ_RESOURCE

HEADERS: Final = "skillwire.headers"
"""The scope key of the headers as a dictionary; set when no header is repeated."""
HostCheck: TypeAlias = Callable[[bytes, bytes | None], object]
"""Returns why a request with this `Host` and `Origin` is refused, or None when it is allowed."""

_MODERN: Final = MODERN_VERSION.encode()
_LARGEST_BODY = 64 * 1024
_JSON = (b"content-type", b"application/json")
_NUMBERS = {method.encode(): METHOD_NUMBERS[method] for method in METHODS}


class FastPath:
    """Answers common modern requests at `path`; passes all others to `inner`.

    When it is first in the stack, `check_host` checks the headers and `meter`
    counts the requests that are answered here.
    """

    def __init__(
        self,
        inner: App,
        hot: HotAnswers,
        *,
        path: str,
        check_host: HostCheck | None = None,
        meter: WorkerMetrics | None = None,
    ) -> None:
        self.inner = inner
        self._check_host = check_host
        self._meter = meter
        self._hot = hot
        self._is_shared = hot.is_shared
        self._reader = hot.new_reader()
        self._path = path

    @property
    def cached_bytes(self) -> int:
        """The size of the cached answers in bytes."""
        return self._reader.cached_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != self._path:
            return await self.inner(scope, receive, send)
        started = time.perf_counter()
        headers = self._fast_headers(scope)
        if headers is None:
            return await self.inner(scope, receive, send)
        message = await receive()
        answer = None
        if message["type"] == "http.request" and not message.get("more_body"):
            if self._is_shared:
                await self._hot.catch_up()
            body, state = message.get("body", b""), self._hot.state
            known = self._reader.cached_reply(body, state)
            if known is None:
                answer = await self._answer(body, headers, state)
            elif _headers_match(known[1].request, headers):
                answer = known[0] + known[1].rest
        if answer is None:
            return await self.inner(scope, _replay(message, receive), send)
        length = (b"content-length", b"%d" % len(answer))
        await send({"type": "http.response.start", "status": 200, "headers": [length, _JSON]})
        await send({"type": "http.response.body", "body": answer})
        if self._meter is not None:
            method = _NUMBERS[headers[b"mcp-method"]]
            self._meter.count(method, "ok", time.perf_counter() - started, len(answer))

    async def _answer(self, body: bytes, headers: dict[bytes, bytes], state: object) -> bytes | None:
        request = self._reader.read(body) if len(body) <= _LARGEST_BODY else None
        if request is None or not request.has_envelope or not _headers_match(request, headers):
            return None
        result = self._hot.result(request, modern=True)
        if result is None and request.method == READ_RESOURCE:
            result = await self._hot.fetch(request, modern=True)
        if result is None:
            return None
        answer = b"".join(response(request, result))
        self._reader.cache_reply(body, request, answer, state)
        return answer

    def _fast_headers(self, scope: Scope) -> dict[bytes, bytes] | None:
        headers = _headers_of(scope)
        if headers is None or headers.get(b"mcp-protocol-version") != _MODERN or b"origin" in headers:
            return None
        if self._check_host is not None and self._check_host(headers.get(b"host", b""), None) is not None:
            return None
        length = headers.get(b"content-length", b"0")
        if b"mcp-method" not in headers or not (length.isdigit() and len(length) < 6):
            return None
        is_json = headers.get(b"content-type", b"").lower().startswith(b"application/json")
        return headers if is_json and _accepts_json(headers.get(b"accept", b"").decode("latin-1")) else None


def _headers_of(scope: Scope) -> dict[bytes, bytes] | None:
    """Return the headers of a request by name; None when a header is repeated."""
    headers: dict[bytes, bytes] | None = scope.get(HEADERS)
    if headers is None:
        pairs = scope["headers"]
        headers = dict(pairs)
        if len(headers) != len(pairs):
            return None
        scope[HEADERS] = headers
    return headers


def _headers_match(request: FastRequest, headers: dict[bytes, bytes]) -> bool:
    """Return whether headers and body agree; encoded header values are left to the SDK."""
    if headers[b"mcp-method"] != request.method.encode():
        return False
    if request.method != READ_RESOURCE:
        return True
    name = headers.get(b"mcp-name", b"").decode("latin-1")
    return name == request.params["uri"] and not name.startswith("=?")


def _accepts_json(accept: str) -> bool:
    kinds = {kind.split(";")[0].strip().lower() for kind in accept.split(",")}
    return not kinds.isdisjoint({"application/json", "application/*", "*/*"})


def _replay(first: Message, receive: Receive) -> Receive:
    """Return a `receive` that returns `first` again before the following messages."""
    messages = [first]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


# Reads the whole body of a request before it is processed.


class Body(NamedTuple):
    """A body, or its first part if it is too long, and a `receive` that returns it again."""

    content: bytes
    again: Receive


async def read_body(receive: Receive, most: int) -> Body | None:
    """Read a body of up to `most` bytes; return None when the client disconnected before its end.

    The SDK treats a client that disconnects during its request as a server
    failure: status 500 and a traceback in the log. So such a request never
    reaches the SDK. A body that is too long is not read to its end; `again`
    replays what was read and then the rest, and the SDK refuses it.
    """
    messages: list[Message] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        messages.append(message)
        size += len(message.get("body", b""))
        if not message.get("more_body") or size > most:
            break
    content = b"".join([message.get("body", b"") for message in messages])
    messages.reverse()

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return Body(content, again)


def until(ends: Iterable[anyio.Event], receive: Receive) -> Receive:
    """Return a `receive` that reports a disconnection when any of `ends` is set."""

    async def receive_or_end() -> Message:
        received: Message = {"type": "http.disconnect"}
        async with anyio.create_task_group() as group:

            async def wait_for(end: anyio.Event) -> None:
                await end.wait()
                group.cancel_scope.cancel()

            for end in ends:
                group.start_soon(wait_for, end)
            received = await receive()
            group.cancel_scope.cancel()
        return received

    return receive_or_end


# Plain-text HTTP error responses.


async def refuse(send: Send, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
    """Send a status and one line of text, which is not cached."""
    body = text.encode()
    all_headers = {
        "content-type": "text/plain; charset=utf-8",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        **(headers or {}),
    }
    pairs = [(name.encode("ascii"), value.encode("latin-1")) for name, value in all_headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
