"""What the June and the April index have in common: one resource that lists everything, and archives."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, TypeVar

import anyio
import anyio.to_thread

from skillwire.core.archive import ArchiveFormat
from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import digest_of
from skillwire.core.uri import SKILL_FILE, canonical_uri
from skillwire.errors import InvalidArchiveError, InvalidUriError, LimitError, NotFoundError, SkillError
from skillwire.server.answers import FileContent
from skillwire.server.archives import ArchiveShelf, Label
from skillwire.server.browsing import has_skills_below
from skillwire.server.dialects.compat import Compat, Published
from skillwire.sources import Catalog, Snapshot
from skillwire.sources.snapshot import enclosures, upwards
from skillwire.wire.core import JsonDict
from skillwire.wire.index import INDEX_MEDIA_TYPE, INDEX_URI

logger = logging.getLogger(__name__)

# With more skills than this, an index is put together in a thread.
_FEW = 100
_ATTEMPTS = 3
_MOST_TOLD = 1000

Labels = Mapping[ArchiveFormat, Label]
Formats = tuple[ArchiveFormat, ...]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a skill stands among the others: inside one of them, or free to be packed in some formats."""

    entry: SkillEntry
    is_nested: bool
    formats: Formats


@dataclass(frozen=True, slots=True)
class _Line:
    """How one skill stands in the index, and with which archives; no text when it does not."""

    place: _Place
    text: bytes | None

    def is_of(self, place: _Place) -> bool:
        mine = self.place
        return mine.entry is place.entry and (mine.is_nested, mine.formats) == (
            place.is_nested,
            place.formats,
        )


@dataclass(frozen=True, slots=True)
class _Written:
    """The index of one snapshot. Lines of skills that stay as they are go on into the next."""

    snapshot: Snapshot
    content: bytes
    digest: str
    lines: Mapping[str, _Line] = field(repr=False)


