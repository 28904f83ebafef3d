"""Single flight: identical calls at one time share one request and its outcome."""

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar, cast

import anyio
import anyio.abc

from skillwire.errors import SkillError
from skillwire.host.failures import UnavailableError

T = TypeVar("T")


class Flights:
    """The calls under way, by what they ask for.

    Each runs in a task of its own, so a caller who gives up takes nothing from
    the others; when the last one gives up, the call is cancelled.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight] = {}

    async def share(self, tasks: anyio.abc.TaskGroup, key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
        """Wait for the call with this key, which begins now unless it is under way.

        Raises:
            SkillError: Whatever `call` raises, and to everyone who waits for it.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight()
            tasks.start_soon(self._fly, key, flight, call)
        flight.waiting += 1
        try:
            await flight.landed.wait()
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.landed.is_set():
                self._forget(key, flight)
                flight.scope.cancel()
        if flight.failure is not None:
            # One exception for everyone: none of them should see where the others were.
            raise flight.failure.with_traceback(None)
        return cast(T, flight.value)

    async def _fly(self, key: Hashable, flight: "_Flight", call: Callable[[], Awaitable[Any]]) -> None:
        try:
            with flight.scope:
                flight.value = await call()
                flight.failure = None
        except SkillError as error:
            flight.failure = error
        finally:
            self._forget(key, flight)
            flight.landed.set()

    def _forget(self, key: Hashable, flight: "_Flight") -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


class _Flight:
    """One call, whoever waits for it, and what came of it."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.landed = anyio.Event()
        self.waiting = 0
        self.value: object = None
        # What a call that is cancelled from outside comes to, for whoever still waits.
        self.failure: SkillError | None = UnavailableError("the connection was closed")
