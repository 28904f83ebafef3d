"""A catalog as one file: its rows at one revision, and all blobs that they refer to.

The file is a tar archive of `catalog.json`, which describes the rest,
`TABLE/00000001.jsonl` and so on, with one row in each line, and
`blobs/<64 hex digits>`. It does not depend on the database that it comes from.
Any program can unpack it; only `restore` checks it.
"""

import hashlib
import os
import re
import secrets
import stat
import tarfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar, cast

import anyio
import anyio.to_thread
import orjson

from skillwire.catalog.blobs import MAX_BLOB_BYTES, check_content
from skillwire.catalog.catalog import Catalog, ReportProgress, open_catalog
from skillwire.catalog.changes import in_batches, read_revision, record_event
from skillwire.catalog.database import Database, Transaction
from skillwire.catalog.drafts import namespace_of
from skillwire.catalog.maintenance import References, for_each, lines_of
from skillwire.catalog.model import COLUMNS, FOREVER, CatalogError, SkillRow
from skillwire.core import SkillUri, __version__

TABLES: Final[Mapping[str, tuple[str, str]]] = {
    "versions": (COLUMNS, "uri, since"),
    "revisions": ("revision, at, actor, action, note", "revision"),
    "audit": ("at, actor, action, namespace, uri, revision, detail", "id"),
    "managed": ("name, kind, location, prefix, every, options, last_at, last_result", "name"),
}
"""The tables in a backup, with their columns and the order of their rows."""

Row: TypeAlias = Sequence[Any]
Result = TypeVar("Result")

_FORMAT = "skillwire-catalog-backup"
_VERSION = 1
_MANIFEST = "catalog.json"
_BLOCK = 512
_CHUNK = 4 * 1024 * 1024
_MAX_ROWS_BYTES = 32 * 1024 * 1024
_MAX_MANIFEST_BYTES = 64 * 1024
_BATCH = 500
_AT_ONCE = 8
_LEASE_SECONDS = 3600.0  # It cannot be renewed while SQLite writes all rows.
_NAME = re.compile(r"(?P<table>[a-z]{1,20})/(?P<number>\d{8})\.jsonl|blobs/(?P<blob>[0-9a-f]{64})")
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
            summary, digests = await _write_rows(catalog.database, catalog.id, writer)
            await _write_blobs(catalog, digests, writer, progress)
            await _in_thread(writer.finish)
        finally:
            await _in_thread(writer.close)
        await _in_thread(_rename, temporary, path)
    finally:
        with anyio.CancelScope(shield=True), suppress(OSError):
            await anyio.to_thread.run_sync(temporary.unlink)
    return summary


