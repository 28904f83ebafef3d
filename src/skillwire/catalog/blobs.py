"""Blobs of a catalog: the bytes of files, named by their digests, written once and verified on every read."""

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

import anyio
import anyio.to_thread

from skillwire.catalog.database import Database, Transaction
from skillwire.catalog.model import CatalogError
from skillwire.catalog.schema import FOLDER, S3, TABLE
from skillwire.core import MAX_TOTAL_SIZE, digest_of, is_digest

MAX_BLOB_BYTES: Final = MAX_TOTAL_SIZE
AT_ONCE: Final = 8
"""How many blobs are in memory at once, when many are read or written."""

Item = TypeVar("Item")

_TEMPORARY = "new"
_STALE_SECONDS = 3600.0
_BATCH = 1_000
_PARAMETERS = 500
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_OPEN_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NOFOLLOW
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
_CHUNK = 1024 * 1024
_SHARD = re.compile(r"[0-9a-f]{2}")


class StoredBlob(NamedTuple):
    """The digest and size of a stored blob, and when it was stored, in POSIX seconds."""

    digest: str
    size: int
    at: float


class BlobMissingError(CatalogError):
    """A blob that is not stored, although something refers to it."""

    def __init__(self, digest: str, location: str) -> None:
        super().__init__(
            f"the blob {digest} is missing from {location}",
            fix="check the catalog with `skillwire catalog verify`; restore a backup if files were lost",
        )
        self.digest = digest


class BlobDamagedError(CatalogError):
    """Stored bytes that are not those of their digest, or cannot be read."""


