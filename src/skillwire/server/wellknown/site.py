"""`Publisher`: the web site of a catalog, made anew for each snapshot."""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import anyio
import anyio.to_thread

from skillwire.core.archive import ArchiveFormat
from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.core.manifest import digest_of
from skillwire.core.uri import SKILL_FILE
from skillwire.errors import InvalidArchiveError, LimitError, NotFoundError, SourceError
from skillwire.server.archives import ArchiveShelf
from skillwire.server.listing import EVERYTHING_LISTED
from skillwire.sources import Catalog, Report, Snapshot
from skillwire.sources.snapshot import enclosures
from skillwire.wire.wellknown import ArtifactType, SiteEntry, write_index

logger = logging.getLogger(__name__)

FORMAT: Final = ArchiveFormat.TAR_GZ
SKILL_MEDIA_TYPE: Final = "text/markdown; charset=utf-8"

_ATTEMPTS = 3

ListedOf: TypeAlias = Callable[[Snapshot], tuple[SkillEntry, ...]]
"""Tells which entries of a snapshot are listed."""


def as_authors_say(snapshot: Snapshot) -> tuple[SkillEntry, ...]:
    """Return all entries but those whose authors keep them out of listings."""
    return EVERYTHING_LISTED.of(snapshot.entries)


@dataclass(frozen=True, slots=True)
class Artifact:
    """The one file of a skill on the site; its path begins with the digest of its bytes."""

    entry: SkillEntry
    type: ArtifactType
    digest: str
    size: int

    @property
    def path(self) -> str:
        """Where it is, relative to the index."""
        name = SKILL_FILE if self.type is ArtifactType.SKILL_MD else f"{self.entry.name}.{FORMAT}"
        return f"{self.digest.removeprefix('sha256:')}/{name}"

    @property
    def media_type(self) -> str:
        return SKILL_MEDIA_TYPE if self.type is ArtifactType.SKILL_MD else FORMAT.media_type

    @property
    def line(self) -> SiteEntry:
        """What the index says of it."""
        frontmatter = self.entry.frontmatter
        return SiteEntry(frontmatter.name, self.type, frontmatter.description, self.path, self.digest)


@dataclass(frozen=True, slots=True)
class PublishedSite:
    """The site of one snapshot: its index, its artifacts by path, and what is no part of it and why.

    `left_out` are the skills without a place on any site, `failed` those that should be on this one.
    """

    snapshot: Snapshot
    index: bytes
    digest: str
    artifacts: Mapping[str, Artifact]
    left_out: tuple[Report, ...]
    failed: tuple[Report, ...]


