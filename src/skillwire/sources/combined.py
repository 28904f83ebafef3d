"""`CombinedSource`: many sources, served as one."""

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar, cast

import anyio
import anyio.to_thread

from skillwire.core import (
    SKILL_FILE,
    DuplicateSkillError,
    Finding,
    InvalidUriError,
    ManifestFile,
    NotFoundError,
    SkillEntry,
    SkillUri,
    SourceError,
    VerificationError,
    canonical_uri,
)
from skillwire.sources.background import open_all, run_in_background
from skillwire.sources.snapshot import (
    BY_PLACE,
    BY_URI,
    LiveSource,
    Report,
    SharedState,
    Snapshot,
    SnapshotSource,
    Source,
    complete_nested_manifests,
    enclosures,
    entries_below,
    has_files_below,
    over_limits,
    self_and_ancestors,
)

# With more changes than this, merging everything is no slower.
MAX_CHANGES = 256

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class MergedSnapshots:
    """The result of merging snapshots: the entries that are served, and the refused ones with findings."""

    parts: tuple[Snapshot, ...]
    entries: Sequence[SkillEntry]
    by_uri: Mapping[str, SkillEntry]
    media_types: Mapping[str, str]
    folders: Set[str]
    refused: Mapping[str, tuple[Finding, ...]]


def merge(parts: Sequence[Snapshot]) -> MergedSnapshots:
    """Merge the snapshots of several sources, refusing skills that conflict."""
    parts = tuple(parts)
    entries = [entry for part in parts for entry in part.entries]
    around = enclosures(entries)
    refused = {skill: (_clash(uri),) for uri, skills in _conflicts(parts, around).items() for skill in skills}
    entries = [entry for entry in entries if entry.uri.text not in refused]
    if around:
        misplaced = _misplacements(entries)
        refused |= {uri: (_misplaced(outer),) for uri, outer in misplaced.items()}
        entries = complete_nested_manifests(entry for entry in entries if entry.uri.text not in misplaced)
    refused |= over_limits(entries)
    served = tuple(sorted([entry for entry in entries if entry.uri.text not in refused], key=BY_URI))
    by_uri = {entry.uri.text: entry for entry in served}
    types, folders = dict(_media_types(parts, by_uri)), frozenset(_folders(parts, by_uri))
    return MergedSnapshots(parts, served, by_uri, types, folders, dict(sorted(refused.items())))


def merge_strictly(parts: Sequence[Snapshot]) -> MergedSnapshots:
    """Merge snapshots without conflicts.

    Raises:
        InvalidSkillError: A dynamic skill is inside one that has digests.
    """
    complete_nested_manifests(entry for part in parts for entry in part.entries)
    return merge(parts)


def reuse_only_part(parts: Sequence[Snapshot], whole: Sequence[bool]) -> MergedSnapshots | None:
    """Reuse the only part with skills without copying; None when there is something to merge.

    `whole` states which parts need no merging if they are alone: their URIs
    are distinct, their manifests complete, and no skill exceeds a limit.
    """
    filled = [(part, ready) for part, ready in zip(parts, whole, strict=True) if part.entries]
    if len(filled) > 1 and any(part.is_stored for part in parts):
        raise SourceError("a catalog is served alone", fix="publish the other skills into the catalog")
    if len(filled) > 1 or not all(ready for _, ready in filled):
        return None
    part = filled[0][0] if filled else Snapshot.of(())
    return MergedSnapshots(tuple(parts), part.entries, part.by_uri, part.media_types, part.folders, {})


def merge_changes(before: MergedSnapshots, parts: Sequence[Snapshot]) -> MergedSnapshots:
    """Merge snapshots that are mostly unchanged; the result is that of `merge`."""
    places = _changes(before.parts, parts)
    if places is None:
        return merge(parts)
    tops = tuple(filter(None, {_outermost(place, (*before.parts, *parts)) for place in places}))
    if not tops:
        return replace(before, parts=tuple(parts))
    region = merge([_part_below(part, tops) for part in parts])
    entries = _spliced(before.entries, tops, region.entries)
    refused = {**_outside(before.refused, tops), **region.refused}
    return MergedSnapshots(
        tuple(parts),
        entries,
        _indexed(before.by_uri, entries, region),
        {**_outside(before.media_types, tops), **region.media_types},
        frozenset(folder for folder in before.folders if not folder.startswith(tops)) | region.folders,
        dict(sorted(refused.items())),
    )


