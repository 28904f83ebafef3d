"""All tools of one agent: the skill tools, and its own tools behind the guard."""

import json
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias, cast

import anyio

from skillwire.host.conversation import Conversation
from skillwire.host.model import ConfigError, InvalidArgumentsError, Refusal
from skillwire.host.use.gate import Decision, ToolCall, ToolKind, Verdict
from skillwire.host.use.tools import Arguments, Tool, ToolResult

# Guard that checks an agent's own tool calls against the gate before they run.


Describe: TypeAlias = Callable[[str, Mapping[str, object]], ToolCall]
"""Returns the `ToolCall` for a tool's name and arguments; without arguments, for any call of the tool."""

LONGEST_DETAIL = 4_000

_AFTER_NO = "go on without this call; the user denied it, or cannot be asked here"


class Guard:
    """Checks the calls of all tools that do not belong to the host.

    `kinds` maps tool names to what they can do at most; a tool without a kind
    counts as one that runs code. `servers` maps tool names to the labels of
    their MCP servers. If the decision depends on a path or a URI in the
    arguments, `describe` returns the `ToolCall` instead.
    """

    def __init__(
        self,
        conversation: Conversation,
        kinds: Mapping[str, ToolKind] | None = None,
        *,
        servers: Mapping[str, str] | None = None,
        describe: Describe | None = None,
    ) -> None:
        self.conversation = conversation
        self._kinds = dict(kinds or {})
        self._servers = dict(servers or {})
        self._describe = describe

    def call(self, name: str, arguments: Mapping[str, object]) -> ToolCall:
        """Return the call as the gate checks it."""
        if self._describe is not None:
            return self._describe(name, arguments)
        server = self._servers.get(name, "")
        return ToolCall(name, self._kinds.get(name), server=server, detail=_format_arguments(arguments))

    async def refusal(self, name: str, arguments: Mapping[str, object]) -> ToolResult | None:
        """Return the refusal of a call, after asking the user if necessary; None if it may run now."""
        decision: Decision = await self.conversation.authorise(self.call(name, arguments))
        if decision.verdict is Verdict.ALLOW:
            return None
        refusal = decision.refusal
        assert refusal is not None, "only an allowed call has no refusal"
        return ToolResult.refused(replace(refusal, fix=_AFTER_NO) if decision.skills else refusal)

    def nudge(self, name: str) -> str:
        """Return a hint about a skill that explains this tool of a server, once; empty if there is none."""
        server = self._servers.get(name, "")
        return self.conversation.nudge(name, server) if server else ""


def _format_arguments(arguments: Mapping[str, object]) -> str:
    """Format a call's arguments for the user, with the number of characters that were cut."""
    text = json.dumps(dict(arguments), ensure_ascii=False, default=str)
    rest = len(text) - LONGEST_DETAIL
    return text if rest <= 0 else f"{text[:LONGEST_DETAIL]} and {rest:,} characters more"


_LONGEST_NAME = 200


class Toolbox:
    """The tools a model may call, and the single entry point for calls.

    The skill tools are called directly, because loading asks the user
    itself. Every other tool runs only if the guard allows the call.

    Raises:
        ConfigError: Two tools have the same name.
    """

    def __init__(self, guard: Guard, own: Iterable[Tool] = (), *, with_resources: bool = False) -> None:
        self.guard = guard
        skill_tools = guard.conversation.tools(with_resources=with_resources)
        self._skill_tools = {tool.name: tool for tool in skill_tools}
        self._own: dict[str, Tool] = {}
        for tool in own:
            if tool.name in self._own or tool.name in self._skill_tools:
                raise ConfigError(f"more than one tool has the name {tool.name}", reference=tool.name)
            self._own[tool.name] = tool

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All tools, in a stable order."""
        return (*self._skill_tools.values(), *self._own.values())

    async def call(self, name: str, arguments: Arguments | str | None = None) -> ToolResult:
        """Run the tool that a model called, or return the refusal.

        `arguments` may also be the JSON text that a model wrote. Anything but
        an object is refused, even for a tool without arguments.
        """
        given = _object_in(arguments)
        if name not in self._skill_tools and name not in self._own:
            known = ", ".join(tool.name for tool in self.tools) or "none"
            return _refused(name, f"there is no such tool; there are {known}")
        if given is None:
            return _refused(name, "the arguments are not a JSON object")
        if (tool := self._skill_tools.get(name)) is not None:
            return await tool(given)
        if (refused := await self.guard.refusal(name, given)) is not None:
            return refused
        hint = self.guard.nudge(name)
        result = await self._own[name](given)
        return replace(result, text=f"{hint}\n\n{result.text}") if hint else result

    async def call_all(self, calls: Sequence[tuple[str, Arguments | str | None]]) -> list[ToolResult]:
        """Run all calls of one turn concurrently, and return the results in the order of the calls.

        An exception of a tool or of the user's callback cancels the others and is raised unchanged.
        """
        found: dict[int, ToolResult] = {}

        async def answer(number: int, name: str, arguments: Arguments | str | None) -> None:
            found[number] = await self.call(name, arguments)

        try:
            async with anyio.create_task_group() as group:
                for number, (name, arguments) in enumerate(calls):
                    group.start_soon(answer, number, name, arguments)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [found[number] for number in range(len(calls))]


def _object_in(arguments: object) -> Arguments | None:
    """Return a call's arguments; None if they are not an object, an empty object if there are none."""
    value = arguments
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except (ValueError, RecursionError):
            return None
    if value is None:
        return {}
    return cast(Arguments, value) if isinstance(value, Mapping) else None


