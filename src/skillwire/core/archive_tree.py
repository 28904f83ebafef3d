"""The tree of files in an archive: which names it may hold, and what its links mean.

An archive's members are untrusted. They become files only here, where every
name is checked to be a plain relative path, no two names are the same to any
file system, and a link becomes a copy of a file in the tree.
"""

import re
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from threading import Lock

from skillwire.core.characters import quoted
from skillwire.core.errors import InvalidArchiveError, InvalidUriError, LimitError
from skillwire.core.finding import SKILL_FILE
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE
from skillwire.core.uri import check_segment, fold_path

# Limits for unpacking one archive, and all archives of one server together.


CHUNK = 16 * 1024
DEFAULT_BUDGET = 200 * 1024 * 1024

_MEMBERS_PER_FILE = 8
_OVERHEAD = 1024 * 1024
_OVERHEAD_PER_FILE = 4 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """The limits of one archive.

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
        """The maximum number of headers: directories and metadata count too."""
        return _MEMBERS_PER_FILE * self.max_files

    @property
    def max_stream_size(self) -> int:
        """The maximum size of the archive itself, compressed or as a tar stream.

        It includes an allowance for headers, padding and metadata.
        """
        return self.max_total_size + _OVERHEAD + _OVERHEAD_PER_FILE * self.max_files


DEFAULT_LIMITS = ArchiveLimits()


class UnpackBudget:
    """The number of bytes that all archives of one server may unpack to, together (ARC-11).

    Bytes are counted as they are decompressed, including those of archives
    that are refused later. Once the budget is used up, no more archives of
    that server are unpacked. Threads may share a budget.
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
        """Subtract `size` bytes from the budget.

        Raises:
            LimitError: Less than that remained. The budget is then used up.
        """
        with self._lock:
            left = self._remaining - size
            self._remaining = max(left, 0)
        if left < 0:
            raise LimitError("the server's archives have unpacked to more than its budget allows")


