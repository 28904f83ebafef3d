"""The page of one skill: what is published about it, its instructions, its files, what is wrong with it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding, Severity
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import Manifest
from skillwire.core.relations import Relation, RelationGraph
from skillwire.core.uri import SKILL_FILE, SkillUri
from skillwire.core.validation import validate
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import FrontmatterError
from skillwire.server.browsing import skills_below
from skillwire.server.page.addresses import FILES, place_of
from skillwire.server.page.catalog import Row, counts_of, crumbs_to, row_of
from skillwire.server.page.markdown import Rendered, Resolve, render
from skillwire.server.page.rendering import safe, shortened
from skillwire.sources import Report, Snapshot

MAX_FINDINGS: Final = 200
MAX_FIELDS: Final = 60
MAX_NEIGHBOURS: Final = 100
BYTES_PER_TOKEN: Final = 4

_LONGEST_VALUE = 1_000
_LONGEST_MESSAGE = 500
_SHOWN_ELSEWHERE = ("name", "description")
_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)
_RELATIONS = (
    (Relation.REQUIRES, "Requires", "Required by"),
    (Relation.PART_OF, "Part of", "Has the parts"),
    (Relation.RELATED, "Related to", "Named as related by"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the frontmatter in words."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Line:
    """A file of the skill: its folder and name, its address, and what is promised about it, if anything."""

    folder: str
    name: str
    place: str
    size: int | None
    digest: str
    key: str
    """A name for the line within the page."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A finding in words, with the address of the line it is about; empty if there is none to show."""

    severity: str
    message: str
    fix: str
    where: str
    place: str
    code: str


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Skills that stand in some relation to this one."""

    title: str
    rows: Sequence[Row]


def described(
    entry: SkillEntry,
    snapshot: Snapshot,
    reports: Sequence[Report],
    graph: RelationGraph | None,
    *,
    findings: Sequence[Finding] = (),
    modified: float | None = None,
) -> dict[str, Any]:
    """Return what the page shows of a skill, except its instructions.

    Beside the findings in `reports`, which are about many skills, there are
    `findings` that somebody had about this one.
    """
    files = entry.files
    lines = _lines(entry, files)
    known = {line.place for line in lines}
    found = [
        *(finding for report in reports if report.uri == entry.uri for finding in report.findings),
        *findings,
    ]
    found = sorted(dict.fromkeys(found), key=lambda finding: _SEVERITIES.index(finding.severity))
    nested = skills_below(snapshot.entries, entry.uri.root)
    neighbours = [
        Neighbours("Skills inside this one", [e for e in _rows(nested, reports) if e.place != _root(entry)]),
        *_related(entry.uri.text, snapshot, reports, graph),
    ]
    return {
        "name": entry.name or entry.uri.name,
        "description": entry.frontmatter.description,
        "uri": entry.uri.published,
        "place": _root(entry),
        "crumbs": crumbs_to(entry.uri.root),
        "fields": _fields(entry),
        "lines": lines,
        "total_size": None if files is None else files.total_size,
        "modified": "" if modified is None else f"{datetime.fromtimestamp(modified, UTC):%Y-%m-%d}",
        "is_dynamic": entry.is_dynamic,
        "remarks": [_remark(finding, entry.uri, known) for finding in found[:MAX_FINDINGS]],
        "more_remarks": max(0, len(found) - MAX_FINDINGS),
        "neighbours": [group for group in neighbours if group.rows],
    }


def instructions(entry: SkillEntry, content: bytes, base: str) -> dict[str, Any]:
    """Return what the page shows of the instructions, given the bytes of `SKILL.md`."""
    try:
        body = parse_skill_md(content).body
    except FrontmatterError:  # A skill whose content is made when it is read may have any.
        body = content.decode("utf-8", "replace")
    rendered: Rendered = render(body, _resolver(entry, base))
    return {
        "findings": _findings(entry, content),
        "body": safe(rendered.html),
        "is_empty": not body.strip(),
        "is_cut": rendered.is_cut,
        "reveals": rendered.reveals,
        "tokens": len(content) // BYTES_PER_TOKEN,
    }


def _findings(entry: SkillEntry, content: bytes) -> list[Finding]:
    """Return what `SKILL.md` alone gives reason to remark: a listing is made without looking at all of it."""
    if entry.files is None:
        return []
    sizes = {entry.uri.relative_path(file.uri): max(file.size, 0) for file in entry.files.files}
    found = validate(entry.uri.name, {**sizes, SKILL_FILE: content})
    # The other texts are not looked into, and any of them may mention a file.
    return [finding for finding in found if finding.code != "unlinked-file"]


def _resolver(entry: SkillEntry, base: str) -> Resolve:
    """Return what turns a link in the instructions into the address of the file it means."""
    if entry.files is not None:
        known = frozenset(entry.files.uris)
    else:
        known = frozenset(entry.dynamic_files)
    inner = len(entry.uri.root)
    folders = {uri[:end] for uri in known for end in range(inner + 1, len(uri)) if uri[end] == "/"}

    def resolve(target: str) -> str | None:
        uri = entry.uri.resolve(target)
        if uri in known:
            return f"{base}{FILES[1:]}{place_of(uri)}"
        return "#files" if uri in folders else None

    return resolve


def _root(entry: SkillEntry) -> str:
    return place_of(entry.uri.root)


def _fields(entry: SkillEntry) -> list[Field]:
    """Return all fields that are not shown anyway; those in `metadata` one by one."""
    found: list[Field] = []
    for name, value in entry.frontmatter.fields.items():
        if name == "metadata" and isinstance(value, dict):
            found += [Field(f"metadata: {key}", _in_words(item)) for key, item in value.items()]
        elif name not in _SHOWN_ELSEWHERE:
            found.append(Field(name, _in_words(value)))
    shown = [Field(shortened(field.name, 100), field.value) for field in found[:MAX_FIELDS]]
    if len(found) > MAX_FIELDS:
        shown.append(Field("and more", f"{len(found) - MAX_FIELDS} fields; see {SKILL_FILE}"))
    return shown


def _in_words(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(text, _LONGEST_VALUE)


def _lines(entry: SkillEntry, files: Manifest | None) -> list[Line]:
    if files is not None:
        promised = [(file.uri, file.known_size, file.digest) for file in files.files]
    else:
        promised = [(uri, None, "") for uri in sorted({entry.uri.text, *entry.dynamic_files})]
    lines: list[Line] = []
    for number, (uri, size, digest) in enumerate(promised):
        folder, slash, name = entry.uri.relative_path(uri).rpartition("/")
        lines.append(Line(folder + slash, name, place_of(uri), size, digest, f"digest-{number}"))
    # What lies at the top comes first, and SKILL.md before everything.
    return sorted(lines, key=lambda line: (line.folder, line.name != SKILL_FILE, line.name))


def _remark(finding: Finding, uri: SkillUri, known: set[str]) -> Remark:
    where, place = shortened(finding.file, 200), ""
    if finding.file and (resolved := uri.resolve(finding.file)) and place_of(resolved) in known:
        place = place_of(resolved) + (f"#L{finding.line}" if finding.line else "")
    if where and finding.line:
        where = f"{where}, line {finding.line}"
    return Remark(
        severity=finding.severity.value,
        message=shortened(finding.message, _LONGEST_MESSAGE),
        fix=shortened(finding.fix, _LONGEST_MESSAGE),
        where=where,
        place=place,
        code=finding.code,
    )


def _rows(entries: Iterable[SkillEntry], reports: Sequence[Report]) -> list[Row]:
    few = list(entries)[: MAX_NEIGHBOURS + 1]
    counts = counts_of((entry.uri for entry in few), reports)
    return [row_of(entry, counts) for entry in few]


def _related(
    key: str, snapshot: Snapshot, reports: Sequence[Report], graph: RelationGraph | None
) -> list[Neighbours]:
    if graph is None:
        return []
    groups: list[Neighbours] = []
    for relation, forward, backward in _RELATIONS:
        for title, keys in (
            (forward, graph.targets(key, relation)),
            (backward, graph.sources(key, relation)),
        ):
            entries = [snapshot.by_uri[one] for one in keys if one in snapshot.by_uri]
            groups.append(Neighbours(title, _rows(entries, reports)))
    return groups
