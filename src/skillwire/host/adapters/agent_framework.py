"""Skills for Microsoft's agent-framework: one context provider with the listing, the tools, and the gate.

    agent = Agent(client, tools=[...], context_providers=[Skills(Guard(host, kinds))])

It brings its own middleware: the gate stands before every function the agent
runs, whoever brought it, and after the agent's own middleware, so that it sees
a call as it will be made.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from skillwire.host.gate import Verdict
from skillwire.host.guard import Guard
from skillwire.host.tools import Tool

try:
    from agent_framework import (
        AgentSession,
        ChatContext,
        ChatMiddleware,
        ChatMiddlewareLayer,
        Content,
        ContextProvider,
        FunctionInvocationContext,
        FunctionInvocationLayer,
        FunctionMiddleware,
        FunctionTool,
        Message,
        MiddlewareException,
        MiddlewareFailure,
        SessionContext,
        SupportsAgentRun,
        UserInputRequiredException,
    )
except ImportError as error:
    raise ImportError(
        'this adapter needs agent-framework-core: pip install "skillwire[agent-framework]"'
    ) from error


T = TypeVar("T")

# It only looks through the tools that the agent has.
_TOOL_SEARCH = "tool_search"


class Skills(ContextProvider):
    """The skills of a guard's conversation, for the agent whose other tools that guard stands before.

    The listing is part of the instructions, with the same bytes for the whole
    conversation; call `conversation.listing(...)` beforehand for another form
    or budget. What changes later is added to the result of the next tool, or
    to the input of the next run, where the history keeps it. Tools that run
    elsewhere, at the model's provider or with the caller, cannot be asked
    about: the model has them only while no loaded skill restricts them. What
    `approve` raises ends the run as the cause of a `MiddlewareFailure`. One
    object is for one conversation; another session needs `host.child()`.
    """

    def __init__(self, guard: Guard, *, with_resources: bool = False, source_id: str = "skillwire") -> None:
        super().__init__(source_id)
        self.guard = guard
        self.with_resources = with_resources

    async def before_run(
        self,
        *,
        agent: SupportsAgentRun,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        client = getattr(agent, "client", None)
        if not (isinstance(client, FunctionInvocationLayer) and isinstance(client, ChatMiddlewareLayer)):
            raise TypeError("skills need an agent whose client takes function and chat middleware")
        conversation = self.guard.conversation
        if listing := conversation.listing():
            context.extend_instructions(self.source_id, listing)
        if changes := await conversation.listing_changes():
            context.input_messages = [*context.input_messages, Message("user", [changes])]
        tools = conversation.tools(with_resources=self.with_resources)
        own = [(_function(tool), tool) for tool in tools]
        context.extend_tools(self.source_id, [function for function, _ in own])
        context.extend_middleware(self.source_id, [_Gate(self.guard, own), _Offer(self.guard)])


class _Gate(FunctionMiddleware):
    """Stands before every function. All but the conversation's own ask the guard before they run."""

    def __init__(self, guard: Guard, own: Sequence[tuple[FunctionTool, Tool]]) -> None:
        self._guard = guard
        self._own = own

    async def process(
        self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        name, given = context.function.name, context.arguments
        arguments = dict(given) if isinstance(given, Mapping) else given.model_dump(exclude_unset=True)
        own = next((tool for function, tool in self._own if function is context.function), None)
        if own is not None:
            try:
                await call_next()
            except TypeError:
                # The framework's check of the arguments has no remedy for the model; the tool's own has.
                context.result = (await _decided(own(arguments))).text
        elif refused := await _decided(self._guard.refusal(name, arguments)):
            context.result = refused.text
            return
        else:
            await call_next()
        if (items := _items(context.result)) is not None:
            before = "" if own else self._guard.nudge(name)
            after = await self._guard.conversation.listing_changes()
            context.result = [*_texts(before), *items, *_texts(after)]


class _Offer(ChatMiddleware):
    """Takes tools that run elsewhere away from the model while a loaded skill restricts them."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        options = dict(context.options or {})
        tools = cast("list[object]", options.get("tools") or [])
        kept = [tool for tool in tools if self._may_offer(tool)]
        if len(kept) < len(tools):
            context.options = {**options, "tools": kept}
        await call_next()

    def _may_offer(self, tool: object) -> bool:
        if isinstance(tool, FunctionTool) and not tool.declaration_only:
            return True
        name = _name_of(tool)
        if name.startswith(_TOOL_SEARCH):
            return True
        call = self._guard.call(name, {})
        return self._guard.conversation.gate(call).verdict is Verdict.ALLOW


def _function(tool: Tool) -> FunctionTool:
    async def call(**arguments: Any) -> str:
        return (await _decided(tool(arguments))).text

    return FunctionTool(
        name=tool.name, description=tool.description, input_model=dict(tool.parameters), func=call
    )


async def _decided(decision: Awaitable[T]) -> T:
    """Wait for what may ask the user; of other exceptions the framework tells the model, and goes on."""
    try:
        return await decision
    except (MiddlewareException, UserInputRequiredException):
        raise
    except Exception as error:
        raise MiddlewareFailure("this call could not be decided on") from error


def _items(result: object) -> list[Content] | None:
    """Return the items a result is made of; None when it is of a kind that takes no others beside it."""
    if isinstance(result, str):
        return [Content.from_text(result)]
    items = cast("list[object]", result) if isinstance(result, list) else [None]
    return cast("list[Content]", items) if all(isinstance(item, Content) for item in items) else None


def _texts(*texts: str) -> list[Content]:
    return [Content.from_text(text) for text in texts if text]


def _name_of(tool: object) -> str:
    if not isinstance(tool, Mapping):
        return str(getattr(tool, "name", "") or type(tool).__name__)
    fields = cast("Mapping[str, object]", tool)
    function = fields.get("function")
    named = cast("Mapping[str, object]", function) if isinstance(function, Mapping) else fields
    return str(named.get("name") or fields.get("type") or next(iter(fields), ""))
