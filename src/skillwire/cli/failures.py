"""What only a command line can get wrong, and the exit codes (0 yes, 1 a clear no, 2 misuse)."""

from collections.abc import Sequence
from enum import IntEnum

from skillwire.core.finding import Finding
from skillwire.errors import InvalidSkillError, SkillError


class ExitCode(IntEnum):
    YES = 0
    NO = 1
    MISUSE = 2
    INTERRUPTED = 130


class MisuseError(SkillError):
    """The command was called in a way that cannot mean anything."""

    refusal = "misuse"


class MissingFolderError(MisuseError):
    """A folder that was named does not exist, or is no folder."""

    refusal = "no-such-folder"


class NoSkillError(SkillError):
    """There is no skill where one was expected."""

    refusal = "no-skill"
    requirement = "FMT-01"


class AlreadyExistsError(SkillError):
    """Something stands where a file or folder would be written."""

    refusal = "already-exists"


class OutputError(SkillError):
    """A file or folder cannot be written."""

    refusal = "cannot-write"


class BrokenSkillError(InvalidSkillError):
    """A skill with errors; `findings` are all of them, with their files as a user would type them."""

    def __init__(self, message: str, *, findings: Sequence[Finding], fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.findings = tuple(findings)


def exit_code_of(error: SkillError) -> ExitCode:
    return ExitCode.MISUSE if isinstance(error, MisuseError) else ExitCode.NO