async def _write_rows(
    database: Database, identity: str, writer: "_BackupWriter"
) -> tuple[BackupSummary, list[str]]:
    """Write the manifest and all rows; return the digests of the blobs that they refer to, sorted."""
    references = References()
    tables: dict[str, dict[str, object]] = {}
    # The manifest is first, so the rows are read twice, in the same state.
    async with database.transaction(write=False) as transaction:
        revision = await read_revision(transaction)
        for table in TABLES:
            lines = _LineDigest()
            async for rows in _read_table(transaction, table):
                if table == "versions":
                    await anyio.to_thread.run_sync(references.add, [SkillRow(*row) for row in rows])
                await anyio.to_thread.run_sync(lines.add, _written(rows))
            tables[table] = {"rows": lines.rows, "digest": lines.digest}
        if references.unreadable:
            raise CatalogError(
                f"a row cannot be read: {references.unreadable[0].name}", fix="run `skillwire catalog verify`"
            )
        digests = sorted(references.lines)
        size = sum(references.lines[digest].size for digest in digests)
        manifest = {
            "format": _FORMAT,
            "version": _VERSION,
            "program": f"skillwire {__version__}",
            "catalog": identity,
            "revision": revision,
            "tables": tables,
            "files": len(digests),
            "size": size,
        }
        await _in_thread(writer.add, _MANIFEST, orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
        for table in TABLES:
            async for rows in _read_table(transaction, table):
                await _in_thread(writer.add_lines, table, _written(rows))
            await _in_thread(writer.end_lines)
    return BackupSummary(revision, references.rows, len(digests), size), digests


async def _read_table(transaction: Transaction, table: str) -> AsyncGenerator[Sequence[Row]]:
    columns, order = TABLES[table]
    async for rows in transaction.stream(f"SELECT {columns} FROM {table} ORDER BY {order}", batch=_BATCH):
        yield rows


def _written(rows: Sequence[Row]) -> list[bytes]:
    """Return rows as lines of JSON; an entry is text there."""
    return [
        orjson.dumps([value.decode() if isinstance(value, bytes) else value for value in row]) + b"\n"
        for row in rows
    ]


async def _write_blobs(
    catalog: Catalog, digests: Sequence[str], writer: "_BackupWriter", progress: ReportProgress | None
) -> None:
    done = 0
    for batch in in_batches(digests, _AT_ONCE):
        contents: dict[str, bytes] = {}

        async def read(digest: str, contents: dict[str, bytes] = contents) -> None:
            contents[digest] = await catalog.store.get(digest)

        await for_each(batch, read)
        for digest in batch:
            await _in_thread(writer.add, f"blobs/{digest.removeprefix('sha256:')}", contents.pop(digest))
        done += len(batch)
        if progress is not None:
            progress(done, len(digests))


class _LineDigest:
    """The number of lines, and the digest of all of them."""

    def __init__(self) -> None:
        self.rows = 0
        self._hash = hashlib.sha256()

    def add(self, lines: Sequence[bytes]) -> None:
        self.rows += len(lines)
        for line in lines:
            self._hash.update(line)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


class _BackupWriter:
    """Writes members of a tar archive into a new file."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
        self._lines: list[bytes] = []
        self._size = 0
        self._table = ""
        self._number = 0

    def add(self, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        self._file.write(info.tobuf(tarfile.USTAR_FORMAT))
        self._file.write(content)
        self._file.write(bytes(-len(content) % _BLOCK))

    def add_lines(self, table: str, lines: Sequence[bytes]) -> None:
        self._table = table
        for line in lines:
            if self._size + len(line) > _CHUNK:
                self._flush()
            self._lines.append(line)
            self._size += len(line)

    def end_lines(self) -> None:
        self._flush()
        self._number = 0

    def finish(self) -> None:
        self._file.write(bytes(2 * _BLOCK))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _flush(self) -> None:
        if self._lines:
            self._number += 1
            self.add(f"{self._table}/{self._number:08d}.jsonl", b"".join(self._lines))
            self._lines, self._size = [], 0


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


@dataclass(frozen=True, slots=True)
class _Manifest:
    """What a backup says about itself."""

    revision: int
    rows: Mapping[str, int]
    digests: Mapping[str, str]
    files: int
    size: int

    @classmethod
    def parse(cls, content: bytes) -> "_Manifest":
        """Parse `catalog.json`.

        Raises:
            CatalogError: It is not that of a backup which this program can restore.
        """
        try:
            fields = orjson.loads(content)
            if fields["format"] != _FORMAT or fields["version"] != _VERSION:
                raise CatalogError(
                    "this is a backup of another program or of a later version", fix="upgrade skillwire"
                )
            tables = fields["tables"]
            numbers = [fields["revision"], fields["files"], fields["size"]]
            numbers += [tables[table]["rows"] for table in TABLES]
            if not all(type(number) is int and 0 <= number < FOREVER for number in numbers):
                raise ValueError("a number is not valid")
            rows = {table: tables[table]["rows"] for table in TABLES}
            digests = {table: str(tables[table]["digest"]) for table in TABLES}
            return cls(fields["revision"], rows, digests, fields["files"], fields["size"])
        except (ValueError, KeyError, TypeError) as error:
            raise _invalid("its description cannot be read") from error


class _BackupReader:
    """Reads the members of a backup, and refuses all that `backup` does not write."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb")
        try:
            found = os.fstat(self._file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise CatalogError("the backup is not a file")
            self._size = found.st_size
            name, size = self._header()
            if name != _MANIFEST:
                raise _invalid("its description is not at the beginning")
            self.manifest = _Manifest.parse(self._content(size, _MAX_MANIFEST_BYTES))
        except BaseException:
            self._file.close()
            raise
        self._start = self._file.tell()

    def close(self) -> None:
        self._file.close()

    def rows(self) -> Iterator[tuple[str, list[Row]]]:
        """Yield the rows of each table in batches, and check in the end that they are those of the manifest.

        Raises:
            CatalogError: The backup is damaged.
        """
        lines = {table: _LineDigest() for table in TABLES}
        for table, _, content in self._members(blobs=False):
            parts = content.splitlines(keepends=True)
            lines[table].add(parts)
            for batch in in_batches(parts, _BATCH):
                yield table, [_parsed(table, line) for line in batch]
        for table, found in lines.items():
            if (found.rows, found.digest) != (self.manifest.rows[table], self.manifest.digests[table]):
                raise _invalid(f"the rows of {table} are not those of its description")

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """Yield the digest and the bytes of each blob, which are not compared."""
        for _, name, content in self._members(blobs=True):
            yield f"sha256:{name}", content

    def _members(self, *, blobs: bool) -> Iterator[tuple[str, str, bytes]]:
        """Yield the blobs, or the other members, and check that all are in order and complete."""
        self._file.seek(self._start)
        tables, number, last, files, total = list(TABLES), 0, "", 0, 0
        while (header := self._header())[0]:
            found = _NAME.fullmatch(header[0])
            if found is None:
                raise _invalid("it has another kind of file")
            if (blob := found["blob"]) is not None:
                if blob <= last:
                    raise _invalid("its files are not in order")
                last, tables, files, total = blob, [], files + 1, total + header[1]
            else:
                while tables and tables[0] != found["table"]:
                    tables, number = tables[1:], 0
                number += 1
                if not tables or int(found["number"]) != number:
                    raise _invalid("its rows are not in order")
            if (blob is not None) is blobs:
                limit = MAX_BLOB_BYTES if blobs else _MAX_ROWS_BYTES
                yield found["table"] or "", blob or "", self._content(header[1], limit)
            else:
                self._file.seek(header[1] + -header[1] % _BLOCK, os.SEEK_CUR)
        if (files, total) != (self.manifest.files, self.manifest.size):
            raise _invalid("its files are not those of its description")

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
            raise _invalid("there are bytes after a file")
        return content

    def _exactly(self, size: int) -> bytes:
        if size > self._size - self._file.tell() or len(content := self._file.read(size)) != size:
            raise _invalid("it is cut short")
        return content


def _parsed(table: str, line: bytes) -> Row:
    """Parse one line as a row of a table.

    Raises:
        CatalogError: It is none.
    """
    columns = TABLES[table][0].split(", ")
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
        if type(value) not in types or (type(value) is int and abs(value) > FOREVER):
            raise _invalid(f"the column {column} of a row of {table} has another type")
        if isinstance(value, str) and "\0" in value:
            raise _invalid(f"the column {column} of a row of {table} is not a text")
    if table == "versions":
        position = columns.index("entry")
        row[position] = row[position].encode()
    return row


def _check(reader: _BackupReader) -> None:
    """Check the whole backup: every row, and the bytes of every file.

    Raises:
        CatalogError: The backup is damaged.
    """
    references: dict[str, int] = {}
    last: SkillRow | None = None
    made: set[int] = set()
    revisions: list[int] = []
    for table, rows in reader.rows():
        if table == "versions":
            for values in rows:
                row = SkillRow(*values)
                with _damage():
                    references.update((line.digest, line.size) for line in lines_of(row))
                _check_row(row, last, reader.manifest.revision)
                made.add(row.since)
                last = row
        elif table == "revisions":
            revisions += [row[0] for row in rows]
    if any(one >= other for one, other in pairwise([0, *revisions, reader.manifest.revision + 1])):
        raise _invalid("its revisions are not in order")
    if not made <= set(revisions):
        raise _invalid("a row is of a revision that it does not have")
    found: set[str] = set()
    for digest, content in reader.blobs():
        with _damage():
            check_content(digest, content)
        if references.get(digest) != len(content):
            raise _invalid("it has a file that no row refers to, or one of another size")
        found.add(digest)
    if found != references.keys():
        raise _invalid("a file is missing that a row refers to")


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
        await _in_thread(_check, reader)
        manifest = reader.manifest
        async with open_catalog(url, create=True, blobs=blobs) as catalog:
            async with catalog.database.transaction(write=False) as transaction:
                await _require_empty(transaction)
            async with catalog.no_collection(_LEASE_SECONDS):
                await _upload(catalog, reader, progress)
                await _insert(catalog.database, reader)
    finally:
        await _in_thread(reader.close)
    return BackupSummary(manifest.revision, manifest.rows["versions"], manifest.files, manifest.size)


async def _require_empty(transaction: Transaction) -> None:
    for table in ("versions", "revisions", "managed"):
        if await transaction.fetch(f"SELECT 1 FROM {table} LIMIT 1"):
            raise CatalogError(
                "a backup is restored into an empty catalog only, and this one is not",
                fix="name a new file or database",
            )


async def _upload(catalog: Catalog, reader: _BackupReader, progress: ReportProgress | None) -> None:
    done = 0
    files = reader.blobs()
    while batch := await _in_thread(lambda: list(islice(files, _AT_ONCE))):
        await for_each(batch, lambda file: catalog.store.put(*file))
        done += len(batch)
        if progress is not None:
            progress(done, reader.manifest.files)


async def _insert(database: Database, reader: _BackupReader) -> None:
    """Write all rows in one transaction."""
    revision = reader.manifest.revision
    async with database.transaction(write=True) as transaction:
        await transaction.execute("UPDATE state SET revision = ? WHERE one = 1", (revision,))
        await _require_empty(transaction)
        batches = reader.rows()
        while batch := await _in_thread(lambda: next(batches, None)):
            table, rows = batch
            columns = TABLES[table][0]
            places = ", ".join("?" * len(columns.split(", ")))
            await transaction.execute_many(f"INSERT INTO {table} ({columns}) VALUES ({places})", rows)
        detail = f"{reader.manifest.rows['versions']} rows and {reader.manifest.files} files"
        await record_event(transaction, database.clock, "restore", actor="", revision=revision, detail=detail)
        await database.announce(transaction, revision)
