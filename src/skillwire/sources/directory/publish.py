"""Building a snapshot from records: the URI of each skill, and conflicts between them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from skillwire.core import (
    MAX_PLAIN_LENGTH,
    MAX_URI_LENGTH,
    SKILL_FILE,
    Finding,
    InvalidSkillError,
    InvalidUriError,
    Manifest,
    ManifestFile,
    SkillEntry,
    SkillUri,
    as_text,
    segment_findings,
)
from skillwire.sources.directory.scan import SkillRecord
from skillwire.sources.snapshot import Report, Snapshot, enclosures, has_files_below

_MISSING = Finding(
    "skill-file-missing", f"the folder has no {SKILL_FILE}", file="", fix=f"add a {SKILL_FILE} to it"
)


@dataclass(frozen=True, slots=True)
class MountPoint:
    """Where a source's folder appears in the namespace: under a scheme and an optional prefix.

    With `at`, a single segment, the folder itself is the skill of that name,
    and skills inside it come below.
    """

    scheme: str
    prefix: str = ""
    at: str = ""

    @classmethod
    def make(cls, scheme: str, prefix: str, at: str | None) -> "MountPoint":
        """Build a mount point from a publisher's options; `at` is the whole path after the prefix.

        Raises:
            InvalidUriError: They cannot be part of a URI.
        """
        prefix = prefix.strip("/")
        if at is None:
            mount = cls(scheme, prefix)
            mount.uri_for("any")
            return mount
        above, _, name = at.strip("/").rpartition("/")
        mount = cls(scheme, "/".join(filter(None, (prefix, above))), name)
        mount.uri_for(name)
        return mount

    def uri_for(self, path: str) -> SkillUri:
        """Return the URI of the skill at `path`, with the first segment in lower case (URI-11)."""
        full = f"{self.prefix}/{path}" if self.prefix else path
        if not full.islower():
            first, slash, rest = full.partition("/")
            full = first.lower() + slash + rest
        return SkillUri.build(full, scheme=self.scheme)


@dataclass(slots=True, eq=False)
class PublishedFolder:
    """The entry of one record, or the findings that prevent one. Never modified."""

    record: SkillRecord
    entry: SkillEntry | None
    findings: tuple[Finding, ...]
    path: str = ""

    def same_as(self, other: "PublishedFolder") -> bool:
        return self.entry == other.entry and self.findings == other.findings and self.path == other.path

    def contains(self, other: "PublishedFolder") -> bool:
        """Return whether another skill's folder is inside this one's, and its path too."""
        inner = other.record.directory[len(self.record.directory) :].lstrip("/")
        return (
            _encloses(self.record.directory, other.record.directory) and other.path == f"{self.path}/{inner}"
        )

    def path_of(self, file: ManifestFile) -> str:
        """Return the path of `file` inside the skill's folder.

        It comes from the scan, never from a client's request.
        """
        assert self.entry is not None, "only what is published has files"
        uri = self.entry.uri
        path = file.uri[len(uri.root) + 1 :]
        if "%" in path:
            path = uri.relative_path(file.uri)
        links = self.record.links
        return links.get(path, path) if links else path


@dataclass(frozen=True, slots=True)
class Published:
    """A snapshot, and the publication of each entry's URI."""

    snapshot: Snapshot
    publications: Mapping[str, PublishedFolder]


def publish(
    records: Iterable[SkillRecord], mount: MountPoint, root_name: str, known: Mapping[str, PublishedFolder]
) -> dict[str, PublishedFolder]:
    """Build the publication of every record, by folder.

    The records must be all those of one or more subtrees, none of which is
    inside a skill. An equal publication in `known` is reused, so that unchanged
    skills keep their entries.
    """
    published: dict[str, PublishedFolder] = {}
    enclosing: list[PublishedFolder] = []
    for record in sorted(records, key=lambda record: record.directory.replace("/", "\0")):
        directory = record.directory
        while enclosing and not _encloses(enclosing[-1].record.directory, directory):
            enclosing.pop()
        before = known.get(directory) if known else None
        if before is not None and before.record is record and not enclosing:
            publication = before
        else:
            publication = _publish_one(record, mount, root_name, enclosing)
            if before is not None and before.same_as(publication):
                publication = replace(before, record=record)
        published[directory] = publication
        if publication.entry is not None:
            enclosing.append(publication)
    return published


