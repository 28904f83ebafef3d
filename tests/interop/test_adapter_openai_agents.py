"""The adapter for the OpenAI Agents SDK, with its own runner and scripted model, and a real server."""

import importlib
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeAlias, cast

import anyio
import pytest
from agents import (
    Agent,
    CodeInterpreterTool,
    FunctionTool,
    RunConfig,
    Runner,
    RunResult,
    SQLiteSession,
    Tool,
    TResponseInputItem,
    UserError,
    WebSearchTool,
    function_tool,
    handoff,
)
from agents.mcp import MCPServerStdio
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext

from interop.adapting import (
    FILE_TOOL,
    LISTED,
    ORIGIN,
    POLICY_PATH,
    REFUNDS,
    SERVER_TOOL,
    SHOWN,
    Broken,
    Reply,
    Shop,
    User,
    refusal_in,
    shop,
)
from serving import environment
from skillwire.host import Guard, Occasion, Question, ToolKind
from skillwire.host.adapters.openai_agents import SkillAgent, restore_skills

RawCall: TypeAlias = tuple[str, Mapping[str, Any] | str]

LOAD: RawCall = ("load_skill", {"skill": REFUNDS})
READ: RawCall = ("read_skill_file", {"skill": REFUNDS, "path": POLICY_PATH})
WRITE: RawCall = (FILE_TOOL, {"text": "hello"})
REFUND: RawCall = (SERVER_TOOL, {"order": "7"})

COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "a summary"}
QUIET = RunConfig(tracing_disabled=True)
ASKED = "A customer wants money back."

# An ordinary MCP server, as the SDK's own client would use it beside the host.
DESK = """
import sys
from mcp.server.mcpserver import MCPServer

mcp = MCPServer("desk")

@mcp.tool(structured_output=False)
def create_refund(order: str) -> str:
    with open(sys.argv[1], "a") as file:
        file.write(order + "\\n")
    return "refunded: " + order

mcp.run("stdio")
"""


def scripted(*turns: Sequence[RawCall]) -> ScriptedModel:
    """Make a model that makes the given calls, turn by turn, and then says that it is done."""
    numbers = count()
    return ScriptedModel(
        [
            *([function_call(*call, call_id=f"call-{next(numbers)}") for call in turn] for turn in turns),
            [assistant_message("done")],
        ]
    )


def own_tools(shop: Shop) -> list[Tool]:
    return [
        function_tool(shop.notebook.write, name_override=FILE_TOOL),
        function_tool(shop.create_refund, name_override=SERVER_TOOL),
    ]


def agent_of(shop: Shop, model: ScriptedModel, **options: Any) -> SkillAgent[None]:
    options = {"tools": own_tools(shop), "guard": shop.guard(), **options}
    return SkillAgent(name="desk", instructions="You serve customers.", model=model, **options)


def outputs(items: object) -> list[Any]:
    """Return what the tools answered, as the model gets it."""
    found = cast("list[dict[str, Any]]", items)
    return [item["output"] for item in found if item.get("type") == "function_call_output"]


async def run(agent: Agent[None], asked: Any = ASKED) -> RunResult:
    return await Runner.run(agent, asked, run_config=QUIET)


async def answers(opened: Shop, *turns: Sequence[RawCall]) -> list[str]:
    """Run an agent through calls, and return what the model was given as their results."""
    model = scripted(*turns)
    result = await run(agent_of(opened, model))
    model.assert_complete()
    return outputs(result.to_input_list())


@asynccontextmanager
async def ran(
    folder: Path, *turns: Sequence[RawCall], replies: Sequence[Reply] = (), **options: Any
) -> AsyncGenerator[tuple[Shop, ScriptedModel, list[Any]]]:
    """Run an agent through a script, and give what its tools answered."""
    async with shop(folder, *replies) as opened:
        model = scripted(*turns)
        result = await run(agent_of(opened, model, **options))
        model.assert_complete()
        yield opened, model, outputs(result.to_input_list())


