"""Folders of skills, `skillwire serve` in front of them, and how a host reaches it."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from folders import skill_md, write_files
from hostile.hosting import storage_in
from programs import http_server, words_of
from serving import HttpServer
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint

Line: TypeAlias = dict[str, Any]

LOGO = b"\x89PNG\r\n\x1a\n\xff\x00logo"
SCRIPT = b"#!/bin/sh\necho checked\n"
POLICY = b"Refund within 30 days.\n"
PARAGRAPH = "Count the boxes, then count them again.\n"

BILLING: Mapping[str, str | bytes] = {
    "refunds/SKILL.md": skill_md(
        "refunds",
        body="Read [the policy](references/policy.md).\n",
        extra="allowed-tools: Write Bash(git:*)\nmetadata:\n  io.modelcontextprotocol/trusted: 'yes'\n",
    ),
    "refunds/references/policy.md": POLICY,
    "refunds/scripts/check.sh": SCRIPT,
    "refunds/assets/logo.png": LOGO,
    "stock/SKILL.md": skill_md("stock", body=PARAGRAPH * 100),
    "outer/SKILL.md": skill_md("outer", body="Outer.\n"),
    "outer/notes.md": "Notes of the outer skill.\n",
    "outer/inner/SKILL.md": skill_md("inner", body="Inner.\n", extra="allowed-tools: Bash\n"),
    "outer/inner/notes.md": "Notes of the inner skill.\n",
    "east/report/SKILL.md": skill_md("report", body="East.\n"),
    "west/report/SKILL.md": skill_md("report", body="West.\n"),
}
"""What one server publishes; `DESK` is another's, with one name in common."""
DESK: Mapping[str, str | bytes] = {
    "refunds/SKILL.md": skill_md("refunds", body="Ask the desk.\n"),
    "letters/SKILL.md": skill_md("letters", body="Write letters.\n"),
}


@contextmanager
def serving(
    folder: Path, env: Mapping[str, str], *, port: int = 0, watch: bool = False
) -> Generator[HttpServer]:
    """Run `skillwire serve --http` for a folder, at a port it may have had before."""
    words = [] if watch else ["--no-watch"]
    with http_server(folder, *words, env=env, bind=f"127.0.0.1:{port}") as server:
        yield server


def at(server: HttpServer, label: str = "billing") -> ServerConfig:
    return ServerConfig(label, HttpEndpoint(server.url), seconds=20)


def over_stdio(folder: Path, env: Mapping[str, str], label: str = "desk") -> ServerConfig:
    """Say how a host starts `skillwire serve` itself."""
    program, *args = words_of(folder, "--stdio", "--no-watch")
    return ServerConfig(label, StdioEndpoint(program, tuple(args), env), seconds=30)


def written(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    write_files(folder, files)
    return folder


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def put(path: Path, content: bytes) -> None:
    """Change a file as any other program would."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def audit(folder: Path, event: str = "") -> list[Line]:
    """Return the lines of the audit log of the host whose state lies in `folder`, or those of one event."""
    lines: list[Line] = [
        json.loads(line) for line in storage_in(folder).audit.read_text("utf-8").splitlines()
    ]
    return [line for line in lines if event in ("", line["event"])]


def reads(folder: Path) -> list[str]:
    """Return the URIs of the files that the host asked servers for."""
    return [line["uri"] for line in audit(folder, "read") if line["source"] == "server"]


def cached(folder: Path) -> list[Path]:
    """Return the files of the cache that hold content."""
    return [
        path for path in storage_in(folder).cache.rglob("*") if path.is_file() and path.name != "origin.json"
    ]