def conflicts(parts: Sequence[Snapshot]) -> dict[str, tuple[str, ...]]:
    """Map each conflicting URI to the skills concerned.

    That is a `SKILL.md` that is listed twice, or a file that has different
    bytes in a skill and in one nested in it from another source.
    """
    return _conflicts(parts, enclosures(entry for part in parts for entry in part.entries))


def _conflicts(
    parts: Sequence[Snapshot], around: Mapping[str, Sequence[SkillEntry]]
) -> dict[str, tuple[str, ...]]:
    owners: dict[str, int] = {}
    twice: dict[str, tuple[str, ...]] = {}
    for position, part in enumerate(parts):
        for entry in part.entries:
            uri = entry.uri.text
            if uri in owners:
                twice[uri] = (uri,)
            owners[uri] = position
    differing: dict[str, set[str]] = {}
    for uri, outers in around.items():
        for outer in outers:
            if not {uri, outer.uri.text} & twice.keys() and owners[uri] != owners[outer.uri.text]:
                for file in _differing(parts[owners[uri]].by_uri[uri], outer):
                    differing.setdefault(file, set()).update((uri, outer.uri.text))
    return dict(sorted({**twice, **{uri: tuple(sorted(found)) for uri, found in differing.items()}}.items()))


def _changes(before: Sequence[Snapshot], now: Sequence[Snapshot]) -> set[str] | None:
    """Return the URIs that changed in any part; None when they are too many."""
    places: set[str] = set()
    for old, new in zip(before, now, strict=True):
        if old is new:
            continue
        if len(old.entries) != len(old.by_uri) or len(new.entries) != len(new.by_uri):
            return None  # A source lists a skill twice: its changes are not visible in the mapping.
        known = old.by_uri
        places.update([uri for uri, entry in new.by_uri.items() if known.get(uri) is not entry])
        places.update(known.keys() - new.by_uri.keys())
        places.update(old.folders ^ new.folders)
        places.update(uri for uri, _ in old.media_types.items() ^ new.media_types.items())
        if len(places) > MAX_CHANGES:
            return None
    return places


def _outermost(place: str, parts: Sequence[Snapshot]) -> str:
    """Return the root of the outermost skill around `place`, with a slash; empty when there is none."""
    found = ""
    for folder in self_and_ancestors(place.removesuffix(f"/{SKILL_FILE}")):
        skill = f"{folder}/{SKILL_FILE}"
        if any(skill in part.by_uri for part in parts):
            found = f"{folder}/"
    return found


def _part_below(part: Snapshot, tops: tuple[str, ...]) -> Snapshot:
    """Return the part of a snapshot below `tops`."""
    entries = tuple(entry for top in tops for entry in part.entries[slice(*_span(part.entries, top))])
    return Snapshot(
        part.revision,
        entries,
        (),
        {entry.uri.text: entry for entry in entries},
        {uri: kind for uri, kind in part.media_types.items() if uri.startswith(tops)},
        frozenset(folder for folder in part.folders if folder.startswith(tops)),
    )


def _span(entries: Sequence[SkillEntry], top: str) -> tuple[int, int]:
    """Return the start and end of the entries below `top`, which are adjacent in the order of URIs."""
    start = bisect_left(entries, top, key=BY_URI)
    # No character of a URI sorts after this one.
    return start, bisect_left(entries, f"{top}\x7f", lo=start, key=BY_URI)


def _spliced(
    entries: Sequence[SkillEntry], tops: Iterable[str], region: Iterable[SkillEntry]
) -> tuple[SkillEntry, ...]:
    """Replace the entries below `tops` by those of `region`."""
    spliced = list(entries)
    for top in tops:
        start, end = _span(spliced, top)
        spliced[start:end] = [entry for entry in region if entry.uri.text.startswith(top)]
    return tuple(spliced)


def _indexed(
    before: Mapping[str, SkillEntry], entries: Sequence[SkillEntry], region: MergedSnapshots
) -> Mapping[str, SkillEntry]:
    """Map URIs to entries in their order; faster where the set of URIs did not change."""
    if len(before) == len(entries) and region.by_uri.keys() <= before.keys():
        return {**before, **region.by_uri}
    return {entry.uri.text: entry for entry in entries}


