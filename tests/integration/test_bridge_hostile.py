"""Hostile servers behind the bridge: they get nothing there that they do not get through the host."""

import json
import re
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from folders import skill_md, write_files
from hostile.hosting import LABEL, REFUNDS, User, config, visiting
from hostile.running import hostile
from integration import bridge_world
from integration.bridge_world import Person, bridging, text_of
from integration.cli_world import World
from integration.hosting_serve import serving
from integration.test_bridge_process import answer_to, bridge, call, open_session, text_in
from serving import StdioServer, legacy
from skillwire.core import SkillError

SCENARIOS: dict[str, dict[str, Any]] = {
    "asks_for_tools": {},
    "bad_digest": {"form": "short"},
    "breaks_out": {"form": "markup"},
    "claims": {},
    "frontmatter_lies": {"form": "changed"},
    "named_in_instructions": {},
    "nested": {},
    "rude_errors": {},
    "swapped_body": {},
    "swapped_file": {},
    "unlisted_reference": {},
    "wants_input": {},
}
_BOUNDARY = re.compile("[0-9a-f]{32}")


def normal(text: str) -> str:
    """Return a text without what is new at each load."""
    return _BOUNDARY.sub("BOUNDARY", text)


async def through_host(scenario: str, folder: Path) -> dict[str, str]:
    """Return what the model gets of each skill through a host: its text, or the code of the refusal."""
    found: dict[str, str] = {}
    async with visiting(scenario, folder, user=User(), **SCENARIOS[scenario]) as visit:
        for reference in {*visit.references(), REFUNDS}:
            try:
                found[reference] = normal((await visit.host.load(reference)).text)
            except SkillError as error:
                found[reference] = error.refusal
    return found


async def through_bridge(scenario: str, folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    person = Person("always")
    async with (
        hostile(scenario, transport="stdio", era="both", **SCENARIOS[scenario]) as peer,
        bridging(folder, config(peer)) as bridged,
        bridged.client("opencode", person=person) as client,
    ):
        for reference in {*(skill.reference for skill in bridged.host.view.skills), REFUNDS}:
            result = await bridge_world.call(client, "load_skill", skill=reference)
            text = normal(text_of(result))
            code = re.search('"code": "([a-z-]+)"', text) if result.is_error else None
            found[reference] = text if code is None else code[1]
        shown = (
            (client.instructions or "") + str(await client.list_tools()) + str(await client.list_prompts())
        )
    assert "system-reminder>" not in shown and "\u202e" not in shown and "\x1b" not in shown
    assert all(f"From: MCP server {LABEL}" in each.message for each in person.asked)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_hostile_server_gets_the_same_through_the_bridge_as_through_the_host(
    scenario: str, tmp_path: Path
) -> None:
    by_host = await through_host(scenario, tmp_path / "host")
    by_bridge = await through_bridge(scenario, tmp_path / "bridge")

    assert by_bridge == by_host


MANY = 10_000
LARGE = f"""
import anyio
from skillwire import Skill
from skillwire.server.options import ServeOptions
from skillwire.server.stdio import serve_stdio
from skillwire.sources.memory import MemorySource

text = "Does one thing of many, and says so at length. " * 4
skills = [Skill(f"skill-{{n}}", body="Do it.", description=f"Number {{n}}. {{text}}") for n in range({MANY})]
anyio.run(serve_stdio, ServeOptions(more_sources=lambda: [MemorySource(skills)]))
"""
MOST_MEMORY = 150 * 1024
"""KiB."""


@contextmanager
def silent_server() -> Generator[str]:
    """Accept connections at an address and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"


def memory_of(pid: int) -> int:
    """Return how much memory a process has used at most, in KiB."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
async def test_ten_servers_one_silent_one_hostile_and_one_with_ten_thousand_skills(
    tmp_path: Path, env: dict[str, str]
) -> None:
    world = World(tmp_path)
    write_files(tmp_path / "skills", {"refunds/SKILL.md": skill_md("refunds", body="Pay back.\n")})
    async with hostile("floods", transport="stdio", era="both") as peer:
        with serving(tmp_path / "skills", env) as honest, silent_server() as silent:
            servers: dict[str, Any] = {f"team{number}": {"url": honest.url} for number in range(7)}
            servers["silent"] = {"url": silent}
            servers["large"] = {"command": sys.executable, "args": ["-c", LARGE], "env": env}
            program, *words = peer.command
            servers["hostile"] = {"command": program, "args": words, "env": peer.environment}
            path = tmp_path / "mcp.json"
            path.write_text(json.dumps({"mcpServers": servers}))
            with bridge(world, "--config", path) as server:
                open_session(server)
                listed = answer_to(server, legacy("tools/list", 1))
                refused = text_in(call(server, "load_skill", 2, skill="team3/refunds"))
                while "large/skill-4711" not in (found := search(server, "skill-4711")):
                    pass
                prompts = all_prompts(server)
                memory = memory_of(server.pid)
                server.close_input()
                code = server.wait()

    assert len(listed["result"]["tools"]) == 4
    assert {f"large--skill-{number}" for number in range(MANY)} < set(prompts)
    assert len(prompts) == len(set(prompts))
    assert "skillwire approve team3/refunds" in refused
    assert "Not searched: the MCP server silent has not answered yet." in found
    assert memory < MOST_MEMORY and code == 0


def all_prompts(server: StdioServer) -> list[str]:
    """Return the names of the prompts on all pages."""
    names: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = answer_to(server, legacy("prompts/list", 4, **cursor))["result"]
        names += [prompt["name"] for prompt in page["prompts"]]
        if "nextCursor" not in page:
            return names
        cursor = {"cursor": page["nextCursor"]}


def search(server: StdioServer, query: str) -> str:
    return text_in(call(server, "search_skills", 3, query=query))
