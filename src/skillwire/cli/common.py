"""What the entry point and all commands share; it imports no library that prints, for fast completion."""

from enum import IntEnum

CONTEXT = {"help_option_names": ["-h", "--help"]}


class ExitCode(IntEnum):
    """The exit codes: success, failure or a negative result, and misuse."""

    YES = 0
    NO = 1
    MISUSE = 2
    INTERRUPTED = 130
