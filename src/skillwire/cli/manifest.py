"""`skillwire manifest`: print what a server would publish about the skills in a folder."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len, set_cell_size

from skillwire.cli.command import (
    STYLES,
    FollowLinks,
    Json,
    MisuseError,
    NoSkillError,
    Output,
    Verbose,
    command_output,
    new_app,
    plural,
    progress,
)
from skillwire.cli.common import ExitCode
from skillwire.cli.folders import NamedFolder, checked_prefix, located, print_findings
from skillwire.core import (
    DEFAULT_SCHEME,
    MAX_FILES,
    MAX_TOTAL_SIZE,
    SKILL_FILE,
    Finding,
    Manifest,
    Severity,
    SkillEntry,
    SkillUri,
    visible,
)
from skillwire.sources.directory.publish import MountPoint
from skillwire.sources.directory.tree import SkillTree
from skillwire.sources.snapshot import Report

# A folder that is being written to is scanned again this often, this many seconds apart.
_ATTEMPTS = 5
_PAUSE = 0.2

_SHORT_DIGEST = len("sha256:") + 12

app = new_app()


@dataclass(frozen=True, slots=True)
class FolderFindings:
    """A folder, and the findings about publishing from it."""

    path: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The entries that would be published from a folder, what would not be, and remarks about both."""

    entries: Sequence[SkillEntry]
    quarantined: tuple[FolderFindings, ...]
    remarks: tuple[FolderFindings, ...]


@app.command()
def manifest(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder of skills, or a skill.", show_default=False)
    ],
    prefix: Annotated[
        str, typer.Option(metavar="PATH", help="Prefix every skill's path with this one.", show_default=False)
    ] = "",
    follow_links: FollowLinks = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="Print JSON Lines, one skill's entry per line.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print what a server would publish about skills.

    For each skill: its URI, name and description, and every file with its
    size and digest. Exits with 1 when a skill cannot be published.

    With --lines, each line is an entry as skills/list has it, in the order of
    URIs, so that even a very large catalog can be read a line at a time.
    """
    with command_output("manifest", json=json, verbose=verbose) as output:
        if lines and json:
            raise MisuseError("--lines and --json exclude each other", fix="leave out one of them")
        root = NamedFolder.named(folder)
        mount = MountPoint(DEFAULT_SCHEME, checked_prefix(prefix))
        with progress(output, "reading skills"):
            scanned = scan(root, mount, follow_links=follow_links)
        if not scanned.entries and not scanned.quarantined:
            message = f"no {SKILL_FILE} was found in {root.path()} or below it"
            raise NoSkillError(message, fix="name a folder that holds skills")
        if lines:
            output.lines(entry.to_json() for entry in scanned.entries)
            _print_quarantined(output, scanned)
        elif json:
            output.document(_document(scanned))
        else:
            _print(output, scanned)
        if scanned.quarantined:
            output.code = ExitCode.NO


def scan(root: NamedFolder, mount: MountPoint, *, follow_links: bool = False) -> ScanResult:
    """Scan every skill below `root` as a server does when it starts.

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
    return ScanResult(
        published.snapshot.entries,
        tuple(_place(root, report) for report in reports if _is_quarantined(report)),
        tuple(_place(root, report) for report in reports if not _is_quarantined(report)),
    )


def _is_quarantined(report: Report) -> bool:
    """Return whether a report is about a skill that is not published, and not only a remark."""
    return report.uri is None and any(found.severity is not Severity.INFO for found in report.findings)


def _place(root: NamedFolder, report: Report) -> FolderFindings:
    path = root.path(report.place)
    return FolderFindings(path, tuple(located(finding, path) for finding in report.findings))


def _document(scanned: ScanResult) -> dict[str, object]:
    return {
        "skills": [entry.to_json() for entry in scanned.entries],
        "quarantined": [
            {"place": place.path, "findings": [finding.to_json() for finding in place.findings]}
            for place in scanned.quarantined
        ],
    }


def _print(output: Output, scanned: ScanResult) -> None:
    for entry in scanned.entries:
        _print_entry(output, entry)
    for place in scanned.remarks:
        print_findings(output, place.path, place.findings, to_stderr=True)
    for place in scanned.quarantined:
        print_findings(output, f"not published: {place.path}", place.findings)
    published = f"{plural(len(scanned.entries), 'skill')} to publish"
    if scanned.quarantined:
        published += f", {len(scanned.quarantined):,} not published"
    output.line((published, STYLES["error"] if scanned.quarantined else "bold green"))


def _print_quarantined(output: Output, scanned: ScanResult) -> None:
    """Print to standard error what is not published."""
    for place in scanned.quarantined:
        print_findings(output, f"not published: {place.path}", place.findings, to_stderr=True)


def _print_entry(output: Output, entry: SkillEntry) -> None:
    output.line((entry.uri.published, "bold"), wrap=False)
    output.line(entry.name, indent=2)
    output.line(_one_line(entry.frontmatter.description, output.width), indent=2, wrap=False)
    if entry.manifest is not None:
        _print_files(output, entry.uri, entry.manifest)
    output.line("")


def _print_files(output: Output, uri: SkillUri, manifest: Manifest) -> None:
    rows = [(uri.relative_path(file.uri), f"{file.size:,}", file.digest) for file in manifest.files]
    paths = max(cell_len(visible(row[0])) for row in rows)
    sizes = max(len(row[1]) for row in rows)
    full = len(rows[0][2])
    room = None if output.width is None else output.width - 2 - sizes - len("  ") * 2
    short = room is not None and paths + full > room
    if room is not None:
        paths = min(paths, room - (_SHORT_DIGEST + 1 if short else full))
    for path, size, digest in rows:
        output.line(*_row(path, size, digest, paths, sizes, short=short), indent=2, wrap=False)
    output.line(
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
