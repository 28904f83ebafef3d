"""Every dialect our server speaks, heard by our host: in both generations, over both transports."""

import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from folders import skill_md, write_files
from hostile.hosting import storage_in
from integration.peers import PROGRAM
from programs import script_command, words_of
from serving import environment
from skillwire.core.dialects import Dialect
from skillwire.host import Host, HostLimits, HostPolicy, Question, Reply
from skillwire.host.model.endpoints import Endpoint, HttpEndpoint, ServerConfig, SkillSettings, StdioEndpoint
from skillwire.host.use.fetch import ArchivePolicy
from skillwire.server.skills import MCP_DIALECTS

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).with_name("dialect_server.py")
WIRES = [(transport, era) for transport in ("stdio", "http") for era in ("modern", "legacy")]
HEARD = [Dialect.CORE, *MCP_DIALECTS]
DEADLINE = 90.0

POLICY = "Within 30 days.\nNot later.\n"
SHOP: Mapping[str, str | bytes] = {
    "refunds/SKILL.md": skill_md("refunds", body="Read [the policy](references/policy.md).\n"),
    "refunds/references/policy.md": POLICY,
    "refunds/assets/logo.png": b"\x89PNG\xff",
    "acme/stock/SKILL.md": skill_md("stock", body="Count the boxes.\n"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "shop", SHOP)
    return tmp_path / "shop"


@contextmanager
def served(
    folder: Path, env: Mapping[str, str], dialect: Dialect, transport: str, era: str
) -> Generator[Endpoint]:
    """Serve a folder in `core` and one dialect, and say how to reach it."""
    spoken = [] if dialect is Dialect.CORE else [dialect.value]
    if transport == "stdio":
        command = words_of(folder, "--stdio", *(word for name in spoken for word in ("--dialect", name)))
        if era == "legacy":
            # On pipes the first message decides about the generation, so it must not get through.
            log = folder.parent / "relay.log"
            command = [sys.executable, str(PROGRAM), "honest", era, str(log), "--relay", *command]
        yield StdioEndpoint(command[0], tuple(command[1:]), env)
        return
    command = script_command(SERVER, folder, era, *spoken, "--http")
    process = subprocess.Popen(command, env=dict(env), stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield HttpEndpoint(process.stdout.readline().decode().strip())
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


async def _yes(question: Question) -> Reply:
    return Reply.ONCE


def host_for(
    tmp_path: Path, endpoint: Endpoint, dialect: Dialect | None, *, policy: HostPolicy | None = None
) -> Host:
    return Host(
        [ServerConfig("shop", endpoint, seconds=30, skills=SkillSettings(dialect=dialect))],
        roots=(),
        storage=storage_in(tmp_path),
        approve=_yes,
        limits=HostLimits(wait_seconds=60),
        policy=policy,
    )


@pytest.mark.requirement("NEG-12")
@pytest.mark.requirement("CONF-01")
@pytest.mark.requirement("TOOL-03")
@pytest.mark.parametrize(("transport", "era"), WIRES)
@pytest.mark.parametrize("dialect", HEARD)
async def test_a_skill_is_listed_loaded_and_read_in_every_dialect_on_every_wire(
    dialect: Dialect, transport: str, era: str, tmp_path: Path, folder: Path, empty_home: Path
) -> None:
    with (
        served(folder, environment(empty_home), dialect, transport, era) as endpoint,
        anyio.fail_after(DEADLINE),
    ):
        async with host_for(tmp_path, endpoint, dialect, policy=HostPolicy(dynamic="ask")) as host:
            skills = {skill.reference: skill for skill in host.view.skills}
            loaded = await host.load("shop/refunds")
            policy = await host.read_skill_file("shop/refunds", "references/policy.md")

    assert [*skills] == ["shop/refunds", "shop/stock"]
    assert {skill.dialect for skill in skills.values()} == {dialect}
    assert "Read [the policy](references/policy.md)." in loaded.text
    assert POLICY.strip() in policy.text


@pytest.mark.requirement("OPEN-15")
async def test_a_server_of_many_dialects_is_heard_in_the_released_one(
    tmp_path: Path, folder: Path, empty_home: Path
) -> None:
    everything = [dialect for dialect in MCP_DIALECTS if dialect is not Dialect.INDEX_APRIL]
    env = environment(empty_home)
    command = words_of(
        folder, "--stdio", *(word for name in everything for word in ("--dialect", name.value))
    )
    endpoint = StdioEndpoint(command[0], tuple(command[1:]), env)

    async with host_for(tmp_path, endpoint, None) as host:
        found = [(skill.reference, skill.dialect, skill.entry.is_dynamic) for skill in host.view.skills]

    assert found == [("shop/refunds", Dialect.CORE, False), ("shop/stock", Dialect.CORE, False)]


@pytest.mark.requirement("ARC-13")
@pytest.mark.parametrize(("transport", "era"), WIRES)
async def test_our_own_archives_are_unpacked_and_read_where_the_host_allows_it(
    transport: str, era: str, tmp_path: Path, folder: Path, empty_home: Path
) -> None:
    with served(folder, environment(empty_home), Dialect.INDEX_JUNE, transport, era) as endpoint:
        async with host_for(
            tmp_path, endpoint, Dialect.INDEX_JUNE, policy=HostPolicy(archives=ArchivePolicy())
        ) as host:
            await host.load("shop/refunds")
            policy = await host.read_skill_file("shop/refunds", "references/policy.md")

    assert POLICY.strip() in policy.text
