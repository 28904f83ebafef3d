"""The base of the June and the April index: one resource that lists all skills, and archives."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, TypeVar

import anyio
import anyio.to_thread

from skillwire.core import (
    DEFAULT_SCHEME,
    SKILL_FILE,
    ArchiveFormat,
    Dialect,
    InvalidArchiveError,
    InvalidUriError,
    JsonDict,
    LimitError,
    NotFoundError,
    SkillEntry,
    SkillError,
    canonical_uri,
    digest_of,
    encode,
)
from skillwire.server.answers import FileContent
from skillwire.server.archives import ArchiveCache, ArchiveDigest
from skillwire.server.browse import has_skills_below
from skillwire.server.dialects.base import DialectServer, DialectSkills
from skillwire.sources.background import LogFilter
from skillwire.sources.combined import CombinedSource
from skillwire.sources.snapshot import LiveSource, Snapshot, Source, enclosures, self_and_ancestors
from skillwire.wire.index import (
    INDEX_MEDIA_TYPE,
    INDEX_URI,
    SCHEMA,
    AprilEntry,
    AprilType,
    JuneArchive,
    JuneEntry,
    SkillTemplate,
    Template,
    TemplatedSource,
)

logger = logging.getLogger(__name__)

# With more skills than this, an index is built in a thread.
_MAX_INLINE = 100
_ATTEMPTS = 3

ArchiveDigests = Mapping[ArchiveFormat, ArchiveDigest]
Formats = tuple[ArchiveFormat, ...]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class _ArchivePlan:
    """Whether a skill lies inside another one, and the formats to pack it in."""

    entry: SkillEntry
    is_nested: bool
    formats: Formats


@dataclass(frozen=True, slots=True)
class _IndexLine:
    """The entry of one skill in the index; without text when it is left out."""

    plan: _ArchivePlan
    text: bytes | None

    def is_of(self, plan: _ArchivePlan) -> bool:
        mine = self.plan
        return mine.entry is plan.entry and (mine.is_nested, mine.formats) == (
            plan.is_nested,
            plan.formats,
        )


@dataclass(frozen=True, slots=True)
class _IndexDocument:
    """The index of one snapshot. Lines of unchanged skills are reused for the next."""

    snapshot: Snapshot
    content: bytes
    digest: str
    lines: Mapping[str, _IndexLine] = field(repr=False)


class IndexDialectServer(DialectServer, ABC):
    """The resource `skill://index.json`, written once for each snapshot, and its archives.

    An unlisted skill is not in the index, but its archives can be read. Neither
    dialect supports skills inside others, so those are left out; they are still
    files of the skill around them (IDX-08, CONF-06). The URI of an archive is
    that of the skill's folder plus a suffix. If a folder of that name is served,
    there is no archive; a file takes precedence over an archive.
    """

    formats: ClassVar[Formats] = tuple(ArchiveFormat)

    def __init__(self, skills: DialectSkills) -> None:
        super().__init__(skills)
        self.archives = ArchiveCache()
        self._document: _IndexDocument | None = None
        self._writing = anyio.Lock()
        self._warnings = LogFilter()

    @abstractmethod
    def line(self, entry: SkillEntry, archives: ArchiveDigests) -> bytes | None:
        """Write a skill's entry as JSON; None when this dialect cannot list it. Runs in any thread."""

    @abstractmethod
    def document(self, lines: Sequence[bytes]) -> bytes:
        """Write the index around its entries. Runs in any thread."""

    def packs(self, entry: SkillEntry) -> bool:
        """Return whether a skill is offered as archives. Runs in any thread."""
        return True

    @property
    def cached_bytes(self) -> int:
        index = 0 if self._document is None else len(self._document.content)
        return self.archives.cached_bytes + index

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

    def reserved(self) -> Sequence[str]:
        return [INDEX_URI]

    def changed_resources(self) -> Sequence[str]:
        return [INDEX_URI]

    async def prepare(self) -> None:
        """Write the index in advance: packing thousands of skills takes longer than clients wait."""
        await self._current()

    async def read(self, uri: str) -> FileContent | None:
        try:
            wanted = canonical_uri(uri)
        except InvalidUriError:
            return None
        if wanted == INDEX_URI:
            written = await self._current()
            return FileContent(uri, INDEX_MEDIA_TYPE, written.content, written.digest)
        return await self._read_archive(uri, wanted)

    async def _read_archive(self, uri: str, wanted: str) -> FileContent | None:
        catalog = self.skills.answers.source
        snapshot = catalog.snapshot
        for format in self.formats:
            stem, suffix, rest = wanted.rpartition(f".{format.value}")
            entry = snapshot.by_uri.get(f"{stem}/{SKILL_FILE}") if suffix and not rest else None
            if entry is None:
                continue
            taken = {wanted} if has_skills_below(snapshot, wanted) else ()
            if format not in self._plan(entry, is_nested(snapshot, entry), taken).formats:
                continue
            try:
                archive = await self.archives.archive(entry, format, catalog)
            except (NotFoundError, InvalidArchiveError, LimitError):
                return None
            return FileContent(uri, archive.media_type, archive.data, archive.digest)
        return None

    async def _current(self) -> _IndexDocument:
        catalog = self.skills.answers.source
        written = self._document
        if written is None or written.snapshot is not catalog.snapshot:
            async with self._writing:
                written = self._document
                if written is None or written.snapshot is not catalog.snapshot:
                    written = self._document = await self._write(
                        catalog, {} if written is None else written.lines
                    )
        return written

    async def _write(self, catalog: CombinedSource, known: Mapping[str, _IndexLine]) -> _IndexDocument:
        """Write the index of the current snapshot; retry a few times if it changes meanwhile."""
        attempts = 0
        while True:
            attempts += 1
            snapshot = catalog.snapshot
            plans = await _run_maybe_in_thread(snapshot, partial(self._plans, snapshot))
            new = [plan for plan in plans if not _is_known(known, plan)]
            archives, failures = await self._pack(new, catalog)
            if snapshot is catalog.snapshot or attempts == _ATTEMPTS:
                break
        for uri, error in failures.items():
            logger.warning("%s has no archives: %s", uri, error)
        return await _run_maybe_in_thread(snapshot, partial(self._assemble, snapshot, plans, known, archives))

    def _plans(self, snapshot: Snapshot) -> list[_ArchivePlan]:
        nested, taken = enclosures(snapshot.entries), self._taken(snapshot)
        listed = self.skills.answers.listed_of(snapshot)
        return [self._plan(entry, entry.uri.text in nested, taken) for entry in listed]

    def _plan(self, entry: SkillEntry, is_nested: bool, taken: Container[str]) -> _ArchivePlan:
        formats: Formats = ()
        if entry.manifest is not None and not is_nested and self.packs(entry):
            formats = tuple(format for format in self.formats if archive_uri(entry, format) not in taken)
        return _ArchivePlan(entry, is_nested, formats)

    def _taken(self, snapshot: Snapshot) -> set[str]:
        """Return the folders of skills whose names end like those of archives."""
        suffixes = tuple(f".{format.value}" for format in self.formats)
        folders = (
            folder
            for entry in snapshot.entries
            if any(f"{suffix}/" in entry.uri.root for suffix in suffixes)
            for folder in self_and_ancestors(entry.uri.root.rpartition("/")[0])
        )
        return {folder for folder in folders if folder.endswith(suffixes)}

    def _assemble(
        self,
        snapshot: Snapshot,
        plans: Sequence[_ArchivePlan],
        known: Mapping[str, _IndexLine],
        archives: Mapping[str, ArchiveDigests],
    ) -> _IndexDocument:
        lines = {
            (uri := plan.entry.uri.text): known[uri]
            if _is_known(known, plan)
            else self._line(plan, archives.get(uri, {}))
            for plan in plans
        }
        content = self.document([line.text for line in lines.values() if line.text is not None])
        return _IndexDocument(snapshot, content, digest_of(content), lines)

    def _line(self, plan: _ArchivePlan, archives: ArchiveDigests) -> _IndexLine:
        entry = plan.entry
        text = None if plan.is_nested else self.line(entry, archives)
        if text is None:
            self._warn_once(entry, "lies inside another skill" if plan.is_nested else "has no digest")
        # A failed archive is tried again with the next change.
        return _IndexLine(_ArchivePlan(entry, plan.is_nested, tuple(archives)), text)

    async def _pack(
        self, plans: Iterable[_ArchivePlan], catalog: CombinedSource
    ) -> tuple[Mapping[str, ArchiveDigests], Mapping[str, SkillError]]:
        """Return the digests of archives, packing those that are not cached, and the errors."""
        archives: dict[str, ArchiveDigests] = {}
        failures: dict[str, SkillError] = {}
        # One after the other: threads that mostly run Python would be slower in parallel.
        for plan in plans:
            if plan.formats:
                uri = plan.entry.uri.text
                try:
                    archives[uri] = await self.archives.digests(plan.entry, plan.formats, catalog)
                except SkillError as error:
                    failures[uri] = error
        return archives, failures

    def _warn_once(self, entry: SkillEntry, reason: str) -> None:
        """Log, once, that a skill is not in the index."""
        if self._warnings.admits(entry.uri.text, reason):
            logger.warning("%s is not in the index of %s: it %s", entry.uri, self.dialect, reason)


