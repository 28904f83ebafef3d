"""Skills for LangChain and LangGraph: one middleware with the listing, the tools, and the gate for others.

    agent = create_agent(model, tools=[...], middleware=[Skills(Guard(host, kinds)), ...])

Put it first, so that the gate also checks tools that other middleware runs
itself. In a graph of your own, `tool_node` returns the node that runs tools.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from skillwire.host.adapters.tools import Guard
from skillwire.host.use.gate import Verdict
from skillwire.host.use.tools import Tool

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain.agents.middleware.types import ToolCallRequest
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_core.tools import BaseTool, StructuredTool, ToolException
    from langgraph.prebuilt import ToolNode
    from langgraph.runtime import Runtime
    from langgraph.types import Command
except ImportError as error:
    raise ImportError('this adapter needs langchain: pip install "skillwire[langchain]"') from error

# LangChain's own key for the source of a message, so that programs can tell it from a user's.
_SOURCE = {"lc_source": "skillwire"}
# It only searches the tools of the agent.
_TOOL_SEARCH = "tool_search"


class Skills(AgentMiddleware[AgentState[Any], Any, Any]):
    """The skills of a guard's conversation, for the agent whose other tools this guard checks.

    The host must be open. The listing is part of the system message, with the
    same bytes for the whole conversation; call `conversation.listing(...)`
    beforehand for another form or budget. Later changes are added as a message
    at the current position: a human message, since few models accept a second
    system message. Texts of loaded skills that something, such as a
    `SummarizationMiddleware`, removed from the messages are added again in the
    same way. The user cannot be asked about tools that run at the model's
    provider: they are available only while no loaded skill restricts them. Use
    one object for one conversation; an agent that serves several threads needs
    `host.child()` and an agent for each. Only the asynchronous methods of an
    agent work; the others raise, and run no tool.
    """

    def __init__(self, guard: Guard, *, with_resources: bool = False) -> None:
        super().__init__()
        self.guard = guard
        self.tools = [_tool(tool) for tool in guard.conversation.tools(with_resources=with_resources)]
        self._pending_texts: list[str] = []

    def tool_node(self, tools: Sequence[BaseTool | Callable[..., Any]], **options: Any) -> ToolNode:
        """Return a node for your own graph that runs the skill tools and these tools, with the gate.

        Pass `conversation.listing()` as the system message of the model in
        such a graph, and use `abefore_model` as the node before it, for changes.
        """
        node = ToolNode(
            [*tools, *self.tools],
            wrap_tool_call=self.wrap_tool_call,
            awrap_tool_call=self.awrap_tool_call,
            **options,
        )
        self._require_own([*tools, *node.tools_by_name.values()])
        return node

    async def abefore_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        self.guard.conversation.listing()
        texts, self._pending_texts = self._pending_texts, []
        if lost := self.guard.conversation.restore(map(repr, [*state["messages"], *texts])):
            texts.append(lost)
        if changes := await self.guard.conversation.listing_changes():
            texts.append(changes)
        if not texts:
            return None
        return {"messages": [_message(text) for text in texts]}

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        self._require_own(request.tools)
        messages = request.messages
        if lost := self.guard.conversation.restore(repr(message) for message in messages):
            # The model needs it now; it is added to the state in the next step.
            messages = [*messages, _message(lost)]
            self._pending_texts.append(lost)
        return await handler(
            request.override(
                messages=messages,
                system_message=_with_listing(request.system_message, self.guard.conversation.listing()),
                tools=[tool for tool in request.tools if self._may_offer(tool)],
            )
        )

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        if not any(request.tool is own for own in self.tools):
            call = request.tool_call
            if refused := await self.guard.refusal(call["name"], call["args"]):
                return ToolMessage(refused.text, name=call["name"], tool_call_id=call["id"], status="error")
            if nudge := self.guard.nudge(call["name"]):
                # The results of one turn must stay together, so it is added after all of them.
                self._pending_texts.append(nudge)
        return await handler(request)

    def _require_own(self, tools: Sequence[object]) -> None:
        """Check that no other tool has the name of a skill tool and would replace it."""
        own = {tool.name: tool for tool in self.tools}
        for tool in tools:
            name = tool.name if isinstance(tool, BaseTool) else getattr(tool, "__name__", "")
            if name in own and tool is not own[name]:
                raise ValueError(f"the agent has a tool named {name}, which is the name of a skill tool")

    def _may_offer(self, tool: BaseTool | dict[str, Any]) -> bool:
        """Return whether a tool runs locally, with the gate, or may be used without asking the user."""
        if isinstance(tool, BaseTool) or "input_schema" in tool:
            return True
        kind = str(tool.get("type") or next(iter(tool), ""))
        if kind in ("function", "custom") or kind.startswith(_TOOL_SEARCH):
            return True
        call = self.guard.call(str(tool.get("name") or kind), {})
        return self.guard.conversation.gate(call).verdict is Verdict.ALLOW


def _tool(tool: Tool) -> BaseTool:
    async def call(**arguments: Any) -> str:
        result = await tool(arguments)
        if result.is_error:
            raise ToolException(result.text)
        return result.text

    return StructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=dict(tool.parameters),
        coroutine=call,
        handle_tool_error=True,
    )


def _message(text: str) -> HumanMessage:
    return HumanMessage(text, additional_kwargs=dict(_SOURCE))


def _with_listing(system: SystemMessage | None, listing: str) -> SystemMessage | None:
    """Return the system message with the listing appended, for any kind of content."""
    if not listing:
        return system
    if system is None:
        return SystemMessage(listing)
    content = cast("str | list[str | dict[str, Any]]", system.content)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(content, str):
        joined: str | list[str | dict[str, Any]] = f"{content}\n\n{listing}"
    else:
        joined = [*content, {"type": "text", "text": listing}]
    return system.model_copy(update={"content": joined})
