"""Unpacked archives: a private, read-only folder for each.

    <root>/<64 hex: which origin>/origin.json
    <root>/<64 hex: which origin>/<64 hex: which archive>/archive
    <root>/<64 hex: which origin>/<64 hex: which archive>/<64 hex: a file's digest>

Names chosen by a server or an archive are never used on disk, and nothing on
disk is trusted. The archive is stored with its files because its digest is the
only one listed: a process that did not unpack it starts from the archive
again, and verifies every file against it.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from skillwire.core import UNKNOWN_SIZE, ManifestFile, VerificationError
from skillwire.host.model import Origin
from skillwire.host.state import folders
from skillwire.host.state.content import (
    MAX_BYTES_PER_ORIGIN,
    MAX_CACHE_BYTES,
    ORIGIN_FILE,
    CacheUsage,
    OriginUsage,
    disk_usage,
    folder_name,
    origin_at,
    origin_bytes,
    origin_in,
)
from skillwire.host.state.vault import (
    STALE_AFTER,
    NotPrivateError,
    is_temporary,
    make_folder,
    temporary_name,
    write_whole,
)

UNPACKED_FOLDER = "trees"
"""The name of the folder for all trees, in a host's cache."""

_ARCHIVE = "archive"
_WRITABLE, _READ_ONLY, _FILE_MODE = 0o700, 0o500, 0o400
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_TREE = re.compile(r"[0-9a-f]{64}")
_BEING_REMOVED = re.compile(r"\.gone-[0-9a-f]{16}")

logger = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class _StoredTree:
    """A tree found by a scan."""

    origin: str
    name: str
    files: int
    size: int
    cost: int
    used: int


