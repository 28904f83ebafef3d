"""What the loops for plain message formats share."""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

from skillwire.host.failures import InvalidArgumentsError
from skillwire.host.gate import Verdict
from skillwire.host.refusals import Refusal
from skillwire.host.toolbox import Toolbox
from skillwire.host.tools import Arguments, ToolResult

Json: TypeAlias = dict[str, Any]
Create: TypeAlias = Callable[..., Awaitable[Any]]
Call: TypeAlias = tuple[str, Arguments | str | None]

MAX_TURNS = 50
LONGER = "let the model have more turns, or look at what it is trying"


def plain(answer: Any) -> Json:
    """Return an answer as plain data, exactly as it came, also the parts that nobody here knows.

    Raises:
        TypeError: It is neither data nor an object of a client library; streams are not read here.
    """
    if isinstance(answer, Mapping):
        return dict(cast(Mapping[str, Any], answer))
    dump = getattr(answer, "model_dump", None)
    if dump is None:
        raise TypeError(f"a model's whole answer is needed, and this is {type(answer).__name__}")
    return dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)


def instructions_of(toolbox: Toolbox, system: str) -> str:
    """Return an agent's instructions with the list of skills after them."""
    return "\n\n".join(part for part in (system, toolbox.guard.conversation.listing()) if part)


def offered(toolbox: Toolbox, schemas: Sequence[Json], hosted: Sequence[Json]) -> Json:
    """Return the tools to send with the next turn: all of ours, and those of the provider that may be used.

    Nobody can ask about a call that runs at the provider, so the model has
    those tools only while no loaded skill restricts them.
    """
    guard = toolbox.guard
    free = [
        tool
        for tool in hosted
        if guard.conversation.gate(guard.call(_name_of(tool), {})).verdict is Verdict.ALLOW
    ]
    return {"tools": [*schemas, *free]} if schemas or free else {}


def require_no_tools(options: Mapping[str, object]) -> None:
    """Refuse tools that would come to the model past the toolbox.

    Raises:
        TypeError: The options hold some.
    """
    if "tools" in options:
        raise TypeError("tools go into the Toolbox; those that run at the provider are `hosted_tools`")


@contextmanager
def turn(messages: list[Json]) -> Generator[None]:
    """Take back what was added to `messages` if the turn does not come to its end.

    Calls without answers would make the whole conversation unusable.
    """
    length = len(messages)
    try:
        yield
    except BaseException:
        del messages[length:]
        raise


async def answers_to(toolbox: Toolbox, calls: Sequence[Call], *, is_cut: bool) -> list[ToolResult]:
    """Answer the calls of one turn; when the model's words were cut off, the last of them is not made."""
    whole = calls[:-1] if is_cut else calls
    results = await toolbox.call_all(whole)
    return [*results, *(_cut_off(name) for name, _ in calls[len(whole) :])]


def _cut_off(name: str) -> ToolResult:
    error = InvalidArgumentsError(
        "the answer ended before this call was complete, so it was not made",
        reference=name[:200],
        fix="make the call again, with less beside it",
    )
    return ToolResult.refused(Refusal.of(error))


def _name_of(tool: Json) -> str:
    return str(tool.get("name") or tool.get("type") or next(iter(tool), ""))