def _refused(name: str, why: str) -> ToolResult:
    return ToolResult.refused(Refusal.of(InvalidArgumentsError(why, reference=name[:_LONGEST_NAME])))


# Helpers for the loops over plain message formats.


Json: TypeAlias = dict[str, Any]
Create: TypeAlias = Callable[..., Awaitable[Any]]
Call: TypeAlias = tuple[str, Arguments | str | None]

MAX_TURNS = 50
MORE_TURNS_FIX = "increase `max_turns`, or check what the model is trying to do"


def as_plain_data(answer: Any) -> Json:
    """Return an answer as plain data, unchanged, including unknown parts.

    Raises:
        TypeError: It is neither data nor an object of a client library; streams are not supported.
    """
    if isinstance(answer, Mapping):
        return dict(cast(Mapping[str, Any], answer))
    dump = getattr(answer, "model_dump", None)
    if dump is None:
        raise TypeError(f"a complete answer of a model is required, not {type(answer).__name__}")
    return dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)


def instructions_of(toolbox: Toolbox, system: str) -> str:
    """Return an agent's instructions followed by the list of skills."""
    return "\n\n".join(part for part in (system, toolbox.guard.conversation.listing()) if part)


def available_tools(toolbox: Toolbox, schemas: Sequence[Json], hosted: Sequence[Json]) -> Json:
    """Return the tools for the next turn: all of the toolbox, and the provider's that may be used.

    The user cannot be asked about a call that runs at the provider, so those
    tools are available only while no loaded skill restricts them.
    """
    guard = toolbox.guard
    free = [
        tool
        for tool in hosted
        if guard.conversation.gate(guard.call(_name_of(tool), {})).verdict is Verdict.ALLOW
    ]
    return {"tools": [*schemas, *free]} if schemas or free else {}


def require_no_tools(options: Mapping[str, object]) -> None:
    """Check that the options contain no tools, which would bypass the toolbox.

    Raises:
        TypeError: They do.
    """
    if "tools" in options:
        raise TypeError("pass tools in the Toolbox, and tools that run at the provider as `hosted_tools`")


@contextmanager
def undo_on_error(messages: list[Json]) -> Generator[None]:
    """Remove what was added to `messages` if an exception is raised.

    Tool calls without results would make the whole conversation unusable.
    """
    length = len(messages)
    try:
        yield
    except BaseException:
        del messages[length:]
        raise


async def results_of_calls(toolbox: Toolbox, calls: Sequence[Call], *, is_cut: bool) -> list[ToolResult]:
    """Make the calls of one turn; if the answer was truncated, the last call is refused."""
    whole = calls[:-1] if is_cut else calls
    results = await toolbox.call_all(whole)
    return [*results, *(_cut_off(name) for name, _ in calls[len(whole) :])]


def _cut_off(name: str) -> ToolResult:
    error = InvalidArgumentsError(
        "the answer was truncated before this call was complete, so it was not made",
        reference=name[:200],
        fix="repeat the call in a shorter answer",
    )
    return ToolResult.refused(Refusal.of(error))


def _name_of(tool: Json) -> str:
    return str(tool.get("name") or tool.get("type") or next(iter(tool), ""))