class BlobStore(Protocol):
    """Where the bytes of a catalog's files are. All methods check that digests are digests first.

    All raise a `CatalogError` when the store cannot be used. Several processes may use one store.
    """

    @property
    def location(self) -> str:
        """Where this store is, as the catalog stores it: `folder`, `table` or `s3://…`."""
        ...

    async def check(self) -> None:
        """Check that the store can be used."""
        ...

    async def has(self, digests: Collection[str]) -> set[str]:
        """Return those of the digests that are stored."""
        ...

    async def put(self, digest: str, content: bytes) -> None:
        """Store a blob unless it is stored already; its bytes are checked first."""
        ...

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a blob, which match its digest; raise a `BlobMissingError` without one."""
        ...

    def digests(self) -> AsyncIterator[list[StoredBlob]]:
        """Yield all blobs, in batches."""
        ...

    async def remove(self, digests: Collection[str], within: Transaction | None = None) -> None:
        """Remove blobs; those that do not exist are ignored.

        A store in the database of the catalog does so as a part of the transaction `within`.
        """
        ...


def check_digests(digests: Iterable[str]) -> None:
    """Check that all names are digests.

    Raises:
        CatalogError: One of them is not.
    """
    if not all(map(is_digest, digests)):
        raise CatalogError("the name of a blob is not a digest")


def check_content(digest: str, content: bytes) -> None:
    """Check bytes that are to be stored.

    Raises:
        CatalogError: They do not match the digest, or are larger than a skill may be.
    """
    check_digests((digest,))
    if len(content) > MAX_BLOB_BYTES:
        raise CatalogError(f"a blob of {len(content)} bytes is larger than {MAX_BLOB_BYTES} bytes")
    if digest_of(content) != digest:
        raise CatalogError(f"the bytes to store do not match the digest {digest}")


def checked(digest: str, content: bytes, location: str) -> bytes:
    """Return bytes that were read.

    Raises:
        BlobDamagedError: They do not match the digest.
    """
    if digest_of(content) != digest:
        raise BlobDamagedError(
            f"the blob {digest} is damaged: the bytes in {location} do not match the digest",
            fix="check the catalog with `skillwire catalog verify`, and restore a backup",
        )
    return content


async def for_each(
    items: Collection[Item], act: Callable[[Item], Awaitable[object]], *, at_once: int = AT_ONCE
) -> None:
    """Call a function for each item, a few at a time; the first exception ends this and is raised."""
    waiting = iter(items)
    failures: list[Exception] = []

    async def work(scope: anyio.CancelScope) -> None:
        try:
            for item in waiting:
                await act(item)
        except Exception as error:
            failures.append(error)
            scope.cancel()

    async with anyio.create_task_group() as group:
        for _ in range(min(at_once, len(items))):
            group.start_soon(work, group.cancel_scope)
    if failures:
        raise failures[0]


def open_blobs(location: str, database: Database) -> BlobStore:
    """Return the store of blobs at a location that a catalog has in `meta`.

    Raises:
        CatalogError: There is no such location, or what it needs is missing.
    """
    if location == TABLE:
        return TableBlobs(database)
    if location == FOLDER and database.path is not None:
        return FolderBlobs(database.path.with_name(f"{database.path.name}.blobs"))
    if location.startswith(S3):
        return _s3_opener()(location)
    raise CatalogError(
        "the location of the blobs is not known, or not possible with this database",
        fix="use folder (SQLite only), table, or s3://BUCKET/PREFIX",
    )


def _s3_opener() -> Callable[[str], BlobStore]:
    try:
        return import_module("skillwire.catalog.s3").S3Blobs
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "obstore":
            raise
        raise CatalogError(
            "blobs in S3 need obstore, which is not installed",
            fix="install the extra: pip install 'skillwire[s3]'",
        ) from error


class FolderBlobs:
    """Blobs as files of a folder: `<2 hex digits>/<64 hex digits>`, private to this user.

    A file is complete when it gets its name. Folders and files are opened
    without following links.
    """

    location = FOLDER

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def check(self) -> None:
        """Create the folder if necessary, and check that it is one that this user may write.

        Raises:
            CatalogError: It is not.
        """
        await anyio.to_thread.run_sync(self._check)

    async def has(self, digests: Collection[str]) -> set[str]:
        """Return those of the digests that are stored."""
        check_digests(digests)
        return await anyio.to_thread.run_sync(self._has, sorted(digests))

    async def put(self, digest: str, content: bytes) -> None:
        """Store a blob; if it is stored already, only its time is renewed.

        Raises:
            CatalogError: The content is not the one of the digest, or it cannot be written.
        """
        await anyio.to_thread.run_sync(self._put, digest, content)

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a blob, which match its digest.

        Raises:
            BlobMissingError: There is no such blob.
            BlobDamagedError: The stored bytes differ.
            CatalogError: They cannot be read.
        """
        check_digests((digest,))
        return await anyio.to_thread.run_sync(self._get, digest)

    def get_now(self, digest: str) -> bytes | None:
        """Return the bytes of a blob from any thread; None when `get` would raise."""
        with suppress(CatalogError):
            return self._get(digest)
        return None

    async def digests(self) -> AsyncIterator[list[StoredBlob]]:
        """Yield all blobs, in batches."""
        for shard in range(256):
            found = await anyio.to_thread.run_sync(self._shard, f"{shard:02x}")
            for start in range(0, len(found), _BATCH):
                yield found[start : start + _BATCH]

    async def remove(self, digests: Collection[str], within: Transaction | None = None) -> None:
        """Remove blobs, and what interrupted writes left; those that do not exist are ignored."""
        check_digests(digests)
        await anyio.to_thread.run_sync(self._remove, sorted(digests))

    def _check(self) -> None:
        with (
            self._errors("used"),
            _opened(self._folder, make=True) as root,
            _opened(_TEMPORARY, root, make=True) as new,
        ):
            name = _write_new(new, b"")
            os.unlink(name, dir_fd=new)

    def _has(self, digests: list[str]) -> set[str]:
        stored: set[str] = set()
        with self._errors("looked up"), suppress(FileNotFoundError), _opened(self._folder) as root:
            for shard, group in groupby(digests, _shard_of):
                with suppress(FileNotFoundError), _opened(shard, root) as inside:
                    stored.update(digest for digest in group if _is_stored(inside, _name_of(digest)))
        return stored

    def _put(self, digest: str, content: bytes) -> None:
        check_content(digest, content)
        name = _name_of(digest)
        with (
            self._errors("stored"),
            _opened(self._folder, make=True) as root,
            _opened(_shard_of(digest), root, make=True) as inside,
        ):
            if _is_stored(inside, name):
                with suppress(FileNotFoundError):
                    os.utime(name, dir_fd=inside, follow_symlinks=False)
                    return
            with _opened(_TEMPORARY, root, make=True) as new:
                os.rename(_write_new(new, content), name, src_dir_fd=new, dst_dir_fd=inside)
            os.fsync(inside)

    def _get(self, digest: str) -> bytes:
        with self._errors("read"):
            try:
                with _opened(self._folder) as root, _opened(_shard_of(digest), root) as inside:
                    content = _read(inside, digest)
            except FileNotFoundError:
                raise BlobMissingError(digest, self.location) from None
        return checked(digest, content, self.location)

    def _shard(self, shard: str) -> list[StoredBlob]:
        found: list[StoredBlob] = []
        with (
            self._errors("listed"),
            suppress(FileNotFoundError),
            _opened(self._folder) as root,
            _opened(shard, root) as inside,
        ):
            for name, status in _statuses(inside):
                digest = f"sha256:{name}"
                if is_digest(digest) and name.startswith(shard) and stat.S_ISREG(status.st_mode):
                    found.append(StoredBlob(digest, status.st_size, status.st_mtime))
        return sorted(found, key=lambda blob: blob.digest)

    def _remove(self, digests: list[str]) -> None:
        with self._errors("removed"), suppress(FileNotFoundError), _opened(self._folder) as root:
            for shard, group in groupby(digests, _shard_of):
                with suppress(FileNotFoundError), _opened(shard, root) as inside:
                    for digest in group:
                        with suppress(FileNotFoundError):
                            os.unlink(_name_of(digest), dir_fd=inside)
            with suppress(FileNotFoundError), _opened(_TEMPORARY, root) as new:
                for name, status in _statuses(new):
                    if status.st_mtime < time.time() - _STALE_SECONDS:
                        with suppress(FileNotFoundError):
                            os.unlink(name, dir_fd=new)

    @contextmanager
    def _errors(self, what: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                reason = "there is a link or another kind of file in its place"
            raise CatalogError(
                f"blobs in the catalog's folder cannot be {what}: {reason}",
                fix="the folder beside the database must belong to this user, and have free space",
            ) from error


def _shard_of(digest: str) -> str:
    return _name_of(digest)[:2]


def _name_of(digest: str) -> str:
    return digest.removeprefix("sha256:")


@contextmanager
def _opened(name: str | Path, above: int | None = None, *, make: bool = False) -> Generator[int]:
    """Open a folder, relative to the folder `above` if given, without following a link."""
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=above)
            # The folder of the database may be reached through a link.
            parent = os.open(Path(name).parent, os.O_RDONLY, dir_fd=above)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)
    descriptor = os.open(name, _OPEN_FOLDER, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_stored(inside: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _read(inside: int, digest: str) -> bytes:
    """Read a regular file, but no more than one byte above the limit of a blob.

    Raises:
        FileNotFoundError: There is none.
        BlobDamagedError: It cannot be read, or is another kind of file.
    """
    try:
        descriptor = os.open(_name_of(digest), _READ, dir_fd=inside)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            parts: list[bytes] = []
            left = MAX_BLOB_BYTES + 1
            while left > 0 and (part := os.read(descriptor, min(left, _CHUNK))):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise BlobDamagedError(f"the blob {digest} cannot be read: {reason}") from error


def _write_new(folder: int, content: bytes) -> str:
    """Write a file under a new name, make it durable, and return the name."""
    name = secrets.token_hex(16)
    try:
        descriptor = os.open(name, _CREATE, 0o600, dir_fd=folder)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    return name


def _statuses(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the name and status of each item of a folder that still exists."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                yield entry.name, entry.stat(follow_symlinks=False)


class TableBlobs:
    """Blobs in the table `blobs` of the catalog's database."""

    location = TABLE

    def __init__(self, database: Database) -> None:
        self._database = database

    async def check(self) -> None:
        """Check that the table can be read.

        Raises:
            CatalogError: It cannot be.
        """
        await self._database.read("SELECT digest FROM blobs LIMIT 1")

    async def has(self, digests: Collection[str]) -> set[str]:
        """Return those of the digests that are stored."""
        check_digests(digests)
        stored: set[str] = set()
        for batch in _batches_of(sorted(digests)):
            sql = f"SELECT digest FROM blobs WHERE digest IN ({_marks(batch)})"
            stored.update(digest for (digest,) in await self._database.read(sql, batch))
        return stored

    async def put(self, digest: str, content: bytes) -> None:
        """Store a blob; if it is stored already, only its time is renewed.

        Raises:
            CatalogError: The content is not the one of the digest, or it cannot be written.
        """
        await anyio.to_thread.run_sync(check_content, digest, content)
        async with self._database.transaction(write=True) as transaction:
            await transaction.execute(
                f"INSERT INTO blobs (digest, size, at, content) VALUES (?, ?, {self._database.clock}, ?) "
                "ON CONFLICT (digest) DO UPDATE SET at = excluded.at",
                (digest, len(content), content),
            )

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a blob, which match its digest.

        Raises:
            BlobMissingError: There is no such blob.
            BlobDamagedError: The stored bytes differ.
            CatalogError: They cannot be read.
        """
        check_digests((digest,))
        rows = await self._database.read(
            "SELECT CASE WHEN length(content) <= ? THEN content END FROM blobs WHERE digest = ?",
            (MAX_BLOB_BYTES, digest),
        )
        if not rows:
            raise BlobMissingError(digest, self.location)
        return await anyio.to_thread.run_sync(checked, digest, bytes(rows[0][0] or b""), self.location)

    async def digests(self) -> AsyncIterator[list[StoredBlob]]:
        """Yield all blobs, in batches."""
        last = ""
        while rows := await self._database.read(
            "SELECT digest, size, at FROM blobs WHERE digest > ? ORDER BY digest LIMIT ?", (last, _BATCH)
        ):
            last = rows[-1][0]
            yield [StoredBlob(*row) for row in rows]

    async def remove(self, digests: Collection[str], within: Transaction | None = None) -> None:
        """Remove blobs; those that do not exist are ignored."""
        check_digests(digests)
        if within is None:
            async with self._database.transaction(write=True) as transaction:
                await self.remove(digests, transaction)
            return
        for batch in _batches_of(sorted(digests)):
            await within.execute(f"DELETE FROM blobs WHERE digest IN ({_marks(batch)})", batch)


def _batches_of(digests: list[str]) -> Iterator[list[str]]:
    # Older versions of SQLite take at most 999 parameters.
    return (digests[start : start + _PARAMETERS] for start in range(0, len(digests), _PARAMETERS))


def _marks(values: list[str]) -> str:
    return ", ".join("?" * len(values))
