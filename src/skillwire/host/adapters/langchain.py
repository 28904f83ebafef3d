"""Skills for LangChain and LangGraph: one middleware with the listing, the tools, and the gate before others.

    agent = create_agent(model, tools=[...], middleware=[Skills(Guard(host, kinds)), ...])

Put it first, so that the gate also stands before tools that other middleware
runs itself. In a graph of your own, `tool_node` makes the node that runs tools.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from skillwire.host.gate import Verdict
from skillwire.host.guard import Guard
from skillwire.host.tools import Tool

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

# Where LangChain itself writes who added a message, so that programs can tell it from a person's.
_SOURCE = {"lc_source": "skillwire"}
# It only looks through the tools that the agent has.
_TOOL_SEARCH = "tool_search"


class Skills(AgentMiddleware[AgentState[Any], Any, Any]):
    """The skills of a guard's conversation, for the agent whose other tools that guard stands before.

    The host has to be open. The listing is part of the system message, with
    the same bytes for the whole conversation; call `conversation.listing(...)`
    beforehand for another form or budget. What changes later is a message
    where the conversation has got to: a human one, since few models take a
    second system message. Tools that run at the model's provider cannot be
    asked about: the model has them only while no loaded skill restricts them.
    One object is for one conversation, so an agent that serves several
    threads needs `host.child()` and an agent for each. Only the asynchronous
    methods of an agent work; the others raise, and run no tool.
    """

    def __init__(self, guard: Guard, *, with_resources: bool = False) -> None:
        super().__init__()
        self.guard = guard
        self.tools = [_tool(tool) for tool in guard.conversation.tools(with_resources=with_resources)]
        self._nudges: list[str] = []

    def tool_node(self, tools: Sequence[BaseTool | Callable[..., Any]], **options: Any) -> ToolNode:
        """Make the node that runs tools in a graph of your own: the skills' tools and these, with the gate.

        The model of such a graph gets `conversation.listing()` as its system
        message. `abefore_model` is the node before it, for what changes.
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
        said, self._nudges = self._nudges, []
        if changes := await self.guard.conversation.listing_changes():
            said.append(changes)
        if not said:
            return None
        return {"messages": [HumanMessage(text, additional_kwargs=dict(_SOURCE)) for text in said]}

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        self._require_own(request.tools)
        return await handler(
            request.override(
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
                # Results of one turn have to stay together, so it waits until all of them are there.
                self._nudges.append(nudge)
        return await handler(request)

    def _require_own(self, tools: Sequence[object]) -> None:
        """Raise when another tool has taken the name of one of the skills' own, which would then be gone."""
        own = {tool.name: tool for tool in self.tools}
        for tool in tools:
            name = tool.name if isinstance(tool, BaseTool) else getattr(tool, "__name__", "")
            if name in own and tool is not own[name]:
                raise ValueError(f"a tool of the agent is called {name}, as one of the skills' own is")

    def _may_offer(self, tool: BaseTool | dict[str, Any]) -> bool:
        """Tell whether a tool runs here, behind the gate, or else needs nobody's word now."""
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


def _with_listing(system: SystemMessage | None, listing: str) -> SystemMessage | None:
    """Return the system message with the listing at its end, whatever it is made of."""
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
