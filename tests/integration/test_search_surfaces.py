"""One question, wherever it is asked: the same skills in the same order."""

import json
import re
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest
from mcp.client import Client

from folders import write_files
from integration.bridge_world import bridging, call, text_of
from integration.cli_world import World
from programs import http_server
from serving import HttpServer
from skillwire.host import Host, HttpEndpoint, LocalRoot, ServerConfig, Storage

SKILLS = {
    "billing/refunds": ("Pays customers back. Use when an order is returned.", "Look up the order first."),
    "billing/invoices": ("Writes invoices. Use when a customer asks for a bill.", "Never change an order."),
    "data/csv-insights": (
        "Profiles tables. Use when there are numbers.",
        "# Order of columns\n\nCount them.",
    ),
    "data/sql-review": ("Reviews migrations and queries before they run.", "Look for locks on orders."),
    "orders": ("Answers questions about deliveries.", "Ask for the number."),
    "press/release-notes": ("Writes what changed for customers.", "Group by customer, then by invoice."),
    "travel": ("Books trips. 旅行の予約。", "Compare prices. Return the cheapest, and the customer pays."),
}
QUESTIONS = (
    "order",
    "a customer wants the money for an order back",
    "review my sql",
    "csvInsights",
    "invoces for customers",
    "旅行",
    "return",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("world"))
    files: dict[str, str] = {}
    for path, (description, body) in SKILLS.items():
        files[f"{path}/SKILL.md"] = (
            f"---\nname: {Path(path).name}\ndescription: {description}\n---\n\n{body}\n"
        )
    write_files(world.project / "skills", files)
    return world


@pytest.fixture(scope="module")
def server(world: World) -> Generator[HttpServer]:
    config = world.project / "serve.toml"
    config.write_text("find = true\n")
    with http_server(world.project / "skills", "--config", config, env=world.env) as server:
        yield server


def by_name(references: list[str]) -> list[str]:
    return [reference.rpartition("/")[2] for reference in references]


async def found_by_tool(server: HttpServer, question: str) -> list[str]:
    async with Client(server.url) as client:
        result = await client.call_tool("find_skills", {"query": question})
    assert result.structured_content is not None
    return by_name([skill["path"] for skill in result.structured_content["skills"]])


def found_by_command(world: World, question: str) -> list[str]:
    ended = world.run("search", question, "skills", "--json")
    return by_name([match["reference"] for match in json.loads(ended.out)["matches"]])


async def found_by_host(host: Host, question: str) -> list[str]:
    search = next(tool for tool in host.tools() if tool.name == "search_skills")
    result = await search({"query": question})
    return by_name(re.findall(r"(?m)^- (\S+): ", result.text))


async def found_through_bridge(folder: Path, roots: list[LocalRoot], question: str) -> list[str]:
    async with bridging(folder, roots=roots) as bridged, bridged.client() as client:
        result = await call(client, "search_skills", query=question)
    return by_name(re.findall(r"(?m)^- (\S+): ", text_of(result)))


async def found_on_page(server: HttpServer, question: str) -> list[str]:
    async with httpx.AsyncClient() as client:
        page = await client.get(server.url.removesuffix("mcp"), params={"q": question})
    return by_name(re.findall(r'<h2><a href="[^"]*skills/([^"]+)">', page.text))


@pytest.mark.parametrize("question", QUESTIONS)
async def test_tool_command_host_bridge_and_page_give_one_order(
    world: World, server: HttpServer, question: str
) -> None:
    storage = Storage(world.root / "state", world.root / "cache")
    roots = [LocalRoot(world.project / "skills", "user")]

    by_tool = await found_by_tool(server, question)
    async with Host(roots=roots, storage=storage) as host:
        by_host = await found_by_host(host, question)

    assert by_tool, "else nothing is compared"
    assert by_host == by_tool
    assert found_by_command(world, question) == by_tool
    assert await found_through_bridge(world.root / "bridge", roots, question) == by_tool
    assert await found_on_page(server, question) == by_tool


async def test_skills_of_a_server_are_ranked_by_their_listing_alone(world: World, server: HttpServer) -> None:
    config = ServerConfig("team", HttpEndpoint(server.url))
    storage = Storage(world.root / "other-state", world.root / "other-cache")

    async with Host([config], roots=[], storage=storage) as host:
        in_descriptions = await found_by_host(host, "returned")
        in_bodies = await found_by_host(host, "cheapest")

    assert in_descriptions[0] == "refunds"
    assert in_bodies == [], "no file of a server is read before it is needed"
