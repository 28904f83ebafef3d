"""The entry point, and what it shares with all commands; it imports no library that prints, to start fast."""

import sys
from enum import IntEnum
from importlib import import_module

CONTEXT = {"help_option_names": ["-h", "--help"]}


class ExitCode(IntEnum):
    """The exit codes: success, failure or a negative result, and misuse."""

    YES = 0
    NO = 1
    MISUSE = 2
    INTERRUPTED = 130


def main() -> None:
    """Run the program and exit with its code."""
    args = sys.argv[1:]
    if args[:1] == ["serve"]:
        import_module("skillwire.server.handshake").answer_early(args[1:])
    sys.exit(import_module("skillwire.cli.app").run(args))
