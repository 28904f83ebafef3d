"""Walking a tree of folders to find skills.

The walk lists and stats; it opens no file. What it returns for a skill is a
*stamp*: the path, size, times and inode of every file, in columns and sorted,
so that "has anything changed?" is one comparison of two tuples.
"""

import errno
import os
import stat
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from types import TracebackType
from typing import NamedTuple, TypeAlias

from skillwire.core import SKILL_FILE, Finding, SourceError

FileStat: TypeAlias = tuple[str, int, int, int, int]
"""The path of a file, its size, mtime_ns, ctime_ns and inode."""

MAX_DEPTH = 64
# Never entered outside of a skill.
SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})

TOO_DEEP = f"the folder is more than {MAX_DEPTH} levels deep and is not scanned"
LINKED_FOLDER = "the folder is a link and is not followed"
SPECIAL_FILE = "this is a device, FIFO or socket, not a file"
REPLACE_LINK = "replace it by a copy of what it points to"

# Errors caused by the state of this process or machine, not by the folder.
_TRANSIENT_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_64_BITS = 2**64 - 1
_TYPE, _REGULAR = 0o170000, stat.S_IFREG


class Stamp(NamedTuple):
    """The paths and sizes of files, sorted by path, and their times and inodes.

    A catalog holds many stamps and compares them whole, so `rest` is packed:
    mtime_ns, ctime_ns and inode of each file, with 64 bits each.
    """

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    rest: bytes

    def numbers(self) -> Sequence[int]:
        """Return mtime_ns, ctime_ns and inode of the first file, then of the second, and so on."""
        return array("q", self.rest)


class FoundSkill:
    """A folder with a `SKILL.md`, as the walk found it.

    `directory` is relative to the root of the walk, and empty for the root
    itself. `links` maps the path of each link inside the skill to its target
    file, also inside it. `problems` prevent the skill from being published.
    """

    __slots__ = ("directory", "files", "links", "problems")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.files: list[FileStat] = []
        self.links: dict[str, str] = {}
        self.problems: list[Finding] = []

    def stamp(self) -> Stamp:
        self.files.sort()
        numbers = [number & _64_BITS for file in self.files for number in file[2:]]
        paths, sizes = tuple([file[0] for file in self.files]), tuple([file[1] for file in self.files])
        return Stamp(paths, sizes, array("Q", numbers).tobytes())

    def problem(self, code: str, path: str, message: str, fix: str) -> None:
        self.problems.append(Finding(code, message, file=path, fix=fix))


Pending: TypeAlias = list[tuple[str, tuple[FoundSkill, ...]]]
"""Folders still to be entered, each with the skills that enclose it."""