def combine(
    publications: Collection[PublishedFolder],
    loose: Iterable[tuple[str, Finding]],
    mount: MountPoint,
    revision: int,
    empty: Collection[str] = (),
) -> Published:
    """Build the snapshot of all publications, without those that have the same URI.

    `empty` are the folders with nothing in them, relative to the root.
    """
    chosen: dict[str, PublishedFolder] = {}
    rivals: dict[str, list[PublishedFolder]] = {}
    reports: list[Report] = []
    for publication in publications:
        if publication.entry is None:
            reports.append(Report(publication.record.directory, publication.findings))
            continue
        first = chosen.setdefault(publication.entry.uri.text, publication)
        if first is not publication:
            rivals.setdefault(publication.entry.uri.text, [first]).append(publication)
    for uri, claimants in rivals.items():
        winner = _preferred(claimants)
        if winner is None:
            del chosen[uri]
        else:
            chosen[uri] = winner
        reports += [
            Report(rival.record.directory, (_clash(uri, claimants, rival), *rival.findings))
            for rival in claimants
            if rival is not winner
        ]
    for uri, outer in _overlaps(chosen).items():
        lost = chosen.pop(uri)
        reports.append(Report(lost.record.directory, (_overlap(uri, outer), *lost.findings)))
    reports += [
        Report(publication.record.directory, publication.findings, SkillUri(uri))
        for uri, publication in chosen.items()
        if publication.findings
    ]
    by_place: dict[str, list[Finding]] = {}
    for place, finding in loose:
        by_place.setdefault(place, []).append(finding)
    if mount.at and all(publication.record.directory for publication in publications):
        by_place.setdefault("", [_MISSING])
    reports += [Report(place, tuple(findings)) for place, findings in by_place.items()]
    reports = [replace(report, place=as_text(report.place)) for report in reports]
    folders = set(_folders(chosen, empty)) if empty else ()
    snapshot = Snapshot.of(_entries(chosen), reports=reports, revision=revision, folders=folders)
    return Published(snapshot, chosen)


def require_root(published: Published, mount: MountPoint) -> None:
    """Check that the folder mounted at an exact path is a skill, and published there.

    Raises:
        InvalidSkillError: It is not; the message gives the reason without local paths.
    """
    uri = mount.uri_for(mount.at)
    publication = published.publications.get(uri.text)
    if publication is not None and not publication.record.directory:
        return
    reports = [report for report in published.snapshot.quarantined if not report.place]
    findings = [finding for report in reports for finding in report.findings]
    errors = [finding for finding in findings if finding.is_error] or findings
    words = "; ".join(f"{as_text(finding.file)}: {finding.message}".removeprefix(": ") for finding in errors)
    raise InvalidSkillError(f"{uri} cannot be published: {words}", fix=errors[0].fix)


def _encloses(outer: str, inner: str) -> bool:
    return not outer or inner.startswith(outer + "/")


def _publish_one(
    record: SkillRecord, mount: MountPoint, root_name: str, enclosing: list[PublishedFolder]
) -> PublishedFolder:
    if record.frontmatter is None:
        return PublishedFolder(record, None, record.findings)
    name = record.frontmatter.name
    above, _, folder = record.directory.rpartition("/")
    folder = folder or mount.at or root_name
    findings = record.findings
    if mount.at and not record.directory:
        if folder != name:
            return PublishedFolder(record, None, (*findings, _mismatch(folder, name)))
    elif folder != name:
        findings = (*findings, _misnamed(folder, name, nested=bool(enclosing)))
    try:
        if enclosing:
            outer = enclosing[-1]
            inner = record.directory[len(outer.record.directory) :].lstrip("/")
            path = f"{outer.path}/{inner}"
            if folder != name:
                return PublishedFolder(record, None, findings)
        else:
            path = f"{above}/{name}" if above else name
            if path == record.directory:
                path = record.directory  # One text instead of two equal ones.
            if mount.at and record.directory:
                path = f"{mount.at}/{path}"
        uri = mount.uri_for(path)
        entry = SkillEntry(uri, record.frontmatter, _manifest(uri, record))
        if remarks := segment_findings(uri):
            findings = (*findings, *remarks)
    except InvalidUriError as error:
        problem = Finding("unusable-path", str(error), file="", fix="rename the folder")
        return PublishedFolder(record, None, (*findings, problem))
    return PublishedFolder(record, entry, findings, path)


