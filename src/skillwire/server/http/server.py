"""Serve over HTTP: the listening socket, signals, reloading and a graceful stop."""

import asyncio
import importlib.util
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import anyio
import uvicorn

from skillwire.core import SkillError
from skillwire.server.access.admission import Admission
from skillwire.server.config import LiveOptions
from skillwire.server.http.app import HttpApp
from skillwire.server.http.catalog import MAX_BODY
from skillwire.server.http.guard import ConnectionTracker, LimitedConnection
from skillwire.server.http.observe import ObservedApp, is_tracing
from skillwire.server.http.views import PATH
from skillwire.server.limits import (
    ConnectionCounts,
    HttpConnectionLimits,
    freeze_gc,
    limit_malloc_arenas,
    raise_open_file_limit,
)
from skillwire.server.listener import EarlyHealth
from skillwire.server.ops.accesslog import AccessLog, write_to_stderr
from skillwire.server.ops.metrics import WorkerMetrics
from skillwire.server.ops.peers import Proxies
from skillwire.server.options import HttpOptions, ServeOptions
from skillwire.server.outputs import Scripts
from skillwire.server.skills import Skills


def http_protocol(tracker: ConnectionTracker) -> type[asyncio.Protocol]:
    """Return the `http` argument of `uvicorn.Config`: a protocol class that uses `tracker`."""
    return type(LimitedConnection.__name__, (LimitedConnection,), {"tracker": tracker})


