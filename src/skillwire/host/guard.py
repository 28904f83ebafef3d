"""Puts an agent's own tool calls to the gate, before they run."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from skillwire.host.conversation import Conversation
from skillwire.host.gate import Decision, ToolCall, ToolKind, Verdict
from skillwire.host.tools import ToolResult

Describe: TypeAlias = Callable[[str, Mapping[str, object]], ToolCall]
"""Says what a call, by its tool's name and arguments, could do at most; without arguments, any such call."""

LONGEST_DETAIL = 4_000

_AFTER_NO = "go on without this call; the user said no to it, or cannot be asked here"


class Guard:
    """Stands before every tool that is not one of the host's own.

    `kinds` says the most each tool can do; a tool that is not named there
    counts as one that runs code. `servers` has the labels of the MCP servers
    whose tools they are. Where that is not enough, because a path or a URI in
    the arguments matters, `describe` makes the `ToolCall` instead.
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
        """Return what a call could do at most."""
        if self._describe is not None:
            return self._describe(name, arguments)
        server = self._servers.get(name, "")
        return ToolCall(name, self._kinds.get(name), server=server, detail=_spelled(arguments))

    async def refusal(self, name: str, arguments: Mapping[str, object]) -> ToolResult | None:
        """Decide on a call, asking the user where that is needed; None means that it may run now."""
        decision: Decision = await self.conversation.authorise(self.call(name, arguments))
        if decision.verdict is Verdict.ALLOW:
            return None
        refusal = decision.refusal
        assert refusal is not None, "only an allowed call has none"
        return ToolResult.refused(replace(refusal, fix=_AFTER_NO) if decision.skills else refusal)

    def nudge(self, name: str) -> str:
        """Return a sentence about a skill that explains this tool of a server, once; empty when none does."""
        server = self._servers.get(name, "")
        return self.conversation.nudge(name, server) if server else ""


def _spelled(arguments: Mapping[str, object]) -> str:
    """Write a call's arguments for the user who decides; what is too long to be read is counted."""
    text = json.dumps(dict(arguments), ensure_ascii=False, default=str)
    rest = len(text) - LONGEST_DETAIL
    return text if rest <= 0 else f"{text[:LONGEST_DETAIL]} and {rest:,} characters more"