def archive_uri(entry: SkillEntry, format: ArchiveFormat) -> str:
    """Return the URI of a skill's archive."""
    return f"{entry.uri.root}.{format.value}"


def is_nested(snapshot: Snapshot, entry: SkillEntry) -> bool:
    """Return whether a skill lies inside another one of the snapshot."""
    outside = entry.uri.root.rpartition("/")[0]
    return any(f"{folder}/{SKILL_FILE}" in snapshot.by_uri for folder in self_and_ancestors(outside))


def _is_known(known: Mapping[str, _IndexLine], plan: _ArchivePlan) -> bool:
    line = known.get(plan.entry.uri.text)
    return line is not None and line.is_of(plan)


async def _run_maybe_in_thread(snapshot: Snapshot, work: Callable[[], Made]) -> Made:
    """Run `work`, in a thread if there are many skills."""
    return work() if len(snapshot.entries) <= _MAX_INLINE else await anyio.to_thread.run_sync(work)


# `index-april`: name, description and URI of every skill, and templates for unlisted ones.


_MAX_COMPLETIONS = 100
_MAX_VALUE = 1024
_COMPLETE_SECONDS = 5.0

ANY_SKILL = SkillTemplate(
    "skill",
    Template.parse(f"{DEFAULT_SCHEME}://{{+path}}/{SKILL_FILE}"),
    "A skill that this server does not list, by its path.",
)
"""For a source that serves more than it lists and has no templates of its own."""


