"""Finding the folders below a root that hold a `SKILL.md`: bounded, and without opening a file."""

import os
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from skillwire.core.finding import Finding
from skillwire.core.uri import SKILL_FILE
from skillwire.sources.walk import SKIPPED_FOLDERS, near_miss

MAX_DEPTH: Final = 6
MAX_FOLDERS: Final = 2_000
MAX_NAMES: Final = 10_000
"""How many names are looked at in one folder."""


@dataclass(slots=True)
class Discovery:
    """One search below `root`.

    A folder is a skill when it holds something of exactly that name, and then
    nothing inside it is searched: what lies there is part of the skill. The
    root itself is no skill. Links to folders are followed, each real folder
    once and by its own name first. `skills` are paths relative to the root,
    sorted. `remarks` are about folders, by path, in which something is amiss,
    and `is_cut` says that the search gave up before it had seen everything.
    """

    root: Path
    skills: list[str] = field(default_factory=list[str])
    remarks: list[tuple[str, Finding]] = field(default_factory=list[tuple[str, Finding]])
    is_cut: bool = False
    _pending: list[str] = field(default_factory=list[str])
    _links: list[str] = field(default_factory=list[str])
    _entered: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    _steps: int = 0

    def run(self) -> "Discovery":
        self._pending.append("")
        while self._pending or self._links:
            if self._steps == MAX_FOLDERS:
                self.is_cut = True
                break
            self._steps += 1
            # Links come last and by name, so that a folder is found where it lies rather than through one.
            queue = self._pending or self._links
            queue.sort(reverse=True)
            directory = queue.pop()
            try:
                self._enter(directory)
            except FileNotFoundError:
                continue  # It was moved or deleted meanwhile, or is a link that leads nowhere.
            except OSError as error:
                message = (
                    f"it cannot be read: {os.strerror(error.errno) if error.errno else 'unknown reason'}"
                )
                self.remarks.append((directory, Finding("unreadable", message, file="")))
        self.skills.sort()
        return self

    def _enter(self, directory: str) -> None:
        path = self.root / directory
        found = path.stat()
        if (found.st_dev, found.st_ino) in self._entered:
            return
        self._entered.add((found.st_dev, found.st_ino))
        with os.scandir(path) as listing:
            entries = list(islice(listing, MAX_NAMES + 1))
        self.is_cut = self.is_cut or len(entries) > MAX_NAMES
        files = {entry.name for entry in entries if not _is_folder(entry)}
        if SKILL_FILE in files and directory:
            self.skills.append(directory)
            return
        self._take_near_misses(directory, files)
        if directory.count("/") + bool(directory) < MAX_DEPTH:
            self._descend(f"{directory}/" if directory else "", entries)

    def _take_near_misses(self, directory: str, files: set[str]) -> None:
        if SKILL_FILE in files:
            message = "it lies in the folder of skills itself, where it makes no skill"
            fix = "move it into a folder of its own"
            self.remarks.append((directory, Finding("skill-file-missing", message, file=SKILL_FILE, fix=fix)))
        for name in sorted(files):
            if name != SKILL_FILE and name.lower() == SKILL_FILE.lower():
                self.remarks.append((directory, near_miss(name)))

    def _descend(self, base: str, entries: list[os.DirEntry[str]]) -> None:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in SKIPPED_FOLDERS or not _is_folder(entry):
                continue
            if len(self._pending) + len(self._links) >= MAX_NAMES:
                self.is_cut = True
                return
            (self._links if entry.is_symlink() else self._pending).append(base + entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # A link that leads in a circle, say.
