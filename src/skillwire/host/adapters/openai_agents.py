"""Skills for the OpenAI Agents SDK: an agent with the listing, the tools, and the gate for all others.

    agent = SkillAgent(name="desk", tools=[...], guard=Guard(host, kinds))

It is an `Agent` in every other way. The gate checks all its function tools,
including those of its `mcp_servers` and agents as tools. If a session compacts
or truncates messages, `restore_skills` adds the texts of loaded skills again:

    await Runner.run(agent, question, run_config=RunConfig(call_model_input_filter=restore_skills))
"""

import json
from copy import copy
from dataclasses import dataclass, field
from typing import Any, cast

from skillwire.host.adapters.tools import Guard
from skillwire.host.use.gate import Verdict
from skillwire.host.use.tools import Tool as SkillTool

try:
    from agents import (
        Agent,
        FunctionTool,
        RunContextWrapper,
        TContext,
        Tool,
        ToolGuardrailFunctionOutput,
        ToolInputGuardrail,
        ToolInputGuardrailData,
        ToolOutputFileContent,
        ToolOutputImage,
        ToolOutputText,
        ToolSearchTool,
        TResponseInputItem,
        UserError,
    )
    from agents.run_config import CallModelData, ModelInputData
    from agents.tool_context import ToolContext
except ImportError as error:
    raise ImportError('this adapter needs openai-agents: pip install "skillwire[openai-agents]"') from error


@dataclass
class SkillAgent(Agent[TContext]):
    """An agent with the skills of a guard's conversation, whose other tools this guard checks.

    The listing follows the instructions, with the same bytes for the whole
    conversation; call `conversation.listing(...)` beforehand for another form
    or budget. Later changes are added after the next text result of a tool.
    The user cannot be asked about tools other than function tools, such as
    hosted tools and the local shell: they are available only while no loaded
    skill restricts them. A handoff passes on all messages, so it is allowed
    only to agents of the same conversation.
    """

    guard: Guard = field(kw_only=True)
    with_resources: bool = field(default=False, kw_only=True)

    async def get_system_prompt(self, run_context: RunContextWrapper[TContext]) -> str | None:
        own = await super().get_system_prompt(run_context)
        return "\n\n".join(filter(None, (own, self.guard.conversation.listing()))) or None

    async def get_all_tools(self, run_context: RunContextWrapper[TContext]) -> list[Tool]:
        """Return the tools for the next turn.

        Raises:
            UserError: A tool has the name of a skill tool, or a handoff would bypass the gate.
        """
        self._require_guarded_handoffs()
        skills = self.guard.conversation.tools(with_resources=self.with_resources)
        own = await super().get_all_tools(run_context)
        for name in {tool.name for tool in skills} & {tool.name for tool in own}:
            raise UserError(f"{name} is the name of a skill tool; rename the agent's own tool")
        guarded = [self._guarded(tool) for tool in own if self._may_be_offered(tool)]
        return [*guarded, *map(self._skill_tool, skills)]

    def _may_be_offered(self, tool: Tool) -> bool:
        if isinstance(tool, FunctionTool | ToolSearchTool):
            return True
        return self.guard.conversation.gate(self.guard.call(tool.name, {})).verdict is Verdict.ALLOW

    def _guarded(self, tool: Tool) -> Tool:
        if not isinstance(tool, FunctionTool):
            return tool
        guarded = copy(tool)
        # A guardrail, because the time of a question there does not count as the tool's own.
        guarded.tool_input_guardrails = [
            *(tool.tool_input_guardrails or ()),
            ToolInputGuardrail(self._check, name="skillwire"),
        ]
        # For an approval the SDK inspects the tool's own function, so it is not wrapped then.
        is_final = self.tool_use_behavior != "run_llm_again"
        if is_final or tool.output_json_schema or callable(tool.needs_approval):
            return guarded
        run = guarded.on_invoke_tool

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            return await self._with_notices(tool.name, await run(context, arguments))

        guarded.on_invoke_tool = invoke
        return guarded

    async def _check(self, data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        name, text = data.context.tool_name, data.context.tool_arguments
        arguments = _object_in(text)
        # Arguments that are not an object still reach the tool, so the user sees them too.
        refused = await self.guard.refusal(name, {"arguments": text} if arguments is None else arguments)
        if refused is None:
            return ToolGuardrailFunctionOutput.allow()
        return ToolGuardrailFunctionOutput.reject_content(refused.text)

    async def _with_notices(self, name: str, output: object) -> object:
        """Return a result with a nudge before it and list changes after it; other outputs are unchanged."""
        parts = cast("list[object]", output) if isinstance(output, list) else [output]
        if not isinstance(output, str) and not (parts and all(map(_is_content, parts))):
            return cast("object", output)
        before, after = self.guard.nudge(name), await self.guard.conversation.listing_changes()
        if isinstance(output, str):
            return "\n\n".join(filter(None, (before, output, after)))
        first, last = ([ToolOutputText(text=text)] if text else [] for text in (before, after))
        return [*first, *parts, *last]

    def _skill_tool(self, tool: SkillTool) -> FunctionTool:
        async def invoke(context: ToolContext[Any], arguments: str) -> str:
            result = await tool(_object_in(arguments))
            changes = "" if result.is_error else await self.guard.conversation.listing_changes()
            return f"{result.text}\n\n{changes}" if changes else result.text

        return FunctionTool(
            tool.name, tool.description, dict(tool.parameters), invoke, strict_json_schema=False
        )

    def _require_guarded_handoffs(self) -> None:
        for item in self.handoffs:
            # Only objects from `handoff()` have a reference to their target.
            reference = getattr(item, "_agent_ref", None)
            target = item if isinstance(item, Agent) else reference and reference()
            if not isinstance(target, SkillAgent) or target.guard.conversation is not self.guard.conversation:
                name = item.name if isinstance(item, Agent) else item.agent_name
                raise UserError(
                    f"a handoff from {self.name} to {name} would bypass the gate; "
                    f"make {name} a SkillAgent of the same conversation"
                )


def restore_skills(data: CallModelData[Any]) -> ModelInputData:
    """Add the texts of loaded skills that are missing in the model's input.

    It is a `call_model_input_filter`, so a session does not store what it adds:
    the texts are added to every request from then on.
    """
    sent = data.model_data
    if not isinstance(data.agent, SkillAgent):
        return sent
    items = _after_compaction(sent.input)
    lost = data.agent.guard.conversation.restore(map(repr, [sent.instructions, *items]))
    if not lost:
        return sent
    added = cast("TResponseInputItem", {"role": "user", "content": lost})
    return ModelInputData(input=[*sent.input, added], instructions=sent.instructions)


def _after_compaction(items: list[TResponseInputItem]) -> list[TResponseInputItem]:
    """Return the items that a model reads: those from the last compaction on."""
    kinds = [cast("dict[str, Any]", item).get("type") for item in items]
    last = max((number for number, kind in enumerate(kinds) if kind == "compaction"), default=0)
    return items[last:]


def _is_content(part: object) -> bool:
    if isinstance(part, dict):
        return cast("dict[str, Any]", part).get("type") in ("text", "image", "file")
    return isinstance(part, ToolOutputText | ToolOutputImage | ToolOutputFileContent)


def _object_in(text: str) -> dict[str, object] | None:
    """Return the arguments in a model's call, or None when they are not a JSON object."""
    try:
        value: object = json.loads(text or "{}")
    except ValueError:
        return None
    return cast("dict[str, object]", value) if isinstance(value, dict) else None
