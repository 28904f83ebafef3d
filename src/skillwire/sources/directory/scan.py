"""Scanning skill folders: hashing, parsing and validating their files.

A scan turns each `FoundSkill` of a walk into a `SkillRecord`. A record whose
stamp still matches is reused, so an unchanged skill costs one comparison, and
none of its files is read again.
"""

import errno
import hashlib
import logging
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import orjson
import platformdirs

from skillwire.core import (
    SKILL_FILE,
    Finding,
    Frontmatter,
    FrontmatterError,
    Severity,
    are_plain,
    digest_of,
    parse_skill_md,
    path_findings,
    published_findings,
    size_findings,
)
from skillwire.sources.directory.walk import (
    FileStat,
    FolderReader,
    FoundSkill,
    Stamp,
    raise_if_transient,
    skill_base,
    stat_fields,
)

# A file written this recently may be written again within the same tick of the file system's
# clock, and would then look unchanged. Its record is used now, but not for later scans.
RACY_NS = 2_000_000_000

# Errors that a retry will not resolve.
_PERMANENT_ERRORS = frozenset({errno.EACCES, errno.EPERM, errno.EIO})
_UNSETTLED = Finding(
    "unsettled", "its files are being written; it is published when they stop changing", file=""
)


@dataclass(slots=True, eq=False)
class SkillRecord:
    """The result of scanning one skill's folder; never modified.

    `digests` are those of the paths in `stamp`, and `plain` means that those
    need no escaping in a URI. `frontmatter` is None when the skill cannot be
    published; `findings` then contains an error. `settled` is False when a file
    changed while it was read, and `lasting` is False when an equal stamp does
    not prove that nothing changed: a file was written very recently, or a path
    was not a file.
    """

    directory: str
    stamp: Stamp
    digests: tuple[str, ...]
    frontmatter: Frontmatter | None
    findings: tuple[Finding, ...] = ()
    links: Mapping[str, str] | None = None
    plain: bool = False
    settled: bool = True
    lasting: bool = True

    @property
    def modified_ns(self) -> int:
        """The modification time of `SKILL.md` when it was scanned, in nanoseconds."""
        return self.stamp.numbers()[3 * self.stamp.paths.index(SKILL_FILE)]


