"""The catalog page: all skills, those of a folder, or the results of a search."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from skillwire.core import (
    DEFAULT_SCHEME,
    SKILL_FILE,
    NotFoundError,
    Relation,
    RelationGraph,
    Severity,
    SkillEntry,
    SkillUri,
    segment_of,
)
from skillwire.runner import scripts_of
from skillwire.server.page.templates import place_of
from skillwire.server.search import SkillSearchPage
from skillwire.sources.snapshot import Report, Snapshot, entries_below, names_in

# `PageIndex`: folders and relations derived from a snapshot, cached until it changes.


MAX_RELATED: Final = 20_000
"""The maximum number of skills for which relations are computed."""
_MAX_CACHED_FOLDERS = 32


@dataclass(frozen=True, slots=True)
class SkillFolder:
    """A directory with skills that is not a skill itself: its path, last segment, and number of skills."""

    place: str
    name: str
    skills: int


class PageIndex:
    """The folders and relations of one view. Thread-safe."""

    def __init__(self) -> None:
        self._current: _SnapshotIndex | None = None

    def folders(self, snapshot: Snapshot, directory: str) -> tuple[SkillFolder, ...]:
        """Return the direct subfolders of a directory, sorted; the top-level folders if it is empty."""
        kept = self._index_of(snapshot).folders
        found = kept.get(directory)
        if found is None:
            found = _folders_below(snapshot, directory)
            if len(kept) < _MAX_CACHED_FOLDERS:
                kept[directory] = found
        return found

    def graph(self, snapshot: Snapshot) -> RelationGraph | None:
        """Return the relations between the skills, if there are any and not too many skills."""
        return self._index_of(snapshot).graph

    def _index_of(self, snapshot: Snapshot) -> "_SnapshotIndex":
        index = self._current
        if index is None or index.snapshot is not snapshot:
            index = self._current = _SnapshotIndex(snapshot)
        return index


class _SnapshotIndex:
    """What was derived from one snapshot; threads with an older snapshot use their own instance."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.folders: dict[str, tuple[SkillFolder, ...]] = {}

    @cached_property
    def graph(self) -> RelationGraph | None:
        entries = self.snapshot.entries
        if len(entries) <= MAX_RELATED and any(map(_has_relations, entries)):
            return RelationGraph.of(entries)
        return None


def _entries_in(snapshot: Snapshot, directory: str) -> Sequence[SkillEntry]:
    """Return the skills below a directory, at any depth, sorted by URI; all if it is empty."""
    return entries_below(snapshot.entries, directory) if directory else snapshot.entries


def _folders_below(snapshot: Snapshot, directory: str) -> tuple[SkillFolder, ...]:
    counts: Counter[str] = Counter()
    for text, _ in names_in(_entries_in(snapshot, directory)):
        start = len(directory) + 1 if directory else text.index("://") + 3
        counts[text[: text.index("/", start)] if "/" in text[start:] else directory] += 1
    return tuple(
        SkillFolder(place_of(child), segment_of(child), count)
        for child, count in counts.items()
        if child != directory and f"{child}/{SKILL_FILE}" not in snapshot.by_uri
    )


def _has_relations(entry: SkillEntry) -> bool:
    metadata = entry.frontmatter.fields.get("metadata")
    return isinstance(metadata, dict) and any(relation.key in metadata for relation in Relation)


PAGE_SIZE: Final = 50
MAX_FOUND: Final = 500
"""The maximum number of search results."""
MAX_FOLDERS: Final = 120
TOOLS_FIELD: Final = "allowed-tools"
_MAX_SUMMARY = 320
_MAX_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Breadcrumb:
    """A breadcrumb; `place` is empty when it has no page."""

    name: str
    place: str


@dataclass(frozen=True, slots=True)
class SkillLine:
    """A skill in a list; `matched_in` names the fields that have words of a search."""

    name: str
    place: str
    above: str
    description: str
    files: int | None
    size: int | None
    errors: int
    warnings: int
    scripts: int
    asks_for_tools: bool
    matched_in: tuple[str, ...] = ()


def page_number(text: str | None) -> int:
    """Parse the number of a page.

    Raises:
        NotFoundError: It is not a page number.
    """
    if text is None:
        return 1
    if not text.isascii() or not text.isdecimal() or len(text) > _MAX_DIGITS or int(text) < 1:
        raise NotFoundError("invalid page number", uri="")
    return int(text)


