"""`skillwire search`: skills by words, of all origins."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from skillwire.cli.answer import Answer, Part, answering, plural
from skillwire.cli.failures import ExitCode
from skillwire.cli.hosting import DEFAULT_WAIT, Archives, Config, Frozen, Lock, Wait, Wanted, with_host
from skillwire.cli.list import skill_json
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.remembering import remember_references
from skillwire.cli.states import reason_of, state_of
from skillwire.cli.tables import print_rows
from skillwire.cli.targets import TargetCommand, Targets, command_in
from skillwire.host import Host
from skillwire.host.search import MAX_LIMIT, Match, SearchPage

DEFAULT_LIMIT = 20

app = new_app()


@app.command(cls=TargetCommand)
def search(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words to look for.", show_default=False)],
    targets: Targets = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=MAX_LIMIT, help="How many to show.")
    ] = DEFAULT_LIMIT,
    cursor: Annotated[
        str,
        typer.Option("--cursor", metavar="CURSOR", help="Go on where a search ended.", show_default=False),
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Show all that is found.")] = False,
    config: Config = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find skills by words in their names and descriptions.

    Also finds skills that are shown to people only, or turned off. Exits with
    1 when nothing is found.
    """
    with answering("search", json=json, verbose=verbose) as answer:
        wanted = Wanted(config, targets or (), command_in(context), lock, frozen, wait, archives)

        async def work(host: Host) -> None:
            page = await _found(host, query, limit, cursor, everything=everything)
            _print_absent(answer, host)
            _answer(answer, host, page)
            if not wanted.targets and not wanted.command:
                remember_references(host.view.skills)

        with_host(answer, wanted, work)


async def _found(host: Host, query: str, limit: int, cursor: str, *, everything: bool) -> SearchPage:
    """Return one page, or all pages from there on as one.

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


def _print_absent(answer: Answer, host: Host) -> None:
    """Say whose skills could not be looked through."""
    for status in host.view.servers:
        if status.state in ("failed", "waiting"):
            reason = reason_of(status.problem) or "no answer yet; give it more time with --wait"
            answer.word((status.origin.label, "bold"), ": not searched: ", (reason, "red"))
    for problem in host.problems:
        answer.word((problem.subject, "bold"), f": {reason_of(problem) or problem.sentence}")


def _answer(answer: Answer, host: Host, page: SearchPage) -> None:
    if answer.json:
        answer.document(
            {
                "query": page.query,
                "total": page.total,
                "cursor": page.cursor,
                "matches": [
                    {
                        "score": round(match.score, 6),
                        "snippet": match.snippet,
                        **skill_json(host, match.skill),
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
        print_rows(answer, _rows(host, page.matches))
        _print_summary(answer, page)
    if not page.total:
        answer.code = ExitCode.NO


def _rows(host: Host, matches: Sequence[Match]) -> Iterator[tuple[Part, Part, Part]]:
    for match in matches:
        yield (match.skill.reference, "bold"), state_of(host, match.skill), match.snippet


def _print_summary(answer: Answer, page: SearchPage) -> None:
    if not page.total:
        answer.word(f"no skill matches {page.query}")
        return
    words = f"{plural(page.total, 'skill')} found"
    if page.cursor is not None:
        words += f"; more with --cursor {page.cursor}, or all with --all"
    answer.word(words)
