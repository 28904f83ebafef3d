"""Serving many clients over streamable HTTP."""

import importlib.util
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import anyio
import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request

from skillwire.server.asgi import App, FastPath, Message, Receive, Scope, Send
from skillwire.server.footprint import settle_heap, share_one_heap
from skillwire.server.hot import MODERN_VERSION
from skillwire.server.standalone import Offer, Standalone
from skillwire.server.wellknown.serving import SiteApp
from skillwire.wire.dialect import Dialect
from skillwire.wire.execution import EXECUTE_METHOD
from skillwire.wire.wellknown import SITE_PATH

PATH: Final = "/mcp"

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_GRACE_SECONDS = 10


class HttpApp:
    """The ASGI application: skills at `/mcp`, behind the checks every request must pass.

    With the dialect `well-known` there is a web site of skills, too. Anyone may
    read it, from pages of any origin, unless only this machine is listened to.

    `asgi` is what a server should call: ready answers first, which need no
    more checks than they make themselves.
    """

    def __init__(self, standalone: Standalone, *, host: str, is_stateless: bool) -> None:
        self._standalone = standalone
        self._is_exposed = host not in _LOOPBACK
        self._is_stateless = is_stateless
        self._stopping = anyio.Event()
        security = None if self._is_exposed else _loopback_only()
        self._guard = TransportSecurityMiddleware(security)
        is_site = Dialect.WELL_KNOWN in standalone.skills.dialects
        self._site = SiteApp(standalone.skills) if is_site else None
        self._sdk: App = standalone.server.streamable_http_app(
            streamable_http_path=PATH,
            # A client may refuse an event of more than 1 MiB, and a file may be larger.
            json_response=True,
            stateless_http=is_stateless,
            transport_security=security,
            host=host,
        )
        # Runs take long: who asked may leave, or want to hear of progress, and neither goes with plain JSON.
        self._runs: StreamableHTTPSessionManager | None = None
        if standalone.skills.scripts is not None:
            self._runs = StreamableHTTPSessionManager(
                standalone.server, stateless=True, security_settings=security
            )
        self.asgi: App = self._answer
        if standalone.offer.is_fast:
            self.asgi = FastPath(self._answer, standalone.hot, path=PATH, security=security)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.asgi(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the SDK answer."""
        if scope["type"] == "http":
            # Blanks around the value of a header mean nothing in HTTP.
            headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
            if self._site is not None and scope["path"].startswith(SITE_PATH):
                request = Request({**scope, "headers": headers})
                refusal = await self._guard.validate_request(request)
                return await (refusal or await self._site.respond(request))(scope, receive, send)
            if self._is_exposed and not _is_same_origin(headers):
                return await _refuse(send, 403, b"Invalid Origin header")
            if self._is_stateless and scope["method"] in ("GET", "DELETE") and scope["path"] == PATH:
                return await _refuse(send, 405, b"There are no sessions here", (b"allow", b"POST"))
            scope = {**scope, "headers": headers}
            if scope["method"] == "GET":
                return await self._stream(scope, receive, send)
            if self._runs is not None and scope["path"] == PATH and _is_run(headers):
                return await self._runs.handle_request(scope, receive, send)
        elif scope["type"] == "lifespan" and self._runs is not None:
            async with self._runs.run():
                return await self._sdk(scope, receive, send)
        await self._sdk(scope, receive, send)

    def end_streams(self) -> None:
        """End the streams that would otherwise stay open for as long as their clients do."""
        self._standalone.listen.close()
        self._stopping.set()

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what lasts as long as its client; when the server stops first, end it in good order."""
        is_unfinished = False

        async def noting(message: Message) -> None:
            nonlocal is_unfinished
            is_unfinished = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        await self._sdk(scope, self._until_stopped(receive), noting)
        if is_unfinished:
            await send({"type": "http.response.body", "body": b""})

    def _until_stopped(self, receive: Receive) -> Receive:
        """Return a `receive` that reports a disconnection when the server stops."""

        async def receive_or_stop() -> Message:
            received: Message = {"type": "http.disconnect"}
            async with anyio.create_task_group() as group:

                async def wait_for_stop() -> None:
                    await self._stopping.wait()
                    group.cancel_scope.cancel()

                group.start_soon(wait_for_stop)
                received = await receive()
                group.cancel_scope.cancel()
            return received

        return receive_or_stop


class HttpServer(uvicorn.Server):
    """Uvicorn, with a word when it is ready, and streams that end when it stops."""

    def __init__(self, config: uvicorn.Config, app: HttpApp, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app = app
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what was asked; hang up on clients that do not read their answers in time."""
        self._app.end_streams()
        async with anyio.create_task_group() as group:
            group.start_soon(self._hang_up_late)
            await super().shutdown(sockets)
            group.cancel_scope.cancel()
        if self.force_exit:
            self._hang_up()
            # Uvicorn leaves it out when it is told to hurry, and what is still open would complain loudly.
            await self.lifespan.shutdown()

    async def _hang_up_late(self) -> None:
        await anyio.sleep(_GRACE_SECONDS)
        self._hang_up()

    def _hang_up(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


async def serve_http(
    offer: Offer,
    listener: socket.socket,
    *,
    host: str,
    is_stateless: bool = False,
    on_ready: Callable[[Standalone], None] = lambda standalone: None,
) -> None:
    """Serve until SIGTERM or SIGINT, and finish what was asked.

    Sessions of older clients live in one process, so several processes on one
    listener must serve without them: `is_stateless`.

    Raises:
        SkillError: The skills cannot be opened.
    """
    standalone = Standalone(offer)
    app = HttpApp(standalone, host=host, is_stateless=is_stateless)
    config = uvicorn.Config(
        app.asgi,
        interface="asgi3",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS + 2,
    )
    server = HttpServer(config, app, lambda: on_ready(standalone))
    # Uvicorn takes signals only while it serves, and raises them once more when it is done.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    async with standalone.skills.open():
        settle_heap()
        if not server.should_exit:
            await server.serve(sockets=[listener])


def run_http(serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `serve_http`, on the fastest event loop there is."""
    share_one_heap()
    is_fast = importlib.util.find_spec("uvloop") is not None
    anyio.run(serve, backend_options={"use_uvloop": is_fast})


def listen_on(host: str, port: int) -> socket.socket:
    """Open the socket clients connect to; port 0 takes any that is free.

    Raises:
        OSError: The address cannot be had.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket, host: str) -> str:
    """Return the URL of the endpoint, as a client on this machine would write it."""
    port: int = listener.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


def _loopback_only() -> TransportSecuritySettings:
    """Refuse what a web page of someone else could make a browser send to this machine."""
    names = ("127.0.0.1", "localhost", "[::1]")
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[f"{name}:*" for name in names],
        allowed_origins=[f"http://{name}:*" for name in names],
    )


def _is_same_origin(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Tell whether a request comes from no web page, or from one of this server."""
    found: dict[bytes, Any] = {name: value for name, value in headers if name in (b"origin", b"host")}
    origin = found.get(b"origin")
    return origin is None or origin.partition(b"://")[2] == found.get(b"host")


def _is_run(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Tell whether a modern client asks for a script to be run, and takes a stream for an answer."""
    found = dict(headers)
    return (
        found.get(b"mcp-protocol-version") == MODERN_VERSION.encode()
        and found.get(b"mcp-method") == EXECUTE_METHOD.encode()
        and b"text/event-stream" in found.get(b"accept", b"").lower()
    )


async def _refuse(send: Send, status: int, reason: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", b"%d" % len(reason))
    kind = (b"content-type", b"text/plain; charset=utf-8")
    await send({"type": "http.response.start", "status": status, "headers": [length, kind, *headers]})
    await send({"type": "http.response.body", "body": reason})
