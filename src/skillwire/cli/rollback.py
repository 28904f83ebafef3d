"""`skillwire rollback`: publish an earlier state of a skill again."""

from __future__ import annotations

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
from skillwire.cli.command import Json, MisuseError, Verbose, command_output, new_app
from skillwire.core import SkillUri, quoted

# A revision is a number of 63 bits.
_LONGEST_NUMBER = 18

app = new_app()


@app.command()
def rollback(
    version: Annotated[
        str,
        typer.Argument(
            metavar="NAME@REV", help="A skill, and the revision of its earlier state.", show_default=False
        ),
    ],
    catalog: RemoteUrl = "",
    token_file: TokenFile = None,
    actor: Actor = "",
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Publish an earlier state of a skill again.

    The state that it had at revision REV becomes a new revision; the ones
    between stay in the history. NAME is a path such as acme/billing/refunds, a
    URI, or a name that is unique. A skill that was removed comes back.
    `skillwire history NAME` lists the revisions.
    """
    with command_output("rollback", json=json, verbose=verbose) as output:
        name, _, number = version.rpartition("@")
        if not name or not number.isascii() or not number.isdecimal() or len(number) > _LONGEST_NUMBER:
            raise MisuseError(
                f"{quoted(version)} names no revision", fix="write it like acme/billing/refunds@12"
            )
        url = catalog_url(catalog, may_be_remote=True)
        uri, done = anyio.run(_roll_back, url, token_file, name, int(number), actor)
        if output.json:
            output.document({"catalog": shown_url(url), "uri": uri.text, **publication_json(done)})
            return
        print_changes(output, done.changes)
        words = f"published revision {done.revision:,}" if done.changes else "nothing changed"
        output.message(f"{words}: {uri} is as in revision {number}", wrap=False)


async def _roll_back(
    url: str, token_file: Path | None, name: str, revision: int, actor: str
) -> tuple[SkillUri, Publication]:
    async with open_any_catalog(url, token_file, actor=actor) as catalog:
        uri = await skill_named(catalog, name)
        return uri, await catalog.rollback(uri, revision, actor=actor_name(actor))
