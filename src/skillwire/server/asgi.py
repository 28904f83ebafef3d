"""`FastPath`: an ASGI application in front of the SDK's, which answers what is asked for all the time.

It stands inside authorization and sees a request before the SDK does. One that
is ordinary in every respect is answered at once; any other goes on to the SDK,
untouched, and gets the SDK's answer.
"""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, TypeAlias

from skillwire.server.hot import MODERN_VERSION, HotAnswers
from skillwire.server.requests import Request, response
from skillwire.wire.core import READ_RESOURCE

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_MODERN: Final = MODERN_VERSION.encode()
_LARGEST_BODY = 64 * 1024
_MAX_KNOWN = 1024
_JSON = (b"content-type", b"application/json")


class FastPath:
    """Answers ordinary modern requests at `path`; passes everything else on to `inner`."""

    def __init__(self, inner: App, hot: HotAnswers, *, path: str) -> None:
        self.inner = inner
        self._hot = hot
        self._reader = hot.new_reader()
        self._path = path
        self._known_kinds: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != self._path:
            return await self.inner(scope, receive, send)
        headers = self._ordinary_headers(scope["headers"])
        if headers is None:
            return await self.inner(scope, receive, send)
        message = await receive()
        body = None
        if message["type"] == "http.request" and not message.get("more_body"):
            body = await self._answer(message.get("body", b""), headers)
        if body is None:
            return await self.inner(scope, _replaying(message, receive), send)
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length, _JSON]})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, body: bytes, headers: dict[bytes, bytes]) -> bytes | None:
        state = self._hot.state
        known = self._reader.recall(body, state)
        if known is not None:
            return known[0] + known[1].rest if _agrees(known[1].request, headers) else None
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

    def _ordinary_headers(self, pairs: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes] | None:
        headers = dict(pairs)
        if len(headers) != len(pairs):
            return None  # A header that comes twice is the SDK's to judge.
        if headers.get(b"mcp-protocol-version") != _MODERN or b"mcp-method" not in headers:
            return None
        if b"origin" in headers or not headers.get(b"content-type", b"").lower().startswith(
            b"application/json"
        ):
            return None
        length = headers.get(b"content-length", b"0")
        if not (length.isdigit() and len(length) < 6):
            return None
        return headers if self._takes_json(headers.get(b"accept", b"")) else None

    def _takes_json(self, accept: bytes) -> bool:
        """Judge a header that is the same in every request of a client, once."""
        if accept in self._known_kinds:
            return True
        if not _accepts_json(accept.decode("latin-1")):
            return False
        if len(self._known_kinds) >= _MAX_KNOWN:
            self._known_kinds.clear()
        self._known_kinds.add(accept)
        return True


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
