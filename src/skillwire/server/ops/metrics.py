"""`Meter`: the numbers of a server, in memory that all its workers share.

Each worker has a slot that it alone writes to, in one event loop, so nothing is
locked. Any of them can read all slots. A worker that dies leaves its counts,
and the one that takes its place goes on counting from there.
"""

import mmap
import os
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio

from skillwire.errors import SourceError
from skillwire.server.ops import series
from skillwire.server.ops.process import measured
from skillwire.server.ops.series import (
    BUCKETS,
    BUCKETS_AT,
    BYTES_AT,
    CLASS_NUMBERS,
    OUTCOME_NUMBERS,
    REQUESTS_AT,
    SUMS_AT,
    Gauge,
    Outcome,
)
from skillwire.server.protocol.limits import Ending

_SLOT_BYTES: Final = series.WORDS * 8
_BEAT_SECONDS = 5.0
_ALIVE_SECONDS = 4 * _BEAT_SECONDS
# Names of this module are found faster than those of another, and these are needed for every request.
_OUTCOMES = len(OUTCOME_NUMBERS)
_CELLS = len(BUCKETS) + 1
_PLACES = tuple(
    (REQUESTS_AT + method * _OUTCOMES, BUCKETS_AT + kind * _CELLS, SUMS_AT + kind)
    for method, kind in enumerate(CLASS_NUMBERS)
)


class Meter:
    """The slot of one worker, and a look at everybody's.

    Without `memory` the process counts for itself alone. What is being answered
    now is in `requests` and `streams`, and others see it after a `refresh`.
    """

    def __init__(self, memory: mmap.mmap | None = None, slot: int = 0) -> None:
        self._memory = memory if memory is not None else mmap.mmap(-1, _SLOT_BYTES)
        self.slots = len(self._memory) // _SLOT_BYTES
        self.slot = slot
        self.requests = 0
        self.streams = 0
        mine = memoryview(self._memory)[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES]
        self._counts = mine.cast("Q")
        self._numbers = mine.cast("d")
        for word in range(series.GAUGES_AT, series.WORDS):
            self._counts[word] = 0  # What a predecessor had open is closed.
        self._numbers[series.PROCESS_NUMBERS["started"]] = time.time()
        self._counts[series.PID_AT] = os.getpid()
        self.refresh({})

    @staticmethod
    @contextmanager
    def create(slots: int) -> Generator[Path]:
        """Make a file for `slots` workers, all counts zero; it is gone when the block ends.

        Raises:
            OSError: There is no place for temporary files.
        """
        descriptor, name = tempfile.mkstemp(prefix="skillwire-", suffix=".metrics")
        try:
            with os.fdopen(descriptor, "wb") as file:
                # Written, not only made long: on a full disk a hole in a file kills who maps it.
                file.write(bytes(slots * _SLOT_BYTES))
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    @classmethod
    def open(cls, path: Path, slot: int) -> "Meter":
        """Take a slot of a file that `create` made.

        Raises:
            SourceError: It is not such a file, or has no such slot.
            OSError: It cannot be opened.
        """
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0 or size % _SLOT_BYTES or not 0 <= slot < size // _SLOT_BYTES:
                raise SourceError(f"the file for metrics has {size} bytes and no slot {slot}")
            memory = mmap.mmap(file.fileno(), size)
        return cls(memory, slot)

    def count(self, method: int, outcome: Outcome, seconds: float, size: int) -> None:
        """Count a request; `method` is one of `METHOD_NUMBERS`."""
        counts = self._counts
        requests, buckets, sums = _PLACES[method]
        counts[requests + OUTCOME_NUMBERS[outcome]] += 1
        counts[buckets + bisect_left(BUCKETS, seconds)] += 1
        counts[BYTES_AT] += size
        self._numbers[sums] += seconds

    def reloaded(self, *, is_good: bool) -> None:
        """Count a time the configuration was read again."""
        self._counts[series.RELOADED_AT + (not is_good)] += 1

    def limited(self) -> None:
        """Count a request that was one too many."""
        self._counts[series.LIMITED_AT] += 1

    def unlogged(self, lines: int) -> None:
        """Count lines of the access log that were dropped."""
        self._counts[series.UNLOGGED_AT] += lines

    def ended(self, ending: Ending) -> None:
        """Count a connection that had to be ended."""
        self._counts[series.ENDED_AT + series.ENDING_NUMBERS[ending]] += 1

    def set(self, gauge: Gauge, value: float) -> None:
        """Say how much there is of something now."""
        self._numbers[series.GAUGE_NUMBERS[gauge]] = value

    def refresh(self, gauges: Mapping[Gauge, float]) -> None:
        """Show that this worker is alive, and how it does now."""
        for gauge, value in gauges.items():
            self.set(gauge, value)
        self.set("requests", self.requests)
        self.set("streams", self.streams)
        for name, value in measured().items():
            self._numbers[series.PROCESS_NUMBERS[name]] = value
        self._numbers[series.BEAT_AT] = time.monotonic()

    async def keep_fresh(self, read: Callable[[], Mapping[Gauge, float]]) -> None:
        """Refresh again and again, so that other workers can tell how this one does; never returns."""
        while True:
            self.refresh(read())
            await anyio.sleep(_BEAT_SECONDS)

    def leave(self) -> None:
        """Say that this worker is no more; its counts stay."""
        self._counts[series.PID_AT] = 0

    def rows(self) -> list["Row"]:
        """Return a copy of every slot."""
        whole = bytes(self._memory[: self.slots * _SLOT_BYTES])
        return [Row(whole[at : at + _SLOT_BYTES]) for at in range(0, len(whole), _SLOT_BYTES)]


class Row:
    """What a slot held at one moment: whole numbers in `counts`, others in `numbers`."""

    def __init__(self, words: bytes) -> None:
        self.counts = memoryview(words).cast("Q")
        self.numbers = memoryview(words).cast("d")

    @property
    def is_taken(self) -> bool:
        """Whether a worker has the slot, alive or not."""
        return self.counts[series.PID_AT] != 0

    @property
    def is_alive(self) -> bool:
        """Whether the worker has shown itself lately."""
        return self.is_taken and time.monotonic() - self.numbers[series.BEAT_AT] < _ALIVE_SECONDS
