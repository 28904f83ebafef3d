"""Other people's servers that a host visits, and what they were asked."""

import json
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from interop.serving import HERE, serving
from interop.tools import Node
from interop.truth import Json
from programs import script_command
from skillwire.host.host import Host
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.model.naming import ServerStatus

LABEL = "peer"
SECONDS = 30.0
SEEN_WITHIN = 20.0

WIRES = (
    ("stdio", "legacy"),
    ("stdio", "modern"),
    ("http", "legacy"),
    ("http", "stateless"),
    ("http", "modern"),
)
"""Every way to talk to the official server: the transport, and the one generation it speaks."""

_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Observed:
    """A server, and the log of every message it received."""

    server: ServerConfig
    log: Path

    def asked(self, method: str = "") -> list[Json]:
        """Return every message so far, or those of one method, in order."""
        lines = self.log.read_bytes().split(b"\n")[:-1] if self.log.exists() else []
        messages = [json.loads(line) for line in lines]
        return [message for message in messages if "method" in message and method in ("", message["method"])]

    def methods(self) -> list[str]:
        return [message["method"] for message in self.asked()]

    def read(self) -> list[str]:
        """Return the URIs of every file that was read."""
        return [message["params"]["uri"] for message in self.asked("resources/read")]


@dataclass(frozen=True, slots=True)
class Official(Observed):
    """A server of the official TypeScript SDK, and the bell that lets it read its folder again."""

    bell: Path

    async def reload(self) -> None:
        """Let the server read its folder again, and wait until it has."""
        await self._ring("reload")

    async def forget_sessions(self) -> None:
        """Let the server lose its sessions, as in a restart, and wait until it has."""
        await self._ring("forget")

    async def _ring(self, what: str) -> None:
        rung = f"{what} {time.monotonic_ns()}"
        self.bell.write_text(rung, "utf-8")
        with anyio.fail_after(SEEN_WITHIN):
            while f'"rung":"{rung}"' not in self.log.read_text("utf-8"):  # noqa: ASYNC110 - another process
                await anyio.sleep(_POLL)


@contextmanager
def official(
    node: Node,
    folder: Path,
    notes: Path,
    *,
    transport: str,
    era: str,
    base: str = "",
    unlisted: Sequence[str] = (),
) -> Generator[Official]:
    """Serve `folder` with the official TypeScript SDK until the block ends."""
    log, bell = notes / "asked.jsonl", notes / "bell"
    options = {
        "folder": str(folder),
        "log": str(log),
        "bell": str(bell),
        "era": era,
        "http": transport == "http",
        "base": base,
        "unlisted": list(unlisted),
    }
    command = (node.path, str(HERE / "servers" / "observed.mjs"), json.dumps(options))
    with reached(command, node.env, transport) as server:
        yield Official(server, log, bell)


@contextmanager
def written_in_python(
    script: str, folder: Path, notes: Path, env: dict[str, str], *, transport: str, flags: Sequence[str] = ()
) -> Generator[Observed]:
    """Serve `folder` with one of the Python servers beside these tests that keep a log, until the block ends.

    The flag `--older` makes it one that does not know 2026-07-28.
    """
    log = notes / "asked.jsonl"
    command = tuple(script_command(HERE / "servers" / script, folder, log, *flags))
    if transport == "http":
        command = (*command, "--http")
    elif "--older" in flags:
        command = (sys.executable, str(HERE / "servers" / "older_stdio.py"), *command)
    with reached(command, env, transport) as server:
        yield Observed(server, log)


@contextmanager
def reached(command: tuple[str, ...], env: dict[str, str], transport: str) -> Generator[ServerConfig]:
    """Say how a host reaches a server; over stdio it is the host that starts it."""
    if transport == "stdio":
        word, *words = command
        yield ServerConfig(LABEL, StdioEndpoint(word, tuple(words), env), seconds=SECONDS)
        return
    with serving(command, env) as url:
        yield ServerConfig(LABEL, HttpEndpoint(url), seconds=SECONDS)


def status_of(host: Host, label: str = LABEL) -> ServerStatus:
    [status] = [status for status in host.view.servers if status.origin.label == label]
    return status


async def becomes_stale(host: Host, label: str = LABEL) -> ServerStatus:
    """Wait until a listing is no longer good, and return how things stand then."""
    with anyio.fail_after(SEEN_WITHIN):
        while (status := status_of(host, label)).state != "stale":  # noqa: ASYNC110 - it is another process
            await anyio.sleep(_POLL)
    return status
