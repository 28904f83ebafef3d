"""Unpacked archives: a private folder for each, in which nothing changes once it is there.

    <root>/<64 hex: which origin>/origin.json
    <root>/<64 hex: which origin>/<64 hex: which archive>/archive
    <root>/<64 hex: which origin>/<64 hex: which archive>/<64 hex: a file's digest>

No name a server or an archive chose reaches the disk, and nothing on it is
believed. The archive lies beside its files because its digest is the only
promise there is: whoever did not unpack it begins with the archive again, and
holds every file against what came out of it.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from skillwire.core.manifest import UNKNOWN_SIZE, ManifestFile
from skillwire.errors import VerificationError
from skillwire.host.origin import Origin
from skillwire.host.state import shelf
from skillwire.host.state.cache import (
    MAX_BYTES,
    MAX_BYTES_PER_ORIGIN,
    ORIGIN_FILE,
    CacheUsage,
    OriginUsage,
    cost_of,
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

FOLDER = "trees"
"""The folder for all of them, in a host's cache."""

_ARCHIVE = "archive"
_OPEN, _CLOSED, _FILE = 0o700, 0o500, 0o400
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_TREE = re.compile(r"[0-9a-f]{64}")
_GONE = re.compile(r"\.gone-[0-9a-f]{16}")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TreeKey:
    """Which archive was unpacked: whose, from where, with which bytes. A skill's name has no part in it."""

    origin: Origin
    url: str
    digest: str

    @property
    def name(self) -> str:
        """The name of the tree's folder."""
        return hashlib.sha256(f"{self.url}\0{self.digest}".encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class _Kept:
    """A tree as a scan finds it."""

    origin: str
    name: str
    files: int
    size: int
    cost: int
    used: int


class Trees:
    """The unpacked archives of all servers, within a quota for each server and one for all.

    A disk that fails costs time, never a load. All methods may be called from
    any thread and by any number of processes; they use a disk, so an event
    loop should not.
    """

    def __init__(
        self, root: Path, *, max_bytes_per_origin: int = MAX_BYTES_PER_ORIGIN, max_bytes: int = MAX_BYTES
    ) -> None:
        self._root = root
        self._max_bytes_per_origin = max_bytes_per_origin
        self._max_bytes = max_bytes
        self._has_complained = False

    def put(self, key: TreeKey, archive: bytes, files: Mapping[str, bytes]) -> bool:
        """Keep an archive and what came out of it, by digest, in one step; false when that is not possible.

        A tree that is there already is replaced.
        """
        contents = {_ARCHIVE: archive} | {_hex(digest): content for digest, content in files.items()}
        cost = sum(cost_of(len(content)) for content in contents.values())
        if not shelf.IS_SUPPORTED or cost > min(self._max_bytes, self._max_bytes_per_origin):
            return False
        folder = folder_name(key.origin)
        try:
            make_folder(self._root)
            with shelf.folder(self._root) as root:
                with shelf.folder(folder, root, make=True) as inside:
                    if origin_in(inside, folder) is None:
                        shelf.write(inside, ORIGIN_FILE, origin_bytes(key.origin))
                    _build(inside, key.name, contents)
                self._make_room(root, keep=(folder, key.name))
        except OSError as error:
            self._complain("written", error)
            return False
        return True

    def archive(self, key: TreeKey, most: int) -> bytes | None:
        """Return the archive a tree came out of, of at most `most` bytes; None when it is not here.

        Raises:
            DigestMismatchError: Other bytes were here; the tree is gone.
        """
        return self._verified(key, _ARCHIVE, ManifestFile(key.url, key.digest, UNKNOWN_SIZE), most)

    def read(self, key: TreeKey, file: ManifestFile) -> bytes | None:
        """Return a file of a tree, as it came out of the archive; None when it is not here.

        Raises:
            VerificationError: Other bytes were here; the tree is gone.
        """
        return self._verified(key, _hex(file.digest), file, file.most_bytes)

    def forget(self, origin: Origin) -> bool:
        """Remove everything of one origin; false when there was nothing.

        Raises:
            SourceError: Not all of it can be removed.
        """
        with self._opened() as root:
            return root is not None and _remove_origin(root, folder_name(origin))

    def forget_label(self, label: str) -> int:
        """Remove everything of a server, whichever endpoints its label stood for; return how many it had.

        Raises:
            SourceError: Not all of it can be removed.
        """
        removed = 0
        with self._opened() as root:
            for name in [] if root is None else shelf.origins(root):
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
                for name in shelf.origins(root):
                    _remove_origin(root, name)
                shelf.remove_leftovers(root, older_than=0)

    def usage(self) -> CacheUsage:
        """Count what is kept, the archives with the files.

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
                for name in shelf.origins(root)
            ]
        return CacheUsage(
            sum(tree.files for tree in kept),
            sum(tree.size for tree in kept),
            tuple(sorted(origins, key=_order)),
        )

    def gc(self, *, older_than: float = STALE_AFTER) -> int:
        """Remove what crashes left behind and what is over a quota; return how many things that were.

        Raises:
            SourceError: The trees cannot be read.
        """
        with self._opened() as root:
            if root is None:
                return 0
            removed = shelf.remove_leftovers(root, older_than=older_than)
            for name in shelf.origins(root):
                if origin_at(root, name) is None and shelf.age(root, name) >= older_than:
                    removed += _remove_origin(root, name)
                    continue
                with suppress(OSError), shelf.folder(name, root) as inside:
                    for found in _names(inside):
                        is_old = is_temporary(found) and shelf.age(inside, found) >= older_than
                        if is_old or _GONE.fullmatch(found):
                            removed += _remove(inside, found)
            return removed + self._make_room(root)

    def _verified(self, key: TreeKey, name: str, file: ManifestFile, most: int) -> bytes | None:
        if not shelf.IS_SUPPORTED:
            return None
        try:
            with (
                shelf.folder(self._root) as root,
                shelf.folder(folder_name(key.origin), root) as inside,
            ):
                try:
                    with shelf.folder(key.name, inside) as tree:
                        content = shelf.read(tree, name, most + 1)
                        with suppress(OSError):
                            os.utime(tree)
                    file.verify(content)
                except NotPrivateError as error:
                    logger.warning("an unpacked archive was removed because %s", error.strerror)
                    _remove(inside, key.name)
                    return None
                except VerificationError:
                    _remove(inside, key.name)
                    raise
                return content
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain("read", error)
            return None

    def _opened(self) -> AbstractContextManager[int | None]:
        return shelf.opened(self._root, "the unpacked archives")

    def _make_room(self, root: int, keep: tuple[str, str] | None = None) -> int:
        """Where a quota is exceeded, remove the trees that were not used for longest, until there is room."""
        found = sorted(_scan(root), key=lambda tree: tree.used)
        total = sum(tree.cost for tree in found)
        costs = {tree.origin: 0 for tree in found}
        for tree in found:
            costs[tree.origin] += tree.cost
        removed = 0
        for tree in found:
            is_over = total > self._max_bytes or costs[tree.origin] > self._max_bytes_per_origin
            if is_over and (tree.origin, tree.name) != keep:
                with suppress(OSError), shelf.folder(tree.origin, root) as inside:
                    removed += _remove(inside, tree.name)
                total -= tree.cost
                costs[tree.origin] -= tree.cost
        return removed

    def _complain(self, what: str, error: OSError) -> None:
        if not self._has_complained:
            self._has_complained = True
            logger.warning("unpacked archives cannot be %s, and are done without: %s", what, error)


def _build(inside: int, name: str, contents: Mapping[str, bytes]) -> None:
    """Make a tree under a name of its own, and give it the right one when it is whole."""
    temporary = temporary_name()
    os.mkdir(temporary, _OPEN, dir_fd=inside)
    try:
        with shelf.folder(temporary, inside) as tree:
            for file, content in contents.items():
                _write(tree, file, content)
            os.fsync(tree)
            _remove(inside, name)
            os.rename(temporary, name, src_dir_fd=inside, dst_dir_fd=inside)
            os.fchmod(tree, _CLOSED)
    except BaseException:
        _remove(inside, temporary)
        raise
    os.fsync(inside)


def _write(tree: int, name: str, content: bytes) -> None:
    # Not synced one by one: a file that a crash cut short does not match, and is not used.
    descriptor = os.open(name, _CREATE, _FILE, dir_fd=tree)
    try:
        write_whole(descriptor, content)
    finally:
        os.close(descriptor)


def _remove(above: int, name: str) -> bool:
    """Remove a tree, or whatever stands in its place; false when that fails or there is nothing."""
    _reopen(above, name)
    return shelf.remove(above, name)


def _remove_origin(root: int, name: str) -> bool:
    with suppress(OSError), shelf.folder(name, root) as inside:
        for tree in _names(inside):
            _reopen(inside, tree)
    return shelf.remove_tree(root, name)


def _reopen(above: int, name: str) -> None:
    """Let files be removed from a folder that was closed for good."""
    with suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        try:
            os.fchmod(descriptor, _OPEN)
        finally:
            os.close(descriptor)


def _scan(root: int) -> Iterator[_Kept]:
    for origin in shelf.origins(root):
        with suppress(OSError), shelf.folder(origin, root) as inside:
            for name in _names(inside):
                if _TREE.fullmatch(name):
                    with suppress(OSError), shelf.folder(name, inside) as tree:
                        sizes = [found.st_size for found in _statuses(tree)]
                        cost = sum(map(cost_of, sizes))
                        used = os.fstat(tree).st_mtime_ns
                        yield _Kept(origin, name, len(sizes), sum(sizes), cost, used)


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
