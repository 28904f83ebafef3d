"""`Snapshot`: everything a source publishes at one moment, immutable."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from skillwire.core.entry import SkillEntry, limit_findings
from skillwire.core.finding import Finding
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE, Manifest, ManifestFile
from skillwire.core.uri import SKILL_FILE, SkillUri, canonical_uri
from skillwire.errors import InvalidSkillError, InvalidUriError, NotFoundError

BY_URI = attrgetter("uri.text")
BY_PLACE = attrgetter("place")


@dataclass(frozen=True, slots=True)
class Report:
    """What a source has to say about one place: a folder, or a skill built in code.

    `uri` is None when nothing is published from there, and then the findings
    say why.
    """

    place: str
    findings: tuple[Finding, ...]
    uri: SkillUri | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Which skills differ between two snapshots, by the URI of their `SKILL.md`."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Entries sorted by URI, with remarks about what is not among them and why.

    `revision` grows with every snapshot of one source in one process.
    `media_types` maps the canonical URI of a file to its media type where the
    publisher gave another one than the file's name implies. `folders` holds
    the canonical URIs of directories inside a published skill with no file in
    them, at any depth: the ones that no line of a manifest tells of.
    """

    revision: int
    entries: tuple[SkillEntry, ...]
    reports: tuple[Report, ...]
    by_uri: Mapping[str, SkillEntry]
    media_types: Mapping[str, str] = field(default_factory=dict[str, str])
    folders: frozenset[str] = frozenset()

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
        """Make a snapshot of entries with distinct URIs, in any order."""
        ordered = tuple(sorted(entries, key=BY_URI))
        by_uri = {entry.uri.text: entry for entry in ordered}
        sorted_reports = tuple(sorted(reports, key=BY_PLACE))
        return cls(revision, ordered, sorted_reports, by_uri, media_types or {}, frozenset(folders))

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

        Any equivalent spelling will do. For a dynamic skill there is no line.

        Raises:
            NotFoundError: No skill has such a file.
        """
        try:
            wanted = canonical_uri(uri)
        except InvalidUriError as error:
            raise NotFoundError(str(error), uri=uri) from error
        root = wanted.rpartition("/")[0]
        while root.count("/") >= 2:
            entry = self.by_uri.get(f"{root}/{SKILL_FILE}")
            if entry is not None:
                if entry.manifest is None:
                    return entry, None
                file = entry.manifest.find(wanted)
                if file is not None:
                    return entry, file
            root = root.rpartition("/")[0]
        raise NotFoundError(f"no skill has a file at {wanted}", uri=wanted)

    def changes_since(self, older: "Snapshot") -> Changes:
        """Tell which skills were added, removed, or published with other content."""
        now, before = self.by_uri, older.by_uri
        changed = (uri for uri, entry in now.items() if uri in before and not _same(entry, before[uri]))
        return Changes(
            added=tuple(uri for uri in now if uri not in before),
            removed=tuple(uri for uri in before if uri not in now),
            changed=tuple(changed),
        )


def _same(left: SkillEntry, right: SkillEntry) -> bool:
    return left is right or left == right


def nest(entries: Iterable[SkillEntry]) -> list[SkillEntry]:
    """Complete the manifests of skills that lie inside each other.

    Seen from outside, a nested skill's files are files of the enclosing skill
    too, and its manifest must list them (SEP-2640, "Resources"). A folder
    gives that for free; skills that were put together from parts need this.

    Raises:
        InvalidSkillError: A dynamic skill lies inside one that promises digests.
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
                    f"{entry.uri} is dynamic and lies inside {outer.uri.root}, "
                    "which promises digests of all its files",
                    fix="move it out, or make the enclosing skill dynamic",
                )
            known = lines.setdefault(outer.uri.text, {file.uri: file for file in outer.manifest.files})
            known.update((file.uri, file) for file in entry.manifest.files)
    return [
        _completed(entry, lines[entry.uri.text]) if entry.uri.text in lines else entry for entry in ordered
    ]


def enclosures(entries: Iterable[SkillEntry]) -> dict[str, list[SkillEntry]]:
    """Map the URI of each skill that lies inside others to those, innermost first."""
    roots = {entry.uri.root: entry for entry in entries}
    folders = {root: root.rpartition("/")[0] for root in roots}
    # Many skills share a folder, and few folders lie inside a skill: those are looked for once.
    around = {
        folder: found
        for folder in set(folders.values())
        if (found := [roots[parent] for parent in upwards(folder) if parent in roots])
    }
    if not around:
        return {}
    return {roots[root].uri.text: around[folder] for root, folder in folders.items() if folder in around}


def over_limits(entries: Iterable[SkillEntry]) -> dict[str, tuple[Finding, ...]]:
    """Map the URI of each skill too large to be served to the findings that say so (LIM-03)."""
    return {
        entry.uri.text: tuple(limit_findings(manifest))
        for entry in entries
        if (manifest := entry.manifest) is not None
        and (len(manifest.sizes) > MAX_FILES or sum(manifest.sizes) > MAX_TOTAL_SIZE)
    }


def upwards(folder: str) -> Iterator[str]:
    """Yield the URI of a directory and those above it, innermost first."""
    while folder.count("/") >= 2:
        yield folder
        folder = folder.rpartition("/")[0]


def has_files_below(manifest: Manifest, folder: str) -> bool:
    """Tell whether a manifest lists a file below the directory at the canonical URI `folder`."""
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
