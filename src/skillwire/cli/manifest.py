"""`skillwire manifest`: what a server would publish about the skills in a folder."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len, set_cell_size

from skillwire.cli.answer import STYLES, Answer, answering, plural
from skillwire.cli.failures import ExitCode, MisuseError, NoSkillError
from skillwire.cli.findings import print_findings
from skillwire.cli.folders import Folder, located
from skillwire.cli.options import FollowLinks, Json, Verbose, new_app
from skillwire.cli.progress import progress
from skillwire.core.characters import visible
from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding, Severity
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE, Manifest
from skillwire.core.uri import DEFAULT_SCHEME, SKILL_FILE, SkillUri
from skillwire.errors import InvalidUriError
from skillwire.sources.publish import Mount
from skillwire.sources.snapshot import Report
from skillwire.sources.tree import SkillTree

# A folder that someone is writing to is looked at again this often, this many seconds apart.
_ATTEMPTS = 5
_PAUSE = 0.2

_SHORT_DIGEST = len("sha256:") + 12

app = new_app()


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, and what there is to say about publishing from it."""

    path: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Scanned:
    """What would be published from a folder, what would not, and remarks about both."""

    entries: tuple[SkillEntry, ...]
    quarantined: tuple[Place, ...]
    remarks: tuple[Place, ...]


@app.command()
def manifest(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder of skills, or a skill.", show_default=False)
    ],
    prefix: Annotated[
        str, typer.Option(metavar="PATH", help="Put this path before every skill's.", show_default=False)
    ] = "",
    follow_links: FollowLinks = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="Print JSON Lines: the entry of one skill to a line.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print what would be published about skills.

    For each skill: its URI, name and description, and every file with its
    size and digest. Exits with 1 when a skill cannot be published.

    With --lines, each line is an entry as skills/list has it, in the order of
    URIs, so that even a very large catalog can be read a line at a time.
    """
    with answering("manifest", json=json, verbose=verbose) as answer:
        if lines and json:
            raise MisuseError("--lines and --json exclude each other", fix="leave out one of them")
        root = Folder.named(folder)
        mount = Mount(DEFAULT_SCHEME, _checked(prefix))
        with progress(answer, "reading skills"):
            scanned = scan(root, mount, follow_links=follow_links)
        if not scanned.entries and not scanned.quarantined:
            message = f"no {SKILL_FILE} was found in {root.path()} or below it"
            raise NoSkillError(message, fix="name a folder that holds skills")
        if lines:
            answer.lines(entry.to_json() for entry in scanned.entries)
            _print_aside(answer, scanned)
        elif json:
            answer.document(_document(scanned))
        else:
            _print(answer, scanned)
        if scanned.quarantined:
            answer.code = ExitCode.NO


def scan(root: Folder, mount: Mount, *, follow_links: bool = False) -> Scanned:
    """Look at every skill below `root` as a server does when it starts.

    Raises:
        SourceError: The folder itself cannot be read.
    """
    tree = SkillTree(root.real, mount, follow_links=follow_links)
    published = tree.scan()
    for _ in range(_ATTEMPTS):
        if not tree.unsettled:
            break
        time.sleep(_PAUSE)
        published = tree.scan(sorted(tree.unsettled))
    reports = published.snapshot.reports
    return Scanned(
        published.snapshot.entries,
        tuple(_place(root, report) for report in reports if _is_held_back(report)),
        tuple(_place(root, report) for report in reports if not _is_held_back(report)),
    )


def _checked(prefix: str) -> str:
    prefix = prefix.strip("/")
    try:
        if prefix:
            SkillUri.build(prefix)
    except InvalidUriError as error:
        raise MisuseError(
            f"--prefix cannot be part of a URI: {error}", fix="use a-z, 0-9, - and /"
        ) from error
    return prefix


def _is_held_back(report: Report) -> bool:
    """Tell a skill that is not published from remarks about one that is, or about a mere folder."""
    return report.uri is None and any(found.severity is not Severity.INFO for found in report.findings)


def _place(root: Folder, report: Report) -> Place:
    path = root.path(report.place)
    return Place(path, tuple(located(finding, path) for finding in report.findings))


def _document(scanned: Scanned) -> dict[str, object]:
    return {
        "skills": [entry.to_json() for entry in scanned.entries],
        "quarantined": [
            {"place": place.path, "findings": [finding.to_json() for finding in place.findings]}
            for place in scanned.quarantined
        ],
    }


def _print(answer: Answer, scanned: Scanned) -> None:
    for entry in scanned.entries:
        _print_entry(answer, entry)
    for place in scanned.remarks:
        print_findings(answer, place.path, place.findings, aside=True)
    for place in scanned.quarantined:
        print_findings(answer, f"not published: {place.path}", place.findings)
    published = f"{plural(len(scanned.entries), 'skill')} to publish"
    if scanned.quarantined:
        published += f", {len(scanned.quarantined):,} not published"
    answer.line((published, STYLES["error"] if scanned.quarantined else "bold green"))


def _print_aside(answer: Answer, scanned: Scanned) -> None:
    """Say what is not among the lines, where it is no part of them."""
    for place in scanned.quarantined:
        print_findings(answer, f"not published: {place.path}", place.findings, aside=True)


def _print_entry(answer: Answer, entry: SkillEntry) -> None:
    answer.line((entry.uri.published, "bold"), wrap=False)
    answer.line(entry.name, indent=2)
    answer.line(_one_line(entry.frontmatter.description, answer.width), indent=2, wrap=False)
    if entry.manifest is not None:
        _print_files(answer, entry.uri, entry.manifest)
    answer.line("")


def _print_files(answer: Answer, uri: SkillUri, manifest: Manifest) -> None:
    rows = [(uri.relative_path(file.uri), f"{file.size:,}", file.digest) for file in manifest.files]
    paths = max(cell_len(visible(row[0])) for row in rows)
    sizes = max(len(row[1]) for row in rows)
    full = len(rows[0][2])
    room = None if answer.width is None else answer.width - 2 - sizes - len("  ") * 2
    short = room is not None and paths + full > room
    if room is not None:
        paths = min(paths, room - (_SHORT_DIGEST + 1 if short else full))
    for path, size, digest in rows:
        answer.line(*_row(path, size, digest, paths, sizes, short=short), indent=2, wrap=False)
    answer.line(
        f"{plural(len(rows), 'file')} (limit {MAX_FILES}), "
        f"{plural(manifest.total_size, 'byte')} (limit {MAX_TOTAL_SIZE:,})",
        indent=2,
    )


def _row(path: str, size: str, digest: str, paths: int, sizes: int, *, short: bool) -> Sequence[str]:
    shown = visible(path)
    if cell_len(shown) > paths > 1:
        while cell_len(shown) >= paths:
            shown = shown[1:]
        shown = "…" + shown
    gap = " " * (paths - cell_len(shown))
    return shown, gap, "  ", size.rjust(sizes), "  ", digest[:_SHORT_DIGEST] + "…" if short else digest


def _one_line(text: str, width: int | None) -> str:
    line = " ".join(visible(text).split())
    if width is None or cell_len(line) <= width - 2:
        return line
    return set_cell_size(line, width - 3).rstrip() + "…"
