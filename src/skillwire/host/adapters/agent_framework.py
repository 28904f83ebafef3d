"""Skills for Microsoft's agent-framework: one context provider with the listing, the tools, and the gate.

    agent = Agent(client, tools=[...], context_providers=[Skills(Guard(host, kinds))])

It adds its own middleware: the gate checks every function call of the agent,
whatever its source, and after the agent's own middleware, so that it sees the
final arguments.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from skillwire.host.adapters.tools import Guard
from skillwire.host.use.gate import Verdict
from skillwire.host.use.tools import Tool

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
        included_messages,
    )
except ImportError as error:
    raise ImportError(
        'this adapter needs agent-framework-core: pip install "skillwire[agent-framework]"'
    ) from error


T = TypeVar("T")

# It only searches the tools of the agent.
_TOOL_SEARCH = "tool_search"


class Skills(ContextProvider):
    """The skills of a guard's conversation, for the agent whose other tools this guard checks.

    The listing is part of the instructions, with the same bytes for the whole
    conversation; call `conversation.listing(...)` beforehand for another form
    or budget. Later changes are added to the result of the next tool, or to
    the input of the next run, where the history keeps them. Texts of loaded
    skills that a compaction removed are added again as the last message of the
    next request and of those after it. The user cannot be asked about tools
    that run elsewhere, at the model's provider or at the caller: they are
    available only while no loaded skill restricts them. An exception of
    `approve` ends the run as the cause of a `MiddlewareFailure`. Use one
    object for one conversation; another session needs `host.child()`.
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
            raise TypeError("skills need an agent whose client supports function and chat middleware")
        conversation = self.guard.conversation
        if listing := conversation.listing():
            context.extend_instructions(self.source_id, listing)
        if changes := await conversation.listing_changes():
            context.input_messages = [*context.input_messages, Message("user", [changes])]
        tools = conversation.tools(with_resources=self.with_resources)
        own = [(_function(tool), tool) for tool in tools]
        context.extend_tools(self.source_id, [function for function, _ in own])
        context.extend_middleware(
            self.source_id, [_GateMiddleware(self.guard, own), _RequestMiddleware(self.guard)]
        )


class _GateMiddleware(FunctionMiddleware):
    """Asks the guard before every function call, except of the conversation's own tools."""

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
                # The framework's argument errors do not tell the model what to do; the tool's own do.
                context.result = (await _or_failure(own(arguments))).text
        elif refused := await _or_failure(self._guard.refusal(name, arguments)):
            context.result = refused.text
            return
        else:
            await call_next()
        if (items := _items(context.result)) is not None:
            before = "" if own else self._guard.nudge(name)
            after = await self._guard.conversation.listing_changes()
            context.result = [*_texts(before), *items, *_texts(after)]


class _RequestMiddleware(ChatMiddleware):
    """Prepares model requests: removes tools that may not be used without asking, restores lost texts."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        options = dict(context.options or {})
        tools = cast("list[object]", options.get("tools") or [])
        kept = [tool for tool in tools if self._may_offer(tool)]
        if len(kept) < len(tools):
            context.options = {**options, "tools": kept}
        read = included_messages(list(context.messages))
        if lost := self._guard.conversation.restore(repr(message.to_dict()) for message in read):
            context.messages = [*context.messages, Message("user", [lost])]
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
        return (await _or_failure(tool(arguments))).text

    return FunctionTool(
        name=tool.name, description=tool.description, input_model=dict(tool.parameters), func=call
    )


async def _or_failure(decision: Awaitable[T]) -> T:
    """Await a decision; raise other exceptions as `MiddlewareFailure`, or the framework would continue."""
    try:
        return await decision
    except (MiddlewareException, UserInputRequiredException):
        raise
    except Exception as error:
        raise MiddlewareFailure("the decision about this call failed") from error


def _items(result: object) -> list[Content] | None:
    """Return the content items of a result; None for a result to which no text can be added."""
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
