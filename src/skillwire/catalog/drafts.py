"""Drafts from sources and folders, and the rows they become."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from skillwire.catalog.model import FOREVER, CatalogError, Draft, SkillRow
from skillwire.core import (
    LISTED,
    PINNED,
    Coverage,
    Frontmatter,
    InvalidSkillError,
    Manifest,
    SkillEntry,
    SkillUri,
    digest_of,
    encode,
    entry_findings,
    metadata_flag,
    quoted,
)
from skillwire.sources import CombinedSource, DirectorySource, LiveSource, Report
from skillwire.sources.snapshot import enclosures
from skillwire.wire.core import write_entry

MAX_VERSION: Final = 64
"""The maximum length of a version."""

_NUMBER = r"(?:0|[1-9][0-9]*)"
# Semantic versions as segments of a path, which are lower case: without build metadata.
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-[0-9a-z-]+(?:\.[0-9a-z-]+)*)?")


@dataclass(frozen=True, slots=True)
class DraftSet:
    """The drafts of a source, sorted by URI, and reports about its skills; `broken` are those left out."""

    drafts: tuple[Draft, ...]
    reports: tuple[Report, ...] = ()

    @property
    def broken(self) -> tuple[Report, ...]:
        """The places from which nothing can be published."""
        return tuple(report for report in self.reports if report.uri is None)


@asynccontextmanager
async def open_drafts(
    folders: Sequence[str | Path], *, prefix: str = "", version: str = "", follow_links: bool = False
) -> AsyncGenerator[DraftSet]:
    """Scan folders of skills; the drafts can be read while the block lasts.

    Raises:
        DuplicateSkillError: Two folders have a skill of the same URI.
        SourceError: A folder cannot be read.
        CatalogError: `version` is not a semantic version.
    """
    sources = [
        DirectorySource(folder, prefix=prefix, watch=False, follow_links=follow_links) for folder in folders
    ]
    async with sources[0] if len(sources) == 1 else CombinedSource(sources) as source:
        yield drafts_of(source, version=version)


def drafts_of(source: LiveSource, *, version: str = "") -> DraftSet:
    """Return the drafts of what a source serves now; it stays open until they are published.

    Each skill has the version in its frontmatter's `metadata.version`, or else
    `version`. A skill inside another one has none: the version of the outer one
    includes its files.

    Raises:
        CatalogError: `version` is not a semantic version.
    """
    if version and not is_version(version):
        raise CatalogError(f"{quoted(version)} is not a version", fix="write it like 1.2.0 or 2.0.0-beta.1")
    snapshot = source.snapshot
    empty: dict[str, list[str]] = {}
    for folder in sorted(snapshot.folders):
        for entry in snapshot.skills_around(folder):
            empty.setdefault(entry.uri.text, []).append(folder)
    types, inner = snapshot.media_types, enclosures(snapshot.entries)
    modified_at, order_of = getattr(source, "modified_at", None), getattr(source, "order_of", None)
    drafts = [
        Draft(
            entry,
            lambda line: source.read_file(line.uri),
            {uri: types[uri] for uri in _files(entry) if uri in types} if types else {},
            tuple(empty.get(entry.uri.text, ())),
            tuple(order_of(entry.uri)) if order_of else (),
            modified_at(entry.uri) if modified_at else None,
            "" if entry.uri.text in inner else version_in(entry.frontmatter) or version,
        )
        for entry in snapshot.entries
    ]
    return DraftSet(tuple(drafts), snapshot.reports)


def _files(entry: SkillEntry) -> tuple[str, ...]:
    return entry.manifest.uris if entry.manifest else ()


def is_version(text: str) -> bool:
    """Return whether a text is a semantic version that can be a segment of a path."""
    return len(text) <= MAX_VERSION and _VERSION.fullmatch(text) is not None


def version_in(frontmatter: Frontmatter) -> str:
    """Return the semantic version in `metadata.version`; empty when there is none."""
    metadata = frontmatter.fields.get("metadata")
    version = metadata.get("version") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) and is_version(version) else ""


def version_uri(uri: SkillUri, version: str) -> SkillUri:
    """Return the URI of an immutable version: `skill://acme/v1.2.0/refunds/SKILL.md`."""
    above, _, name = uri.root.rpartition("/")
    return SkillUri(f"{above}/v{version}/{name}/SKILL.md")


def rows_of(draft: Draft, source: str) -> list[SkillRow]:
    """Return the new state of a draft's skill, and that of its version if it has one.

    Raises:
        InvalidSkillError: The skill breaks a rule, or the digests of its files are not known.
    """
    uri, manifest = draft.entry.uri, draft.entry.manifest
    for finding in entry_findings(draft.entry):
        if finding.is_error:
            raise InvalidSkillError(f"{uri} is not valid: {finding.message}", fix=finding.fix)
    if manifest is None or manifest.coverage is not Coverage.FILES or min(manifest.sizes, default=-1) < 0:
        raise InvalidSkillError(
            f"{uri} has no digests of all its files, so a catalog cannot store it",
            fix="publish skills from folders",
        )
    row = _row(draft, manifest, uri, source)
    if not draft.version:
        return [row]
    pin = _row(draft, manifest, version_uri(uri, draft.version), source)
    return [row, pin._replace(namespace=row.namespace, listed=0, pinned=0, is_pin=1)]


def _row(draft: Draft, manifest: Manifest, uri: SkillUri, source: str) -> SkillRow:
    entry, root = draft.entry, draft.entry.uri.root
    # Spellings of another publisher do not matter: these skills are read here.
    canonical = replace(manifest, base=uri.root + manifest.base[len(root) :], spellings=(), extras=())
    written = write_entry(SkillEntry(SkillUri(uri.text), entry.frontmatter, canonical, entry.extra))
    details = {
        "mediaTypes": {
            uri.root + file[len(root) :]: kind for file, kind in sorted(draft.media_types.items())
        },
        "folders": [uri.root + folder[len(root) :] for folder in draft.folders],
        "order": list(draft.order),
    }
    return SkillRow(
        uri=uri.text,
        since=0,
        until=FOREVER,
        namespace=namespace_of(uri),
        name=entry.name,
        entry=written,
        digest=digest_of(written),
        details=encode({key: value for key, value in details.items() if value}).decode(),
        modified=draft.modified,
        listed=int(metadata_flag(entry.frontmatter, LISTED) is not False),
        pinned=int(metadata_flag(entry.frontmatter, PINNED) is True),
        is_pin=0,
        version=draft.version,
        source=source,
    )


def namespace_of(uri: SkillUri) -> str:
    """Return the first segment of a skill's path; empty when the path has only the name."""
    namespace, separator, _ = uri.path.partition("/")
    return namespace if separator else ""
