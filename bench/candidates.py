"""The servers that are measured: how each is started, and what each can be asked."""

import importlib.util
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.messages import Call
from bench.processes import REPOSITORY

_CONFIGS = REPOSITORY / "bench" / "servers"
_MODULES = REPOSITORY / "tests" / "interop" / "node_modules"
FIRST = "team-00/case-000000"
EDITED = "references/part-0.md"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One server. `command` takes the folder to serve and "http" or "stdio"."""

    name: str
    command: Callable[[Path, str], list[str]]
    env: tuple[tuple[str, str], ...] = ()
    listing: str = "skills/list"
    listed: str = "skills"
    per_skill: int = 1
    """How many lines of a listing one skill takes."""
    skill: str = f"skill://{FIRST}"
    gets: bool = True
    """Whether it has skills/get, and listings that say what is in a file."""
    missing: Callable[[], str] = str
    """Why it cannot run here, or an empty string."""

    @property
    def read(self) -> Call:
        return Call("resources/read", uri=f"{self.skill}/SKILL.md")

    @property
    def page(self) -> Call:
        return Call(self.listing)


def _python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def ours(root: Path, transport: str, config: str = "") -> list[str]:
    """Return the command of our server as it is shipped, with a configuration file beside this module."""
    how = ["--http", "127.0.0.1:0"] if transport == "http" else ["--stdio"]
    options = ["--config", str(_CONFIGS / config)] if config else []
    return _python("skillwire", "serve", str(root), *how, *options)


def ours_of_catalog(url: str) -> list[str]:
    """Return the command of our server of a catalog over HTTP, with the search tool."""
    options = ["--http", "127.0.0.1:0", "--config", str(_CONFIGS / "find.toml")]
    return _python("skillwire", "serve", "--catalog", url, *options)


def ours_at(root: Path, port: int) -> list[str]:
    """Return the command of our server over HTTP on this port."""
    return _python("skillwire", "serve", str(root), "--http", f"127.0.0.1:{port}")


def _ours_in_hundreds(root: Path, transport: str) -> list[str]:
    """Return the same with pages of 100, which the budgets of a page speak of."""
    return ours(root, transport, "hundreds.toml")


def _fastmcp(mode: str) -> Callable[[Path, str], list[str]]:
    return lambda root, transport: _python("bench.servers.fastmcp_skills", str(root), mode, transport)


def _fastmcp_missing() -> str:
    return "" if importlib.util.find_spec("fastmcp") else "the package fastmcp is not installed"


def _typescript(root: Path, transport: str) -> list[str]:
    script = REPOSITORY / "bench" / "servers" / "typescript.mjs"
    return [shutil.which("node") or "node", str(script), str(_MODULES), str(root), transport]


def _typescript_missing() -> str:
    if shutil.which("node") is None:
        return "node is not on the PATH"
    if not (_MODULES / "@modelcontextprotocol" / "server").is_dir():
        return "tests/interop/node_modules is not installed: run `npm ci` in tests/interop"
    return ""


OURS = Candidate("skillwire", _ours_in_hundreds)
PLAIN = Candidate("plain SDK path", _ours_in_hundreds, env=(("SKILLWIRE_FAST", "0"),))
FASTMCP = Candidate(
    "FastMCP, resources",
    _fastmcp("default"),
    listing="resources/list",
    listed="resources",
    per_skill=2,  # SKILL.md, and a manifest
    skill="skill://case-000000",
    gets=False,
    missing=_fastmcp_missing,
)
FASTMCP_SEP = Candidate("FastMCP, extension", _fastmcp("sep"), missing=_fastmcp_missing)
TYPESCRIPT = Candidate("TypeScript SDK", _typescript, missing=_typescript_missing)
PEERS = (OURS, PLAIN, FASTMCP, FASTMCP_SEP, TYPESCRIPT)


def floor_command(place: Path, transport: str) -> list[str]:
    """Return the command of the floor that answers with the bytes in a file, or with files in a folder."""
    return _python("bench.servers.raw_asgi" if transport == "http" else "bench.servers.raw_pipe", str(place))
