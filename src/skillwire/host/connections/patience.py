"""Deadlines that stand still while a person is asked."""

import math
from collections.abc import Generator
from contextlib import contextmanager

import anyio


class Patience:
    """The clocks that run on a server's answers, and how they are stopped.

    A server has a few seconds to answer; a person who signs in has minutes,
    and none of that time is the server's.
    """

    def __init__(self) -> None:
        self._running: set[anyio.CancelScope] = set()
        self._person_until = -math.inf

    @contextmanager
    def clock(self, seconds: float) -> Generator[anyio.CancelScope]:
        """Give the block `seconds`; `cancelled_caught` of the scope tells whether they ran out."""
        extra = max(0.0, self._person_until - anyio.current_time())
        with anyio.move_on_after(seconds + extra) as scope:
            self._running.add(scope)
            try:
                yield scope
            finally:
                self._running.discard(scope)

    @contextmanager
    def person(self, seconds: float) -> Generator[None]:
        """Give a person `seconds`, and stop every clock meanwhile."""
        self._shift(seconds)
        self._person_until = anyio.current_time() + seconds
        try:
            yield
        finally:
            unused = self._person_until - anyio.current_time()
            self._person_until = -math.inf
            self._shift(-max(0.0, unused))

    def _shift(self, seconds: float) -> None:
        for scope in self._running:
            scope.deadline += seconds
