"""Targets on a command line: servers and folders to look at, and a server to start after `--`."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

END_OF_OPTIONS = "--"

Targets: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET",
        help="Look only there: a URL, a folder, or a label of the configuration. "
        "After -- stands the command of a server to start.",
        show_default=False,
    ),
]

_KEY = "skillwire.command"


class TargetCommand(TyperCommand):
    """A command after whose arguments `-- COMMAND ARG…` may stand.

    Everything after the first `--` is left alone, so that options of the
    server are not taken for our own.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own, rest = args, list[str]()
        if END_OF_OPTIONS in args:
            place = args.index(END_OF_OPTIONS)
            own, rest = args[:place], args[place + 1 :]
            if not rest:
                raise typer.BadParameter("no command stands after --", ctx=ctx)
        ctx.meta[_KEY] = tuple(rest)
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ARG...]"]


def command_in(context: typer.Context) -> Sequence[str]:
    """Return the words after `--`; none when there was no `--`."""
    return context.meta.get(_KEY, ())
