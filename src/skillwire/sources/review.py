"""Reviewing a skill's folder: every file is read once, and all findings are returned.

Serving reads as little as possible and stops at the first error; a review is
for the author and reports everything. The bytes that were reviewed are kept, so
that exactly those can be packed.
"""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from skillwire.core import (
    MAX_FILES,
    MAX_TOTAL_SIZE,
    SKILL_FILE,
    Content,
    Finding,
    Frontmatter,
    FrontmatterError,
    as_text,
    parse_skill_md,
    validate,
)
from skillwire.sources.directory.walk import FileMovedError, FileStat, FolderReader, FoundSkill, skill_base

# Errors of a file that was moved, deleted or replaced after it was listed.
_MOVED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO})


@dataclass(frozen=True, slots=True)
class ReadSkill:
    """A skill's folder as it was read.

    `files` holds the bytes of each file, or only its size where the file could
    not be read or is too large. `executables` are the paths of executable
    files. `problems` are the findings from reading.
    """

    folder: str | None
    files: Mapping[str, Content]
    executables: frozenset[str]
    problems: tuple[Finding, ...]

    @property
    def frontmatter(self) -> Frontmatter | None:
        """The skill's frontmatter; None when it cannot be read."""
        skill_md = self.files.get(SKILL_FILE)
        if not isinstance(skill_md, bytes):
            return None
        try:
            return parse_skill_md(skill_md).frontmatter
        except FrontmatterError:
            return None

    @property
    def name(self) -> str:
        """The skill's `name`; empty when its frontmatter cannot be read or has none."""
        frontmatter = self.frontmatter
        return "" if frontmatter is None else frontmatter.name

    def findings(self) -> list[Finding]:
        """Validate what was read; sorted by file and line, with `SKILL.md` first."""
        odd = {problem.file for problem in self.problems} - {""}
        # A file that cannot be served still exists, so it is not reported as missing.
        files = {**dict.fromkeys(sorted(odd), 0), **self.files}
        unlinked = {("unlinked-file", as_text(path)) for path in odd}
        findings = [
            finding
            for finding in validate(self.folder, files)
            if (finding.code, finding.file) not in unlinked
        ]
        return sorted([*self.problems, *findings], key=_place)


def review(root: str, found: FoundSkill, *, follow_links: bool = False) -> list[Finding]:
    """Return all findings about a skill that a walk of `root` found.

    It never raises, even if files change concurrently.
    """
    return read_skill(root, found, follow_links=follow_links).findings()


def read_skill(root: str, found: FoundSkill, *, follow_links: bool = False) -> ReadSkill:
    """Read the files of a skill that a walk of `root` found.

    No link is followed below `root`; with `follow_links`, as for the walk,
    none is followed below the skill's own folder.

    Files are read in the order of their paths, `SKILL.md` first, while they
    add up to no more than 16 MiB; of a skill with more than 512 files, only
    `SKILL.md` is read. Never raises: what cannot be read becomes a problem.
    """
    folder = PurePath(found.directory or os.path.realpath(root)).name or None
    root, base = skill_base(root, found.directory, follow_links=follow_links)
    try:
        with FolderReader(root) as reader:
            return _FileCollector(found, base).run(reader, folder)
    except OSError as error:
        sizes = {file_stat[0]: file_stat[1] for file_stat in found.files}
        return ReadSkill(folder, sizes, frozenset(), (*found.problems, _problem(SKILL_FILE, error)))


class _FileCollector:
    """One pass over a skill's files."""

    def __init__(self, found: FoundSkill, base: str) -> None:
        self._found = found
        self._base = base
        self._files: dict[str, Content] = {}
        self._executables: set[str] = set()
        self._problems = list(found.problems)
        self._remaining = MAX_TOTAL_SIZE

    def run(self, reader: FolderReader, folder: str | None) -> ReadSkill:
        files = sorted(self._found.files, key=lambda file_stat: (file_stat[0] != SKILL_FILE, file_stat[0]))
        for file_stat in files:
            if file_stat[1] > self._remaining or (len(files) > MAX_FILES and file_stat[0] != SKILL_FILE):
                self._files[file_stat[0]] = file_stat[1]
            else:
                self._add(reader, file_stat)
        return ReadSkill(folder, self._files, frozenset(self._executables), tuple(self._problems))

    def _add(self, reader: FolderReader, file_stat: FileStat) -> None:
        path, size = file_stat[:2]
        folder, _, name = (self._base + self._found.links.get(path, path)).rpartition("/")
        self._files[path] = size
        try:
            content, status = reader.read(folder, name, size)
        except OSError as error:
            self._problems.append(_problem(path, error))
            return
        if len(content) != size or status.st_size != size:
            self._problems.append(_unsettled(path))
            return
        self._remaining -= size
        self._files[path] = content
        if status.st_mode & 0o111:
            self._executables.add(path)


def _problem(path: str, error: OSError) -> Finding:
    if isinstance(error, FileMovedError) or error.errno in _MOVED:
        return _unsettled(path)
    reason = os.strerror(error.errno) if error.errno else "unknown reason"
    return Finding("unreadable", f"it cannot be read: {reason}", file=path, fix="check its permissions")


def _unsettled(path: str) -> Finding:
    message = "it changed while it was read"
    return Finding("unsettled", message, file=path, fix="try again when nothing writes to it")


def _place(finding: Finding) -> tuple[bool, str, int]:
    return finding.file != SKILL_FILE, finding.file, finding.line or 0
