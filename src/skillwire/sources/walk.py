"""Walking a tree of folders and telling which of them are skills.

The walk lists and stats; it opens no file. What it returns for a skill is a
*stamp*: the path, size, times and inode of every file, flat and sorted, so
that "has anything changed?" is one comparison of two lists.
"""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from skillwire.core.finding import Finding
from skillwire.core.uri import SKILL_FILE
from skillwire.errors import SourceError

Stamp: TypeAlias = list[str | int]
"""For each file, sorted by path: path, size, mtime_ns, ctime_ns, inode."""

Facts: TypeAlias = tuple[str, int, int, int, int]
"""The same for a single file."""

STAMP_WIDTH = 5
MAX_DEPTH = 64
# Never entered outside of a skill.
SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})

TOO_DEEP = f"the folder lies more than {MAX_DEPTH} levels deep and is not looked at"
LINKED_FOLDER = "the folder is a link and is not followed"
SPECIAL_FILE = "this is a device, FIFO or socket, not a file"
REPLACE_LINK = "replace it by a copy of what it points to"

# Errors that say something of this process or machine, and nothing of the folder.
_PASSING_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_TYPE, _REGULAR = 0o170000, stat.S_IFREG


class FoundSkill:
    """A folder with a `SKILL.md`, as the walk saw it.

    `directory` is relative to the root of the walk, and empty for the root
    itself. `links` maps the path of each link inside the skill to the file,
    also inside it, that it leads to. `problems` keep the skill from being
    published.
    """

    __slots__ = ("directory", "files", "links", "problems")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.files: list[Facts] = []
        self.links: dict[str, str] = {}
        self.problems: list[Finding] = []

    def stamp(self) -> Stamp:
        self.files.sort()
        return [value for file in self.files for value in file]

    def problem(self, code: str, path: str, message: str, fix: str) -> None:
        self.problems.append(Finding(code, message, file=path, fix=fix))


def share_paths(stamp: Stamp, known: dict[str, str]) -> None:
    """Let the paths in a stamp be the same objects as in others: many skills have files of the same names."""
    paths = cast("list[str]", stamp[::STAMP_WIDTH])
    stamp[::STAMP_WIDTH] = [known.setdefault(path, path) for path in paths]


Pending: TypeAlias = list[tuple[str, tuple[FoundSkill, ...]]]
"""Folders still to be entered, each with the skills it lies in."""


@dataclass(slots=True)
class Walk:
    """One pass over a tree: every skill found, and remarks about folders that are none.

    With `follow_links`, folders that are links are entered, each real folder
    once. `loose` holds findings by folder, for folders outside every skill.
    `empty` are the folders inside skills with nothing in them that could be
    published; a folder that holds only such folders is not among them.
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
        """Walk the subtree at `start`, which must not lie inside a skill.

        Raises:
            SourceError: This process cannot look at anything just now.
        """
        for _ in self.steps(start):
            pass
        return self

    def finished(self, start: str = "") -> Iterator[FoundSkill]:
        """Walk as `run` does, and hand out each skill once all of its files are known.

        Nothing is kept of it here, so a large catalog is never held as a whole.
        """
        pending: Pending = [(start, ())]
        while pending or self._links:
            directory, enclosing = self._next(pending)
            if not enclosing:  # The walk goes deep first, so it has left every skill it found.
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
        # Links come last and by name, so that a folder is found where it lies rather than through a link.
        return pending.pop() if pending else (self._next_link(), ())

    def _next_link(self) -> str:
        self._links.sort(reverse=True)
        return self._links.pop()

    def _is_new(self, directory: str) -> bool:
        """Tell whether a folder is entered for the first time, by whatever path."""
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
        # This runs for every folder of a catalog, and its cost is most of a restart: hence one long loop.
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
            self._take_strays(directory, base, others)
        for skill in enclosing:
            add, below = skill.files.append, base[len(skill.directory) + 1 :] if skill.directory else base
            for entry in others:
                try:
                    found = entry.stat(follow_symlinks=False)
                    if found.st_mode & _TYPE == _REGULAR:
                        name, size, inode = below + entry.name, found.st_size, found.st_ino
                        add((name, size, found.st_mtime_ns, found.st_ctime_ns, inode))
                    else:
                        _take_oddity(self.root, base + entry.name, found, skill)
                except OSError as error:
                    self._report_unreadable(base + entry.name, (skill,), error)

    def _take_strays(self, directory: str, base: str, entries: list[os.DirEntry[str]]) -> None:
        """Look at what is no folder outside of every skill: linked folders, and near misses."""
        for entry in entries:
            if entry.is_symlink():
                self._take_linked_folder(entry, base + entry.name)
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
            self.loose += remark(base + name, enclosing, "unreadable", TOO_DEEP, "move it up")

    def _take_linked_folder(self, entry: os.DirEntry[str], path: str) -> None:
        try:
            if not entry.is_dir():
                return
        except OSError:
            return  # It leads nowhere, or in a circle.
        if not self.follow_links:
            fix = "ask for linked folders with --follow-links, or replace the link by a copy"
            self.loose += remark(path, (), "linked-folder", LINKED_FOLDER, fix)
            return
        self._links.append(path)

    def _report_unreadable(self, path: str, enclosing: tuple[FoundSkill, ...], error: OSError) -> None:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and path:
            return  # It was moved or deleted meanwhile.
        refuse_if_passing(error)
        message = f"it cannot be read: {os.strerror(error.errno) if error.errno else 'unknown reason'}"
        self.loose += remark(path, enclosing, "unreadable", message, "check its permissions")


def refuse_if_passing(error: OSError) -> None:
    """Give up when an error tells nothing of what stands on disk.

    Raises:
        SourceError: It is such an error. What was found before is still the best that is known.
    """
    if error.errno in _PASSING_ERRORS:
        raise SourceError(f"the folder of skills cannot be read: {os.strerror(error.errno)}") from error


def near_miss(name: str) -> Finding:
    """Say that a file is named almost like a `SKILL.md`."""
    message = f"the file is named {name!r}; its name must be exactly {SKILL_FILE}"
    return Finding("skill-file-case", message, file=name, fix=f"rename it to {SKILL_FILE}")


def remark(
    path: str, enclosing: tuple[FoundSkill, ...], code: str, message: str, fix: str
) -> list[tuple[str, Finding]]:
    """Note a problem in every skill around `path`; outside of skills, return it with the path instead."""
    for skill in enclosing:
        skill.problem(code, inside(path, skill), message, fix)
    return [] if enclosing else [(path, Finding(code, message, file="", fix=fix))]


def inside(path: str, skill: FoundSkill) -> str:
    """Return `path`, relative to the root of the walk, relative to the skill instead."""
    return path[len(skill.directory) + 1 :] if skill.directory else path


def facts_of(found: os.stat_result) -> tuple[int, int, int, int]:
    """Return what tells whether a file changed: its size, its times and its inode."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _take_oddity(root: str, path: str, found: os.stat_result, skill: FoundSkill) -> None:
    """Take a link to a file inside the skill as that file; note anything else as a problem."""
    inner = inside(path, skill)
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
        skill.files.append((inner, *facts_of(real)))
