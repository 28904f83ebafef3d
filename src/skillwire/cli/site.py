"""The static web site that `skillwire publish --static` writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

import skillwire.server
from skillwire.cli.command import STYLES, BrokenSkillError, Output, ProgressMeter, plural
from skillwire.cli.folders import NamedFolder, print_findings
from skillwire.core import Finding
from skillwire.sources.combined import CombinedSource
from skillwire.sources.directory.source import DirectorySource
from skillwire.sources.snapshot import Report

if TYPE_CHECKING:
    from skillwire.server import Artifact, PublishedSite


@dataclass(frozen=True, slots=True)
class WrittenSite:
    """A site that was written: its content, its new artifacts, and how many earlier ones were kept."""

    site: PublishedSite
    new: frozenset[str]
    kept: int
    removed: int
    is_exposed: bool


async def write_site(
    output: Output,
    folders: Sequence[NamedFolder],
    out: Path,
    meter: ProgressMeter,
    *,
    follow_links: bool,
    prune: bool,
) -> WrittenSite:
    """Write a site with the skills of some folders; with `prune`, remove artifacts of earlier ones.

    Raises:
        BrokenSkillError: A skill cannot be published; nothing is written.
    """
    publisher = skillwire.server.Publisher()
    sources = [DirectorySource(folder.typed, watch=False, follow_links=follow_links) for folder in folders]
    async with CombinedSource(sources) as catalog:
        site = await publisher.site(catalog)
        _require_whole(output, site)
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
            return WrittenSite(site, frozenset(new), kept, removed, folder.is_exposed)


def _require_whole(output: Output, site: PublishedSite) -> None:
    """Raise when the site would lack a skill."""
    held_back = [report for report in site.snapshot.reports if report.uri is None]
    reports: list[Report] = [*held_back, *site.left_out, *site.failed]
    require_complete(output, reports, failed=site.failed)


def require_complete(output: Output, reports: Sequence[Report], *, failed: Collection[Report] = ()) -> None:
    """Print the findings of reports.

    Raises:
        BrokenSkillError: One of them is an error, so that a skill cannot be published.
    """
    errors = [
        finding for report in reports for finding in report.findings if finding.is_error or report in failed
    ]
    for report in reports:
        print_findings(output, report.place, report.findings, to_stderr=True)
    if errors:
        raise not_published(errors)


def not_published(errors: Sequence[Finding]) -> BrokenSkillError:
    """Return the error for skills that have errors."""
    return BrokenSkillError(
        f"the skills to publish have {plural(len(errors), 'error')}, so nothing is written",
        findings=errors,
        fix="correct the errors and try again",
    )


def report_site(output: Output, written: WrittenSite, out: Path) -> None:
    """Print what a site has."""
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


def _document(written: WrittenSite, index: Path) -> dict[str, object]:
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
