"""The MCP skills of Microsoft's agent-framework, reading our servers by its own code.

Its `MCPSkillsSource` reads `skill://index.json` in the form of April: a name,
a type and a URI. The form of June, which has none of these, it passes over.
"""

import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from folders import skill_md, write_files
from interop.serving import HERE, Transport, environment, serving
from programs import script_command, words_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # It says that these classes are experimental.
    from agent_framework import MCPSkillsSource, SkillsSourceContext

DEADLINE = 60.0

pytestmark = pytest.mark.filterwarnings("ignore::agent_framework._feature_stage.ExperimentalWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    write_files(
        folder,
        {
            "tea/SKILL.md": skill_md("tea", body="Read references/leaves.md.\n"),
            "tea/references/leaves.md": "# Leaves\n",
            "tea/assets/leaf.png": bytes(range(256)),
            "acme/refunds/SKILL.md": skill_md("refunds", extra="license: MIT\n"),
            "acme/refunds/inner/SKILL.md": skill_md("inner"),
        },
    )
    return folder


@asynccontextmanager
async def connected(command: tuple[str, ...], transport: Transport, home: Path) -> AsyncGenerator[Client]:
    """Start a server as a process, and connect to it with the SDK's own client."""
    env = environment(home)
    with anyio.fail_after(DEADLINE):
        if transport == "http":
            with serving((*command, "--http", *bound(command)), env) as url:
                async with Client(url) as client:
                    yield client
            return
        parameters = StdioServerParameters(command=command[0], args=list(command[1:]), env=env)
        async with Client(stdio_client(parameters)) as client:
            yield client


def bound(command: tuple[str, ...]) -> tuple[str, ...]:
    return ("127.0.0.1:0",) if "serve" in command else ()


def ours(folder: Path, dialect: str) -> tuple[str, ...]:
    return tuple(words_of(folder, "--dialect", dialect))


def packing(folder: Path) -> tuple[str, ...]:
    return tuple(script_command(HERE / "servers" / "april_archives.py", folder))


async def skills_of(client: Client) -> dict[str, Any]:
    """Return what agent-framework discovers, by name."""
    source = MCPSkillsSource(client=client)
    found = await source.get_skills(SkillsSourceContext(agent=None))  # pyright: ignore[reportArgumentType]
    return {skill.frontmatter.name: skill for skill in found}


@pytest.mark.requirement("DRAFT-02")
@pytest.mark.requirement("DRAFT-03")
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_it_discovers_every_skill_and_reads_its_files_one_by_one(
    folder: Path, tmp_path: Path, transport: Transport
) -> None:
    async with connected(ours(folder, "index-april"), transport, tmp_path) as client:
        found = await skills_of(client)
        tea = found["tea"]
        content = await tea.get_content()
        leaves = await (await tea.get_resource("references/leaves.md")).read()
        leaf = await (await tea.get_resource("assets/leaf.png")).read()
        missing = await tea.get_resource("references/gone.md")

    assert sorted(found) == ["refunds", "tea"]
    assert tea.frontmatter.description == "Use when testing tea."
    assert content.encode() == (folder / "tea/SKILL.md").read_bytes()
    assert leaves == "# Leaves\n"
    assert leaf == bytes(range(256))
    assert missing is None


@pytest.mark.requirement("ARC-01")
@pytest.mark.requirement("ARC-02")
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_it_verifies_and_unpacks_our_archives(
    folder: Path, tmp_path: Path, transport: Transport
) -> None:
    async with connected(packing(folder), transport, tmp_path) as client:
        found = await skills_of(client)
        tea = found["tea"]
        content = await tea.get_content()
        leaves = await (await tea.get_resource("references/leaves.md")).read()
        missing = await tea.get_resource("references/gone.md")

    assert sorted(found) == ["refunds", "tea"]
    assert type(tea).__name__ == "FileSkill"
    assert (folder / "tea/SKILL.md").read_text("utf-8") in content
    assert leaves == "# Leaves\n"
    assert missing is None


@pytest.mark.requirement("NEG-13")
async def test_it_finds_nothing_in_the_index_of_june_and_does_not_fail(folder: Path, tmp_path: Path) -> None:
    async with connected(ours(folder, "index-june"), "stdio", tmp_path) as client:
        assert await skills_of(client) == {}
