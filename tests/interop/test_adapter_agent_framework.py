"""The adapter for Microsoft's agent-framework, in a real agent with a scripted client, and a real server."""

import importlib
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    MiddlewareFailure,
    ResponseStream,
    SlidingWindowStrategy,
)

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
    refusal_in,
    shop,
)
from skillwire.host import Guard, Occasion, Question, ToolKind
from skillwire.host.adapters.agent_framework import Skills

LOAD = ("load_skill", {"skill": REFUNDS})
READ = ("read_skill_file", {"skill": REFUNDS, "path": POLICY_PATH})
WRITE = (FILE_TOOL, {"text": "hello"})
REFUND = (SERVER_TOOL, {"order": "7"})
PUBLISH: tuple[str, dict[str, Any]] = ("publish", {})
NAMES = ["load_skill", "read_skill_file", "list_skill_files", "search_skills"]

Turn = Sequence[Call]


class Bare(BaseChatClient[Any]):
    """A client that makes the given calls, turn by turn, and then says that it is done."""

    def __init__(self, *turns: Turn) -> None:
        super().__init__()
        self._turns = list(turns)
        self.seen: list[list[Message]] = []
        self.options: list[Mapping[str, Any]] = []

    @property
    def offered(self) -> list[list[object]]:
        """The tools of each request."""
        return [list(options.get("tools") or []) for options in self.options]

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse[Any]] | ResponseStream[ChatResponseUpdate, ChatResponse[Any]]:
        self.seen.append(deepcopy(list(messages)))
        self.options.append(dict(options))
        turn = self._turns.pop(0) if self._turns else ()
        number = len(self.seen)
        calls = [
            Content.from_function_call(f"{number}-{at}", name, arguments=arguments)
            for at, (name, arguments) in enumerate(turn)
        ]
        contents = calls or [Content.from_text("done")]

        async def answer() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message("assistant", contents)])

        async def updates() -> AsyncIterable[ChatResponseUpdate]:
            yield ChatResponseUpdate(role="assistant", contents=contents)

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates) if stream else answer()


class Script(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], Bare):
    """The same, with the layers that all clients of the library have."""

    def __init__(self, *turns: Turn) -> None:
        FunctionInvocationLayer.__init__(self)  # pyright: ignore[reportUnknownMemberType]
        self._turns = list(turns)
        self.seen, self.options = [], []


def own_tools(shop: Shop) -> list[Any]:
    """The tools of the agent: one that writes, one of the server, and one that lets the server change."""

    async def publish() -> str:
        await shop.publish("late")
        return "published"

    return [
        FunctionTool(name=FILE_TOOL, description="Write a note.", func=shop.notebook.write),
        FunctionTool(name=SERVER_TOOL, description="Refund an order.", func=shop.create_refund),
        FunctionTool(name="publish", description="Publish one more.", func=publish),
    ]


def agent_of(
    shop: Shop, client: Bare, *, guard: Guard | None = None, tools: list[Any] | None = None
) -> Agent[Any]:
    return Agent(
        cast("Any", client),
        "You serve customers.",
        tools=own_tools(shop) if tools is None else tools,
        context_providers=[Skills(guard or shop.guard())],
    )


def results(messages: Sequence[Message]) -> list[Content]:
    return [item for message in messages for item in message.contents if item.type == "function_result"]


def texts(result: Content) -> list[str]:
    """The texts of a tool's result, one for each item."""
    return [item.text or "" for item in result.items or []]


async def answers(opened: Shop, *turns: Sequence[Call]) -> list[str]:
    """Run an agent through calls, and return what the model was given as their results."""
    response = await agent_of(opened, Script(*turns)).run("A customer wants money back.")
    found = results(response.messages)
    assert [result.exception for result in found] == [None] * len(found)
    return [text for result in found for text in texts(result)]


@asynccontextmanager
async def ran(
    folder: Path, *turns: Turn, replies: Sequence[Reply] = (), **options: Any
) -> AsyncGenerator[tuple[Shop, Script, list[Content]]]:
    """Run an agent through a script, and give what it was returned by its tools."""
    async with shop(folder, *replies) as opened:
        client = Script(*turns)
        response = await agent_of(opened, client, **options).run("A customer wants money back.")
        yield opened, client, results(response.messages)


