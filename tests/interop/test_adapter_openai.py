"""The loop for OpenAI's chat format, with the official client and an API on loopback."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from openai import AsyncOpenAI

from interop.adapting import (
    FILE_TOOL,
    LISTED,
    ORIGIN,
    POLICY,
    POLICY_PATH,
    REFUNDS,
    SERVER_TOOL,
    SHOWN,
    TRIAGE,
    UNKNOWN,
    Broken,
    Reply,
    Shop,
    User,
    refusal_in,
    shop,
)
from interop.providers import Json, Provider, own_tools, provider
from skillwire.core.errors import LimitError
from skillwire.host import Guard, Occasion, Question, Toolbox, ToolKind
from skillwire.host.adapters.openai import converse

SYSTEM = "You serve customers."
TASK: Json = {"role": "user", "content": "A customer wants money back."}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def written(name: str, arguments: str, number: int = 1) -> Json:
    """A call with its arguments as the model wrote them."""
    return {
        "id": f"call_{name}_{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def use(name: str, number: int = 1, **given: object) -> Json:
    return written(name, json.dumps(given), number)


def turn(*calls: Json, stop: str = "tool_calls", **more: object) -> Json:
    message: Json = {"role": "assistant", "content": None, "refusal": None, "annotations": [], **more}
    return {"message": {**message, **({"tool_calls": list(calls)} if calls else {})}, "finish_reason": stop}


LOAD = use("load_skill", skill=REFUNDS)
READ = use("read_skill_file", skill=REFUNDS, path=POLICY_PATH)
WRITE = use(FILE_TOOL, text="hello")


async def talk(api: Provider, toolbox: Toolbox, messages: list[Json], **options: Any) -> Json:
    async with AsyncOpenAI(api_key="test", base_url=f"{api.url}/v1", max_retries=0, timeout=30) as client:
        create = client.chat.completions.create
        return await converse(create, toolbox, messages, model="scripted", system=SYSTEM, **options)


@asynccontextmanager
async def ran(
    folder: Path, *turns: Json, replies: Sequence[Reply] = (), **options: Any
) -> AsyncGenerator[tuple[Shop, Provider, list[Json]]]:
    """Run an agent through a script, and give the messages at its end."""
    with provider("openai", *turns) as api:
        async with shop(folder, *replies) as opened:
            messages = [TASK]
            await talk(api, Toolbox(opened.guard(), own_tools(opened)), messages, **options)
            assert api.objections == []
            yield opened, api, messages


def results(messages: Sequence[Json]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


@pytest.mark.requirement("HOST-03")
@pytest.mark.parametrize("role", ["system", "developer"])
async def test_the_first_message_ends_with_the_listing_and_all_functions_are_offered(
    tmp_path: Path, role: str
) -> None:
    async with ran(tmp_path, role=role) as (opened, api, messages):
        [request] = api.requests
        listing = opened.host.listing()

    assert request["messages"] == [{"role": role, "content": f"{SYSTEM}\n\n{listing}"}, TASK]
    assert ORIGIN in listing and LISTED in listing
    names = ["load_skill", "read_skill_file", "list_skill_files", "search_skills", FILE_TOOL, SERVER_TOOL]
    assert [tool["function"]["name"] for tool in request["tools"]] == names
    assert request["tools"][0]["function"]["parameters"]["required"] == ["skill"]
    assert messages == [TASK, {"role": "assistant", "content": "done"}]


@pytest.mark.requirement("HOST-06")
@pytest.mark.requirement("SEC-02")
async def test_after_a_yes_the_chat_has_the_skill_and_then_its_file(tmp_path: Path) -> None:
    async with ran(tmp_path, turn(LOAD), turn(READ), replies=[Reply.ONCE]) as (opened, api, messages):
        window = opened.host.loaded[0]

    loaded, policy = results(messages)
    assert opened.user.occasions == [Occasion.FIRST]
    assert ORIGIN in loaded and SHOWN in loaded and window.boundary in loaded
    assert POLICY in policy
    assert messages[2]["tool_call_id"] == LOAD["id"]
    assert len(api.requests) == 3


async def test_a_no_is_a_result_with_a_remedy_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with ran(tmp_path, turn(LOAD), replies=[Reply.DENY]) as (opened, api, messages):
        assert opened.host.loaded == ()

    [loaded] = results(messages)
    assert refusal_in(loaded)["code"] == "approval-denied"
    assert len(api.requests) == 2


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (use("load_skill", skill=UNKNOWN), "unknown-reference"),
        (use("load_skill", nothing=1), "invalid-arguments"),
        (READ, "not-loaded"),
        (use("no_such_tool"), "invalid-arguments"),
        (written(FILE_TOOL, '{"text": "hel'), "invalid-arguments"),
        (written(FILE_TOOL, '["hello"]'), "invalid-arguments"),
        (written(FILE_TOOL, ""), "invalid-arguments"),
        ({"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}, "invalid-arguments"),
        ({"id": "d", "type": "later", "later": {"x": 1}}, "invalid-arguments"),
    ],
)
async def test_every_call_is_answered_and_what_cannot_be_done_is_refused_as_data(
    tmp_path: Path, call: Json, code: str
) -> None:
    async with ran(tmp_path, turn(call)) as (opened, _, messages):
        assert opened.notebook.lines == []

    [result] = results(messages)
    assert refusal_in(result)["code"] == code


@pytest.mark.requirement("SEC-06")
async def test_in_a_chat_an_own_tool_passes_before_and_is_asked_about_after_a_load(tmp_path: Path) -> None:
    again, third = use(FILE_TOOL, 2, text="no"), use(FILE_TOOL, 3, text="yes")
    turns = [turn(WRITE), turn(LOAD), turn(again), turn(third)]

    replies = [Reply.ONCE, Reply.DENY, Reply.ONCE]
    async with ran(tmp_path, *turns, replies=replies) as (opened, _, messages):
        assert opened.user.occasions == [Occasion.FIRST, Occasion.CALL, Occasion.CALL]
        assert opened.notebook.lines == ["hello", "yes"]

    _, _, denied, allowed = results(messages)
    assert refusal_in(denied)["code"] == "writing"
    assert allowed == "written: yes"


async def test_parallel_calls_are_answered_right_after_them_in_their_order(tmp_path: Path) -> None:
    triage = use("load_skill", 2, skill=TRIAGE)
    search = use("search_skills", query="desk")
    both = turn(use(FILE_TOOL, 2, text="a"), use(FILE_TOOL, 3, text="b"))

    async with ran(tmp_path, turn(LOAD, triage, search, content="All."), both) as (opened, _, messages):
        assert len(opened.host.loaded) == 2
        assert opened.user.occasions == [Occasion.FIRST] * 2 + [Occasion.CALL] * 2
        assert sorted(opened.notebook.lines) == ["a", "b"]

    asked = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert asked[:3] == [LOAD["id"], triage["id"], search["id"]]
    assert results(messages)[3:] == ["written: a", "written: b"]


async def test_changes_are_messages_of_their_own_and_a_request_only_adds_to_the_one_before(
    tmp_path: Path,
) -> None:
    messages = [TASK]
    with provider("openai", turn(WRITE), turn(use("search_skills", query="money"))) as api:
        async with shop(tmp_path) as opened:
            async with anyio.from_thread.BlockingPortal() as portal:

                def publish(number: int) -> None:
                    if number == 2:
                        portal.call(opened.publish, "late")

                api.meanwhile = publish
                toolbox = Toolbox(opened.guard(), own_tools(opened))
                await talk(api, toolbox, messages)
                await opened.publish("later")
                messages.append({"role": "user", "content": "Another one."})
                await talk(api, toolbox, messages)

    assert api.objections == []
    late, later = [message for message in messages if message["role"] == "system"]
    assert "added shop/late" in late["content"] and "added shop/later" in later["content"]
    assert (messages[5], messages[-2]) == (late, later)
    assert [len(request["messages"]) for request in api.requests] == [2, 4, 7, 10]


async def test_in_a_chat_a_nudge_stands_before_the_result_of_a_servers_tool_once(tmp_path: Path) -> None:
    calls = [turn(use(SERVER_TOOL, order="7")), turn(use(SERVER_TOOL, 2, order="8"))]

    async with ran(tmp_path, *calls) as (opened, _, messages):
        assert opened.refunded == ["7", "8"]

    first, second = results(messages)
    nudge, _, result = first.partition("\n\n")
    assert REFUNDS in nudge and SERVER_TOOL in nudge and result == "refunded: 7"
    assert second == "refunded: 8"


async def test_what_a_compatible_server_adds_to_a_message_is_sent_back_with_it(tmp_path: Path) -> None:
    signed = {**WRITE, "extra_content": {"google": {"thought_signature": "c2ln"}}}
    thought = turn(signed, reasoning_content="Hm.")

    async with ran(tmp_path, thought) as (_, api, messages):
        sent_back = api.requests[1]["messages"][2]

    assert sent_back == messages[1]
    whole = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [signed]}
    assert sent_back == whole


@pytest.mark.parametrize("stop", ["length", "content_filter"])
async def test_in_a_chat_a_call_that_was_cut_off_is_not_made(tmp_path: Path, stop: str) -> None:
    async with ran(tmp_path, turn(WRITE, use(FILE_TOOL, 2, text="hel"), stop=stop)) as (opened, _, messages):
        assert opened.notebook.lines == ["hello"]

    whole, refused = results(messages)
    assert (whole, refusal_in(refused)["code"]) == ("written: hello", "invalid-arguments")


@pytest.mark.parametrize(
    "said",
    [
        turn(stop="stop", content="All done."),
        turn(stop="stop", content=None),
        turn(stop="stop", content="", tool_calls=[]),
        turn(stop="stop", content=None, refusal="I will not."),
        turn(stop="length", content="As I was say"),
        turn(stop="content_filter", content=None),
    ],
)
async def test_other_ends_of_a_chat_are_returned_and_it_can_go_on(tmp_path: Path, said: Json) -> None:
    with provider("openai", said) as api:
        async with shop(tmp_path) as opened:
            messages = [TASK]
            answer = await talk(api, Toolbox(opened.guard()), messages)

            [choice] = answer["choices"]
            assert (choice["finish_reason"], choice["message"]) == (said["finish_reason"], said["message"])
            messages.append({"role": "user", "content": "Go on."})
            await talk(api, Toolbox(opened.guard()), messages)
    assert api.objections == []


async def test_too_many_turns_of_a_chat_are_an_error_after_which_it_can_go_on(tmp_path: Path) -> None:
    with provider("openai", turn(WRITE), turn(use(FILE_TOOL, 2, text="b"))) as api:
        async with shop(tmp_path) as opened:
            messages = [TASK]
            toolbox = Toolbox(opened.guard(), own_tools(opened))
            with pytest.raises(LimitError):
                await talk(api, toolbox, messages, max_turns=2)
            assert opened.notebook.lines == ["hello", "b"]
            await talk(api, toolbox, messages)

    assert (messages[-1], api.objections) == ({"role": "assistant", "content": "done"}, [])


@pytest.mark.parametrize("declared", [False, True])
async def test_in_a_chat_hosted_tools_are_taken_away_while_a_skill_restricts_them(
    tmp_path: Path, declared: bool
) -> None:
    search = {"type": "browser_search"}
    kinds = {"browser_search": ToolKind.READ} if declared else {}

    with provider("openai", turn(LOAD)) as api:
        api.tools_may_change = True
        async with shop(tmp_path) as opened:
            await talk(api, Toolbox(Guard(opened.host, kinds)), [TASK], hosted_tools=[search])

    assert [search in request["tools"] for request in api.requests] == [True, declared]


async def test_an_exception_of_the_one_who_asks_ends_the_chat_and_leaves_messages_usable(
    tmp_path: Path,
) -> None:
    class Absent(User):
        async def __call__(self, question: Question) -> Reply:
            raise Broken

    with provider("openai", turn(WRITE), turn(LOAD, use(FILE_TOOL, 2, text="b"))) as api:
        async with shop(tmp_path, user=Absent()) as opened:
            messages = [TASK]
            toolbox = Toolbox(opened.guard(), own_tools(opened))
            with pytest.raises(Broken):
                await talk(api, toolbox, messages)

            assert opened.host.loaded == () and len(messages) == 3
            await talk(api, toolbox, messages)
    assert api.objections == []


async def test_a_chat_that_is_cancelled_while_the_user_is_asked_loads_nothing(tmp_path: Path) -> None:
    class Slow(User):
        async def __call__(self, question: Question) -> Reply:
            asked.set()
            await anyio.sleep_forever()
            raise AssertionError

    asked = anyio.Event()
    with provider("openai", turn(LOAD)) as api:
        async with shop(tmp_path, user=Slow()) as opened:
            messages = [TASK]
            toolbox = Toolbox(opened.guard())
            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    group.start_soon(talk, api, toolbox, messages)
                    await asked.wait()
                    group.cancel_scope.cancel()
            assert (opened.host.loaded, messages) == ((), [TASK])


async def test_an_answer_without_a_message_is_one_clear_error(tmp_path: Path) -> None:
    with provider("openai", {"choices": []}) as api:
        async with shop(tmp_path) as opened:
            messages = [TASK]
            with pytest.raises(ValueError, match="no message"):
                await talk(api, Toolbox(opened.guard()), messages)
    assert messages == [TASK]


@pytest.mark.requirement("HOST-15", "SEC-11")
async def test_a_text_that_was_cut_out_of_the_messages_is_given_again_once(tmp_path: Path) -> None:
    with provider("openai", turn(LOAD)) as before, provider("openai", turn(WRITE)) as api:
        async with shop(tmp_path) as opened:
            toolbox = Toolbox(opened.guard(), own_tools(opened))
            messages = [TASK]
            await talk(before, toolbox, messages)
            messages[:] = [{"role": "user", "content": "A summary."}]
            await talk(api, toolbox, messages)
            [window] = opened.host.loaded
            assert api.objections == []

    sent = [request["messages"] for request in api.requests]
    assert [repr(each).count(SHOWN) for each in sent] == [1, 1]
    [(role, again)] = [
        (message["role"], message["content"]) for message in messages if SHOWN in repr(message)
    ]
    assert role == "user"
    assert f"----- begin {window.boundary} -----\n{SHOWN}\n" in again and ORIGIN in again
    assert opened.user.occasions.count(Occasion.FIRST) == 1
