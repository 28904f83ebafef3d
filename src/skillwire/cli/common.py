"""The entry point, and what it shares with all commands; it imports no library that prints, to start fast."""

import sys
from enum import IntEnum
from importlib import import_module

CONTEXT = {"help_option_names": ["-h", "--help"]}


_ANSWERED_EARLY = {"serve": "skillwire.server.handshake", "bridge": "skillwire.bridge.overview"}
"""The modules that answer the first messages on standard input before a command is imported."""


class ExitCode(IntEnum):
    """The exit codes: success, failure or a negative result, and misuse."""

    YES = 0
    NO = 1
    MISUSE = 2
    INTERRUPTED = 130


def main() -> None:
    """Run the program and exit with its code."""
    args = sys.argv[1:]
    if early := _ANSWERED_EARLY.get(args[0] if args else ""):
        import_module(early).answer_early(args[1:])
    sys.exit(import_module("skillwire.cli.app").run(args))