class Publisher:
    """Makes the site of a catalog, and hands out its artifacts.

    A skill that did not change is not packed again. Skills that this dialect
    has no form for are left out, with a report: dynamic ones, which no digest
    can stand for; those inside others, whose archives hold them already; and
    all that share a name, because the index knows skills by name alone. Those
    that are not listed have no place there at all.
    """

    def __init__(self, shelf: ArchiveShelf | None = None) -> None:
        self._shelf = shelf or ArchiveShelf()
        self._site: PublishedSite | None = None
        self._known: dict[str, Artifact] = {}
        self._building = anyio.Lock()

    async def site(self, catalog: Catalog, listed_of: ListedOf = as_authors_say) -> PublishedSite:
        """Return the site of what `catalog` serves now, as far as `listed_of` says that it is listed."""
        held = self._site
        if held is not None and held.snapshot is catalog.snapshot:
            return held
        async with self._building:
            for attempt in itertools.count(1):
                snapshot = catalog.snapshot
                if self._site is not None and self._site.snapshot is snapshot:
                    return self._site
                site, is_whole = await self._build(snapshot, listed_of(snapshot), catalog)
                if is_whole:
                    self._tell(site)
                    self._site = site
                # What changes all the time is answered for as it was a moment ago.
                if is_whole or catalog.snapshot is snapshot or attempt == _ATTEMPTS:
                    return site
            raise AssertionError("there is always another attempt")

    async def read(self, artifact: Artifact, catalog: Catalog) -> bytes:
        """Return the bytes of an artifact, which are exactly the ones it is named by.

        Raises:
            NotFoundError: The skill has changed since, or is gone.
            SourceError: It cannot be read.
        """
        uri = artifact.entry.uri.text
        try:
            if artifact.type is ArtifactType.SKILL_MD:
                data = await catalog.read_file(uri)
            else:
                data = (await self._shelf.archive(artifact.entry, FORMAT, catalog)).data
        except SourceError as error:
            if catalog.snapshot.by_uri.get(uri) == artifact.entry:
                raise
            raise NotFoundError(f"{uri} has changed", uri=uri) from error
        if await anyio.to_thread.run_sync(digest_of, data) != artifact.digest:
            raise NotFoundError(f"{uri} has changed", uri=uri)
        return data

    async def _build(
        self, snapshot: Snapshot, listed: tuple[SkillEntry, ...], catalog: Catalog
    ) -> tuple[PublishedSite, bool]:
        """Make the site of a snapshot, and tell whether nothing was left out that another try may take in."""
        entries, left_out = await anyio.to_thread.run_sync(_chosen, snapshot, listed)
        artifacts: dict[str, Artifact] = {}
        failed: list[Report] = []
        is_whole = True
        for entry in entries:
            try:
                artifact = await self._artifact(entry, catalog)
            except (NotFoundError, SourceError) as error:
                is_whole = False
                failed.append(_unfit(entry, f"it cannot be read: {error}"))
            except (InvalidArchiveError, LimitError) as error:
                failed.append(_unfit(entry, f"it cannot be packed: {error}"))
            else:
                artifacts[artifact.path] = artifact
        self._known = {artifact.entry.uri.text: artifact for artifact in artifacts.values()}
        index, digest = await anyio.to_thread.run_sync(_written, artifacts.values())
        site = PublishedSite(snapshot, index, digest, artifacts, tuple(left_out), tuple(failed))
        return site, is_whole

    async def _artifact(self, entry: SkillEntry, catalog: Catalog) -> Artifact:
        known = self._known.get(entry.uri.text)
        if known is not None and (known.entry is entry or known.entry == entry):
            return known
        manifest = entry.manifest
        assert manifest is not None, "dynamic skills were left out"
        if len(manifest) == 1:
            line = manifest.require(entry.uri.text)
            return Artifact(entry, ArtifactType.SKILL_MD, line.digest, line.size)
        label = (await self._shelf.labels(entry, [FORMAT], catalog))[FORMAT]
        return Artifact(entry, ArtifactType.ARCHIVE, label.digest, label.size)

    def _tell(self, site: PublishedSite) -> None:
        before = self._site
        told = {*before.left_out, *before.failed} if before is not None else set[Report]()
        for report in (*site.left_out, *site.failed):
            if report not in told:
                logger.warning("%s is not on the web site: %s", report.place, report.findings[0].message)


def _chosen(snapshot: Snapshot, listed: tuple[SkillEntry, ...]) -> tuple[list[SkillEntry], list[Report]]:
    """Return the listed entries that have a place on a site, by name, and reports about all others."""
    nested = enclosures(snapshot.entries)
    left_out: list[Report] = []
    fit: list[SkillEntry] = []
    for entry in listed:
        if entry.is_dynamic:
            left_out.append(_unfit(entry, "its content is made when it is read, so it has no digest"))
        elif entry.uri.text in nested:
            outer = nested[entry.uri.text][0]
            left_out.append(_unfit(entry, f"it lies inside {outer.uri.root}, whose archive holds it"))
        else:
            fit.append(entry)
    counts = Counter(entry.name for entry in fit)
    for entry in fit:
        if counts[entry.name] > 1:
            message = (
                f"{counts[entry.name]} skills have the name {entry.name!r}, and the index has room for one"
            )
            left_out.append(_report(entry, "name-not-unique", message, "rename all but one of them"))
    return sorted((entry for entry in fit if counts[entry.name] == 1), key=_name), left_out


def _name(entry: SkillEntry) -> str:
    return entry.name


def _written(artifacts: Iterable[Artifact]) -> tuple[bytes, str]:
    index = write_index(artifact.line for artifact in artifacts)
    return index, digest_of(index)


def _unfit(entry: SkillEntry, message: str) -> Report:
    return _report(entry, "site-left-out", message, "serve it over MCP, or publish it by itself")


def _report(entry: SkillEntry, code: str, message: str, fix: str) -> Report:
    return Report(entry.uri.text, (Finding(code, message, file="", fix=fix),))
