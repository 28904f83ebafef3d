"""`BlobStore`: the files of a catalog by digest. They never change."""

import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from pathlib import Path
from typing import Protocol

import anyio.to_thread

from skillwire.catalog.database import Database
from skillwire.catalog.model import CatalogError
from skillwire.catalog.schema import FOLDER
from skillwire.core import digest_of


class BlobStore(Protocol):
    """Files by digest. Storing one that is there does nothing."""

    async def has(self, digests: Collection[str]) -> set[str]:
        """Return which of these are stored."""
        ...

    async def put(self, digest: str, content: bytes) -> None:
        """Store a file whose digest the caller has checked."""
        ...

    async def get(self, digest: str) -> bytes:
        """Return a file.

        Raises:
            CatalogError: It is not stored, or cannot be read.
        """
        ...

    def digests(self) -> AsyncIterator[list[tuple[str, int, float]]]:
        """Yield the digest, size and time of all files, in batches."""
        ...

    async def remove(self, digests: Collection[str]) -> None:
        """Remove files; those that are not stored do not matter."""
        ...


def open_blobs(location: str, database: Database) -> BlobStore:
    """Return the store at the location that `meta` has.

    Raises:
        CatalogError: This program does not know the location.
    """
    if location == FOLDER and database.path is not None:
        return FolderBlobs(database.path.with_name(f"{database.path.name}.blobs"))
    raise CatalogError(f"files of a catalog cannot be stored in {location!r}", fix="upgrade skillwire")


class FolderBlobs:
    """Files in a folder, in subfolders by the first two digits of their digests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, digest: str) -> Path:
        digits = digest.removeprefix("sha256:")
        return self._folder / digits[:2] / digits

    async def has(self, digests: Collection[str]) -> set[str]:
        return await anyio.to_thread.run_sync(lambda: {one for one in digests if self._path(one).is_file()})

    async def put(self, digest: str, content: bytes) -> None:
        await anyio.to_thread.run_sync(self._write, self._path(digest), content)

    async def get(self, digest: str) -> bytes:
        try:
            return await anyio.to_thread.run_sync(self._path(digest).read_bytes)
        except OSError as error:
            raise CatalogError(f"the catalog does not have the file {digest}", fix="restore it") from error

    def get_now(self, digest: str) -> bytes | None:
        """Return a file if it can be read at once, verified."""
        try:
            content = self._path(digest).read_bytes()
        except OSError:
            return None
        return content if digest_of(content) == digest else None

    async def digests(self) -> AsyncGenerator[list[tuple[str, int, float]]]:
        for shard in await anyio.to_thread.run_sync(lambda: sorted(self._folder.glob("[0-9a-f][0-9a-f]"))):
            yield [
                (f"sha256:{path.name}", path.stat().st_size, path.stat().st_mtime) for path in shard.iterdir()
            ]

    async def remove(self, digests: Collection[str]) -> None:
        for digest in digests:
            self._path(digest).unlink(missing_ok=True)

    def _write(self, path: Path, content: bytes) -> None:
        if path.is_file():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{secrets.token_hex(8)}")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