class Scanner:
    """Turns found skills into records, reading only what may have changed.

    No link is followed below the root, or with `follow_links` below each
    skill's own folder.
    """

    def __init__(self, root: str, *, follow_links: bool = False) -> None:
        self._root = root
        self._follow_links = follow_links
        self._reader: FolderReader | None = None
        self._columns: Columns = {}

    def __enter__(self) -> "Scanner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def record(self, found: FoundSkill, known: SkillRecord | None) -> SkillRecord:
        """Return the record of a skill's folder; `known` itself when nothing has changed since.

        Raises:
            SourceError: This process currently cannot read files.
        """
        stamp = found.stamp()
        if known is not None and known.lasting and known.stamp == stamp and not found.problems:
            return known
        findings = listing_findings(found, stamp.paths)
        if SKILL_FILE not in stamp.paths and not findings:
            return _unsettled(found, stamp)
        if any(finding.is_error for finding in findings):
            return unpublished_record(found, stamp, findings, lasting=not found.problems)
        try:
            return self._read(found, stamp, findings, _trusted_digests(known))
        except OSError as error:
            raise_if_transient(error)
            return _unsettled(found, stamp)  # Missing, or changed since the walk: scan again.

    def _read(
        self, found: FoundSkill, stamp: Stamp, findings: list[Finding], trusted: Mapping[FileStat, str]
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
                    if error.errno not in _PERMANENT_ERRORS:
                        raise
                    message = f"the file cannot be read: {os.strerror(error.errno)}"
                    fix = "check its permissions and the disk"
                    findings.append(Finding("unreadable", message, file=file[0], fix=fix))
                    continue
                if len(content) != file[1] or stat_fields(after) != file[1:]:
                    return _unsettled(found, stamp)
                digest = digest_of(content)
                if file[0] == SKILL_FILE:
                    skill_md = content
            digests.append(digest)
        if len(digests) < len(found.files):
            return unpublished_record(found, stamp, findings, lasting=False)
        stamp = _shared(*stamp, self._columns)
        return make_record(found, stamp, findings, tuple(digests), skill_md, lasting=not _is_racy(found))

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
    """Return the findings that need no file to be read; `paths` are those of the skill's files."""
    return [
        *found.problems,
        *path_findings(paths),
        *size_findings(len(paths), sum([file[1] for file in found.files])),
    ]


def unpublished_record(
    found: FoundSkill, stamp: Stamp, findings: Iterable[Finding], *, lasting: bool
) -> SkillRecord:
    """Build the record of a skill that is not published."""
    return SkillRecord(found.directory, stamp, (), None, tuple(findings), lasting=lasting)


def make_record(
    found: FoundSkill,
    stamp: Stamp,
    findings: Iterable[Finding],
    digests: tuple[str, ...],
    skill_md: bytes,
    *,
    lasting: bool,
) -> SkillRecord:
    """Build the record of a skill whose files were all read."""
    frontmatter, more = _parse(skill_md)
    findings = (*findings, *more)
    if any(finding.is_error for finding in findings):
        frontmatter, digests = None, ()
    return SkillRecord(
        found.directory,
        stamp,
        digests,
        frontmatter,
        tuple(finding for finding in findings if finding.severity is not Severity.INFO),
        found.links or None,
        are_plain(stamp.paths),
        lasting=lasting,
    )


def read_published(root: str, record: SkillRecord, path: str, size: int, *, follow_links: bool) -> bytes:
    """Read the file at `path` inside a recorded skill, as no more than `size` + 1 bytes.

    Raises:
        OSError: It is missing, cannot be read, or is not the file it was.
    """
    root, base = skill_base(root, record.directory, follow_links=follow_links)
    folder, _, name = (base + path).rpartition("/")
    with FolderReader(root) as reader:
        return reader.read(folder, name, size)[0]


def _unsettled(found: FoundSkill, stamp: Stamp) -> SkillRecord:
    return SkillRecord(found.directory, stamp, (), None, (_UNSETTLED,), settled=False, lasting=False)


def _is_racy(found: FoundSkill) -> bool:
    newest = max(max(file[2], file[3]) for file in found.files)
    return newest > time.time_ns() - RACY_NS


def _trusted_digests(known: SkillRecord | None) -> Mapping[FileStat, str]:
    """Map each file's status in an older record to its digest, for files that did not change."""
    if known is None or not known.lasting or not known.digests:
        return {}
    paths, sizes, _ = known.stamp
    numbers = known.stamp.numbers()
    files: Iterable[FileStat] = zip(paths, sizes, numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    return dict(zip(files, known.digests, strict=True))


Columns: TypeAlias = dict[tuple[object, ...], tuple[Any, ...]]


def _shared(paths: tuple[str, ...], sizes: tuple[int, ...], rest: bytes, known: Columns) -> Stamp:
    """Build a stamp with shared columns, since many skills have files of the same names or sizes."""
    return Stamp(known.setdefault(paths, paths), known.setdefault(sizes, sizes), rest)


def _parse(skill_md: bytes) -> tuple[Frontmatter | None, list[Finding]]:
    try:
        frontmatter = parse_skill_md(skill_md).frontmatter
    except FrontmatterError as error:
        return None, [Finding(error.reason, str(error), line=error.line, fix=error.fix)]
    return frontmatter, published_findings(frontmatter)


# The scan index: the result of the last scan of a folder, stored for the next start.


# To be increased whenever the format of a row, or the result of a scan, changes.
FORMAT = 2
MAX_INDEX_BYTES = 1024 * 1024 * 1024

_FORMAT = re.compile(rb'\{"format":([0-9]{1,9}),')
_ROWS = b',"skills":'
_PLAIN_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScanIndex:
    """The file that stores the records of one root between runs."""

    path: Path
    root: str

    @classmethod
    def for_root(cls, root: str, cache_dir: Path | None = None) -> "ScanIndex":
        """Return the index of the folder at `root`, by default in the user's cache."""
        directory = cache_dir or platformdirs.user_cache_path("skillwire") / "scan"
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
        return cls(directory / f"{name}.json", root)

    def load(self) -> dict[str, SkillRecord]:
        """Return the records by folder; none when there is no usable index."""
        try:
            data = self._read()
            if not data or _is_of_another_format(data):
                return {}
            start = data.find(_ROWS)
            rows = memoryview(data)[start + len(_ROWS) : -1]
            if start < 0 or data[:start] != self._head(rows):
                raise ValueError("it is damaged, or belongs to another folder")
            columns: Columns = {}
            return {row[0]: _record(row, columns) for row in orjson.loads(rows)}
        except (OSError, ValueError) as error:
            logger.warning(
                "the index of an earlier scan cannot be used: %s; reading every file", _error_text(error)
            )
            return {}

    def save(self, records: Iterable[SkillRecord]) -> None:
        """Write the records, replacing the file atomically; a failure only makes the next start slower."""
        try:
            rows = _dump([_row(record) for record in records if record.lasting])
            data = b"".join((self._head(rows), _ROWS, rows, b"}"))
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _replace(self.path, data)
        except OSError as error:
            logger.warning(
                "the index of this scan cannot be saved: %s; the next start takes longer", _error_text(error)
            )

    def _head(self, rows: bytes | memoryview) -> bytes:
        """Return the header of the rows: format, root and checksum."""
        root = os.fsencode(self.root).hex()
        return orjson.dumps({"format": FORMAT, "root": root, "crc32": zlib.crc32(rows)})[:-1]

    def _read(self) -> bytes:
        """Read the file if only this user can write to it."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | _PLAIN_FILE)
        except FileNotFoundError:
            return b""
        try:
            found = os.fstat(descriptor)
            foreign = hasattr(os, "geteuid") and found.st_uid != os.geteuid()
            if foreign or not stat.S_ISREG(found.st_mode) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ValueError("it is not a regular file that only this user can write to")
            if found.st_size > MAX_INDEX_BYTES:
                raise ValueError("it is too large")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(descriptor)


def _error_text(error: OSError | ValueError) -> str:
    """Return the reason of an error, without the path in the user's cache."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _is_of_another_format(data: bytes) -> bool:
    """Return whether another version of this program wrote the index, which is not worth a warning."""
    found = _FORMAT.match(data)
    return found is not None and int(found[1]) != FORMAT


def _replace(path: Path, data: bytes) -> None:
    """Write a file atomically, readable only by this user."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _PLAIN_FILE, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _row(record: SkillRecord) -> list[object]:
    return [
        record.directory,
        # No path contains this character; one text is read faster than many.
        "\0".join(record.stamp.paths),
        record.stamp.sizes,
        record.stamp.rest.hex(),
        record.digests,
        None if record.frontmatter is None else record.frontmatter.fields,
        [[found.code, found.message, found.file, found.line, found.fix] for found in record.findings],
        record.links,
        record.plain,
    ]


def _dump(rows: list[list[object]]) -> bytes:
    """Write rows as JSON, without those that cannot be: names that are not UTF-8."""
    try:
        return orjson.dumps(rows)
    except TypeError:
        return orjson.dumps([row for row in rows if _has_json(row)])


def _has_json(row: list[object]) -> bool:
    try:
        orjson.dumps(row)
    except TypeError:
        return False
    return True


def _record(row: list[Any], columns: Columns) -> SkillRecord:
    """Build a record from a row whose checksum was verified."""
    directory, paths, sizes, rest, digests, fields, findings, links, plain = row
    return SkillRecord(
        directory,
        _shared(tuple(paths.split("\0")), tuple(sizes), bytes.fromhex(rest), columns),
        tuple(digests),
        None if fields is None else Frontmatter(fields),
        tuple([Finding(*values) for values in findings]) if findings else (),
        links,
        plain,
    )
