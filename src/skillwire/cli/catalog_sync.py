"""The managed sources of a catalog, for `skillwire catalog sync`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from skillwire.catalog import Catalog
from skillwire.catalog.fetch import ManagedKind
from skillwire.catalog.sync import (
    ManagedSource,
    SyncResult,
    add_source,
    managed_sources,
    remove_source,
    run_due,
)
from skillwire.cli.catalog_names import time_text
from skillwire.cli.command import STYLES, MisuseError, Output, Part, plural, print_rows
from skillwire.core import quoted

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EVERY = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>[smhd])")
_REPOSITORY = re.compile(r"[^#]+\.git/?(?:#.*)?|ssh://.*")
_ARCHIVE = re.compile(r".+\.(?:tar\.gz|tgz|zip)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SourcesRequest:
    """What to do: add or remove a source, sync those that are due, or nothing."""

    added: ManagedSource | None = None
    removed: str = ""
    is_run: bool = False

    async def perform(self, catalog: Catalog) -> SourcesReport:
        """Do it, and return the sources as they are then.

        Raises:
            SkillError: It cannot be done.
        """
        if self.added is not None:
            await add_source(catalog, self.added)
        if self.removed:
            await remove_source(catalog, self.removed)
        results = await run_due(catalog) if self.is_run else {}
        return SourcesReport(self, await managed_sources(catalog), results)


@dataclass(frozen=True, slots=True)
class SourcesReport:
    """The sources of a catalog, and the results of those that were synced now."""

    request: SourcesRequest
    sources: Sequence[ManagedSource]
    results: Mapping[str, SyncResult] = field(default_factory=dict[str, SyncResult])

    @property
    def has_failed(self) -> bool:
        return any(result.error for result in self.results.values())

    def to_json(self) -> dict[str, object]:
        return {
            "added": self.request.added.name if self.request.added else None,
            "removed": self.request.removed or None,
            "synced": sorted(self.results),
            "sources": [_to_json(source) for source in self.sources],
        }

    def print(self, output: Output) -> None:
        """Print the sources, and what was done."""
        print_rows(output, [_row(source) for source in self.sources])
        if self.request.added is not None:
            output.message(f"added {self.request.added.name}; `skillwire catalog sync --run` syncs it")
        elif self.request.removed:
            output.message(f"removed {self.request.removed}; its skills stay published")
        elif self.request.is_run:
            failed = sum(1 for result in self.results.values() if result.error)
            output.message(f"{plural(len(self.results) - failed, 'source')} synced, {failed:,} failed")
        elif not self.sources:
            output.message("the catalog has no sources; add one with --add NAME --from LOCATION")


def sources_request(
    *, add: str, location: str, every: str, prefix: str, remove: str, run: bool
) -> SourcesRequest:
    """Return what the options of the command mean.

    Raises:
        MisuseError: They contradict each other, or one has an invalid value.
    """
    if sum(map(bool, (add, remove, run))) > 1:
        raise MisuseError("--add, --remove and --run exclude each other", fix="use one at a time")
    if bool(add) != bool(location) or (prefix and not add):
        raise MisuseError("--add and --from belong together", fix="write --add NAME --from LOCATION")
    if not add:
        return SourcesRequest(None, remove, run)
    match = _EVERY.fullmatch(every)
    if match is None:
        raise MisuseError(f"{quoted(every)} is not a time", fix="write it like 10m, 1h or 1d")
    kind = kind_of(location)
    if kind is ManagedKind.FOLDER or (kind is ManagedKind.ARCHIVE and "://" not in location):
        # Whoever syncs it may be in another folder.
        location = str(Path(location).absolute())
    seconds = float(match["number"]) * _UNITS[match["unit"]]
    return SourcesRequest(ManagedSource(add, kind, location, prefix, seconds))


def kind_of(location: str) -> ManagedKind:
    """Return what is at a location, by its form."""
    if _REPOSITORY.fullmatch(location):
        return ManagedKind.GIT
    if _ARCHIVE.fullmatch(location):
        return ManagedKind.ARCHIVE
    return ManagedKind.WELL_KNOWN if "://" in location else ManagedKind.FOLDER


def _to_json(source: ManagedSource) -> dict[str, object]:
    return {
        "name": source.name,
        "kind": source.kind.value,
        "location": source.location,
        "prefix": source.prefix,
        "every": source.every,
        "lastAt": None if source.last_at is None else time_text(source.last_at),
        "lastResult": None if source.last_result is None else asdict(source.last_result),
    }


def _row(source: ManagedSource) -> list[Part]:
    result = source.last_result
    last: Part = "never synced"
    if result is not None and result.error:
        last = (result.error, STYLES["error"])
    elif result is not None:
        last = f"{plural(result.skills, 'skill')}, {result.changes:,} changed"
        last += f", {result.broken:,} not published" if result.broken else ""
    at = "" if source.last_at is None else time_text(source.last_at)
    return [
        (source.name, "bold"),
        source.kind.value,
        source.location,
        source.prefix,
        f"every {_interval(source.every)}",
        at,
        last,
    ]


def _interval(seconds: float) -> str:
    unit, size = next(
        (unit, size) for unit, size in reversed(_UNITS.items()) if size == 1 or not seconds % size
    )
    return f"{seconds / size:.0f}{unit}"