@dataclass(slots=True)
class Walk:
    """One pass over a tree: every skill found, and findings about other folders.

    With `follow_links`, folders that are links are entered, each real folder
    once. `loose` holds findings by folder, for folders outside every skill.
    `empty` are the folders inside skills with nothing in them that could be
    published; a folder that contains only such folders is not among them.
    """

    root: str
    follow_links: bool = False
    skills: list[FoundSkill] = field(default_factory=list[FoundSkill])
    loose: list[tuple[str, Finding]] = field(default_factory=list[tuple[str, Finding]])
    empty: list[str] = field(default_factory=list[str])
    directories: int = 0
    _entered: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    _links: list[str] = field(default_factory=list[str])

    def run(self, start: str = "") -> "Walk":
        """Walk the subtree at `start`, which must not be inside a skill.

        Raises:
            SourceError: This process currently cannot read folders.
        """
        for _ in self.steps(start):
            pass
        return self

    def finished(self, start: str = "") -> Iterator[FoundSkill]:
        """Walk as `run` does, and yield each skill once all of its files are known.

        Yielded skills are not kept, so a large tree is never in memory as a whole.
        """
        pending: Pending = [(start, ())]
        while pending or self._links:
            directory, enclosing = self._next(pending)
            if not enclosing:  # The walk is depth-first, so all skills found so far are complete.
                while self.skills:
                    yield self.skills.pop()
            self._enter(directory, enclosing, pending)
        while self.skills:
            yield self.skills.pop()

    def steps(self, start: str = "") -> Iterator[int]:
        """Walk as `run` does, yielding the number of folders seen so far after each."""
        pending: Pending = [(start, ())]
        while pending or self._links:
            self._enter(*self._next(pending), pending)
            yield self.directories

    def _next(self, pending: "Pending") -> tuple[str, tuple[FoundSkill, ...]]:
        # Links come last and by name, so that a folder is found at its own path rather than through a link.
        return pending.pop() if pending else (self._next_link(), ())

    def _next_link(self) -> str:
        self._links.sort(reverse=True)
        return self._links.pop()

    def _is_new(self, directory: str) -> bool:
        """Return whether a folder is entered for the first time, by any path."""
        try:
            found = os.stat(f"{self.root}/{directory}")
        except OSError:
            return True
        known = len(self._entered)
        self._entered.add((found.st_dev, found.st_ino))
        return len(self._entered) > known

    def _enter(self, directory: str, enclosing: tuple[FoundSkill, ...], pending: "Pending") -> None:
        if self.follow_links and not self._is_new(directory):
            return
        self.directories += 1
        # This runs for every folder and dominates the time of a restart: hence one long loop.
        folders: list[str] = []
        others: list[os.DirEntry[str]] = []
        has_skill_file = False
        try:
            with os.scandir(f"{self.root}/{directory}") as listing:
                for entry in listing:
                    name = entry.name
                    if name[0] == ".":
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(name)
                    else:
                        others.append(entry)
                        if name == SKILL_FILE:
                            has_skill_file = True
        except OSError as error:
            self._report_unreadable(directory, enclosing, error)
            return
        if has_skill_file:
            skill = FoundSkill(directory)
            self.skills.append(skill)
            enclosing = (*enclosing, skill)
        base = directory + "/" if directory else ""
        if folders:
            self._descend(base, folders, enclosing, pending)
        elif not others:
            if enclosing:
                self.empty.append(directory)
            return
        if not enclosing:
            self._check_loose_files(directory, base, others)
        for skill in enclosing:
            add, below = skill.files.append, base[len(skill.directory) + 1 :] if skill.directory else base
            for entry in others:
                try:
                    found = entry.stat(follow_symlinks=False)
                    if found.st_mode & _TYPE == _REGULAR:
                        name, size, inode = below + entry.name, found.st_size, found.st_ino
                        add((name, size, found.st_mtime_ns, found.st_ctime_ns, inode))
                    else:
                        _add_special_file(self.root, base + entry.name, found, skill)
                except OSError as error:
                    self._report_unreadable(base + entry.name, (skill,), error)

    def _check_loose_files(self, directory: str, base: str, entries: list[os.DirEntry[str]]) -> None:
        """Check files and links outside of every skill: linked folders, and misspelled `SKILL.md`."""
        for entry in entries:
            if entry.is_symlink():
                self._add_linked_folder(entry, base + entry.name)
            elif entry.name.lower() == "skill.md":
                self.loose.append((directory, near_miss(entry.name)))

    def _descend(
        self,
        base: str,
        names: list[str],
        enclosing: tuple[FoundSkill, ...],
        pending: "Pending",
    ) -> None:
        if base.count("/") < MAX_DEPTH:
            wanted = names if enclosing else [name for name in names if name not in SKIPPED_FOLDERS]
            pending.extend([(base + name, enclosing) for name in wanted])
            return
        for name in names:
            self.loose += add_problem(base + name, enclosing, "unreadable", TOO_DEEP, "move it up")

    def _add_linked_folder(self, entry: os.DirEntry[str], path: str) -> None:
        try:
            if not entry.is_dir():
                return
        except OSError:
            return  # The link is broken or circular.
        if not self.follow_links:
            fix = "enable linked folders with --follow-links, or replace the link by a copy"
            self.loose += add_problem(path, (), "linked-folder", LINKED_FOLDER, fix)
            return
        self._links.append(path)

    def _report_unreadable(self, path: str, enclosing: tuple[FoundSkill, ...], error: OSError) -> None:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and path:
            return  # It was moved or deleted during the walk.
        raise_if_transient(error)
        message = f"it cannot be read: {os.strerror(error.errno) if error.errno else 'unknown reason'}"
        self.loose += add_problem(path, enclosing, "unreadable", message, "check its permissions")


def raise_if_transient(error: OSError) -> None:
    """Raise for errors that are caused by this process or machine, not by the folder.

    Raises:
        SourceError: It is such an error. Earlier results stay valid.
    """
    if error.errno in _TRANSIENT_ERRORS:
        raise SourceError(f"the folder of skills cannot be read: {os.strerror(error.errno)}") from error


def near_miss(name: str) -> Finding:
    """Build the finding about a file whose name differs from `SKILL.md` only in case."""
    message = f"the file is named {name!r}; its name must be exactly {SKILL_FILE}"
    return Finding("skill-file-case", message, file=name, fix=f"rename it to {SKILL_FILE}")


def add_problem(
    path: str, enclosing: tuple[FoundSkill, ...], code: str, message: str, fix: str
) -> list[tuple[str, Finding]]:
    """Add a problem to every skill around `path`; outside of skills, return it with the path instead."""
    for skill in enclosing:
        skill.problem(code, path_in_skill(path, skill), message, fix)
    return [] if enclosing else [(path, Finding(code, message, file="", fix=fix))]


def path_in_skill(path: str, skill: FoundSkill) -> str:
    """Convert `path` from relative to the root of the walk to relative to the skill."""
    return path[len(skill.directory) + 1 :] if skill.directory else path


