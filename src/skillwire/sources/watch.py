"""Noticing changes: events from the operating system, and looking again where there are none.

Events only say where to look. What is found there is taken when it has been
quiet for a moment, so that a half-written skill is never published.
"""

import logging
import os.path
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Protocol

import anyio

from skillwire.errors import SourceError
from skillwire.sources.snapshot import Snapshot
from skillwire.sources.trouble import Trouble

SETTLE_SECONDS = 0.2
POLL_SECONDS = 2.0
RECHECK_SECONDS = 60.0
# A clock that differs by more than this from what went by was set, or the machine slept.
JUMP_SECONDS = 5.0
# Looking at everything again may take at most this part of the time.
_DUTY = 0.02

_STEP_MS = 50
_DEBOUNCE_MS = 200
_TIMEOUT_MS = 200
# So many events at once may be all that the operating system's queue could hold, and so may be what came
# while this process stood still for so long.
_MANY_EVENTS = 1024
_STALL_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Refreshable(Protocol):
    """What is kept up to date: a tree that can be looked at again, whole or in parts."""

    @property
    def unsettled(self) -> frozenset[str]: ...

    def start_for(self, place: str) -> str | None: ...

    async def refresh(self, places: Iterable[str] | None = None) -> Snapshot: ...


class TreeWatcher:
    """Keeps a source up to date while its task runs. Constructing it starts nothing."""

    def __init__(self, root: str, source: Refreshable) -> None:
        self._root = Path(root)
        self._source = source
        self._pending: dict[str, float] = {}
        self._noticed = anyio.Event()
        self._watching = False
        self._is_deaf = False
        self._is_behind = False
        self._revision = 0
        self._clock = _clock_offset()
        self._deafness = Trouble(logger)
        self._blindness = Trouble(logger)
        self._stopping = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled; where watching is impossible, look again from time to time."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._listen)
            try:
                await self._keep_up()
            finally:
                self._stopping.set()  # The thread that waits for events cannot be cancelled, only told.

    async def _listen(self) -> None:
        """Turn the operating system's events into pending places, as long as they can be had."""
        while True:
            await self._root_present()
            pause = 0.0
            try:
                await self._follow_events()
            except (OSError, ValueError) as error:
                reason = str(error).partition(" about ")[0]
                line = f"changes cannot be watched ({reason}); looking every few seconds instead"
                self._deafness.begin(reason, line)
                pause = RECHECK_SECONDS
            except RuntimeError as error:  # Such as an event about a name that is not UTF-8.
                line = f"changes were missed ({error}); looking at everything again"
                self._deafness.begin("missed", line)
                pause = POLL_SECONDS
            self._watching = False
            if pause:
                await self._note([""])
                await anyio.sleep(pause)

    async def _follow_events(self) -> None:
        """Note events until the root itself is deleted or moved away.

        A thread waits for them, because registering the folders of a large
        tree takes longer than an event loop should stand still.
        """
        # Imported here because it loads asyncio's machinery, which `import skillwire` must not pay for.
        import watchfiles

        batches = watchfiles.watch(
            self._root,
            watch_filter=None,
            step=_STEP_MS,
            debounce=_DEBOUNCE_MS,
            rust_timeout=_TIMEOUT_MS,
            yield_on_timeout=True,
            stop_event=self._stopping,
            # With True, one folder that may not be watched would leave all after it unwatched, in silence.
            ignore_permission_denied=False,
        )
        with closing(batches):
            batch = await anyio.to_thread.run_sync(next, batches, None)
            self._watching, self._is_deaf = True, False
            self._deafness.end("changes are watched again")
            await self._note([""])  # What happened before the watch was in place.
            waited = 0.0
            while batch is not None and not self._is_deaf:
                if len(batch) >= _MANY_EVENTS or waited > _STALL_SECONDS:
                    await self._note([""])
                elif batch:
                    await self._note(self._place(path) for _, path in batch)
                if (watchfiles.Change.deleted, str(self._root)) in batch:
                    return
                waiting = time.monotonic()
                batch = await anyio.to_thread.run_sync(next, batches, None)
                waited = time.monotonic() - waiting

    async def _root_present(self) -> None:
        # Nothing announces a folder that is not there.
        while not await anyio.to_thread.run_sync(os.path.isdir, self._root):  # noqa: ASYNC110
            await anyio.sleep(POLL_SECONDS)

    def _place(self, path: str) -> str:
        relative = Path(path).relative_to(self._root).as_posix()
        return "" if relative == "." else relative

    async def _note(self, places: Iterable[str]) -> None:
        if starts := await anyio.to_thread.run_sync(self._starts, places):
            self._pending |= dict.fromkeys(starts, time.monotonic())
            self._noticed.set()

    def _starts(self, places: Iterable[str]) -> set[str]:
        """Turn places into folders to look at; this looks at the disk, and places may be very many."""
        starts = (self._source.start_for(place) if place else "" for place in places)
        return {start for start in starts if start is not None}

    async def _keep_up(self) -> None:
        """Look at places that have become quiet, and at everything once in a while."""
        pause = POLL_SECONDS
        while True:
            with anyio.move_on_after(min(pause, POLL_SECONDS) if self._is_behind else pause):
                await self._noticed.wait()
            if self._pending:
                await self._settle()
            else:
                pause = await self._look_around()

    async def _look_around(self) -> float:
        """Look at everything, and return how long to wait before the next time.

        A change that no event had told of means that events are lost, as when
        a new folder could not be watched: then the watch is set up anew. After
        looks that failed it means nothing, since events may have told of it.
        """
        would_hear = self._watching and self._revision and not self._is_behind
        before, started = self._revision, time.monotonic()
        await self._refresh(None)
        if would_hear and not self._pending and self._revision != before:
            self._is_deaf = True
        seconds = time.monotonic() - started
        return max(RECHECK_SECONDS if self._watching else POLL_SECONDS, seconds / _DUTY)

    async def _settle(self) -> None:
        now = time.monotonic()
        quiet = [place for place, noticed in self._pending.items() if now - noticed >= SETTLE_SECONDS]
        for place in quiet:
            del self._pending[place]
        if quiet:
            await self._refresh(None if self._is_behind else quiet)
            if unsettled := self._source.unsettled:
                await self._note(unsettled)
        if self._pending:
            oldest = min(self._pending.values())
            await anyio.sleep(max(0.01, oldest + SETTLE_SECONDS - time.monotonic()))
        else:
            self._noticed = anyio.Event()

    async def _refresh(self, places: Iterable[str] | None) -> None:
        """Look again; trouble is reported, does not end the watch, and has everything looked at soon."""
        if self._clock_was_set():
            places = None
        try:
            self._revision = (await self._source.refresh(places)).revision
        except SourceError as error:
            self._is_behind = True
            self._blindness.begin(str(error), f"{error}; serving what was found before")
        except Exception as error:
            self._is_behind = True
            self._blindness.begin(repr(error), "unexpected failure while scanning", is_bug=True)
        else:
            self._is_behind = False
            self._blindness.end("the folder of skills can be read again")

    def _clock_was_set(self) -> bool:
        """Tell whether times of files mean something else than at the last look; if so, that is logged."""
        now = _clock_offset()
        moved, self._clock = now - self._clock, now
        if abs(moved) <= JUMP_SECONDS:
            return False
        way = "forward" if moved > 0 else "back"
        logger.warning("the clock jumped %s by %.0f seconds; looking at everything again", way, abs(moved))
        return True


def _clock_offset() -> float:
    return time.time() - time.monotonic()