@pytest.mark.requirement("HOST-03")
async def test_the_listing_with_origins_and_the_tools_are_there_in_one_step(tmp_path: Path) -> None:
    async with ran(tmp_path) as (opened, model, _):
        [call] = model.calls
        listing = opened.host.listing()

    assert call.system_instructions == f"You serve customers.\n\n{listing}"
    assert ORIGIN in listing and LISTED in listing
    names = ["load_skill", "read_skill_file", "list_skill_files", "search_skills"]
    assert [tool.name for tool in call.tools] == [FILE_TOOL, SERVER_TOOL, *names]
    load = call.tools[2]
    assert isinstance(load, FunctionTool) and load.params_json_schema["required"] == ["skill"]


async def test_arguments_that_are_no_object_are_refused(tmp_path: Path) -> None:
    async with ran(tmp_path, [("load_skill", "{"), ("load_skill", '["shop/refunds"]')]) as (_, _, results):
        assert [refusal_in(result)["code"] for result in results] == ["invalid-arguments"] * 2


@pytest.mark.requirement("SEC-04")
async def test_an_undeclared_tool_counts_as_running_code(
    tmp_path: Path,
) -> None:
    launched: list[str] = []

    @function_tool
    def launch(command: str) -> str:
        launched.append(command)
        return "launched"

    replies = [Reply.ONCE, Reply.DENY]
    turns: list[list[RawCall]] = [[LOAD], [("launch", {"command": "make"})]]
    async with ran(tmp_path, *turns, replies=replies, tools=[launch]) as (opened, _, results):
        assert refusal_in(results[1])["code"] == "execution"
        assert launched == []
        assert opened.user.questions[-1].call == 'launch (execute): {"command": "make"}'


async def test_the_user_sees_what_a_tool_would_get_also_when_it_is_no_object(tmp_path: Path) -> None:
    got: list[str] = []

    async def invoke(context: ToolContext[Any], arguments: str) -> str:
        got.append(arguments)
        return "launched"

    launch = FunctionTool("launch", "Launch something.", {}, invoke, strict_json_schema=False)
    turns: list[list[RawCall]] = [[LOAD], [("launch", "rm -r .")]]
    async with ran(tmp_path, *turns, replies=[Reply.ONCE, Reply.DENY], tools=[launch]) as (opened, _, _):
        assert (got, "rm -r ." in opened.user.questions[-1].call) == ([], True)


async def test_a_question_does_not_count_as_the_time_a_tool_takes(tmp_path: Path) -> None:
    @function_tool(timeout=0.2)
    async def launch() -> str:
        return "launched"

    class Thoughtful(User):
        async def __call__(self, question: Question) -> Reply:
            await anyio.sleep(0.5)
            return await super().__call__(question)

    async with shop(tmp_path, user=Thoughtful()) as opened:
        result = await run(agent_of(opened, scripted([LOAD], [("launch", {})]), tools=[launch]))

    assert outputs(result.to_input_list())[1] == "launched"