def _manifest(uri: SkillUri, record: SkillRecord) -> Manifest:
    if record.plain and len(uri.text) <= MAX_URI_LENGTH - MAX_PLAIN_LENGTH:
        return Manifest(uri.root + "/", record.stamp.paths, record.digests, record.stamp.sizes)
    paths, sizes, _ = record.stamp
    return Manifest.of(map(ManifestFile, map(uri.join, paths), record.digests, sizes))


def _misnamed(folder: str, name: str, *, nested: bool) -> Finding:
    message = f"the folder is named {folder!r} and the skill {name!r}; "
    if nested:
        message += "inside another skill the two must be equal, so it is not published on its own"
    else:
        message += f"it is published as {name!r}"
    return Finding("name-differs-from-folder", message, fix=f"rename the folder to `{name}`")


def _mismatch(segment: str, name: str) -> Finding:
    message = f"the path ends in {segment!r} but the name is {name!r}"
    return Finding("uri-name-mismatch", message, fix=f"end the path in `{name}`, or set `name: {segment}`")


def _preferred(rivals: Sequence[PublishedFolder]) -> PublishedFolder | None:
    """Return the only publication whose folder has the skill's name, or None."""
    named = [
        rival
        for rival in rivals
        if rival.entry is not None and rival.record.directory.rpartition("/")[2] == rival.entry.name
    ]
    return named[0] if len(named) == 1 else None


def _entries(chosen: Mapping[str, PublishedFolder]) -> list[SkillEntry]:
    return [publication.entry for publication in chosen.values() if publication.entry is not None]


def _folders(chosen: Mapping[str, PublishedFolder], empty: Iterable[str]) -> Iterator[str]:
    """Yield the URIs of empty folders, and of their parents without files."""
    by_directory = {publication.record.directory: publication for publication in chosen.values()}
    for folder in empty:
        above = folder
        while above:
            above = above.rpartition("/")[0]
            publication = by_directory.get(above)
            if publication is not None and publication.entry is not None:
                yield from _without_files(publication.entry, folder[len(above) :].lstrip("/"))


def _without_files(entry: SkillEntry, path: str) -> Iterator[str]:
    while path:
        try:
            folder = entry.uri.join(path)
        except InvalidUriError:
            pass  # It has no valid URI, and no file needs it.
        else:
            if entry.manifest is not None and has_files_below(entry.manifest, folder):
                return
            yield folder
        path = path.rpartition("/")[0]


def _overlaps(chosen: Mapping[str, PublishedFolder]) -> dict[str, str]:
    """Map each skill whose URI is inside another's, but whose folder is not, to that other's root.

    Names and lowercasing can move a skill into another one. Of two such skills
    the outer one stays.
    """
    found: dict[str, str] = {}
    around = enclosures(_entries(chosen))
    for uri in sorted(around, key=len):
        for outer in around[uri]:
            holder = chosen[outer.uri.text]
            if outer.uri.text not in found and not holder.contains(chosen[uri]):
                found[uri] = outer.uri.root
    return found


def _overlap(uri: str, outer: str) -> Finding:
    message = f"{uri} is inside {outer}, which comes from another folder"
    return Finding("uri-overlap", message, fix="give one of them another name, or move it")


def _clash(uri: str, rivals: Sequence[PublishedFolder], loser: PublishedFolder) -> Finding:
    others = ", ".join(sorted(repr(rival.record.directory) for rival in rivals if rival is not loser))
    message = f"{uri} is also claimed by {others}"
    return Finding("duplicate-uri", message, fix="give one of them another name, or move it")
