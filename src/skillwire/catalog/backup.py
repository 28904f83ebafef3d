"""A catalog as one file: its rows at one revision, and all blobs that they refer to.

The file is a tar archive of `catalog.json`, which says what it is,
`TABLE/00000001.jsonl` and so on, with one row in each line, `blobs/<64 hex digits>`,
and `end.json` with the digest of everything before. It does not depend on the
database that it comes from. Any program can unpack it; only `restore` checks it.
"""

import hashlib
import os
import re
import secrets
import stat
import tarfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar, cast

import anyio
import anyio.to_thread
import orjson

from skillwire.catalog.blobs import MAX_BLOB_BYTES, check_content, for_each
from skillwire.catalog.catalog import Catalog, ReportProgress, open_catalog
from skillwire.catalog.changes import read_revision, record_event
from skillwire.catalog.database import Database, Transaction
from skillwire.catalog.drafts import namespace_of
from skillwire.catalog.maintenance import References, lines_of
from skillwire.catalog.model import COLUMNS, FOREVER, CatalogError, SkillRow
from skillwire.core import ManifestFile, SkillUri, __version__

TABLES: Final[Mapping[str, tuple[str, str]]] = {
    "versions": (COLUMNS, "uri, since"),
    "revisions": ("revision, at, actor, action, note", "revision"),
    "audit": ("at, actor, action, namespace, uri, revision, detail", "id"),
    "managed": ("name, kind, location, prefix, every, options, last_at, last_result", "name"),
}
"""The tables in a backup, with their columns and the order of their rows."""

Row: TypeAlias = Sequence[Any]
Item = TypeVar("Item")
Result = TypeVar("Result")

_FORMAT, _VERSION = "skillwire-catalog-backup", 1
_DESCRIPTION, _BLOBS, _END = "catalog.json", "blobs", "end.json"
_PARTS = (_DESCRIPTION, *TABLES, _BLOBS, _END)
_NAME = re.compile(
    rf"(?P<part>{'|'.join(TABLES)})/\d{{8}}\.jsonl|{_BLOBS}/(?P<blob>[0-9a-f]{{64}})|{_DESCRIPTION}|{_END}"
)
_BLOCK = 512
_MAX_ROWS_BYTES = 32 * 1024 * 1024
_ROWS = 100
_MANY = 64
_BUFFER = 64 * 1024 * 1024
_LEASE_SECONDS = 3600.0  # It cannot be renewed while SQLite writes all rows.
_TYPES: Mapping[str, tuple[type, ...]] = {
    "since": (int,),
    "until": (int,),
    "listed": (int,),
    "pinned": (int,),
    "is_pin": (int,),
    "modified": (float, int, type(None)),
    "at": (float, int),
    "every": (float, int),
    "last_at": (float, int, type(None)),
}
"""The types of columns; of others it is text, and of `revision` a number, or in the audit log null."""


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """What is in a backup: the revision of the catalog, and the number of rows, files and bytes of files."""

    revision: int
    rows: int
    files: int
    size: int


# Writing


async def backup(catalog: Catalog, path: Path, progress: ReportProgress | None = None) -> BackupSummary:
    """Write a catalog into a new file, which gets its name when it is complete; publishers go on meanwhile.

    Raises:
        CatalogError: The catalog cannot be read, a file of it is missing or damaged, or the backup
            cannot be written.
    """
    if await anyio.to_thread.run_sync(os.path.lexists, path):
        raise CatalogError("there is a file of the name of the backup already", fix="use another name")
    temporary = path.with_name(f".skillwire-{secrets.token_hex(8)}.tmp")
    try:
        writer = await _in_thread(_BackupWriter, temporary)
        try:
            revision, references = await _write_rows(catalog, writer)
            lines = sorted(references.lines.values(), key=lambda line: line.digest)
            await _write_blobs(catalog, lines, writer, progress)
            await _in_thread(writer.finish)
        finally:
            await _in_thread(writer.close)
        await _in_thread(_rename, temporary, path)
    finally:
        with anyio.CancelScope(shield=True), suppress(OSError):
            await anyio.to_thread.run_sync(temporary.unlink)
    return BackupSummary(revision, references.rows, len(lines), sum(line.size for line in lines))


