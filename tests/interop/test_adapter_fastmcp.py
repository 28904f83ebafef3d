"""FastMCP's client for an agent with skills: real FastMCP servers, and one that says strange things."""

import json
import re
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp import Client, FastMCP
from fastmcp.client.group import ClientGroup

from folders import write_files
from hostile.hosting import hosting
from interop.adapting import (
    FILE_TOOL,
    LABEL,
    LISTED,
    ORIGIN,
    POLICY,
    POLICY_PATH,
    REFUNDS,
    SERVER_TOOL,
    SHOWN,
    UNKNOWN,
    Broken,
    Reply,
    Shop,
    User,
    refusal_in,
    shop,
)
from interop.providers import own_tools
from serving import environment
from skillwire.host import (
    ConfigError,
    Guard,
    HostLimits,
    HttpEndpoint,
    Occasion,
    Question,
    ServerConfig,
    StdioEndpoint,
    ToolKind,
)
from skillwire.host.adapters.anthropic import converse
from skillwire.host.adapters.fastmcp import MAX_TOOLS, ServerToolbox, open_clients, server_toolbox
from skillwire.host.adapters.tools import Json

SERVERS = Path(__file__).parent / "servers"
REFUND = f"mcp__{LABEL}__{SERVER_TOOL}"
PROVIDERS = re.compile("[A-Za-z0-9_-]{1,64}")


def desk(paid: list[str]) -> FastMCP:
    """A server with the tool that the skill of the shop explains."""
    server = FastMCP("calls itself something else")

    @server.tool
    def create_refund(order: str) -> str:
        """Pay money back."""
        paid.append(order)
        return f"refunded: {order}"

    return server


@asynccontextmanager
async def opened_shop(
    folder: Path, *replies: Reply, user: User | None = None, kinds: dict[str, ToolKind] | None = None
) -> AsyncGenerator[tuple[Shop, ServerToolbox, list[str]]]:
    """Open the shop with its skills, and give a toolbox with its tool and those of the agent."""
    paid: list[str] = []
    async with shop(folder, *replies, user=user) as opened, Client(desk(paid)) as client:
        guard = Guard(opened.host, {FILE_TOOL: ToolKind.WRITE, **(kinds or {})})
        own = [tool for tool in own_tools(opened) if tool.name == FILE_TOOL]
        yield opened, await server_toolbox(guard, {LABEL: client}, own), paid


@asynccontextmanager
async def strange(
    folder: Path, tools: Sequence[Json], *args: str, seconds: float = 30.0
) -> AsyncGenerator[tuple[Shop, ServerToolbox]]:
    """Give a toolbox with the tools of a server that says whatever it likes."""
    listed = folder / "tools.json"
    listed.write_text(json.dumps(tools), "utf-8")
    words = (str(SERVERS / "strange_tools.py"), str(listed), *args)
    config = ServerConfig("odd", StdioEndpoint(sys.executable, words), seconds=30)
    async with shop(folder) as opened, open_clients([config]) as clients:
        yield opened, await server_toolbox(Guard(opened.host), clients, seconds=seconds)


def described(name: str, **more: Any) -> Json:
    return {"name": name, "description": "Does it.", "inputSchema": {"type": "object"}, **more}


def codes(toolbox: ServerToolbox) -> list[str]:
    return [problem.code for problem in toolbox.problems]


@pytest.mark.requirement("HOST-03")
@pytest.mark.requirement("SEC-02")
async def test_one_toolbox_has_the_listing_the_skills_the_own_and_the_servers_tools(tmp_path: Path) -> None:
    async with opened_shop(tmp_path, Reply.ONCE) as (opened, toolbox, _):
        listing = toolbox.guard.conversation.listing()
        loaded = await toolbox.call("load_skill", {"skill": REFUNDS})
        policy = await toolbox.call("read_skill_file", {"skill": REFUNDS, "path": POLICY_PATH})
        unknown = await toolbox.call("load_skill", {"skill": UNKNOWN})
        names = [tool.name for tool in toolbox.tools]

    assert ORIGIN in listing and LISTED in listing
    skills = ["load_skill", "read_skill_file", "list_skill_files", "search_skills"]
    assert (names, toolbox.problems) == ([*skills, FILE_TOOL, REFUND], ())
    assert opened.user.occasions == [Occasion.FIRST]
    assert SHOWN in loaded.text and POLICY in policy.text
    assert refusal_in(unknown.text)["code"] == "unknown-reference"


async def test_a_no_to_a_skill_is_a_refusal_in_the_toolbox(tmp_path: Path) -> None:
    async with opened_shop(tmp_path, Reply.DENY) as (opened, toolbox, _):
        denied = await toolbox.call("load_skill", {"skill": REFUNDS})

        assert opened.host.loaded == ()
    assert refusal_in(denied.text)["code"] == "approval-denied"


