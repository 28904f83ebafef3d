"""Servers for the tests of connections: hostile ones, honest ones, and what they noted."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import orjson

from programs import words_of
from serving import Json
from skillwire.host.calls.session import ConnectionLimits
from skillwire.host.model.endpoints import Endpoint, HttpEndpoint, ServerConfig, StdioEndpoint

PROGRAM = Path(__file__).with_name("hostile_peer.py")
ERAS = ("modern", "legacy")
TRANSPORTS = ("stdio", "http")
DEADLINE = 60.0

# Short rests, so that tests about other things do not wait for them.
BRISK = ConnectionLimits(backoff_base=0.01, backoff_most=0.05, starts=50, change_gap=0.3, exit_grace=0.5)


@dataclass(frozen=True, slots=True)
class Peer:
    """A server under a label, and the file in which it notes what happens to it."""

    server: ServerConfig
    log: Path

    @property
    def facts(self) -> list[Json]:
        return (
            [orjson.loads(line) for line in self.log.read_bytes().splitlines()] if self.log.exists() else []
        )

    @property
    def starts(self) -> int:
        return sum("start" in fact for fact in self.facts)

    @property
    def pids(self) -> set[int]:
        """Every process of it that there ever was."""
        facts = self.facts
        return {fact["pid"] for fact in facts} | {fact["child"] for fact in facts if "child" in fact}

    def asked(self, method: str) -> list[Json]:
        return [fact for fact in self.facts if fact.get("method") == method]

    async def wait_for(self, method: str, times: int = 1) -> None:
        with anyio.fail_after(DEADLINE):
            while len(self.asked(method)) < times:  # noqa: ASYNC110 - another process notes it in a file
                await anyio.sleep(0.02)


def config(endpoint: Endpoint, *, label: str = "peer", seconds: float = 20.0, **more: Any) -> ServerConfig:
    return ServerConfig(label, endpoint, seconds=seconds, **more)


@contextmanager
def hostile(
    folder: Path,
    behaviour: str,
    *,
    era: str = "modern",
    transport: str = "stdio",
    seconds: float = 20.0,
    headers: Mapping[str, str] | None = None,
) -> Generator[Peer]:
    """Make a server that misbehaves; one at a URL runs until the block ends."""
    log = folder / f"{behaviour}-{era}-{transport}.log"
    command = [sys.executable, str(PROGRAM), behaviour, era, str(log)]
    if transport == "stdio":
        yield Peer(config(StdioEndpoint(command[0], tuple(command[1:])), seconds=seconds), log)
        return
    process = subprocess.Popen([*command, "--http"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        yield Peer(config(HttpEndpoint(url, headers or {}), seconds=seconds), log)
    finally:
        process.kill()
        process.wait(DEADLINE)
        process.stdout.close()


def honest(folder: Path, root: Path, *, era: str, env: Mapping[str, str], **more: Any) -> Peer:
    """Make a server of our own on two pipes, whose newer generation is hidden when `era` is legacy."""
    log = folder / f"honest-{era}.log"
    command = words_of(root, "--stdio")
    if era == "legacy":
        command = [sys.executable, str(PROGRAM), "honest", era, str(log), "--relay", *command]
    return Peer(config(StdioEndpoint(command[0], tuple(command[1:]), env), **more), log)


def is_alive(pid: int) -> bool:
    """Whether a process exists, even if only as the memory of one that nobody has asked about."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not _is_foreign_zombie(pid)


def _is_foreign_zombie(pid: int) -> bool:
    """Whether it is dead and not our child: an orphan is for the first process of the machine to bury."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] == "Z" and int(fields[1]) != os.getpid()


async def gone(pids: set[int]) -> None:
    """Wait until none of these processes is left."""
    with anyio.fail_after(DEADLINE):
        while any(map(is_alive, pids)):  # noqa: ASYNC110 - processes are no events
            await anyio.sleep(0.02)


def resident_bytes() -> int:
    """Return how much memory this process has at the moment."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
