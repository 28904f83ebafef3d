"""Tasks that run during an `async with` block, and end with it; logs of what they repeat."""

import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio


@asynccontextmanager
async def run_in_background(*tasks: Callable[[], Coroutine[Any, Any, object]]) -> AsyncGenerator[None]:
    """Run `tasks` while the block lasts, and cancel them when it ends.

    An exception of the block is raised unchanged: a task group alone would
    wrap it in a group, which callers of a source do not expect.
    """
    caught: BaseException | None = None
    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(task)
        try:
            yield
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            caught = error
        finally:
            group.cancel_scope.cancel()
    if caught is not None:
        raise caught


@asynccontextmanager
async def open_all(managers: Sequence[AbstractAsyncContextManager[Any]]) -> AsyncGenerator[None]:
    """Enter all `managers` concurrently, run the block once all are open, then exit them.

    Each is entered and exited by a task of its own, as task groups inside them
    require. If one fails to open the others are cancelled, those already open
    are closed, and its exception is raised unchanged.
    """
    closing = anyio.Event()
    failures: list[Exception] = []
    caught: BaseException | None = None

    async def hold(manager: AbstractAsyncContextManager[Any], opened: anyio.Event) -> None:
        try:
            async with manager:
                opened.set()
                await closing.wait()
        except Exception as error:
            failures.append(error)
            if not closing.is_set():
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        waiting = [anyio.Event() for _ in managers]
        for manager, opened in zip(managers, waiting, strict=True):
            group.start_soon(hold, manager, opened)
        for opened in waiting:
            await opened.wait()
        try:
            yield
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            caught = error
        finally:
            closing.set()
    if caught is not None:
        raise caught
    if failures:
        raise failures[0]


# `LogFilter` and `FailureLog`: what happens repeatedly is not logged every time.


_MAX_KEYS = 10_000


class LogFilter:
    """Admits a message, identified by a key, once in a number of seconds; by default only once."""

    def __init__(self, seconds: float = math.inf, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._logged_at: dict[Hashable, float] = {}

    def admits(self, *key: Hashable) -> bool:
        """Return whether a message is to be logged now, and note that it is."""
        now = self._clock()
        before = self._logged_at.get(key)
        if before is not None and now - before < self._seconds:
            return False
        if len(self._logged_at) >= _MAX_KEYS:
            self._logged_at.clear()
        self._logged_at[key] = now
        return True


# The same failure within this time is not logged again.
QUIET_SECONDS = 60.0


class FailureLog:
    """The log of one operation that may fail repeatedly.

    `kind` identifies a failure: the same kind counts as the same failure even
    if the text differs.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kind = ""
        self._is_failing = False
        self._logged_at = 0.0

    def failed(self, kind: str, line: str, *, is_bug: bool = False) -> None:
        """Log `line` as a warning, unless the same failure is ongoing or was logged recently.

        With `is_bug` it is logged as an error, with the exception being handled.
        """
        now = time.monotonic()
        is_known = kind == self._kind and (self._is_failing or now - self._logged_at < QUIET_SECONDS)
        self._kind, self._is_failing = kind, True
        if not is_known:
            self._logged_at = now
            self._logger.log(logging.ERROR if is_bug else logging.WARNING, "%s", line, exc_info=is_bug)

    def recovered(self, line: str) -> None:
        """Log `line` if the operation was failing."""
        if self._is_failing:
            self._is_failing = False
            self._logger.info("%s", line)
