"""Tools of MCP servers as an agent may be given them: with names of their own, and nothing hidden in them.

Whatever a server says of its tools is a stranger's text, which the model reads
with every turn. What is too long, too deep or misshapen is left out, because
one such tool would make a provider refuse all of them.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import mcp_types as types

from skillwire.core.characters import revealed, visible
from skillwire.errors import LimitError, SkillError
from skillwire.host.failures import InvalidAnswerError
from skillwire.host.gate import ToolCall, ToolKind
from skillwire.host.guard import Guard
from skillwire.host.refusals import Refusal
from skillwire.host.tools import Arguments, Handler, Tool, ToolResult

LONGEST_DESCRIPTION: Final = 4_000
LONGEST_SCHEMA: Final = 32_000
LONGEST_RESULT: Final = 100_000

_DEEPEST = 32
# What every provider takes as the name of a tool.
_NAME = re.compile("[A-Za-z0-9_-]{1,64}")


class ToolFailedError(SkillError):
    """A server's tool says that it failed; the message is what the server says of it."""

    refusal = "server-error"
    requirement = "SDK-07"


@dataclass(frozen=True)
class ServerTool(Tool):
    """A tool of a server, which checks the arguments itself. `title` is what the server calls it."""

    label: str
    title: str

    @classmethod
    def of(cls, tool: types.Tool, label: str, handler: Handler) -> "ServerTool":
        """Take a tool as its server describes it, under the name `mcp__label__tool`.

        Raises:
            InvalidAnswerError: What it takes is not described as an object.
            LimitError: The description is too long or too deep.
        """
        said = revealed(tool.description or tool.title or "")
        cut = said if len(said) <= LONGEST_DESCRIPTION else f"{said[:LONGEST_DESCRIPTION]}…"
        about = f"A tool of the MCP server {label}, in that server's own words: {cut}"
        return cls(f"mcp__{label}__{tool.name}", about, _schema_of(tool), handler, label, tool.name)

    async def __call__(self, arguments: Arguments | None = None) -> ToolResult:
        try:
            return ToolResult(await self.handler(arguments or {}))
        except ToolFailedError as error:
            return ToolResult(str(error), Refusal(error.refusal, self.name))
        except SkillError as error:
            return ToolResult.refused(Refusal.of(error, self.name))

    @property
    def length(self) -> int:
        """How much there is to read of it."""
        return len(self.description) + len(json.dumps(self.parameters))


class ServerGuard(Guard):
    """Knows the tools of servers, and leaves all others to the guard it is made of."""

    def __init__(self, guard: Guard, tools: Iterable[ServerTool]) -> None:
        super().__init__(guard.conversation)
        self._guard = guard
        self._tools = {tool.name: tool for tool in tools}

    def call(self, name: str, arguments: Mapping[str, object]) -> ToolCall:
        call = self._guard.call(name, arguments)
        tool = self._tools.get(name)
        return replace(call, kind=call.kind or ToolKind.NETWORK, server=tool.label) if tool else call

    def nudge(self, name: str) -> str:
        tool = self._tools.get(name)
        return self.conversation.nudge(tool.title, tool.label) if tool else self._guard.nudge(name)


def named_apart(tools: Sequence[ServerTool], taken: Collection[str]) -> list[ServerTool]:
    """Give every tool a name of its own that providers take; where it would not be, it is cut and marked."""
    counts = Counter(tool.name for tool in tools)
    found: dict[str, ServerTool] = {}
    for tool in tools:
        name = tool.name
        if counts[name] > 1 or name in taken or not _NAME.fullmatch(name):
            mark = hashlib.sha256(f"{tool.label}/{tool.title}".encode(errors="replace")).hexdigest()[:8]
            name = f"{re.sub('[^A-Za-z0-9_-]', '_', name)[:55]}_{mark}"
        if name not in found and name not in taken:
            found[name] = replace(tool, name=name)
    return list(found.values())


def text_of(result: types.CallToolResult) -> str:
    """Put a result into words, with nothing hidden in them; what is no text is named instead of shown."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False, default=str)]
    text = "\n".join(parts)
    rest = len(text) - LONGEST_RESULT
    return revealed(text) if rest <= 0 else f"{revealed(text[:LONGEST_RESULT])}\n[{rest:,} characters more]"


def _part(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.ResourceLink):
        return f"[a link to {block.uri}]"
    if isinstance(block, types.EmbeddedResource):
        content = block.resource
        if isinstance(content, types.TextResourceContents):
            return content.text
        return f"[{content.uri}, which is no text]"
    return f"[{block.mime_type}, which is no text]"


def _schema_of(tool: types.Tool) -> dict[str, Any]:
    schema = cast("dict[str, Any]", _cleaned(tool.input_schema, _DEEPEST))
    if schema.get("type") != "object" or not isinstance(schema.get("properties", {}), dict):
        raise InvalidAnswerError("what the tool takes is not described as an object")
    if len(json.dumps(schema)) > LONGEST_SCHEMA:
        raise LimitError("the description of what the tool takes is too long")
    return schema


def _cleaned(value: object, depth: int) -> object:
    if depth == 0:
        raise LimitError("the description of what the tool takes is too deep")
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {visible(key): _cleaned(item, depth - 1) for key, item in items}
    if isinstance(value, list):
        return [_cleaned(item, depth - 1) for item in cast("list[object]", value)]
    return revealed(value) if isinstance(value, str) else value
