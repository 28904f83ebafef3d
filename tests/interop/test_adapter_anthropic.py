"""The loop for Anthropic's message format, with the official client and an API on loopback."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from anthropic import AsyncAnthropic

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
from interop.providers import Json, Provider, blocks_of, own_tools, provider
from skillwire.core.errors import LimitError
from skillwire.host import Guard, Occasion, Question, Toolbox, ToolKind
from skillwire.host.adapters.anthropic import converse

SYSTEM = "You serve customers."
TASK = "A customer wants money back."


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def use(name: str, number: int = 1, **given: object) -> Json:
    return {"type": "tool_use", "id": f"toolu_{name}_{number}", "name": name, "input": given}


def turn(*blocks: Json, stop: str = "tool_use") -> Json:
    return {"content": list(blocks), "stop_reason": stop}


def say(text: str) -> Json:
    return {"type": "text", "text": text}


LOAD = use("load_skill", skill=REFUNDS)
READ = use("read_skill_file", skill=REFUNDS, path=POLICY_PATH)
WRITE = use(FILE_TOOL, text="hello")
REFUND = use(SERVER_TOOL, order="7")


async def talk(api: Provider, toolbox: Toolbox, messages: list[Json], **options: Any) -> Json:
    async with AsyncAnthropic(api_key="test", base_url=api.url, max_retries=0, timeout=30) as client:
        return await converse(
            client.messages.create, toolbox, messages, model="scripted", system=SYSTEM, **options
        )


@asynccontextmanager
async def ran(
    folder: Path, *turns: Json, replies: Sequence[Reply] = (), **options: Any
) -> AsyncGenerator[tuple[Shop, Provider, list[Json]]]:
    """Run an agent through a script, and give the messages at its end."""
    with provider("anthropic", *turns) as api:
        async with shop(folder, *replies) as opened:
            messages: list[Json] = [{"role": "user", "content": TASK}]
            await talk(api, Toolbox(opened.guard(), own_tools(opened)), messages, **options)
            assert api.objections == []
            yield opened, api, messages


def results(messages: Sequence[Json]) -> list[Json]:
    blocks = [block for message in messages for block in blocks_of(message)]
    return [block for block in blocks if block["type"] == "tool_result"]


@pytest.mark.requirement("HOST-03")
async def test_the_system_prompt_ends_with_the_listing_and_all_tools_are_offered(tmp_path: Path) -> None:
    async with ran(tmp_path) as (opened, api, messages):
        [request] = api.requests
        listing = opened.host.listing()

    assert request["system"] == f"{SYSTEM}\n\n{listing}"
    assert ORIGIN in listing and LISTED in listing
    names = ["load_skill", "read_skill_file", "list_skill_files", "search_skills", FILE_TOOL, SERVER_TOOL]
    assert [tool["name"] for tool in request["tools"]] == names
    assert request["tools"][0]["input_schema"]["required"] == ["skill"]
    assert messages[-1] == {"role": "assistant", "content": [say("done")]}


@pytest.mark.requirement("HOST-06")
@pytest.mark.requirement("SEC-02")
async def test_after_a_yes_the_skill_reaches_the_model_and_then_its_file(tmp_path: Path) -> None:
    async with ran(tmp_path, turn(LOAD), turn(READ), replies=[Reply.ONCE]) as (opened, api, messages):
        window = opened.host.loaded[0]

    loaded, policy = results(messages)
    assert opened.user.occasions == [Occasion.FIRST]
    assert ORIGIN in loaded["content"] and SHOWN in loaded["content"] and window.boundary in loaded["content"]
    assert POLICY in policy["content"]
    assert ["is_error" in result for result in (loaded, policy)] == [False, False]
    assert [result["tool_use_id"] for result in (loaded, policy)] == [LOAD["id"], READ["id"]]
    assert len(api.requests) == 3


async def test_a_no_is_an_error_result_with_a_remedy_and_the_model_goes_on(tmp_path: Path) -> None:
    async with ran(tmp_path, turn(LOAD), replies=[Reply.DENY]) as (opened, api, messages):
        assert opened.host.loaded == ()

    [loaded] = results(messages)
    assert (refusal_in(loaded["content"])["code"], loaded["is_error"]) == ("approval-denied", True)
    assert len(api.requests) == 2


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (use("load_skill", skill=UNKNOWN), "unknown-reference"),
        (use("load_skill", nothing=1), "invalid-arguments"),
        (READ, "not-loaded"),
        (use("no_such_tool"), "invalid-arguments"),
    ],
)
async def test_a_call_that_cannot_be_answered_is_refused_as_data(
    tmp_path: Path, call: Json, code: str
) -> None:
    async with ran(tmp_path, turn(call)) as (_, _, messages):
        [result] = results(messages)

    assert (refusal_in(result["content"])["code"], result["is_error"]) == (code, True)


@pytest.mark.requirement("SEC-06")
async def test_an_own_tool_passes_the_gate_before_and_is_asked_about_after_a_load(tmp_path: Path) -> None:
    again, third = use(FILE_TOOL, 2, text="no"), use(FILE_TOOL, 3, text="yes")
    turns = [turn(WRITE), turn(LOAD), turn(again), turn(third)]

    replies = [Reply.ONCE, Reply.DENY, Reply.ONCE]
    async with ran(tmp_path, *turns, replies=replies) as (opened, _, messages):
        assert opened.user.occasions == [Occasion.FIRST, Occasion.CALL, Occasion.CALL]
        assert opened.notebook.lines == ["hello", "yes"]

    _, _, denied, allowed = results(messages)
    assert (refusal_in(denied["content"])["code"], denied["is_error"]) == ("writing", True)
    assert allowed["content"] == "written: yes"


async def test_parallel_calls_are_answered_in_one_message_in_their_order(tmp_path: Path) -> None:
    triage = use("load_skill", 2, skill=TRIAGE)
    search = use("search_skills", query="desk")
    both = turn(use(FILE_TOOL, 2, text="a"), use(FILE_TOOL, 3, text="b"))

    async with ran(tmp_path, turn(say("All at once."), LOAD, triage, search), both) as (opened, _, messages):
        assert len(opened.host.loaded) == 2
        assert opened.user.occasions == [Occasion.FIRST] * 2 + [Occasion.CALL] * 2
        assert sorted(opened.notebook.lines) == ["a", "b"]

    assert [result["tool_use_id"] for result in messages[2]["content"]] == [
        LOAD["id"],
        triage["id"],
        search["id"],
    ]
    assert [result["content"] for result in messages[4]["content"]] == ["written: a", "written: b"]


async def test_changes_follow_the_results_and_the_next_request_only_adds_to_the_one_before(
    tmp_path: Path,
) -> None:
    messages: list[Json] = [{"role": "user", "content": TASK}]
    with provider("anthropic", turn(WRITE), turn(use("search_skills", query="money"))) as api:
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
    late, later = messages[4]["content"][-1], messages[-2]
    assert (late["type"], later["role"]) == ("text", "user")
    assert "added shop/late" in late["text"] and "added shop/later" in later["content"]
    assert [len(request["messages"]) for request in api.requests] == [1, 3, 5, 8]


async def test_a_nudge_stands_before_the_result_of_a_servers_tool_once(tmp_path: Path) -> None:
    async with ran(tmp_path, turn(REFUND), turn(use(SERVER_TOOL, 2, order="8"))) as (opened, _, messages):
        assert opened.refunded == ["7", "8"]

    first, second = results(messages)
    nudge, _, result = first["content"].partition("\n\n")
    assert REFUNDS in nudge and SERVER_TOOL in nudge and result == "refunded: 7"
    assert second["content"] == "refunded: 8"


async def test_thinking_and_blocks_of_a_kind_nobody_knows_are_sent_back_unchanged(tmp_path: Path) -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmF0dXJl"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "later_invention", "payload": {"list": [1, None], "nothing": None}, "id": "x"},
        {"type": "text", "text": "I write.", "citations": None},
        use(FILE_TOOL, text="hello", empty=None),
    ]

    async with ran(tmp_path, turn(*blocks)) as (_, api, messages):
        sent_back = api.requests[1]["messages"][1]

    assert sent_back == {"role": "assistant", "content": blocks} == messages[1]


async def test_a_turn_that_paused_is_sent_back_to_be_gone_on_with(tmp_path: Path) -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}

    async with ran(tmp_path, turn(search, stop="pause_turn")) as (_, api, messages):
        assert [message["role"] for message in api.requests[1]["messages"]] == ["user", "assistant"]

    assert [message["role"] for message in messages] == ["user", "assistant", "assistant"]


@pytest.mark.parametrize("stop", ["max_tokens", "model_context_window_exceeded"])
async def test_a_call_that_was_cut_off_is_not_made_and_those_before_it_are(tmp_path: Path, stop: str) -> None:
    cut = turn(WRITE, use(FILE_TOOL, 2, text="hel"), stop=stop)

    async with ran(tmp_path, cut) as (opened, _, messages):
        assert opened.notebook.lines == ["hello"]

    whole, refused = results(messages)
    assert whole["content"] == "written: hello"
    assert (refusal_in(refused["content"])["code"], refused["is_error"]) == ("invalid-arguments", True)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (turn(WRITE, stop="refusal"), 1),
        (turn(stop="refusal"), 1),
        (turn(stop="end_turn"), 1),
        (turn(say("As I was say"), stop="max_tokens"), 2),
        (turn(say("The end."), stop="a_reason_of_the_future"), 2),
    ],
)
async def test_other_ends_are_returned_and_the_conversation_can_go_on(
    tmp_path: Path, said: Json, kept: int
) -> None:
    with provider("anthropic", said) as api:
        async with shop(tmp_path) as opened:
            messages: list[Json] = [{"role": "user", "content": TASK}]
            toolbox = Toolbox(opened.guard(), own_tools(opened))
            answer = await talk(api, toolbox, messages)

            assert (answer["stop_reason"], answer["content"]) == (said["stop_reason"], said["content"])
            assert (len(messages), opened.notebook.lines) == (kept, [])
            messages.append({"role": "user", "content": "Go on."})
            await talk(api, toolbox, messages)
    assert api.objections == []


async def test_too_many_turns_are_an_error_after_which_the_conversation_can_go_on(tmp_path: Path) -> None:
    with provider("anthropic", turn(WRITE), turn(use(FILE_TOOL, 2, text="b"))) as api:
        async with shop(tmp_path) as opened:
            messages: list[Json] = [{"role": "user", "content": TASK}]
            toolbox = Toolbox(opened.guard(), own_tools(opened))
            with pytest.raises(LimitError):
                await talk(api, toolbox, messages, max_turns=2)
            assert opened.notebook.lines == ["hello", "b"]
            answer = await talk(api, toolbox, messages)

    assert (answer["content"], api.objections) == ([say("done")], [])


@pytest.mark.parametrize("declared", [False, True])
async def test_hosted_tools_are_taken_away_while_a_loaded_skill_restricts_them(
    tmp_path: Path, declared: bool
) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    kinds = {"web_search": ToolKind.READ} if declared else {}

    with provider("anthropic", turn(LOAD)) as api:
        api.tools_may_change = True
        async with shop(tmp_path) as opened:
            toolbox = Toolbox(Guard(opened.host, kinds))
            await talk(api, toolbox, [{"role": "user", "content": TASK}], hosted_tools=[search])

    assert [search in request["tools"] for request in api.requests] == [True, declared]


async def test_an_exception_of_the_one_who_asks_comes_through_and_leaves_messages_usable(
    tmp_path: Path,
) -> None:
    class Absent(User):
        async def __call__(self, question: Question) -> Reply:
            raise Broken

    with provider("anthropic", turn(WRITE), turn(say("Two."), LOAD, use(FILE_TOOL, 2, text="b"))) as api:
        async with shop(tmp_path, user=Absent()) as opened:
            messages: list[Json] = [{"role": "user", "content": TASK}]
            toolbox = Toolbox(opened.guard(), own_tools(opened))
            with pytest.raises(Broken):
                await talk(api, toolbox, messages)

            assert opened.host.loaded == () and len(messages) == 3
            await talk(api, toolbox, messages)
    assert api.objections == []


async def test_cancelling_while_the_user_is_asked_loads_nothing_and_leaves_messages_usable(
    tmp_path: Path,
) -> None:
    class Slow(User):
        async def __call__(self, question: Question) -> Reply:
            asked.set()
            await anyio.sleep_forever()
            raise AssertionError

    asked = anyio.Event()
    with provider("anthropic", turn(LOAD)) as api:
        async with shop(tmp_path, user=Slow()) as opened:
            messages: list[Json] = [{"role": "user", "content": TASK}]
            toolbox = Toolbox(opened.guard())
            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    group.start_soon(talk, api, toolbox, messages)
                    await asked.wait()
                    group.cancel_scope.cancel()
            assert (opened.host.loaded, messages) == ((), [{"role": "user", "content": TASK}])


async def test_a_sub_agent_of_this_format_is_gated_for_what_its_parent_loaded(tmp_path: Path) -> None:
    with provider("anthropic", turn(WRITE)) as api:
        async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened:
            await opened.host.load(REFUNDS)
            messages: list[Json] = [{"role": "user", "content": "Write."}]
            child = opened.host.child()
            await talk(api, Toolbox(opened.guard(child), own_tools(opened)), messages)
            assert opened.notebook.lines == []

    assert refusal_in(results(messages)[0]["content"])["code"] == "writing"


@pytest.mark.requirement("HOST-15")
async def test_a_text_before_a_summary_of_the_provider_is_given_again_once(tmp_path: Path) -> None:
    summary = {"type": "compaction", "content": "A summary."}
    turns = turn(LOAD), turn(summary, WRITE), turn(READ), turn(say("done"), stop="end_turn")
    async with ran(tmp_path, *turns) as (opened, api, messages):
        [window] = opened.host.loaded

    read = [request["messages"] for request in api.requests]
    after = [sent[next(n for n, m in enumerate(sent) if summary in blocks_of(m)) :] for sent in read[2:]]
    assert [repr(sent).count(SHOWN) for sent in after] == [1, 1]
    again = next(m["content"] for m in after[0] if m["role"] == "user" and SHOWN in repr(m))
    assert f"----- begin {window.boundary} -----\n{SHOWN}\n" in again and ORIGIN in again
    assert repr(messages).count(SHOWN) == 2
    assert opened.user.occasions.count(Occasion.FIRST) == 1


@pytest.mark.requirement("HOST-15")
async def test_a_turn_that_ends_with_a_summary_goes_on(tmp_path: Path) -> None:
    summary = {"type": "compaction", "content": "A summary."}
    async with ran(tmp_path, turn(LOAD), turn(summary, stop="compaction")) as (_, api, messages):
        pass

    assert len(api.requests) == 3
    assert SHOWN in api.requests[-1]["messages"][-1]["content"]
    assert messages[-1] == {"role": "assistant", "content": [say("done")]}


@pytest.mark.requirement("HOST-15")
async def test_a_text_that_was_cut_out_of_the_messages_is_given_again(tmp_path: Path) -> None:
    with provider("anthropic", turn(LOAD)) as before, provider("anthropic") as api:
        async with shop(tmp_path) as opened:
            toolbox = Toolbox(opened.guard(), own_tools(opened))
            messages: list[Json] = [{"role": "user", "content": TASK}]
            await talk(before, toolbox, messages)
            messages[:] = [{"role": "user", "content": "A summary."}]
            await talk(api, toolbox, messages)

    assert repr(api.requests[-1]["messages"]).count(SHOWN) == 1
