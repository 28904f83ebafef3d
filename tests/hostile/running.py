"""Starting the peer, telling it what to do, and looking at what it was asked."""

import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import anyio
from anyio.abc import Process
from mcp.client.stdio import StdioServerParameters

from hostile.scenarios import SCENARIOS

STARTED_WITHIN = 30.0
SEEN_WITHIN = 20.0
TESTS = Path(__file__).parent.parent

Json: TypeAlias = dict[str, Any]
WIRES = (("stdio", "legacy"), ("stdio", "modern"), ("http", "legacy"), ("http", "modern"))
"""Every way to talk to a peer: the transport, and the generation it speaks."""

_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Asked:
    """One message the peer received, noted before it was answered."""

    method: str
    params: Json
    era: str
    pid: int
    headers: Json = field(default_factory=dict[str, Any])

    @property
    def uri(self) -> str:
        return str(self.params.get("uri", ""))


class Peer:
    """A scenario at the other end of a real transport.

    Over stdio the host starts the process, as often as it likes; over HTTP it
    runs already. Either way it ends when the folder it works in is gone.
    """

    def __init__(self, scenario: str, transport: str, era: str, folder: Path) -> None:
        self.scenario = scenario
        self.transport = transport
        self.era = era
        self.folder = folder
        self.url = ""
        self._process: Process | None = None

    # What a host needs to know

    @property
    def command(self) -> list[str]:
        """The whole command line of the process."""
        words = [
            sys.executable,
            "-m",
            "hostile.peer",
            self.scenario,
            f"--{self.transport}",
            "--era",
            self.era,
        ]
        return [*words, "--folder", str(self.folder)]

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"}

    @property
    def target(self) -> StdioServerParameters | str:
        """What a plain MCP client connects to."""
        if self.transport == "http":
            return self.url
        return StdioServerParameters(command=self.command[0], args=self.command[1:], env=self.environment)

    # What it is told

    def say(self, **control: Any) -> None:
        """Change what the peer does from the next request on; nothing said before is forgotten."""
        path = self.folder / "control.json"
        said: Json = json.loads(path.read_bytes()) if path.exists() else {}
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({**said, **control}), "utf-8")
        fresh.replace(path)

    def announce(self, **control: Any) -> None:
        """Change what the peer does, and let it tell every host that its listing changed."""
        path = self.folder / "control.json"
        self.say(**control, notify=int(json.loads(path.read_bytes()).get("notify", 0)) + 1)

    # What it has seen

    def requests(self, method: str = "") -> list[Asked]:
        """Return every message so far, or those of one method, in order."""
        return [
            Asked(line["method"], line["params"], line["era"], line["pid"], line["headers"])
            for line in self._log()
            if "method" in line and method in ("", line["method"])
        ]

    def reads(self) -> list[str]:
        """Return the URIs of every file that was read."""
        return [asked.uri for asked in self.requests("resources/read")]

    def forget(self) -> None:
        """Start counting again. Only while the peer is idle: what it writes meanwhile would be lost."""
        path = self.folder / "log.jsonl"
        if path.exists():
            os.truncate(path, 0)

    def pids(self) -> list[int]:
        """Return every process that was started since the last `forget`."""
        return [line["pid"] for line in self._log() if "started" in line]

    def living(self) -> list[int]:
        """Return the processes that still run; a zombie counts, since nobody has reaped it."""
        return [pid for pid in dict.fromkeys(self.pids()) if _exists(pid)]

    async def seen(self, method: str, times: int = 1) -> list[Asked]:
        """Wait until a method was asked so often."""
        with anyio.fail_after(SEEN_WITHIN):
            while len(found := self.requests(method)) < times:  # noqa: ASYNC110 - it is another process
                await anyio.sleep(_POLL)
        return found

    # Its life, over HTTP

    async def start(self, port: int = 0) -> None:
        """Run the server, at the port it had before if there is one."""
        words = [*self.command, "--port", str(port)]
        environment = {"PATH": os.environ.get("PATH", ""), **self.environment}
        self._process = await anyio.open_process(words, stdin=None, stdout=None, stderr=None, env=environment)
        with anyio.fail_after(STARTED_WITHIN):
            while not (
                found := [
                    line["url"]
                    for line in self._log()
                    if line.get("pid") == self._process.pid and "url" in line
                ]
            ):
                assert self._process.returncode is None, "the peer ended at once"
                await anyio.sleep(_POLL)
        self.url = found[0]

    async def stop(self) -> None:
        """Kill the server, as a machine that goes down would."""
        process, self._process = self._process, None
        if process is not None:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                with anyio.fail_after(STARTED_WITHIN):
                    await process.aclose()

    async def restart(self) -> None:
        """Run the server again, at the address it had."""
        await self.stop()
        await self.start(port_of(self.url))

    def _log(self) -> list[Json]:
        path = self.folder / "log.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]


@asynccontextmanager
async def hostile(
    scenario: str, *, transport: str = "stdio", era: str = "both", **control: Any
) -> AsyncGenerator[Peer]:
    """Make a scenario available until the block ends; `control` is what `Peer.say` would say first."""
    assert scenario in SCENARIOS, f"there is no scenario {scenario!r}"
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as folder:
        peer = Peer(scenario, transport, era, Path(folder))
        peer.say(**control)
        try:
            if transport == "http":
                await peer.start()
            yield peer
        finally:
            await peer.stop()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
