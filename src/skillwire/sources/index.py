"""The index: what the last scan of a folder found, kept for the next start.

It saves hashing, never decides: a record is used only while every file's
size, times and inode are as they were, and bytes are checked against their
digest again whenever they are read. A damaged or foreign index is ignored.
"""

import hashlib
import logging
import os
import re
import stat
import threading
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import platformdirs

from skillwire.core.finding import Finding
from skillwire.core.frontmatter import Frontmatter
from skillwire.sources.scan import SkillRecord
from skillwire.sources.walk import share_paths

# To be raised whenever a row, or what a scan makes of a file, changes.
FORMAT = 1
MAX_INDEX_BYTES = 1024 * 1024 * 1024

_FORMAT = re.compile(rb'\{"format":([0-9]{1,9}),')
_ROWS = b',"skills":'
_PLAIN_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScanIndex:
    """The file that keeps the records of one root between runs."""

    path: Path
    root: str

    @classmethod
    def for_root(cls, root: str, cache_dir: Path | None = None) -> "ScanIndex":
        """Return the index of the folder at `root`, in the user's cache unless told otherwise."""
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
                raise ValueError("it is damaged, or of another folder")
            paths: dict[str, str] = {}
            return {row[0]: _record(row, paths) for row in orjson.loads(rows)}
        except (OSError, ValueError) as error:
            logger.warning("the index of an earlier scan is of no use: %s; reading every file", _words(error))
            return {}

    def save(self, records: Iterable[SkillRecord]) -> None:
        """Write the records, replacing the file in one step; a failure costs only the next start time."""
        try:
            rows = _dump([_row(record) for record in records if record.lasting])
            data = b"".join((self._head(rows), _ROWS, rows, b"}"))
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _replace(self.path, data)
        except OSError as error:
            logger.warning(
                "the index of this scan cannot be kept: %s; the next start takes longer", _words(error)
            )

    def _head(self, rows: bytes | memoryview) -> bytes:
        """Return what must stand before the rows: whose they are, and that they are whole."""
        root = os.fsencode(self.root).hex()
        return orjson.dumps({"format": FORMAT, "root": root, "crc32": zlib.crc32(rows)})[:-1]

    def _read(self) -> bytes:
        """Read the file if it is ours alone; an index others can write is no index."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | _PLAIN_FILE)
        except FileNotFoundError:
            return b""
        try:
            found = os.fstat(descriptor)
            foreign = hasattr(os, "geteuid") and found.st_uid != os.geteuid()
            if foreign or not stat.S_ISREG(found.st_mode) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ValueError("it is not a file of this user alone")
            if found.st_size > MAX_INDEX_BYTES:
                raise ValueError("it is too large")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(descriptor)


def _words(error: OSError | ValueError) -> str:
    """Say what went wrong, without the place in the user's cache."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _is_of_another_format(data: bytes) -> bool:
    """Tell whether another version of this program wrote an index: that is nothing to complain about."""
    found = _FORMAT.match(data)
    return found is not None and int(found[1]) != FORMAT


def _replace(path: Path, data: bytes) -> None:
    """Write a file in one step: readers see the old content or the new, and only this user sees any."""
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
        record.stamp,
        record.digests,
        None if record.frontmatter is None else record.frontmatter.fields,
        [[found.code, found.message, found.file, found.line, found.fix] for found in record.findings],
        record.links,
        record.plain,
    ]


def _dump(rows: list[list[object]]) -> bytes:
    """Write rows as JSON, without those that have none: names that are not UTF-8."""
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


def _record(row: list[Any], paths: dict[str, str]) -> SkillRecord:
    """Read a row that was written here: its checksum was right. Skills share `paths`."""
    directory, stamp, digests, fields, findings, links, plain = row
    share_paths(stamp, paths)
    return SkillRecord(
        directory,
        stamp,
        digests,
        None if fields is None else Frontmatter(fields),
        tuple([Finding(*values) for values in findings]) if findings else (),
        links,
        plain,
    )
