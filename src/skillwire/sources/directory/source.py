"""`DirectorySource`: a folder of skills, served from consistent snapshots."""

import logging
import os
from collections.abc import Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType

import anyio
import anyio.to_thread

from skillwire.core import (
    DEFAULT_SCHEME,
    ManifestFile,
    SkillEntry,
    SkillUri,
    SourceError,
    VerificationError,
    digest_of,
)
from skillwire.sources.background import run_in_background
from skillwire.sources.directory.publish import MountPoint, Published, PublishedFolder, require_root
from skillwire.sources.directory.scan import ScanIndex, read_published
from skillwire.sources.directory.tree import SkillTree
from skillwire.sources.directory.walk import read_unlinked
from skillwire.sources.directory.watch import SETTLE_SECONDS, TreeWatcher
from skillwire.sources.snapshot import Report, Snapshot, SnapshotSource

logger = logging.getLogger(__name__)

# How often a read of a changed file rescans before it fails.
_READ_ATTEMPTS = 3
_SETTLE_ATTEMPTS = 3
# How many folders are logged by name when many are unpublished at once.
_MAX_LINES = 5


class DirectorySource(SnapshotSource):
    """The skills in a folder and its subfolders.

        async with DirectorySource("skills/") as source:
            for entry in source.snapshot.entries: ...

    Entering scans the folder; with `watch`, edits are picked up while it is
    open. `prefix` goes before every skill's path. With `at` the folder itself
    is one skill, served at exactly that path, and skills inside it below.
    `follow_links` enters folders that are symbolic links. `index` keeps
    digests between runs, in `cache_dir` or else in the user's cache.

    Raises:
        InvalidUriError: `prefix`, `at` or `scheme` cannot be part of a URI.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        prefix: str = "",
        at: str | None = None,
        scheme: str = DEFAULT_SCHEME,
        watch: bool = True,
        follow_links: bool = False,
        index: bool = True,
        cache_dir: Path | None = None,
    ) -> None:
        super().__init__()
        self.root = Path(root)
        self._mount = MountPoint.make(scheme, prefix, at)
        self._watch = watch
        self._follow_links = follow_links
        self._use_index = index
        self._cache_dir = cache_dir
        self._tree: SkillTree | None = None
        self._published: Published | None = None
        self._scanning = anyio.Lock()
        self._rereading = anyio.Lock()
        self._suspect: set[str] = set()
        self._users = 0
        self._stack = AsyncExitStack()

    @property
    def cache_key(self) -> str:
        return f"{self._mount.prefix} {self._mount.at} {self.root.absolute()}" if self._use_index else ""

    async def __aenter__(self) -> "DirectorySource":
        """Scan the folder. A source that is entered several times is closed by the last exit.

        Raises:
            SourceError: There is no such folder, or it cannot be read.
            InvalidSkillError: With `at`, the folder is not a skill, or has another name.
        """
        self._users += 1
        if self._users > 1:
            return self
        before = self._published, self._snapshot
        try:
            await self._open()
        except BaseException:
            self._users = 0
            self._published, self._snapshot = before
            raise
        return self

    async def _open(self) -> None:
        self._tree = await anyio.to_thread.run_sync(self._make_tree)
        async with AsyncExitStack() as stack:
            await self._scan_until_settled()
            if self._mount.at:
                require_root(self._state, self._mount)
            stack.push_async_callback(self._save_index)
            if self._watch:
                await stack.enter_async_context(run_in_background(TreeWatcher(self._tree.root, self).run))
            self._stack = stack.pop_all()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._users -= 1
        return None if self._users else await self._stack.__aexit__(kind, error, trace)

    async def read_file(self, uri: str) -> bytes:
        """Return a file's bytes, which match the digest in the snapshot.

        When the file has changed, the folder is scanned again after a short
        pause, and the result comes from the new snapshot.

        Raises:
            NotFoundError: No skill has such a file, or not any more.
            SourceError: The file keeps changing, or cannot be read.
        """
        for _ in range(_READ_ATTEMPTS):
            state = self._state
            entry, file = state.snapshot.locate(uri)
            assert file is not None, "a folder has no dynamic skills"
            publication = state.publications[entry.uri.text]
            try:
                return await anyio.to_thread.run_sync(self._read_verified, publication, file)
            except (OSError, VerificationError) as error:
                logger.info("%s differs from the snapshot: %s", file.uri, error)
                if self._state is state:
                    await anyio.sleep(SETTLE_SECONDS)  # It may be being written.
                # Bytes can change without size, times and inode, as with writes to a memory map.
                if isinstance(error, VerificationError):
                    self._suspect.add(publication.record.directory)
                async with self._rereading:  # Concurrent readers share one rescan.
                    if self._state is state:
                        await self.refresh([publication.record.directory])
        raise SourceError(f"{uri} is changing and cannot be served as published")

    def read_now(self, entry: SkillEntry, line: ManifestFile) -> bytes | None:
        """Return the bytes of a file if they match `line`; None when `read_file` must be used.

        None too when a part of the path is a link, or this system cannot open a
        path without links in one call.
        """
        publication = self._state.publications.get(entry.uri.text)
        if publication is None:
            return None
        place = f"{self._open_tree.root}/{publication.record.directory}/{publication.path_of(line)}"
        content = read_unlinked(place, line.size)
        return content if content and digest_of(content) == line.digest else None

    async def refresh(self, places: Iterable[str] | None = None) -> Snapshot:
        """Scan again, and publish the result if anything differs.

        `places` limits the scan to the skills around these paths, relative to
        the root; without it the whole folder is scanned.

        Raises:
            SourceError: The folder cannot be read; the snapshot stays as it was.
        """
        async with self._scanning:
            scan = partial(self._open_tree.scan, None if places is None else list(places), self._suspect)
            self._suspect = set()
            published = await anyio.to_thread.run_sync(scan)
            before, self._published = self._published, published
            if published is not before:
                self._replace_snapshot(published.snapshot)
                if before is not None:
                    _log_unpublished(before.snapshot, published.snapshot)
        return published.snapshot

    @property
    def unsettled(self) -> frozenset[str]:
        """The folders, relative to the root, that were still being written at the last scan."""
        return self._open_tree.unsettled

    def place_of(self, uri: SkillUri) -> str:
        """Return the folder a published skill comes from, for the operator of the server.

        For a skill that is no longer published, it is the root.
        """
        publication = self._state.publications.get(uri.text)
        return str(self.root / publication.record.directory if publication else self.root)

    def modified_at(self, uri: SkillUri) -> float | None:
        """Return when a published skill's `SKILL.md` was last modified, in POSIX seconds.

        The time is from the scan that published it; the file is not accessed.
        None when there is no such skill.
        """
        publication = self._state.publications.get(uri.text)
        return publication.record.modified_ns / 1e9 if publication else None

    def start_for(self, place: str) -> str | None:
        """Return the folder to rescan when `place` changed, or None."""
        return self._open_tree.start_for(place)

    def _make_tree(self) -> SkillTree:
        if not os.path.isdir(self.root):  # noqa: PTH112 - the method of Path raises where this returns False
            raise SourceError(f"{self.root.name!r} is not a folder") from NotADirectoryError(str(self.root))
        root = os.path.realpath(self.root)
        index = ScanIndex.for_root(root, self._cache_dir) if self._use_index else None
        revision = self._published.snapshot.revision if self._published else 0
        return SkillTree(root, self._mount, follow_links=self._follow_links, index=index, revision=revision)

    async def _scan_until_settled(self) -> None:
        """Scan, and rescan folders that are being written a few times."""
        await self.refresh()
        for _ in range(_SETTLE_ATTEMPTS):
            if not self.unsettled:
                return
            await anyio.sleep(SETTLE_SECONDS)
            await self.refresh(self.unsettled)

    async def _save_index(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._open_tree.save)

    @property
    def _state(self) -> Published:
        if self._published is None:
            raise SourceError("the source is not open; use it with `async with`")
        return self._published

    @property
    def _open_tree(self) -> SkillTree:
        if self._tree is None:
            raise SourceError("the source is not open; use it with `async with`")
        return self._tree

    def _read_verified(self, publication: PublishedFolder, file: ManifestFile) -> bytes:
        record, path = publication.record, publication.path_of(file)
        content = read_published(
            self._open_tree.root, record, path, file.size, follow_links=self._follow_links
        )
        file.verify(content)
        return content


def _log_unpublished(before: Snapshot, after: Snapshot) -> None:
    """Log the places that are newly unpublished, or for a different reason than before."""
    known = {report.place: _reasons(report) for report in before.quarantined}
    news = [report for report in after.quarantined if known.get(report.place) != _reasons(report)]
    for report in news[:_MAX_LINES]:
        logger.warning("%s is not published: %s", report.place or ".", report.findings[0].message)
    if len(news) > _MAX_LINES:
        logger.warning("%d more folders are not published", len(news) - _MAX_LINES)


def _reasons(report: Report) -> list[tuple[str, str]]:
    return [(finding.code, finding.file) for finding in report.findings]
