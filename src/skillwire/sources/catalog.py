"""`Catalog`: many sources, served as one."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.core.uri import SkillUri
from skillwire.errors import DuplicateSkillError, NotFoundError, SourceError, VerificationError
from skillwire.sources.background import running
from skillwire.sources.live import SnapshotSource
from skillwire.sources.snapshot import Report, Snapshot, enclosures, nest, over_limits
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
        self._parts: list[Snapshot] = []
        self._refused: Mapping[str, tuple[Finding, ...]] = {}
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
            self._parts = await self._collect()
            self._refuse_clashes()
            self._merge()
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

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        """Return one entry, listed or not.

        Raises:
            NotFoundError: No source serves such a skill.
        """
        try:
            return self.snapshot.get(uri)
        except NotFoundError:
            if uri.text in self._refused:
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
                if any(SkillUri(refused).contains(uri) for refused in self._refused):
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
        self._parts = await self._collect()
        return self._merge()

    async def _collect(self) -> list[Snapshot]:
        listed = [
            None if isinstance(source, LiveSource) else await _listed(source) for source in self._sources
        ]
        # Live sources come last and without waiting, lest one of them moves on in between.
        return [
            source.snapshot if isinstance(source, LiveSource) else part or Snapshot.of(())
            for source, part in zip(self._sources, listed, strict=True)
        ]

    async def _follow(self, position: int, source: LiveSource) -> None:
        try:
            while True:
                self._parts[position] = await source.wait_for_change(self._parts[position].revision)
                self._merge()
        except Exception:
            logger.exception("source %d is no longer followed; it is served as it was", position + 1)

    def _merge(self) -> Snapshot:
        around = enclosures(self._entries_without({}))
        clashes = self._clashes(around)
        refused = {skill: (_clash(uri),) for uri, skills in clashes.items() for skill in skills}
        entries = self._entries_without(refused)
        if around:
            misplaced = _misplacements(entries)
            refused |= {uri: (_misplaced(outer),) for uri, outer in misplaced.items()}
            entries = nest(entry for entry in entries if entry.uri.text not in misplaced)
        refused |= over_limits(entries)
        for uri in refused.keys() - self._refused.keys():
            logger.warning("%s is not served: %s", uri, refused[uri][0].message)
        self._refused = refused
        reports = [Report(place, refused[uri]) for uri in refused for place in self._places_of(uri)]
        reports += [
            replace(report, uri=None) if report.uri and report.uri.text in refused else report
            for part in self._parts
            for report in part.reports
        ]
        served = [entry for entry in entries if entry.uri.text not in refused]
        revision = self._snapshot.revision + 1 if self._snapshot else 1
        self._replace_snapshot(Snapshot.of(served, reports=reports, revision=revision))
        return self.snapshot

    def _entries_without(self, refused: Mapping[str, object]) -> list[SkillEntry]:
        return [entry for part in self._parts for entry in part.entries if entry.uri.text not in refused]

    def _clashes(self, around: Mapping[str, Sequence[SkillEntry]]) -> dict[str, tuple[str, ...]]:
        """Map each URI that stands for different things to the skills concerned.

        That is a `SKILL.md` that is listed twice, or a file of which a skill
        and one that lies inside it, from another source, have different bytes.
        """
        owners: dict[str, int] = {}
        twice: dict[str, tuple[str, ...]] = {}
        for position, part in enumerate(self._parts):
            for entry in part.entries:
                uri = entry.uri.text
                if uri in owners:
                    twice[uri] = (uri,)
                owners[uri] = position
        differing: dict[str, set[str]] = {}
        for uri, outers in around.items():
            for outer in outers:
                if not {uri, outer.uri.text} & twice.keys() and owners[uri] != owners[outer.uri.text]:
                    for file in _differing(self._parts[owners[uri]].by_uri[uri], outer):
                        differing.setdefault(file, set()).update((uri, outer.uri.text))
        return dict(
            sorted({**twice, **{uri: tuple(sorted(found)) for uri, found in differing.items()}}.items())
        )

    def _refuse_clashes(self) -> None:
        entries = self._entries_without({})
        clashes = self._clashes(enclosures(entries))
        if clashes:
            raise DuplicateSkillError(
                f"more than one source serves {', '.join(clashes)}",
                uris=tuple(clashes),
                claims={
                    uri: tuple(place for skill in skills for place in self._places_of(skill))
                    for uri, skills in clashes.items()
                },
                fix="give one of them another name, or serve its folder under a prefix",
            )
        nest(entries)

    def _places_of(self, uri: str) -> list[str]:
        """Say where the skill at `uri` comes from, for people who run the server."""
        return [
            _place_of(source, uri, position)
            for position, (source, part) in enumerate(zip(self._sources, self._parts, strict=True))
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
        parts = zip(self._sources, self._parts, strict=True)
        return next(source for source, part in parts if entry.uri.text in part.by_uri)


async def _listed(source: Source) -> Snapshot:
    return Snapshot.of([entry async for entry in source.list_skills()])


def _place_of(source: Source, uri: str, position: int) -> str:
    place_of = getattr(source, "place_of", None)
    return place_of(SkillUri(uri)) if place_of else f"source {position + 1}"


def _differing(inner: SkillEntry, outer: SkillEntry) -> list[str]:
    """Name the files of which two skills promise different bytes."""
    if inner.manifest is None or outer.manifest is None:
        return []
    return [
        file.uri
        for file in inner.manifest.files
        if (other := outer.manifest.find(file.uri)) is not None and other != file
    ]


def _misplacements(entries: Sequence[SkillEntry]) -> dict[str, str]:
    """Map each dynamic skill inside one that promises digests to the root of the latter."""
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
    message = f"the skill is dynamic and lies inside {outer}, which promises digests of all its files"
    return Finding("dynamic-inside-static", message, fix="move it out, or make the enclosing skill dynamic")
