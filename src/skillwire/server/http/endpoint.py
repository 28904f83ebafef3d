"""`Endpoint`: the skills of one server at `/mcp`, for clients of both generations."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Final, TypeAlias

import anyio
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import INVALID_REQUEST, JSONRPCRequest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from skillwire.core import JsonDict, encode
from skillwire.server.fast.asgi import FastPath, read_body, refuse
from skillwire.server.fast.hot import MODERN_VERSION
from skillwire.server.fast.requests import App, Message, Receive, Scope, Send
from skillwire.server.http.observe import note_method
from skillwire.server.messages import MalformedMessageError, not_initialized, parse_message
from skillwire.server.ops.tracing import is_tracing
from skillwire.server.standalone import SkillServer
from skillwire.wire.execute import EXECUTE_METHOD

PATH: Final = "/mcp"
END_WATCH: Final = "skillwire.end_watch"
"""The scope key of the `EndWatch` for requests that may last long."""

EndWatch: TypeAlias = Callable[[], AbstractContextManager[anyio.Event]]
"""Watches a long request while the context is open; the event is set when the request must end."""

_LISTEN: Final = (b"mcp-method", b"subscriptions/listen")
_HANDSHAKE: Final = tuple(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_ANY_NAME: Final = TransportSecuritySettings(enable_dns_rebinding_protection=False)


class Endpoint:
    """The ASGI application of one `SkillServer`.

    `asgi` is the application to call: the fast path first. The `Host` header and
    the caller have been checked before.
    """

    def __init__(self, skill_server: SkillServer, *, is_stateless: bool) -> None:
        self.skill_server = skill_server
        self._is_stateless = is_stateless
        self._stopping = anyio.Event()
        self._streams = 0
        skill_server.server.middleware.append(note_method)
        self._app = skill_server.server.streamable_http_app(
            streamable_http_path=PATH,
            # A client may refuse an event of more than 1 MiB, and a file may be larger.
            json_response=True,
            stateless_http=is_stateless,
            max_request_body_size=skill_server.options.message_bytes,
            # Without this, the SDK would choose the allowed hosts itself.
            transport_security=_ANY_NAME,
        )
        # Handlers get the caller, and a session belongs to the caller that began it.
        self._sdk: App = AuthContextMiddleware(self._app)
        # Runs take long: disconnection and progress need a stream instead of plain JSON.
        self._runs: StreamableHTTPSessionManager | None = None
        if skill_server.skills.scripts is not None:
            self._runs = StreamableHTTPSessionManager(
                skill_server.server,
                stateless=True,
                security_settings=_ANY_NAME,
                max_request_body_size=skill_server.options.message_bytes,
            )
        # With tracing, every request takes the path that makes spans.
        self.is_fast = skill_server.options.is_fast and not is_tracing()
        self._fast = FastPath(self.pass_to_sdk, skill_server.hot, path=PATH) if self.is_fast else None
        self.asgi: App = self.pass_to_sdk if self._fast is None else self._fast

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Serve while the context is open. The skills are opened too, unless they are open already.

        Raises:
            SkillError: The skills cannot be opened.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.skill_server.skills.open())
            if self._runs is not None:
                await stack.enter_async_context(self._runs.run())
            await stack.enter_async_context(self._app.router.lifespan_context(self._app))
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.asgi(scope, receive, send)

    @property
    def sessions(self) -> int:
        """The number of sessions of older clients, from a private attribute of the SDK."""
        return len(self.skill_server.server.session_manager._server_instances)  # pyright: ignore[reportPrivateUsage]

    @property
    def streams(self) -> int:
        """The number of open streams of change notifications."""
        return self._streams

    @property
    def cached_bytes(self) -> int:
        """The size of the cached answers in bytes."""
        ready = 0 if self._fast is None else self._fast.cached_bytes
        return ready + self.skill_server.skills.cached_bytes

    def end_streams(self) -> None:
        """Close the streams of change notifications."""
        self.skill_server.listen.close()
        self._stopping.set()

    async def pass_to_sdk(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the SDK."""
        # Whitespace around a header value is not part of it.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        if self._is_stateless and scope["method"] in ("GET", "DELETE") and scope["path"] == PATH:
            return await refuse(send, 405, "This server has no sessions", {"allow": "POST"})
        is_stream = scope["method"] == "GET" or _LISTEN in headers
        self._streams += is_stream
        try:
            await self._watch({**scope, "headers": headers}, receive, send)
        finally:
            self._streams -= is_stream

    async def _watch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the SDK; end it early when the server stops or the caller loses access."""
        stopping = [self._stopping] if scope["method"] == "GET" else []
        end_watch: EndWatch | None = scope.get(END_WATCH)
        if end_watch is not None:
            with end_watch() as ended:
                await self._stream(scope, receive, send, *stopping, ended)
        elif stopping:
            await self._stream(scope, receive, send, *stopping)
        else:
            await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            most = self.skill_server.options.message_bytes
            body = await read_body(receive, most)
            if body is None:
                return  # The client disconnected.
            receive = body.again
            refusal = self._refusal(scope, body.content) if len(body.content) <= most else None
            if refusal is not None:
                return await _answer(send, 400, encode(refusal))
        if self._runs is not None and scope["path"] == PATH and _is_script_run(scope["headers"]):
            return await AuthContextMiddleware(self._runs.handle_request)(scope, receive, send)
        await self._sdk(scope, receive, send)

    def _refusal(self, scope: Scope, body: bytes) -> JsonDict | None:
        """Return the error for a malformed message, or a request that needs a session and has none."""
        try:
            message = parse_message(body)
        except MalformedMessageError as error:
            return error.response
        if self._is_stateless or not isinstance(message, JSONRPCRequest) or message.method == "initialize":
            return None
        headers = dict(scope["headers"])
        version = headers.get(b"mcp-protocol-version", _HANDSHAKE[-1])
        if b"mcp-session-id" in headers or version not in _HANDSHAKE:
            return None
        error = {"code": INVALID_REQUEST, "message": not_initialized(message.method)}
        return {"jsonrpc": "2.0", "id": message.id, "error": error}

    async def _stream(self, scope: Scope, receive: Receive, send: Send, *ends: anyio.Event) -> None:
        """Serve a request that may last; when one of `ends` is set, complete the response."""
        is_unfinished = False

        async def tracking_send(message: Message) -> None:
            nonlocal is_unfinished
            is_unfinished = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        await self._pass_on(scope, _until(ends, receive), tracking_send)
        if is_unfinished:
            await send({"type": "http.response.body", "body": b""})


def _until(ends: Iterable[anyio.Event], receive: Receive) -> Receive:
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


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _is_script_run(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a modern client asks to run a script and accepts a stream."""
    found = dict(headers)
    return (
        found.get(b"mcp-protocol-version") == MODERN_VERSION.encode()
        and found.get(b"mcp-method") == EXECUTE_METHOD.encode()
        and b"text/event-stream" in found.get(b"accept", b"").lower()
    )
