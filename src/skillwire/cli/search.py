"""`skillwire search`: find skills of all origins, or of a catalog, by words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from skillwire.cli.command import (
    Json,
    MisuseError,
    Output,
    Part,
    TargetCommand,
    Targets,
    Verbose,
    command_in,
    command_output,
    new_app,
    plural,
    print_rows,
)
from skillwire.cli.common import ExitCode
from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    Archives,
    Config,
    Frozen,
    HostRequest,
    Lock,
    Wait,
    run_with_host,
)
from skillwire.cli.recent import remember_references
from skillwire.cli.states import listed_skill_json, print_nothing_configured, reason_of, state_of
from skillwire.host import MAX_LIMIT, Match, SearchPage

if TYPE_CHECKING:
    from skillwire.host import Host


DEFAULT_LIMIT = 20

app = new_app()


@app.command(cls=TargetCommand)
def search(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words to search for.", show_default=False)],
    targets: Targets = None,
    catalog: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Search a catalog instead: sqlite:///FILE, postgresql://USER@HOST/DATABASE, or default, "
            "the one that `skillwire publish` uses.",
            show_default=False,
        ),
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=MAX_LIMIT, help="How many to show.")
    ] = DEFAULT_LIMIT,
    cursor: Annotated[
        str,
        typer.Option(
            "--cursor", metavar="CURSOR", help="Continue where an earlier search ended.", show_default=False
        ),
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Show all matches.")] = False,
    config: Config = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find skills by words in names, tags, paths and descriptions.

    Of local skills, the instructions are searched too. Beside each skill it
    says which of these have the words. Also finds skills that are hidden from
    models, or turned off. Exits with 1 when nothing is found.
    """
    with command_output("search", json=json, verbose=verbose) as output:
        if catalog:
            if targets or command_in(context) or config or lock or frozen or archives:
                raise MisuseError("a catalog is searched alone", fix="leave out what is for servers")
            # A server's search takes memory and time that others do not need.
            module = import_module("skillwire.cli.catalog_search")
            module.search_catalog(output, catalog, query, limit, cursor, everything=everything)
            return
        wanted = HostRequest(config, targets or (), command_in(context), lock, frozen, wait, archives)

        async def work(host: Host) -> None:
            page = await _search(host, query, limit, cursor, everything=everything)
            _print_unsearched(output, host)
            _report(output, host, page)
            is_typed = bool(wanted.targets or wanted.command)
            remember_references(host.view.skills, is_typed=is_typed)

        run_with_host(output, wanted, work)


async def _search(host: Host, query: str, limit: int, cursor: str, *, everything: bool) -> SearchPage:
    """Return one page, or with `everything` all remaining pages as one.

    Raises:
        InvalidCursorError: The cursor is not from this search, or its results changed.
    """
    size = MAX_LIMIT if everything else limit
    page = await host.search(query, limit=size, cursor=cursor or None, everything=True)
    matches: list[Match] = [*page.matches]
    while everything and page.cursor is not None:
        page = await host.search(query, limit=size, cursor=page.cursor, everything=True)
        matches += page.matches
    return SearchPage(page.query, tuple(matches), page.total, page.cursor)


def _print_unsearched(output: Output, host: Host) -> None:
    """Print which servers could not be searched."""
    for status in host.view.servers:
        if status.state in ("failed", "waiting"):
            reason = reason_of(status.problem) or "no answer yet; allow more time with --wait"
            output.message((status.origin.label, "bold"), ": not searched: ", (reason, "red"))
    for problem in host.problems:
        output.message((problem.subject, "bold"), f": {reason_of(problem) or problem.sentence}")


def _report(output: Output, host: Host, page: SearchPage) -> None:
    if output.json:
        output.document(
            {
                "query": page.query,
                "total": page.total,
                "cursor": page.cursor,
                "matches": [
                    {
                        "score": round(match.score, 6),
                        "snippet": match.snippet,
                        "matchedIn": list(match.matched_in),
                        **listed_skill_json(host, match.skill),
                    }
                    for match in page.matches
                ],
                "notSearched": [
                    status.origin.label
                    for status in host.view.servers
                    if status.state in ("failed", "waiting")
                ],
            }
        )
    else:
        print_rows(output, _rows(host, page.matches))
        _print_summary(output, host, page)
    if not page.total:
        output.code = ExitCode.NO


def _rows(host: Host, matches: Sequence[Match]) -> Iterator[tuple[Part, Part, Part, Part]]:
    for match in matches:
        fields = ", ".join(match.matched_in), "dim"
        yield (match.skill.reference, "bold"), state_of(host, match.skill), fields, match.snippet


def _print_summary(output: Output, host: Host, page: SearchPage) -> None:
    if not page.total:
        output.message(f"no skill matches {page.query}")
        if not (host.view.skills or host.view.servers or host.problems):
            print_nothing_configured(output)
        return
    words = f"{plural(page.total, 'skill')} found"
    if page.cursor is not None:
        words += f"; more with --cursor {page.cursor}, or all with --all"
    output.message(words)