def stat_fields(found: os.stat_result) -> tuple[int, int, int, int]:
    """Return the fields that show whether a file changed: its size, times and inode."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _add_special_file(root: str, path: str, found: os.stat_result, skill: FoundSkill) -> None:
    """Add a link to a file inside the skill as that file; report anything else as a problem."""
    inner = path_in_skill(path, skill)
    if not stat.S_ISLNK(found.st_mode):
        skill.problem("special-file", inner, SPECIAL_FILE, "delete it")
        return
    target = os.path.realpath(f"{root}/{path}")
    base = os.path.realpath(f"{root}/{skill.directory}") + "/"
    end = target[len(base) :]
    hidden = any(part.startswith(".") for part in end.split("/"))
    real = os.lstat(target) if target.startswith(base) and not hidden and os.path.lexists(target) else None
    if real is None or not stat.S_ISREG(real.st_mode):
        message = "the link does not lead to a file inside the skill"
        skill.problem("link", inner, message, REPLACE_LINK)
    else:
        skill.links[inner] = end
        skill.files.append((inner, *stat_fields(real)))


# Opening files below a root so that no link can escape it.


# Windows has none of these flags; sources that read folders need Linux or macOS.
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


# The number of `openat2` on every machine, the current folder, and RESOLVE_NO_SYMLINKS.
_OPENAT2, _HERE, _NO_LINKS = 437, -100, 0x04


def read_unlinked(path: str, size: int) -> bytes | None:
    """Read the file at an absolute path, expected to have `size` bytes, if no part of the path is a link.

    No more than one byte beyond `size` is read. None when there is no such
    file, or the system cannot check this in one call, as Linux can.
    """
    open_unlinked = _unlinked_opener()
    descriptor = -1 if open_unlinked is None else open_unlinked(os.fsencode(path))
    if descriptor < 0:
        return None
    try:
        return os.read(descriptor, size + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)


@cache
def _unlinked_opener() -> Callable[[bytes], int] | None:
    if sys.platform != "linux":
        return None
    # Imported here because most uses of this package never read a file this way.
    import ctypes

    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    how = struct.pack("QQQ", _FILE, 0, _NO_LINKS)
    return lambda path: call(_OPENAT2, _HERE, path, how, len(how))


class FileMovedError(OSError):
    """The path is not, or no longer, the expected regular file."""


def skill_base(root: str, directory: str, *, follow_links: bool) -> tuple[str, str]:
    """Return the folder below which no link is followed, and the skill's path from there, with a slash.

    That folder is the root, unless the publisher enabled linked folders: then
    it is the folder that the skill's own path resolves to.
    """
    if follow_links:
        return os.path.realpath(f"{root}/{directory}"), ""
    return root, f"{directory}/" if directory else ""


class FolderReader:
    """Reads files below `root`, and keeps the parent folders open between reads.

    Reading files in the order of their paths opens every folder once.
    """

    def __init__(self, root: str) -> None:
        self._path = ""
        self._descriptor = os.open(root, _DIRECTORY)
        self._above: list[tuple[str, int]] = []

    def __enter__(self) -> "FolderReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)
        for _, descriptor in self._above:
            os.close(descriptor)

    def read(self, folder: str, name: str, size: int) -> tuple[bytes, os.stat_result]:
        """Read the regular file `name`, expected to have `size` bytes, in the folder at `folder`.

        No more than one byte beyond `size` is read. The status is the file's
        own, taken after reading, for the caller to compare.

        Raises:
            FileMovedError: It is not a regular file.
            OSError: It is missing, cannot be read, or the path contains a link.
        """
        if folder != self._path:
            self._move_to(folder)
        descriptor = os.open(name, _FILE, dir_fd=self._descriptor)
        try:
            content = os.read(descriptor, size + 1)
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FileMovedError(f"{name!r} is not a regular file")
        return content, found

    def names(self, folder: str, most: int) -> list[tuple[str, os.stat_result]]:
        """Return the names in the folder at `folder`, at most `most`, each with its own status.

        Raises:
            OSError: It is missing, not a folder, cannot be read, or the path contains a link.
        """
        if folder != self._path:
            self._move_to(folder)
        with os.scandir(self._descriptor) as listing:
            return [(entry.name, entry.stat(follow_symlinks=False)) for entry in islice(listing, most)]

    def _move_to(self, folder: str) -> None:
        """Make `folder` the current one, closing folders that are not its parents and opening its parents."""
        while self._path and folder != self._path and not folder.startswith(self._path + "/"):
            os.close(self._descriptor)
            self._path, self._descriptor = self._above.pop()
        if folder == self._path:
            return
        for part in folder[len(self._path) :].lstrip("/").split("/"):
            below = os.open(part, _DIRECTORY | _NOFOLLOW, dir_fd=self._descriptor)
            self._above.append((self._path, self._descriptor))
            self._path = f"{self._path}/{part}" if self._path else part
            self._descriptor = below
