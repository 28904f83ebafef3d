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

SETTLE_SECONDS = 0.2
POLL_SECONDS = 2.0
RECHECK_SECONDS = 60.0
# Looking at everything again may take at most this part of the time.
_DUTY = 0.02

_STEP_MS = 50
_DEBOUNCE_MS = 200
_TIMEOUT_MS = 200

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
            try:
                await self._follow_events()
            except (OSError, ValueError) as error:
                logger.warning("changes cannot be watched (%s); looking every few seconds instead", error)
                self._watching = False
                await self._note([""])
                return
            except RuntimeError as error:  # Such as an event about a name that is not UTF-8.
                logger.warning("changes were missed (%s); looking at everything again", error)
                self._watching = False
                await self._note([""])
                await anyio.sleep(POLL_SECONDS)

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
            ignore_permission_denied=True,
        )
        with closing(batches):
            batch = await anyio.to_thread.run_sync(next, batches, None)
            self._watching = True
            await self._note([""])  # What happened before the watch was in place.
            while batch is not None:
                if batch:
                    await self._note(self._place(path) for _, path in batch)
                if (watchfiles.Change.deleted, str(self._root)) in batch:
                    return
                batch = await anyio.to_thread.run_sync(next, batches, None)

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
            with anyio.move_on_after(pause):
                await self._noticed.wait()
            if self._pending:
                await self._settle()
            else:
                pause = self._pause_after(await self._refresh(None))

    def _pause_after(self, seconds: float) -> float:
        return max(RECHECK_SECONDS if self._watching else POLL_SECONDS, seconds / _DUTY)

    async def _settle(self) -> None:
        now = time.monotonic()
        quiet = [place for place, noticed in self._pending.items() if now - noticed >= SETTLE_SECONDS]
        for place in quiet:
            del self._pending[place]
        if quiet:
            await self._refresh(quiet)
            if unsettled := self._source.unsettled:
                await self._note(unsettled)
        if self._pending:
            oldest = min(self._pending.values())
            await anyio.sleep(max(0.01, oldest + SETTLE_SECONDS - time.monotonic()))
        else:
            self._noticed = anyio.Event()

    async def _refresh(self, places: Iterable[str] | None) -> float:
        """Look again and return how long it took; trouble is reported and does not end the watch."""
        started = time.monotonic()
        try:
            await self._source.refresh(places)
        except SourceError as error:
            logger.warning("%s; serving what was found before", error)
        except Exception:
            logger.exception("unexpected failure while scanning")
        return time.monotonic() - started
