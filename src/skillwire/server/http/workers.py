"""Worker processes that serve the same skills on one socket."""

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path

from skillwire.core import SkillError
from skillwire.server.access.admission import Admission
from skillwire.server.config import LiveOptions
from skillwire.server.http.server import Worker, run_http, serve_http
from skillwire.server.ops.metrics import WorkerMetrics
from skillwire.server.options import ServeOptions
from skillwire.server.outputs import Scripts
from skillwire.server.skills import Skills

# How many worker exits within the window are tolerated.
_MAX_RESTARTS = 10
_RESTART_WINDOW = 60.0
# How many workers may fail to open the skills, however long each of them took.
_MAX_OPEN_FAILURES = 3
_CANNOT_OPEN = 3
_STOP_SECONDS = 15.0

_SPAWN = multiprocessing.get_context("spawn")

logger = logging.getLogger(__name__)


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
