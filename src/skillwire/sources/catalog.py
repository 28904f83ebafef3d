"""`Catalog`: many sources, served as one."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread

from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.errors import DuplicateSkillError, NotFoundError, SourceError, VerificationError
from skillwire.sources.background import running
from skillwire.sources.live import SnapshotSource
from skillwire.sources.merge import Merged, clashes, merge, merge_changes, merge_strictly, share
from skillwire.sources.snapshot import BY_PLACE, Report, Snapshot
from skillwire.sources.source import LiveSource, Source

logger = logging.getLogger(__name__)

_READ_ATTEMPTS = 3

Answer = TypeVar("Answer")


class Catalog(SnapshotSource):
    """All skills of several sources under their own URIs.

        async with Catalog([DirectorySource("skills/"), MemorySource(built)]) as catalog: ...

    Entering opens the sources that need opening. Two sources that serve the
    same URI are an error then; if that happens later, neither is served until
    it is resolved, and a report says so. No source ever shadows another.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        # The snapshots of our own sources already are what a catalog of them alone would serve.
        self._whole = tuple(isinstance(source, SnapshotSource) for source in self._sources)
        self._merged = merge([Snapshot.of(())] * len(self._sources))
        self._merging = anyio.Lock()
        super().__init__()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Catalog":
        """Open the sources and merge what they serve.

        Raises:
            DuplicateSkillError: Some URIs are served twice; the error names all of them.
            InvalidSkillError: A dynamic skill lies inside one of another source that promises digests.
            SourceError: A source cannot be opened.
        """
        async with AsyncExitStack() as stack:
            for source in self._sources:
                if isinstance(source, AbstractAsyncContextManager):
                    await stack.enter_async_context(cast(AbstractAsyncContextManager[Any], source))
            await self._merge_first(self._with_live_parts(await self._list_plain_sources()))
            following = [
                partial(self._follow, position, source)
                for position, source in enumerate(self._sources)
                if isinstance(source, LiveSource)
            ]
            await stack.enter_async_context(running(*following))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def sources(self) -> Sequence[Source]:
        """The sources, in the order in which they are asked."""
        return self._sources

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        """Return one entry, listed or not.

        Raises:
            NotFoundError: No source serves such a skill.
        """
        try:
            return self.snapshot.get(uri)
        except NotFoundError:
            if uri.text in self._merged.refused:
                raise
            return await self._ask_plain_sources(lambda source: source.get_skill(uri), uri.text)

    async def read_file(self, uri: str) -> bytes:
        """Return a file's bytes exactly as the catalog's snapshot promises them.

        Raises:
            NotFoundError: No source serves such a file.
            SourceError: The file keeps changing, or cannot be read.
        """
        for _ in range(_READ_ATTEMPTS):
            try:
                entry, file = self.snapshot.locate(uri)
            except NotFoundError:
                if any(SkillUri(refused).contains(uri) for refused in self._merged.refused):
                    raise
                return await self._ask_plain_sources(lambda source: source.read_file(uri), uri)
            content = await self._owner_of(entry).read_file(uri if file is None else file.published)
            if file is None:
                return content
            try:
                file.verify(content)
                return content
            except VerificationError:
                await self.refresh()
        raise SourceError(f"{uri} is changing and cannot be served as published")

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
        """Complete the parts by what live sources say now, without waiting, lest one moves on in between."""
        return [
            source.snapshot if isinstance(source, LiveSource) else part
            for source, part in zip(self._sources, listed, strict=True)
        ]

    async def _follow(self, position: int, source: LiveSource) -> None:
        try:
            while True:
                part = await source.wait_for_change(self._merged.parts[position].revision)
                async with self._merging:
                    parts = list(self._merged.parts)
                    if part.revision > parts[position].revision:  # A refresh may have been faster.
                        parts[position] = part
                        await self._merge(parts)
        except Exception:
            logger.exception("source %d is no longer followed; it is served as it was", position + 1)

    async def _merge(self, parts: Sequence[Snapshot]) -> Snapshot:
        """Publish what `parts` come to; the caller holds the lock, so that revisions follow the changes."""
        merged = share(parts, self._whole)
        if merged is None:
            merged = await anyio.to_thread.run_sync(merge_changes, self._merged, parts)
        return self._publish(merged)

    async def _merge_first(self, parts: Sequence[Snapshot]) -> None:
        merged = share(parts, self._whole)
        if merged is None:
            if found := await anyio.to_thread.run_sync(clashes, parts):
                raise self._duplicates(found, parts)
            merged = await anyio.to_thread.run_sync(merge_strictly, parts)
        self._publish(merged)

    def _publish(self, merged: Merged) -> Snapshot:
        reports = self._reports(merged)
        for uri in merged.refused.keys() - self._merged.refused.keys():
            logger.warning("%s is not served: %s", uri, merged.refused[uri][0].message)
        self._merged = merged
        revision = self._snapshot.revision + 1 if self._snapshot else 1
        self._replace_snapshot(
            Snapshot(revision, merged.entries, reports, merged.by_uri, merged.media_types, merged.folders)
        )
        return self.snapshot

    def _reports(self, merged: Merged) -> tuple[Report, ...]:
        refused = merged.refused
        speaking = [part.reports for part in merged.parts if part.reports]
        if not refused and len(speaking) <= 1:
            return speaking[0] if speaking else ()
        reports = [
            Report(place, refused[uri]) for uri in refused for place in self._places_of(uri, merged.parts)
        ]
        reports += [
            replace(report, uri=None) if report.uri and report.uri.text in refused else report
            for part in speaking
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
        """Say where the skill at `uri` comes from, for people who run the server."""
        return [
            _place_of(source, uri, position)
            for position, (source, part) in enumerate(zip(self._sources, parts, strict=True))
            if uri in part.by_uri
        ]

    async def _ask_plain_sources(self, ask: Callable[[Source], Awaitable[Answer]], uri: str) -> Answer:
        """Ask the sources that may serve more than they list, in order, until one knows the answer."""
        for source in self._sources:
            if not isinstance(source, LiveSource):
                try:
                    return await ask(source)
                except NotFoundError:
                    continue
        raise NotFoundError(f"nothing is served at {uri}", uri=uri)

    def _owner_of(self, entry: SkillEntry) -> Source:
        parts = zip(self._sources, self._merged.parts, strict=True)
        return next(source for source, part in parts if entry.uri.text in part.by_uri)


def _place_of(source: Source, uri: str, position: int) -> str:
    place_of = getattr(source, "place_of", None)
    return place_of(SkillUri(uri)) if place_of else f"source {position + 1}"
