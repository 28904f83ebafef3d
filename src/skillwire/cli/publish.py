"""`skillwire publish`: folders of skills as a web site, for any web server to serve."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
import typer

from skillwire.cli.answer import STYLES, Answer, answering, plural
from skillwire.cli.failures import BrokenSkillError, MisuseError
from skillwire.cli.findings import Tally, print_findings
from skillwire.cli.folders import Folder
from skillwire.cli.options import FollowLinks, Json, Verbose, new_app
from skillwire.cli.progress import Meter, progress
from skillwire.cli.validate import Review, review_folders
from skillwire.core.finding import Finding
from skillwire.server.wellknown.folder import INDEX, SiteFolder
from skillwire.server.wellknown.site import Artifact, PublishedSite, Publisher
from skillwire.sources import Catalog, DirectorySource, Report

app = new_app()


@dataclass(frozen=True, slots=True)
class Written:
    """What came of publishing: which artifacts are new, and how many of earlier times stay or went."""

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
        bool, typer.Option("--prune", help="Remove what earlier sites had and this one has not.")
    ] = False,
    follow_links: FollowLinks = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Publish folders of skills as a web site.

    OUT is the root of a web server; the site goes to .well-known/agent-skills
    in it. All skills are validated first, and when one has errors, or two
    share a name, nothing is written. Files of others are never touched.
    """
    with answering("publish", json=json, verbose=verbose) as answer:
        if static is None:
            raise MisuseError("there is no place to publish to", fix="add --static OUT")
        named = [Folder.named(folder) for folder in folders]
        with progress(answer, "checking skills") as meter:
            _require_good(answer, review_folders(named, meter, follow_links=follow_links))
            written = anyio.run(partial(_publish, answer, named, static, meter, follow_links, prune))
        _tell(answer, written, static)


async def _publish(
    answer: Answer, folders: Sequence[Folder], out: Path, meter: Meter, follow_links: bool, prune: bool
) -> Written:
    publisher = Publisher()
    sources = [DirectorySource(folder.typed, watch=False, follow_links=follow_links) for folder in folders]
    async with Catalog(sources) as catalog:
        site = await publisher.site(catalog)
        _require_whole(answer, site)
        new: set[str] = set()
        run = anyio.to_thread.run_sync
        with SiteFolder(out) as folder:
            for done, (path, artifact) in enumerate(site.artifacts.items()):
                meter.show("writing", done, len(site.artifacts))
                if not await run(folder.has, path):
                    await run(folder.add, path, await publisher.read(artifact, catalog))
                    new.add(path)
            await run(folder.publish, site.index)
            others = await run(folder.others, site.artifacts)
            for name in others if prune else ():
                await run(folder.remove, name)
            kept, removed = (0, len(others)) if prune else (len(others), 0)
            return Written(site, frozenset(new), kept, removed, folder.is_exposed)


def _require_good(answer: Answer, review: Review) -> None:
    """Refuse everything when any skill has errors (DISC-14)."""
    places = [(place.path, place.findings) for place in (*review.skills, *review.folders)]
    errors = [finding for _, findings in places for finding in findings if finding.is_error]
    for path, findings in places if errors else ():
        print_findings(answer, path, findings, aside=True)
    if errors:
        raise _not_published(errors)
    warnings = Tally.of(review.findings).warnings
    if warnings:
        answer.word(
            ("warning:", STYLES["warning"]), f" {plural(warnings, 'warning')}; see `skillwire validate`"
        )


def _require_whole(answer: Answer, site: PublishedSite) -> None:
    """Refuse everything when the site would lack a skill that should be there."""
    held_back = [report for report in site.snapshot.reports if report.uri is None]
    reports: list[Report] = [*held_back, *site.left_out, *site.failed]
    errors = [
        finding
        for report in reports
        for finding in report.findings
        if finding.is_error or report in site.failed
    ]
    for report in reports:
        print_findings(answer, report.place, report.findings, aside=True)
    if errors:
        raise _not_published(errors)


def _not_published(errors: Sequence[Finding]) -> BrokenSkillError:
    return BrokenSkillError(
        f"there is something wrong with what is to be published ({plural(len(errors), 'error')}), "
        "so nothing is written",
        findings=errors,
        fix="mend it and try again",
    )


def _tell(answer: Answer, written: Written, out: Path) -> None:
    site = written.site
    index = SiteFolder(out).home / INDEX
    if written.is_exposed:
        words = f" every user of this machine may change {index.parent}"
        answer.word(("warning:", STYLES["warning"]), words, wrap=False)
    if answer.json:
        answer.document(_document(written, index))
        return
    for path, artifact in site.artifacts.items():
        state = "new" if path in written.new else "same"
        answer.line(f"{artifact.entry.name}  {artifact.type}  {state}  {artifact.digest}", wrap=False)
    rest = [f"{written.kept:,} of earlier sites kept"] if written.kept else []
    rest += [f"{written.removed:,} of earlier sites removed"] if written.removed else []
    answer.word(
        f"published {plural(len(site.artifacts), 'skill')} at {index}",
        *(f"; {words}" for words in rest),
        wrap=False,
    )


def _document(written: Written, index: Path) -> dict[str, object]:
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
