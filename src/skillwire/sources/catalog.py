"""`Catalog`: many sources, served as one."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, cast

import anyio

from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.core.uri import SkillUri
from skillwire.errors import DuplicateSkillError, NotFoundError, SourceError, VerificationError
from skillwire.sources.snapshot import Report, Snapshot, nest
from skillwire.sources.source import LiveSource, Source

logger = logging.getLogger(__name__)

_READ_ATTEMPTS = 3


class Catalog:
    """All skills of several sources under their own URIs.

        async with Catalog([DirectorySource("skills/"), MemorySource(built)]) as catalog: ...

    Entering opens the sources that need opening. Two sources that serve the
    same URI are an error then; if that happens later, neither is served until
    it is resolved, and a report says so. No source ever shadows another.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._parts: list[Snapshot] = []
        self._snapshot: Snapshot | None = None
        self._changed = anyio.Event()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Catalog":
        """Open the sources and merge what they serve.

        Raises:
            DuplicateSkillError: Some URIs are served twice; the error names all of them.
            SourceError: A source cannot be opened.
        """
        async with AsyncExitStack() as stack:
            for source in self._sources:
                if isinstance(source, AbstractAsyncContextManager):
                    await stack.enter_async_context(cast(AbstractAsyncContextManager[Any], source))
            await self.refresh()
            self._refuse_clashes()
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            for position, source in enumerate(self._sources):
                if isinstance(source, LiveSource):
                    group.start_soon(self._follow, position, source)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def snapshot(self) -> Snapshot:
        """The state of all sources now.

        Raises:
            SourceError: The catalog was not entered with `async with`.
        """
        if self._snapshot is None:
            raise SourceError("the catalog is not open; use it with `async with`")
        return self._snapshot

    async def wait_for_change(self, revision: int) -> Snapshot:
        """Return the snapshot once its revision is newer than `revision`."""
        while self.snapshot.revision <= revision:
            await self._changed.wait()
        return self.snapshot

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        for entry in self.snapshot.entries:
            yield entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        return self.snapshot.get(uri)

    async def read_file(self, uri: str) -> bytes:
        """Return a file's bytes exactly as the catalog's snapshot promises them.

        Raises:
            NotFoundError: No source serves such a file.
            SourceError: The file keeps changing, or cannot be read.
        """
        for _ in range(_READ_ATTEMPTS):
            _, file = self.snapshot.locate(uri)
            content = await self._owner_of(uri).read_file(uri if file is None else file.uri)
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
        self._parts = [await _snapshot_of(source) for source in self._sources]
        return self._merge()

    async def _follow(self, position: int, source: LiveSource) -> None:
        while True:
            self._parts[position] = await source.wait_for_change(self._parts[position].revision)
            self._merge()

    def _merge(self) -> Snapshot:
        clashes = self._clashes()
        for uri, places in clashes.items():
            logger.warning("%s is served by more than one source and therefore not served: %s", uri, places)
        entries = [entry for part in self._parts for entry in part.entries if entry.uri.text not in clashes]
        reports = [report for part in self._parts for report in part.reports]
        reports += [
            Report(place, (_clash(uri, places),)) for uri, places in clashes.items() for place in places
        ]
        revision = self._snapshot.revision + 1 if self._snapshot else 1
        self._snapshot = Snapshot.of(nest(entries), reports=reports, revision=revision)
        self._changed.set()
        self._changed = anyio.Event()
        return self._snapshot

    def _clashes(self) -> Mapping[str, tuple[str, ...]]:
        """Map each URI that several sources serve to the places it comes from."""
        first: dict[str, int] = {}
        rivals: dict[str, list[int]] = {}
        for position, part in enumerate(self._parts):
            for uri in part.by_uri:
                if first.setdefault(uri, position) != position:
                    rivals.setdefault(uri, [first[uri]]).append(position)
        return {
            uri: tuple(_place_of(self._sources[position], uri, position) for position in positions)
            for uri, positions in sorted(rivals.items())
        }

    def _refuse_clashes(self) -> None:
        clashes = self._clashes()
        if clashes:
            raise DuplicateSkillError(
                f"more than one source serves {', '.join(clashes)}",
                uris=tuple(clashes),
                claims=clashes,
                fix="give one of them another name, or serve its folder under a prefix",
            )

    def _owner_of(self, uri: str) -> Source:
        for source, part in zip(self._sources, self._parts, strict=True):
            try:
                part.locate(uri)
            except NotFoundError:
                continue
            return source
        raise NotFoundError(f"no source serves {uri}", uri=uri)


async def _snapshot_of(source: Source) -> Snapshot:
    if isinstance(source, LiveSource):
        return source.snapshot
    return Snapshot.of([entry async for entry in source.list_skills()])


def _place_of(source: Source, uri: str, position: int) -> str:
    """Say where a source has a skill from, for people who run the server."""
    place_of = getattr(source, "place_of", None)
    return place_of(SkillUri(uri)) if place_of else f"source {position + 1}"


def _clash(uri: str, places: Sequence[str]) -> Finding:
    message = f"{uri} is served by {len(places)} sources, so none of them serves it"
    return Finding(
        "duplicate-uri", message, fix="give one of them another name, or serve its folder under a prefix"
    )
