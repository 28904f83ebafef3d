"""`skillwire completion`: a script that lets a shell complete commands, options and references.

The script knows the commands. For references it calls the program again,
which answers from what was listed last in the folder and starts nothing:
see `skillwire.cli.references`.
"""

from enum import StrEnum
from typing import Annotated

import typer

from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.shells import print_script

app = new_app()


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(
    shell: Annotated[
        Shell | None, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print a script that completes commands and references.

    For bash: skillwire completion bash > ~/.local/share/bash-completion/completions/skillwire

    For zsh: skillwire completion zsh > a file called _skillwire in a folder of $fpath

    For fish: skillwire completion fish > ~/.config/fish/completions/skillwire.fish

    References are those that `skillwire list` last showed in a folder.
    Completing them starts no server.
    """
    print_script(shell, json=json, verbose=verbose)
