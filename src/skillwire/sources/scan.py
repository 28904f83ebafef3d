"""From a folder to what is published about it: hashing, parsing, judging.

A scan turns each `FoundSkill` of a walk into a `SkillRecord`. A record whose
stamp is still true is taken over as it is, so an unchanged skill costs one
comparison; nothing of it is read again.
"""

import errno
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import cast

from skillwire.core.entry import size_findings
from skillwire.core.fields import published_findings
from skillwire.core.finding import Finding, Severity
from skillwire.core.frontmatter import Frontmatter, parse_skill_md
from skillwire.core.manifest import digest_of
from skillwire.core.paths import path_findings
from skillwire.core.uri import SKILL_FILE, are_plain
from skillwire.errors import FrontmatterError
from skillwire.sources.opening import FolderReader, skill_base
from skillwire.sources.walk import (
    STAMP_WIDTH,
    Facts,
    FoundSkill,
    Stamp,
    facts_of,
    refuse_if_passing,
    share_paths,
)

# A file written this recently may be written again within the same tick of the file system's
# clock, and would then look unchanged. Its record is used now and not trusted later.
RACY_NS = 2_000_000_000

# Errors that looking again will not make go away.
_LASTING_ERRORS = frozenset({errno.EACCES, errno.EPERM, errno.EIO})
_UNSETTLED = Finding("unsettled", "its files are being written; it is taken when they settle", file="")


@dataclass(slots=True, eq=False)
class SkillRecord:
    """What is known about one skill's folder; never changed once made.

    `digests` runs parallel to the paths in `stamp`, and `plain` says that
    those can stand in a URI as they are. `frontmatter` is None when the skill
    cannot be published; `findings` then holds an error. `settled` is False
    when a file changed while it was read, and `lasting` is False when the
    stamp alone does not tell that nothing changed: a file was written a moment
    ago, or something stood there that is no file.
    """

    directory: str
    stamp: Stamp
    digests: list[str]
    frontmatter: Frontmatter | None
    findings: tuple[Finding, ...] = ()
    links: Mapping[str, str] | None = None
    plain: bool = False
    settled: bool = True
    lasting: bool = True

    @property
    def paths(self) -> list[str]:
        return self.stamp[::STAMP_WIDTH]  # pyright: ignore[reportReturnType]  # every fifth value is a path

    @property
    def sizes(self) -> list[int]:
        return self.stamp[1::STAMP_WIDTH]  # pyright: ignore[reportReturnType]  # and the one after it a size

    @property
    def modified_ns(self) -> int:
        """When `SKILL.md` was last modified, as the walk saw it."""
        return cast(int, self.stamp[self.stamp.index(SKILL_FILE) + 2])