class ExpansionMeter:
    """Counts what one archive has unpacked to so far, against its limits and the budget."""

    def __init__(self, limits: ArchiveLimits, budget: UnpackBudget | None = None) -> None:
        self.limits = limits
        self._budget = budget if budget is not None else UnpackBudget(sys.maxsize)
        self._members = 0
        self._files = 0
        self._file_bytes = 0
        self._stream_bytes = 0

    def count_member(self) -> None:
        """Count one more header of any kind, so that empty members are limited too.

        Raises:
            LimitError: The archive has too many.
        """
        self._members += 1
        if self._members > self.limits.max_members:
            raise LimitError(f"the archive has more than {self.limits.max_members} members")

    def admit_file(self, size: int) -> None:
        """Count one more file of `size` bytes, before any of them is unpacked.

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
        """Count a link that becomes a file of `size` bytes of its own.

        Raises:
            LimitError: The archive has too many files, or they are too large.
        """
        self.admit_file(size)
        self._budget.spend(size)

    def allowance(self) -> int:
        """Return how many bytes may be decompressed next.

        At most a chunk, and at least one byte: that byte distinguishes a
        stream that exceeds its limit from one that ends exactly there.
        """
        left = min(self.limits.max_stream_size - self._stream_bytes, self._budget.remaining)
        return max(1, min(CHUNK, left))

    def spend(self, size: int) -> None:
        """Count `size` bytes that were just decompressed.

        Raises:
            LimitError: That was more than the archive or its server may have.
        """
        self._stream_bytes += size
        if self._stream_bytes > self.limits.max_stream_size:
            raise LimitError(f"the archive unpacks to more than {self.limits.max_stream_size} bytes")
        self._budget.spend(size)


# Chains of links are rare; a longer one is an attack or a cycle.
MAX_LINK_HOPS = 8

_DRIVE = re.compile("[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class UnpackedFile:
    """One file of an archive: its path, its bytes, and whether it is executable.

    Nothing else of a member is kept: no owner, no time, and of its mode only
    this one bit (ARC-10).
    """

    path: str
    content: bytes
    executable: bool = False


class MemberKind(Enum):
    FILE = auto()
    DIRECTORY = auto()
    SYMBOLIC_LINK = auto()
    HARD_LINK = auto()


@dataclass(frozen=True, slots=True)
class Member:
    """One member as the archive describes it; `target` is for links only."""

    kind: MemberKind
    name: str
    content: bytes = b""
    executable: bool = False
    target: str = ""


def assemble(members: Iterable[Member], meter: ExpansionMeter) -> tuple[UnpackedFile, ...]:
    """Build the files, sorted by path, from an archive's members.

    Raises:
        InvalidArchiveError: A name or a link is dangerous, two names are
            the same, or `SKILL.md` is not at the root.
        LimitError: A path is too long or too deep, or links multiply the
            files past the limits.
    """
    tree = _ArchiveTree(meter.limits)
    for member in members:
        tree.add(member)
    files = [*tree.files.values()]
    for path in tree.links:
        file = tree.follow(path)
        meter.admit_copy(len(file.content))
        files.append(UnpackedFile(path, file.content, file.executable))
    files.sort(key=lambda file: file.path)
    _require_skill_file([file.path for file in files])
    return tuple(files)


class _ArchiveTree:
    """The members read so far, each under a unique name."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self.files: dict[str, UnpackedFile] = {}
        self.links: dict[str, Member] = {}
        self._limits = limits
        self._directories: set[str] = set()
        self._spellings: dict[str, str] = {}

    def add(self, member: Member) -> None:
        path = member.name
        if member.kind is MemberKind.DIRECTORY and path == ".":
            return
        self._check_path(path)
        self._add_directories(path)
        if member.kind is MemberKind.DIRECTORY:
            self._add_directory(path)
            return
        self._claim(path)
        if member.kind is MemberKind.FILE:
            self.files[path] = UnpackedFile(path, member.content, member.executable)
        else:
            self.links[path] = member

    def follow(self, path: str) -> UnpackedFile:
        """Return the file that the link at `path` points to, through other links if necessary."""
        here = path
        for _ in range(MAX_LINK_HOPS):
            link = self.links[here]
            here = self._destination(here, link)
            if here in self.files:
                return self.files[here]
            if here not in self.links:
                kind = "a directory" if here in self._directories else "nothing in the archive"
                raise _bad_link(path, f"points to {kind}")
            if link.kind is MemberKind.HARD_LINK and self.links[here].kind is MemberKind.SYMBOLIC_LINK:
                raise _bad_link(path, "is a hard link to a symbolic link")
        raise _bad_link(path, "is part of a cycle, or of a chain of too many links")

    def _destination(self, path: str, link: Member) -> str:
        """Return the target path of `link`, which is at `path`.

        A target that is absolute, or otherwise not a plain path, is returned
        as it is; no file in this tree has such a path.
        """
        if len(link.target) > self._limits.max_path_length or _DRIVE.match(link.target):
            raise _bad_link(path, "does not name a relative path")
        if link.kind is MemberKind.HARD_LINK:
            return link.target
        kept = path.split("/")[:-1]
        for segment in link.target.split("/"):
            if segment == "..":
                # A file system resolves the directory before `..`, so it has to exist.
                if "/".join(kept) not in self._directories:
                    raise _bad_link(path, "points outside the archive, or through a missing directory")
                kept.pop()
            elif segment != ".":
                kept.append(segment)
        return "/".join(kept)

    def _check_path(self, path: str) -> None:
        if len(path.encode("utf-8", "surrogatepass")) > self._limits.max_path_length:
            raise LimitError(f"the name {quoted(path)} is longer than {self._limits.max_path_length} bytes")
        segments = path.split("/")
        if len(segments) > self._limits.max_depth:
            raise LimitError(f"the path {quoted(path)} is deeper than {self._limits.max_depth} levels")
        if _DRIVE.match(path):
            raise InvalidArchiveError(f"the name {quoted(path)} starts with a drive")
        for segment in segments:
            try:
                check_segment(segment)
            except InvalidUriError as error:
                raise InvalidArchiveError(f"the name {quoted(path)} is not a plain relative path") from error
            if len(segment.encode()) > self._limits.max_segment_length:
                raise LimitError(
                    f"the name {quoted(segment)} is longer than {self._limits.max_segment_length} bytes"
                )

    def _add_directories(self, path: str) -> None:
        """Add the directories that a member at `path` implies."""
        slash = path.find("/")
        while slash >= 0:
            self._add_directory(path[:slash])
            slash = path.find("/", slash + 1)

    def _add_directory(self, path: str) -> None:
        if path not in self._directories:
            self._claim(path)
            self._directories.add(path)

    def _claim(self, path: str) -> None:
        key = fold_path(path)
        if key in self._spellings:
            other = quoted(self._spellings[key])
            message = f"the names {other} and {quoted(path)} are the same to some file systems"
            raise InvalidArchiveError(message, requirement="ARC-09")
        self._spellings[key] = path


