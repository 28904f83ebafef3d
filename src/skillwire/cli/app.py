"""`skillwire`: the table of commands, and the door they are all called through."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from skillwire import __version__
from skillwire.cli.failures import ExitCode
from skillwire.cli.helping import in_plain_words
from skillwire.cli.options import CONTEXT
from skillwire.cli.streams import give_up_on_output, prepare_streams

COMMANDS = {
    "serve": "Publish folders of skills over MCP.",
    "validate": "Check skills against the Agent Skills format.",
    "new": "Start a skill that validates.",
    "manifest": "Print what would be published about skills.",
    "pack": "Pack a skill into one reproducible archive.",
    "publish": "Publish folders of skills as a web site.",
    "token": "Make, list or revoke tokens for a server.",
    "trust": "Trust a folder: its own skills, and its configuration.",
    "list": "List all skills with their origin, and what is hidden and why.",
    "search": "Find skills by words in their names and descriptions.",
    "show": "Show a skill, or a file of it, before it is loaded.",
    "load": "Print what the model would receive of a skill.",
    "why": "Explain why a skill is missing, renamed, hidden or refused.",
    "approve": "Approve a skill, as it is now, on this machine.",
    "revoke": "Take back your approval of a skill.",
    "diff": "Show how a skill differs from what you approved.",
    "run": "Run a script of a skill in a sandbox.",
    "lock": "Show, trust, write or check the project's lock.",
    "cache": "Show or clear what is kept of servers' skills.",
    "doctor": "Check configuration, servers, folders and state.",
    "completion": "Print a script that completes commands and references.",
}
"""Every command's module, by name, with the first line of its help.

Help lists them from here, so that it need not load what each of them needs.
"""

EPILOG = """\b
Examples:
  skillwire new refunds --dir skills    start a skill
  skillwire validate skills             check a folder of skills
  skillwire manifest skills             what a server would publish
  skillwire serve skills --http 127.0.0.1:8000
  skillwire list http://127.0.0.1:8000/mcp

\b
Each command has --help and --json. Exit codes: 0 yes, 1 no, 2 misuse."""


class _Commands(TyperGroup):
    """A group that loads the module of the command that is called, and no other."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest


app = typer.Typer(
    cls=_Commands, rich_markup_mode=None, add_completion=False, context_settings=CONTEXT, epilog=EPILOG
)


def _called_by_name() -> None:
    """Stands in the list of commands for one that is not loaded."""


for _name, _summary in COMMANDS.items():
    app.command(_name, help=_summary)(_called_by_name)


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
    return in_plain_words(get_command(import_module(f"skillwire.cli.{name}").app))


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    prepare_streams()
    try:
        if _is_key_press(args):
            return import_module("skillwire.cli.references").offer(args[1])
        return get_command(app).main(args, prog_name="skillwire", standalone_mode=False) or 0
    except typer.TyperException as error:
        return import_module("skillwire.cli.misuse").explain(args, error.format_message(), COMMANDS)
    except OSError as error:
        give_up_on_output(error)
        return ExitCode.NO
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _is_key_press(args: Sequence[str]) -> bool:
    """Tell whether a shell completes a word, and someone waits at the keyboard: Typer takes too long then."""
    return len(args) == 2 and args[0] == "completion" and args[1].startswith(("--references=", "--labels="))


def main() -> None:
    """The program."""
    sys.exit(run(sys.argv[1:]))
