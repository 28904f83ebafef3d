"""`skillwire load`: print exactly what the model would receive, after the same approval questions."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from skillwire.cli.command import Json, MisuseError, Output, Verbose, command_output, new_app
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
from skillwire.cli.prompt import TerminalAsk
from skillwire.cli.states import print_refusal
from skillwire.core import quoted
from skillwire.host import (
    ApprovalDeniedError,
    ArgumentsNeededError,
    DynamicDeclinedError,
    InvalidArgumentsError,
    LoadedSkill,
    declared_arguments,
)

if TYPE_CHECKING:
    from skillwire.host import Host


app = new_app()


@app.command()
def load(
    reference: Annotated[str, typer.Argument(metavar="REF", help="The skill, as it is listed.")],
    page: Annotated[
        int | None,
        typer.Option("--page", min=1, metavar="N", help="Only this page of a long text.", show_default=False),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            metavar="NAME=VALUE",
            help="An argument for a skill that takes arguments. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    at: At = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print what the model would receive of a skill.

    If your approval is needed, you are asked on the terminal; without a
    terminal the command fails and explains why. Nothing is sent to a model.
    Arguments are sent to the skill's server after you have seen them; missing
    required arguments are asked for in the same way.
    """
    with command_output("load", json=json, verbose=verbose) as output:
        given = _arguments(arg or ())
        wanted = HostRequest.for_skill(
            reference, config, at, lock, frozen=frozen, wait=wait, archives=archives
        )
        asker = TerminalAsk.find()

        async def work(host: Host) -> None:
            if asker is not None:
                asker.host, asker.options = host, wanted.options
            await _load(output, host, reference, page, given, asker)

        run_with_host(output, wanted, work, approve=asker)


def _arguments(texts: Sequence[str]) -> dict[str, str]:
    """Read `NAME=VALUE` pairs.

    Raises:
        MisuseError: One is not such a pair, or a name is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not name or not sign:
            raise MisuseError(f"--arg: {quoted(text)} is not an argument", fix="write --arg NAME=VALUE")
        if name in found:
            raise MisuseError(f"--arg: {quoted(name)} is given twice", fix="give each argument once")
        found[name] = value
    return found


async def _first(
    host: Host, reference: str, page: int, given: dict[str, str], asker: TerminalAsk | None
) -> LoadedSkill:
    """Load a skill, and ask on the terminal for missing required arguments."""
    try:
        return await host.load(reference, page=page, arguments=given or None, actor="user")
    except ArgumentsNeededError as error:
        if asker is None or not error.arguments:
            raise ArgumentsNeededError(
                str(error), reference=error.reference, fix="add --arg NAME=VALUE for each of them"
            ) from error
        asked = await asker.ask_values(error.reference, error.arguments)
        if asked is None:
            raise
    return await host.load(reference, page=page, arguments={**given, **asked}, actor="user")


async def _load(
    output: Output,
    host: Host,
    reference: str,
    page: int | None,
    given: dict[str, str],
    asker: TerminalAsk | None,
) -> None:
    try:
        loaded = [await _first(host, reference, page or 1, given, asker)]
    except ApprovalDeniedError as error:
        fix = "nothing was loaded, and your answer is not stored; run the command again to be asked again"
        raise ApprovalDeniedError("you did not approve it", reference=error.reference, fix=fix) from error
    except DynamicDeclinedError as error:
        if asker is None:
            error.fix = "run this on a terminal; you are asked at every load"
        raise
    except InvalidArgumentsError as error:
        error.fix = await _fix_for_arguments(host, reference, given)
        raise
    for problem in host.problems:
        print_refusal(output, problem)
    if page is None:
        for number in range(2, loaded[0].pages + 1):
            loaded.append(await host.load(reference, page=number, actor="user"))
    if output.json:
        output.document(_document(loaded))
        return
    sys.stdout.flush()
    for part in loaded:
        sys.stdout.buffer.write(part.text.encode("utf-8", "replace") + b"\n")
    if page is not None and loaded[0].pages > 1:
        output.message(f"page {page} of {loaded[0].pages:,}")


async def _fix_for_arguments(host: Host, reference: str, given: Iterable[str]) -> str:
    declared = {argument.name for argument in declared_arguments(await host.find(reference))}
    unknown = [f"--arg {quoted(name)}" for name in given if name not in declared]
    return f"leave out {', '.join(unknown)}" if unknown else "shorten the values of --arg"


def _document(loaded: list[LoadedSkill]) -> dict[str, object]:
    first = loaded[0]
    return {
        "reference": first.reference,
        "origin": {
            "kind": first.origin.kind.value,
            "label": first.origin.label,
            "fingerprint": first.origin.fingerprint,
        },
        "uri": first.uri,
        "boundary": first.boundary,
        "pages": first.pages,
        "texts": [{"page": part.page, "text": part.text} for part in loaded],
        "files": [
            {
                "path": file.path,
                "size": file.size,
                "unverified": file.is_unverified,
                "mediaType": file.media_type,
            }
            for file in first.files
        ],
    }
