"""`VisibleSource`: the skills that a caller may see, as a source of its own."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from skillwire.core import InvalidUriError, ManifestFile, NotFoundError, SkillEntry, SkillUri, canonical_uri
from skillwire.server.visibility import Visibility
from skillwire.sources.combined import CombinedSource
from skillwire.sources.snapshot import Snapshot, SnapshotSource


class VisibleSource(SnapshotSource):
    """The visible part of a source.

    A change outside of it is not noticeable: the snapshot stays the same object,
    with the same revision.
    """

    def __init__(self, catalog: CombinedSource, visibility: Visibility) -> None:
        super().__init__(Snapshot.of((), revision=0))
        self._catalog = catalog
        self._visibility = visibility
        self._whole: Snapshot | None = None
        # Only what is shared with other processes needs to catch up.
        self.catch_up = self._catch_up if catalog.is_shared else None

    @property
    def snapshot(self) -> Snapshot:
        """The visible entries now, always up to date with the underlying source."""
        whole = self._catalog.snapshot
        seen = super().snapshot
        if whole is not self._whole:
            now = self._filter(whole, seen.revision + 1)
            if not _same(seen, now):
                self._snapshot = seen = now
            self._whole = whole
        return seen

    @property
    def cache_key(self) -> str:
        key = self._catalog.cache_key
        seen = "" if self._visibility.is_unrestricted else "\n".join(sorted(self._visibility.prefixes))
        return f"{key}\n{seen}" if key else ""

    async def _catch_up(self) -> Snapshot:
        """Return the visible entries that the underlying source has at this moment."""
        await self._catalog.catch_up()
        return self.snapshot

    async def wait_for_change(self, revision: int) -> Snapshot:
        while self.snapshot.revision <= revision:
            await self._catalog.wait_for_change(self._catalog.snapshot.revision)
        return self.snapshot

    async def read_file(self, uri: str) -> bytes:
        """Return the content of a file of a visible skill.

        Raises:
            NotFoundError: No visible skill has such a file.
            SourceError: It cannot be read as published.
        """
        self.snapshot.locate(uri)
        return await self._catalog.read_file(uri)

    def read_now(self, entry: SkillEntry, line: ManifestFile) -> bytes | None:
        """Return the bytes of a file of a visible skill if they match `line`."""
        return self._catalog.read_now(entry, line) if entry.uri.text in self.snapshot.by_uri else None

    def modified_at(self, uri: SkillUri) -> float | None:
        """Return when a skill's `SKILL.md` was last modified, in POSIX seconds, if that is known."""
        return self._catalog.modified_at(uri)

    def order_of(self, uri: SkillUri) -> Sequence[str]:
        """Return the paths of files that a skill's author put in an order, in that order."""
        return self._catalog.order_of(uri)

    def _filter(self, whole: Snapshot, revision: int) -> Snapshot:
        if not self._visibility.is_unrestricted:
            return whole.visible(self._visibility.prefixes, revision)
        # Skills that are not published have no URI, so their reports are not visible.
        reports = tuple(report for report in whole.reports if report.uri)
        return replace(whole, revision=revision, reports=reports)


class VisibleUnlistedSource:
    """The visible part of the skills that a source serves without listing them."""

    def __init__(self, catalog: CombinedSource, visibility: Visibility) -> None:
        self._catalog = catalog
        self._visibility = visibility

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        """Yield nothing: listed skills come from the snapshot."""
        for entry in ():
            yield entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        """Return one entry.

        Raises:
            NotFoundError: No such skill is served, or it is not visible.
        """
        if not self._visibility.includes(uri):
            raise NotFoundError(f"no skill is served at {uri.text}", uri=uri.text)
        return await self._catalog.get_skill(uri)

    async def read_file(self, uri: str) -> bytes:
        """Return the bytes of a file of a skill that is not listed.

        Raises:
            NotFoundError: Nothing is served there, or it is not visible.
            SourceError: It cannot be read as published.
        """
        try:
            wanted = canonical_uri(uri)
        except InvalidUriError as error:
            raise NotFoundError(str(error), uri=uri) from error
        places = self._visibility.prefixes
        if not (self._visibility.is_unrestricted or wanted.startswith(tuple(f"{one}/" for one in places))):
            raise NotFoundError(f"nothing is served at {uri}", uri=uri)
        return await self._catalog.read_file(uri)


def _same(before: Snapshot, now: Snapshot) -> bool:
    if now.is_stored:
        return before.is_stored and not now.changes_since(before)
    return (
        len(before.entries) == len(now.entries)
        and all(old is new for old, new in zip(before.entries, now.entries, strict=True))
        and before.reports == now.reports
        and before.folders == now.folders
        and before.media_types == now.media_types
    )