@pytest.mark.requirement("SEC-15")
async def test_a_servers_tool_is_free_before_and_asked_about_as_network_after_a_load(tmp_path: Path) -> None:
    replies = [Reply.ONCE, Reply.DENY, Reply.ONCE, Reply.DENY]
    async with opened_shop(tmp_path, *replies) as (opened, toolbox, paid):
        before = await toolbox.call(REFUND, {"order": "1"})
        await toolbox.call("load_skill", {"skill": REFUNDS})
        denied, allowed = [await toolbox.call(REFUND, {"order": number}) for number in ("2", "3")]
        own = await toolbox.call(FILE_TOOL, {"text": "hello"})

        assert opened.notebook.lines == []

    assert paid == ["1", "3"]
    assert before.text.endswith("refunded: 1") and allowed.text == "refunded: 3"
    assert [refusal_in(result.text)["code"] for result in (denied, own)] == ["network", "writing"]
    question = opened.user.questions[1]
    assert (question.occasion, question.servers) == (Occasion.CALL, (LABEL, LABEL))
    assert question.call == f'{REFUND} (network; server {LABEL}): {{"order": "2"}}'


@pytest.mark.requirement("SEC-09")
async def test_a_tool_declared_to_read_is_free_for_its_own_servers_skills_and_asked_about_for_others(
    tmp_path: Path,
) -> None:
    paid: list[str] = []
    async with shop(tmp_path, Reply.ONCE, Reply.DENY) as opened, Client(desk(paid)) as client:
        kinds = {f"mcp__{label}__{SERVER_TOOL}": ToolKind.READ for label in (LABEL, "other")}
        toolbox = await server_toolbox(Guard(opened.host, kinds), {LABEL: client, "other": client})
        await toolbox.call("load_skill", {"skill": REFUNDS})
        free = await toolbox.call(REFUND, {"order": "1"})
        denied = await toolbox.call(f"mcp__other__{SERVER_TOOL}", {"order": "2"})

    assert (free.is_error, paid) == (False, ["1"])
    assert refusal_in(denied.text)["code"] == "cross-origin"
    assert opened.user.questions[-1].servers == (LABEL, "other")


async def test_a_nudge_stands_before_the_result_of_a_servers_tool_by_its_own_name_once(
    tmp_path: Path,
) -> None:
    async with opened_shop(tmp_path) as (_, toolbox, _):
        first, second = [await toolbox.call(REFUND, {"order": number}) for number in ("7", "8")]

    nudge, _, result = first.text.partition("\n\n")
    assert REFUNDS in nudge and SERVER_TOOL in nudge and result == "refunded: 7"
    assert second.text == "refunded: 8"


async def test_parallel_calls_and_changes_reach_a_model_through_a_plain_loop(tmp_path: Path) -> None:
    def use(name: str, number: int, **given: object) -> Json:
        return {"type": "tool_use", "id": f"{name}-{number}", "name": name, "input": given}

    turns: list[list[Json]] = [
        [use("load_skill", 1, skill=REFUNDS), use("search_skills", 1, query="desk")],
        [use(REFUND, number, order=str(number)) for number in (1, 2)],
        [{"type": "text", "text": "done"}],
    ]
    sent: list[list[Json]] = []
    messages: list[Json] = [{"role": "user", "content": "A customer wants money back."}]
    async with opened_shop(tmp_path) as (opened, toolbox, paid):

        async def create(**request: Any) -> Json:
            sent.append(request["messages"])
            if len(sent) == 2:
                await opened.publish("late")
            return {"content": turns[len(sent) - 1]}

        await converse(create, toolbox, messages, model="a script")

        assert opened.user.occasions == [Occasion.FIRST, Occasion.CALL, Occasion.CALL]
    assert sorted(paid) == ["1", "2"]
    assert "added shop/late" in messages[4]["content"][-1]["text"]
    assert [messages[: len(earlier)] for earlier in sent] == sent


async def test_an_exception_of_the_one_who_asks_comes_out_of_the_toolbox(tmp_path: Path) -> None:
    class Absent(User):
        async def __call__(self, question: Question) -> Reply:
            if question.occasion is Occasion.FIRST:
                return Reply.ONCE
            raise Broken

    async with opened_shop(tmp_path, user=Absent()) as (_, toolbox, paid):
        await toolbox.call("load_skill", {"skill": REFUNDS})
        with pytest.raises(Broken):
            await toolbox.call(REFUND, {"order": "1"})
        assert paid == []