@pytest.mark.requirement("HOST-03")
async def test_the_listing_with_origins_and_the_tools_are_there_in_one_step(tmp_path: Path) -> None:
    async with ran(tmp_path) as (opened, client, _):
        listing = opened.host.listing()

    [options] = client.options
    assert options["instructions"] == f"You serve customers.\n{listing}"
    assert ORIGIN in listing and LISTED in listing
    tools = {tool.name: tool for tool in client.offered[0] if isinstance(tool, FunctionTool)}
    assert list(tools) == [FILE_TOOL, SERVER_TOOL, "publish", *NAMES]
    assert tools["load_skill"].parameters()["required"] == ["skill"]


@pytest.mark.requirement("SEC-04")
async def test_an_undeclared_tool_counts_as_running_code(tmp_path: Path) -> None:
    ran_it: list[str] = []

    def launch(command: str) -> str:
        """Launch a command."""
        ran_it.append(command)
        return "launched"

    call = ("launch", {"command": "make"})
    replies = [Reply.ONCE, Reply.DENY]
    async with ran(tmp_path, [LOAD], [call], replies=replies, tools=[launch]) as (opened, _, found):
        assert refusal_in(texts(found[1])[0])["code"] == "execution"
        assert ran_it == [] and opened.user.questions[-1].call.startswith("launch (execute)")


async def test_a_stream_is_gated_in_the_same_way(tmp_path: Path) -> None:
    async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened:
        stream = agent_of(opened, Script([LOAD], [WRITE])).run("A customer wants money back.", stream=True)
        updates = [update async for update in stream]

        assert opened.notebook.lines == []
    loaded, denied = [
        item for update in updates for item in update.contents if item.type == "function_result"
    ]
    assert SHOWN in texts(loaded)[0] and refusal_in(texts(denied)[0])["code"] == "writing"


