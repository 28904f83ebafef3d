"""The toolbox: which tools a model has, and what becomes of its calls."""

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import anyio
import pytest

from folders import write_files
from skillwire.host import ConfigError, Guard, Host, LocalRoot, Storage, Tool, Toolbox, ToolCall, ToolKind
from skillwire.host.use.tools import Arguments

SKILL = "---\nname: refunds\ndescription: Use before you call create_refund.\n---\n\nAsk for the receipt.\n"
ANYTHING: Mapping[str, object] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "additionalProperties": False,
}


@pytest.fixture
async def host(tmp_path: Path) -> AsyncGenerator[Host]:
    """A host with one skill in a folder, and no server."""
    write_files(tmp_path / "skills" / "refunds", {"SKILL.md": SKILL})
    places = Storage(tmp_path / "state", tmp_path / "cache")
    async with Host(roots=[LocalRoot(tmp_path / "skills", "user")], storage=places) as opened:
        yield opened


class Recorder:
    """A tool that remembers its calls."""

    def __init__(self, name: str = "write") -> None:
        self.calls: list[dict[str, object]] = []
        self.tool = Tool(name, "Write.", ANYTHING, self._run)

    async def _run(self, arguments: Arguments) -> str:
        self.calls.append(dict(arguments))
        return f"wrote {arguments.get('text', '')}"


async def test_the_skills_tools_come_first_and_the_order_stays(host: Host) -> None:
    toolbox = Toolbox(Guard(host), [Recorder("b").tool, Recorder("a").tool], with_resources=True)

    names = ["load_skill", "read_skill_file", "list_skill_files", "search_skills", "read_resource", "b", "a"]
    assert [tool.name for tool in toolbox.tools] == names
    assert toolbox.tools == toolbox.tools


@pytest.mark.parametrize("names", [("load_skill",), ("a", "a")])
async def test_two_tools_of_one_name_are_an_error_before_anything_is_called(
    host: Host, names: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError):
        Toolbox(Guard(host), [Recorder(name).tool for name in names])


async def test_a_skill_and_an_own_tool_are_called_through_it(host: Host) -> None:
    recorder = Recorder()
    toolbox = Toolbox(Guard(host), [recorder.tool])

    loaded = await toolbox.call("load_skill", {"skill": "refunds"})
    wrote = await toolbox.call("write", '{"text": "a"}')

    assert "Ask for the receipt." in loaded.text and not loaded.is_error
    assert (wrote.text, recorder.calls) == ("wrote a", [{"text": "a"}])


@pytest.mark.parametrize("arguments", [None, {}, "", "{}", "null"])
async def test_a_call_without_arguments_has_none(host: Host, arguments: Arguments | str | None) -> None:
    recorder = Recorder()

    result = await Toolbox(Guard(host), [recorder.tool]).call("write", arguments)

    assert (result.is_error, recorder.calls) == (False, [{}])


@pytest.mark.parametrize(
    "arguments",
    ['{"text": "a', "[]", '"text"', "1", "{'text': 1}", "[" * 100_000, f'{{"text": {"1" * 5000}}}'],
    ids=["cut", "list", "text", "number", "python", "deep", "long number"],
)
async def test_arguments_that_are_no_object_never_reach_a_tool(host: Host, arguments: str) -> None:
    recorder = Recorder()
    toolbox = Toolbox(Guard(host), [recorder.tool])

    results = [await toolbox.call(name, arguments) for name in ("write", "search_skills")]

    assert [result.refusal.code for result in results if result.refusal] == ["invalid-arguments"] * 2
    assert recorder.calls == []


@pytest.mark.parametrize("name", ["", "wirte", "x" * 100_000])
async def test_an_unknown_tool_is_refused_with_the_names_there_are(host: Host, name: str) -> None:
    result = await Toolbox(Guard(host), [Recorder().tool]).call(name, {})

    assert result.refusal is not None and result.refusal.code == "invalid-arguments"
    assert "load_skill" in result.text and "write" in result.text and len(result.text) < 2000


async def test_what_the_guard_refuses_does_not_run(host: Host, tmp_path: Path) -> None:
    recorder = Recorder()

    def describe(name: str, arguments: Arguments) -> ToolCall:
        return ToolCall(name, ToolKind.WRITE, path=str(tmp_path / "state" / "approvals.json"))

    result = await Toolbox(Guard(host, describe=describe), [recorder.tool]).call("write", {"text": "a"})

    assert result.refusal is not None and result.refusal.code == "protected-place"
    assert recorder.calls == []


async def test_a_nudge_stands_before_a_result_once_and_an_error_stays_one(host: Host) -> None:
    async def fail(arguments: Arguments) -> str:
        raise ConfigError("no money left")

    refund = Tool("create_refund", "Pay.", {"type": "object"}, fail)
    toolbox = Toolbox(Guard(host, servers={"create_refund": "shop"}), [refund])

    first, second = [await toolbox.call("create_refund") for _ in range(2)]

    assert first.text == f"{first.text.partition('{')[0]}{second.text}"
    assert first.text.startswith("Before you call create_refund") and "refunds" in first.text
    assert [first.is_error, second.is_error] == [True, True]


async def test_calls_of_a_turn_run_side_by_side_and_are_answered_in_their_order(host: Host) -> None:
    met = anyio.Event()

    async def wait(arguments: Arguments) -> str:
        await met.wait()
        return "first"

    async def meet(arguments: Arguments) -> str:
        met.set()
        return "second"

    tools = [Tool("wait", "Wait.", ANYTHING, wait), Tool("meet", "Meet.", ANYTHING, meet)]
    with anyio.fail_after(10):
        results = await Toolbox(Guard(host), tools).call_all([("wait", {}), ("meet", "{}"), ("gone", None)])

    assert [result.text for result in results[:2]] == ["first", "second"]
    assert results[2].is_error


async def test_what_a_tool_raises_comes_through_and_ends_the_others(host: Host) -> None:
    ended: list[str] = []

    async def wait(arguments: Arguments) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("wait")
        return ""

    async def fail(arguments: Arguments) -> str:
        raise ZeroDivisionError("a bug")

    tools = [Tool("wait", "Wait.", ANYTHING, wait), Tool("fail", "Fail.", ANYTHING, fail)]
    with anyio.fail_after(10), pytest.raises(ZeroDivisionError, match="a bug"):
        await Toolbox(Guard(host), tools).call_all([("wait", {}), ("fail", {})])
    assert ended == ["wait"]


async def test_cancelling_ends_all_calls_of_a_turn(host: Host) -> None:
    ended: list[str] = []
    started = anyio.Event()

    async def wait(arguments: Arguments) -> str:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("wait")
        return ""

    toolbox = Toolbox(Guard(host), [Tool("wait", "Wait.", ANYTHING, wait)])
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(toolbox.call_all, [("wait", None), ("wait", None)])
            await started.wait()
            group.cancel_scope.cancel()
    assert ended == ["wait", "wait"]


async def test_without_any_skill_or_server_there_are_only_the_agents_own_tools(tmp_path: Path) -> None:
    async with Host(roots=[], storage=Storage(tmp_path / "state", tmp_path / "cache")) as bare:
        toolbox = Toolbox(Guard(bare), [Recorder().tool])

        assert [tool.name for tool in toolbox.tools] == ["write"]
        assert (await toolbox.call("load_skill", {"skill": "x"})).is_error
