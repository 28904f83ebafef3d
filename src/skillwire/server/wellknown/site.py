"""`Publisher`: the web site of a catalog, built for each snapshot."""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import anyio
import anyio.to_thread

from skillwire.core import (
    SKILL_FILE,
    ArchiveFormat,
    Finding,
    InvalidArchiveError,
    JsonDict,
    LimitError,
    NotFoundError,
    SkillEntry,
    SourceError,
    digest_of,
    encode,
)
from skillwire.server.archives import ArchiveCache
from skillwire.server.visibility import EVERYTHING_LISTED
from skillwire.sources.combined import CombinedSource
from skillwire.sources.snapshot import Report, Snapshot, enclosures
from skillwire.wire.wellknown import ArtifactType, SiteEntry, write_index

logger = logging.getLogger(__name__)

FORMAT: Final = ArchiveFormat.TAR_GZ
SKILL_MEDIA_TYPE: Final = "text/markdown; charset=utf-8"

_ATTEMPTS = 3

ListedOf: TypeAlias = Callable[[Snapshot], Sequence[SkillEntry]]
"""Returns the listed entries of a snapshot."""


def listed_by_authors(snapshot: Snapshot) -> Sequence[SkillEntry]:
    """Return all entries except those that their authors hide from listings."""
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
        """The path relative to the index."""
        name = SKILL_FILE if self.type is ArtifactType.SKILL_MD else f"{self.entry.name}.{FORMAT}"
        return f"{self.digest.removeprefix('sha256:')}/{name}"

    @property
    def media_type(self) -> str:
        return SKILL_MEDIA_TYPE if self.type is ArtifactType.SKILL_MD else FORMAT.media_type

    @property
    def line(self) -> SiteEntry:
        """Its entry in the index."""
        frontmatter = self.entry.frontmatter
        return SiteEntry(frontmatter.name, self.type, frontmatter.description, self.path, self.digest)


@dataclass(frozen=True, slots=True)
class PublishedSite:
    """The site of one snapshot: its index, its artifacts by path, and reports about missing skills.

    `versions` is the document with the immutable versions, empty without any.
    `left_out` are skills that no site can have, `failed` those that could not be read or packed.
    """

    snapshot: Snapshot
    index: bytes
    digest: str
    artifacts: Mapping[str, Artifact]
    left_out: tuple[Report, ...]
    failed: tuple[Report, ...]
    versions: bytes = b""