class UnpackedArchives:
    """The unpacked archives of all servers, within a quota for each server and one for all.

    A failing disk slows loads down but does not fail them. All methods are
    safe for several threads and processes; they block on the disk, so do not
    call them from an event loop.
    """

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
        self._has_warned = False

    def put(self, key: ArchiveKey, archive: bytes, files: Mapping[str, bytes]) -> bool:
        """Store an archive and its files, by digest, atomically; False when that is not possible.

        An existing tree is replaced.
        """
        contents = {_ARCHIVE: archive} | {_hex(digest): content for digest, content in files.items()}
        cost = sum(disk_usage(len(content)) for content in contents.values())
        if not folders.IS_SUPPORTED or cost > min(self._max_bytes, self._max_bytes_per_origin):
            return False
        folder = folder_name(key.origin)
        try:
            make_folder(self._root)
            with folders.folder(self._root) as root:
                with folders.folder(folder, root, make=True) as inside:
                    if origin_in(inside, folder) is None:
                        folders.write(inside, ORIGIN_FILE, origin_bytes(key.origin))
                    _write_tree(inside, key.name, contents)
                self._enforce_quotas(root, keep=(folder, key.name))
        except OSError as error:
            self._warn_once("written", error)
            return False
        return True

    def archive(self, key: ArchiveKey, most: int) -> bytes | None:
        """Return the archive of a tree, of at most `most` bytes; None when it is not stored.

        Raises:
            DigestMismatchError: The stored bytes did not match; the tree was removed.
        """
        return self._verified(key, _ARCHIVE, ManifestFile(key.url, key.digest, UNKNOWN_SIZE), most)

    def read(self, key: ArchiveKey, file: ManifestFile) -> bytes | None:
        """Return a file of a tree; None when it is not stored.

        Raises:
            VerificationError: The stored bytes did not match; the tree was removed.
        """
        return self._verified(key, _hex(file.digest), file, file.max_bytes)

    def forget(self, origin: Origin) -> bool:
        """Remove everything of one origin; False when there was nothing.

        Raises:
            SourceError: Not all of it can be removed.
        """
        with self._opened() as root:
            return root is not None and _remove_origin(root, folder_name(origin))

    def forget_label(self, label: str) -> int:
        """Remove everything of a server, for all endpoints its label ever had; return their number.

        Raises:
            SourceError: Not all of it can be removed.
        """
        removed = 0
        with self._opened() as root:
            for name in [] if root is None else folders.origins(root):
                assert root is not None
                origin = origin_at(root, name)
                if origin is None or origin[0] == label:
                    removed += _remove_origin(root, name)
        return removed

    def clear(self) -> None:
        """Remove everything.

        Raises:
            SourceError: Not all of it can be removed.
        """
        with self._opened() as root:
            if root is not None:
                for name in folders.origins(root):
                    _remove_origin(root, name)
                folders.remove_leftovers(root, older_than=0)

    def usage(self) -> CacheUsage:
        """Return the number and size of all stored files, archives included.

        Raises:
            SourceError: The trees cannot be read.
        """
        with self._opened() as root:
            if root is None:
                return CacheUsage(0, 0, ())
            kept = list(_scan(root))
            origins = [
                OriginUsage(
                    *(origin_at(root, name) or ("", "")),
                    sum(tree.files for tree in kept if tree.origin == name),
                    sum(tree.size for tree in kept if tree.origin == name),
                )
                for name in folders.origins(root)
            ]
        return CacheUsage(
            sum(tree.files for tree in kept),
            sum(tree.size for tree in kept),
            tuple(sorted(origins, key=_order)),
        )

    def gc(self, *, older_than: float = STALE_AFTER) -> int:
        """Remove leftovers of crashes and what exceeds a quota; return the number of removed items.

        Raises:
            SourceError: The trees cannot be read.
        """
        with self._opened() as root:
            if root is None:
                return 0
            removed = folders.remove_leftovers(root, older_than=older_than)
            for name in folders.origins(root):
                if origin_at(root, name) is None and folders.age(root, name) >= older_than:
                    removed += _remove_origin(root, name)
                    continue
                with suppress(OSError), folders.folder(name, root) as inside:
                    for found in _names(inside):
                        is_old = is_temporary(found) and folders.age(inside, found) >= older_than
                        if is_old or _BEING_REMOVED.fullmatch(found):
                            removed += _remove(inside, found)
            return removed + self._enforce_quotas(root)

    def _verified(self, key: ArchiveKey, name: str, file: ManifestFile, most: int) -> bytes | None:
        if not folders.IS_SUPPORTED:
            return None
        try:
            with (
                folders.folder(self._root) as root,
                folders.folder(folder_name(key.origin), root) as inside,
            ):
                try:
                    with folders.folder(key.name, inside) as tree:
                        content = folders.read(tree, name, most + 1)
                        with suppress(OSError):
                            os.utime(tree)
                    file.verify(content)
                except NotPrivateError as error:
                    logger.warning("removed an unpacked archive that is not private: %s", error.strerror)
                    _remove(inside, key.name)
                    return None
                except VerificationError:
                    _remove(inside, key.name)
                    raise
                return content
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_once("read", error)
            return None

    def _opened(self) -> AbstractContextManager[int | None]:
        return folders.opened(self._root, "the unpacked archives")

    def _enforce_quotas(self, root: int, keep: tuple[str, str] | None = None) -> int:
        """Remove the least recently used trees while a quota is exceeded; return their number."""
        found = sorted(_scan(root), key=lambda tree: tree.used)
        total = sum(tree.cost for tree in found)
        costs = {tree.origin: 0 for tree in found}
        for tree in found:
            costs[tree.origin] += tree.cost
        removed = 0
        for tree in found:
            is_over = total > self._max_bytes or costs[tree.origin] > self._max_bytes_per_origin
            if is_over and (tree.origin, tree.name) != keep:
                with suppress(OSError), folders.folder(tree.origin, root) as inside:
                    removed += _remove(inside, tree.name)
                total -= tree.cost
                costs[tree.origin] -= tree.cost
        return removed

    def _warn_once(self, what: str, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("unpacked archives cannot be %s; continuing without them: %s", what, error)


def _write_tree(inside: int, name: str, contents: Mapping[str, bytes]) -> None:
    """Write a tree under a temporary name, and rename it when it is complete."""
    temporary = temporary_name()
    os.mkdir(temporary, _WRITABLE, dir_fd=inside)
    try:
        with folders.folder(temporary, inside) as tree:
            for file, content in contents.items():
                _write_file(tree, file, content)
            os.fsync(tree)
            _remove(inside, name)
            os.rename(temporary, name, src_dir_fd=inside, dst_dir_fd=inside)
            os.fchmod(tree, _READ_ONLY)
    except BaseException:
        _remove(inside, temporary)
        raise
    os.fsync(inside)


def _write_file(tree: int, name: str, content: bytes) -> None:
    # Not synced one by one: a file that a crash truncated fails verification and is not used.
    descriptor = os.open(name, _CREATE, _FILE_MODE, dir_fd=tree)
    try:
        write_whole(descriptor, content)
    finally:
        os.close(descriptor)


def _remove(above: int, name: str) -> bool:
    """Remove a tree, or anything else of that name; False when that fails or there is nothing."""
    _make_writable(above, name)
    return folders.remove(above, name)


def _remove_origin(root: int, name: str) -> bool:
    with suppress(OSError), folders.folder(name, root) as inside:
        for tree in _names(inside):
            _make_writable(inside, tree)
    return folders.remove_tree(root, name)


def _make_writable(above: int, name: str) -> None:
    """Make a read-only folder writable, so that its files can be removed."""
    with suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        try:
            os.fchmod(descriptor, _WRITABLE)
        finally:
            os.close(descriptor)


def _scan(root: int) -> Iterator[_StoredTree]:
    for origin in folders.origins(root):
        with suppress(OSError), folders.folder(origin, root) as inside:
            for name in _names(inside):
                if _TREE.fullmatch(name):
                    with suppress(OSError), folders.folder(name, inside) as tree:
                        sizes = [found.st_size for found in _statuses(tree)]
                        cost = sum(map(disk_usage, sizes))
                        used = os.fstat(tree).st_mtime_ns
                        yield _StoredTree(origin, name, len(sizes), sum(sizes), cost, used)


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


def _statuses(tree: int) -> Iterator[os.stat_result]:
    with os.scandir(tree) as entries:
        for entry in entries:
            yield entry.stat(follow_symlinks=False)


def _order(origin: OriginUsage) -> tuple[str, str]:
    return (origin.label, origin.fingerprint)


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
