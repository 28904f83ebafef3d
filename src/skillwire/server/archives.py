"""`ArchiveCache`: skills as archives, each packed once per content."""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from skillwire.core import (
    ArchiveFormat,
    ByteCache,
    Manifest,
    NotFoundError,
    SkillEntry,
    SourceError,
    VerificationError,
    digest_of,
)
from skillwire.core.archive import pack
from skillwire.sources.combined import CombinedSource

_KEPT_BYTES = 32 * 1024 * 1024
_MAX_DIGESTS = 262_144

Key: TypeAlias = tuple[str, ArchiveFormat]


@dataclass(frozen=True, slots=True)
class ArchiveDigest:
    """The digest of an archive and its size in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Archive:
    """A whole skill as one file."""

    digest: str
    size: int
    data: bytes
    media_type: str


class ArchiveCache:
    """Packs skills and caches the archives.

    The key is the content, so a skill that was moved, or changed and changed
    back, is not packed again. Digests and sizes are cached for every archive,
    the bytes only for recently requested ones; the others are packed again, with
    the same bytes. Packing runs in a thread, once for all concurrent requests
    for the same skill.
    """

    def __init__(self, *, cached_bytes: int = _KEPT_BYTES) -> None:
        self._digests: OrderedDict[Key, ArchiveDigest] = OrderedDict()
        self._bytes: ByteCache[Key, bytes] = ByteCache(cached_bytes)
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    @property
    def cached_bytes(self) -> int:
        """The size of the cached archives in bytes."""
        return self._bytes.size

    async def archive(self, entry: SkillEntry, format: ArchiveFormat, catalog: CombinedSource) -> Archive:
        """Return a skill of `catalog` as an archive.

        Raises:
            NotFoundError: The skill is dynamic, or no longer served.
            SourceError: Its files cannot be read, or do not match the digests in `entry`.
            InvalidArchiveError: A file name is not allowed in an archive.
        """
        content = _content_key(entry)
        cached = self._cached(content, format)
        if cached is None:
            async with self._lock(content):
                cached = self._cached(content, format)
                if cached is None:
                    data = (await self._pack(entry, content, [format], catalog))[format]
                    cached = self._digests[content, format], data
                    self._bytes.put((content, format), data, len(data))
        known, data = cached
        return Archive(known.digest, known.size, data, format.media_type)

    async def digests(
        self, entry: SkillEntry, formats: Sequence[ArchiveFormat], catalog: CombinedSource
    ) -> Mapping[ArchiveFormat, ArchiveDigest]:
        """Return digest and size of a skill's archives; pack the skill if they are not cached.

        Raises the same errors as `archive`.
        """
        content = _content_key(entry)
        known = self.known_digests(entry, formats)
        if known is None:
            async with self._lock(content):
                missing = [format for format in formats if (content, format) not in self._digests]
                await self._pack(entry, content, missing, catalog)
                known = {format: self._digests[content, format] for format in formats}
        return known

    def known_digests(
        self, entry: SkillEntry, formats: Sequence[ArchiveFormat]
    ) -> Mapping[ArchiveFormat, ArchiveDigest] | None:
        """Return digest and size of a skill's archives, or None if any of them is not cached."""
        content = _content_key(entry)
        known = {format: found for format in formats if (found := self._digests.get((content, format)))}
        return known if len(known) == len(formats) else None

    def _cached(self, content: str, format: ArchiveFormat) -> tuple[ArchiveDigest, bytes] | None:
        known, data = self._digests.get((content, format)), self._bytes.get((content, format))
        return None if known is None or data is None else (known, data)

    def _lock(self, content: str) -> anyio.Lock:
        lock = self._locks.get(content)
        if lock is None:
            lock = self._locks[content] = anyio.Lock()
        return lock

    async def _pack(
        self, entry: SkillEntry, content: str, formats: Sequence[ArchiveFormat], catalog: CombinedSource
    ) -> Mapping[ArchiveFormat, bytes]:
        files = await _files_of(entry, catalog)
        packed = await anyio.to_thread.run_sync(partial(_pack_all, files, formats))
        for format, (data, digest) in packed.items():
            self._remember((content, format), ArchiveDigest(digest, len(data)))
        return {format: data for format, (data, _) in packed.items()}

    def _remember(self, key: Key, known: ArchiveDigest) -> None:
        promised = self._digests.get(key)
        if promised is not None and promised != known:
            raise SourceError("packing the same skill again gave a different archive")
        self._digests[key] = known
        if len(self._digests) > _MAX_DIGESTS:
            self._digests.popitem(last=False)


async def _files_of(entry: SkillEntry, catalog: CombinedSource) -> dict[str, bytes]:
    """Read all files of a skill and verify them against its manifest."""
    manifest = _manifest_of(entry)
    files: dict[str, bytes] = {}
    for line in manifest.files:
        content = await catalog.read_file(line.uri)
        try:
            line.verify(content)
        except VerificationError as error:
            raise SourceError(f"{entry.uri} changed while it was packed") from error
        files[entry.uri.relative_path(line.uri)] = content
    return files


def _pack_all(
    files: Mapping[str, bytes], formats: Sequence[ArchiveFormat]
) -> dict[ArchiveFormat, tuple[bytes, str]]:
    packed: dict[ArchiveFormat, tuple[bytes, str]] = {}
    for format in formats:
        data = pack(files, format)
        packed[format] = data, digest_of(data)
    return packed


def _content_key(entry: SkillEntry) -> str:
    """Return a hash of the paths and digests of all files of a skill."""
    manifest = _manifest_of(entry)
    lines = map(" ".join, zip(manifest.references, manifest.digests, strict=True))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _manifest_of(entry: SkillEntry) -> Manifest:
    if entry.manifest is None:
        raise NotFoundError(f"{entry.uri} is dynamic and has no archive", uri=entry.uri.text)
    return entry.manifest