class IndexApril(IndexDialectServer):
    """The index of 23 April 2026, with the digests of 3 June.

    A skill is one entry of one type: `skill-md`, whose files are read one by
    one, or an archive if `as_archive` returns true for it. `as_archive` may be
    replaced before the server starts. Skills without a digest are listed without
    one.
    """

    dialect: ClassVar[Dialect] = Dialect.INDEX_APRIL
    formats: ClassVar[Formats] = (ArchiveFormat.ZIP,)

    def __init__(self, skills: DialectSkills) -> None:
        super().__init__(skills)
        self.as_archive: Callable[[SkillEntry], bool] = _never

    def packs(self, entry: SkillEntry) -> bool:
        return self.as_archive(entry)

    def line(self, entry: SkillEntry, archives: ArchiveDigests) -> bytes | None:
        frontmatter = entry.frontmatter
        name, description = frontmatter.name, frontmatter.description
        file = None if entry.manifest is None else entry.manifest.find(entry.uri.text)
        digest = None if file is None else file.digest
        line = AprilEntry(name, AprilType.SKILL_MD, description, entry.uri.published, digest)
        for format, archive in archives.items():
            url = archive_uri(entry, format)
            line = AprilEntry(name, AprilType.ARCHIVE, description, url, archive.digest)
        return encode(line.to_json())

    def document(self, lines: Sequence[bytes]) -> bytes:
        templates = [
            encode(AprilEntry(None, AprilType.TEMPLATE, made.description, made.template.text).to_json())
            for _, made in self._templates()
        ]
        return b'{"$schema":' + encode(SCHEMA) + b',"skills":[' + b",".join([*lines, *templates]) + b"]}"

    def templates(self) -> Sequence[JsonDict]:
        return [
            {
                "name": made.name,
                "uriTemplate": made.template.text,
                "description": made.description,
                "mimeType": "text/markdown",
            }
            for _, made in self._templates()
        ]

    async def complete(self, template: str, argument: str, typed: str) -> JsonDict | None:
        for source, made in self._templates():
            if made.template.text == template and argument in made.template.variables:
                values = await self._values(source, template, argument, typed)
                return {
                    "values": values[:_MAX_COMPLETIONS],
                    "total": len(values),
                    "hasMore": len(values) > _MAX_COMPLETIONS,
                }
        return None

    async def _values(self, source: Source, template: str, argument: str, typed: str) -> list[str]:
        if not isinstance(source, TemplatedSource):
            entries = self.skills.answers.source.snapshot.entries
            return [path for entry in entries if (path := entry.uri.path).startswith(typed)]
        try:
            with anyio.fail_after(_COMPLETE_SECONDS):
                values = await source.complete_template(template, argument, typed)
        except Exception:
            logger.warning("a source could not complete %s", template, exc_info=True)
            return []
        return [value for value in values if len(value) <= _MAX_VALUE]

    def _templates(self) -> Iterator[tuple[Source, SkillTemplate]]:
        """Yield each template once, with the source it comes from."""
        seen: set[str] = set()
        for source in self.skills.answers.source.sources:
            if isinstance(source, LiveSource):
                continue
            given = source.skill_templates() if isinstance(source, TemplatedSource) else [ANY_SKILL]
            for made in given:
                if made.template.text not in seen:
                    seen.add(made.template.text)
                    yield source, made


