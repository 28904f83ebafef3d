"""Several processes that serve the same skills on one socket."""

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
from dataclasses import replace
from functools import partial
from multiprocessing.context import SpawnProcess

from skillwire.errors import SkillError
from skillwire.server.http import Door, run_http, serve_http
from skillwire.server.ops.metrics import Meter
from skillwire.server.scripts import Scripts
from skillwire.server.skills import Skills
from skillwire.server.standalone import Offer

# How many times workers may die before it is clear that they always will.
_MAX_RESTARTS = 10
_RESTART_WINDOW = 60.0
# How many workers may find that the skills cannot be opened, however long each of them tried.
_MAX_REFUSALS = 3
_CANNOT_OPEN = 3
_STOP_SECONDS = 15.0

_SPAWN = multiprocessing.get_context("spawn")

logger = logging.getLogger(__name__)


def _nothing() -> None:
    """Prepare a worker by doing nothing."""


def serve_with_workers(
    offer: Offer,
    listener: socket.socket,
    door: Door,
    *,
    count: int,
    on_ready: Callable[[], None] = lambda: None,
    prepare: Callable[[], None] = _nothing,
) -> bool:
    """Keep `count` worker processes serving until SIGTERM or SIGINT; False when they keep dying.

    A worker that dies is replaced. Each worker watches the folders itself, and
    reads its configuration again when this process is told to by SIGHUP.
    `prepare` runs first in each of them, so it must be something another
    process can be told: a function of a module.
    """
    with Meter.create(count) as meter:
        shared = replace(door, is_stateless=True, meter=meter)
        return _Supervisor(offer, listener, shared, count, prepare).run(on_ready)


class _Supervisor:
    def __init__(
        self, offer: Offer, listener: socket.socket, door: Door, count: int, prepare: Callable[[], None]
    ) -> None:
        self._given = offer, listener, door, prepare
        self._free_slots = list(range(count))
        self._slots: dict[SpawnProcess, int] = {}
        self._deaths: list[float] = []
        self._refusals = 0
        self._is_stopping = False
        self._had_terminal = False

    def run(self, on_ready: Callable[[], None]) -> bool:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        if hasattr(signal, "SIGHUP"):
            self._had_terminal = os.isatty(2)
            signal.signal(signal.SIGHUP, self._hang_up)
        try:
            self._start_missing()
            on_ready()
            while not self._is_stopping and not self._is_hopeless():
                self._start_missing()
                multiprocessing.connection.wait([worker.sentinel for worker in self._slots], timeout=0.5)
                self._count_dead()
        finally:
            self._end_all()
        return self._is_stopping

    def _stop(self, *_: object) -> None:
        self._is_stopping = True

    def _hang_up(self, *_: object) -> None:
        if self._had_terminal and not os.isatty(2):
            self._is_stopping = True
            return
        for worker in self._slots:
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, signal.SIGHUP)

    def _is_hopeless(self) -> bool:
        recently = time.monotonic() - _RESTART_WINDOW
        self._deaths = [moment for moment in self._deaths if moment > recently]
        return len(self._deaths) > _MAX_RESTARTS or self._refusals >= _MAX_REFUSALS

    def _count_dead(self) -> None:
        for worker in [worker for worker in self._slots if not worker.is_alive()]:
            # Its successor goes on counting where it stopped.
            self._free_slots.append(self._slots.pop(worker))
            if not self._is_stopping:
                logger.warning("a worker ended with code %s", worker.exitcode)
                self._deaths.append(time.monotonic())
                self._refusals += worker.exitcode == _CANNOT_OPEN

    def _start_missing(self) -> None:
        while self._free_slots:
            slot = self._free_slots.pop(0)
            offer, listener, door, prepare = self._given
            worker = _SPAWN.Process(target=_work, args=(offer, listener, replace(door, slot=slot), prepare))
            # A terminal interrupts workers too, and one that is still starting would complain loudly.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with _hanging_up_later():
                worker.start()
            signal.signal(signal.SIGINT, self._stop)
            self._slots[worker] = slot

    def _end_all(self) -> None:
        """Stop the workers; each finishes what it was asked, and who comes now finds nobody."""
        _, listener, _, _ = self._given
        listener.close()
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
def _hanging_up_later() -> Generator[None]:
    """Hold SIGHUP back meanwhile, here and in what is started: it ends a worker that is not ready for it.

    The worker lets it through as soon as it knows what to do (`HttpServer.reloading`).
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(offer: Offer, listener: socket.socket, door: Door, prepare: Callable[[], None]) -> None:
    prepare()
    # The process that started this one has said what is not published, and what is not run.
    for said in (Skills, Scripts):
        logging.getLogger(said.__module__).setLevel(logging.ERROR)
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        run_http(partial(serve_http, offer, listener, door))
    except SkillError as error:
        logger.error("a worker cannot serve: %s", error)
        sys.exit(_CANNOT_OPEN)


def _follow_parent() -> None:
    """End this worker when the process that started it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