async def _write_rows(catalog: Catalog, writer: "_BackupWriter") -> tuple[int, References]:
    """Write the description and all rows; return the revision, and the blobs that the rows refer to."""
    references = References()
    async with catalog.database.transaction(write=False) as transaction:
        revision = await read_revision(transaction)
        description = {
            "format": _FORMAT,
            "version": _VERSION,
            "program": f"skillwire {__version__}",
            "catalog": catalog.id,
            "revision": revision,
        }
        await _in_thread(writer.add, _DESCRIPTION, orjson.dumps(description, option=orjson.OPT_INDENT_2))
        for table, (columns, order) in TABLES.items():
            number = 0
            query = f"SELECT {columns} FROM {table} ORDER BY {order}"
            async for rows in transaction.stream(query, batch=_ROWS):
                number += 1
                if table == "versions":
                    await anyio.to_thread.run_sync(references.add, [SkillRow(*row) for row in rows])
                    if references.unreadable:
                        raise CatalogError(
                            f"a row cannot be read: {references.unreadable[0].name}",
                            fix="run `skillwire catalog verify`",
                        )
                await _in_thread(writer.add, f"{table}/{number:08d}.jsonl", _written(rows))
    return revision, references


def _written(rows: Sequence[Row]) -> bytes:
    """Return rows as lines of JSON; an entry is text there."""
    return b"".join(
        orjson.dumps([value.decode() if isinstance(value, bytes) else value for value in row]) + b"\n"
        for row in rows
    )


async def _write_blobs(
    catalog: Catalog, lines: Sequence[ManifestFile], writer: "_BackupWriter", progress: ReportProgress | None
) -> None:
    done = 0
    for batch in _batches(lines, lambda line: line.size):
        contents: dict[str, bytes] = {}

        async def read(line: ManifestFile, contents: dict[str, bytes] = contents) -> None:
            contents[line.digest] = await catalog.store.get(line.digest)

        await for_each(batch, read)
        await _in_thread(writer.add_blobs, [(line.digest, contents[line.digest]) for line in batch])
        done += len(batch)
        if progress is not None:
            progress(done, len(lines))


