"""The index: what the last scan of a folder found, kept for the next start.

It saves hashing, never decides: a record is used only while every file's
size, times and inode are as they were, and bytes are checked against their
digest again whenever they are read. A damaged or foreign index is ignored.
"""

import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson
import platformdirs

from skillwire.core.finding import RULES, Finding
from skillwire.core.frontmatter import Frontmatter
from skillwire.sources.scan import SkillRecord
from skillwire.sources.walk import STAMP_WIDTH

FORMAT = 1
MAX_INDEX_BYTES = 1024 * 1024 * 1024

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
            content: Any = orjson.loads(data) if data else None
            if not isinstance(content, dict):
                return {}
            stored = cast(Mapping[str, Any], content)
            if stored.get("format") != FORMAT or stored.get("root") != self.root:
                return {}
            return {row[0]: _record(row) for row in stored["skills"]}
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            logger.info("ignoring the index of an earlier scan: %s", error)
            return {}

    def save(self, records: Iterable[SkillRecord]) -> None:
        """Write the records, replacing the file in one step; a failure costs only the next start time."""
        rows = [_row(record) for record in records if record.settled and not record.racy]
        try:
            data = orjson.dumps({"format": FORMAT, "root": self.root, "skills": rows})
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".index-")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                Path(temporary).replace(self.path)
            except BaseException:
                with suppress(OSError):
                    Path(temporary).unlink()
                raise
        except (OSError, TypeError, ValueError) as error:
            logger.info("the index of this scan could not be kept: %s", error)

    def _read(self) -> bytes:
        """Read the file if it is ours alone; an index others can write is no index."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except FileNotFoundError:
            return b""
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(file.fileno())
            foreign = hasattr(os, "geteuid") and found.st_uid != os.geteuid()
            if foreign or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or found.st_size > MAX_INDEX_BYTES:
                raise ValueError("the file is not this user's own")
            return file.read()


def _row(record: SkillRecord) -> list[object]:
    return [
        record.directory,
        record.stamp,
        record.digests,
        None if record.frontmatter is None else record.frontmatter.fields,
        [[found.code, found.message, found.file, found.line, found.fix] for found in record.findings],
        record.links,
    ]


def _record(row: list[Any]) -> SkillRecord:
    directory, stamp, digests, fields, findings, links = row
    if len(stamp) % STAMP_WIDTH or (digests and len(digests) * STAMP_WIDTH != len(stamp)):
        raise ValueError("a record is damaged")
    return SkillRecord(
        directory,
        stamp,
        digests,
        None if fields is None else Frontmatter(fields),
        tuple(Finding(*values) for values in findings if values[0] in RULES),
        links,
    )
