"""`skillwire history`: the revisions of a catalog, or of one of its skills."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from skillwire.catalog import FOREVER, Revision, SkillVersion
from skillwire.catalog.catalog import MAX_LIMIT
from skillwire.cli.catalog_names import (
    RemoteUrl,
    TokenFile,
    catalog_url,
    open_any_catalog,
    shown_url,
    skill_named,
    time_text,
)
from skillwire.cli.command import Json, Part, Verbose, command_output, new_app, print_rows
from skillwire.core import SkillUri

DEFAULT_LIMIT = 100

app = new_app()


@app.command()
def history(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A skill: its path such as acme/billing/refunds, its URI, or its name if that is unique.",
            show_default=False,
        ),
    ] = "",
    catalog: RemoteUrl = "",
    token_file: TokenFile = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=MAX_LIMIT, help="How many to show.")
    ] = DEFAULT_LIMIT,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show the revisions of a catalog, or of one of its skills.

    The newest comes first. For a skill, each line has the digest of its entry
    at that revision. The path of an immutable version, such as
    acme/v1.2.0/refunds, works too.
    """
    with command_output("history", json=json, verbose=verbose) as output:
        url = catalog_url(catalog, may_be_remote=True)
        uri, found = anyio.run(_read, url, token_file, name, limit)
        revisions = [_to_json(one) for one in found]
        newest = found[0] if found else None
        # If the newest state is not current, the skill was removed.
        removed = newest.row.until if isinstance(newest, SkillVersion) and not newest.row.is_current else None
        if output.json:
            skill = None if uri is None else uri.text
            output.document(
                {"catalog": shown_url(url), "uri": skill, "removedIn": removed, "revisions": revisions}
            )
            return
        print_rows(output, [_row(one) for one in revisions], right=(0,))
        if removed is not None:
            output.message(f"{uri} is not published any more: revision {removed:,} removed it", wrap=False)
        elif not revisions:
            output.message(f"nothing was ever published in {shown_url(url)}", wrap=False)
        if len(revisions) == limit:
            output.message("there may be more; show them with --limit")


async def _read(
    url: str, token_file: Path | None, name: str, limit: int
) -> tuple[SkillUri | None, Sequence[Revision] | Sequence[SkillVersion]]:
    async with open_any_catalog(url, token_file) as catalog:
        if not name:
            return None, await catalog.history(limit=limit)
        uri = await skill_named(catalog, name)
        return uri, await catalog.history(uri, limit=limit)


def _to_json(one: Revision | SkillVersion) -> dict[str, Any]:
    made = one.made if isinstance(one, SkillVersion) else one
    found: dict[str, Any] = {
        "revision": made.number,
        "at": time_text(made.at),
        "actor": made.actor,
        "action": made.action,
        "note": made.note,
    }
    if isinstance(one, SkillVersion):
        found["digest"] = one.row.digest
        found["version"] = one.row.version
        found["until"] = None if one.row.until == FOREVER else one.row.until
    return found


def _row(one: dict[str, Any]) -> list[Part]:
    digest = [one["digest"]] if "digest" in one else []
    return [(str(one["revision"]), "bold"), one["at"], one["action"], one["actor"], *digest, one["note"]]
