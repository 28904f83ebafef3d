"""The adapter for pydantic-ai, in a real agent with a scripted model, in front of a real server."""

import importlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.capabilities import NativeTool, ProcessHistory
from pydantic_ai.exceptions import UnexpectedModelBehavior, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset

from interop.adapting import (
    FILE_TOOL,
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
from skillwire.host.adapters.pydantic_ai import Skills

LOAD = ToolCallPart("load_skill", {"skill": REFUNDS})
READ = ToolCallPart("read_skill_file", {"skill": REFUNDS, "path": POLICY_PATH})
WRITE = ToolCallPart(FILE_TOOL, {"text": "hello"})
REFUND = ToolCallPart(SERVER_TOOL, {"order": "7"})

PROFILE = ModelProfile(supports_inline_system_prompts=True, supported_native_tools=frozenset({WebSearchTool}))

Turn: TypeAlias = Sequence[ToolCallPart]


class Script:
    """A model that makes the given calls, turn by turn, and then says that it is done."""

    def __init__(self, *turns: Turn) -> None:
        self._turns = list(turns)
        self.seen: list[list[ModelMessage]] = []
        self.infos: list[AgentInfo] = []
        self.model = FunctionModel(self._answer, profile=PROFILE)

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen.append(list(messages))
        self.infos.append(info)
        turn = self._turns.pop(0) if self._turns else ()
        calls = [ToolCallPart(call.tool_name, call.args) for call in turn]
        return ModelResponse(parts=calls or [TextPart("done")])

    @property
    def offered(self) -> list[list[str]]:
        """The names of the function tools the model was offered, by request."""
        return [[tool.name for tool in info.function_tools] for info in self.infos]


def agent_of(shop: Shop, script: Script, **options: Any) -> Agent[None, str]:
    agent = Agent(
        script.model,
        instructions="You serve customers.",
        capabilities=[Skills(shop.guard()), *options.pop("capabilities", ())],
        **options,
    )
    agent.tool_plain(name=FILE_TOOL)(shop.notebook.write)
    agent.tool_plain(name=SERVER_TOOL)(shop.create_refund)
    return agent


def returns(messages: Sequence[ModelMessage]) -> list[ToolReturnPart]:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return [part for part in parts if isinstance(part, ToolReturnPart)]


def prompts(messages: Sequence[ModelMessage]) -> list[str]:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return [part.content for part in parts if isinstance(part, SystemPromptPart)]


def text_of(part: ToolReturnPart) -> str:
    return part.model_response_str(wrap_if_error=False)


async def answers(opened: Shop, *turns: Sequence[Call]) -> list[str]:
    """Run an agent through calls, and return what the model was given as their results."""
    script = Script(*([ToolCallPart(name, args) for name, args in turn] for turn in turns))
    result = await agent_of(opened, script).run("A customer wants money back.")
    found = [(text_of(part), part.outcome) for part in returns(result.all_messages())]
    assert all((outcome == "failed") == is_refusal(text) for text, outcome in found)
    return [text for text, _ in found]


@asynccontextmanager
async def ran(
    folder: Path, *turns: Turn, replies: Sequence[Reply] = (), **options: Any
) -> AsyncGenerator[tuple[Shop, Script, list[ToolReturnPart]]]:
    """Run an agent through a script, and give what it was returned by its tools."""
    async with shop(folder, *replies) as opened:
        script = Script(*turns)
        result = await agent_of(opened, script, **options).run("A customer wants money back.")
        yield opened, script, returns(result.all_messages())


@pytest.mark.requirement("HOST-03")
async def test_the_listing_with_origins_and_the_tools_are_there_in_one_step(tmp_path: Path) -> None:
    async with ran(tmp_path) as (opened, script, _):
        [info] = script.infos
        listing = opened.host.listing()

    assert info.instructions is not None
    assert info.instructions.startswith("You serve customers.") and info.instructions.endswith(listing)
    assert ORIGIN in info.instructions and LISTED in info.instructions
    names = ["load_skill", "read_skill_file", "list_skill_files", "search_skills"]
    assert script.offered == [[FILE_TOOL, SERVER_TOOL, *names]]
    load = next(tool for tool in info.function_tools if tool.name == "load_skill")
    assert load.parameters_json_schema["required"] == ["skill"]


async def test_arguments_that_are_no_object_are_sent_back_for_another_try(tmp_path: Path) -> None:
    wrong = ToolCallPart("load_skill", '["shop/refunds"]')

    async with ran(tmp_path, [wrong], [LOAD]) as (_, _, results):
        assert [result.outcome for result in results][-1] == "success"
        assert SHOWN in text_of(results[-1])


@pytest.mark.requirement("SEC-04")
async def test_tools_of_toolsets_are_guarded_and_an_undeclared_one_counts_as_running_code(
    tmp_path: Path,
) -> None:
    ran_it: list[str] = []

    def launch(command: str) -> str:
        ran_it.append(command)
        return "launched"

    toolset = FunctionToolset([launch]).prefixed("my")
    call = ToolCallPart("my_launch", {"command": "make"})

    replies = [Reply.ONCE, Reply.DENY]
    async with ran(tmp_path, [LOAD], [call], replies=replies, toolsets=[toolset]) as (opened, _, results):
        assert refusal_in(text_of(results[1]))["code"] == "execution"
        assert ran_it == []
        assert opened.user.questions[-1].call == 'my_launch (execute): {"command": "make"}'


async def test_changes_are_appended_and_nothing_that_was_said_before_changes(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        script = Script([WRITE], [ToolCallPart("publish", {})], [WRITE])
        agent = agent_of(opened, script)

        async def publish() -> str:
            await opened.publish("late")
            return "published"

        agent.tool_plain(publish)
        first = await agent.run("A customer wants money back.")
        await opened.publish("later")
        again = await agent.run("Another one.", message_history=first.all_messages())

    assert len({info.instructions for info in script.infos}) == 1
    for before, after in zip(script.seen, script.seen[1:], strict=False):
        assert [str(message.parts) for message in after[: len(before)]] == [
            str(message.parts) for message in before
        ]
    [late, later] = prompts(again.all_messages())
    assert "added shop/late" in late and "added shop/later" in later
    assert [len(prompts(seen)) for seen in script.seen] == [0, 0, 1, 1, 2]


async def test_a_nudge_follows_a_call_of_the_servers_tool_once(tmp_path: Path) -> None:
    async with ran(tmp_path, [REFUND], [REFUND]) as (opened, script, results):
        assert opened.refunded == ["7", "7"]

    [nudge] = prompts(script.seen[-1])
    assert REFUNDS in nudge and SERVER_TOOL in nudge
    assert prompts(script.seen[1]) == [nudge]
    assert [text_of(result) for result in results] == ["refunded: 7"] * 2


async def test_an_exception_of_the_one_who_asks_ends_the_run(tmp_path: Path) -> None:
    class Absent(User):
        async def __call__(self, question: Question) -> Reply:
            raise Broken

    async with shop(tmp_path, user=Absent()) as opened:
        with pytest.raises(Broken):
            await agent_of(opened, Script([LOAD])).run("A customer wants money back.")
        assert opened.host.loaded == ()


async def test_cancelling_while_the_user_is_asked_loads_and_runs_nothing(tmp_path: Path) -> None:
    class Slow(User):
        async def __call__(self, question: Question) -> Reply:
            self.questions.append(question)
            asked.set()
            await anyio.sleep_forever()
            raise AssertionError

    asked = anyio.Event()
    async with shop(tmp_path, user=Slow()) as opened:
        agent = agent_of(opened, Script([LOAD]))
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(agent.run, "A customer wants money back.")
                await asked.wait()
                group.cancel_scope.cancel()
        assert opened.host.loaded == ()


async def test_a_sub_agent_is_gated_for_what_its_parent_has_loaded(tmp_path: Path) -> None:
    async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened:
        await opened.host.load(REFUNDS)
        child = opened.host.child()
        script = Script([WRITE])
        agent = Agent(script.model, capabilities=[Skills(opened.guard(child))])
        agent.tool_plain(name=FILE_TOOL)(opened.notebook.write)
        result = await agent.run("Write.")

        assert opened.notebook.lines == []
    assert refusal_in(text_of(returns(result.all_messages())[0]))["code"] == "writing"


async def test_a_tool_that_takes_the_name_of_one_of_ours_is_an_error_before_anything_runs(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path) as opened:
        agent = agent_of(opened, Script())
        agent.tool_plain(name="load_skill")(opened.notebook.write)

        with pytest.raises(UserError, match="load_skill"):
            await agent.run("A customer wants money back.")


@pytest.mark.parametrize("declared", [False, True])
async def test_tools_that_run_elsewhere_are_taken_away_while_a_skill_restricts_them(
    tmp_path: Path, declared: bool
) -> None:
    kinds = {"web_search": ToolKind.READ, "phone": ToolKind.READ} if declared else {}
    external = ExternalToolset[object]([ToolDefinition(name="phone")])

    async with shop(tmp_path) as opened:
        script = Script([LOAD])
        agent = Agent(
            script.model,
            output_type=[str, DeferredToolRequests],
            toolsets=[external],
            capabilities=[NativeTool(WebSearchTool()), Skills(Guard(opened.host, kinds))],
        )
        await agent.run("A customer wants money back.")

    native = [len(info.model_request_parameters.native_tools) for info in script.infos]
    assert native == [1, 1 if declared else 0]
    assert ["phone" in offered for offered in script.offered] == [True, declared]


async def test_an_output_function_is_gated_like_any_other_tool(tmp_path: Path) -> None:
    async with shop(tmp_path, Reply.ONCE, Reply.DENY, Reply.ONCE) as opened:

        def save(text: str) -> str:
            """Save the answer."""
            return opened.notebook.write(text)

        save_it = ToolCallPart("final_result", {"text": "hello"})
        script = Script([LOAD], [save_it], [save_it])
        agent = Agent(script.model, output_type=save, capabilities=[Skills(opened.guard())])
        result = await agent.run("A customer wants money back.")

        assert (result.output, opened.notebook.lines) == ("written: hello", ["hello"])
    denied = next(part for part in returns(script.seen[-1]) if part.tool_name == "final_result")
    assert refusal_in(str(denied.content))["code"] == "execution"


async def test_an_output_function_gets_no_beginning_of_a_stream_before_the_user_agreed(
    tmp_path: Path,
) -> None:
    got: list[str] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if not returns(messages):
            yield {0: DeltaToolCall(LOAD.tool_name, LOAD.args_as_json_str())}
        else:
            for piece in ('{"text": "a', "b", 'c"}'):
                yield {0: DeltaToolCall("final_result" if piece.startswith("{") else None, piece)}

    def save(text: str) -> str:
        """Save the answer."""
        got.append(text)
        return text

    async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened:
        agent = Agent(
            FunctionModel(stream_function=answer), output_type=save, capabilities=[Skills(opened.guard())]
        )
        with pytest.raises(UnexpectedModelBehavior):
            async with agent.run_stream("A customer wants money back.") as stream:
                async for _ in stream.stream_output(debounce_by=None):
                    pass

        assert (got, opened.user.occasions) == ([], [Occasion.FIRST, Occasion.CALL])


def test_without_the_framework_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_ai.capabilities", None)
    monkeypatch.delitem(sys.modules, Skills.__module__)

    with pytest.raises(ImportError, match=r"skillwire\[pydantic-ai\]"):
        importlib.import_module(Skills.__module__)


def summarised(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Replace all but the last exchange by a summary, as a history processor may do."""
    if len(messages) < 5:
        return messages
    return [ModelRequest(parts=[UserPromptPart("A summary.")]), *messages[-2:]]


@pytest.mark.requirement("HOST-15", "SEC-11")
async def test_a_text_that_a_history_processor_took_away_is_given_again_once(tmp_path: Path) -> None:
    turns = ([LOAD], [WRITE], [READ], [WRITE])
    async with shop(tmp_path) as opened:
        script = Script(*turns)
        agent = agent_of(opened, script, capabilities=[ProcessHistory(summarised)])
        result = await agent.run("A customer wants money back.")
        [window] = opened.host.loaded

    counts = [repr(messages).count(SHOWN) for messages in script.seen]
    assert counts == [0, 1, 1, 1, 1]
    assert not any(SHOWN in text_of(part) for part in returns(script.seen[2]))
    assert not any(SHOWN in text for text in prompts(script.seen[2]))
    parts = [part for message in script.seen[2] for part in message.parts]
    again = next(
        str(part.content) for part in parts if isinstance(part, UserPromptPart) and SHOWN in part.content
    )
    assert f"----- begin {window.boundary} -----\n{SHOWN}\n" in again and ORIGIN in again
    assert repr(result.all_messages()).count(SHOWN) == 1
    assert opened.user.occasions.count(Occasion.FIRST) == 1
