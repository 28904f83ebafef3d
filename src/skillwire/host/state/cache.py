"""Verified files of servers' skills, kept by content so that a second load needs no server.

A file's place follows from its origin and its digest alone; no name a server
chose ever reaches the disk. Nothing on the disk is believed: bytes are held
against the entry at hand on every access, and what does not match is removed.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from skillwire.core.manifest import ManifestFile, is_digest
from skillwire.errors import VerificationError
from skillwire.host.origin import Origin
from skillwire.host.state import shelf
from skillwire.host.state.vault import STALE_AFTER, NotPrivateError, make_folder

MAX_BYTES_PER_ORIGIN = 200 * 1024 * 1024
MAX_BYTES = 1024 * 1024 * 1024

ORIGIN_FILE = "origin.json"

_BLOCK = 4096
_MAX_ORIGIN_BYTES = 64 * 1024

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OriginUsage:
    """What is kept of one origin; the label is empty when the folder does not say it."""

    label: str
    fingerprint: str
    files: int
    size: int


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """What is kept, in all and by origin."""

    files: int
    size: int
    origins: tuple[OriginUsage, ...]


class ContentCache:
    """Files by digest, one folder for each origin, within a quota for each and one for all.

    Being cached says nothing about a file but what it is: it stays the file
    of its origin, and other origins do not find it. A disk that fails costs
    time, never a load. All methods may be called from any thread and by any
    number of processes; they use a disk, so an event loop should not.
    """

    def __init__(
        self, root: Path, *, max_bytes_per_origin: int = MAX_BYTES_PER_ORIGIN, max_bytes: int = MAX_BYTES
    ) -> None:
        self._root = root
        self._max_bytes_per_origin = max_bytes_per_origin
        self._max_bytes = max_bytes
        self._counting = threading.Lock()
        self._costs: dict[str, int] | None = None
        self._unscanned = 0
        self._has_complained = False

    def get(self, origin: Origin, file: ManifestFile) -> bytes | None:
        """Return the bytes an entry promises, or None when they are not here.

        Raises:
            SizeMismatchError: Bytes of another length were here; they are gone.
            DigestMismatchError: Other bytes were here; they are gone.
        """
        if not (
            shelf.IS_SUPPORTED and is_digest(file.digest) and file.most_bytes <= self._max_bytes_per_origin
        ):
            return None
        name = _hex(file)
        try:
            with (
                shelf.folder(self._root) as root,
                shelf.folder(folder_name(origin), root) as inside,
                shelf.folder(name[:2], inside) as files,
            ):
                return _verified(files, name, file)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain("read", error)
            return None

    def put(self, origin: Origin, file: ManifestFile, content: bytes) -> bool:
        """Keep the bytes an entry promises; false when they could not be kept.

        Raises:
            VerificationError: They are not what the entry promises; nothing was written.
        """
        file.verify(content)
        cost = cost_of(len(content))
        if not shelf.IS_SUPPORTED or cost > min(self._max_bytes, self._max_bytes_per_origin):
            return False
        name, folder = _hex(file), folder_name(origin)
        try:
            make_folder(self._root)
            with shelf.folder(self._root) as root:
                with shelf.folder(folder, root, make=True) as inside:
                    if origin_in(inside, folder) is None:
                        shelf.write(inside, ORIGIN_FILE, origin_bytes(origin))
                    with shelf.folder(name[:2], inside, make=True) as files:
                        shelf.write(files, name, content)
                self._count(root, folder, name, cost)
        except OSError as error:
            self._complain("written", error)
            return False
        return True

    def forget(self, origin: Origin) -> bool:
        """Remove everything of one origin; false when there was nothing.

        Raises:
            SourceError: Not all of it can be removed.
        """
        with self._opened() as root:
            return root is not None and shelf.remove_tree(root, folder_name(origin))

    def forget_label(self, label: str) -> int:
        """Remove everything of a server, whichever endpoints its label stood for; return how many it had.

        A folder that does not say whose it is goes too: what it holds can be fetched again.

        Raises:
            SourceError: Not all of it can be removed.
        """
        removed = 0
        with self._opened() as root:
            for name in [] if root is None else shelf.origins(root):
                assert root is not None
                origin = origin_at(root, name)
                if origin is None or origin[0] == label:
                    removed += shelf.remove_tree(root, name)
        return removed

    def clear(self) -> None:
        """Remove everything.

        Raises:
            SourceError: Not all of it can be removed.
        """
        with self._opened() as root:
            if root is not None:
                for name in shelf.origins(root):
                    shelf.remove_tree(root, name)
                shelf.remove_leftovers(root, older_than=0)

    def usage(self) -> CacheUsage:
        """Count what is kept.

        Raises:
            SourceError: The cache cannot be read.
        """
        with self._opened() as root:
            if root is None:
                return CacheUsage(0, 0, ())
            counts = {name: [0, 0] for name in shelf.origins(root)}
            for found in shelf.stored(root):
                count = counts.setdefault(found.origin, [0, 0])
                count[0] += 1
                count[1] += found.size
            origins = [
                OriginUsage(*(origin_at(root, name) or ("", "")), files, size)
                for name, (files, size) in counts.items()
            ]
        origins.sort(key=lambda origin: (origin.label, origin.fingerprint))
        return CacheUsage(
            sum(origin.files for origin in origins), sum(origin.size for origin in origins), tuple(origins)
        )

    def gc(self, *, older_than: float = STALE_AFTER) -> int:
        """Remove what crashes left behind and what is over a quota; return how many things that were.

        Raises:
            SourceError: The cache cannot be read.
        """
        with self._opened() as root:
            if root is None:
                return 0
            removed = shelf.remove_leftovers(root, older_than=older_than)
            for name in shelf.origins(root):
                if origin_at(root, name) is None and shelf.age(root, name) >= older_than:
                    removed += shelf.remove_tree(root, name)
            with self._counting:
                return removed + self._make_room(root)

    @contextmanager
    def _opened(self) -> Generator[int | None]:
        """Open the cache as `shelf.opened` does, and count anew what is there after that."""
        try:
            with shelf.opened(self._root, "the cache") as root:
                yield root
        finally:
            with self._counting:
                self._costs = None

    def _count(self, root: int, folder: str, name: str, cost: int) -> None:
        """Add a file that was written, and make room when it is time; other processes write here too."""
        with self._counting:
            self._unscanned += cost
            if self._costs is not None:
                self._costs[folder] = self._costs.get(folder, 0) + cost
                is_full = self._costs[folder] > self._max_bytes_per_origin or (
                    sum(self._costs.values()) > self._max_bytes
                )
                if not is_full and self._unscanned <= self._max_bytes // 16:
                    return
            self._make_room(root, keep=(folder, name))

    def _make_room(self, root: int, keep: tuple[str, str] | None = None) -> int:
        """Scan, and where a quota is exceeded remove what was not used for longest, until there is room."""
        found = sorted(shelf.stored(root), key=lambda file: file.used)
        costs: dict[str, int] = {}
        for file in found:
            costs[file.origin] = costs.get(file.origin, 0) + cost_of(file.size)
        total = sum(costs.values())
        goal = _goal(total, self._max_bytes)
        goals = {origin: _goal(cost, self._max_bytes_per_origin) for origin, cost in costs.items()}
        removed = 0
        for file in found:
            if (total > goal or costs[file.origin] > goals[file.origin]) and (file.origin, file.name) != keep:
                if shelf.remove_stored(root, file):
                    removed += 1
                total -= cost_of(file.size)
                costs[file.origin] -= cost_of(file.size)
        self._costs, self._unscanned = costs, 0
        return removed

    def _complain(self, what: str, error: OSError) -> None:
        if not self._has_complained:
            self._has_complained = True
            logger.warning("the cache cannot be %s, and is done without: %s", what, error)


def _verified(files: int, name: str, file: ManifestFile) -> bytes | None:
    try:
        content = shelf.read(files, name, file.most_bytes + 1, touch=True)
    except NotPrivateError as error:
        logger.warning("a cached file was removed because %s", error.strerror)
        shelf.remove(files, name)
        return None
    try:
        file.verify(content)
    except VerificationError:
        shelf.remove(files, name)
        raise
    return content


def _hex(file: ManifestFile) -> str:
    return file.digest.removeprefix("sha256:")


def folder_name(origin: Origin) -> str:
    """Return the name of the folder for what is kept of one origin."""
    return _name_of(origin.label, origin.fingerprint)


def _name_of(label: str, fingerprint: str) -> str:
    return hashlib.sha256(f"{label}\0{fingerprint}".encode("utf-8", "surrogatepass")).hexdigest()


def origin_bytes(origin: Origin) -> bytes:
    """Return what such a folder says of itself, in its `origin.json`."""
    return json.dumps({"label": origin.label, "fingerprint": origin.fingerprint}).encode()


def origin_at(root: int, name: str) -> tuple[str, str] | None:
    """Return the label and fingerprint of the folder `name`, as `origin_in` does."""
    with suppress(OSError), shelf.folder(name, root) as inside:
        return origin_in(inside, name)
    return None


def origin_in(inside: int, name: str) -> tuple[str, str] | None:
    """Return the label and fingerprint a folder is for; None unless its own name confirms them."""
    try:
        said = json.loads(shelf.read(inside, ORIGIN_FILE, _MAX_ORIGIN_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    fields = cast(dict[str, object], said)
    label, fingerprint = fields.get("label"), fields.get("fingerprint")
    if isinstance(label, str) and isinstance(fingerprint, str) and _name_of(label, fingerprint) == name:
        return label, fingerprint
    return None


def cost_of(size: int) -> int:
    """Return what a file takes of a disk, so that very many very small ones fill a quota too."""
    return max(1, -(-size // _BLOCK)) * _BLOCK


def _goal(used: int, quota: int) -> int:
    """Return how much may stay: with a quota exceeded, a tenth less, so that the next file finds room."""
    return quota if used <= quota else quota - quota // 10
