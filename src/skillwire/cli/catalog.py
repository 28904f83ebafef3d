"""`skillwire catalog`: figures, check, cleaning, backup, restoration and sources of a catalog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import anyio
import typer

from skillwire.catalog import Catalog, open_catalog
from skillwire.catalog.backup import BackupSummary
from skillwire.catalog.backup import backup as back_up
from skillwire.catalog.backup import restore as restore_backup
from skillwire.catalog.maintenance import Problem
from skillwire.catalog.maintenance import gc as collect
from skillwire.catalog.maintenance import stats as read_stats
from skillwire.catalog.maintenance import verify as check
from skillwire.cli.catalog_names import CatalogUrl, catalog_url, make_room, shown_url
from skillwire.cli.command import (
    STYLES,
    Json,
    Output,
    Verbose,
    command_output,
    new_app,
    plural,
    print_rows,
    progress,
)
from skillwire.cli.common import ExitCode
from skillwire.core import size_words

Result = TypeVar("Result")

BackupFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FILE", help="The file of the backup.", show_default=False)
]

app = new_app("catalog")


@app.callback()
def catalog() -> None:
    """Check, clean, back up, restore or sync a catalog."""


@app.command()
def stats(catalog: CatalogUrl = "", json: Json = False, verbose: Verbose = False) -> None:
    """Show how many skills, revisions and files a catalog has."""
    with command_output("catalog", json=json, verbose=verbose) as output:
        url = catalog_url(catalog)
        found = _run(url, read_stats)
        if output.json:
            _document(
                output,
                "stats",
                url,
                revision=found.revision,
                skills=found.skills,
                versions=found.pins,
                namespaces=found.namespaces,
                revisions=found.revisions,
                files=found.files,
                size=found.size,
                databaseSize=found.database_size,
            )
            return
        rows = {
            "catalog": shown_url(url),
            "revision": f"{found.revision:,}",
            "skills": f"{found.skills:,}, in {plural(found.namespaces, 'namespace')}",
            "immutable versions": f"{found.pins:,}",
            "files": f"{found.files:,}, {size_words(found.size)}, also of earlier revisions",
            "database": size_words(found.database_size),
        }
        print_rows(output, [((name, "bold"), value) for name, value in rows.items()])


@app.command()
def verify(catalog: CatalogUrl = "", json: Json = False, verbose: Verbose = False) -> None:
    """Check every row and the digest of every file, of all revisions.

    Nothing is changed. Exits with 1 when something is missing or damaged.
    """
    with command_output("catalog", json=json, verbose=verbose) as output:
        url = catalog_url(catalog)
        with progress(output, "checking files") as meter:
            found = _run(url, partial(check, progress=partial(meter.show, "checking files")))
        if not found.is_intact:
            output.code = ExitCode.NO
        problems = {"missing": found.missing, "damaged": found.damaged, "unreadable": found.unreadable}
        if output.json:
            _document(
                output,
                "verify",
                url,
                isIntact=found.is_intact,
                revision=found.revision,
                rows=found.rows,
                files=found.files,
                size=found.size,
                **{kind: [one._asdict() for one in several] for kind, several in problems.items()},
            )
            return
        for kind, several in problems.items():
            _print_problems(output, kind, several)
        verdict = "all intact" if found.is_intact else plural(sum(map(len, problems.values())), "problem")
        output.message(
            f"{plural(found.rows, 'state')} of skills and {plural(found.files, 'file')}, "
            f"{size_words(found.size)}: {verdict}"
        )


@app.command()
def gc(
    catalog: CatalogUrl = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be removed.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Remove files that no revision refers to.

    Such files are left by publications that were interrupted. Those of the last
    day stay. Others may publish meanwhile.
    """
    with command_output("catalog", json=json, verbose=verbose) as output:
        url = catalog_url(catalog)
        found = _run(url, partial(collect, dry_run=dry_run))
        if output.json:
            counts = {"removed": found.files, "size": found.size, "young": found.young}
            _document(output, "gc", url, isDryRun=dry_run, **counts)
            return
        done = "would remove" if dry_run else "removed"
        output.line(f"{done} {plural(found.files, 'file')}, {size_words(found.size)}")
        if found.young:
            output.message(f"unused files of the last day, which stay: {found.young:,}")