async def test_changes_are_appended_and_nothing_that_was_said_before_changes(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        client = Script([WRITE], [PUBLISH], [WRITE])
        agent = agent_of(opened, client)
        session = agent.create_session()
        await agent.run("A customer wants money back.", session=session)
        await opened.publish("later")
        await agent.run("Another one.", session=session)
        await agent.run("Good.", session=session)

    assert len({options["instructions"] for options in client.options}) == 1
    said = [
        [(message.role, message.text, *map(texts, results([message]))) for message in seen]
        for seen in client.seen
    ]
    for before, after in pairwise(said):
        assert after[: len(before)] == before
    _, published, _ = results(client.seen[-1])
    [result, late] = texts(published)
    assert result == "published" and f"added {LABEL}/late" in late
    later = [message.text for message in client.seen[-1] if f"added {LABEL}/later" in message.text]
    assert len(later) == 1 and client.seen[4][-1].text == later[0]


async def test_a_nudge_precedes_the_result_of_a_call_of_the_servers_tool_once(tmp_path: Path) -> None:
    async with ran(tmp_path, [REFUND, WRITE], [REFUND]) as (opened, _, found):
        assert opened.refunded == ["7", "7"]

    [nudge, result] = texts(found[0])
    assert REFUNDS in nudge and SERVER_TOOL in nudge
    assert [result, *texts(found[1]), *texts(found[2])] == ["refunded: 7", "written: hello", "refunded: 7"]


async def test_an_exception_of_the_one_who_asks_ends_the_run(tmp_path: Path) -> None:
    class Absent(User):
        async def __call__(self, question: Question) -> Reply:
            if question.occasion in failing:
                raise Broken
            return Reply.ONCE

    failing = {Occasion.FIRST}
    async with shop(tmp_path, user=Absent()) as opened:
        for _ in range(2):
            client = Script([LOAD], [WRITE])
            with pytest.raises(MiddlewareFailure) as caught:
                await agent_of(opened, client).run("A customer wants money back.")
            assert isinstance(caught.value.__cause__, Broken)
            failing = {Occasion.CALL}

        assert (len(opened.host.loaded), opened.notebook.lines) == (1, [])


async def test_cancelling_while_the_user_is_asked_loads_and_runs_nothing(tmp_path: Path) -> None:
    class Slow(User):
        async def __call__(self, question: Question) -> Reply:
            asked.set()
            await anyio.sleep_forever()
            raise AssertionError

    asked = anyio.Event()
    async with shop(tmp_path, user=Slow()) as opened:
        agent = agent_of(opened, Script([LOAD]))

        async def run() -> None:
            await agent.run("A customer wants money back.")

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                await asked.wait()
                group.cancel_scope.cancel()
        assert opened.host.loaded == ()


async def test_a_sub_agent_is_gated_for_what_its_parent_has_loaded(tmp_path: Path) -> None:
    async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened:
        await opened.host.load(REFUNDS)
        agent = agent_of(opened, Script([WRITE]), guard=opened.guard(opened.host.child()))
        response = await agent.run("Write.")

        assert opened.notebook.lines == []
    assert refusal_in(texts(results(response.messages)[0])[0])["code"] == "writing"


async def test_a_tool_that_takes_the_name_of_one_of_ours_is_an_error_before_anything_runs(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path) as opened:
        client = Script([("load_skill", {"text": "hello"})])
        impostor = FunctionTool(name="load_skill", func=opened.notebook.write)

        with pytest.raises(ValueError, match="load_skill"):
            await agent_of(opened, client, tools=[impostor]).run("A customer wants money back.")

        assert (client.seen, opened.notebook.lines) == ([], [])


async def test_a_client_that_takes_no_middleware_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        client = Bare([WRITE])

        with pytest.raises(TypeError, match="middleware"):
            await agent_of(opened, client).run("A customer wants money back.")

        assert (client.seen, opened.notebook.lines) == ([], [])


@pytest.mark.parametrize("declared", [False, True])
async def test_tools_that_run_elsewhere_are_taken_away_while_a_skill_restricts_them(
    tmp_path: Path, declared: bool
) -> None:
    names = ["phone", "web_search", "lookup", "google_search"]
    kinds = dict.fromkeys(names, ToolKind.READ) if declared else {}
    elsewhere: list[Any] = [
        FunctionTool(name="phone", description="Call a number."),
        {"type": "web_search"},
        {"type": "function", "function": {"name": "lookup"}},
        {"google_search": {}},
    ]

    async with shop(tmp_path) as opened:
        client = Script([LOAD])
        tools = [*elsewhere, {"type": "tool_search"}]
        agent = agent_of(opened, client, guard=Guard(opened.host, kinds), tools=tools)
        await agent.run("A customer wants money back.")

    offered = [[tool for tool in tools if any(tool is one for one in elsewhere)] for tools in client.offered]
    assert offered == [elsewhere, elsewhere if declared else []]
    assert [len(tools) - len(kept) for tools, kept in zip(client.offered, offered, strict=True)] == [5, 5]


def test_without_the_framework_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agent_framework", None)
    monkeypatch.delitem(sys.modules, Skills.__module__)

    with pytest.raises(ImportError, match=r"skillwire\[agent-framework\]"):
        importlib.import_module(Skills.__module__)


def times(messages: Sequence[Message]) -> int:
    """How often a request has the skill's text."""
    answered = [text for result in results(messages) for text in texts(result)]
    return sum(SHOWN in text for text in [*answered, *(message.text for message in messages)])


@pytest.mark.requirement("HOST-15")
async def test_a_text_that_was_compacted_comes_again_with_the_requests_after_it(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        client = Script([LOAD], [WRITE], [WRITE], [WRITE], [WRITE])
        agent = agent_of(opened, client)
        agent.compaction_strategy = SlidingWindowStrategy(keep_last_groups=2)
        await agent.run("A customer wants money back.")
        [window] = opened.host.loaded

    counts = [times(messages) for messages in client.seen]
    assert counts[:2] == [0, 1]
    assert counts[-2:] == [1, 1] and max(counts) == 1
    [again] = [message.text for message in client.seen[-1] if SHOWN in message.text]
    assert f"----- begin {window.boundary} -----\n{SHOWN}\n" in again and ORIGIN in again


@pytest.mark.requirement("HOST-15")
async def test_a_text_that_is_not_in_the_history_any_more_comes_again(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        client = Script([LOAD], [WRITE])
        agent = agent_of(opened, client)
        await agent.run("A customer wants money back.")
        await agent.run("Another one.")

    assert [times(messages) for messages in client.seen] == [0, 1, 1, 1]
