"""`Snapshot`: everything a source publishes at one moment, immutable."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter
from typing import Final, Protocol, Self, runtime_checkable

import anyio

from skillwire.core import (
    MAX_FILES,
    MAX_TOTAL_SIZE,
    SKILL_FILE,
    Finding,
    InvalidSkillError,
    InvalidUriError,
    Manifest,
    ManifestFile,
    NotFoundError,
    SkillEntry,
    SkillUri,
    SourceError,
    canonical_uri,
    differing,
    limit_findings,
)

BY_URI = attrgetter("uri.text")
BY_PLACE = attrgetter("place")

MAX_ENCLOSING: Final = 64
"""How many directories around a file are checked for an unlisted skill that may contain it."""

AFTER_SLASH: Final = "0"
"""The character after the slash: a directory and this is the end of the range of everything below it."""

# URIs with more slashes than this are first shortened to the part they share with a skill.
_DEEP = 32


@dataclass(frozen=True, slots=True)
class Report:
    """The findings about one place: a folder, or a skill built in code.

    `uri` is None when nothing is published from there, and then the findings
    are the reason.
    """

    place: str
    findings: tuple[Finding, ...]
    uri: SkillUri | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """The skills that differ between two snapshots, by the URI of their `SKILL.md`."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class RangedEntries(Sequence[SkillEntry], ABC):
    """Entries, sorted by URI, that are read from a database when they are needed.

    To find a position takes long, so `between` is used to begin at a URI.
    """

    @abstractmethod
    def between(self, low: str, high: str) -> Self:
        """Return the entries from the URI `low` on and before `high`, if that is not empty."""

    @abstractmethod
    def listed(
        self, *, unlisted: Iterable[str] = (), pins: Iterable[str] = (), most: int | None = None
    ) -> Self:
        """Return the entries that are listed.

        That are those that neither their author nor a directory in `unlisted`
        hides; if they are more than `most`, those in `pins`, or pinned by their
        authors.
        """

    @abstractmethod
    def names(self) -> Iterator[tuple[str, str]]:
        """Yield the URI and the name of each."""

    @abstractmethod
    def written(self, count: int) -> list[tuple[str, bytes]]:
        """Return the first URIs, each with its entry as `skills/list` carries it."""


def names_in(entries: Sequence[SkillEntry]) -> Iterator[tuple[str, str]]:
    """Yield the URI and the name of each entry, without reading entries from a database."""
    if isinstance(entries, RangedEntries):
        return entries.names()
    return ((entry.uri.text, entry.name) for entry in entries)


def entries_between(entries: Sequence[SkillEntry], low: str, high: str = "") -> Sequence[SkillEntry]:
    """Return the entries from the URI `low` on and before `high`, if that is not empty."""
    if isinstance(entries, RangedEntries):
        return entries.between(low, high)
    start = bisect_left(entries, low, key=BY_URI)
    return entries[start : bisect_left(entries, high, start, key=BY_URI) if high else None]


def entries_after(entries: Sequence[SkillEntry], uri: str | None) -> Sequence[SkillEntry]:
    """Return the entries after the one at a URI; all if it is None."""
    # No URI has a control character, so nothing is between a URI and its longer form.
    return entries if uri is None else entries_between(entries, f"{uri}\x01")


