"""Both loops for plain formats, where a model or a client answers oddly."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from folders import write_files
from skillwire.host import Guard, Host, LocalRoot, Storage, Tool, Toolbox
from skillwire.host.adapters import anthropic, openai
from skillwire.host.adapters.tools import Json
from skillwire.host.use.tools import Arguments

SKILL = "---\nname: refunds\ndescription: Use when money goes back.\n---\n\nAsk for the receipt.\n"
LOOPS = {"anthropic": anthropic.converse, "openai": openai.converse}

USER: Json = {"role": "user", "content": "Hello."}


@pytest.fixture
async def toolbox(tmp_path: Path) -> AsyncGenerator[Toolbox]:
    async def shout(arguments: Arguments) -> str:
        return "HELLO"

    write_files(tmp_path / "skills" / "refunds", {"SKILL.md": SKILL})
    places = Storage(tmp_path / "state", tmp_path / "cache")
    async with Host(roots=[LocalRoot(tmp_path / "skills", "user")], storage=places) as host:
        yield Toolbox(Guard(host), [Tool("shout", "Shout.", {"type": "object"}, shout)])


class Model:
    """Says its lines in turn, and remembers what it was sent."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.sent: list[Json] = []

    async def create(self, **request: Any) -> Any:
        self.sent.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def called(form: str, *arguments: object, tool: str = "shout") -> Json:
    """Let the model call a tool, once with each of these arguments."""
    if form == "anthropic":
        blocks = [
            {"type": "tool_use", "id": str(number), "name": tool, "input": given}
            for number, given in enumerate(arguments)
        ]
        return {"role": "assistant", "content": blocks}
    calls = [
        {"id": str(number), "type": "function", "function": {"name": tool, "arguments": given}}
        for number, given in enumerate(arguments)
    ]
    return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": calls}}]}


def spoken(form: str, text: str | None = "Bye.") -> Json:
    if form == "anthropic":
        return {"role": "assistant", "content": text and [{"type": "text", "text": text}]}
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def results(messages: Sequence[Json]) -> list[str]:
    found: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            found.append(message["content"])
        elif message["role"] == "user" and message is not USER:
            found += [block["content"] for block in message["content"]]
    return found


@pytest.mark.parametrize("form", LOOPS)
async def test_plain_data_will_do_for_a_client_and_nothing_but_the_tools_is_added(
    toolbox: Toolbox, form: str
) -> None:
    model, messages = Model(called(form, {}), spoken(form)), [USER]

    answer = await LOOPS[form](model.create, toolbox, messages, model="m", temperature=0.5)

    assert answer == spoken(form)
    assert results(messages) == ["HELLO"]
    assert [sorted(sent) for sent in model.sent] == [sorted(model.sent[0])] * 2
    assert model.sent[0]["temperature"] == 0.5
    # What was sent stays as it was, although the messages have grown since.
    assert [USER in sent["messages"] for sent in model.sent] == [True, True]
    assert len(model.sent[0]["messages"]) < len(model.sent[1]["messages"]) < len(messages) + 1


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("form", LOOPS)
async def test_the_text_of_a_skill_reaches_the_model_as_a_tool_result_and_never_as_instructions(
    toolbox: Toolbox, form: str
) -> None:
    load = called(
        form, {"skill": "refunds"} if form == "anthropic" else '{"skill": "refunds"}', tool="load_skill"
    )
    model, messages = Model(load, spoken(form)), [USER]

    await LOOPS[form](model.create, toolbox, messages, model="m", system="Be brief.")

    [result] = results(messages)
    assert "Ask for the receipt." in result
    request = model.sent[1]
    holding = [message["role"] for message in request["messages"] if "Ask for the receipt." in str(message)]
    assert holding == ["user" if form == "anthropic" else "tool"]
    assert "Ask for the receipt." not in str(request.get("system"))
    if form == "anthropic":
        [block] = request["messages"][-1]["content"]
        assert block["type"] == "tool_result"


@pytest.mark.parametrize("form", LOOPS)
@pytest.mark.parametrize("given", [["x"], 7, '["x"]', '{"a'])
async def test_arguments_of_another_shape_are_refused_and_no_tool_runs(
    toolbox: Toolbox, form: str, given: object
) -> None:
    model, messages = Model(called(form, given), spoken(form)), [USER]

    await LOOPS[form](model.create, toolbox, messages, model="m")

    [result] = results(messages)
    assert '"code": "invalid-arguments"' in result


@pytest.mark.parametrize("form", LOOPS)
async def test_an_answer_with_nothing_in_it_ends_the_conversation(toolbox: Toolbox, form: str) -> None:
    model, messages = Model(spoken(form, None)), [USER]

    assert await LOOPS[form](model.create, toolbox, messages, model="m") == spoken(form, None)
    # An empty message would make the next request invalid.
    assert all(message["content"] is not None for message in messages)


@pytest.mark.parametrize("form", LOOPS)
async def test_a_stream_is_an_error_that_says_so(toolbox: Toolbox, form: str) -> None:
    model, messages = Model(iter(())), [USER]

    with pytest.raises(TypeError, match="complete answer"):
        await LOOPS[form](model.create, toolbox, messages, model="m", stream=True)
    assert messages == [USER]


@pytest.mark.parametrize("form", LOOPS)
async def test_tools_past_the_toolbox_are_an_error_before_anything_is_sent(
    toolbox: Toolbox, form: str
) -> None:
    model = Model(spoken(form))

    with pytest.raises(TypeError, match="Toolbox"):
        await LOOPS[form](model.create, toolbox, [USER], model="m", tools=[{"name": "rm"}])
    assert model.sent == []


@pytest.mark.parametrize("form", LOOPS)
async def test_what_the_client_raises_comes_through_and_the_conversation_can_go_on(
    toolbox: Toolbox, form: str
) -> None:
    model, messages = Model(called(form, {}), OSError("no route"), spoken(form)), [USER]

    with pytest.raises(OSError, match="no route"):
        await LOOPS[form](model.create, toolbox, messages, model="m")
    said = len(messages)
    await LOOPS[form](model.create, toolbox, messages, model="m")

    assert (said, len(messages)) == (3, 4)
    assert model.sent[2]["messages"] == model.sent[1]["messages"]


@pytest.mark.parametrize("form", LOOPS)
async def test_without_instructions_skills_and_tools_nothing_of_them_is_sent(
    tmp_path: Path, form: str
) -> None:
    async with Host(roots=[], storage=Storage(tmp_path / "state", tmp_path / "cache")) as bare:
        model = Model(spoken(form))
        await LOOPS[form](model.create, Toolbox(Guard(bare)), [USER], model="m")

    [sent] = model.sent
    assert sent["messages"] == [USER]
    assert {"system", "tools"} & sent.keys() == set()


async def test_two_calls_at_once_by_a_model_of_either_format_are_both_answered(toolbox: Toolbox) -> None:
    for form, loop in LOOPS.items():
        model, messages = Model(called(form, {}, {}), spoken(form)), [USER]
        await loop(model.create, toolbox, messages, model="m")
        assert results(messages) == ["HELLO", "HELLO"]
