"""`skillwire publish`: publish folders of skills into a catalog, or as a static web site."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import anyio
import typer

from skillwire.catalog import (
    Catalog,
    DraftSet,
    NoCatalogError,
    Publication,
    RemoteCatalog,
    is_version,
    open_catalog,
    open_drafts,
)
from skillwire.cli.catalog_names import (
    Actor,
    RemoteUrl,
    TokenFile,
    actor_name,
    catalog_url,
    change_json,
    make_room,
    open_any_catalog,
    print_changes,
    shown_url,
)
from skillwire.cli.command import (
    STYLES,
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
from skillwire.cli.folders import FindingCounts, NamedFolder, checked_prefix, print_findings
from skillwire.cli.site import not_published, report_site, require_complete, write_site
from skillwire.cli.validate import Review, review_folders
from skillwire.core import quoted

app = new_app()


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """What is published into a catalog, and how."""

    folders: Sequence[NamedFolder]
    url: str
    token_file: Path | None
    prefix: str
    version: str
    blobs: str
    actor: str
    note: str
    follow_links: bool
    is_dry_run: bool


@app.command()
def publish(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders of skills.", show_default=False)
    ],
    catalog: RemoteUrl = "",
    token_file: TokenFile = None,
    prefix: Annotated[
        str, typer.Option(metavar="PATH", help="Prefix every skill's path with this one.", show_default=False)
    ] = "",
    version: Annotated[
        str,
        typer.Option(
            metavar="X.Y.Z",
            help="Also publish immutable versions with this number, unless a skill's metadata has one.",
            show_default=False,
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would change, and write nothing.")
    ] = False,
    note: Annotated[
        str, typer.Option(metavar="TEXT", help="A text for the history.", show_default=False)
    ] = "",
    actor: Actor = "",
    blobs: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Where a new catalog stores files: folder, table or s3://BUCKET/PATH.",
            show_default=False,
        ),
    ] = "",
    static: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Write a web site into this folder instead.", show_default=False),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="With --static: remove artifacts of earlier sites that this one does not have."
        ),
    ] = False,
    follow_links: FollowLinks = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Publish folders of skills into a catalog, or as a web site.

    All skills are validated first, and when one has errors, or another
    publisher has changed one at the same time, nothing is written. Otherwise
    all changes are one revision. Skills of the catalog that are not in the
    folders stay. A catalog that does not exist is created. With https://HOST
    it is that of a server, whose rules decide what you may publish.

    A skill with a semantic version in metadata.version is also published as an
    immutable version, such as skill://acme/v1.2.0/refunds/SKILL.md.

    `skillwire search WORDS --catalog default` searches your own catalog, and
    `skillwire serve --catalog default` serves it.

    With --static it writes a web site: OUT is the root of a web server, and
    the site goes to .well-known/agent-skills in it. No two skills may share a
    name. Other files are never touched.
    """
    with command_output("publish", json=json, verbose=verbose) as output:
        for_catalog = {
            "--catalog": catalog,
            "--token-file": token_file,
            "--prefix": prefix,
            "--version": version,
            "--dry-run": dry_run,
            "--note": note,
            "--as": actor,
            "--blobs": blobs,
        }
        given = next((option for option, value in for_catalog.items() if value), "")
        if static is not None and given:
            raise MisuseError(f"{given} is for catalogs, and --static writes a web site", fix="leave out one")
        if static is None and prune:
            raise MisuseError("--prune is for web sites", fix="remove skills with `skillwire unpublish`")
        named = [NamedFolder.named(folder) for folder in folders]
        if static is not None:
            with progress(output, "checking skills") as meter:
                _require_valid(output, named, review_folders(named, meter, follow_links=follow_links))
                write = partial(write_site, output, named, static, meter)
                written = anyio.run(partial(write, follow_links=follow_links, prune=prune))
            report_site(output, written, static)
            return
        wanted = PublishRequest(
            named,
            catalog_url(catalog, may_be_remote=True),
            token_file,
            checked_prefix(prefix),
            _checked_version(version),
            blobs,
            actor,
            note,
            follow_links,
            dry_run,
        )
        with progress(output, "checking skills") as meter:
            _require_valid(output, named, review_folders(named, meter, follow_links=follow_links))
            publication, drafts = anyio.run(_publish, output, wanted, meter)
        _report(output, wanted, publication, drafts)


