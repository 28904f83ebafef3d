"""Scripts under load: requests beyond the bound are refused as busy before a file is read."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.server.mcpserver import MCPServer

from configs import configured
from folders import skill_md, write_files
from hostile.hosting import User
from integration.hosting_shop import Event, Shop
from integration.runner.execute_world import StdioPeer, peer
from integration.runner.hosting_scripts import POLICY, REFUNDS, catalogue, loaded
from integration.runner.running import needs_sandbox
from skillwire.core import ManifestFile, SkillEntry
from skillwire.core.errors import RunnerBusyError
from skillwire.host.model.approval import Occasion, Question, Reply
from skillwire.runner import Policy
from skillwire.server import add_skills
from skillwire.sources import DirectorySource
from talking import ask, refused

pytestmark = needs_sandbox

MIB = 1024 * 1024
DEADLINE = 60.0
LARGE = 12 * MIB
MOST_GROWTH = 600 * MIB
FILES = {
    "large/SKILL.md": skill_md("large"),
    "large/skillwire-files.txt": "scripts/wait.py (pause): Waits.\n",
    "large/scripts/wait.py": "import time\ntime.sleep(60)\n",
    "large/assets/table.bin": os.urandom(LARGE),
}


class CountingSource(DirectorySource):
    """A folder of skills that counts how often a file is read."""

    reads = 0

    def read_now(self, entry: SkillEntry, line: ManifestFile) -> bytes | None:
        self.reads += 1
        return super().read_now(entry, line)


class SlowUser(User):
    """Thinks about a script until it is told to answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = anyio.Event()
        self.may_answer = anyio.Event()

    async def __call__(self, question: Question) -> Reply:
        if question.occasion is Occasion.SCRIPTS:
            self.asked.set()
            await self.may_answer.wait()
        return await super().__call__(question)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "skills", FILES)
    return tmp_path / "skills"


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - a source has no event for it
        await anyio.sleep(0.01)


@pytest.mark.requirement("EXEC-12", "EXEC-16")
async def test_no_file_is_read_for_a_request_that_is_refused_as_busy(folder: Path) -> None:
    server, source = MCPServer("office"), CountingSource(folder)
    add_skills(server, source, scripts=Policy(concurrent=1, queue=0, pool=0))
    refusals: list[types.ErrorData] = []
    reads: list[int] = []

    async with Client(server, cache=None) as client, anyio.create_task_group() as tasks:
        source.reads = 0

        async def run() -> None:
            await ask(client, "skills/execute", name="large", script="wait.py")

        tasks.start_soon(run)
        with anyio.fail_after(DEADLINE):
            # What others call the scripts is read first, and then every file of the skill.
            await until(lambda: source.reads > len(FILES))
            source.reads = 0
            for script in ("wait.py", "pause", "missing", "scripts/wait.py") * 5:
                refusals.append(await refused(client, "skills/execute", name="large", script=script))
        reads.append(source.reads)
        tasks.cancel_scope.cancel()

    assert reads == [0]
    assert {error.code for error in refusals} == {-32003}
    assert [error.data["reason"] for error in refusals] == ["busy"] * 20


@pytest.mark.requirement("EXEC-12")
def test_the_memory_of_all_requests_that_wait_is_bounded(folder: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("concurrent = 1\nqueue = 1000\npool = 0\n")
    policy.chmod(0o600)
    requests = 100

    with peer(
        "stdio-modern", folder, "--scripts", *configured(tmp_path, script_policy=policy), home=tmp_path
    ) as client:
        assert isinstance(client, StdioPeer)
        before = peak_memory(client.server.process.pid)
        for number in range(requests):
            client.start(number, "skills/execute", name="large", script="wait.py")
        admitted = 256 * MIB // LARGE
        errors = [client.next_answer()["error"] for _ in range(requests - admitted)]
        growth = peak_memory(client.server.process.pid) - before

    assert {(error["code"], error["data"]["reason"]) for error in errors} == {(-32003, "busy")}
    assert growth < MOST_GROWTH


def peak_memory(pid: int) -> int:
    """Return the most memory a process has had resident so far."""
    [found] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found) * 1024


@pytest.mark.requirement("EXEC-12")
async def test_a_host_reads_nothing_and_asks_nobody_for_a_run_that_it_has_no_place_for(
    tmp_path: Path,
) -> None:
    user = SlowUser()
    sent: list[Event] = []
    async with Shop().running() as shop:
        await shop.publish(catalogue())
        policy = replace(POLICY, concurrent=1, queue=0)
        async with loaded(tmp_path, shop, user, scripts=policy) as host, anyio.create_task_group() as tasks:
            tasks.start_soon(host.run_script, REFUNDS, "echo.py")
            await user.asked.wait()
            shop.trace.clear()
            with pytest.raises(RunnerBusyError):
                await host.run_script(REFUNDS, "other.py", {})
            sent.extend(shop.trace)
            user.may_answer.set()

    assert sent == []
    assert user.occasions == [Occasion.FIRST, Occasion.SCRIPTS]
