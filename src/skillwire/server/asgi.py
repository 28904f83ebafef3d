"""`FastPath`: an ASGI application in front of the SDK's, which answers what is asked for all the time.

It stands inside authorization, or before everything where everyone is served
the same, and sees a request before the SDK does. One that is ordinary in every
respect is answered at once; any other goes on, untouched, and gets the SDK's
answer.
"""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from skillwire.server.hot import MODERN_VERSION, HotAnswers
from skillwire.server.ops.metrics import Meter
from skillwire.server.ops.series import METHOD_NUMBERS
from skillwire.server.requests import METHODS, Request, response
from skillwire.wire.core import READ_RESOURCE

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS: Final = "skillwire.headers"
"""The key of a scope for its headers as a dictionary, when each is there once: made once for all who look."""
Judge: TypeAlias = Callable[[bytes, bytes | None], object]
"""Says of a host and an origin why a request is not to be answered; None when it may be."""

_MODERN: Final = MODERN_VERSION.encode()
_LARGEST_BODY = 64 * 1024
_MAX_KNOWN = 1024
_JSON = (b"content-type", b"application/json")
_NUMBERS = {method.encode(): METHOD_NUMBERS[method] for method in METHODS}


class FastPath:
    """Answers ordinary modern requests at `path`; passes everything else on to `inner`.

    Where nothing else stands before it, `judge` is asked first, and `meter`
    counts what is answered here.
    """

    def __init__(
        self,
        inner: App,
        hot: HotAnswers,
        *,
        path: str,
        judge: Judge | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.inner = inner
        self._judge = judge
        self._meter = meter
        self._hot = hot
        self._reader = hot.new_reader()
        self._path = path
        self._known_kinds: set[tuple[bytes, bytes]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != self._path:
            return await self.inner(scope, receive, send)
        started = time.perf_counter()
        headers = self._ordinary_headers(scope)
        if headers is None:
            return await self.inner(scope, receive, send)
        message = await receive()
        answer = None
        if message["type"] == "http.request" and not message.get("more_body"):
            body, state = message.get("body", b""), self._hot.state
            known = self._reader.recall(body, state)
            if known is None:
                answer = await self._answer(body, headers, state)
            elif _agrees(known[1].request, headers):
                answer = known[0] + known[1].rest
        if answer is None:
            return await self.inner(scope, _replaying(message, receive), send)
        length = (b"content-length", b"%d" % len(answer))
        await send({"type": "http.response.start", "status": 200, "headers": [length, _JSON]})
        await send({"type": "http.response.body", "body": answer})
        if self._meter is not None:
            method = _NUMBERS[headers[b"mcp-method"]]
            self._meter.count(method, "ok", time.perf_counter() - started, len(answer))

    async def _answer(self, body: bytes, headers: dict[bytes, bytes], state: object) -> bytes | None:
        request = self._reader.read(body) if len(body) <= _LARGEST_BODY else None
        if request is None or not request.has_envelope or not _agrees(request, headers):
            return None
        result = self._hot.result(request, modern=True)
        if result is None and request.method == READ_RESOURCE:
            result = await self._hot.fetch(request, modern=True)
        if result is None:
            return None
        answer = b"".join(response(request, result))
        self._reader.remember(body, request, answer, state)
        return answer

    def _ordinary_headers(self, scope: Scope) -> dict[bytes, bytes] | None:
        headers = _headers_of(scope)
        if headers is None or headers.get(b"mcp-protocol-version") != _MODERN or b"origin" in headers:
            return None
        if self._judge is not None and self._judge(headers.get(b"host", b""), None) is not None:
            return None
        length = headers.get(b"content-length", b"0")
        if b"mcp-method" not in headers or not (length.isdigit() and len(length) < 6):
            return None
        kinds = headers.get(b"content-type", b""), headers.get(b"accept", b"")
        return headers if kinds in self._known_kinds or self._are_json(kinds) else None

    def _are_json(self, kinds: tuple[bytes, bytes]) -> bool:
        """Judge headers that are the same in every request of a client, once."""
        sent, accepted = kinds
        if not sent.lower().startswith(b"application/json") or not _accepts_json(accepted.decode("latin-1")):
            return False
        if len(self._known_kinds) >= _MAX_KNOWN:
            self._known_kinds.clear()
        self._known_kinds.add(kinds)
        return True


def _headers_of(scope: Scope) -> dict[bytes, bytes] | None:
    """Return the headers of a request by name; None when one comes twice, which needs a closer look."""
    headers: dict[bytes, bytes] | None = scope.get(HEADERS)
    if headers is None:
        pairs = scope["headers"]
        headers = dict(pairs)
        if len(headers) != len(pairs):
            return None
        scope[HEADERS] = headers
    return headers


def _agrees(request: Request, headers: dict[bytes, bytes]) -> bool:
    """Tell whether headers and body say the same, in the plain spelling: others are the SDK's to compare."""
    if headers[b"mcp-method"] != request.method.encode():
        return False
    if request.method != READ_RESOURCE:
        return True
    name = headers.get(b"mcp-name", b"").decode("latin-1")
    return name == request.params["uri"] and not name.startswith("=?")


def _accepts_json(accept: str) -> bool:
    kinds = {kind.split(";")[0].strip().lower() for kind in accept.split(",")}
    return not kinds.isdisjoint({"application/json", "application/*", "*/*"})


def _replaying(first: Message, receive: Receive) -> Receive:
    """Return a `receive` that gives `first` once more before what comes next."""
    messages = [first]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
