"""Servers as processes of their own: how to start them, and how to see that they end well."""

import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from programs import script_command, words_of

HERE = Path(__file__).parent

STARTED_WITHIN = 60.0
ENDED_WITHIN = 15.0
LINES_KEPT = 400
PAGED = HERE / "servers" / "paged.toml"
PAGE_SIZE: int = tomllib.loads(PAGED.read_text("utf-8"))["page_size"]

Transport: TypeAlias = Literal["http", "stdio"]

SERVERS = ("skillwire", "mcpserver.py", "fastmcp_server.py")
"""`skillwire serve`, and the two frameworks that `add_skills` extends."""

EVERYWHERE: list[tuple[str, Transport]] = [
    (server, transport) for server in SERVERS for transport in get_args(Transport)
]

# On stdio the frameworks bring their own transport, which is proven once and not with every tool.
MOSTLY: list[tuple[str, Transport]] = [
    place for place in EVERYWHERE if place[0] == "skillwire" or place[1] == "http"
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a client finds a server: at a URL, or at the other end of a command it starts."""

    url: str = ""
    command: tuple[str, ...] = ()

    @property
    def where(self) -> list[str]:
        """The words that name it to a command-line tool."""
        return [self.url] if self.url else list(self.command)


def command_of(server: str, folder: Path, transport: Transport, *, node: str = "node") -> tuple[str, ...]:
    """Return the command that serves `folder` with one of the servers of these tests."""
    if server == "skillwire":
        options = ["--http", "127.0.0.1:0"] if transport == "http" else ["--stdio"]
        paged = ["--config", str(PAGED)]
        return tuple(words_of(folder, *options, *paged))
    options = ["--http"] if transport == "http" else []
    script = HERE / "servers" / server
    if script.suffix == ".mjs":
        return (node, str(script), str(folder), *options)
    return tuple(script_command(script, folder, *options))


def environment(home: Path) -> dict[str, str]:
    """Return all that a server's process needs to know, with a home of its own."""
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR")
    packages = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PYTHONPATH": packages,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
    }


@contextmanager
def serving(command: tuple[str, ...], env: dict[str, str]) -> Generator[str]:
    """Run a server over HTTP until the block ends, and give its URL.

    It must name the URL on standard error in time, and stop in time when told
    to. `skillwire` itself must not have logged a traceback; the frameworks log
    one for every wrong name.
    """
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    words = _Words(process)
    try:
        yield words.wait_for_url()
        assert process.poll() is None, f"the server ended early:\n{words}"
    finally:
        in_time = _stop(process)
        words.close()
    assert in_time, f"the server had to be killed:\n{words}"
    assert "serve" not in command or "Traceback" not in str(words), str(words)


def _stop(process: "subprocess.Popen[bytes]") -> bool:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(ENDED_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(ENDED_WITHIN)
        return False
    return True


class _Words:
    """What a process writes to standard error, of which the last lines are kept."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        return "".join(self._lines)

    def wait_for_url(self) -> str:
        self._ready.wait(STARTED_WITHIN)
        assert self._url, f"no URL after {STARTED_WITHIN} s, exit code {self._process.poll()}:\n{self}"
        return self._url

    def close(self) -> None:
        self._thread.join(ENDED_WITHIN)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _follow(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace")
            self._lines.append(text)
            found = re.search(r"http://127\.0\.0\.1:\d+/mcp", text)
            if found and not self._url:
                self._url = found[0]
                self._ready.set()
        self._ready.set()
