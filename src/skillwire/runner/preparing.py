"""`prepare`: from a skill's entry and a request to a run whose every byte is checked."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from skillwire.core.entry import SkillEntry
from skillwire.runner.interface import ScriptInterface
from skillwire.runner.run import ScriptRun

ReadFile: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Gets the bytes of a file of the skill by its canonical URI."""


def scripts_of(entry: SkillEntry) -> tuple[str, ...]:
    """Return the paths of a skill's scripts: files right under `scripts/`, except what describes them."""
    return ()


def find_script(paths: Sequence[str], wanted: object, aliases: object = None) -> str:
    """Find a script among those listed, by name, path or unique stem (EXEC-06, EXEC-15).

    Raises:
        ScriptNotFoundError: There is none, or more than one.
    """
    raise AssertionError(paths, wanted, aliases)


async def interfaces_of(entry: SkillEntry, read: ReadFile) -> dict[str, ScriptInterface]:
    """Return what a skill declares about its scripts, by path; what is malformed is left out and logged."""
    return {}


async def prepare(
    entry: SkillEntry,
    script: object,
    arguments: object,
    read: ReadFile,
    *,
    origin: str = "",
    approval: str = "",
) -> ScriptRun:
    """Look a script up, read and check every file of its skill, and check the arguments.

    Raises:
        ScriptNotFoundError: The skill has no such script.
        InvalidScriptArgumentsError: The arguments are not what the script takes.
        VerificationError: The bytes are not those of the listing.
        LimitError: The skill is too large.
    """
    raise AssertionError(entry, script, arguments, read, origin, approval)