class Scanner:
    """Turns found skills into records, reading only what may have changed.

    With `follow_links` each skill's own folder counts as the place below
    which no link is followed; otherwise that place is the root.
    """

    def __init__(self, root: str, *, follow_links: bool = False) -> None:
        self._root = root
        self._follow_links = follow_links
        self._reader: FolderReader | None = None
        self._paths: dict[str, str] = {}

    def __enter__(self) -> "Scanner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def take(self, found: FoundSkill, known: SkillRecord | None) -> SkillRecord:
        """Return the record of a skill's folder; `known` itself when nothing has changed since.

        Raises:
            SourceError: This process cannot read anything just now.
        """
        stamp = found.stamp()
        if known is not None and known.lasting and known.stamp == stamp and not found.problems:
            return known
        paths = [file[0] for file in found.files]
        findings = listing_findings(found, paths)
        if SKILL_FILE not in paths and not findings:
            return _unsettled(found, stamp)
        if any(finding.is_error for finding in findings):
            return set_aside(found, stamp, findings, lasting=not found.problems)
        try:
            return self._read(found, stamp, findings, _trusted_digests(known))
        except OSError as error:
            refuse_if_passing(error)
            return _unsettled(found, stamp)  # Gone, or no longer what the walk saw: look again.

    def _read(
        self, found: FoundSkill, stamp: Stamp, findings: list[Finding], trusted: Mapping[Facts, str]
    ) -> SkillRecord:
        digests: list[str] = []
        skill_md = b""
        root, base = skill_base(self._root, found.directory, follow_links=self._follow_links)
        reader = self._reader_below(root)
        links = found.links
        for file in found.files:
            digest = trusted.get(file) if trusted else None
            if digest is None or file[0] == SKILL_FILE:
                path = links.get(file[0], file[0]) if links else file[0]
                folder, _, name = (base + path).rpartition("/")
                try:
                    content, after = reader.read(folder, name, file[1])
                except OSError as error:
                    if error.errno not in _LASTING_ERRORS:
                        raise
                    message = f"the file cannot be read: {os.strerror(error.errno)}"
                    fix = "check its permissions and the disk"
                    findings.append(Finding("unreadable", message, file=file[0], fix=fix))
                    continue
                if len(content) != file[1] or facts_of(after) != file[1:]:
                    return _unsettled(found, stamp)
                digest = digest_of(content)
                if file[0] == SKILL_FILE:
                    skill_md = content
            digests.append(digest)
        if len(digests) < len(found.files):
            return set_aside(found, stamp, findings, lasting=False)
        share_paths(stamp, self._paths)
        return judge(found, stamp, findings, digests, skill_md, lasting=not _is_racy(found))

    def _reader_below(self, root: str) -> FolderReader:
        """Return the reader of the last skill when it reads below `root` too, else a new one."""
        if self._reader is None or self._follow_links:
            self._close()
            self._reader = FolderReader(root)
        return self._reader

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def listing_findings(found: FoundSkill, paths: Sequence[str]) -> list[Finding]:
    """Say what is wrong with a skill before any of its files is read; `paths` are those of its files."""
    return [
        *found.problems,
        *path_findings(paths),
        *size_findings(len(paths), sum([file[1] for file in found.files])),
    ]


def set_aside(found: FoundSkill, stamp: Stamp, findings: Iterable[Finding], *, lasting: bool) -> SkillRecord:
    """Make the record of a skill that is not published."""
    return SkillRecord(found.directory, stamp, [], None, tuple(findings), lasting=lasting)


def judge(
    found: FoundSkill,
    stamp: Stamp,
    findings: Iterable[Finding],
    digests: list[str],
    skill_md: bytes,
    *,
    lasting: bool,
) -> SkillRecord:
    """Make the record of a skill whose files are all read."""
    frontmatter, more = _parse(skill_md)
    findings = (*findings, *more)
    if any(finding.is_error for finding in findings):
        frontmatter, digests = None, []
    return SkillRecord(
        found.directory,
        stamp,
        digests,
        frontmatter,
        tuple(finding for finding in findings if finding.severity is not Severity.INFO),
        found.links or None,
        are_plain([file[0] for file in found.files]),
        lasting=lasting,
    )


def read_published(root: str, record: SkillRecord, path: str, size: int, *, follow_links: bool) -> bytes:
    """Read the file at `path` inside a recorded skill, as no more than `size` + 1 bytes.

    Raises:
        OSError: It is gone, cannot be read, or is not the file it was.
    """
    root, base = skill_base(root, record.directory, follow_links=follow_links)
    folder, _, name = (base + path).rpartition("/")
    with FolderReader(root) as reader:
        return reader.read(folder, name, size)[0]


def _unsettled(found: FoundSkill, stamp: Stamp) -> SkillRecord:
    return SkillRecord(found.directory, stamp, [], None, (_UNSETTLED,), settled=False, lasting=False)


def _is_racy(found: FoundSkill) -> bool:
    newest = max(max(file[2], file[3]) for file in found.files)
    return newest > time.time_ns() - RACY_NS


def _trusted_digests(known: SkillRecord | None) -> Mapping[Facts, str]:
    """Map each file's facts in an older record to its digest, for files that did not change."""
    if known is None or not known.lasting or not known.digests:
        return {}
    rows = zip(*(known.stamp[column::STAMP_WIDTH] for column in range(STAMP_WIDTH)), strict=True)
    return cast(Mapping[Facts, str], dict(zip(rows, known.digests, strict=True)))


def _parse(skill_md: bytes) -> tuple[Frontmatter | None, list[Finding]]:
    try:
        frontmatter = parse_skill_md(skill_md).frontmatter
    except FrontmatterError as error:
        return None, [Finding(error.reason, str(error), line=error.line, fix=error.fix)]
    return frontmatter, published_findings(frontmatter)