class IndexCompat(Compat, ABC):
    """The resource `skill://index.json`, written once for each snapshot, and the archives it names.

    A skill that is not listed is not in the index, and its archives can be read.
    Neither dialect knows skills that lie inside others, so those are left out;
    they are files of the skill around them all the same (IDX-08, CONF-06). An
    archive has the URI of its skill's folder and a suffix. Where a folder of
    that name is served already, there is no archive; and a file goes before an
    archive wherever one is read.
    """

    formats: ClassVar[Formats] = tuple(ArchiveFormat)

    def __init__(self, skills: Published) -> None:
        super().__init__(skills)
        self.shelf = ArchiveShelf()
        self._written: _Written | None = None
        self._writing = anyio.Lock()
        self._told: set[tuple[str, str]] = set()

    @abstractmethod
    def line(self, entry: SkillEntry, labels: Labels) -> bytes | None:
        """Write a skill's entry as JSON; None when this dialect cannot list it. Runs in any thread."""

    @abstractmethod
    def document(self, lines: Sequence[bytes]) -> bytes:
        """Write the index around its entries. Runs in any thread."""

    def packs(self, entry: SkillEntry) -> bool:
        """Tell whether a skill is offered as archives. Runs in any thread."""
        return True

    def resources(self) -> Sequence[JsonDict]:
        return [
            {
                "uri": INDEX_URI,
                "name": "index.json",
                "title": "Index of skills",
                "description": "The Agent Skills of this server, as far as they can be listed.",
                "mimeType": INDEX_MEDIA_TYPE,
            }
        ]

    def changed_resources(self) -> Sequence[str]:
        return [INDEX_URI]

    async def prepare(self) -> None:
        """Write the index before anyone asks: packing thousands of skills takes longer than clients wait."""
        await self._index()

    async def read(self, uri: str) -> FileContent | None:
        try:
            wanted = canonical_uri(uri)
        except InvalidUriError:
            return None
        if wanted == INDEX_URI:
            written = await self._index()
            return FileContent(uri, INDEX_MEDIA_TYPE, written.content, written.digest)
        return await self._read_archive(uri, wanted)

    async def _read_archive(self, uri: str, wanted: str) -> FileContent | None:
        catalog = self.skills.answers.catalog
        snapshot = catalog.snapshot
        for format in self.formats:
            stem, suffix, rest = wanted.rpartition(f".{format.value}")
            entry = snapshot.by_uri.get(f"{stem}/{SKILL_FILE}") if suffix and not rest else None
            if entry is None:
                continue
            taken = {wanted} if has_skills_below(snapshot, wanted) else ()
            if format not in self._place(entry, is_nested(snapshot, entry), taken).formats:
                continue
            try:
                archive = await self.shelf.archive(entry, format, catalog)
            except (NotFoundError, InvalidArchiveError, LimitError):
                return None
            return FileContent(uri, archive.media_type, archive.data, archive.digest)
        return None

    async def _index(self) -> _Written:
        catalog = self.skills.answers.catalog
        written = self._written
        if written is None or written.snapshot is not catalog.snapshot:
            async with self._writing:
                written = self._written
                if written is None or written.snapshot is not catalog.snapshot:
                    written = self._written = await self._write(
                        catalog, {} if written is None else written.lines
                    )
        return written

    async def _write(self, catalog: Catalog, known: Mapping[str, _Line]) -> _Written:
        """Write the index of what is served now; again if that changes under way, but not forever."""
        attempts = 0
        while True:
            attempts += 1
            snapshot = catalog.snapshot
            places = await _aside(snapshot, partial(self._places, snapshot))
            new = [place for place in places if not _is_known(known, place)]
            labels, failures = await self._label(new, catalog)
            if snapshot is catalog.snapshot or attempts == _ATTEMPTS:
                break
        for uri, error in failures.items():
            logger.warning("%s has no archives: %s", uri, error)
        return await _aside(snapshot, partial(self._put_together, snapshot, places, known, labels))

    def _places(self, snapshot: Snapshot) -> list[_Place]:
        nested, taken = enclosures(snapshot.entries), self._taken(snapshot)
        listed = self.skills.answers.listed_of(snapshot)
        return [self._place(entry, entry.uri.text in nested, taken) for entry in listed]

    def _place(self, entry: SkillEntry, is_nested: bool, taken: Container[str]) -> _Place:
        formats: Formats = ()
        if entry.manifest is not None and not is_nested and self.packs(entry):
            formats = tuple(format for format in self.formats if archive_uri(entry, format) not in taken)
        return _Place(entry, is_nested, formats)

    def _taken(self, snapshot: Snapshot) -> set[str]:
        """Return the folders with skills in them that are named as an archive would be."""
        suffixes = tuple(f".{format.value}" for format in self.formats)
        folders = (
            folder
            for entry in snapshot.entries
            if any(f"{suffix}/" in entry.uri.root for suffix in suffixes)
            for folder in upwards(entry.uri.root.rpartition("/")[0])
        )
        return {folder for folder in folders if folder.endswith(suffixes)}

    def _put_together(
        self,
        snapshot: Snapshot,
        places: Sequence[_Place],
        known: Mapping[str, _Line],
        labels: Mapping[str, Labels],
    ) -> _Written:
        lines = {
            (uri := place.entry.uri.text): known[uri]
            if _is_known(known, place)
            else self._line(place, labels.get(uri, {}))
            for place in places
        }
        content = self.document([line.text for line in lines.values() if line.text is not None])
        return _Written(snapshot, content, digest_of(content), lines)

    def _line(self, place: _Place, labels: Labels) -> _Line:
        entry = place.entry
        text = None if place.is_nested else self.line(entry, labels)
        if text is None:
            self._tell(entry, "lies inside another skill" if place.is_nested else "has no digest")
        # What could not be packed this time is tried again with the next change.
        return _Line(_Place(entry, place.is_nested, tuple(labels)), text)

    async def _label(
        self, places: Iterable[_Place], catalog: Catalog
    ) -> tuple[Mapping[str, Labels], Mapping[str, SkillError]]:
        """Return the labels of archives, packing what nobody packed before, and what could not be packed."""
        labels: dict[str, Labels] = {}
        failures: dict[str, SkillError] = {}
        # One after the other: threads that mostly run Python are slower side by side.
        for place in places:
            if place.formats:
                uri = place.entry.uri.text
                try:
                    labels[uri] = await self.shelf.labels(place.entry, place.formats, catalog)
                except SkillError as error:
                    failures[uri] = error
        return labels, failures

    def _tell(self, entry: SkillEntry, reason: str) -> None:
        """Log, once, that a skill is not in the index."""
        if (entry.uri.text, reason) not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add((entry.uri.text, reason))
            logger.warning("%s is not in the index of %s: it %s", entry.uri, self.dialect, reason)


def archive_uri(entry: SkillEntry, format: ArchiveFormat) -> str:
    """Return the URI of a skill's archive."""
    return f"{entry.uri.root}.{format.value}"


def is_nested(snapshot: Snapshot, entry: SkillEntry) -> bool:
    """Tell whether a skill lies inside another one that is listed."""
    outside = entry.uri.root.rpartition("/")[0]
    return any(f"{folder}/{SKILL_FILE}" in snapshot.by_uri for folder in upwards(outside))


def _is_known(known: Mapping[str, _Line], place: _Place) -> bool:
    line = known.get(place.entry.uri.text)
    return line is not None and line.is_of(place)


async def _aside(snapshot: Snapshot, work: Callable[[], Made]) -> Made:
    """Do something about all skills, in a thread if they are many."""
    return work() if len(snapshot.entries) <= _FEW else await anyio.to_thread.run_sync(work)
