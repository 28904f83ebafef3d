"""Options that many commands share."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print more: notes, and log lines.")
]
FollowLinks: TypeAlias = Annotated[
    bool, typer.Option("--follow-links", help="Follow symbolic links to folders.")
]

CONTEXT = {"help_option_names": ["-h", "--help"]}


def new_app() -> typer.Typer:
    """Return an empty app for one command, configured like every other."""
    # Typer's Rich help takes more start-up time than everything else together.
    return typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=CONTEXT)


# Targets on a command line: servers and folders to use, and a server to start after `--`.


END_OF_OPTIONS = "--"

Targets: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET",
        help="Use only these: a URL, a folder, or a label of the configuration. "
        "Give the command of a server to start after --.",
        show_default=False,
    ),
]

_KEY = "skillwire.command"


class TargetCommand(TyperCommand):
    """A command whose arguments may be followed by `-- COMMAND ARG…`.

    Everything after the first `--` is passed through, so that options of the
    server are not parsed as our own.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own, rest = args, list[str]()
        if END_OF_OPTIONS in args:
            place = args.index(END_OF_OPTIONS)
            own, rest = args[:place], args[place + 1 :]
            if not rest:
                raise typer.BadParameter("there is no command after --", ctx=ctx)
        ctx.meta[_KEY] = tuple(rest)
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ARG...]"]


def command_in(context: typer.Context) -> Sequence[str]:
    """Return the words after `--`; empty when there was no `--`."""
    return context.meta.get(_KEY, ())
