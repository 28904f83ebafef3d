"""Options that many commands share, spelled and explained the same everywhere."""

from typing import Annotated, TypeAlias

import typer

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Answer with one JSON document.")]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say more: notes, and what happens.")
]
FollowLinks: TypeAlias = Annotated[
    bool, typer.Option("--follow-links", help="Enter folders that are symbolic links.")
]

CONTEXT = {"help_option_names": ["-h", "--help"]}


def new_app() -> typer.Typer:
    """Return an empty app for one command, set up like every other."""
    # Typer's Rich help would cost more start-up time than everything else together.
    return typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=CONTEXT)