def entries_below(entries: Sequence[SkillEntry], directory: str) -> Sequence[SkillEntry]:
    """Return the entries that are in a directory or have it as their root."""
    return entries_between(entries, f"{directory}/", directory + AFTER_SLASH)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The published entries at one moment, sorted by URI, with reports about invalid skills.

    `revision` grows with every snapshot of one source in one process.
    `media_types` maps the canonical URI of a file to its media type where that
    differs from the one the file's name implies. `folders` holds the canonical
    URIs of directories inside a published skill with no file in them, at any
    depth, which no manifest implies.
    """

    revision: int
    entries: Sequence[SkillEntry]
    reports: tuple[Report, ...]
    by_uri: Mapping[str, SkillEntry]
    media_types: Mapping[str, str] = field(default_factory=dict[str, str])
    folders: Set[str] = frozenset()

    @classmethod
    def of(
        cls,
        entries: Iterable[SkillEntry],
        *,
        reports: Iterable[Report] = (),
        revision: int = 1,
        media_types: Mapping[str, str] | None = None,
        folders: Iterable[str] = (),
    ) -> "Snapshot":
        """Build a snapshot of entries with distinct URIs, in any order."""
        ordered = tuple(sorted(entries, key=BY_URI))
        by_uri = {entry.uri.text: entry for entry in ordered}
        sorted_reports = tuple(sorted(reports, key=BY_PLACE))
        return cls(revision, ordered, sorted_reports, by_uri, media_types or {}, frozenset(folders))

    @property
    def is_stored(self) -> bool:
        """Whether the entries are read from a database when they are needed."""
        return isinstance(self.entries, RangedEntries)

    @property
    def quarantined(self) -> tuple[Report, ...]:
        """The places from which nothing is published."""
        return tuple(report for report in self.reports if report.uri is None)

    def get(self, uri: SkillUri) -> SkillEntry:
        """Return the entry at `uri`.

        Raises:
            NotFoundError: No skill is served there.
        """
        entry = self.by_uri.get(uri.text)
        if entry is None:
            raise NotFoundError(f"no skill is served at {uri.text}", uri=uri.text)
        return entry

    def locate(self, uri: str) -> tuple[SkillEntry, ManifestFile | None]:
        """Find the innermost skill that has a file at `uri`, and the file's line in its manifest.

        Any equivalent spelling is accepted. For a dynamic skill there is no line.

        Raises:
            NotFoundError: No skill has such a file.
        """
        try:
            wanted = canonical_uri(uri)
        except InvalidUriError as error:
            raise NotFoundError(str(error), uri=uri) from error
        for entry in self.skills_around(wanted.rpartition("/")[0]):
            if entry.manifest is None:
                return entry, None
            file = entry.manifest.find(wanted)
            if file is not None:
                return entry, file
        raise NotFoundError(f"no skill has a file at {wanted}", uri=wanted)

    def skills_around(self, directory: str) -> Iterator[SkillEntry]:
        """Yield the skills that contain the directory at a canonical URI, innermost first.

        A skill contains its own directory. The cost is linear in the length of
        the URI, which a client chooses.
        """
        if directory.count("/") > _DEEP:
            directory = self._common_part(directory)
        while directory.count("/") >= 2:
            entry = self.by_uri.get(f"{directory}/{SKILL_FILE}")
            if entry is not None:
                yield entry
            directory = directory.rpartition("/")[0]

    def _common_part(self, directory: str) -> str:
        """Return the part of a directory's URI, in whole segments, that it shares with any skill's URI.

        No other URI shares more with it than one of its two neighbours in sorted order.
        """
        length = max((_shared_length(directory, uri) for uri in self._neighbours(directory)), default=0)
        part = directory[:length]
        return part if directory[length : length + 1] in ("", "/") else part.rpartition("/")[0]

    def visible(self, prefixes: Iterable[str], revision: int) -> "Snapshot":
        """Return the part below directories, with another revision.

        The directories do not contain each other. Reports about places from
        which nothing is published are not visible, because they have no URI.
        """
        # With the trailing slash they sort like the entries.
        inside = tuple(sorted(f"{prefix}/" for prefix in prefixes))
        entries = tuple(entry for place in inside for entry in entries_below(self.entries, place[:-1]))
        by_uri = {entry.uri.text: entry for entry in entries}
        return Snapshot(
            revision,
            entries,
            tuple(report for report in self.reports if report.uri and report.uri.text in by_uri),
            by_uri,
            {uri: kind for uri, kind in self.media_types.items() if uri.startswith(inside)},
            frozenset(folder for folder in self.folders if folder.startswith(inside)),
        )

    def without(self, skill: SkillEntry, report: Report) -> "Snapshot":
        """Return the snapshot without one skill, and with a report about it."""
        entries = tuple(entry for entry in self.entries if entry is not skill)
        by_uri, reports = {entry.uri.text: entry for entry in entries}, self._reports_with(skill, report)
        return replace(self, entries=entries, by_uri=by_uri, reports=reports)

    def _reports_with(self, skill: SkillEntry, report: Report) -> tuple[Report, ...]:
        """Add a report about a skill that is not published any more."""
        others = (
            replace(other, uri=None) if other.uri is not None and other.uri.text == skill.uri.text else other
            for other in self.reports
        )
        return tuple(sorted([*others, report], key=BY_PLACE))

    def first_uri(self, low: str, high: str = "") -> str | None:
        """Return the URI of the first skill from `low` on and before `high`, if that is not empty."""
        position = bisect_left(self.entries, low, key=BY_URI)
        uri = self.entries[position].uri.text if position < len(self.entries) else ""
        return uri if uri and (not high or uri < high) else None

    def _neighbours(self, directory: str) -> Sequence[str]:
        """Return the URIs of the skills before and after the position of a URI in the order of all."""
        position = bisect_left(self.entries, directory, key=BY_URI)
        return [entry.uri.text for entry in self.entries[max(0, position - 1) : position + 1]]

    def versions(self) -> Iterator[tuple[SkillEntry, str]]:
        """Yield the skills that are immutable versions of others, each with its version."""
        return iter(())

    def folders_below(self, directory: str) -> Iterable[str]:
        """Return the empty directories below a directory inside a skill, at any depth."""
        inside = f"{directory}/"
        return (folder for folder in self.folders if folder.startswith(inside))

    def changes_since(self, older: "Snapshot") -> Changes:
        """Return which skills were added, removed, or changed."""
        return Changes(*differing(older.by_uri, self.by_uri))


def complete_nested_manifests(entries: Iterable[SkillEntry]) -> list[SkillEntry]:
    """Complete the manifests of nested skills.

    A nested skill's files are files of the enclosing skill too, and its
    manifest must list them (SEP-2640, "Resources"). In a folder that is
    always so; skills from several sources need this.

    Raises:
        InvalidSkillError: A dynamic skill is inside one that has digests.
    """
    ordered = sorted(entries, key=BY_URI)
    around = enclosures(ordered)
    lines: dict[str, dict[str, ManifestFile]] = {}
    for entry in sorted(ordered, key=attrgetter("uri.root")) if around else ():
        for outer in around.get(entry.uri.text, ()):
            if outer.manifest is None:
                continue
            if entry.manifest is None:
                raise InvalidSkillError(
                    f"{entry.uri} is dynamic and inside {outer.uri.root}, which has digests of all its files",
                    fix="move it out, or make the enclosing skill dynamic",
                )
            known = lines.setdefault(outer.uri.text, {file.uri: file for file in outer.manifest.files})
            known.update((file.uri, file) for file in entry.manifest.files)
    return [
        _completed(entry, lines[entry.uri.text]) if entry.uri.text in lines else entry for entry in ordered
    ]


def enclosures(entries: Iterable[SkillEntry]) -> dict[str, list[SkillEntry]]:
    """Map the URI of each nested skill to the skills that enclose it, innermost first."""
    roots = {entry.uri.root: entry for entry in entries}
    folders = {root: root.rpartition("/")[0] for root in roots}
    # Many skills share a folder, and few folders are inside a skill: each folder is looked up once.
    around = {
        folder: found
        for folder in set(folders.values())
        if (found := [roots[parent] for parent in self_and_ancestors(folder) if parent in roots])
    }
    if not around:
        return {}
    return {roots[root].uri.text: around[folder] for root, folder in folders.items() if folder in around}


def over_limits(entries: Iterable[SkillEntry]) -> dict[str, tuple[Finding, ...]]:
    """Map the URI of each skill that is too large to serve to its findings (LIM-03)."""
    return {
        entry.uri.text: tuple(limit_findings(manifest))
        for entry in entries
        if (manifest := entry.manifest) is not None
        and (len(manifest.sizes) > MAX_FILES or sum(manifest.sizes) > MAX_TOTAL_SIZE)
    }


def _shared_length(left: str, right: str) -> int:
    """Return the length of the common prefix of two texts."""
    return next(
        (position for position, (one, other) in enumerate(zip(left, right, strict=False)) if one != other),
        min(len(left), len(right)),
    )


def self_and_ancestors(folder: str) -> Iterator[str]:
    """Yield the URI of a directory and those above it, innermost first."""
    while folder.count("/") >= 2:
        yield folder
        folder = folder.rpartition("/")[0]


def possible_skills(directory: str) -> Iterator[SkillUri]:
    """Yield the skills that may contain the directory at a canonical URI, innermost first.

    There are at most `MAX_ENCLOSING`, because a client chooses the URI, and each
    can cost a request to another server.
    """
    # A prefix of a canonical URI is canonical.
    return (
        SkillUri(f"{folder}/{SKILL_FILE}") for folder in islice(self_and_ancestors(directory), MAX_ENCLOSING)
    )


def has_files_below(manifest: Manifest, folder: str) -> bool:
    """Return whether a manifest lists a file below the directory at the canonical URI `folder`."""
    if not folder.startswith(manifest.base):
        return False
    inside = f"{folder[len(manifest.base) :]}/"
    position = bisect_left(manifest.references, inside)
    return position < len(manifest.references) and manifest.references[position].startswith(inside)


def _completed(entry: SkillEntry, lines: Mapping[str, ManifestFile]) -> SkillEntry:
    manifest = Manifest.of(lines.values())
    return (
        entry
        if manifest == entry.manifest
        else SkillEntry(entry.uri, entry.frontmatter, manifest, entry.extra)
    )


@dataclass(frozen=True, slots=True)
class SharedState:
    """What a source that is shared with other processes serves: a revision, and how far it is behind.

    `behind` counts the newer revisions that are known, and `silent_seconds` is how
    long ago the shared store answered.
    """

    revision: int
    behind: int
    silent_seconds: float


# The protocols of sources.


class Source(Protocol):
    """A place from which skills come. Three methods are enough.

    Four more are used where a source has them, all about a skill it publishes:
    `place_of(uri: SkillUri) -> str` returns where it comes from, for the operator
    of the server, `modified_at(uri: SkillUri) -> float | None` when its `SKILL.md`
    was last modified, in POSIX seconds,
    `order_of(uri: SkillUri) -> Sequence[str]` the paths of its supporting files
    in the order of its author, and
    `read_now(entry: SkillEntry, line: ManifestFile) -> bytes | None` the bytes of
    a file of the entry if they match the line, without waiting and from any
    thread; when it returns None, `read_file` is called.
    """

    def list_skills(self) -> AsyncIterator[SkillEntry]:
        """Yield the entries this source publishes, sorted by URI."""
        ...

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        """Return one entry, listed or not.

        Raises:
            NotFoundError: This source serves no such skill.
        """
        ...

    async def read_file(self, uri: str) -> bytes:
        """Return the bytes of a file of any skill this source serves.

        They match the digest in the entry that `get_skill` returns at this
        moment, or the skill is dynamic.

        Raises:
            NotFoundError: This source serves no such file.
            SourceError: The file exists and cannot be read as published.
        """
        ...


@runtime_checkable
class LiveSource(Source, Protocol):
    """A source whose whole state is a snapshot that is replaced when something changes.

    One that is shared with other processes has two more: `catch_up() -> Snapshot`,
    which is awaited before each answer and returns the state that all have at this
    moment, and the property `shared_state: SharedState`.
    """

    @property
    def snapshot(self) -> Snapshot:
        """The current state. Results from one snapshot are consistent with each other."""
        ...

    async def wait_for_change(self, revision: int) -> Snapshot:
        """Return the snapshot once its revision is newer than `revision`."""
        ...


# The base class of sources with a snapshot.


class SnapshotSource:
    """A source that answers from its current snapshot; a subclass publishes new ones.

    Published snapshots are ready to be served: URIs are distinct, a skill's
    manifest lists the files of skills inside it, no dynamic skill is inside a
    static one, and none exceeds a limit. `CombinedSource` relies on that.
    """

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._snapshot = snapshot
        self._changed = anyio.Event()

    @property
    def snapshot(self) -> Snapshot:
        """The current state. Results from one snapshot are consistent with each other.

        Raises:
            SourceError: The source must be opened first.
        """
        if self._snapshot is None:
            raise SourceError("the source is not open; use it with `async with`")
        return self._snapshot

    @property
    def cache_key(self) -> str:
        """What tells this source from others between runs, for caches; empty if nothing does."""
        return ""

    async def wait_for_change(self, revision: int) -> Snapshot:
        """Return the snapshot once its revision is newer than `revision`."""
        while self.snapshot.revision <= revision:
            await self._changed.wait()
        return self.snapshot

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        """Yield the entries of the snapshot, sorted by URI."""
        for entry in self.snapshot.entries:
            yield entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        """Return one entry.

        Raises:
            NotFoundError: No skill is served there.
        """
        return self.snapshot.get(uri)

    def _replace_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the snapshot, and wake the tasks that wait for a change."""
        self._snapshot = snapshot
        self._changed.set()
        self._changed = anyio.Event()
