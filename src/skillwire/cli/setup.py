"""`skillwire setup`: add the bridge to the configuration of an MCP client, after showing the change."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer

from skillwire.bridge.setup import (
    CLIENTS,
    ENTRY_NAME,
    OTHER,
    ChangeKind,
    SetupChange,
    bridge_command,
    setup_change,
)
from skillwire.cli.command import (
    END_OF_OPTIONS,
    STYLES,
    Json,
    MisuseError,
    Output,
    TargetCommand,
    Targets,
    Verbose,
    command_in,
    command_output,
    new_app,
    print_rows,
    progress,
)
from skillwire.cli.common import ExitCode
from skillwire.cli.hosting import Config, HostRequest, bridge_module, bridge_options, is_address
from skillwire.cli.prompt import NO, YES, TerminalAsk
from skillwire.core import SkillError, visible
from skillwire.host import ApprovalError, Paragraph, lines_of, read_servers

_FIRST_SECONDS = 10.0

app = new_app()


@app.command(cls=TargetCommand)
def setup(
    context: typer.Context,
    client: Annotated[
        str | None,
        typer.Argument(
            metavar="CLIENT",
            help=f"{', '.join(CLIENTS)}; of any other one the text to add is printed. "
            "Without it, the clients and their files are listed.",
            show_default=False,
        ),
    ] = None,
    targets: Targets = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what was added.")] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="The client's configuration to change, such as that of a project, instead of the user's.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: you have reviewed it.")] = False,
    config: Config = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Add the bridge to the configuration of an MCP client.

    Shows the change of the file and asks. One entry with the name skillwire
    is added, updated or removed; comments, order and layout stay as they
    are. It starts `skillwire bridge` with the --config and the targets that
    are given here. Nothing that is written lets the client use a tool
    without asking. Exits with 1 when the answer is no.
    """
    with command_output("setup", json=json, verbose=verbose) as output:
        if client is None:
            _require_alone(remove, file, yes, config)
            _print_clients(output)
            return
        known = CLIENTS.get(client.lower(), OTHER)
        command = command_in(context)
        if remove and (config or targets or command):
            raise MisuseError("--remove removes the entry whatever it starts", fix="leave out what it starts")
        args = bridge_arguments(config, targets or (), command)
        words = bridge_command(args)
        if known is OTHER:
            _require_alone(remove, file, yes)
            _print_snippet(output, client, words)
            return
        path = file or known.file(os.environ, Path.home())
        change = setup_change(known, path, words, os.environ, is_removal=remove)
        anyio.run(_apply, output, change, words, yes, file is None)
        if output.code is ExitCode.YES and not remove:
            wanted = HostRequest(config=config, targets=targets or (), command=command)
            anyio.run(_prepare_first_start, output, wanted, args)


async def _prepare_first_start(output: Output, wanted: HostRequest, args: Sequence[str]) -> None:
    """Store the list of skills for the first start of the bridge in this folder; a failure is reported."""
    try:
        options = bridge_options(output, wanted, args)
        with progress(output, "asking for skills, to list them at the first start"):
            await bridge_module().store_overview(options, seconds=_FIRST_SECONDS)
    except SkillError as error:
        output.message(("note:", STYLES["note"]), f" the skills are not listed at the first start: {error}")


def _require_alone(*options: object) -> None:
    if any(options):
        raise MisuseError(
            "there is no client whose configuration could be changed",
            fix=f"name one of {', '.join(CLIENTS)}",
        )