@app.command()
def backup(file: BackupFile, catalog: CatalogUrl = "", json: Json = False, verbose: Verbose = False) -> None:
    """Write a catalog with all revisions and files into one new file.

    The file is a tar archive, which does not depend on the database. Others may
    publish meanwhile.
    """
    with command_output("catalog", json=json, verbose=verbose) as output:
        url = catalog_url(catalog)
        with progress(output, "writing files") as meter:
            written = _run(url, partial(back_up, path=file, progress=partial(meter.show, "writing files")))
        _report_backup(output, "backup", url, file, written)


@app.command()
def restore(
    file: BackupFile,
    catalog: CatalogUrl = "",
    blobs: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Where the catalog stores files: folder, table or s3://BUCKET/PATH.",
            show_default=False,
        ),
    ] = "",
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Restore a backup as a new catalog, on any kind of database.

    All of it is checked before anything is written.
    """
    with command_output("catalog", json=json, verbose=verbose) as output:
        url = catalog_url(catalog)
        make_room(url)
        with progress(output, "storing files") as meter:
            show = partial(meter.show, "storing files")
            restored = anyio.run(partial(restore_backup, file, url, blobs=blobs, progress=show))
        _report_backup(output, "restore", url, file, restored)


@app.command()
def sync(
    catalog: CatalogUrl = "",
    add: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Add a source of this name, with --from and --every.", show_default=False
        ),
    ] = "",
    location: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="LOCATION",
            help="With --add: a folder, the URL of a git repository (https://HOST/NAME.git#REF:FOLDER), the "
            "path or URL of an archive (.tar.gz or .zip), or the URL of a site that publishes skills.",
            show_default=False,
        ),
    ] = "",
    every: Annotated[
        str, typer.Option(metavar="TIME", help="With --add: how often it is synced, like 10m, 1h or 1d.")
    ] = "1h",
    prefix: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="With --add: prefix every skill's path with this one.", show_default=False
        ),
    ] = "",
    remove: Annotated[
        str,
        typer.Option(metavar="NAME", help="Remove a source; its skills stay published.", show_default=False),
    ] = "",
    run: Annotated[bool, typer.Option("--run", help="Sync the sources that are due, once.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Publish skills of other places regularly: list, add, remove or sync sources.

    Without an option it lists the sources. With --run it fetches those that are
    due and publishes what changed; skills that a source no longer has are
    unpublished. Exits with 1 when one cannot be synced; its skills stay then.
    """
    with command_output("catalog", json=json, verbose=verbose) as output:
        # To fetch from repositories and sites takes modules that the other commands do not need.
        module = import_module("skillwire.cli.catalog_sync")
        request = module.sources_request(
            add=add, location=location, every=every, prefix=prefix, remove=remove, run=run
        )
        url = catalog_url(catalog)
        found = _run(url, request.perform)
        if found.has_failed:
            output.code = ExitCode.NO
        if output.json:
            _document(output, "sync", url, **found.to_json())
        else:
            found.print(output)


def _run(url: str, act: Callable[[Catalog], Awaitable[Result]]) -> Result:
    """Open a catalog, and return what is done with it."""

    async def run() -> Result:
        async with open_catalog(url) as catalog:
            return await act(catalog)

    return anyio.run(run)


def _document(output: Output, action: str, url: str, **members: object) -> None:
    output.document({"action": action, "catalog": shown_url(url), **members})


def _print_problems(output: Output, kind: str, problems: tuple[Problem, ...]) -> None:
    for problem in problems:
        output.line((kind, STYLES["error"]), f"  {problem.name}  {problem.reason}", wrap=False)


def _report_backup(output: Output, action: str, url: str, file: Path, found: BackupSummary) -> None:
    if output.json:
        _document(output, action, url, file=str(file), **asdict(found))
        return
    words = f"wrote {file}" if action == "backup" else f"restored {shown_url(url)}"
    output.message(
        f"{words}: revision {found.revision:,}, {plural(found.rows, 'state')} of skills, "
        f"{plural(found.files, 'file')}, {size_words(found.size)}",
        wrap=False,
    )
