"""What a server takes of the machine, seen from outside, over time."""

import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at all processes of a server: bytes in memory, open descriptors, threads."""

    at: float
    rss: int
    descriptors: int
    threads: int


def can_look() -> bool:
    return sys.platform == "linux"


def family_of(pid: int) -> list[int]:
    """Return a process and all that it started, and they."""
    found = [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text("ascii").split():
                found += family_of(int(child))
    return found


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that a process and what it started have used."""
    total = 0.0
    for member in family_of(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def look_at(pid: int) -> Sample:
    rss = descriptors = threads = 0
    for member in family_of(pid):
        with suppress(OSError):  # It may end meanwhile.
            pages = int(Path(f"/proc/{member}/statm").read_text("ascii").split()[1])
            rss += pages * os.sysconf("SC_PAGE_SIZE")
            descriptors += sum(1 for _ in Path(f"/proc/{member}/fd").iterdir())
            threads += sum(1 for _ in Path(f"/proc/{member}/task").iterdir())
    return Sample(time.monotonic(), rss, descriptors, threads)


class Vitals:
    """Looks at a server every now and then while it is open."""

    def __init__(self, pid: int, every: float) -> None:
        self.samples: list[Sample] = []
        self._pid = pid
        self._every = every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Vitals":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stopping.wait(self._every):
            self.samples.append(look_at(self._pid))

    def third(self, number: int) -> list[Sample]:
        size = max(1, len(self.samples) // 3)
        return self.samples[number * size : (number + 1) * size if number < 2 else None]

    def peak_rss(self, third: int) -> int:
        return max(sample.rss for sample in self.third(third))

    def growth(self) -> float:
        """Return by which part the memory of the last third exceeds that of the middle third."""
        return self.peak_rss(2) / self.peak_rss(1) - 1
