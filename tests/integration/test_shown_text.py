"""Whatever repeats a text that it was given, repeats it short and with nothing hidden in it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastmcp import FastMCP
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

from folders import skill_md, write_files
from hostile.hosting import User, hosting
from integration.hosting_serve import BILLING, over_stdio, written
from serving import environment
from shown import HOSTILE, LONG, hostile_texts, require_inert
from skillwire.core.dialects import Dialect
from skillwire.host import Guard, Reply, Tool, ToolKind
from skillwire.host.adapters.tools import Toolbox
from skillwire.runner import Policy
from skillwire.server import add_skills
from skillwire.server.options import ServeOptions
from skillwire.server.skills import MCP_DIALECTS
from skillwire.server.standalone import SkillServer
from talking import MODES, Json, ask, connect, refused, skill

pytestmark = pytest.mark.anyio

REFUNDS = "desk/refunds"
# Beginnings that bring a text past the first look at it: a label, a URI, a skill that is loaded, a path.
BEGINNINGS = ("desk/", "desk/skill://", "skill://", "skill://refunds/", "../", "references/", REFUNDS)
GOOD: dict[str, object] = {
    "skill": REFUNDS,
    "path": "references/policy.md",
    "server": "desk",
    "uri": "skill://refunds/SKILL.md",
    "query": "refunds",
    "script": "scripts/check.sh",
}


def calls(tools: list[Tool]) -> Iterator[tuple[Tool, dict[str, object]]]:
    """Yield calls of every tool in which one argument is hostile and the others are good ones."""
    for tool in tools:
        names: dict[str, Any] = tool.parameters["properties"]
        good = {name: GOOD[name] for name in tool.parameters["required"]}
        for name in names:
            for text in hostile_texts(*BEGINNINGS):
                yield tool, {**good, name: text}
        yield tool, {**good, HOSTILE: "x"}
        yield tool, {**good, LONG: "x"}


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_no_tool_repeats_a_hostile_argument(tmp_path: Path, is_loaded: bool) -> None:
    server = over_stdio(written(tmp_path / "served", BILLING), environment(tmp_path))
    async with hosting(tmp_path, [server], user=User(), scripts=Policy()) as host:
        await host.refresh()
        if is_loaded:
            await host.load(REFUNDS)
        tools = list(host.tools(with_resources=True))
        assert len(tools) == 6
        answered = [(tool.name, await tool(arguments)) for tool, arguments in calls(tools)]

    assert any(result.is_error for _, result in answered)
    for _, result in answered:
        require_inert(result.text, lines=not result.is_error)
        if result.refusal is not None:
            require_inert(str(result.refusal))


async def test_neither_an_unknown_tool_nor_a_call_the_user_forbids_is_repeated_as_it_is(
    tmp_path: Path,
) -> None:
    async def handler(arguments: Any) -> str:
        return "never"

    own = Tool("send", "Send.", {"type": "object", "properties": {"to": {"type": "string"}}}, handler)
    server = over_stdio(written(tmp_path / "served", BILLING), environment(tmp_path))
    async with hosting(tmp_path, [server], user=User(Reply.ALWAYS, Reply.DENY)) as host:
        await host.refresh()
        await host.load(REFUNDS)
        toolbox = Toolbox(Guard(host, {"send": ToolKind.NETWORK}), [own])
        results = [await toolbox.call(text, {}) for text in hostile_texts("mcp__desk__", "send")]
        results += [await toolbox.call("send", {"to": text}) for text in hostile_texts(*BEGINNINGS)]
        results += [await toolbox.call("load_skill", text) for text in hostile_texts('{"skill": "')]

    for result in results:
        assert result.is_error
        require_inert(result.text)


async def test_an_explanation_repeats_a_hostile_reference_as_inert_text(tmp_path: Path) -> None:
    server = over_stdio(written(tmp_path / "served", BILLING), environment(tmp_path))
    async with hosting(tmp_path, [server], user=User()) as host:
        await host.refresh()
        for text in hostile_texts(*BEGINNINGS):
            require_inert(str(await host.explain(text)), lines=True)


METHODS: list[tuple[str, str, Json]] = [
    ("skills/list", "cursor", {}),
    ("skills/get", "uri", {}),
    ("skills/get", "name", {}),
    ("skills/read", "name", {}),
    ("skills/read_reference", "name", {"reference": "a.md"}),
    ("skills/read_reference", "reference", {"name": "refunds"}),
    ("skills/execute", "name", {"script": "scripts/check.sh"}),
    ("skills/execute", "script", {"name": "refunds"}),
    ("resources/read", "uri", {}),
    ("resources/list", "cursor", {}),
    ("resources/templates/list", "cursor", {}),
    ("resources/directory/read", "uri", {}),
    ("resources/directory/read", "cursor", {"uri": "skill://refunds"}),
    ("prompts/list", "cursor", {}),
    ("prompts/get", "name", {}),
    ("tools/call", "name", {}),
]
DIALECTS = [
    tuple(dialect.value for dialect in MCP_DIALECTS if dialect is not other)
    for other in (Dialect.INDEX_APRIL, Dialect.INDEX_JUNE)
]


@pytest.mark.parametrize("dialects", [(), *DIALECTS], ids=["core", "june", "april"])
@pytest.mark.parametrize("mode", MODES)
async def test_no_method_of_a_server_repeats_a_hostile_parameter(
    tmp_path: Path, mode: str, dialects: tuple[str, ...]
) -> None:
    write_files(tmp_path, {"refunds/SKILL.md": skill_md("refunds"), "refunds/scripts/check.sh": "true"})
    served = ServeOptions((tmp_path,), watch=False, dialect=dialects, find=True)
    options = replace(served, scripts=bool(dialects), policy=Policy(pool=0))
    standalone = SkillServer(options)
    async with standalone.skills.open():
        await require_inert_answers(standalone.server, mode)


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize("kind", [Server, MCPServer, FastMCP])
@pytest.mark.parametrize("mode", MODES)
async def test_no_method_of_an_embedding_server_repeats_a_hostile_parameter(
    tmp_path: Path, mode: str, kind: type[Any]
) -> None:
    write_files(tmp_path, {"refunds/SKILL.md": skill_md("refunds")})
    server = kind("demo")
    add_skills(server, tmp_path, watch=False)

    await require_inert_answers(server._mcp_server if kind is FastMCP else server, mode)


async def require_inert_answers(server: Any, mode: str) -> None:
    """Check that no answer repeats a hostile text, in any parameter or as the name of a method."""
    refused = 0
    async with connect(server, mode) as client:
        for method, params in hostile_requests():
            try:
                result = await ask(client, method, **params)
            except MCPError as error:
                refused += 1
                data = error.error.data
                require_inert(error.message)
                require_inert(json.dumps(data, ensure_ascii=False) if data else "")
            else:
                require_inert(json.dumps(result, ensure_ascii=False))
    assert refused > len(METHODS)


def hostile_requests() -> Iterator[tuple[str, Json]]:
    for text in hostile_texts("skills/", "resources/", "tools/call"):
        yield text, {}
    for method, name, others in METHODS:
        for text in hostile_texts("skill://", "skill://refunds/", "refunds", "http://example.com/"):
            yield method, {**others, name: text}


@pytest.mark.parametrize("mode", MODES)
async def test_errors_of_the_servers_own_tools_and_codes_are_sent_as_they_are(mode: str) -> None:
    server = MCPServer("demo")
    add_skills(server, skill("refunds"))
    text, data = "line one\nline two\t" + "x" * 2_000, {"url": "https://example.com/" + "x" * 500}

    @server.tool()
    def fail() -> None:
        raise ToolError(text)

    @server.resource("orders://{number}")
    def order(number: str) -> str:
        raise MCPError(-32042, "Sign in:\nopen the URL", data)

    async with connect(server, mode) as client:
        result = await ask(client, "tools/call", name="fail")
        error = await refused(client, "resources/read", uri="orders://1")

    assert result["content"][0]["text"].endswith(text)
    assert (error.code, error.message, error.data) == (-32042, "Sign in:\nopen the URL", data)
