"""What servers sent, on disk: a cache of verified files, and unpacked archives.

    <root>/<64 hex: which origin>/origin.json
    <root>/<64 hex: which origin>/<2 hex>/<64 hex: the digest>
    <root>/trees/<64 hex: which origin>/origin.json
    <root>/trees/<64 hex: which origin>/<64 hex: which archive>/archive
    <root>/trees/<64 hex: which origin>/<64 hex: which archive>/<64 hex: a file's digest>

Names chosen by a server or an archive are never used on disk. Nothing on disk
is trusted: bytes are verified against the entry on every access, and removed
if they do not match.
"""

import hashlib
import json
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from skillwire.core import UNKNOWN_SIZE, ManifestFile, VerificationError, is_digest
from skillwire.host.model import Origin
from skillwire.host.state import folders
from skillwire.host.state.vault import STALE_AFTER, NotPrivateError, make_folder, temporary_name, write_whole

MAX_BYTES_PER_ORIGIN = 200 * 1024 * 1024
MAX_CACHE_BYTES = 1024 * 1024 * 1024
UNPACKED_FOLDER = "trees"
"""The name of the folder for all unpacked archives, in a host's cache."""

_ORIGIN_FILE = "origin.json"
_ARCHIVE = "archive"
_BLOCK = 4096
_MAX_ORIGIN_BYTES = 64 * 1024
_WRITABLE, _READ_ONLY, _FILE_MODE = 0o700, 0o500, 0o400

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OriginUsage:
    """Cache usage of one origin; the label is empty when the folder does not record it."""

    label: str
    fingerprint: str
    files: int
    size: int


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Cache usage, in total and by origin."""

    files: int
    size: int
    origins: tuple[OriginUsage, ...]


@dataclass(frozen=True, slots=True)
class _Item:
    """A file or tree found by a scan: its folder and name, the sizes of its files, and its last use."""

    origin: str
    name: str
    sizes: tuple[int, ...]
    used: int

    @property
    def cost(self) -> int:
        return sum(map(_disk_usage, self.sizes))


_Status: TypeAlias = tuple[str, tuple[int, ...], int]
"""The name of an item, the sizes of its files, and the time of its last use."""


class _OriginFolders(ABC):
    """Items in one folder for each origin, within a quota for each and one for all.

    What is stored belongs to its origin; other origins do not see it. A
    failing disk slows loads down but does not fail them. All methods are safe
    for several threads and processes; they block on the disk, so do not call
    them from an event loop.
    """

    subject: str

    def __init__(
        self,
        root: Path,
        *,
        max_bytes_per_origin: int = MAX_BYTES_PER_ORIGIN,
        max_bytes: int = MAX_CACHE_BYTES,
    ) -> None:
        self._root = root
        self._max_bytes_per_origin = max_bytes_per_origin
        self._max_bytes = max_bytes
        self._counting = threading.Lock()
        self._costs: Counter[str] | None = None
        self._unscanned = 0
        self._has_warned = False

    def forget(self, origin: Origin) -> bool:
        """Remove everything of one origin; False when there was nothing.

        Raises:
            SourceError: Not all of it can be removed.
        """
        with self._opened() as root:
            return root is not None and folders.remove_tree(root, _folder_name(origin))

    def forget_label(self, label: str) -> int:
        """Remove everything of a server, for all endpoints its label ever had; return their number.

        Folders without a recorded origin are removed too: their files can be fetched again.

        Raises:
            SourceError: Not all of it can be removed.
        """
        removed = 0
        with self._opened() as root:
            for name in [] if root is None else folders.origins(root):
                assert root is not None
                origin = _origin_at(root, name)
                if origin is None or origin[0] == label:
                    removed += folders.remove_tree(root, name)
        return removed

    def clear(self) -> None:
        """Remove everything.

        Raises:
            SourceError: Not all of it can be removed.
        """
        with self._opened() as root:
            if root is not None:
                for name in folders.origins(root):
                    folders.remove_tree(root, name)
                folders.remove_leftovers(root, older_than=0)

    def usage(self) -> CacheUsage:
        """Return the number and size of stored files.

        Raises:
            SourceError: The folder cannot be read.
        """
        with self._opened() as root:
            if root is None:
                return CacheUsage(0, 0, ())
            files, sizes = Counter[str](), Counter[str]()
            for item in self._scan(root):
                files[item.origin] += len(item.sizes)
                sizes[item.origin] += sum(item.sizes)
            origins = [
                OriginUsage(*(_origin_at(root, name) or ("", "")), files[name], sizes[name])
                for name in folders.origins(root)
            ]
        origins.sort(key=lambda origin: (origin.label, origin.fingerprint))
        return CacheUsage(files.total(), sizes.total(), tuple(origins))

    def gc(self, *, older_than: float = STALE_AFTER) -> int:
        """Remove leftovers of crashes and what exceeds a quota; return the number of removed items.

        Raises:
            SourceError: The folder cannot be read.
        """
        with self._opened() as root:
            if root is None:
                return 0
            removed = folders.remove_leftovers(root, older_than=older_than)
            for name in folders.origins(root):
                if _origin_at(root, name) is None and folders.age(root, name) >= older_than:
                    removed += folders.remove_tree(root, name)
            with self._counting:
                return removed + self._enforce_quotas(root)

    @abstractmethod
    def _items(self, inside: int) -> Iterator[_Status]:
        """Yield the items in the folder of an origin."""

    @abstractmethod
    def _remove(self, inside: int, name: str) -> bool:
        """Remove an item from the folder of an origin; False when that fails."""

    def _store(self, origin: Origin, name: str, cost: int, write: Callable[[int], None]) -> bool:
        """Write an item into the folder of an origin; False when that is not possible."""
        if not folders.IS_SUPPORTED or cost > min(self._max_bytes, self._max_bytes_per_origin):
            return False
        folder = _folder_name(origin)
        try:
            make_folder(self._root)
            with folders.folder(self._root) as root:
                with folders.folder(folder, root, make=True) as inside:
                    if _origin_in(inside, folder) is None:
                        folders.write(inside, _ORIGIN_FILE, _origin_bytes(origin))
                    write(inside)
                self._count(root, folder, name, cost)
        except OSError as error:
            self._warn_once("written", error)
            return False
        return True

    def _verified(
        self, origin: Origin, item: str, file: ManifestFile, read: Callable[[int], bytes]
    ) -> bytes | None:
        """Return verified bytes of an item, or None when it is not stored.

        An item that is not private or does not match is removed.

        Raises:
            VerificationError: It did not match.
        """
        if not folders.IS_SUPPORTED:
            return None
        try:
            with folders.folder(self._root) as root, folders.folder(_folder_name(origin), root) as inside:
                try:
                    content = read(inside)
                    file.verify(content)
                except NotPrivateError as error:
                    logger.warning(
                        "removed an item of %s that is not private: %s", self.subject, error.strerror
                    )
                    self._remove(inside, item)
                    return None
                except VerificationError:
                    self._remove(inside, item)
                    raise
                return content
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_once("read", error)
            return None

    @contextmanager
    def _opened(self) -> Generator[int | None]:
        """Open the folder as `folders.opened` does, and reset the usage counts afterwards."""
        try:
            with folders.opened(self._root, self.subject) as root:
                yield root
        finally:
            with self._counting:
                self._costs = None

    def _count(self, root: int, folder: str, name: str, cost: int) -> None:
        """Count an item that was written, and enforce quotas when due; other processes write here too."""
        with self._counting:
            self._unscanned += cost
            if self._costs is not None:
                self._costs[folder] += cost
                is_full = (
                    self._costs[folder] > self._max_bytes_per_origin or self._costs.total() > self._max_bytes
                )
                if not is_full and self._unscanned <= self._max_bytes // 16:
                    return
            self._enforce_quotas(root, keep=(folder, name))

    def _enforce_quotas(self, root: int, keep: tuple[str, str] | None = None) -> int:
        """Scan, and remove the least recently used items while a quota is exceeded; return their number."""
        found = sorted(self._scan(root), key=lambda item: item.used)
        costs = Counter[str]()
        for item in found:
            costs[item.origin] += item.cost
        total = costs.total()
        goal = _target(total, self._max_bytes)
        goals = {origin: _target(cost, self._max_bytes_per_origin) for origin, cost in costs.items()}
        removed = 0
        for item in found:
            if (total > goal or costs[item.origin] > goals[item.origin]) and (item.origin, item.name) != keep:
                with suppress(OSError), folders.folder(item.origin, root) as inside:
                    removed += self._remove(inside, item.name)
                total -= item.cost
                costs[item.origin] -= item.cost
        self._costs, self._unscanned = costs, 0
        return removed

    def _scan(self, root: int) -> Iterator[_Item]:
        for origin in folders.origins(root):
            with suppress(OSError), folders.folder(origin, root) as inside:
                for status in self._items(inside):
                    yield _Item(origin, *status)

    def _warn_once(self, what: str, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s cannot be %s; continuing without: %s", self.subject, what, error)


class ContentCache(_OriginFolders):
    """Files of servers' skills by digest, so that a second load needs no server."""

    subject = "the cache"

    def get(self, origin: Origin, file: ManifestFile) -> bytes | None:
        """Return the cached bytes of a listed file, or None when they are not cached.

        Raises:
            SizeMismatchError: The cached bytes had another length; they were removed.
            DigestMismatchError: The cached bytes did not match; they were removed.
        """
        if not is_digest(file.digest) or file.max_bytes > self._max_bytes_per_origin:
            return None
        name = _hex(file.digest)

        def read(inside: int) -> bytes:
            with folders.folder(name[:2], inside) as shard:
                return folders.read(shard, name, file.max_bytes + 1, touch=True)

        return self._verified(origin, name, file, read)

    def put(self, origin: Origin, file: ManifestFile, content: bytes) -> bool:
        """Store the bytes of a listed file; False when they could not be stored.

        Raises:
            VerificationError: They do not match the entry; nothing was written.
        """
        file.verify(content)
        name = _hex(file.digest)

        def write(inside: int) -> None:
            with folders.folder(name[:2], inside, make=True) as shard:
                folders.write(shard, name, content)

        return self._store(origin, name, _disk_usage(len(content)), write)

    def _items(self, inside: int) -> Iterator[_Status]:
        for shard in folders.shards(inside):
            with suppress(OSError), folders.folder(shard, inside) as opened:
                for name, found in folders.statuses(opened):
                    if folders.is_name(name):
                        yield name, (found.st_size,), found.st_mtime_ns

    def _remove(self, inside: int, name: str) -> bool:
        with suppress(OSError), folders.folder(name[:2], inside) as shard:
            return folders.remove(shard, name)
        return False


