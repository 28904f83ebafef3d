"""Blobs of a catalog in a bucket of S3, or of any store that has its interface.

Credentials, region and endpoint come from the environment variables `AWS_*`,
and nothing of them is part of an error.
"""

import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from skillwire.catalog.blobs import (
    MAX_BLOB_BYTES,
    BlobMissingError,
    StoredBlob,
    check_content,
    check_digests,
    checked,
    for_each,
)
from skillwire.catalog.database import Transaction
from skillwire.catalog.model import CatalogError
from skillwire.core import is_digest

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig

T = TypeVar("T")
Values = TypeVarTuple("Values")

LOCATION: Final = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?P<prefix>(?:/(?!\.{1,2}(?:/|$))[\w.-]{1,255}){0,32})/?",
    re.ASCII,
)
"""What a location looks like: names only, so that it never carries credentials or parameters."""

_REQUESTS = 16
_REQUEST = timedelta(seconds=60)
_RETRYING = timedelta(seconds=60)
_DEADLINE = 150.0
_RETRIES = 3
_BATCH = 1_000
_MISSING_BUCKET = "NoSuchBucket"
_CODE = re.compile(r"<Code>(\w{1,64})</Code>|status code: (\d{3})")


class S3Blobs:
    """Blobs as objects of a bucket: `<prefix>/<64 hex digits>`, each created once and never replaced."""

    def __init__(self, location: str) -> None:
        found = LOCATION.fullmatch(location)
        if found is None:
            raise CatalogError(
                "the location of the blobs is not a valid bucket and prefix of S3",
                fix="use s3://BUCKET or s3://BUCKET/PREFIX; credentials belong into the AWS_* variables",
            )
        self.location = location.rstrip("/")
        self._bucket = found["bucket"]
        self._prefix = found["prefix"].strip("/")
        self._limiter = anyio.CapacityLimiter(_REQUESTS)

    async def check(self) -> None:
        """Check that the bucket can be listed.

        Raises:
            CatalogError: It cannot be.
        """
        async for _ in self._batches(1):
            return

    async def has(self, digests: Collection[str]) -> set[str]:
        """Return those of the digests that are stored."""
        check_digests(digests)
        stored: set[str] = set()

        async def look(digest: str) -> None:
            if await self._call("looked up", self._has, _key(digest)):
                stored.add(digest)

        await for_each(set(digests), look, at_once=_REQUESTS)
        return stored

    async def put(self, digest: str, content: bytes) -> None:
        """Store a blob unless it is stored already.

        Raises:
            CatalogError: The content is not the one of the digest, or it cannot be stored.
        """
        await anyio.to_thread.run_sync(check_content, digest, content)
        await self._call("stored", self._put, _key(digest), content)

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a blob, which match its digest.

        Raises:
            BlobMissingError: There is no such blob.
            BlobDamagedError: The stored bytes differ.
            CatalogError: They cannot be read.
        """
        check_digests((digest,))
        content = await self._call("read", self._get, _key(digest))
        if content is None:
            raise BlobMissingError(digest, self.location)
        return await anyio.to_thread.run_sync(checked, digest, content, self.location)

    async def digests(self) -> AsyncIterator[list[StoredBlob]]:
        """Yield all blobs, in batches."""
        async for batch in self._batches(_BATCH):
            yield [
                StoredBlob(digest, found["size"], found["last_modified"].timestamp())
                for found in batch
                if is_digest(digest := f"sha256:{found['path']}")
            ]

    async def remove(self, digests: Collection[str], within: Transaction | None = None) -> None:
        """Remove blobs; those that do not exist are ignored."""
        check_digests(digests)
        keys = [_key(digest) for digest in digests]
        for start in range(0, len(keys), _BATCH):
            await self._call("removed", self._store.delete, keys[start : start + _BATCH])

    def _has(self, key: str) -> bool:
        try:
            self._store.head(key)
        except FileNotFoundError:
            return False
        return True

    def _put(self, key: str, content: bytes) -> None:
        with suppress(AlreadyExistsError):
            self._store.put(key, content, mode="create", use_multipart=False)

    def _get(self, key: str) -> bytes | None:
        try:
            found = self._store.get(key)
            return bytes(found.bytes()) if found.meta["size"] <= MAX_BLOB_BYTES else b""
        except FileNotFoundError as error:
            if _MISSING_BUCKET in str(error):
                raise
            return None

    async def _batches(self, size: int) -> AsyncIterator[Sequence["ObjectMeta"]]:
        """Yield what is stored below the prefix, in batches of at most `size`."""
        listing = self._store.list(chunk_size=size)  # pyright: ignore[reportUnknownMemberType] another form's
        while (batch := await self._call("listed", next, listing, None)) is not None:
            yield batch

    async def _call(self, what: str, function: Callable[[*Values], T], *values: *Values) -> T:
        """Call the store in a thread: its coroutines can abort the process when the interpreter ends."""
        try:
            with anyio.fail_after(_DEADLINE):
                return await anyio.to_thread.run_sync(
                    function, *values, abandon_on_cancel=True, limiter=self._limiter
                )
        except TimeoutError:
            raise self._error(what, "there was no answer in time") from None
        except (BaseError, OSError, ValueError) as error:
            # The text has the endpoint and the request; only the code of the answer is taken from it.
            code = _CODE.search(str(error))
            reason = f"the answer is {code[1] or code[2]}" if code else "no store or no credentials are found"
            raise self._error(what, reason) from None

    @cached_property
    def _store(self) -> S3Store:
        options: ClientConfig = {"timeout": _REQUEST}
        if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1", "yes"):
            options["allow_http"] = True  # Options given here replace those of the environment.
        return S3Store(
            self._bucket,
            prefix=self._prefix or None,
            client_options=options,
            retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRYING},
        )

    def _error(self, what: str, reason: str) -> CatalogError:
        return CatalogError(
            f"blobs at {self.location} cannot be {what}: {reason}",
            fix="check the bucket, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
        )


def _key(digest: str) -> str:
    return digest.removeprefix("sha256:")
