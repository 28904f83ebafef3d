"""The page of one skill: its frontmatter, instructions, files and findings."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from skillwire.core import (
    SKILL_FILE,
    Finding,
    FrontmatterError,
    JsonValue,
    Manifest,
    Relation,
    RelationGraph,
    Severity,
    SkillEntry,
    SkillUri,
    digest_of,
    parse_skill_md,
    revealed,
    validate,
)
from skillwire.runner import scripts_of
from skillwire.server.answers import FileContent
from skillwire.server.page.catalog import TOOLS_FIELD, SkillLine, counts_of, crumbs_to, row_of
from skillwire.server.page.markdown import Rendered, Resolve, render
from skillwire.server.page.templates import FILES, place_of, safe, shortened
from skillwire.sources.snapshot import Report, Snapshot, entries_below

MAX_FINDINGS: Final = 200
MAX_FIELDS: Final = 60
MAX_RELATED_ROWS: Final = 100
BYTES_PER_TOKEN: Final = 4

_MAX_VALUE = 1_000
_MAX_MESSAGE = 500
_SHOWN_ELSEWHERE = ("name", "description")
_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)
_RELATIONS = (
    (Relation.REQUIRES, "Requires", "Required by"),
    (Relation.PART_OF, "Part of", "Has the parts"),
    (Relation.RELATED, "Related to", "Named as related by"),
)


@dataclass(frozen=True, slots=True)
class FrontmatterRow:
    """A frontmatter field as text."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file of the skill: its folder, name and path, and its published size and digest, if any."""

    folder: str
    name: str
    place: str
    size: int | None
    digest: str
    key: str
    """The ID of the row within the page."""


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding as text, with the path of the line it is about, or empty."""

    severity: str
    message: str
    fix: str
    where: str
    place: str
    code: str


@dataclass(frozen=True, slots=True)
class RelatedSkills:
    """Skills with a relation to this one."""

    title: str
    rows: Sequence[SkillLine]


def skill_values(
    entry: SkillEntry,
    snapshot: Snapshot,
    reports: Sequence[Report],
    graph: RelationGraph | None,
    *,
    findings: Sequence[Finding] = (),
    modified: float | None = None,
) -> dict[str, Any]:
    """Return the template values of a skill, except its instructions.

    `findings` are shown in addition to those of the skill in `reports`.
    """
    files = entry.files
    lines = _file_rows(entry, files)
    known = {line.place for line in lines}
    found = [
        *(finding for report in reports if report.uri == entry.uri for finding in report.findings),
        *findings,
    ]
    found = sorted(dict.fromkeys(found), key=lambda finding: _SEVERITIES.index(finding.severity))
    nested = entries_below(snapshot.entries, entry.uri.root)
    neighbours = [
        RelatedSkills(
            "Skills inside this one", [e for e in _rows(nested, reports) if e.place != _root(entry)]
        ),
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
        "scripts": len(scripts_of(entry)),
        "tools": _as_text(entry.frontmatter.fields.get(TOOLS_FIELD) or ""),
        "remarks": [_finding_row(finding, entry.uri, known) for finding in found[:MAX_FINDINGS]],
        "more_remarks": max(0, len(found) - MAX_FINDINGS),
        "neighbours": [group for group in neighbours if group.rows],
    }


def instruction_values(entry: SkillEntry, content: bytes, base: str) -> dict[str, Any]:
    """Return the template values of the instructions, from the bytes of `SKILL.md`."""
    try:
        body = parse_skill_md(content).body
    except FrontmatterError:  # The content of a dynamic skill may be anything.
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
    """Return the findings about `SKILL.md` that need its full text, which a listing does not read."""
    if entry.files is None:
        return []
    sizes = {entry.uri.relative_path(file.uri): max(file.size, 0) for file in entry.files.files}
    found = validate(entry.uri.name, {**sizes, SKILL_FILE: content})
    # The other files are not read, and any of them may mention a file.
    return [finding for finding in found if finding.code != "unlinked-file"]


def _resolver(entry: SkillEntry, base: str) -> Resolve:
    """Return a function that maps links in the instructions to paths of files on the page."""
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


def _fields(entry: SkillEntry) -> list[FrontmatterRow]:
    """Return all fields that are not shown elsewhere; those in `metadata` one by one."""
    found: list[FrontmatterRow] = []
    for name, value in entry.frontmatter.fields.items():
        if name == "metadata" and isinstance(value, dict):
            found += [FrontmatterRow(f"metadata: {key}", _as_text(item)) for key, item in value.items()]
        elif name not in _SHOWN_ELSEWHERE:
            found.append(FrontmatterRow(name, _as_text(value)))
    shown = [FrontmatterRow(shortened(field.name, 100), field.value) for field in found[:MAX_FIELDS]]
    if len(found) > MAX_FIELDS:
        shown.append(FrontmatterRow("and more", f"{len(found) - MAX_FIELDS} fields; see {SKILL_FILE}"))
    return shown


def _as_text(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(text, _MAX_VALUE)


def _file_rows(entry: SkillEntry, files: Manifest | None) -> list[FileRow]:
    if files is not None:
        promised = [(file.uri, file.known_size, file.digest) for file in files.files]
    else:
        promised = [(uri, None, "") for uri in sorted({entry.uri.text, *entry.dynamic_files})]
    lines: list[FileRow] = []
    for number, (uri, size, digest) in enumerate(promised):
        folder, slash, name = entry.uri.relative_path(uri).rpartition("/")
        lines.append(FileRow(folder + slash, name, place_of(uri), size, digest, f"digest-{number}"))
    # Top-level files first, and SKILL.md before all others.
    return sorted(lines, key=lambda line: (line.folder, line.name != SKILL_FILE, line.name))


def _finding_row(finding: Finding, uri: SkillUri, known: set[str]) -> FindingRow:
    where, place = shortened(finding.file, 200), ""
    if finding.file and (resolved := uri.resolve(finding.file)) and place_of(resolved) in known:
        place = place_of(resolved) + (f"#L{finding.line}" if finding.line else "")
    if where and finding.line:
        where = f"{where}, line {finding.line}"
    return FindingRow(
        severity=finding.severity.value,
        message=shortened(finding.message, _MAX_MESSAGE),
        fix=shortened(finding.fix, _MAX_MESSAGE),
        where=where,
        place=place,
        code=finding.code,
    )


def _rows(entries: Iterable[SkillEntry], reports: Sequence[Report]) -> list[SkillLine]:
    few = list(entries)[: MAX_RELATED_ROWS + 1]
    counts = counts_of((entry.uri for entry in few), reports)
    return [row_of(entry, counts) for entry in few]


def _related(
    key: str, snapshot: Snapshot, reports: Sequence[Report], graph: RelationGraph | None
) -> list[RelatedSkills]:
    if graph is None:
        return []
    groups: list[RelatedSkills] = []
    for relation, forward, backward in _RELATIONS:
        for title, keys in (
            (forward, graph.targets(key, relation)),
            (backward, graph.sources(key, relation)),
        ):
            entries = [snapshot.by_uri[one] for one in keys if one in snapshot.by_uri]
            groups.append(RelatedSkills(title, _rows(entries, reports)))
    return groups


# The page of one file: its source text with line numbers.


MAX_SHOWN: Final = 256 * 1024
"""The maximum number of characters shown of a file."""
MAX_LINES: Final = 5_000


def file_values(entry: SkillEntry, uri: str, file: FileContent) -> dict[str, Any]:
    """Return the template values of a file."""
    text = _text_of(file.content)
    lines, is_cut = ([], False) if text is None else _lines_of(text)
    shown = [revealed(line) for line in lines]
    return {
        "name": entry.uri.relative_path(uri),
        "skill": entry.name or entry.uri.name,
        "place": place_of(uri),
        "skill_place": place_of(entry.uri.root),
        "crumbs": crumbs_to(entry.uri.root),
        "uri": uri,
        "media_type": file.media_type,
        "size": len(file.content),
        "digest": file.digest or digest_of(file.content),
        "has_digest": bool(file.digest),
        "is_binary": text is None,
        "is_cut": is_cut,
        "lines": safe(_numbered(shown)),
        "reveals": shown != lines,
    }


def _text_of(content: bytes) -> str | None:
    """Return the beginning of a file as text; None when it is binary."""
    beginning = content[: 4 * MAX_SHOWN + 4]
    if b"\0" in beginning:
        return None
    try:
        return beginning.decode("utf-8")
    except UnicodeDecodeError as error:
        # The cut may be inside of a character.
        is_end = len(content) > len(beginning) and len(beginning) - error.start < 4
        return beginning[: error.start].decode("utf-8") if is_end else None


def _lines_of(text: str) -> tuple[list[str], bool]:
    """Return the lines that are shown, and whether there are more."""
    shown = text[:MAX_SHOWN]
    lines = shown.replace("\r\n", "\n").split("\n")
    if lines[-1] == "" and len(lines) > 1:
        lines.pop()
    return lines[:MAX_LINES], len(shown) < len(text) or len(lines) > MAX_LINES


def _numbered(lines: list[str]) -> str:
    """Return lines as HTML, each with an anchor."""
    return "".join(f'<span class="line" id="L{n}">{escape(line)}\n</span>' for n, line in enumerate(lines, 1))