def _require_skill_file(paths: list[str]) -> None:
    if SKILL_FILE in paths:
        return
    tops = {path.partition("/")[0] for path in paths}
    if len(tops) == 1 and f"{(top := tops.pop())}/{SKILL_FILE}" in paths:
        hint = f": pack the files in the directory {quoted(top)}, not the directory itself"
    else:
        hint = ""
    raise InvalidArchiveError(f"{SKILL_FILE} is not at the root of the archive{hint}", requirement="ARC-03")


def _bad_link(path: str, problem: str) -> InvalidArchiveError:
    return InvalidArchiveError(f"the link {quoted(path)} {problem}", requirement="ARC-07")


# Decompression in limited steps, which protects against decompression bombs.


# bgzip writes a member per 64 KiB; a thousand of them is far more than any skill needs.
MAX_GZIP_MEMBERS = 1024

_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


class Inflater:
    """A deflate or gzip stream in memory, read forwards within the limits of an `ExpansionMeter`.

    Gzip members may follow each other, and zeros may follow the last one;
    anything else after it is refused. Each step decompresses no more bytes
    than the meter allows, so the memory used never depends on what the stream
    claims.
    """

    def __init__(self, data: memoryview, meter: ExpansionMeter, *, gzip: bool) -> None:
        self._data = data
        self._meter = meter
        self._wbits = _GZIP if gzip else _RAW
        self._position = 0
        self._pending: bytes | memoryview = b""
        self._members = 1
        self._stream = zlib.decompressobj(self._wbits)

    @property
    def exhausted(self) -> bool:
        """Whether every byte of the data was part of the stream."""
        return not self._pending and self._position >= len(self._data)

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer only when the stream has ended.

        Raises:
            InvalidArchiveError: The stream is damaged or stops too early.
            LimitError: The meter allows no more.
        """
        pieces: list[bytes] = []
        while size > 0 and (piece := self._next(min(size, self._meter.allowance()))):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _next(self, most: int) -> bytes:
        """Return between one and `most` bytes, or none at the end of the stream."""
        while not self._stream.eof or self._next_member():
            if not self._pending:
                self._refill()
            starved = not self._pending
            try:
                piece = self._stream.decompress(self._pending, most)
            except zlib.error as error:
                raise InvalidArchiveError("the compressed data is damaged", requirement="ARC-15") from error
            self._pending = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if piece:
                self._meter.spend(len(piece))
                return piece
            if starved and not self._stream.eof:
                raise InvalidArchiveError("the compressed data stops too early", requirement="ARC-15")
        return b""

    def _next_member(self) -> bool:
        """Move to the next gzip member, past any zeros; False when there is none."""
        if self._wbits == _RAW:
            return False
        self._pending = bytes(self._pending).lstrip(b"\0")
        while not self._pending:
            if self.exhausted:
                return False
            self._refill()
            self._pending = bytes(self._pending).lstrip(b"\0")
        self._members += 1
        if self._members > MAX_GZIP_MEMBERS:
            raise LimitError(f"the archive has more than {MAX_GZIP_MEMBERS} gzip members")
        self._stream = zlib.decompressobj(self._wbits)
        return True

    def _refill(self) -> None:
        self._pending = self._data[self._position : self._position + CHUNK]
        self._position += CHUNK