class Publisher:
    """Builds the site of a catalog, and reads its artifacts.

    An unchanged skill is not packed again. Skills that this dialect does not
    support are left out, with a report: dynamic ones, which have no digest; those
    inside others, whose archives contain them; and all that share a name, because
    the index identifies skills by name. Unlisted skills are left out without a
    report.
    """

    def __init__(self, archives: ArchiveCache | None = None) -> None:
        self._archives = archives or ArchiveCache()
        self._site: PublishedSite | None = None
        self._known: dict[str, Artifact] = {}
        self._building = anyio.Lock()

    @property
    def cached_bytes(self) -> int:
        """The size of the cached site in bytes."""
        return self._archives.cached_bytes + (0 if self._site is None else len(self._site.index))

    async def site(self, catalog: CombinedSource, listed_of: ListedOf = listed_by_authors) -> PublishedSite:
        """Return the site of the listed skills that `catalog` serves now."""
        cached = self._site
        if cached is not None and cached.snapshot is catalog.snapshot:
            return cached
        async with self._building:
            for attempt in itertools.count(1):
                snapshot = catalog.snapshot
                if self._site is not None and self._site.snapshot is snapshot:
                    return self._site
                site, is_whole = await self._build(snapshot, listed_of(snapshot), catalog)
                if is_whole:
                    self._log_left_out(site)
                    self._site = site
                # If the skills keep changing, the last attempt is returned, though it may be outdated.
                if is_whole or catalog.snapshot is snapshot or attempt == _ATTEMPTS:
                    return site
            raise AssertionError("there is always another attempt")

    async def read(self, artifact: Artifact, catalog: CombinedSource) -> bytes:
        """Return the bytes of an artifact, verified against its digest.

        Raises:
            NotFoundError: The skill has changed since, or is gone.
            SourceError: It cannot be read.
        """
        uri = artifact.entry.uri.text
        try:
            if artifact.type is ArtifactType.SKILL_MD:
                data = await catalog.read_file(uri)
            else:
                data = (await self._archives.archive(artifact.entry, FORMAT, catalog)).data
        except SourceError as error:
            if catalog.snapshot.by_uri.get(uri) == artifact.entry:
                raise
            raise NotFoundError(f"{uri} has changed", uri=uri) from error
        if await anyio.to_thread.run_sync(digest_of, data) != artifact.digest:
            raise NotFoundError(f"{uri} has changed", uri=uri)
        return data

    async def _build(
        self, snapshot: Snapshot, listed: Sequence[SkillEntry], catalog: CombinedSource
    ) -> tuple[PublishedSite, bool]:
        """Build the site of a snapshot, and return it and whether all skills could be read."""
        entries, left_out = await anyio.to_thread.run_sync(_select, snapshot, listed)
        artifacts: dict[str, Artifact] = {}
        failed: list[Report] = []
        is_whole = True
        for entry in entries:
            try:
                artifact = await self._artifact(entry, catalog)
            except (NotFoundError, SourceError) as error:
                is_whole = False
                failed.append(_left_out_report(entry, f"it cannot be read: {error}"))
            except (InvalidArchiveError, LimitError) as error:
                failed.append(_left_out_report(entry, f"it cannot be packed: {error}"))
            else:
                artifacts[artifact.path] = artifact
        made = [*artifacts.values()]
        index, digest = await anyio.to_thread.run_sync(_write_site_index, made)
        versions: list[JsonDict] = []
        for entry, version in await anyio.to_thread.run_sync(lambda: [*snapshot.versions()]):
            try:
                artifact = await self._artifact(entry, catalog)
            except (NotFoundError, SourceError, InvalidArchiveError, LimitError) as error:
                failed.append(_left_out_report(entry, f"it cannot be read or packed: {error}"))
            else:
                # The version that is current has the same bytes, and so the same path.
                artifacts.setdefault(artifact.path, artifact)
                made.append(artifact)
                versions.append(_version_line(artifact, version))
        self._known = {artifact.entry.uri.text: artifact for artifact in made}
        written = encode({"versions": versions}) if versions else b""
        site = PublishedSite(snapshot, index, digest, artifacts, tuple(left_out), tuple(failed), written)
        return site, is_whole

    async def _artifact(self, entry: SkillEntry, catalog: CombinedSource) -> Artifact:
        known = self._known.get(entry.uri.text)
        if known is not None and (known.entry is entry or known.entry == entry):
            return known
        manifest = entry.manifest
        assert manifest is not None, "dynamic skills were left out"
        if len(manifest) == 1:
            line = manifest.require(entry.uri.text)
            return Artifact(entry, ArtifactType.SKILL_MD, line.digest, line.size)
        archive_digest = (await self._archives.digests(entry, [FORMAT], catalog))[FORMAT]
        return Artifact(entry, ArtifactType.ARCHIVE, archive_digest.digest, archive_digest.size)

    def _log_left_out(self, site: PublishedSite) -> None:
        before = self._site
        logged = {*before.left_out, *before.failed} if before is not None else set[Report]()
        for report in (*site.left_out, *site.failed):
            if report not in logged:
                logger.warning("%s is not on the web site: %s", report.place, report.findings[0].message)


def _select(snapshot: Snapshot, listed: Sequence[SkillEntry]) -> tuple[list[SkillEntry], list[Report]]:
    """Return the listed entries that a site can have, sorted by name, and reports about the others."""
    nested = enclosures(snapshot.entries)
    left_out: list[Report] = []
    fit: list[SkillEntry] = []
    for entry in listed:
        if entry.is_dynamic:
            left_out.append(
                _left_out_report(entry, "its content is made when it is read, so it has no digest")
            )
        elif entry.uri.text in nested:
            outer = nested[entry.uri.text][0]
            left_out.append(
                _left_out_report(entry, f"it lies inside {outer.uri.root}, whose archive holds it")
            )
        else:
            fit.append(entry)
    counts = Counter(entry.name for entry in fit)
    for entry in fit:
        if counts[entry.name] > 1:
            message = (
                f"{counts[entry.name]} skills have the name {entry.name!r}, and the index can have only one"
            )
            left_out.append(_report(entry, "name-not-unique", message, "rename all but one of them"))
    return sorted((entry for entry in fit if counts[entry.name] == 1), key=_name), left_out


def _name(entry: SkillEntry) -> str:
    return entry.name


def _write_site_index(artifacts: Iterable[Artifact]) -> tuple[bytes, str]:
    index = write_index(artifact.line for artifact in artifacts)
    return index, digest_of(index)


def _version_line(artifact: Artifact, version: str) -> JsonDict:
    return {
        "name": artifact.entry.name,
        "version": version,
        "uri": artifact.entry.uri.text,
        "type": artifact.type.value,
        "url": artifact.path,
        "digest": artifact.digest,
    }


def _left_out_report(entry: SkillEntry, message: str) -> Report:
    return _report(entry, "site-left-out", message, "serve it over MCP, or publish it by itself")


def _report(entry: SkillEntry, code: str, message: str, fix: str) -> Report:
    return Report(entry.uri.text, (Finding(code, message, file="", fix=fix),))
