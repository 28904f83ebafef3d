"""`skillwire diff`: show what changed in a skill since it was approved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skillwire.cli.command import Json, Output, Verbose, command_output, new_app
from skillwire.cli.common import ExitCode
from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    Archives,
    At,
    Config,
    Frozen,
    HostRequest,
    Lock,
    Wait,
    run_with_host,
)
from skillwire.cli.render import print_comparison
from skillwire.host import Basis

if TYPE_CHECKING:
    from skillwire.host import Host


__all__ = ["app", "print_comparison"]

app = new_app()


@app.command()
def diff(
    reference: Annotated[str, typer.Argument(metavar="REF", help="The skill, as it is listed.")],
    full: Annotated[
        bool, typer.Option("--full", help="Also read and show all of a skill that was never approved.")
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

    Compares files, lines and frontmatter as the server sends them now with
    the approved bytes in the cache, or with --frozen with what the lock
    pins. Nothing is loaded. Each line of a file is prefixed with its number,
    + or -, and a bar, so that no text in a file can pass for output of this
    command. Exits with 0 when nothing differs, and with 1 when something
    does or nothing was ever approved.
    """
    with command_output("diff", json=json, verbose=verbose) as output:
        wanted = HostRequest.for_skill(
            reference, config, at, lock, frozen=frozen, wait=wait, archives=archives
        )
        run_with_host(output, wanted, lambda host: _diff(output, host, wanted, full=full))


async def _diff(output: Output, host: Host, wanted: HostRequest, *, full: bool) -> None:
    comparison = await host.compare(wanted.reference, full=full)
    if output.json:
        output.document(comparison.to_json())
    else:
        print_comparison(output, comparison, wanted.options)
        if comparison.basis is Basis.NOTHING and not full:
            output.message("Show all of it with --full")
    if not comparison.is_same:
        output.code = ExitCode.NO