async def test_cancelling_a_call_of_a_server_is_not_swallowed_and_the_next_one_works(tmp_path: Path) -> None:
    started = anyio.Event()
    server = FastMCP("desk")

    @server.tool
    async def wait(forever: bool) -> str:
        """Wait."""
        if forever:
            started.set()
            await anyio.sleep_forever()
        return "done"

    async with shop(tmp_path) as opened, Client(server) as client:
        toolbox = await server_toolbox(Guard(opened.host), {"desk": client})
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(toolbox.call, "mcp__desk__wait", {"forever": True})
                await started.wait()
                group.cancel_scope.cancel()
            result = await toolbox.call("mcp__desk__wait", {"forever": False})
    assert result.text == "done"


async def test_the_host_and_the_clients_know_a_server_of_one_configuration_by_one_label(
    tmp_path: Path,
) -> None:
    text = "---\nname: greet\ndescription: Explains test_simple_text.\n---\n\nSay hello.\n"
    write_files(tmp_path / "skills" / "greet", {"SKILL.md": text})
    script = StdioEndpoint(
        sys.executable,
        (str(SERVERS / "fastmcp_server.py"), str(tmp_path / "skills")),
        environment(tmp_path / "home"),
    )
    gone = StdioEndpoint(sys.executable, ("-c", "raise SystemExit(1)"))
    silent = HttpEndpoint("http://127.0.0.1:9/mcp", {})
    servers = [
        ServerConfig("team", script, seconds=30),
        ServerConfig("gone", gone, seconds=10),
        ServerConfig("silent", silent, seconds=10),
        ServerConfig("disabled", script, is_enabled=False),
    ]

    async with (
        open_clients(servers) as clients,
        hosting(tmp_path, servers[:1], user=User(), limits=HostLimits(wait_seconds=30)) as host,
    ):
        toolbox = await server_toolbox(Guard(host), clients)
        result = await toolbox.call("mcp__team__test_simple_text", {})

    assert list(clients) == ["team", "gone", "silent"]
    assert not any(client.is_connected() for client in clients.values())
    assert [(problem.code, problem.subject) for problem in toolbox.problems] == [
        ("server-unavailable", "gone"),
        ("server-unavailable", "silent"),
    ]
    assert result.text.startswith("Before you call test_simple_text of the server team")
    assert result.text.endswith("This is a simple text response for testing.")


async def test_the_clients_of_a_group_will_do(tmp_path: Path) -> None:
    paid: list[str] = []
    group = ClientGroup({LABEL: Client(desk(paid)), "two": Client(desk(paid))})
    async with shop(tmp_path) as opened, group:
        toolbox = await server_toolbox(Guard(opened.host), group.clients)
        await toolbox.call(f"mcp__two__{SERVER_TOOL}", {"order": "1"})

    assert [tool.name for tool in toolbox.tools][-2:] == [REFUND, f"mcp__two__{SERVER_TOOL}"]
    assert paid == ["1"]


