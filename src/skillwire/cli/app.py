"""`skillwire`: the table of commands and the entry point of the program."""

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperGroup
from typer.main import get_command

from skillwire.cli.common import CONTEXT, ExitCode
from skillwire.core.version import __version__

# Help texts that name an argument by its metavar and not by its type.


def simplify_arguments(command: Any) -> Any:
    """Return a command whose help has `DIR...` where Typer has `{DIR}...` and `DIR <list[Path]>`."""
    for inner in getattr(command, "commands", {}).values():
        simplify_arguments(inner)
    for parameter in command.params:
        if type(parameter) is TyperArgument:
            parameter.__class__ = _Argument
    return command


class _Argument(TyperArgument):
    def display_type_rich(self, ctx: Any) -> str | None:
        return None

    def get_usage_pieces(self, ctx: Any) -> list[str]:
        name = self.display_name_raw if self.required else f"[{self.display_name_raw}]"
        return [name if self.nargs == 1 else f"{name}..."]


# Prepare standard output and error for any text, and handle their failure.


def prepare_streams() -> None:
    """Make sure that any text can be written, whatever the locale and even if a stream is closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_output(error: OSError) -> None:
    """Report that standard output failed, and discard what it still holds.

    Otherwise the interpreter would try to write it again at exit, and fail again.
    """
    with suppress(OSError):
        sys.stderr.write(f"error: cannot write to standard output: {error.strerror}\n")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


COMMANDS = {
    "serve": "Publish folders of skills, or a catalog, over MCP.",
    "validate": "Check skills against the Agent Skills format.",
    "new": "Create a skill that validates.",
    "manifest": "Print what a server would publish about skills.",
    "pack": "Pack a skill into one reproducible archive.",
    "publish": "Publish folders of skills into a catalog, or as a web site.",
    "history": "Show the revisions of a catalog, or of one of its skills.",
    "rollback": "Publish an earlier state of a skill again.",
    "unpublish": "Remove skills from a catalog.",
    "catalog": "Check, clean, back up, restore or sync a catalog.",
    "token": "Create, list or revoke tokens for a server.",
    "add": "Add a server to the configuration.",
    "trust": "Trust a folder: its own skills, and its configuration.",
    "list": "List all skills with their origin, and what is hidden and why.",
    "search": "Find skills by words in names, tags, paths and descriptions.",
    "show": "Show a skill, or one of its files, before it is loaded.",
    "load": "Print what the model would receive of a skill.",
    "why": "Explain why a skill is missing, renamed, hidden or refused.",
    "approve": "Approve a skill, as it is now, on this machine.",
    "revoke": "Revoke your approval of a skill.",
    "diff": "Show how a skill differs from what you approved.",
    "run": "Run a script of a skill in a sandbox.",
    "bridge": "Offer skills to an agent as an MCP server with ordinary tools.",
    "setup": "Add the bridge to the configuration of an MCP client.",
    "lock": "Show, trust, write or check the project's lock.",
    "sync": "Write approved skills into folders of other agents.",
    "cache": "Show or clear the cached files of servers' skills.",
    "doctor": "Check configuration, servers, folders and state.",
    "completion": "Print a script that completes commands and references.",
}
"""Every command's module, by name, with the first line of its help.

Help is printed from this table, so that it need not import every command.
"""

EPILOG = """\b
Examples:
  skillwire new refunds --dir skills    create a skill
  skillwire validate skills             check a folder of skills
  skillwire manifest skills             what a server would publish
  skillwire serve skills --http 127.0.0.1:8000
  skillwire list http://127.0.0.1:8000/mcp
  skillwire add team http://127.0.0.1:8000/mcp

\b
Each command has --help and --json.
Exit codes: 0 success, 1 failure or refusal, 2 invalid usage."""


class _Commands(TyperGroup):
    """Command group that imports only the module of the command that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest


app = typer.Typer(
    cls=_Commands, rich_markup_mode=None, add_completion=False, context_settings=CONTEXT, epilog=EPILOG
)


def _placeholder() -> None:
    """Accept any arguments for a command whose module is not imported yet."""


for _name, _summary in COMMANDS.items():
    app.command(_name, help=_summary)(_placeholder)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skillwire {__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def skillwire(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Serve, find, verify and safely use Agent Skills over MCP."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(ExitCode.MISUSE)


def load_command(name: str) -> Any:
    """Return the command of that name, ready to be called."""
    return simplify_arguments(get_command(import_module(f"skillwire.cli.{name}").app))


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    prepare_streams()
    try:
        if _is_completion_request(args):
            return import_module("skillwire.cli.references").print_completions(args[1])
        return get_command(app).main(args, prog_name="skillwire", standalone_mode=False) or 0
    except typer.TyperException as error:
        return import_module("skillwire.cli.command").print_usage_error(
            args, error.format_message(), COMMANDS
        )
    except OSError as error:
        discard_output(error)
        return ExitCode.NO
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _is_completion_request(args: Sequence[str]) -> bool:
    """Return whether a shell asks for completions, which must be answered without the cost of Typer."""
    return len(args) == 2 and args[0] == "completion" and args[1].startswith(("--references=", "--labels="))