def folder_values(
    index: PageIndex, snapshot: Snapshot, reports: Sequence[Report], *, directory: str, number: int
) -> dict[str, Any]:
    """Return the template values of a directory; of the whole catalog if `directory` is empty.

    Raises:
        NotFoundError: No skill is in it, or the list has no such page.
    """
    entries = _entries_in(snapshot, directory)
    if directory and not entries:
        raise NotFoundError("no skill is served there", uri=directory)
    folders = index.folders(snapshot, directory)
    return {
        "query": "",
        "crumbs": crumbs_to(directory),
        "folders": folders[:MAX_FOLDERS],
        "more_folders": max(0, len(folders) - MAX_FOLDERS),
        **_page(entries, reports, number, total=len(entries)),
    }


def search_values(found: SkillSearchPage, reports: Sequence[Report], *, number: int) -> dict[str, Any]:
    """Return the template values of a search; `found` has all results up to the requested page.

    Raises:
        NotFoundError: The list has no such page.
    """
    nothing: tuple[SkillFolder, ...] = ()
    entries = [match.entry for match in found.matches]
    page = _page(entries, reports, number, total=min(found.total, MAX_FOUND))
    shown = found.matches[page["first"] - 1 :]
    return {
        "crumbs": [],
        "folders": nothing,
        "more_folders": 0,
        **page,
        "items": [
            replace(row, description=match.snippet, matched_in=match.matched_in)
            for row, match in zip(page["items"], shown, strict=False)
        ],
        "has_more": found.total > MAX_FOUND,
    }


def crumbs_to(uri: str) -> list[Breadcrumb]:
    """Return the breadcrumbs of a directory or skill, including itself."""
    if not uri:
        return []
    scheme, _, path = uri.partition("://")
    steps: list[Breadcrumb] = []
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        step = f"{scheme}://{'/'.join(parts[:depth])}"
        is_foreign = depth == 1 and scheme != DEFAULT_SCHEME
        steps.append(
            Breadcrumb(f"{scheme}://{segment_of(step)}" if is_foreign else segment_of(step), place_of(step))
        )
    return steps


def row_of(entry: SkillEntry, counts: Mapping[str, tuple[int, int]]) -> SkillLine:
    """Return the row of a skill. `counts` are errors and warnings by the URI of `SKILL.md`."""
    path = entry.uri.path
    above = path.rpartition("/")[0]
    if entry.uri.scheme != DEFAULT_SCHEME:
        above = f"{entry.uri.scheme}://{above}"
    errors, warnings = counts.get(entry.uri.text, (0, 0))
    return SkillLine(
        name=entry.name or segment_of(entry.uri.root),
        place=place_of(entry.uri.root),
        above=above,
        description=entry.frontmatter.description[: 2 * _MAX_SUMMARY],
        files=None if entry.files is None else len(entry.files),
        size=None if entry.files is None else entry.files.total_size,
        errors=errors,
        warnings=warnings,
        scripts=len(scripts_of(entry)),
        asks_for_tools=bool(entry.frontmatter.fields.get(TOOLS_FIELD)),
    )


def counts_of(uris: Iterable[SkillUri], reports: Sequence[Report]) -> dict[str, tuple[int, int]]:
    """Return the numbers of errors and warnings of skills."""
    wanted = {uri.text for uri in uris}
    counts: dict[str, tuple[int, int]] = {}
    for report in reports:
        if report.uri is not None and report.uri.text in wanted:
            errors, warnings = counts.get(report.uri.text, (0, 0))
            errors += sum(finding.severity is Severity.ERROR for finding in report.findings)
            warnings += sum(finding.severity is Severity.WARNING for finding in report.findings)
            counts[report.uri.text] = errors, warnings
    return counts


def _page(
    entries: Sequence[SkillEntry], reports: Sequence[Report], number: int, *, total: int
) -> dict[str, Any]:
    last = max(1, -(-total // PAGE_SIZE))
    if number > last:
        raise NotFoundError("the list has no such page", uri="")
    shown = entries[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
    counts = counts_of((entry.uri for entry in shown), reports)
    return {
        "items": [row_of(entry, counts) for entry in shown],
        "total": total,
        "first": (number - 1) * PAGE_SIZE + 1,
        "number": number,
        "last": last,
        "has_more": False,
    }