@dataclass(frozen=True, slots=True)
class ArchiveKey:
    """The identity of an unpacked archive: origin, URL and digest. The skill's name is not part of it."""

    origin: Origin
    url: str
    digest: str

    @property
    def name(self) -> str:
        """The name of the tree's folder."""
        return hashlib.sha256(f"{self.url}\0{self.digest}".encode("utf-8", "surrogatepass")).hexdigest()


class UnpackedArchives(_OriginFolders):
    """The unpacked archives of all servers: a private, read-only folder for each.

    The archive is stored with its files because its digest is the only one
    listed: a process that did not unpack it starts from the archive again, and
    verifies every file against it.
    """

    subject = "the folder of unpacked archives"

    def put(self, key: ArchiveKey, archive: bytes, files: Mapping[str, bytes]) -> bool:
        """Store an archive and its files, by digest, atomically; False when that is not possible.

        An existing tree is replaced.
        """
        contents = {_ARCHIVE: archive} | {_hex(digest): content for digest, content in files.items()}
        cost = sum(_disk_usage(len(content)) for content in contents.values())
        return self._store(key.origin, key.name, cost, lambda inside: _write_tree(inside, key.name, contents))

    def archive(self, key: ArchiveKey, most: int) -> bytes | None:
        """Return the archive of a tree, of at most `most` bytes; None when it is not stored.

        Raises:
            DigestMismatchError: The stored bytes did not match; the tree was removed.
        """
        return self._tree_file(key, _ARCHIVE, ManifestFile(key.url, key.digest, UNKNOWN_SIZE), most)

    def read(self, key: ArchiveKey, file: ManifestFile) -> bytes | None:
        """Return a file of a tree; None when it is not stored.

        Raises:
            VerificationError: The stored bytes did not match; the tree was removed.
        """
        return self._tree_file(key, _hex(file.digest), file, file.max_bytes)

    def _tree_file(self, key: ArchiveKey, name: str, file: ManifestFile, most: int) -> bytes | None:
        def read(inside: int) -> bytes:
            with folders.folder(key.name, inside) as tree:
                content = folders.read(tree, name, most + 1)
                with suppress(OSError):
                    os.utime(tree)
                return content

        return self._verified(key.origin, key.name, file, read)

    def _items(self, inside: int) -> Iterator[_Status]:
        for name in folders.origins(inside):
            with suppress(OSError), folders.folder(name, inside) as tree:
                sizes = tuple(found.st_size for _, found in folders.statuses(tree))
                yield name, sizes, os.fstat(tree).st_mtime_ns

    def _remove(self, inside: int, name: str) -> bool:
        return folders.remove(inside, name)