def _outside(values: Mapping[str, Value], tops: tuple[str, ...]) -> dict[str, Value]:
    return {uri: value for uri, value in values.items() if not uri.startswith(tops)}


def _media_types(parts: Sequence[Snapshot], by_uri: Mapping[str, SkillEntry]) -> Iterator[tuple[str, str]]:
    """Yield the media types of served files, from the part that serves them."""
    snapshot = Snapshot(1, (), (), by_uri)
    for uri in {uri for part in parts for uri in part.media_types}:
        try:
            entry, _ = snapshot.locate(uri)
        except NotFoundError:
            continue
        owner = next(part for part in parts if entry.uri.text in part.by_uri)
        if uri in owner.media_types:
            yield uri, owner.media_types[uri]


def _folders(parts: Sequence[Snapshot], by_uri: Mapping[str, SkillEntry]) -> Iterator[str]:
    """Yield the empty directories of served skills, unless another part has a file there."""
    for part in parts:
        for folder in part.folders:
            skills = [f"{parent}/{SKILL_FILE}" for parent in self_and_ancestors(folder)]
            around = [by_uri[skill] for skill in skills if skill in by_uri]
            if any(entry.uri.text in part.by_uri for entry in around) and not any(
                entry.manifest is not None and has_files_below(entry.manifest, folder) for entry in around
            ):
                yield folder


def _differing(inner: SkillEntry, outer: SkillEntry) -> list[str]:
    """Return the files that have different digests in two skills."""
    if inner.manifest is None or outer.manifest is None:
        return []
    return [
        file.uri
        for file in inner.manifest.files
        if (other := outer.manifest.find(file.uri)) is not None and other != file
    ]


def _misplacements(entries: Sequence[SkillEntry]) -> dict[str, str]:
    """Map each dynamic skill inside one that has digests to the root of the latter."""
    around = enclosures(entries)
    return {
        entry.uri.text: outer.uri.root
        for entry in entries
        if entry.is_dynamic
        for outer in around.get(entry.uri.text, ())
        if not outer.is_dynamic
    }


def _clash(uri: str) -> Finding:
    message = f"{uri} is served by more than one source, so none of them serves it"
    return Finding(
        "duplicate-uri", message, fix="give one of them another name, or serve its folder under a prefix"
    )


def _misplaced(outer: str) -> Finding:
    message = f"the skill is dynamic and inside {outer}, which has digests of all its files"
    return Finding("dynamic-inside-static", message, fix="move it out, or make the enclosing skill dynamic")


# URIs that a dialect reserves for its own resources, where no skill can be served.


def is_reserved(uri: str, reserved: Collection[str]) -> bool:
    """Return whether a URI, in any spelling, is a reserved one or below one."""
    if not reserved:
        return False
    try:
        wanted = canonical_uri(uri)
    except InvalidUriError:
        return False
    return any(wanted == taken or wanted.startswith(f"{taken}/") for taken in reserved)


def reserved_entries(part: Snapshot, reserved: Collection[str]) -> list[SkillEntry]:
    """Return the skills of a snapshot that are below reserved URIs, by binary search."""
    return [entry for taken in sorted(reserved) for entry in entries_below(part.entries, taken)]


def reserved_finding(entry: SkillEntry) -> Finding:
    """Build the finding about a skill at a reserved URI."""
    return Finding(
        "uri-reserved",
        f"{entry.uri} is not served: an older dialect that is enabled here reserves this URI for its index",
        fix="give the skill another path, or disable that dialect",
    )


logger = logging.getLogger(__name__)

_READ_ATTEMPTS = 3
MAX_SMALL_FILE: Final = 64 * 1024
"""The maximum size of a file that is read without a thread: a thread costs more than the read."""

Result = TypeVar("Result")


class ServedFile(NamedTuple):
    """The bytes of a file, and the snapshot, the entry and the line of the manifest that they belong to.

    A file of a dynamic skill has no line, and one of an unlisted skill no entry either.
    """

    content: bytes
    snapshot: Snapshot
    entry: SkillEntry | None = None
    line: ManifestFile | None = None


