"""`CombinedSource`: many sources, served as one."""

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread

from skillwire.core import (
    DuplicateSkillError,
    Finding,
    InvalidUriError,
    NotFoundError,
    SkillEntry,
    SkillUri,
    SourceError,
    VerificationError,
    canonical_uri,
)
from skillwire.sources.background import opened_together, run_in_background
from skillwire.sources.merge import (
    MergedSnapshots,
    clashes,
    merge,
    merge_changes,
    merge_strictly,
    reuse_only_part,
)
from skillwire.sources.snapshot import BY_PLACE, BY_URI, LiveSource, Report, Snapshot, SnapshotSource, Source

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
    found: list[SkillEntry] = []
    for taken in sorted(reserved):
        prefix = f"{taken}/"
        for entry in part.entries[bisect_left(part.entries, prefix, key=BY_URI) :]:
            if not entry.uri.text.startswith(prefix):
                break
            found.append(entry)
    return found


def reserved_finding(entry: SkillEntry) -> Finding:
    """Build the finding about a skill at a reserved URI."""
    return Finding(
        "uri-reserved",
        f"{entry.uri} is not served: an older dialect that is enabled here reserves this URI for its index",
        fix="give the skill another path, or disable that dialect",
    )


def without_entry(part: Snapshot, entry: SkillEntry, report: Report) -> Snapshot:
    """Return a snapshot without one skill, and with a report about it."""
    reports = [
        replace(other, uri=None) if other.uri is not None and other.uri.text == entry.uri.text else other
        for other in part.reports
    ]
    return Snapshot.of(
        (other for other in part.entries if other is not entry),
        reports=[*reports, report],
        revision=part.revision,
        media_types=part.media_types,
        folders=part.folders,
    )


logger = logging.getLogger(__name__)

_READ_ATTEMPTS = 3

Result = TypeVar("Result")


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
        self._merged = merge([Snapshot.of(())] * len(self._sources))
        self._merging = anyio.Lock()
        super().__init__()
        self._stack = AsyncExitStack()

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
            await stack.enter_async_context(opened_together(managers))
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
        for _ in range(_READ_ATTEMPTS):
            try:
                entry, file = self.snapshot.locate(uri)
            except NotFoundError:
                if self._is_refused(uri):
                    raise
                if is_reserved(uri, self._reserved):
                    raise
                return await self._query_plain_sources(lambda source: source.read_file(uri), uri)
            content = await self._owner_of(entry).read_file(uri if file is None else file.published)
            if file is None:
                return content
            try:
                file.verify(content)
                return content
            except VerificationError:
                await self.refresh()
        raise SourceError(f"{uri} is changing and cannot be served as published")

    def _is_refused(self, uri: str) -> bool:
        """Return whether a file belongs to a skill that more than one source claims."""
        if not self._merged.refused:
            return False
        try:
            wanted = canonical_uri(uri)
        except InvalidUriError:
            return False
        return any(wanted.startswith(SkillUri(refused).root + "/") for refused in self._merged.refused)

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
                    parts = list(self._merged.parts)
                    if part.revision > parts[position].revision:  # A refresh may have updated it already.
                        parts[position] = part
                        await self._merge(parts)
        except Exception:
            logger.exception("source %d is no longer watched; serving its last state", position + 1)

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
                part = without_entry(part, entry, Report(place, (finding,)))
            found.append(part)
        return found

    async def _merge_first(self, parts: Sequence[Snapshot]) -> None:
        parts = self._without_reserved(parts)
        merged = reuse_only_part(parts, self._whole)
        if merged is None:
            if found := await anyio.to_thread.run_sync(clashes, parts):
                raise self._duplicates(found, parts)
            merged = await anyio.to_thread.run_sync(merge_strictly, parts)
        self._publish(merged)

    def _publish(self, merged: MergedSnapshots) -> Snapshot:
        reports = self._reports(merged)
        for uri in merged.refused.keys() - self._merged.refused.keys():
            logger.warning("%s is not served: %s", uri, merged.refused[uri][0].message)
        self._merged = merged
        revision = self._snapshot.revision + 1 if self._snapshot else 1
        self._replace_snapshot(
            Snapshot(revision, merged.entries, reports, merged.by_uri, merged.media_types, merged.folders)
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
