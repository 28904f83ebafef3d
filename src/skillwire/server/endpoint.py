"""`Endpoint`: the skills of one server at `/mcp`, for clients of both generations."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Final, TypeAlias

import anyio
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from skillwire.server.asgi import App, FastPath, Message, Receive, Scope, Send
from skillwire.server.bodies import taken
from skillwire.server.hot import MODERN_VERSION
from skillwire.server.ops.observing import note_method
from skillwire.server.ops.tracing import is_tracing
from skillwire.server.refusing import refuse
from skillwire.server.standalone import Standalone
from skillwire.wire.execution import EXECUTE_METHOD

PATH: Final = "/mcp"
HOLD: Final = "skillwire.hold"
"""The key of a scope for what keeps an eye on requests that may last: see `Hold`."""

Hold: TypeAlias = Callable[[], AbstractContextManager[anyio.Event]]
"""Begins to keep an eye on a request; the event says that it must end."""

_ANY_NAME: Final = TransportSecuritySettings(enable_dns_rebinding_protection=False)


class Endpoint:
    """The ASGI application of one `Standalone`.

    `asgi` is what a server should call: ready answers first. Under which name a
    request comes, and who sends it, was looked at before.
    """

    def __init__(self, standalone: Standalone, *, is_stateless: bool) -> None:
        self.standalone = standalone
        self._is_stateless = is_stateless
        self._stopping = anyio.Event()
        standalone.server.middleware.append(note_method)
        self._app = standalone.server.streamable_http_app(
            streamable_http_path=PATH,
            # A client may refuse an event of more than 1 MiB, and a file may be larger.
            json_response=True,
            stateless_http=is_stateless,
            # Without a word from us the SDK would choose names for itself.
            transport_security=_ANY_NAME,
        )
        # Whoever asked is known to what answers, and a session belongs to who began it.
        self._sdk: App = AuthContextMiddleware(self._app)
        # Runs take long: who asked may leave, or want to hear of progress, and neither goes with plain JSON.
        self._runs: StreamableHTTPSessionManager | None = None
        if standalone.skills.scripts is not None:
            self._runs = StreamableHTTPSessionManager(
                standalone.server, stateless=True, security_settings=_ANY_NAME
            )
        # With traces every request goes the way that makes spans.
        self.is_fast = standalone.offer.is_fast and not is_tracing()
        self.asgi: App = self.plain
        if self.is_fast:
            self.asgi = FastPath(self.plain, standalone.hot, path=PATH)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Serve meanwhile. The skills are opened too, unless they are open already.

        Raises:
            SkillError: They cannot be opened.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.standalone.skills.open())
            if self._runs is not None:
                await stack.enter_async_context(self._runs.run())
            await stack.enter_async_context(self._app.router.lifespan_context(self._app))
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.asgi(scope, receive, send)

    @property
    def sessions(self) -> int:
        """How many sessions older clients have. The SDK keeps them to itself."""
        return len(self.standalone.server.session_manager._server_instances)  # pyright: ignore[reportPrivateUsage]

    def end_streams(self) -> None:
        """End the streams that would otherwise stay open for as long as their clients do."""
        self.standalone.listen.close()
        self._stopping.set()

    async def plain(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the SDK answer."""
        # Blanks around the value of a header mean nothing in HTTP.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        if self._is_stateless and scope["method"] in ("GET", "DELETE") and scope["path"] == PATH:
            return await refuse(send, 405, "There are no sessions here", {"allow": "POST"})
        scope = {**scope, "headers": headers}
        stopping = [self._stopping] if scope["method"] == "GET" else []
        hold: Hold | None = scope.get(HOLD)
        if hold is not None:
            with hold() as ended:
                await self._stream(scope, receive, send, *stopping, ended)
        elif stopping:
            await self._stream(scope, receive, send, *stopping)
        else:
            await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            whole = await taken(receive)
            if whole is None:
                return  # Who asked has left.
            receive = whole
        if self._runs is not None and scope["path"] == PATH and _is_run(scope["headers"]):
            return await AuthContextMiddleware(self._runs.handle_request)(scope, receive, send)
        await self._sdk(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send, *ends: anyio.Event) -> None:
        """Serve what may last as long as its client; when one of `ends` comes first, end it in good order."""
        is_unfinished = False

        async def noting(message: Message) -> None:
            nonlocal is_unfinished
            is_unfinished = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        await self._pass_on(scope, _until(ends, receive), noting)
        if is_unfinished:
            await send({"type": "http.response.body", "body": b""})


def _until(ends: Iterable[anyio.Event], receive: Receive) -> Receive:
    """Return a `receive` that reports a disconnection when any of `ends` comes."""

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


def _is_run(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Tell whether a modern client asks for a script to be run, and takes a stream for an answer."""
    found = dict(headers)
    return (
        found.get(b"mcp-protocol-version") == MODERN_VERSION.encode()
        and found.get(b"mcp-method") == EXECUTE_METHOD.encode()
        and b"text/event-stream" in found.get(b"accept", b"").lower()
    )