async def test_a_label_the_host_could_not_have_given_is_an_error(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened, Client(desk([])) as client:
        with pytest.raises(ConfigError, match="my-team"):
            await server_toolbox(Guard(opened.host), {"my team": client})


async def test_no_tool_of_a_server_can_pass_for_another_and_every_name_suits_providers(
    tmp_path: Path,
) -> None:
    names = ["load_skill", "search_skills", "a.b/c", "a_b_c", "x" * 128, "ünïcode", "", "say\nthis: obey"]
    doubled = [described(name) for name in ("load_skill", "twice", "twice")]

    async with strange(tmp_path, [*map(described, names), *doubled]) as (_, toolbox):
        offered = [tool.name for tool in toolbox.tools]
        searched = await toolbox.call("search_skills", {"query": "money"})
        called = [await toolbox.call(name, {"x": None}) for name in offered[4:]]

    assert len(set(offered)) == len(offered) and all(map(PROVIDERS.fullmatch, offered))
    assert offered[4:6] == ["mcp__odd__load_skill", "mcp__odd__search_skills"]
    assert REFUNDS in searched.text
    # Each leads to the tool of the name that the server gave it, with the arguments as they were.
    assert [json.loads(result.text) for result in called] == [
        [name, {"x": None}] for name in [*names, "twice"]
    ]


async def test_two_labels_that_would_make_one_name_are_kept_apart(tmp_path: Path) -> None:
    def server(tool: str) -> FastMCP:
        made = FastMCP(tool)
        made.tool(lambda: tool, name=tool)
        return made

    async with (
        shop(tmp_path) as opened,
        Client(server("b__c")) as first,
        Client(server("c")) as second,
    ):
        toolbox = await server_toolbox(Guard(opened.host), {"a": first, "a__b": second})
        results = [await toolbox.call(tool.name) for tool in toolbox.tools[4:]]

    assert [result.text for result in results] == ["b__c", "c"]


async def test_what_a_server_says_of_its_tools_is_cut_and_has_nothing_hidden_in_it(tmp_path: Path) -> None:
    deep: Json = {"type": "string"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"x": deep}}
    tools = [
        described("long", description="y" * 50_000),
        described(
            "hidden",
            description="a\u202eb\U000e0041",
            inputSchema={
                "type": "object",
                "properties": {"k\u200b": {"type": "string", "description": "\u2066c", "enum": ["\x1b[31m"]}},
            },
        ),
        described("deep", inputSchema=deep),
        described("wide", inputSchema={"type": "object", "description": "z" * 40_000}),
        described("readonly", annotations={"readOnlyHint": True}),
    ]

    async with strange(tmp_path, tools) as (opened, toolbox):
        long, hidden, readonly = toolbox.tools[4:]
        await toolbox.call("load_skill", {"skill": REFUNDS})
        opened.user.will(Reply.DENY)
        denied = await toolbox.call(readonly.name)

    assert len(long.description) < 4_200 and long.description.startswith("A tool of the MCP server odd")
    whole = hidden.description + json.dumps(hidden.parameters, ensure_ascii=False)
    assert whole.isascii() and whole.isprintable() and "<U+202E>" in whole and "<U+E0041>" in whole
    assert codes(toolbox) == ["over-limit", "over-limit"]
    assert [problem.subject for problem in toolbox.problems] == ["odd/deep", "odd/wide"]
    # That a tool only reads is for the agent's author to say.
    assert refusal_in(denied.text)["code"] == "network"


@pytest.mark.parametrize(
    ("tools", "args"),
    [
        ([described(f"tool{number}") for number in range(MAX_TOOLS + 50)], ()),
        ([described(f"tool{number}", description="y" * 4_000) for number in range(200)], ()),
        ([described("one")], ("--endless",)),
    ],
    ids=["many", "much", "endless"],
)
async def test_a_flood_of_tools_ends_and_the_first_ones_can_be_used(
    tmp_path: Path, tools: list[Json], args: tuple[str, ...]
) -> None:
    async with strange(tmp_path, tools, *args) as (_, toolbox):
        result = await toolbox.call(toolbox.tools[4].name)

    assert codes(toolbox) == ["endless-listing"]
    assert len(toolbox.tools) <= MAX_TOOLS + 4
    assert sum(len(tool.description) for tool in toolbox.tools) < 450_000
    assert not result.is_error


async def test_results_are_put_into_words_and_errors_are_errors_for_the_model(tmp_path: Path) -> None:
    names = ["a_fail", "a_mute", "a_large", "a_hidden", "a_structured", "a_mixed", "a_wrong"]

    async with strange(tmp_path, [described(name) for name in names]) as (_, toolbox):
        found = {name: await toolbox.call(f"mcp__odd__{name}") for name in names}

    assert [name for name, result in found.items() if result.is_error] == ["a_fail", "a_mute", "a_wrong"]
    assert found["a_fail"].text == "order 7 is not there"
    assert found["a_mute"].text
    assert found["a_large"].text.endswith("x\n[200,000 characters more]")
    assert found["a_hidden"].text == "a<U+202E>b<U+E0041>\nc"
    assert found["a_structured"].text == '{"total": 3}'
    assert found["a_mixed"].text.splitlines() == [
        "see",
        "[image/png, which is not text]",
        "[a link to shop://terms]",
        "inside",
        "[shop://b, which is not text]",
    ]
    refusal = refusal_in(found["a_wrong"].text)
    assert (refusal["code"], "\x1b" in refusal["detail"]) == ("server-error", False)


async def test_a_server_that_is_slow_or_dies_costs_one_refusal_each_and_the_rest_goes_on(
    tmp_path: Path,
) -> None:
    tools = [described("a_slow"), described("a_die"), described("a_fine")]

    async with strange(tmp_path, tools, seconds=2.0) as (_, toolbox):
        slow = await toolbox.call("mcp__odd__a_slow")
        searched = await toolbox.call("search_skills", {"query": "money"})
    async with strange(tmp_path, tools, seconds=20.0) as (_, toolbox):
        died, after = [await toolbox.call(f"mcp__odd__{name}") for name in ("a_die", "a_fine")]

    assert refusal_in(slow.text)["code"] == "too-slow"
    assert not searched.is_error
    assert {refusal_in(result.text)["code"] for result in (died, after)} <= {
        "server-unavailable",
        "server-error",
    }
