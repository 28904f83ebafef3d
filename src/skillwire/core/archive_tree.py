"""The tree of files in an archive: which names it may hold, and what its links mean.

An archive's members are a stranger's claims. They become files only here,
where every name is a plain relative path, no two names are the same to any
file system, and a link is nothing but a second copy of a file in the tree.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from skillwire.core.archive_limits import ArchiveLimits, Meter
from skillwire.core.characters import quoted
from skillwire.core.paths import fold_path
from skillwire.core.uri import SKILL_FILE, check_segment
from skillwire.errors import InvalidArchiveError, InvalidUriError, LimitError

# A link to a link to a link is odd; more than this is an attack or a cycle.
MAX_LINK_HOPS = 8

_DRIVE = re.compile("[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class UnpackedFile:
    """One file of an archive: its path, its bytes, and whether it may be run.

    Nothing else of a member survives: no owner, no time, and of its mode no
    more than this one bit (ARC-10).
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
    """What an archive says about one member; `target` is for links only."""

    kind: MemberKind
    name: str
    content: bytes = b""
    executable: bool = False
    target: str = ""


def assemble(members: Iterable[Member], meter: Meter) -> tuple[UnpackedFile, ...]:
    """Make the files, sorted by path, of an archive's members.

    Raises:
        InvalidArchiveError: A name or a link is dangerous, two names are
            alike, or `SKILL.md` is not at the root.
        LimitError: A path is too long or too deep, or links multiply the
            files past the limits.
    """
    tree = _Tree(meter.limits)
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


class _Tree:
    """The members seen so far, each under a name no other member shares."""

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
        """Return the file that the link at `path` leads to, over other links if need be."""
        here = path
        for _ in range(MAX_LINK_HOPS):
            link = self.links[here]
            here = self._destination(here, link)
            if here in self.files:
                return self.files[here]
            if here not in self.links:
                kind = "a directory" if here in self._directories else "nothing in the archive"
                raise _bad_link(path, f"leads to {kind}")
            if link.kind is MemberKind.HARD_LINK and self.links[here].kind is MemberKind.SYMBOLIC_LINK:
                raise _bad_link(path, "is a hard link to a symbolic link")
        raise _bad_link(path, "leads in a circle, or through too many links")

    def _destination(self, path: str, link: Member) -> str:
        """Return the path that `link`, which lies at `path`, names.

        What is absolute or otherwise no plain path comes out as such, and
        leads nowhere: no file in this tree has such a path.
        """
        if len(link.target) > self._limits.max_path_length or _DRIVE.match(link.target):
            raise _bad_link(path, "does not name a relative path")
        if link.kind is MemberKind.HARD_LINK:
            return link.target
        kept = path.split("/")[:-1]
        for segment in link.target.split("/"):
            if segment == "..":
                # A file system walks through the directory before it turns back, so it has to exist.
                if "/".join(kept) not in self._directories:
                    raise _bad_link(path, "leads outside the archive, or through no directory of it")
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