class CombinedSource(SnapshotSource):
    """All skills of several sources under their own URIs.

        async with CombinedSource([DirectorySource("skills/"), MemorySource(built)]) as combined: ...

    Entering opens the sources that need opening, all at the same time. Two sources that serve the
    same URI are an error then; if that happens later, neither is served until
    it is resolved, and a report describes it. No source ever shadows another.
    `reserved` are URIs at which, and below which, no skill is served: skills
    there are left out and reported.
    """

    def __init__(self, sources: Sequence[Source], *, reserved: Iterable[str] = ()) -> None:
        self._sources = tuple(sources)
        self._reserved = frozenset(reserved)
        self._reported_reserved: set[str] = set()
        # The snapshots of our own sources can be served unchanged when they are the only part.
        self._whole = tuple(isinstance(source, SnapshotSource) for source in self._sources)
        self._read_now: tuple[Callable[[SkillEntry, ManifestFile], bytes | None] | None, ...] = tuple(
            getattr(source, "read_now", None) for source in self._sources
        )
        self._catching_up: tuple[tuple[int, Callable[[], Awaitable[Snapshot]]], ...] = tuple(
            (position, catch_up)
            for position, source in enumerate(self._sources)
            if (catch_up := getattr(source, "catch_up", None)) is not None
        )
        self._merged = merge([Snapshot.of(())] * len(self._sources))
        self._merging = anyio.Lock()
        super().__init__()
        self._stack = AsyncExitStack()

    @property
    def cache_key(self) -> str:
        keys = (source.cache_key for source in self._sources if isinstance(source, SnapshotSource))
        return "\n".join(key for key in keys if key)

    async def __aenter__(self) -> "CombinedSource":
        """Open the sources and merge what they serve.

        Raises:
            DuplicateSkillError: Some URIs are served twice; the error names all of them.
            InvalidSkillError: A dynamic skill lies inside a skill of another source that has digests.
            SourceError: A source cannot be opened.
        """
        async with AsyncExitStack() as stack:
            managers = [
                cast(AbstractAsyncContextManager[Any], source)
                for source in self._sources
                if isinstance(source, AbstractAsyncContextManager)
            ]
            await stack.enter_async_context(open_all(managers))
            await self._merge_first(self._with_live_parts(await self._list_plain_sources()))
            following = [
                partial(self._watch, position, source)
                for position, source in enumerate(self._sources)
                if isinstance(source, LiveSource)
            ]
            await stack.enter_async_context(run_in_background(*following))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def is_shared(self) -> bool:
        """Whether a source is shared with other processes, so that `catch_up` is needed before answers."""
        return bool(self._catching_up)

    @property
    def shared_state(self) -> SharedState | None:
        """The state of the first source that is shared with other processes; None when there is none."""
        found = (getattr(source, "shared_state", None) for source in self._sources)
        return next((state for state in found if state is not None), None)

    @property
    def sources(self) -> Sequence[Source]:
        """The sources, in the order in which they are queried."""
        return self._sources

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        """Return one entry, listed or not.

        Raises:
            NotFoundError: No source serves such a skill.
        """
        try:
            return self.snapshot.get(uri)
        except NotFoundError:
            if uri.text in self._merged.refused or is_reserved(uri.text, self._reserved):
                raise
            return await self._query_plain_sources(lambda source: source.get_skill(uri), uri.text)

    async def read_file(self, uri: str) -> bytes:
        """Return a file's bytes, which match the digest in the snapshot.

        Raises:
            NotFoundError: No source serves such a file.
            SourceError: The file keeps changing, or cannot be read.
        """
        return (await self.read(uri)).content

    async def read(self, uri: str) -> ServedFile:
        """Return a file, with what the snapshot that its bytes match says about it.

        Raises:
            NotFoundError: No source serves such a file.
            SourceError: The file keeps changing, or cannot be read.
        """
        for _ in range(_READ_ATTEMPTS):
            snapshot = self.snapshot
            try:
                entry, line = snapshot.locate(uri)
            except NotFoundError:
                if self._is_refused(uri) or is_reserved(uri, self._reserved):
                    raise
                content = await self._query_plain_sources(lambda source: source.read_file(uri), uri)
                return ServedFile(content, snapshot)
            if line is None:
                return ServedFile(await self._owner_of(entry).read_file(uri), snapshot, entry)
            content = (
                self.read_now(entry, line)
                if 0 <= line.size <= MAX_SMALL_FILE
                else await anyio.to_thread.run_sync(self.read_now, entry, line)
            )
            if content is not None:
                return ServedFile(content, snapshot, entry, line)
            content = await self._owner_of(entry).read_file(line.published)
            try:
                line.verify(content)
                return ServedFile(content, snapshot, entry, line)
            except VerificationError:
                await self.refresh()
        raise SourceError(f"{uri} is changing and cannot be served as published")

    def read_small(self, uri: str) -> ServedFile | None:
        """Return a small file without waiting; None when only `read` can answer. Thread-safe.

        Raises:
            NotFoundError: No listed skill has such a file.
        """
        snapshot = self.snapshot
        entry, line = snapshot.locate(uri)
        if line is None or not 0 <= line.size <= MAX_SMALL_FILE:
            return None
        content = self.read_now(entry, line)
        return None if content is None else ServedFile(content, snapshot, entry, line)

    def read_now(self, entry: SkillEntry, line: ManifestFile) -> bytes | None:
        """Return the bytes of a file if they match `line`; None when its source cannot tell at once."""
        for read_now, part in zip(self._read_now, self._merged.parts, strict=True):
            if entry.uri.text in part.by_uri:
                return None if read_now is None else read_now(entry, line)
        return None

    def _is_refused(self, uri: str) -> bool:
        """Return whether a file belongs to a skill that more than one source claims."""
        if not self._merged.refused:
            return False
        try:
            wanted = canonical_uri(uri)
        except InvalidUriError:
            return False
        return any(wanted.startswith(SkillUri(refused).root + "/") for refused in self._merged.refused)

    async def catch_up(self) -> None:
        """Serve what the sources that are shared with other processes contain at this moment.

        A source with a method `catch_up` asks the others; if they do not answer
        in time, its last known state stays.
        """
        for position, catch_up in self._catching_up:
            part = await catch_up()
            if part.revision > self._merged.parts[position].revision:
                async with self._merging:
                    await self._take(position, part)

    async def refresh(self) -> Snapshot:
        """Merge again what the sources serve now."""
        listed = await self._list_plain_sources()
        async with self._merging:
            return await self._merge(self._with_live_parts(listed))

    def modified_at(self, uri: SkillUri) -> float | None:
        """Return when a served skill's `SKILL.md` was last modified, in POSIX seconds.

        None when its source does not know.
        """
        entry = self.snapshot.by_uri.get(uri.text)
        modified_at = None if entry is None else getattr(self._owner_of(entry), "modified_at", None)
        return modified_at(uri) if modified_at else None

    def order_of(self, uri: SkillUri) -> Sequence[str]:
        """Return the paths of files of a served skill that its author put in an order, in that order."""
        entry = self.snapshot.by_uri.get(uri.text)
        order_of = None if entry is None else getattr(self._owner_of(entry), "order_of", None)
        return order_of(uri) if order_of else ()

    async def _list_plain_sources(self) -> list[Snapshot]:
        return [
            Snapshot.of(())
            if isinstance(source, LiveSource)
            else Snapshot.of([entry async for entry in source.list_skills()])
            for source in self._sources
        ]

    def _with_live_parts(self, listed: Sequence[Snapshot]) -> list[Snapshot]:
        """Add the current snapshots of live sources, without awaiting, so that none changes in between."""
        return [
            source.snapshot if isinstance(source, LiveSource) else part
            for source, part in zip(self._sources, listed, strict=True)
        ]

    async def _watch(self, position: int, source: LiveSource) -> None:
        try:
            while True:
                part = await source.wait_for_change(self._merged.parts[position].revision)
                async with self._merging:
                    await self._take(position, part)
        except Exception:
            logger.exception("source %d is no longer watched; serving its last state", position + 1)

    async def _take(self, position: int, part: Snapshot) -> None:
        """Publish a new part, unless another task did; the caller holds the lock."""
        parts = list(self._merged.parts)
        if part.revision > parts[position].revision:
            parts[position] = part
            await self._merge(parts)

    async def _merge(self, parts: Sequence[Snapshot]) -> Snapshot:
        """Merge and publish `parts`; the caller holds the lock, so that revisions are in order."""
        parts = self._without_reserved(parts)
        merged = reuse_only_part(parts, self._whole)
        if merged is None:
            merged = await anyio.to_thread.run_sync(merge_changes, self._merged, parts)
        return self._publish(merged)

    def _without_reserved(self, parts: Sequence[Snapshot]) -> list[Snapshot]:
        """Return the parts without the skills at reserved URIs, with a report about each of those."""
        found: list[Snapshot] = []
        for position, (source, part) in enumerate(zip(self._sources, parts, strict=True)):
            taken = reserved_entries(part, self._reserved)
            for entry in taken:
                finding = reserved_finding(entry)
                place = _place_of(source, entry.uri.text, position)
                # Callers check the reports after opening; later ones are logged.
                if self._snapshot is not None and entry.uri.text not in self._reported_reserved:
                    logger.warning("%s: %s", place, finding.message)
                self._reported_reserved.add(entry.uri.text)
                part = part.without(entry, Report(place, (finding,)))
            found.append(part)
        return found

    async def _merge_first(self, parts: Sequence[Snapshot]) -> None:
        parts = self._without_reserved(parts)
        merged = reuse_only_part(parts, self._whole)
        if merged is None:
            if found := await anyio.to_thread.run_sync(conflicts, parts):
                raise self._duplicates(found, parts)
            merged = await anyio.to_thread.run_sync(merge_strictly, parts)
        self._publish(merged)

    def _publish(self, merged: MergedSnapshots) -> Snapshot:
        reports = self._reports(merged)
        for uri in merged.refused.keys() - self._merged.refused.keys():
            logger.warning("%s is not served: %s", uri, merged.refused[uri][0].message)
        self._merged = merged
        revision = self._snapshot.revision + 1 if self._snapshot else 1
        stored = next((part for part in merged.parts if part.is_stored), None)
        self._replace_snapshot(
            Snapshot(revision, merged.entries, reports, merged.by_uri, merged.media_types, merged.folders)
            if stored is None
            else replace(stored, revision=revision, reports=reports)
        )
        return self.snapshot

    def _reports(self, merged: MergedSnapshots) -> tuple[Report, ...]:
        refused = merged.refused
        reported = [part.reports for part in merged.parts if part.reports]
        if not refused and len(reported) <= 1:
            return reported[0] if reported else ()
        reports = [
            Report(place, refused[uri]) for uri in refused for place in self._places_of(uri, merged.parts)
        ]
        reports += [
            replace(report, uri=None) if report.uri and report.uri.text in refused else report
            for part in reported
            for report in part
        ]
        return tuple(sorted(reports, key=BY_PLACE))

    def _duplicates(
        self, found: Mapping[str, Sequence[str]], parts: Sequence[Snapshot]
    ) -> DuplicateSkillError:
        return DuplicateSkillError(
            f"more than one source serves {', '.join(found)}",
            uris=tuple(found),
            claims={
                uri: tuple(place for skill in skills for place in self._places_of(skill, parts))
                for uri, skills in found.items()
            },
            fix="give one of them another name, or serve its folder under a prefix",
        )

    def _places_of(self, uri: str, parts: Sequence[Snapshot]) -> list[str]:
        """Return the places that serve the skill at `uri`, for the operator of the server."""
        return [
            _place_of(source, uri, position)
            for position, (source, part) in enumerate(zip(self._sources, parts, strict=True))
            if uri in part.by_uri
        ]

    async def _query_plain_sources(self, query: Callable[[Source], Awaitable[Result]], uri: str) -> Result:
        """Query the sources that may serve more than they list, in order, until one answers."""
        for source in self._sources:
            if not isinstance(source, LiveSource):
                try:
                    return await query(source)
                except NotFoundError:
                    continue
        raise NotFoundError(f"nothing is served at {uri}", uri=uri)

    def _owner_of(self, entry: SkillEntry) -> Source:
        parts = zip(self._sources, self._merged.parts, strict=True)
        return next(source for source, part in parts if entry.uri.text in part.by_uri)


def _place_of(source: Source, uri: str, position: int) -> str:
    place_of = getattr(source, "place_of", None)
    return place_of(SkillUri(uri)) if place_of else f"source {position + 1}"
