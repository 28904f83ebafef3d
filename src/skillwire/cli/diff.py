"""`skillwire diff`: what changed in a skill since you approved it."""

from typing import Annotated

import typer

from skillwire.cli.answer import Answer, answering
from skillwire.cli.differences import print_comparison
from skillwire.cli.failures import ExitCode
from skillwire.cli.hosting import DEFAULT_WAIT, Archives, At, Config, Frozen, Lock, Wait, Wanted, with_host
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.host import Host
from skillwire.host.comparison import Basis

__all__ = ["app", "print_comparison"]

app = new_app()


@app.command()
def diff(
    reference: Annotated[str, typer.Argument(metavar="REF", help="The skill, as it is listed.")],
    full: Annotated[
        bool, typer.Option("--full", help="Read and show all of a skill that was never approved, too.")
    ] = False,
    config: Config = None,
    at: At = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show how a skill differs from what you approved.

    Compares files, lines and frontmatter as the server shows them now with
    the bytes that were approved, which are kept in the cache; with --frozen,
    with what the lock pins. Nothing is loaded. Each line of a file stands
    behind its number, + or -, and a bar, so that no text can pass for
    anything else. Exits with 0 when nothing differs, with 1 when something
    does or nothing was ever approved.
    """
    with answering("diff", json=json, verbose=verbose) as answer:
        wanted = Wanted(
            config=config, targets=at or (), lock=lock, frozen=frozen, wait=wait, archives=archives
        )
        with_host(answer, wanted, lambda host: _diff(answer, host, reference, full=full))


async def _diff(answer: Answer, host: Host, reference: str, *, full: bool) -> None:
    comparison = await host.compare(reference, full=full)
    if answer.json:
        answer.document(comparison.to_json())
    else:
        print_comparison(answer, comparison)
        if comparison.basis is Basis.NOTHING and not full:
            answer.word("To read all of it: --full")
    if not comparison.is_same:
        answer.code = ExitCode.NO
