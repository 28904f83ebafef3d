"""How much one archive may unpack to, and all archives of one server together."""

import sys
from dataclasses import dataclass
from threading import Lock

from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE
from skillwire.errors import LimitError

CHUNK = 16 * 1024
DEFAULT_BUDGET = 200 * 1024 * 1024

_MEMBERS_PER_FILE = 8
_OVERHEAD = 1024 * 1024
_OVERHEAD_PER_FILE = 4 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What one archive may hold at most.

    `max_files` counts regular files and links, `max_total_size` their bytes
    once unpacked, and `max_depth` the segments of a path. The two lengths are
    in bytes of UTF-8, because that is how file systems count.
    """

    max_files: int = MAX_FILES
    max_total_size: int = MAX_TOTAL_SIZE
    max_depth: int = 16
    max_path_length: int = 1024
    max_segment_length: int = 255

    @property
    def max_members(self) -> int:
        """How many headers an archive may have: directories and metadata count too."""
        return _MEMBERS_PER_FILE * self.max_files

    @property
    def max_stream_size(self) -> int:
        """How many bytes the archive itself may have, compressed or as a tar stream.

        Headers, padding and metadata need some room beside the files; this
        bounds them all, whatever an archive fills the room with.
        """
        return self.max_total_size + _OVERHEAD + _OVERHEAD_PER_FILE * self.max_files


DEFAULT_LIMITS = ArchiveLimits()


class UnpackBudget:
    """How much all archives of one server may unpack to, together (ARC-11).

    Bytes are spent as they are decompressed, so an archive that turns out to
    be hostile has spent them too. Once it is used up, nothing more of that
    server is unpacked. Threads may share a budget.
    """

    def __init__(self, total: int = DEFAULT_BUDGET) -> None:
        self._remaining = total
        self._lock = Lock()

    @property
    def remaining(self) -> int:
        return self._remaining

    def require(self, size: int) -> None:
        """Check that `size` bytes could still be spent.

        Raises:
            LimitError: Less than that remains.
        """
        if size > self._remaining:
            raise LimitError("the server's archives have unpacked to more than its budget allows")

    def spend(self, size: int) -> None:
        """Take `size` bytes off the budget.

        Raises:
            LimitError: Less than that remained. The budget is then used up.
        """
        with self._lock:
            left = self._remaining - size
            self._remaining = max(left, 0)
        if left < 0:
            raise LimitError("the server's archives have unpacked to more than its budget allows")


class Meter:
    """What unpacking one archive has cost so far, against its limits and the budget."""

    def __init__(self, limits: ArchiveLimits, budget: UnpackBudget | None = None) -> None:
        self.limits = limits
        self._budget = budget if budget is not None else UnpackBudget(sys.maxsize)
        self._members = 0
        self._files = 0
        self._file_bytes = 0
        self._stream_bytes = 0

    def count_member(self) -> None:
        """Note one more header of any kind, so that empty members come to an end too.

        Raises:
            LimitError: The archive has too many.
        """
        self._members += 1
        if self._members > self.limits.max_members:
            raise LimitError(f"the archive has more than {self.limits.max_members} members")

    def admit_file(self, size: int) -> None:
        """Note one more file of `size` bytes, before any of them is unpacked.

        Raises:
            LimitError: The archive has too many files, or they are too large.
        """
        self._files += 1
        if self._files > self.limits.max_files:
            raise LimitError(f"the archive has more than {self.limits.max_files} files")
        self._file_bytes += size
        if self._file_bytes > self.limits.max_total_size:
            raise LimitError(f"the archive unpacks to more than {self.limits.max_total_size} bytes")
        self._budget.require(size)

    def admit_copy(self, size: int) -> None:
        """Note a link that becomes a file of `size` bytes of its own.

        Raises:
            LimitError: The archive has too many files, or they are too large.
        """
        self.admit_file(size)
        self._budget.spend(size)

    def allowance(self) -> int:
        """Return how many bytes may be decompressed next.

        Never more than a chunk, and never less than one: that one byte tells
        a stream that is over its limit from one that ends exactly there.
        """
        left = min(self.limits.max_stream_size - self._stream_bytes, self._budget.remaining)
        return max(1, min(CHUNK, left))

    def spend(self, size: int) -> None:
        """Note `size` bytes that were just decompressed.

        Raises:
            LimitError: That was more than the archive or its server may have.
        """
        self._stream_bytes += size
        if self._stream_bytes > self.limits.max_stream_size:
            raise LimitError(f"the archive unpacks to more than {self.limits.max_stream_size} bytes")
        self._budget.spend(size)