def _write_tree(inside: int, name: str, contents: Mapping[str, bytes]) -> None:
    """Write a tree under a temporary name, and rename it when it is complete."""
    temporary = temporary_name()
    os.mkdir(temporary, _WRITABLE, dir_fd=inside)
    try:
        with folders.folder(temporary, inside) as tree:
            for file, content in contents.items():
                # Not synced one by one: a file that a crash truncated fails verification and is not used.
                descriptor = os.open(file, folders.CREATE, _FILE_MODE, dir_fd=tree)
                try:
                    write_whole(descriptor, content)
                finally:
                    os.close(descriptor)
            os.fsync(tree)
            folders.remove(inside, name)
            os.rename(temporary, name, src_dir_fd=inside, dst_dir_fd=inside)
            os.fchmod(tree, _READ_ONLY)
    except BaseException:
        folders.remove(inside, temporary)
        raise
    os.fsync(inside)


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _folder_name(origin: Origin) -> str:
    """Return the name of the folder of one origin."""
    return _name_of(origin.label, origin.fingerprint)


def _name_of(label: str, fingerprint: str) -> str:
    return hashlib.sha256(f"{label}\0{fingerprint}".encode("utf-8", "surrogatepass")).hexdigest()


def _origin_bytes(origin: Origin) -> bytes:
    """Return the content of the `origin.json` in the folder of an origin."""
    return json.dumps({"label": origin.label, "fingerprint": origin.fingerprint}).encode()


def _origin_at(root: int, name: str) -> tuple[str, str] | None:
    """Return the label and fingerprint of the folder `name`, as `_origin_in` does."""
    with suppress(OSError), folders.folder(name, root) as inside:
        return _origin_in(inside, name)
    return None


def _origin_in(inside: int, name: str) -> tuple[str, str] | None:
    """Return the label and fingerprint recorded in a folder; None unless they match its name."""
    try:
        recorded = json.loads(folders.read(inside, _ORIGIN_FILE, _MAX_ORIGIN_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(recorded, dict):
        return None
    fields = cast(dict[str, object], recorded)
    label, fingerprint = fields.get("label"), fields.get("fingerprint")
    if isinstance(label, str) and isinstance(fingerprint, str) and _name_of(label, fingerprint) == name:
        return label, fingerprint
    return None


def _disk_usage(size: int) -> int:
    """Return the disk space of a file in whole blocks, so that many small files count too."""
    return max(1, -(-size // _BLOCK)) * _BLOCK


def _target(used: int, quota: int) -> int:
    """Return how much may stay: if the quota is exceeded, 90 % of it, to leave room for the next file."""
    return quota if used <= quota else quota - quota // 10
