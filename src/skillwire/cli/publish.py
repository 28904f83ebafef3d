"""`skillwire publish`: write folders of skills as a static web site."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.to_thread
import typer

import skillwire.server
from skillwire.cli.command import (
    STYLES,
    BrokenSkillError,
    FollowLinks,
    Json,
    MisuseError,
    Output,
    ProgressMeter,
    Verbose,
    command_output,
    new_app,
    plural,
    progress,
)
from skillwire.cli.folders import FindingCounts, NamedFolder, print_findings
from skillwire.cli.validate import Review, review_folders
from skillwire.core import Finding
from skillwire.sources.combined import CombinedSource
from skillwire.sources.directory.source import DirectorySource
from skillwire.sources.snapshot import Report

if TYPE_CHECKING:
    from skillwire.server import Artifact, PublishedSite


app = new_app()


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The result of publishing: the site, its new artifacts, and how many earlier ones were kept."""

    site: PublishedSite
    new: frozenset[str]
    kept: int
    removed: int
    is_exposed: bool


@app.command()
def publish(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders of skills.", show_default=False)
    ],
    static: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Write a web site into this folder.", show_default=False),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove artifacts of earlier sites that this one does not have.")
    ] = False,
    follow_links: FollowLinks = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Publish folders of skills as a web site.

    OUT is the root of a web server; the site goes to .well-known/agent-skills
    in it. All skills are validated first, and when one has errors, or two
    share a name, nothing is written. Other files are never touched.
    """
    with command_output("publish", json=json, verbose=verbose) as output:
        if static is None:
            raise MisuseError("no output folder is named", fix="add --static OUT")
        named = [NamedFolder.named(folder) for folder in folders]
        with progress(output, "checking skills") as meter:
            _require_valid(output, named, review_folders(named, meter, follow_links=follow_links))
            written = anyio.run(partial(_publish, output, named, static, meter, follow_links, prune))
        _report(output, written, static)


async def _publish(
    output: Output,
    folders: Sequence[NamedFolder],
    out: Path,
    meter: ProgressMeter,
    follow_links: bool,
    prune: bool,
) -> PublishResult:
    publisher = skillwire.server.Publisher()
    sources = [DirectorySource(folder.typed, watch=False, follow_links=follow_links) for folder in folders]
    async with CombinedSource(sources) as catalog:
        site = await publisher.site(catalog)
        _require_complete(output, site)
        new: set[str] = set()
        run = anyio.to_thread.run_sync
        with skillwire.server.SiteFolder(out) as folder:
            for done, (path, artifact) in enumerate(site.artifacts.items()):
                meter.show("writing", done, len(site.artifacts))
                if not await run(folder.has, path):
                    await run(folder.add, path, await publisher.read(artifact, catalog))
                    new.add(path)
            await run(folder.publish, site.index)
            others = await run(folder.other_artifacts, site.artifacts)
            for name in others if prune else ():
                await run(folder.remove, name)
            kept, removed = (0, len(others)) if prune else (len(others), 0)
            return PublishResult(site, frozenset(new), kept, removed, folder.is_exposed)


def _require_valid(output: Output, named: Sequence[NamedFolder], review: Review) -> None:
    """Raise when any skill has errors (DISC-14)."""
    places = [(place.path, place.findings) for place in (*review.skills, *review.folders)]
    errors = [finding for _, findings in places for finding in findings if finding.is_error]
    for path, findings in places if errors else ():
        print_findings(output, path, findings, to_stderr=True)
    if errors:
        raise _not_published(errors)
    warnings = FindingCounts.of(review.findings).warnings
    if warnings:
        command = shlex.join(("skillwire", "validate", *(str(folder.typed) for folder in named)))
        output.message(("warning:", STYLES["warning"]), f" {plural(warnings, 'warning')}; see `{command}`")


def _require_complete(output: Output, site: PublishedSite) -> None:
    """Raise when the site would lack a skill."""
    held_back = [report for report in site.snapshot.reports if report.uri is None]
    reports: list[Report] = [*held_back, *site.left_out, *site.failed]
    errors = [
        finding
        for report in reports
        for finding in report.findings
        if finding.is_error or report in site.failed
    ]
    for report in reports:
        print_findings(output, report.place, report.findings, to_stderr=True)
    if errors:
        raise _not_published(errors)


def _not_published(errors: Sequence[Finding]) -> BrokenSkillError:
    return BrokenSkillError(
        f"the skills to publish have {plural(len(errors), 'error')}, so nothing is written",
        findings=errors,
        fix="correct the errors and try again",
    )


def _report(output: Output, written: PublishResult, out: Path) -> None:
    site = written.site
    index = skillwire.server.SiteFolder(out).home / skillwire.server.INDEX
    if written.is_exposed:
        words = f" every user of this machine may change {index.parent}"
        output.message(("warning:", STYLES["warning"]), words, wrap=False)
    if output.json:
        output.document(_document(written, index))
        return
    for path, artifact in site.artifacts.items():
        state = "new" if path in written.new else "same"
        output.line(f"{artifact.entry.name}  {artifact.type}  {state}  {artifact.digest}", wrap=False)
    rest = [f"{written.kept:,} of earlier sites kept"] if written.kept else []
    rest += [f"{written.removed:,} of earlier sites removed"] if written.removed else []
    output.message(
        f"published {plural(len(site.artifacts), 'skill')} at {index}",
        *(f"; {words}" for words in rest),
        wrap=False,
    )


def _document(written: PublishResult, index: Path) -> dict[str, object]:
    site = written.site
    return {
        "index": str(index),
        "digest": site.digest,
        "skills": [_skill(artifact, is_new=path in written.new) for path, artifact in site.artifacts.items()],
        "leftOut": [
            {"uri": report.place, "findings": [finding.to_json() for finding in report.findings]}
            for report in site.left_out
        ],
        "kept": written.kept,
        "removed": written.removed,
    }


def _skill(artifact: Artifact, *, is_new: bool) -> dict[str, object]:
    return {
        "name": artifact.entry.name,
        "type": artifact.type.value,
        "url": artifact.path,
        "digest": artifact.digest,
        "size": artifact.size,
        "isNew": is_new,
    }