def _batches(items: Iterable[Item], size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield the items in lists that are limited in their number and their size."""
    batch: list[Item] = []
    size = 0
    for item in items:
        if batch and (len(batch) == _MANY or size + size_of(item) > _BUFFER):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += size_of(item)
    if batch:
        yield batch


class _BackupWriter:
    """Writes members of a tar archive into a new file."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
        self._hash = hashlib.sha256()

    def add(self, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for part in (info.tobuf(tarfile.USTAR_FORMAT), content, bytes(-len(content) % _BLOCK)):
            self._file.write(part)
            self._hash.update(part)

    def add_blobs(self, blobs: Sequence[tuple[str, bytes]]) -> None:
        for digest, content in blobs:
            self.add(f"{_BLOBS}/{digest.removeprefix('sha256:')}", content)

    def finish(self) -> None:
        self.add(_END, _end(self._hash.hexdigest()))
        self._file.write(bytes(2 * _BLOCK))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _end(digest: str) -> bytes:
    return orjson.dumps({"digest": f"sha256:{digest}"})


def _rename(temporary: Path, path: Path) -> None:
    temporary.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _in_thread(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function that reads or writes a file.

    Raises:
        CatalogError: That is not possible.
    """
    try:
        return await anyio.to_thread.run_sync(function, *arguments)
    except OSError as error:
        raise CatalogError(
            f"the backup cannot be read or written: {error.strerror or type(error).__name__}",
            fix="check the path, the permissions and the space on the disk",
        ) from error


# Reading


class _BackupReader:
    """Reads the members of a backup, and refuses all that `backup` does not write."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb")
        self._hash = hashlib.sha256()
        self._status = os.fstat(self._file.fileno())
        if not stat.S_ISREG(self._status.st_mode):
            self._file.close()
            raise CatalogError("the backup is not a file")

    def close(self) -> None:
        self._file.close()

    def require_unchanged(self) -> None:
        """Check that the file was not written since it was opened.

        Raises:
            CatalogError: It was.
        """
        now = os.fstat(self._file.fileno())
        if (now.st_size, now.st_mtime_ns) != (self._status.st_size, self._status.st_mtime_ns):
            raise _invalid("it changes while it is read")

    def rows(self) -> Iterator[tuple[str, list[Row]]]:
        """Yield the rows of each table, in batches."""
        for part, _, content in self.members(TABLES):
            yield part, _parsed(part, content)

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """Yield the digest and the bytes of each blob, which are not compared."""
        for _, blob, content in self.members((_BLOBS,)):
            yield f"sha256:{blob}", content

    def members(self, wanted: Collection[str]) -> Iterator[tuple[str, str, bytes]]:
        """Yield the part, the digits of a blob's digest, and the content of the members of some parts.

        If all parts are wanted, the digest in the last one is compared.

        Raises:
            CatalogError: The backup is damaged.
        """
        self._file.seek(0)
        self._hash = hashlib.sha256()
        last: tuple[int, str] = (-1, "")
        while True:
            before = self._hash.hexdigest()
            name, size = self._header()
            found = _NAME.fullmatch(name)
            if not name and last[1] == _END:
                return
            if found is None:
                raise _invalid("it has another kind of member, or no end")
            part = found["part"] or (_BLOBS if found["blob"] else name)
            here = (_PARTS.index(part), name)
            if here <= last or (last[0] < 0 and part != _DESCRIPTION):
                raise _invalid("its members are not in order")
            last = here
            if part not in wanted:
                self._file.seek(size + -size % _BLOCK, os.SEEK_CUR)
                continue
            content = self._content(size, MAX_BLOB_BYTES if part == _BLOBS else _MAX_ROWS_BYTES)
            if part == _END and content != _end(before):
                raise _invalid("its bytes do not match the digest at its end")
            yield part, found["blob"] or "", content

    def _header(self) -> tuple[str, int]:
        """Read the name and size of the next member; an empty name at the end of the file."""
        header = self._exactly(_BLOCK)
        if header == bytes(_BLOCK):
            if self._file.read(_BLOCK + 1) != header:
                raise _invalid("it does not end where it should")
            return "", 0
        try:
            info = tarfile.TarInfo.frombuf(header, "ascii", "strict")
            plain = tarfile.TarInfo(info.name)
            plain.size = info.size
            is_plain = info.size >= 0 and plain.tobuf(tarfile.USTAR_FORMAT) == header
        except (tarfile.HeaderError, ValueError) as error:
            raise _invalid("a header cannot be read") from error
        if not is_plain:
            raise _invalid("a header is not one of a backup")
        return info.name, info.size

    def _content(self, size: int, limit: int) -> bytes:
        if size > limit:
            raise _invalid(f"a part of it is larger than {limit} bytes")
        content = self._exactly(size)
        if any(self._exactly(-size % _BLOCK)):
            raise _invalid("there are bytes after a member")
        return content

    def _exactly(self, size: int) -> bytes:
        if size > self._status.st_size - self._file.tell() or len(content := self._file.read(size)) != size:
            raise _invalid("it is cut short")
        self._hash.update(content)
        return content


def _parsed(table: str, content: bytes) -> list[Row]:
    """Parse lines as rows of a table.

    Raises:
        CatalogError: One is none.
    """
    columns = TABLES[table][0].split(", ")
    rows: list[Row] = []
    for line in content.splitlines():
        try:
            values = orjson.loads(line)
        except ValueError as error:
            raise _invalid(f"a row of {table} cannot be read") from error
        if not isinstance(values, list) or len(row := cast(list[Any], values)) != len(columns):
            raise _invalid(f"a row of {table} has other columns")
        for column, value in zip(columns, row, strict=True):
            types = _TYPES.get(column, (str,))
            if column == "revision":
                types = (int, type(None)) if table == "audit" else (int,)
            is_valid = type(value) in types and not (isinstance(value, int) and abs(value) > FOREVER)
            if not is_valid or (isinstance(value, str) and "\0" in value):
                raise _invalid(f"the column {column} of a row of {table} has another type")
        if table == "versions":
            position = columns.index("entry")
            row[position] = row[position].encode()
        rows.append(row)
    return rows


def _check(reader: _BackupReader) -> BackupSummary:
    """Check the whole backup: every row, and the bytes of every file.

    Raises:
        CatalogError: The backup is damaged.
    """
    references: dict[str, int] = {}
    revision = count = size = 0
    last: SkillRow | None = None
    made: set[int] = set()
    revisions: list[int] = []
    found: set[str] = set()
    for part, blob, content in reader.members(_PARTS):
        if part == _DESCRIPTION:
            revision = _revision_in(content)
        elif part == _BLOBS:
            with _damage():
                check_content(f"sha256:{blob}", content)
            found.add(f"sha256:{blob}")
            size += len(content)
            if references.get(f"sha256:{blob}") != len(content):
                raise _invalid("it has a file that no row refers to, or one of another size")
        elif part in TABLES:
            rows = _parsed(part, content)
            if part == "revisions":
                revisions += [row[0] for row in rows]
            for row in [SkillRow(*row) for row in rows] if part == "versions" else ():
                with _damage():
                    references.update((line.digest, line.size) for line in lines_of(row))
                _check_row(row, last, revision)
                made.add(row.since)
                last = row
                count += 1
    if found != references.keys():
        raise _invalid("a file is missing that a row refers to")
    if any(one >= other for one, other in pairwise([0, *revisions, revision + 1])) or not made <= {
        *revisions
    }:
        raise _invalid("its revisions are not in order, or one is missing")
    return BackupSummary(revision, count, len(found), size)


def _revision_in(content: bytes) -> int:
    """Return the revision in the description of a backup.

    Raises:
        CatalogError: It is not a description, or one that this program does not know.
    """
    try:
        description = orjson.loads(content)
        is_known = (description["format"], description["version"]) == (_FORMAT, _VERSION)
        revision = description["revision"]
    except (ValueError, KeyError, TypeError) as error:
        raise _invalid("its description cannot be read") from error
    if not is_known or type(revision) is not int or not 0 <= revision < FOREVER:
        raise _invalid("it is of another program, or of a later version")
    return revision


def _check_row(row: SkillRow, last: SkillRow | None, revision: int) -> None:
    """Check a row against the one before, and the newest revision."""
    is_next = (
        last is None
        or last.uri.encode() < row.uri.encode()
        or (last.uri == row.uri and last.until <= row.since)
    )
    if not is_next or not 0 < row.since <= revision:
        raise _invalid("its rows are not in order")
    if row.until != FOREVER and not row.since < row.until <= revision:
        raise _invalid("a row ends before it begins, or after the newest revision")
    if any(flag not in (0, 1) for flag in (row.listed, row.pinned, row.is_pin)):
        raise _invalid("a flag of a row is not 0 or 1")
    uri = SkillUri(row.uri)
    if row.name != uri.name or (not row.is_pin and row.namespace != namespace_of(uri)):
        raise _invalid("a row has the name or the namespace of another skill")


@contextmanager
def _damage() -> Generator[None]:
    """Raise errors as those of a damaged backup."""
    try:
        yield
    except CatalogError as error:
        raise _invalid(str(error)) from error


def _invalid(reason: str) -> CatalogError:
    return CatalogError(
        f"the backup is damaged, or is not one: {reason}", fix="use another backup; nothing was restored"
    )


# Restoring


async def restore(
    path: Path, url: str, *, blobs: str = "", progress: ReportProgress | None = None
) -> BackupSummary:
    """Restore a backup as a new catalog, or into one in which nothing was ever published.

    Everything is checked before anything is written, and all rows become visible
    at once. The new catalog has an identity of its own. `blobs` is where it
    stores files, as for `open_catalog`.

    Raises:
        CatalogError: The backup is damaged, the catalog is not empty, or it cannot be written.
    """
    reader = await _in_thread(_BackupReader, path)
    try:
        summary = await _in_thread(_check, reader)
        async with open_catalog(url, create=True, blobs=blobs) as catalog:
            async with catalog.database.transaction(write=False) as transaction:
                await _require_empty(transaction)
            async with catalog.no_collection(_LEASE_SECONDS):
                done = 0
                batches = _batches(reader.blobs(), lambda file: len(file[1]))
                while batch := await _in_thread(lambda: next(batches, None)):
                    await for_each(batch, lambda file: catalog.store.put(*file))
                    done += len(batch)
                    if progress is not None:
                        progress(done, summary.files)
                await _insert(catalog.database, reader, summary)
    finally:
        await _in_thread(reader.close)
    return summary


async def _require_empty(transaction: Transaction) -> None:
    for table in ("versions", "revisions", "managed"):
        if await transaction.fetch(f"SELECT 1 FROM {table} LIMIT 1"):
            raise CatalogError(
                "a backup is restored into an empty catalog only, and this one is not",
                fix="name a new file or database",
            )


async def _insert(database: Database, reader: _BackupReader, summary: BackupSummary) -> None:
    """Write all rows in one transaction."""
    async with database.transaction(write=True) as transaction:
        await transaction.execute("UPDATE state SET revision = ? WHERE one = 1", (summary.revision,))
        await _require_empty(transaction)
        batches = reader.rows()
        while batch := await _in_thread(lambda: next(batches, None)):
            table, rows = batch
            columns = TABLES[table][0]
            places = ", ".join("?" * len(columns.split(", ")))
            await transaction.execute_many(f"INSERT INTO {table} ({columns}) VALUES ({places})", rows)
        await _in_thread(reader.require_unchanged)
        detail = f"{summary.rows} rows and {summary.files} files"
        clock = database.clock
        await record_event(transaction, clock, "restore", actor="", revision=summary.revision, detail=detail)
        await database.announce(transaction, summary.revision)
