"""A cache of verified files of servers' skills, so that a second load needs no server.

The path of a file depends on its origin and digest only; names chosen by a
server are never used on disk. Nothing on disk is trusted: bytes are verified
against the entry on every access, and removed if they do not match.
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

from skillwire.core import ManifestFile, VerificationError, is_digest
from skillwire.host.model import Origin
from skillwire.host.state import folders
from skillwire.host.state.vault import STALE_AFTER, NotPrivateError, make_folder

MAX_BYTES_PER_ORIGIN = 200 * 1024 * 1024
MAX_CACHE_BYTES = 1024 * 1024 * 1024

ORIGIN_FILE = "origin.json"

_BLOCK = 4096
_MAX_ORIGIN_BYTES = 64 * 1024

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


class ContentCache:
    """Files by digest, one folder for each origin, within a quota for each and one for all.

    A cached file belongs to its origin; other origins do not see it. A failing
    disk slows loads down but does not fail them. All methods are safe for
    several threads and processes; they block on the disk, so do not call them
    from an event loop.
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
        self._counting = threading.Lock()
        self._costs: dict[str, int] | None = None
        self._unscanned = 0
        self._has_warned = False

    def get(self, origin: Origin, file: ManifestFile) -> bytes | None:
        """Return the cached bytes of a listed file, or None when they are not cached.

        Raises:
            SizeMismatchError: The cached bytes had another length; they were removed.
            DigestMismatchError: The cached bytes did not match; they were removed.
        """
        if not (
            folders.IS_SUPPORTED and is_digest(file.digest) and file.max_bytes <= self._max_bytes_per_origin
        ):
            return None
        name = _hex(file)
        try:
            with (
                folders.folder(self._root) as root,
                folders.folder(folder_name(origin), root) as inside,
                folders.folder(name[:2], inside) as files,
            ):
                return _verified(files, name, file)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_once("read", error)
            return None

    def put(self, origin: Origin, file: ManifestFile, content: bytes) -> bool:
        """Store the bytes of a listed file; False when they could not be stored.

        Raises:
            VerificationError: They do not match the entry; nothing was written.
        """
        file.verify(content)
        cost = disk_usage(len(content))
        if not folders.IS_SUPPORTED or cost > min(self._max_bytes, self._max_bytes_per_origin):
            return False
        name, folder = _hex(file), folder_name(origin)
        try:
            make_folder(self._root)
            with folders.folder(self._root) as root:
                with folders.folder(folder, root, make=True) as inside:
                    if origin_in(inside, folder) is None:
                        folders.write(inside, ORIGIN_FILE, origin_bytes(origin))
                    with folders.folder(name[:2], inside, make=True) as files:
                        folders.write(files, name, content)
                self._count(root, folder, name, cost)
        except OSError as error:
            self._warn_once("written", error)
            return False
        return True

    def forget(self, origin: Origin) -> bool:
        """Remove everything of one origin; False when there was nothing.

        Raises:
            SourceError: Not all of it can be removed.
        """
        with self._opened() as root:
            return root is not None and folders.remove_tree(root, folder_name(origin))

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
                origin = origin_at(root, name)
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
        """Return the number and size of cached files.

        Raises:
            SourceError: The cache cannot be read.
        """
        with self._opened() as root:
            if root is None:
                return CacheUsage(0, 0, ())
            counts = {name: [0, 0] for name in folders.origins(root)}
            for found in folders.cached_files(root):
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
        """Remove leftovers of crashes and what exceeds a quota; return the number of removed items.

        Raises:
            SourceError: The cache cannot be read.
        """
        with self._opened() as root:
            if root is None:
                return 0
            removed = folders.remove_leftovers(root, older_than=older_than)
            for name in folders.origins(root):
                if origin_at(root, name) is None and folders.age(root, name) >= older_than:
                    removed += folders.remove_tree(root, name)
            with self._counting:
                return removed + self._enforce_quotas(root)

    @contextmanager
    def _opened(self) -> Generator[int | None]:
        """Open the cache as `folders.opened` does, and reset the usage counts afterwards."""
        try:
            with folders.opened(self._root, "the cache") as root:
                yield root
        finally:
            with self._counting:
                self._costs = None

    def _count(self, root: int, folder: str, name: str, cost: int) -> None:
        """Count a file that was written, and enforce quotas when due; other processes write here too."""
        with self._counting:
            self._unscanned += cost
            if self._costs is not None:
                self._costs[folder] = self._costs.get(folder, 0) + cost
                is_full = self._costs[folder] > self._max_bytes_per_origin or (
                    sum(self._costs.values()) > self._max_bytes
                )
                if not is_full and self._unscanned <= self._max_bytes // 16:
                    return
            self._enforce_quotas(root, keep=(folder, name))

    def _enforce_quotas(self, root: int, keep: tuple[str, str] | None = None) -> int:
        """Scan, and remove the least recently used files while a quota is exceeded; return their number."""
        found = sorted(folders.cached_files(root), key=lambda file: file.used)
        costs: dict[str, int] = {}
        for file in found:
            costs[file.origin] = costs.get(file.origin, 0) + disk_usage(file.size)
        total = sum(costs.values())
        goal = _target(total, self._max_bytes)
        goals = {origin: _target(cost, self._max_bytes_per_origin) for origin, cost in costs.items()}
        removed = 0
        for file in found:
            if (total > goal or costs[file.origin] > goals[file.origin]) and (file.origin, file.name) != keep:
                if folders.remove_cached(root, file):
                    removed += 1
                total -= disk_usage(file.size)
                costs[file.origin] -= disk_usage(file.size)
        self._costs, self._unscanned = costs, 0
        return removed

    def _warn_once(self, what: str, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("the cache cannot be %s; continuing without it: %s", what, error)


def _verified(files: int, name: str, file: ManifestFile) -> bytes | None:
    try:
        content = folders.read(files, name, file.max_bytes + 1, touch=True)
    except NotPrivateError as error:
        logger.warning("removed a cached file that is not private: %s", error.strerror)
        folders.remove(files, name)
        return None
    try:
        file.verify(content)
    except VerificationError:
        folders.remove(files, name)
        raise
    return content


def _hex(file: ManifestFile) -> str:
    return file.digest.removeprefix("sha256:")


def folder_name(origin: Origin) -> str:
    """Return the name of the folder of one origin."""
    return _name_of(origin.label, origin.fingerprint)


def _name_of(label: str, fingerprint: str) -> str:
    return hashlib.sha256(f"{label}\0{fingerprint}".encode("utf-8", "surrogatepass")).hexdigest()


def origin_bytes(origin: Origin) -> bytes:
    """Return the content of the `origin.json` in the folder of an origin."""
    return json.dumps({"label": origin.label, "fingerprint": origin.fingerprint}).encode()


def origin_at(root: int, name: str) -> tuple[str, str] | None:
    """Return the label and fingerprint of the folder `name`, as `origin_in` does."""
    with suppress(OSError), folders.folder(name, root) as inside:
        return origin_in(inside, name)
    return None


def origin_in(inside: int, name: str) -> tuple[str, str] | None:
    """Return the label and fingerprint recorded in a folder; None unless they match its name."""
    try:
        recorded = json.loads(folders.read(inside, ORIGIN_FILE, _MAX_ORIGIN_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(recorded, dict):
        return None
    fields = cast(dict[str, object], recorded)
    label, fingerprint = fields.get("label"), fields.get("fingerprint")
    if isinstance(label, str) and isinstance(fingerprint, str) and _name_of(label, fingerprint) == name:
        return label, fingerprint
    return None


def disk_usage(size: int) -> int:
    """Return the disk space of a file in whole blocks, so that many small files count too."""
    return max(1, -(-size // _BLOCK)) * _BLOCK


def _target(used: int, quota: int) -> int:
    """Return how much may stay: if the quota is exceeded, 90 % of it, to leave room for the next file."""
    return quota if used <= quota else quota - quota // 10
