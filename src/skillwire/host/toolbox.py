"""All tools of one agent in one place: those for skills, and its own behind the guard."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import anyio

from skillwire.host.failures import ConfigError, InvalidArgumentsError
from skillwire.host.guard import Guard
from skillwire.host.refusals import Refusal
from skillwire.host.tools import Arguments, Tool, ToolResult

_LONGEST_NAME = 200


class Toolbox:
    """The tools a model may call, and the one way to call them.

    The skills' tools are taken as they are, since loading asks the user
    itself. Every other tool runs only after the guard let the call pass.

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
                raise ConfigError(f"more than one tool is called {tool.name}", reference=tool.name)
            self._own[tool.name] = tool

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All tools, in an order that stays the same."""
        return (*self._skill_tools.values(), *self._own.values())

    async def call(self, name: str, arguments: Arguments | str | None = None) -> ToolResult:
        """Answer a model's call: run the tool, or say why it does not run.

        `arguments` may also be the JSON text that a model wrote. What is no
        object never reaches a tool, not even one that could do without.
        """
        given = _object_in(arguments)
        if name not in self._skill_tools and name not in self._own:
            known = ", ".join(tool.name for tool in self.tools) or "none"
            return _refused(name, f"there is no such tool; there are {known}")
        if given is None:
            return _refused(name, "the arguments are no JSON object")
        if (tool := self._skill_tools.get(name)) is not None:
            return await tool(given)
        if (refused := await self.guard.refusal(name, given)) is not None:
            return refused
        hint = self.guard.nudge(name)
        result = await self._own[name](given)
        return replace(result, text=f"{hint}\n\n{result.text}") if hint else result

    async def call_all(self, calls: Sequence[tuple[str, Arguments | str | None]]) -> list[ToolResult]:
        """Answer all calls of one turn side by side, and return the answers in the order of the calls.

        What a tool or the user's callback raises ends the others, and comes through as it is.
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
    """Return a call's arguments; None when they are no object, and an empty one when there are none."""
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
