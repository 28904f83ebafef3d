"""Serving over HTTP, from the socket clients connect to until the last of them has its answer."""

import asyncio
import importlib.util
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import uvicorn

from skillwire.errors import SkillError
from skillwire.server.access.settings import Access
from skillwire.server.app import HttpApp
from skillwire.server.endpoint import PATH
from skillwire.server.footprint import settle_heap, share_one_heap
from skillwire.server.ops.accesslog import AccessLog, write_to_stderr
from skillwire.server.ops.metrics import Meter
from skillwire.server.ops.observing import Observed
from skillwire.server.ops.peers import Proxies
from skillwire.server.ops.tracing import is_tracing
from skillwire.server.protocol.choosing import http_protocol
from skillwire.server.protocol.guarded import Turnstile
from skillwire.server.protocol.limits import ConnectionCounts, ConnectionLimits, room_for
from skillwire.server.skills import Skills
from skillwire.server.standalone import Offer

_GRACE_SECONDS = 10
_CONNECTIONS = 10_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a certificate, with those it rests on, and of its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Door:
    """How clients come in: by which host, with which credentials, and how safely.

    Sessions of older clients live in one process, so several processes on one
    listener must serve without them: `is_stateless`. It can be sent to another
    process.
    """

    host: str
    access: Access = field(default_factory=Access)
    tls: Tls | None = None
    proxies: tuple[str, ...] = ()
    """Addresses and networks whose word is taken about where a request comes from."""
    access_log: bool = False
    is_stateless: bool = False
    meter: Path | None = None
    """Where all processes count together; without it, this one counts alone."""
    slot: int = 0


class HttpServer(uvicorn.Server):
    """Uvicorn, with a word when it is ready, streams that end when it stops, and files it reads again."""

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

    @contextmanager
    def reloading(self) -> Generator[None]:
        """Read files again on SIGHUP meanwhile; a terminal that is gone means the end, as ever."""
        if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
            yield
            return
        loop, had_terminal = asyncio.get_running_loop(), os.isatty(2)

        def hang_up() -> None:
            if had_terminal and not os.isatty(2):
                self.should_exit = True
            else:
                self.reload()

        loop.add_signal_handler(signal.SIGHUP, hang_up)
        # Whoever started this process may have held it back until here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    def reload(self) -> None:
        """Read again who may see what, and the certificate; what cannot be used changes nothing."""
        logger.info("the configuration is read again")
        self._app.reload()
        if self.config.ssl is None:
            return
        try:
            # A context that has failed to load a pair has lost the one before, so another tries it first.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.config.ssl):
                context.load_cert_chain(str(self.config.ssl_certfile), self.config.ssl_keyfile, _no_password)
        except (OSError, ValueError) as error:
            logger.warning("the certificate stays as it was: %s", error)

    async def _hang_up_late(self) -> None:
        await anyio.sleep(_GRACE_SECONDS)
        self._hang_up()

    def _hang_up(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


def _no_password() -> bytes:
    """Stand in for the terminal that OpenSSL would ask, which nobody may be at any more."""
    return b""


async def serve_http(
    offer: Offer,
    listener: socket.socket,
    door: Door,
    *,
    on_ready: Callable[[Skills], None] = lambda skills: None,
) -> None:
    """Serve until SIGTERM or SIGINT, and finish what was asked. SIGHUP reads the configuration again.

    Raises:
        SkillError: The skills, or a file about who may see them, cannot be opened.
    """
    meter = Meter() if door.meter is None else Meter.open(door.meter, door.slot)
    log = AccessLog(write_to_stderr, on_drop=meter.unlogged) if door.access_log else None
    proxies = Proxies(door.proxies)
    connections = ConnectionCounts(on_end=meter.ended)
    app = HttpApp(
        offer,
        host=door.host,
        access=door.access,
        is_stateless=door.is_stateless,
        proxies=proxies,
        meter=meter,
        connections=connections,
    )
    limits = ConnectionLimits(connections=room_for(_CONNECTIONS))
    observed = Observed(app, meter, path=PATH, log=log, proxies=proxies, spans=is_tracing())
    config = uvicorn.Config(
        # A log wants to hear of every request.
        app.fronted(observed) if log is None else observed,
        http=http_protocol(Turnstile(limits, connections)),
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS + 2,
        ssl_certfile=None if door.tls is None else door.tls.certificate,
        ssl_keyfile=None if door.tls is None else str(door.tls.key),
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        fix = "check the files, and that the key belongs to the certificate"
        raise SkillError(f"the certificate cannot be used: {error}", fix=fix) from error
    server = HttpServer(config, app, lambda: on_ready(app.skills))
    # Uvicorn takes signals only while it serves, and raises them once more when it is done.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    with server.reloading():
        async with app.open():
            settle_heap()
            if not server.should_exit:
                with nullcontext() if log is None else log.open():
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


def url_of(listener: socket.socket, door: Door) -> str:
    """Return the URL of the endpoint, as a client on this machine would write it."""
    host, port = door.host, listener.getsockname()[1]
    scheme = "http" if door.tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{PATH}"
