"""`InSight`: of everything that is served, what someone may see, as a source of its own."""

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from itertools import chain

from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.errors import InvalidUriError, NotFoundError
from skillwire.server.access.sight import Sight
from skillwire.sources import Catalog, Snapshot
from skillwire.sources.live import SnapshotSource
from skillwire.sources.snapshot import BY_URI


class InSight(SnapshotSource):
    """The part of a catalog that is in sight. Nothing else of it can be found out here.

    A change that is out of sight is none: the snapshot stays the same object,
    with the same revision.
    """

    def __init__(self, catalog: Catalog, sight: Sight) -> None:
        super().__init__(Snapshot.of((), revision=0))
        self._catalog = catalog
        self._sight = sight
        self._whole: Snapshot | None = None

    @property
    def snapshot(self) -> Snapshot:
        """What is in sight now. It never lags behind the catalog."""
        whole = self._catalog.snapshot
        seen = super().snapshot
        if whole is not self._whole:
            now = self._seen(whole, seen.revision + 1)
            if not _same(seen, now):
                self._snapshot = seen = now
            self._whole = whole
        return seen

    async def wait_for_change(self, revision: int) -> Snapshot:
        while self.snapshot.revision <= revision:
            await self._catalog.wait_for_change(self._catalog.snapshot.revision)
        return self.snapshot

    async def read_file(self, uri: str) -> bytes:
        """Return a file of a skill in sight.

        Raises:
            NotFoundError: No skill in sight has such a file.
            SourceError: It cannot be read as published.
        """
        self.snapshot.locate(uri)
        return await self._catalog.read_file(uri)

    def modified_at(self, uri: SkillUri) -> float | None:
        """Return when a skill's `SKILL.md` was last modified, in POSIX seconds, if that is known."""
        return self._catalog.modified_at(uri)

    def order_of(self, uri: SkillUri) -> Sequence[str]:
        """Return the paths of files that a skill's author put in an order, in that order."""
        return self._catalog.order_of(uri)

    def _seen(self, whole: Snapshot, revision: int) -> Snapshot:
        if self._sight.is_whole:
            entries, by_uri = whole.entries, whole.by_uri
            media_types, folders = whole.media_types, whole.folders
        else:
            # With the slash they sort as the entries do.
            inside = tuple(sorted(f"{one}/" for one in self._sight.places))
            entries = tuple(chain.from_iterable(_below(whole.entries, place) for place in inside))
            by_uri = {entry.uri.text: entry for entry in entries}
            media_types = {uri: kind for uri, kind in whole.media_types.items() if uri.startswith(inside)}
            folders = frozenset(folder for folder in whole.folders if folder.startswith(inside))
        # What is not published has no place in the tree, so it is in nobody's sight.
        reports = tuple(report for report in whole.reports if report.uri and report.uri.text in by_uri)
        return Snapshot(revision, entries, reports, by_uri, media_types, folders)


class UnlistedInSight:
    """What a catalog serves without listing it, as far as it is in sight."""

    def __init__(self, catalog: Catalog, sight: Sight) -> None:
        self._catalog = catalog
        self._sight = sight

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        """Yield nothing: what is listed comes from the catalog's snapshot."""
        for entry in ():
            yield entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        """Return one entry.

        Raises:
            NotFoundError: No such skill is served, or none that is in sight.
        """
        if not self._sight.sees(uri):
            raise NotFoundError(f"no skill is served at {uri.text}", uri=uri.text)
        return await self._catalog.get_skill(uri)

    async def read_file(self, uri: str) -> bytes:
        """Return the bytes of a file of a skill that is not listed.

        Raises:
            NotFoundError: Nothing is served there, or nothing that is in sight.
            SourceError: It cannot be read as published.
        """
        try:
            wanted = canonical_uri(uri)
        except InvalidUriError as error:
            raise NotFoundError(str(error), uri=uri) from error
        places = self._sight.places
        if not (self._sight.is_whole or wanted.startswith(tuple(f"{one}/" for one in places))):
            raise NotFoundError(f"nothing is served at {uri}", uri=uri)
        return await self._catalog.read_file(uri)


def _below(entries: Sequence[SkillEntry], place: str) -> Sequence[SkillEntry]:
    """Return the entries whose URIs begin with `place`, which ends in a slash; they stand together."""
    start = bisect_left(entries, place, key=BY_URI)
    after = f"{place[:-1]}{chr(ord('/') + 1)}"
    return entries[start : bisect_left(entries, after, start, key=BY_URI)]


def _same(before: Snapshot, now: Snapshot) -> bool:
    return (
        len(before.entries) == len(now.entries)
        and all(old is new for old, new in zip(before.entries, now.entries, strict=True))
        and before.reports == now.reports
        and before.folders == now.folders
        and before.media_types == now.media_types
    )
