"""Skills for pydantic-ai: one capability with the listing, the tools, and the gate for all other tools.

    agent = Agent(model, tools=[...], capabilities=[Skills(Guard(host, kinds))])

The gate checks every tool of the agent, whatever its source: functions,
toolsets, MCP servers, other capabilities. It uses the names that the model sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from skillwire.host.adapters.tools import Guard
from skillwire.host.use.gate import Verdict
from skillwire.host.use.tools import Tool

try:
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, WrapOutputProcessHandler
    from pydantic_ai.exceptions import ModelRetry, ToolFailed
    from pydantic_ai.messages import (
        CompactionPart,
        ModelMessage,
        ModelRequest,
        SystemPromptPart,
        UserPromptPart,
    )
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.output import OutputContext
    from pydantic_ai.tools import AgentDepsT, RunContext, SystemPromptFunc, ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
    from pydantic_core import SchemaValidator, core_schema
except ImportError as error:
    raise ImportError('this adapter needs pydantic-ai: pip install "skillwire[pydantic-ai]"') from error

# It only searches the tools of the agent.
_TOOL_SEARCH = "tool_search"
# The tool checks its arguments and explains errors; here they only have to be an object.
_ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema()))


@dataclass(init=False)
class Skills(AbstractCapability[AgentDepsT]):
    """The skills of a guard's conversation, for the agent whose other tools this guard checks.

    The listing is part of the instructions, with the same bytes for the whole
    conversation; call `conversation.listing(...)` beforehand for another form
    or budget. Later changes are added as a system prompt at the current
    position. Texts of loaded skills that a compaction or a history processor
    removed from the messages are added again as a user prompt: a skill's text
    has no more authority than other context. An output function counts as a
    tool of its name. The user cannot be asked about tools that run elsewhere,
    at the model's provider or as deferred calls: they are available only while
    no loaded skill restricts them.
    """

    guard: Guard
    with_resources: bool

    def __init__(self, guard: Guard, *, with_resources: bool = False) -> None:
        self.guard = guard
        self.with_resources = with_resources
        self._toolset = _SkillToolset[AgentDepsT](guard, with_resources)

    @classmethod
    def get_serialization_name(cls) -> str | None:
        return None

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    def get_instructions(self) -> SystemPromptFunc[AgentDepsT]:
        async def listing() -> str:
            return self.guard.conversation.listing()

        return listing

    def get_toolset(self) -> AbstractToolset[AgentDepsT]:
        return self._toolset

    def get_wrapper_toolset(self, toolset: AbstractToolset[AgentDepsT]) -> AbstractToolset[AgentDepsT]:
        return _GuardedToolset(toolset, self.guard, self._toolset)

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        if changes := await self.guard.conversation.listing_changes():
            ctx.enqueue(SystemPromptPart(changes))
        parameters = request_context.model_request_parameters
        kept = [
            tool
            for tool in parameters.native_tools
            if tool.kind == _TOOL_SEARCH or _is_free(self.guard, tool.kind)
        ]
        request_context.model_request_parameters = replace(parameters, native_tools=kept)
        return request_context

    async def prepare_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        # All history processors have run now. Additions to the run's own messages are kept.
        if lost := self.guard.conversation.restore(_read_by_the_model(request_context.messages)):
            added = ModelRequest(parts=[UserPromptPart(lost)])  # Never as a system prompt (SEC-11).
            request_context.messages = [*request_context.messages, added]
            ctx.messages.append(added)
        return request_context

    async def wrap_output_process(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        output_context: OutputContext,
        output: Any,
        handler: WrapOutputProcessHandler,
    ) -> Any:
        if output_context.has_function:
            name = output_context.function_name or "output"
            if not ctx.partial_output:
                if refused := await self.guard.refusal(name, {"output": output}):
                    raise ModelRetry(refused.text)
            elif not _is_free(self.guard, name):
                # In a stream, the function would also get partial outputs. The user is asked about the last.
                raise ModelRetry("the user has not been asked yet")
        return await handler(output)


@dataclass
class _SkillToolset(AbstractToolset[AgentDepsT]):
    """The current tools of the conversation."""

    guard: Guard
    with_resources: bool

    @property
    def id(self) -> str | None:
        return "skillwire"

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        return {
            tool.name: _SkillTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=tool.name,
                    description=tool.description,
                    parameters_json_schema=dict(tool.parameters),
                ),
                max_retries=ctx.max_retries,
                args_validator=_ANY_OBJECT,
                tool=tool,
            )
            for tool in self.guard.conversation.tools(with_resources=self.with_resources)
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> str:
        assert isinstance(tool, _SkillTool), "a toolset is called with its own tools"
        result = await tool.tool(tool_args)
        if result.is_error:
            raise ToolFailed(result.text)
        return result.text


@dataclass(kw_only=True)
class _SkillTool(ToolsetTool[AgentDepsT]):
    tool: Tool


@dataclass
class _GuardedToolset(WrapperToolset[AgentDepsT]):
    """All tools of an agent. The guard checks each call, except of the conversation's own tools."""

    guard: Guard
    skills: AbstractToolset[AgentDepsT] = field(repr=False)

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        tools = await super().get_tools(ctx)
        return {
            name: tool
            for name, tool in tools.items()
            if tool.tool_def.kind != "external" or _is_free(self.guard, name)
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        if tool.toolset is not self.skills:
            if refused := await self.guard.refusal(name, tool_args):
                raise ToolFailed(refused.text)
            if nudge := self.guard.nudge(name):
                ctx.enqueue(SystemPromptPart(nudge))
        return await super().call_tool(name, tool_args, ctx, tool)


def _read_by_the_model(messages: Sequence[ModelMessage]) -> list[str]:
    """Return the messages as texts, from the last compaction on: the provider drops earlier ones."""
    last = max(
        (
            number
            for number, message in enumerate(messages)
            if any(isinstance(part, CompactionPart) for part in message.parts)
        ),
        default=0,
    )
    return [repr(message.parts) for message in messages[last:]]


def _is_free(guard: Guard, name: str) -> bool:
    """Return whether a tool may be used now without asking the user."""
    return guard.conversation.gate(guard.call(name, {})).verdict is Verdict.ALLOW
