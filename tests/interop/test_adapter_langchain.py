"""The adapter for LangChain and LangGraph, in real agents and graphs with a scripted model."""

import importlib
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]  # not typed through
from langchain.agents.middleware import AgentMiddleware, SummarizationMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph  # pyright: ignore[reportMissingTypeStubs]  # none
from langgraph.prebuilt import tools_condition
from langgraph.types import Command, interrupt
from pydantic import PrivateAttr

from interop.adapting import (
    FILE_TOOL,
    LABEL,
    LISTED,
    ORIGIN,
    POLICY_PATH,
    REFUNDS,
    SERVER_TOOL,
    SHOWN,
    Broken,
    Call,
    Reply,
    Shop,
    User,
    is_refusal,
    refusal_in,
    shop,
)
from skillwire.host import Guard, Occasion, Question, ToolKind
from skillwire.host.adapters.langchain import Skills

LOAD = ("load_skill", {"skill": REFUNDS})
READ = ("read_skill_file", {"skill": REFUNDS, "path": POLICY_PATH})
WRITE = (FILE_TOOL, {"text": "hello"})
REFUND = (SERVER_TOOL, {"order": "7"})
PUBLISH: tuple[str, dict[str, Any]] = ("publish", {})
NAMES = ["load_skill", "read_skill_file", "list_skill_files", "search_skills"]

Turn = Sequence[Call]


