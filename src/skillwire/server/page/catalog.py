"""The first page: all skills, those of a folder, or those that fit a few words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Severity
from skillwire.core.uri import DEFAULT_SCHEME, SkillUri, segment_of
from skillwire.errors import NotFoundError
from skillwire.server.page.addresses import place_of
from skillwire.server.page.shelf import Folder, Shelf, entries_below
from skillwire.server.search import SearchPage
from skillwire.sources import Report, Snapshot

PAGE_SIZE: Final = 50
MAX_FOUND: Final = 500
"""How many of the skills that fit a query can be looked at."""
MAX_FOLDERS: Final = 120
_LONGEST_SUMMARY = 320
_LONGEST_NUMBER = 6


@dataclass(frozen=True, slots=True)
class Crumb:
    """A step on the way to where one is; without a place there is nothing to see on its own."""

    name: str
    place: str


@dataclass(frozen=True, slots=True)
class Row:
    """A skill as a list shows it."""

    name: str
    place: str
    above: str
    description: str
    files: int | None
    size: int | None
    errors: int
    warnings: int


def page_number(text: str | None) -> int:
    """Read which page of a list is meant.

    Raises:
        NotFoundError: That is no number of a page.
    """
    if text is None:
        return 1
    if not text.isascii() or not text.isdecimal() or len(text) > _LONGEST_NUMBER or int(text) < 1:
        raise NotFoundError("there is no such page of the list", uri="")
    return int(text)


def browsed(
    shelf: Shelf, snapshot: Snapshot, reports: Sequence[Report], *, directory: str, number: int
) -> dict[str, Any]:
    """Return what the page shows of a directory; of everything if it is empty.

    Raises:
        NotFoundError: No skill lies there, or the list has no such page.
    """
    entries = entries_below(snapshot, directory)
    if directory and not entries:
        raise NotFoundError("no skill is served there", uri=directory)
    folders = shelf.folders(snapshot, directory)
    return {
        "query": "",
        "crumbs": crumbs_to(directory),
        "folders": folders[:MAX_FOLDERS],
        "more_folders": max(0, len(folders) - MAX_FOLDERS),
        **_page(entries, reports, number, total=len(entries)),
    }


def searched(found: SearchPage, reports: Sequence[Report], *, number: int) -> dict[str, Any]:
    """Return what the page shows of a search, of which everything up to the wanted page was found.

    Raises:
        NotFoundError: The list has no such page.
    """
    nothing: tuple[Folder, ...] = ()
    entries = [match.entry for match in found.matches]
    # What is too much to be counted is more than the page ever shows.
    total = MAX_FOUND + 1 if found.total is None else found.total
    return {
        "crumbs": [],
        "folders": nothing,
        "more_folders": 0,
        **_page(entries, reports, number, total=min(total, MAX_FOUND)),
        "has_more": total > MAX_FOUND,
    }


def crumbs_to(uri: str) -> list[Crumb]:
    """Return the steps from the first page to a directory or skill, the last one included."""
    if not uri:
        return []
    scheme, _, path = uri.partition("://")
    steps: list[Crumb] = []
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        step = f"{scheme}://{'/'.join(parts[:depth])}"
        is_foreign = depth == 1 and scheme != DEFAULT_SCHEME
        steps.append(
            Crumb(f"{scheme}://{segment_of(step)}" if is_foreign else segment_of(step), place_of(step))
        )
    return steps


def row_of(entry: SkillEntry, counts: Mapping[str, tuple[int, int]]) -> Row:
    """Return a skill as a list shows it. `counts` are errors and warnings by the URI of a `SKILL.md`."""
    path = entry.uri.path
    above = path.rpartition("/")[0]
    if entry.uri.scheme != DEFAULT_SCHEME:
        above = f"{entry.uri.scheme}://{above}"
    errors, warnings = counts.get(entry.uri.text, (0, 0))
    return Row(
        name=entry.name or segment_of(entry.uri.root),
        place=place_of(entry.uri.root),
        above=above,
        description=entry.frontmatter.description[: 2 * _LONGEST_SUMMARY],
        files=None if entry.files is None else len(entry.files),
        size=None if entry.files is None else entry.files.total_size,
        errors=errors,
        warnings=warnings,
    )


def counts_of(uris: Iterable[SkillUri], reports: Sequence[Report]) -> dict[str, tuple[int, int]]:
    """Count errors and warnings about some skills."""
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
