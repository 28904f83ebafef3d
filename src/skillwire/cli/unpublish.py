"""`skillwire unpublish`: remove skills from a catalog; their history stays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer

from skillwire.catalog import Publication
from skillwire.cli.catalog_names import (
    Actor,
    RemoteUrl,
    TokenFile,
    actor_name,
    catalog_url,
    open_any_catalog,
    print_changes,
    publication_json,
    shown_url,
    skill_named,
)
from skillwire.cli.command import Json, Verbose, command_output, new_app, plural

app = new_app()


@app.command()
def unpublish(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="Skills: paths such as acme/billing/refunds, URIs, or names that are unique.",
            show_default=False,
        ),
    ],
    catalog: RemoteUrl = "",
    token_file: TokenFile = None,
    actor: Actor = "",
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Remove skills from a catalog.

    All are removed, or none. Their history stays, and `skillwire rollback`
    publishes them again. Immutable versions stay published, unless they are
    named: acme/v1.2.0/refunds.
    """
    with command_output("unpublish", json=json, verbose=verbose) as output:
        url = catalog_url(catalog, may_be_remote=True)
        done = anyio.run(_unpublish, url, token_file, names, actor)
        if output.json:
            output.document({"catalog": shown_url(url), **publication_json(done)})
            return
        print_changes(output, done.changes)
        output.message(
            f"published revision {done.revision:,} without {plural(len(done.changes), 'skill')}", wrap=False
        )


async def _unpublish(url: str, token_file: Path | None, names: Sequence[str], actor: str) -> Publication:
    async with open_any_catalog(url, token_file, actor=actor) as catalog:
        return await catalog.unpublish(
            [await skill_named(catalog, name) for name in names], actor=actor_name(actor)
        )