class Script(BaseChatModel):
    """A model that makes the given calls, turn by turn, and then says that it is done."""

    _turns: list[Turn] = PrivateAttr(default_factory=list[Turn])
    _seen: list[list[BaseMessage]] = PrivateAttr(default_factory=list[list[BaseMessage]])
    _bound: list[dict[str, Any]] = PrivateAttr(default_factory=list[dict[str, Any]])
    _offered: list[list[dict[str, Any]]] = PrivateAttr(default_factory=list[list[dict[str, Any]]])

    def __init__(self, *turns: Turn) -> None:
        super().__init__()
        self._turns = list(turns)

    @property
    def _llm_type(self) -> str:
        return "script"

    @property
    def seen(self) -> list[list[BaseMessage]]:
        """The messages of each request, as they were sent."""
        return self._seen

    @property
    def offered(self) -> list[list[dict[str, Any]]]:
        """The tools of each request, as they would be sent."""
        return self._offered

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[Any, AIMessage]:
        self._bound = [
            cast("dict[str, Any]", tool) if isinstance(tool, dict) else convert_to_openai_tool(tool)
            for tool in tools
        ]
        return cast("Runnable[Any, AIMessage]", self)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self._seen.append([message.model_copy(deep=True) for message in messages])
        self._offered.append(self._bound)
        turn = self._turns.pop(0) if self._turns else ()
        number = len(self._seen)
        calls = [ToolCall(name=name, args=args, id=f"{number}-{at}") for at, (name, args) in enumerate(turn)]
        answer = AIMessage("" if calls else "done", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def own_tools(shop: Shop) -> list[BaseTool]:
    """The tools of the agent: one that writes, one of the server, and one that lets the server change."""

    async def publish() -> str:
        await shop.publish("late")
        return "published"

    return [
        StructuredTool.from_function(shop.notebook.write, name=FILE_TOOL),
        StructuredTool.from_function(shop.create_refund, name=SERVER_TOOL),
        StructuredTool.from_function(coroutine=publish, name="publish", description="Publish one more."),
    ]


def agent_of(shop: Shop, script: Script, *, guard: Guard | None = None, **options: Any) -> Any:
    skills = Skills(guard or shop.guard())
    middleware = [skills, *options.pop("middleware", ())]
    tools = options.pop("tools", None) or own_tools(shop)
    options.setdefault("system_prompt", "You serve customers.")
    return create_agent(script, tools, middleware=middleware, **options)


def asking(text: str = "A customer wants money back.") -> dict[str, list[AnyMessage]]:
    return {"messages": [HumanMessage(text)]}


def results(state: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def added(messages: Sequence[BaseMessage]) -> list[str]:
    """What the adapter said in the conversation."""
    ours = [message for message in messages if message.additional_kwargs.get("lc_source") == "skillwire"]
    return [message.text for message in ours]


async def answers(opened: Shop, *turns: Sequence[Call]) -> list[str]:
    """Run an agent through calls, and return what the model was given as their results."""
    found = results(await agent_of(opened, Script(*turns)).ainvoke(asking()))
    expected = ["error" if is_refusal(message.text) else "success" for message in found]
    assert [message.status for message in found] == expected
    return [message.text for message in found]


@asynccontextmanager
async def ran(
    folder: Path, *turns: Turn, replies: Sequence[Reply] = (), **options: Any
) -> AsyncGenerator[tuple[Shop, Script, list[ToolMessage]]]:
    """Run an agent through a script, and give what it was returned by its tools."""
    async with shop(folder, *replies) as opened:
        script = Script(*turns)
        state = await agent_of(opened, script, **options).ainvoke(asking())
        yield opened, script, results(state)


@pytest.mark.requirement("HOST-03")
async def test_the_listing_with_origins_and_the_tools_are_there_in_one_step(tmp_path: Path) -> None:
    async with ran(tmp_path) as (opened, script, _):
        [[system, question]] = script.seen
        listing = opened.host.listing()

    assert isinstance(system, SystemMessage) and isinstance(question, HumanMessage)
    assert system.text == f"You serve customers.\n\n{listing}"
    assert ORIGIN in listing and LISTED in listing
    functions = {tool["function"]["name"]: tool["function"] for tool in script.offered[0]}
    assert set(functions) == {*NAMES, FILE_TOOL, SERVER_TOOL, "publish"}
    assert functions["load_skill"]["parameters"]["required"] == ["skill"]


@pytest.mark.parametrize(
    "prompt", [None, SystemMessage([{"type": "text", "text": "You serve.", "cache_control": {"type": "x"}}])]
)
async def test_the_listing_comes_after_whatever_system_message_there_is(
    tmp_path: Path, prompt: SystemMessage | None
) -> None:
    async with ran(tmp_path, system_prompt=prompt) as (opened, script, _):
        listing = opened.host.listing()

    blocks = cast("list[Any] | str", script.seen[0][0].content)  # pyright: ignore[reportUnknownMemberType]
    kept = cast("list[Any]", prompt.content) if prompt else []  # pyright: ignore[reportUnknownMemberType]
    assert blocks == ([*kept, {"type": "text", "text": listing}] if prompt else listing)


@pytest.mark.requirement("SEC-04")
async def test_tools_that_other_middleware_runs_are_gated_and_undeclared_ones_count_as_running_code(
    tmp_path: Path,
) -> None:
    ran_it: list[str] = []

    class Launcher(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(
            self,
            request: ToolCallRequest,
            handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
        ) -> ToolMessage | Command[Any]:
            if request.tool_call["name"] != "launch":
                return await handler(request)
            ran_it.append(request.tool_call["args"]["command"])
            return ToolMessage("launched", tool_call_id=request.tool_call["id"])

    launch = ("launch", {"command": "make"})
    replies = [Reply.ONCE, Reply.DENY]
    async with ran(tmp_path, [LOAD], [launch], replies=replies, middleware=[Launcher()]) as (
        opened,
        _,
        found,
    ):
        assert refusal_in(found[1].text)["code"] == "execution"
        assert ran_it == [] and opened.user.questions[-1].call.startswith("launch (execute)")


async def test_changes_are_appended_and_nothing_that_was_said_before_changes(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        script = Script([WRITE], [PUBLISH], [WRITE])
        agent = agent_of(opened, script)
        first = await agent.ainvoke(asking())
        await opened.publish("later")
        again = await agent.ainvoke({"messages": [*first["messages"], HumanMessage("Another one.")]})

    for before, after in pairwise(script.seen):
        assert [message.model_dump(exclude={"id"}) for message in after[: len(before)]] == [
            message.model_dump(exclude={"id"}) for message in before
        ]
    [late, later] = added(again["messages"])
    assert f"added {LABEL}/late" in late and f"added {LABEL}/later" in later
    assert [len(added(seen)) for seen in script.seen] == [0, 0, 1, 1, 2]


async def test_a_nudge_follows_the_results_of_a_turn_with_a_call_of_the_servers_tool_once(
    tmp_path: Path,
) -> None:
    async with ran(tmp_path, [REFUND, WRITE], [REFUND]) as (opened, script, found):
        assert opened.refunded == ["7", "7"]

    [nudge] = added(script.seen[-1])
    assert REFUNDS in nudge and SERVER_TOOL in nudge
    kinds = [message.type for message in script.seen[1]]
    assert kinds == ["system", "human", "ai", "tool", "tool", "human"]
    assert [result.text for result in found] == ["refunded: 7", "written: hello", "refunded: 7"]


async def test_an_exception_of_the_one_who_asks_ends_the_run(tmp_path: Path) -> None:
    class Absent(User):
        async def __call__(self, question: Question) -> Reply:
            raise Broken

    async with shop(tmp_path, user=Absent()) as opened:
        with pytest.raises(Broken):
            await agent_of(opened, Script([LOAD])).ainvoke(asking())
        assert opened.host.loaded == ()


async def test_cancelling_while_the_user_is_asked_loads_and_runs_nothing(tmp_path: Path) -> None:
    class Slow(User):
        async def __call__(self, question: Question) -> Reply:
            asked.set()
            await anyio.sleep_forever()
            raise AssertionError

    asked = anyio.Event()
    async with shop(tmp_path, user=Slow()) as opened:
        agent = agent_of(opened, Script([LOAD]))
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(agent.ainvoke, asking())
                await asked.wait()
                group.cancel_scope.cancel()
        assert opened.host.loaded == ()


async def test_the_user_can_be_asked_with_an_interrupt_of_the_graph(tmp_path: Path) -> None:
    class Away(User):
        async def __call__(self, question: Question) -> Reply:
            self.questions.append(question)
            return Reply(interrupt({"occasion": question.occasion.value}))

    config: RunnableConfig = {"configurable": {"thread_id": "1"}}
    async with shop(tmp_path, user=Away()) as opened:
        script = Script([LOAD], [WRITE])
        agent = agent_of(opened, script, checkpointer=InMemorySaver())

        paused = await agent.ainvoke(asking(), config)
        assert opened.host.loaded == ()
        again = await agent.ainvoke(Command(resume="once"), config)
        assert len(opened.host.loaded) == 1
        done = await agent.ainvoke(Command(resume="deny"), config)

        assert [[item.value["occasion"] for item in state["__interrupt__"]] for state in (paused, again)] == [
            ["first"],
            ["call"],
        ]
        assert opened.notebook.lines == []
    loaded, denied = results(done)
    assert SHOWN in loaded.text and refusal_in(denied.text)["code"] == "writing"


async def test_a_sub_agent_is_gated_for_what_its_parent_has_loaded(tmp_path: Path) -> None:
    async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened:
        await opened.host.load(REFUNDS)
        agent = agent_of(opened, Script([WRITE]), guard=opened.guard(opened.host.child()))
        state = await agent.ainvoke(asking())

        assert opened.notebook.lines == []
    assert refusal_in(results(state)[0].text)["code"] == "writing"


async def test_a_tool_that_takes_the_name_of_one_of_ours_is_an_error_before_anything_runs(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path) as opened:
        impostor = StructuredTool.from_function(opened.notebook.write, name="load_skill")
        script = Script([("load_skill", {"text": "hello"})])

        with pytest.raises(ValueError, match="load_skill"):
            await agent_of(opened, script, tools=[impostor]).ainvoke(asking())
        with pytest.raises(ValueError, match="load_skill"):
            Skills(opened.guard()).tool_node([impostor])

        assert (script.seen, opened.notebook.lines) == ([], [])


async def test_the_synchronous_methods_of_an_agent_raise_and_run_no_tool(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        script = Script([WRITE])
        skills = Skills(opened.guard())
        answer = AIMessage("", tool_calls=[ToolCall(name=FILE_TOOL, args={"text": "hello"}, id="1")])
        graph = StateGraph(MessagesState).add_node("tools", skills.tool_node(own_tools(opened)))  # pyright: ignore[reportUnknownMemberType]
        tools = graph.add_edge(START, "tools").compile()  # pyright: ignore[reportUnknownMemberType]

        with pytest.raises(TypeError):
            agent_of(opened, script).invoke(asking())
        with pytest.raises(NotImplementedError):
            tools.invoke({"messages": [answer]})  # pyright: ignore[reportUnknownMemberType]

        assert (script.seen, opened.notebook.lines) == ([], [])


@pytest.mark.parametrize("declared", [False, True])
async def test_tools_that_run_elsewhere_are_taken_away_while_a_skill_restricts_them(
    tmp_path: Path, declared: bool
) -> None:
    kinds = {"web_search": ToolKind.READ, "google_search": ToolKind.READ} if declared else {}
    elsewhere: list[Any] = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "web_search"},
        {"google_search": {}},
    ]
    here: list[Any] = [
        {"type": "function", "function": {"name": "launch", "parameters": {}}},
        {"name": "launch_too", "input_schema": {"type": "object"}},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    ]

    async with shop(tmp_path) as opened:
        script = Script([LOAD])
        agent = agent_of(opened, script, guard=Guard(opened.host, kinds), tools=[*elsewhere, *here])
        await agent.ainvoke(asking())

    offered = [[tool for tool in tools if tool in elsewhere] for tools in script.offered]
    assert offered == [elsewhere, elsewhere if declared else []]
    assert all(tool in tools for tools in script.offered for tool in here)


async def test_a_graph_of_ones_own_gets_listing_tools_gate_and_changes(tmp_path: Path) -> None:
    async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened:
        script = Script([LOAD], [WRITE], [PUBLISH])
        skills = Skills(Guard(opened.host, {FILE_TOOL: ToolKind.WRITE, "publish": ToolKind.READ}))
        tools = skills.tool_node(own_tools(opened))
        model = script.bind_tools(list(tools.tools_by_name.values()))

        async def call_model(state: MessagesState) -> dict[str, Any]:
            system = SystemMessage(opened.host.listing())
            return {"messages": [await model.ainvoke([system, *state["messages"]])]}

        graph: Any = StateGraph(MessagesState)
        graph.add_node("news", skills.abefore_model)
        graph.add_node("model", call_model)
        graph.add_node("tools", tools)
        graph.add_edge(START, "news")
        graph.add_edge("news", "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "news")
        state = await graph.compile().ainvoke(asking())

        assert opened.notebook.lines == []
    loaded, denied, _ = results(state)
    assert SHOWN in loaded.text
    assert (refusal_in(denied.text)["code"], denied.status) == ("writing", "error")
    [late] = added(state["messages"])
    assert f"added {LABEL}/late" in late and late == script.seen[-1][-1].text


def test_without_the_framework_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain.agents.middleware", None)
    monkeypatch.delitem(sys.modules, Skills.__module__)

    with pytest.raises(ImportError, match=r"skillwire\[langchain\]"):
        importlib.import_module(Skills.__module__)


@pytest.mark.requirement("HOST-15")
async def test_a_text_that_was_summarised_is_given_again_at_once_and_stays(tmp_path: Path) -> None:
    summaries = SummarizationMiddleware(Script(), trigger=("messages", 6), keep=("messages", 2))
    async with shop(tmp_path) as opened:
        script = Script([LOAD], [WRITE], [READ], [WRITE])
        state = await agent_of(opened, script, middleware=[summaries]).ainvoke(asking())
        [window] = opened.host.loaded

    counts = [repr(messages).count(SHOWN) for messages in script.seen]
    assert len(script.seen) == 5 and set(counts[1:]) == {1}, "in every request since it was loaded, and once"
    assert any("summar" in message.text for message in script.seen[-1])
    again = [text for text in added(script.seen[-1]) if SHOWN in text]
    assert len(again) == 1
    assert f"----- begin {window.boundary} -----\n{SHOWN}\n" in again[0] and ORIGIN in again[0]
    assert repr(state["messages"]).count(SHOWN) == 1
    assert opened.user.occasions.count(Occasion.FIRST) == 1