_GRACE_SECONDS = 10
_CONNECTIONS = 10_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several processes that serve on one socket. It can be pickled.

    A session lives in one process, and requests may reach any of them, so
    workers serve older clients without sessions.
    """

    meter: Path
    """The file in which all workers count together."""
    slot: int = 0


class HttpServer(uvicorn.Server):
    """A uvicorn server that calls `on_ready`, ends streams when it stops, and reloads on SIGHUP."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: HttpApp,
        live: LiveOptions,
        early: EarlyHealth | None,
        on_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._early = early
        self._app = app
        self._live = live
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        waiting = [] if self._early is None else self._early.stop()
        await super().startup(sockets)
        for connection in waiting:
            await self._serve_connection(connection)
        if self.started:
            self._on_ready()

    async def _serve_connection(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted before this server was ready."""
        new_protocol = partial(
            self.config.http_protocol_class,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        try:
            await asyncio.get_running_loop().connect_accepted_socket(new_protocol, connection)
        except OSError:
            connection.close()  # The client has gone.

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish requests under way; close connections of clients that do not read in time."""
        self._app.end_streams()
        async with anyio.create_task_group() as group:
            group.start_soon(self._hang_up_late)
            await super().shutdown(sockets)
            group.cancel_scope.cancel()
        if self.force_exit:
            self._hang_up()

    @contextmanager
    def reloading(self) -> Generator[None]:
        """Reload on SIGHUP while the context is open; when its terminal is gone, stop instead."""
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
        # The parent may have blocked the signal until this handler was in place.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    def reload(self) -> None:
        """Read the configuration, tokens, rules and the certificate again.

        What cannot be used is logged and changes nothing.
        """
        logger.info("reloading the configuration")
        self._live.reload(self._apply)
        self._app.reload()
        self._load_certificate(self._live.options.endpoint)

    def _apply(self, options: ServeOptions) -> None:
        self._app.reconfigure(options.endpoint.access)

    def _load_certificate(self, options: HttpOptions) -> None:
        if self.config.ssl is None or options.tls is None:
            return
        certificate, key = options.tls
        try:
            # A context that fails to load a pair loses the previous one, so another context tries it first.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.config.ssl):
                context.load_cert_chain(certificate, key, _no_password)
        except (OSError, ValueError) as error:
            logger.warning("the certificate cannot be used (%s); the previous one stays in use", error)

    async def _hang_up_late(self) -> None:
        await anyio.sleep(_GRACE_SECONDS)
        self._hang_up()

    def _hang_up(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


def _no_password() -> bytes:
    """Return an empty password, so that OpenSSL does not ask for one in the terminal."""
    return b""


async def serve_http(
    options: ServeOptions,
    listener: socket.socket,
    *,
    worker: Worker | None = None,
    early: EarlyHealth | None = None,
    reread: Callable[[], ServeOptions] | None = None,
    on_ready: Callable[[Skills], None] = lambda skills: None,
) -> None:
    """Serve until SIGTERM or SIGINT, and finish requests under way. SIGHUP reloads.

    `early` answers on `listener` until the skills are open. `reread` reads the
    options again, if they come from a file.

    Raises:
        SkillError: The skills, or a file about access, cannot be opened.
    """
    http = options.endpoint
    meter = WorkerMetrics() if worker is None else WorkerMetrics.open(worker.meter, worker.slot)
    log = AccessLog(write_to_stderr, on_drop=meter.unlogged) if http.access_log else None
    proxies = Proxies(http.proxy)
    connections = ConnectionCounts(on_close=meter.ended)
    app = HttpApp(
        options,
        host=http.host,
        access=http.access,
        # Behind a balancer, the next request may reach another process.
        is_stateless=worker is not None or options.is_replicated,
        proxies=proxies,
        meter=meter,
        connections=connections,
    )
    limits = HttpConnectionLimits(
        connections=raise_open_file_limit(_CONNECTIONS),
        body_bytes=options.message_bytes if options.publishing is None or http.access.is_open else MAX_BODY,
    )
    observed = ObservedApp(app, meter, path=PATH, log=log, proxies=proxies, spans=is_tracing())
    certificate, key = http.tls or (None, None)
    config = uvicorn.Config(
        # The fast path writes no access log.
        app.with_fast_path(observed) if log is None else observed,
        http=http_protocol(ConnectionTracker(limits, connections)),
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS + 2,
        ssl_certfile=certificate,
        ssl_keyfile=None if key is None else str(key),
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        fix = "check the files, and that the key belongs to the certificate"
        raise SkillError(f"the certificate cannot be used: {error}", fix=fix) from error
    # The process that starts the workers logs what is wrong with the file.
    live = LiveOptions(options, reread, is_logged=worker is None)
    server = HttpServer(config, app, live, early, lambda: on_ready(app.skills))
    # Uvicorn handles signals only while it serves, and raises them once more at its end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    with server.reloading():
        async with app.open():
            freeze_gc()
            if not server.should_exit:
                with nullcontext() if log is None else log.open():
                    await server.serve(sockets=[listener])


def run_http(serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `serve_http`, on uvloop if it is installed."""
    limit_malloc_arenas()
    is_fast = importlib.util.find_spec("uvloop") is not None
    anyio.run(serve, backend_options={"use_uvloop": is_fast})


def url_of(listener: socket.socket, options: HttpOptions) -> str:
    """Return the URL of the endpoint for a client on this machine."""
    host, port = options.host, listener.getsockname()[1]
    scheme = "http" if options.tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


# How many worker exits within the window are tolerated.
_MAX_RESTARTS = 10
_RESTART_WINDOW = 60.0
# How many workers may fail to open the skills, however long each of them took.
_MAX_OPEN_FAILURES = 3
_CANNOT_OPEN = 3
_STOP_SECONDS = 15.0

_SPAWN = multiprocessing.get_context("spawn")


def _do_nothing() -> None:
    """Do nothing: the default `prepare`."""


def serve_with_workers(
    options: ServeOptions,
    listener: socket.socket,
    *,
    reread: Callable[[], ServeOptions] | None = None,
    on_ready: Callable[[], None] = lambda: None,
    prepare: Callable[[], None] = _do_nothing,
) -> bool:
    """Run worker processes that serve until SIGTERM or SIGINT; return False when they keep exiting.

    A worker that exits is replaced. Each worker watches the folders itself, and
    reloads when this process gets SIGHUP. `reread` reads the options again, if
    they come from a file. `prepare` runs first in each worker; both must be
    picklable.
    """
    with WorkerMetrics.create(options.endpoint.workers) as meter:
        return _Supervisor(LiveOptions(options, reread), listener, meter, reread, prepare).run(on_ready)


def _check_access(options: ServeOptions) -> None:
    """Check that workers will be able to read the files about access."""
    Admission(options.endpoint.access).load()


class _Supervisor:
    def __init__(
        self,
        live: LiveOptions,
        listener: socket.socket,
        meter: Path,
        reread: Callable[[], ServeOptions] | None,
        prepare: Callable[[], None],
    ) -> None:
        self._live = live
        self._listener = listener
        self._meter = meter
        self._arguments = reread, prepare
        count = live.options.endpoint.workers
        self._free_slots = list(range(count))
        self._slots: dict[SpawnProcess, int] = {}
        self._exits: list[float] = []
        self._open_failures = 0
        self._is_stopping = False
        self._had_terminal = False

    def run(self, on_ready: Callable[[], None]) -> bool:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        if hasattr(signal, "SIGHUP"):
            self._had_terminal = os.isatty(2)
            signal.signal(signal.SIGHUP, self._on_sighup)
        try:
            self._start_missing()
            on_ready()
            while not self._is_stopping and not self._keeps_failing():
                self._start_missing()
                multiprocessing.connection.wait([worker.sentinel for worker in self._slots], timeout=0.5)
                self._count_dead()
        finally:
            self._end_all()
        return self._is_stopping

    def _stop(self, *_: object) -> None:
        self._is_stopping = True

    def _on_sighup(self, *_: object) -> None:
        if self._had_terminal and not os.isatty(2):
            self._is_stopping = True
            return
        # A worker that replaces another starts with the new options.
        self._live.reload(_check_access)
        for worker in self._slots:
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, signal.SIGHUP)

    def _keeps_failing(self) -> bool:
        recently = time.monotonic() - _RESTART_WINDOW
        self._exits = [moment for moment in self._exits if moment > recently]
        return len(self._exits) > _MAX_RESTARTS or self._open_failures >= _MAX_OPEN_FAILURES

    def _count_dead(self) -> None:
        for worker in [worker for worker in self._slots if not worker.is_alive()]:
            # Its successor continues its counters.
            self._free_slots.append(self._slots.pop(worker))
            if not self._is_stopping:
                logger.warning("a worker exited with code %s", worker.exitcode)
                self._exits.append(time.monotonic())
                self._open_failures += worker.exitcode == _CANNOT_OPEN

    def _start_missing(self) -> None:
        while self._free_slots:
            slot = self._free_slots.pop(0)
            role = Worker(self._meter, slot)
            args = (self._live.options, self._listener, role, *self._arguments)
            worker = _SPAWN.Process(target=_work, args=args)
            # A terminal sends SIGINT to workers too, and one that is still starting would print a traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with _sighup_blocked():
                worker.start()
            signal.signal(signal.SIGINT, self._stop)
            self._slots[worker] = slot

    def _end_all(self) -> None:
        """Stop listening, and stop the workers; each finishes the requests under way."""
        self._listener.close()
        for worker in self._slots:
            worker.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for worker in self._slots:
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                logger.warning("a worker did not stop in time and is killed")
                worker.kill()
                worker.join()


@contextmanager
def _sighup_blocked() -> Generator[None]:
    """Block SIGHUP here and in what is started: it would end a worker that does not handle it yet.

    The worker unblocks it when its handler is in place (`HttpServer.reloading`).
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    options: ServeOptions,
    listener: socket.socket,
    role: Worker,
    reread: Callable[[], ServeOptions] | None,
    prepare: Callable[[], None],
) -> None:
    prepare()
    # The parent process has logged what is not published, and what is not run.
    for said in (Skills, Scripts):
        logging.getLogger(said.__module__).setLevel(logging.ERROR)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        run_http(partial(serve_http, options, listener, worker=role, reread=reread))
    except SkillError as error:
        logger.error("a worker cannot serve: %s", error)
        sys.exit(_CANNOT_OPEN)


def _exit_with_parent() -> None:
    """End this worker when its parent process exits."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
