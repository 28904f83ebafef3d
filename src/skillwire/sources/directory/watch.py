"""Watching for changes: events from the operating system, and polling where there are none.

Events only determine what to rescan. A change is published once there were no
further events for a moment, so that a half-written skill is never published.
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

from skillwire.core import SourceError
from skillwire.sources.background import FailureLog
from skillwire.sources.snapshot import Snapshot

SETTLE_SECONDS = 0.2
POLL_SECONDS = 2.0
RECHECK_SECONDS = 60.0
# When the clock differs by more than this from the elapsed time, it was set, or the machine slept.
JUMP_SECONDS = 5.0
# The maximum share of time that full rescans may take.
_MAX_SCAN_SHARE = 0.02

_STEP_MS = 50
_DEBOUNCE_MS = 200
_TIMEOUT_MS = 200
# So many events at once, or a stall of this process of so many seconds, may have overflowed the operating
# system's event queue.
_MANY_EVENTS = 1024
_STALL_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Refreshable(Protocol):
    """A tree that can be rescanned, as a whole or in parts."""

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
        self._has_pending = anyio.Event()
        self._watching = False
        self._lost_events = False
        self._needs_full_scan = False
        self._revision = 0
        self._clock = _clock_offset()
        self._watch_failures = FailureLog(logger)
        self._scan_failures = FailureLog(logger)
        self._stopping = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled; where watching is impossible, poll."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            try:
                await self._refresh_changes()
            finally:
                self._stopping.set()  # The thread that waits for events cannot be cancelled.

    async def _watch(self) -> None:
        """Turn the operating system's events into pending places, as long as they are available."""
        while True:
            await self._root_present()
            pause = 0.0
            try:
                await self._follow_events()
            except (OSError, ValueError) as error:
                reason = str(error).partition(" about ")[0]
                line = f"cannot watch for changes ({reason}); polling every few seconds instead"
                self._watch_failures.failed(reason, line)
                pause = RECHECK_SECONDS
            except RuntimeError as error:  # Such as an event about a name that is not UTF-8.
                line = f"events were lost ({error}); rescanning everything"
                self._watch_failures.failed("missed", line)
                pause = POLL_SECONDS
            self._watching = False
            if pause:
                await self._add_pending([""])
                await anyio.sleep(pause)

    async def _follow_events(self) -> None:
        """Record events until the root itself is deleted or moved away.

        A thread waits for them, because registering the folders of a large
        tree would block the event loop for too long.
        """
        # Imported here because it loads asyncio, which would slow down `import skillwire`.
        import watchfiles

        batches = watchfiles.watch(
            self._root,
            watch_filter=None,
            step=_STEP_MS,
            debounce=_DEBOUNCE_MS,
            rust_timeout=_TIMEOUT_MS,
            yield_on_timeout=True,
            stop_event=self._stopping,
            # With True, one folder without permission would silently leave all after it unwatched.
            ignore_permission_denied=False,
        )
        with closing(batches):
            batch = await anyio.to_thread.run_sync(next, batches, None)
            self._watching, self._lost_events = True, False
            self._watch_failures.recovered("watching for changes again")
            await self._add_pending([""])  # Changes before the watch was established.
            waited = 0.0
            while batch is not None and not self._lost_events:
                if len(batch) >= _MANY_EVENTS or waited > _STALL_SECONDS:
                    await self._add_pending([""])
                elif batch:
                    await self._add_pending(self._place(path) for _, path in batch)
                if (watchfiles.Change.deleted, str(self._root)) in batch:
                    return
                waiting = time.monotonic()
                batch = await anyio.to_thread.run_sync(next, batches, None)
                waited = time.monotonic() - waiting

    async def _root_present(self) -> None:
        # There are no events for a folder that does not exist.
        while not await anyio.to_thread.run_sync(os.path.isdir, self._root):  # noqa: ASYNC110
            await anyio.sleep(POLL_SECONDS)

    def _place(self, path: str) -> str:
        relative = Path(path).relative_to(self._root).as_posix()
        return "" if relative == "." else relative

    async def _add_pending(self, places: Iterable[str]) -> None:
        if starts := await anyio.to_thread.run_sync(self._starts, places):
            self._pending |= dict.fromkeys(starts, time.monotonic())
            self._has_pending.set()

    def _starts(self, places: Iterable[str]) -> set[str]:
        """Turn places into folders to rescan; this accesses the disk, possibly for very many places."""
        starts = (self._source.start_for(place) if place else "" for place in places)
        return {start for start in starts if start is not None}

    async def _refresh_changes(self) -> None:
        """Rescan places that have stopped changing, and everything from time to time."""
        pause = POLL_SECONDS
        while True:
            with anyio.move_on_after(min(pause, POLL_SECONDS) if self._needs_full_scan else pause):
                await self._has_pending.wait()
            if self._pending:
                await self._refresh_settled()
            else:
                pause = await self._rescan()

    async def _rescan(self) -> float:
        """Rescan everything, and return how long to wait before the next time.

        A change without an event means that events are lost, as when a new
        folder could not be watched: then the watch is restarted. After failed
        scans it means nothing, since its event may have been handled already.
        """
        expects_events = self._watching and self._revision and not self._needs_full_scan
        before, started = self._revision, time.monotonic()
        await self._refresh(None)
        if expects_events and not self._pending and self._revision != before:
            self._lost_events = True
        seconds = time.monotonic() - started
        return max(RECHECK_SECONDS if self._watching else POLL_SECONDS, seconds / _MAX_SCAN_SHARE)

    async def _refresh_settled(self) -> None:
        now = time.monotonic()
        quiet = [place for place, noticed in self._pending.items() if now - noticed >= SETTLE_SECONDS]
        for place in quiet:
            del self._pending[place]
        if quiet:
            await self._refresh(None if self._needs_full_scan else quiet)
            if unsettled := self._source.unsettled:
                await self._add_pending(unsettled)
        if self._pending:
            oldest = min(self._pending.values())
            await anyio.sleep(max(0.01, oldest + SETTLE_SECONDS - time.monotonic()))
        else:
            self._has_pending = anyio.Event()

    async def _refresh(self, places: Iterable[str] | None) -> None:
        """Rescan; failures are logged, do not end the watch, and lead to a full rescan soon."""
        if self._clock_was_set():
            places = None
        try:
            self._revision = (await self._source.refresh(places)).revision
        except SourceError as error:
            self._needs_full_scan = True
            self._scan_failures.failed(str(error), f"{error}; serving the last state")
        except Exception as error:
            self._needs_full_scan = True
            self._scan_failures.failed(repr(error), "unexpected failure while scanning", is_bug=True)
        else:
            self._needs_full_scan = False
            self._scan_failures.recovered("the folder of skills can be read again")

    def _clock_was_set(self) -> bool:
        """Return whether the clock was set since the last scan, and log it."""
        now = _clock_offset()
        moved, self._clock = now - self._clock, now
        if abs(moved) <= JUMP_SECONDS:
            return False
        way = "forward" if moved > 0 else "back"
        logger.warning("the clock jumped %s by %.0f seconds; rescanning everything", way, abs(moved))
        return True


def _clock_offset() -> float:
    return time.time() - time.monotonic()