def _checked_version(version: str) -> str:
    if version and not is_version(version):
        raise MisuseError(f"{quoted(version)} is not a version", fix="write it like 1.2.0 or 2.0.0-beta.1")
    return version


def _require_valid(output: Output, named: Sequence[NamedFolder], review: Review) -> None:
    """Raise when any skill has errors (DISC-14)."""
    places = [(place.path, place.findings) for place in (*review.skills, *review.folders)]
    errors = [finding for _, findings in places for finding in findings if finding.is_error]
    for path, findings in places if errors else ():
        print_findings(output, path, findings, to_stderr=True)
    if errors:
        raise not_published(errors)
    warnings = FindingCounts.of(review.findings).warnings
    if warnings:
        command = shlex.join(("skillwire", "validate", *(str(folder.typed) for folder in named)))
        output.message(("warning:", STYLES["warning"]), f" {plural(warnings, 'warning')}; see `{command}`")


async def _publish(
    output: Output, wanted: PublishRequest, meter: ProgressMeter
) -> tuple[Publication, DraftSet]:
    async with AsyncExitStack() as stack:
        drafts = await stack.enter_async_context(
            open_drafts(
                [folder.typed for folder in wanted.folders],
                prefix=wanted.prefix,
                version=wanted.version,
                follow_links=wanted.follow_links,
            )
        )
        require_complete(output, drafts.broken)
        if not wanted.is_dry_run:
            make_room(wanted.url)
        catalog = await _open(stack, wanted)
        plan = await catalog.plan(drafts.drafts)
        if wanted.is_dry_run:
            return Publication(await catalog.revision(), plan.changes), drafts
        publication = await catalog.publish(
            plan,
            actor=actor_name(wanted.actor),
            note=wanted.note,
            progress=partial(meter.show, "storing files"),
        )
        return publication, drafts


async def _open(stack: AsyncExitStack, wanted: PublishRequest) -> Catalog | RemoteCatalog:
    """Open the catalog; for a dry run without one, an empty catalog in a temporary folder."""
    create = not wanted.is_dry_run
    try:
        return await stack.enter_async_context(
            open_any_catalog(
                wanted.url, wanted.token_file, actor=wanted.actor, create=create, blobs=wanted.blobs
            )
        )
    except NoCatalogError:
        if create:
            raise
        folder = stack.enter_context(TemporaryDirectory())
        return await stack.enter_async_context(open_catalog(f"sqlite:///{folder}/empty.db", create=True))


def _report(output: Output, wanted: PublishRequest, publication: Publication, drafts: DraftSet) -> None:
    changed = {change.uri.text for change in publication.changes}
    same = [draft.entry.uri for draft in drafts.drafts if draft.entry.uri.text not in changed]
    url = shown_url(wanted.url)
    if output.json:
        output.document(
            {
                "catalog": url,
                "revision": publication.revision,
                "isDryRun": wanted.is_dry_run,
                "changes": [change_json(change) for change in publication.changes],
                "unchanged": [uri.text for uri in same],
            }
        )
        return
    print_changes(output, publication.changes)
    for uri in same if output.verbose else ():
        output.line(("unchanged", "dim"), f"  {uri}", wrap=False)
    kinds = [change.kind.value for change in publication.changes if not change.is_pin]
    counts = [f"{kinds.count(kind):,} {kind}" for kind in dict.fromkeys(kinds)]
    counts += [f"{len(same):,} unchanged"] if same else []
    versions = len(publication.changes) - len(kinds)
    counts += [plural(versions, "immutable version")] if versions else []
    if wanted.is_dry_run:
        words = f"nothing was written to {url}, at revision {publication.revision:,}"
    elif publication.changes:
        words = f"published revision {publication.revision:,} of {url}"
    else:
        words = f"nothing changed in {url}, at revision {publication.revision:,}"
    output.message(f"{words}: {', '.join(counts)}", wrap=False)