def _never(entry: SkillEntry) -> bool:
    return False


# `index-june`: every skill with its frontmatter, its digest and its archives, in one resource.


class IndexJune(IndexDialectServer):
    """The index of 25 June 2026.

    Each skill is offered by URI and as two archives. The dialect has only the
    digest of `SKILL.md`, so `size` and `resources` are added as in the released
    extension: a host that knows them can verify every file (IDX-12).
    A dynamic skill has no digest, which the dialect requires, and is left out.
    """

    dialect: ClassVar[Dialect] = Dialect.INDEX_JUNE

    def line(self, entry: SkillEntry, archives: ArchiveDigests) -> bytes | None:
        file = None if entry.manifest is None else entry.manifest.find(entry.uri.text)
        if file is None:
            return None
        june_archives = [
            JuneArchive(archive_uri(entry, format), format.media_type, archive.digest, {"size": archive.size})
            for format, archive in archives.items()
        ]
        extra = {"size": file.size, "resources": entry.to_json()["resources"]}
        line = JuneEntry(
            entry.frontmatter.fields, entry.uri.published, file.digest, tuple(june_archives), extra
        )
        return encode(line.to_json())

    def document(self, lines: Sequence[bytes]) -> bytes:
        return b'{"skills":[' + b",".join(lines) + b"]}"