def bridge_arguments(config: Path | None, targets: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return what is passed on to the bridge, which is started in other folders than this one.

    Raises:
        MisuseError: A target is not a URL, a folder, or a label of the configuration that is named.
        ConfigError: The configuration cannot be read.
    """
    labels = {server.label for server in read_servers(config).servers} if config else set[str]()
    words = ["--config", str(config.absolute())] if config else []
    for target in targets:
        if is_address(target) or target in labels:
            words.append(target)
        elif Path(target).is_dir():
            words.append(str(Path(target).absolute()))
        else:
            raise MisuseError(
                f"{target} is not a URL, a folder, or a label of a configuration that is named",
                fix="a label needs --config, because the bridge is started in other folders than this one",
            )
    if command:
        program, *rest = command
        is_path = re.search(r"[\\/]", program) and Path(program).exists()
        words += [END_OF_OPTIONS, str(Path(program).absolute()) if is_path else program, *rest]
    return words


def _print_clients(output: Output) -> None:
    files = {client: client.file(os.environ, Path.home()) for client in CLIENTS.values()}
    if output.json:
        rows = [
            {"name": client.name, "title": client.title, "file": str(path), "exists": path.exists()}
            for client, path in files.items()
        ]
        output.document({"clients": rows})
        return
    print_rows(output, [(client.name, client.title, str(path)) for client, path in files.items()])
    output.message(("next:", "bold"), " skillwire setup CLIENT", wrap=False)


def _print_snippet(output: Output, name: str, words: Sequence[str]) -> None:
    snippet = OTHER.snippet(words)
    if output.json:
        output.document({"client": name, "command": list(words), "snippet": snippet})
        return
    if name != OTHER.name:
        output.message(
            ("note:", "cyan"), f" {name} is none of {', '.join(CLIENTS)}; most other clients read this"
        )
    for line in snippet.splitlines():
        indent = len(line) - len(line.lstrip())
        output.line(line.lstrip(), indent=indent, wrap=False)


async def _apply(
    output: Output, change: SetupChange, words: Sequence[str], is_agreed: bool, is_private: bool
) -> None:
    if change.kind is not ChangeKind.NONE:
        paragraphs = _paragraphs(change, words)
        if not is_agreed:
            is_agreed = await _ask(output, change, paragraphs)
        elif not output.json:
            for line in lines_of(paragraphs):
                output.message(str(line), wrap=False)
        if is_agreed:
            change.write(is_private=is_private)
        else:
            output.code = ExitCode.NO
    _report(output, change, words, is_written=is_agreed and change.kind is not ChangeKind.NONE)


_WORDS = {
    ChangeKind.ADD: "The bridge would be added to the configuration of",
    ChangeKind.REPLACE: "The bridge would be updated in the configuration of",
    ChangeKind.REMOVE: "The bridge would be removed from the configuration of",
}


def _paragraphs(change: SetupChange, words: Sequence[str]) -> list[Paragraph]:
    start = () if change.kind is ChangeKind.REMOVE else (Paragraph("It starts", (shlex.join(words),)),)
    lines = tuple(visible(line) for line in change.lines)
    return [
        Paragraph(f"{_WORDS[change.kind]} {change.client.title}."),
        Paragraph("File", (visible(str(change.edit.path)),)),
        *start,
        Paragraph("Change, without the values that are there already", lines, is_untrusted=True),
    ]


async def _ask(output: Output, change: SetupChange, paragraphs: list[Paragraph]) -> bool:
    asker = TerminalAsk.find()
    if asker is None:
        for line in lines_of(paragraphs):
            output.message(str(line), wrap=False)
        raise ApprovalError(
            "there is no terminal to ask on",
            reference=str(change.edit.path),
            fix="review it, then pass --yes",
        )
    return await asker.choose(None, paragraphs, "Write this change?", {NO: "no", YES: "yes"}) == YES


def _report(output: Output, change: SetupChange, words: Sequence[str], *, is_written: bool) -> None:
    path = change.edit.path
    if output.json:
        output.document(
            {
                "client": change.client.name,
                "file": str(path),
                "name": ENTRY_NAME,
                "command": [] if change.kind is ChangeKind.REMOVE else list(words),
                "change": change.kind.value,
                "written": is_written,
            }
        )
        return
    shown = change.kind.value if is_written or change.kind is ChangeKind.NONE else "not written"
    output.line((shown, "bold green" if is_written else "bold"), f"  {path}", wrap=False)
    if is_written and change.kind is not ChangeKind.REMOVE:
        title, undo = change.client.title, f"skillwire setup {change.client.name} --remove"
        if change.client.hint:
            output.message(("note:", "cyan"), f" {title}: {change.client.hint}")
        output.message(("next:", "bold"), f" restart {title}; to undo this: {undo}", wrap=False)