async def test_changes_are_appended_and_nothing_that_was_said_before_changes(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:

        @function_tool
        async def publish() -> str:
            await opened.publish("late")
            return "published"

        model = scripted([WRITE], [("publish", {})], [WRITE])
        agent = agent_of(opened, model, tools=[*own_tools(opened), publish])
        first = await run(agent)
        await opened.publish("later")
        model.extend([[function_call(*LOAD, call_id="again")], [assistant_message("done")]])
        second = await run(agent, [*first.to_input_list(), {"role": "user", "content": "Another one."}])

    calls = model.calls
    assert len({call.system_instructions for call in calls}) == 1
    for before, after in pairwise(calls):
        assert after.input[: len(before.input)] == before.input
    results = outputs(second.to_input_list())
    assert [result.count("The list of skills above has changed") for result in results] == [0, 1, 0, 1]
    assert results[1].startswith("published\n\n") and "added shop/late" in results[1]
    assert SHOWN in results[3] and "added shop/later" in results[3]


async def test_a_nudge_comes_before_the_result_of_a_servers_tool_once(tmp_path: Path) -> None:
    async with ran(tmp_path, [REFUND], [REFUND]) as (opened, _, [first, second]):
        assert opened.refunded == ["7", "7"]

    nudge, result = first.split("\n\n")
    assert REFUNDS in nudge and SERVER_TOOL in nudge
    assert (result, second) == ("refunded: 7", "refunded: 7")


async def test_tools_of_mcp_servers_are_guarded_and_nudged_too(tmp_path: Path) -> None:
    file = tmp_path / "refunds.txt"
    params: Any = {"command": sys.executable, "args": ["-c", DESK, str(file)], "env": environment(tmp_path)}
    async with (
        shop(tmp_path, Reply.ONCE, Reply.DENY) as opened,
        MCPServerStdio(params, name="desk") as server,
    ):
        guard = Guard(opened.host, {SERVER_TOOL: ToolKind.NETWORK}, servers={SERVER_TOOL: "shop"})
        agent = agent_of(
            opened, scripted([REFUND], [LOAD], [REFUND]), mcp_servers=[server], tools=[], guard=guard
        )
        result = await run(agent)

    allowed, _, denied = outputs(result.to_input_list())
    assert [part["text"] for part in allowed][1:] == ["refunded: 7"] and REFUNDS in allowed[0]["text"]
    assert (refusal_in(denied)["code"], file.read_text()) == ("network", "7\n")


async def test_a_streamed_run_is_gated_in_the_same_way(tmp_path: Path) -> None:
    async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened:
        streamed = Runner.run_streamed(agent_of(opened, scripted([LOAD], [WRITE])), ASKED, run_config=QUIET)
        async for _ in streamed.stream_events():
            pass

        assert opened.notebook.lines == []
    assert refusal_in(outputs(streamed.to_input_list())[1])["code"] == "writing"


@pytest.mark.parametrize("call", [LOAD, WRITE])
async def test_an_exception_of_the_one_who_asks_ends_the_run(tmp_path: Path, call: RawCall) -> None:
    class Failing(User):
        async def __call__(self, question: Question) -> Reply:
            if question.call or call is LOAD:
                raise Broken
            return await super().__call__(question)

    async with shop(tmp_path, user=Failing()) as opened:
        if call is WRITE:
            await opened.host.load(REFUNDS)
        with pytest.raises((Broken, UserError)) as caught:
            await run(agent_of(opened, scripted([call])))

        assert isinstance(caught.value, Broken) or isinstance(caught.value.__cause__, Broken)
        assert opened.notebook.lines == []


async def test_cancelling_while_the_user_is_asked_loads_nothing(tmp_path: Path) -> None:
    class Slow(User):
        async def __call__(self, question: Question) -> Reply:
            asked.set()
            await anyio.sleep_forever()
            raise AssertionError

    asked = anyio.Event()
    async with shop(tmp_path, user=Slow()) as opened:
        agent = agent_of(opened, scripted([LOAD]))
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(run, agent)
                await asked.wait()
                group.cancel_scope.cancel()
        assert opened.host.loaded == ()


async def test_a_sub_agent_is_gated_for_what_its_parent_has_loaded(tmp_path: Path) -> None:
    async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened:
        await opened.host.load(REFUNDS)
        guard = opened.guard(opened.host.child())
        result = await run(agent_of(opened, scripted([WRITE]), guard=guard))

        assert opened.notebook.lines == []
    assert refusal_in(outputs(result.to_input_list())[0])["code"] == "writing"


async def test_a_handoff_leads_only_to_an_agent_behind_the_same_gate(tmp_path: Path) -> None:
    async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened:
        plain: Agent[None] = Agent(name="plain", tools=own_tools(opened))
        apart = agent_of(opened, scripted(), guard=opened.guard(opened.host.child()))
        for other in (plain, handoff(plain), apart):
            with pytest.raises(UserError, match="bypass the gate"):
                await run(agent_of(opened, scripted(), handoffs=[other]))

        model = scripted([LOAD], [("transfer_to_desk", {})], [WRITE])
        agent = agent_of(opened, model, handoffs=[agent_of(opened, model)])
        result = await run(agent)

        assert opened.notebook.lines == []
    assert refusal_in(outputs(result.to_input_list())[-1])["code"] == "writing"


async def test_a_tool_that_takes_the_name_of_one_of_ours_is_an_error_before_anything_runs(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path) as opened:
        taken = function_tool(opened.notebook.write, name_override="load_skill")
        with pytest.raises(UserError, match="load_skill"):
            await run(agent_of(opened, scripted([LOAD]), tools=[taken]))

        assert opened.notebook.lines == []


async def test_tools_that_are_no_functions_are_taken_away_while_a_skill_restricts_them(
    tmp_path: Path,
) -> None:
    hosted = [
        WebSearchTool(),
        CodeInterpreterTool({"type": "code_interpreter", "container": {"type": "auto"}}),
    ]

    async with shop(tmp_path) as opened:
        model = scripted([LOAD])
        guard = Guard(opened.host, {"web_search": ToolKind.READ})
        await run(agent_of(opened, model, tools=hosted, guard=guard))

    offered = [{tool.name for tool in call.tools} for call in model.calls]
    assert ["code_interpreter" in names for names in offered] == [True, False]
    assert ["web_search" in names for names in offered] == [True, True]


async def test_a_clone_keeps_the_gate(tmp_path: Path) -> None:
    async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened:
        agent = agent_of(opened, scripted()).clone(model=scripted([LOAD], [WRITE]), name="other")
        result = await run(agent)

        assert opened.notebook.lines == []
    assert refusal_in(outputs(result.to_input_list())[1])["code"] == "writing"


def test_without_the_framework_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agents", None)
    monkeypatch.delitem(sys.modules, SkillAgent.__module__)

    with pytest.raises(ImportError, match=r"skillwire\[openai-agents\]"):
        importlib.import_module(SkillAgent.__module__)


@pytest.mark.requirement("HOST-15")
@pytest.mark.parametrize("summary", ["message", "compaction"])
async def test_a_text_that_a_compacted_session_has_no_more_comes_with_every_request(
    tmp_path: Path, summary: str
) -> None:
    session = SQLiteSession("desk")
    config = RunConfig(tracing_disabled=True, call_model_input_filter=restore_skills)
    async with shop(tmp_path) as opened:
        agent = agent_of(opened, scripted([LOAD]))
        await Runner.run(agent, ASKED, session=session, run_config=config)
        agent.model = model = scripted([WRITE])
        if summary == "message":
            await session.clear_session()
        item = {"message": {"role": "user", "content": "A summary."}, "compaction": COMPACTION}[summary]
        await session.add_items([cast("TResponseInputItem", item)])
        await Runner.run(agent, ASKED, session=session, run_config=config)
        [window] = opened.host.loaded

    assert len(model.calls) == 2
    for call in model.calls:
        last = cast("list[dict[str, Any]]", call.input)[-1]["content"]
        assert f"----- begin {window.boundary} -----\n{SHOWN}\n" in last and ORIGIN in last
    assert opened.user.occasions.count(Occasion.FIRST) == 1


async def test_nothing_is_repeated_while_the_text_is_there_or_for_other_agents(tmp_path: Path) -> None:
    config = RunConfig(tracing_disabled=True, call_model_input_filter=restore_skills)
    async with shop(tmp_path) as opened:
        model = scripted([LOAD], [WRITE])
        await Runner.run(agent_of(opened, model), ASKED, run_config=config)
        other = scripted()
        await Runner.run(Agent(name="other", model=other), ASKED, run_config=config)

    assert [repr(call.input).count(SHOWN) for call in model.calls] == [0, 1, 1]
    assert SHOWN not in repr(other.calls[0].input)
