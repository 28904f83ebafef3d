"""What to say when the command line itself makes no sense; loaded only then."""

from collections.abc import Collection, Sequence

from skillwire.cli.answer import Answer
from skillwire.cli.failures import MisuseError


def explain(args: Sequence[str], message: str, commands: Collection[str]) -> int:
    """Tell the user what is wrong with `args` and where to read more; return the exit code."""
    called = next((arg for arg in args if not arg.startswith("-")), "")
    known = called in commands
    answer = Answer(called if known else "error", json="--json" in args)
    page = f"skillwire {called} --help" if known else "skillwire --help"
    answer.refuse(MisuseError(message[:1].lower() + message[1:].rstrip("."), fix=f"see {page}"))
    return answer.code
