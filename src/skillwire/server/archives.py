"""`ArchiveShelf`: skills as archives, each packed once for what is in it."""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from skillwire.core.archive import ArchiveFormat, pack
from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import Manifest, digest_of
from skillwire.errors import NotFoundError, SourceError, VerificationError
from skillwire.server.bytecache import ByteCache
from skillwire.sources import Catalog

_KEPT_BYTES = 32 * 1024 * 1024
_KEPT_LABELS = 262_144

Key: TypeAlias = tuple[str, ArchiveFormat]


@dataclass(frozen=True, slots=True)
class Label:
    """What is promised about an archive: its digest and its size in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Archive:
    """A whole skill as one file."""

    digest: str
    size: int
    data: bytes
    media_type: str


class ArchiveShelf:
    """Packs skills, and remembers what came of it.

    Archives are known by what they hold, so a skill that was moved, or that
    changed and changed back, is not packed again. Digests and sizes are kept
    for every archive, bytes only for some that were asked for: the rest are
    packed again then, and come out the same. Packing happens in a thread, and for
    whoever asks for the same skill meanwhile, too.
    """

    def __init__(self, *, kept_bytes: int = _KEPT_BYTES) -> None:
        self._labels: OrderedDict[Key, Label] = OrderedDict()
        self._bytes: ByteCache[Key, bytes] = ByteCache(kept_bytes)
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def archive(self, entry: SkillEntry, format: ArchiveFormat, catalog: Catalog) -> Archive:
        """Return a skill of `catalog` as an archive.

        Raises:
            NotFoundError: The skill is dynamic, or is not served any more.
            SourceError: Its files cannot be read as `entry` promises them.
            InvalidArchiveError: Its files have names that no archive may have.
        """
        content = _content_of(entry)
        held = self._held(content, format)
        if held is None:
            async with self._lock(content):
                held = self._held(content, format)
                if held is None:
                    data = (await self._pack(entry, content, [format], catalog))[format]
                    held = self._labels[content, format], data
                    self._bytes.put((content, format), data, len(data))
        label, data = held
        return Archive(label.digest, label.size, data, format.media_type)

    async def labels(
        self, entry: SkillEntry, formats: Sequence[ArchiveFormat], catalog: Catalog
    ) -> Mapping[ArchiveFormat, Label]:
        """Return digest and size of a skill's archives; the skill is packed only if nobody did before.

        Raises as `archive` does.
        """
        content = _content_of(entry)
        known = self.known_labels(entry, formats)
        if known is None:
            async with self._lock(content):
                missing = [format for format in formats if (content, format) not in self._labels]
                await self._pack(entry, content, missing, catalog)
                known = {format: self._labels[content, format] for format in formats}
        return known

    def known_labels(
        self, entry: SkillEntry, formats: Sequence[ArchiveFormat]
    ) -> Mapping[ArchiveFormat, Label] | None:
        """Return digest and size of a skill's archives if all of them have been packed before."""
        content = _content_of(entry)
        known = {format: label for format in formats if (label := self._labels.get((content, format)))}
        return known if len(known) == len(formats) else None

    def _held(self, content: str, format: ArchiveFormat) -> tuple[Label, bytes] | None:
        label, data = self._labels.get((content, format)), self._bytes.get((content, format))
        return None if label is None or data is None else (label, data)

    def _lock(self, content: str) -> anyio.Lock:
        lock = self._locks.get(content)
        if lock is None:
            lock = self._locks[content] = anyio.Lock()
        return lock

    async def _pack(
        self, entry: SkillEntry, content: str, formats: Sequence[ArchiveFormat], catalog: Catalog
    ) -> Mapping[ArchiveFormat, bytes]:
        files = await _files_of(entry, catalog)
        packed = await anyio.to_thread.run_sync(partial(_packed, files, formats))
        for format, (data, digest) in packed.items():
            self._remember((content, format), Label(digest, len(data)))
        return {format: data for format, (data, _) in packed.items()}

    def _remember(self, key: Key, label: Label) -> None:
        promised = self._labels.get(key)
        if promised is not None and promised != label:
            raise SourceError("an archive came out differently when it was packed again")
        self._labels[key] = label
        if len(self._labels) > _KEPT_LABELS:
            self._labels.popitem(last=False)


async def _files_of(entry: SkillEntry, catalog: Catalog) -> dict[str, bytes]:
    """Read all files of a skill, exactly as its entry promises them."""
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


def _packed(
    files: Mapping[str, bytes], formats: Sequence[ArchiveFormat]
) -> dict[ArchiveFormat, tuple[bytes, str]]:
    packed: dict[ArchiveFormat, tuple[bytes, str]] = {}
    for format in formats:
        data = pack(files, format)
        packed[format] = data, digest_of(data)
    return packed


def _content_of(entry: SkillEntry) -> str:
    """Return what stands for all a skill's archive holds: the paths of its files, and their digests."""
    manifest = _manifest_of(entry)
    lines = map(" ".join, zip(manifest.references, manifest.digests, strict=True))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _manifest_of(entry: SkillEntry) -> Manifest:
    if entry.manifest is None:
        raise NotFoundError(f"{entry.uri} is dynamic and has no archive", uri=entry.uri.text)
    return entry.manifest
