"""What the tests of all adapters share: a real server of two skills, a user, and a tool that writes a file.

`shop` opens a host in front of `skillwire serve`; the label of the server is
`LABEL`. `SHOWN` and `POLICY` are what a model must get to see when it has
loaded `REFUNDS` and read `POLICY_PATH`. The description of `REFUNDS` names
`SERVER_TOOL`, so a call of that tool is worth a nudge.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import anyio

from folders import write_files
from hostile.hosting import User, hosting
from programs import words_of
from serving import environment
from skillwire.host import Conversation, Guard, Host, Reply, ServerConfig, StdioEndpoint, ToolKind

__all__ = [
    "FILE_TOOL",
    "LABEL",
    "LISTED",
    "ORIGIN",
    "POLICY",
    "POLICY_PATH",
    "REFUNDS",
    "SERVER_TOOL",
    "SHOWN",
    "TRIAGE",
    "UNKNOWN",
    "Broken",
    "Call",
    "Notebook",
    "Reply",
    "Shop",
    "User",
    "is_refusal",
    "refusal_in",
    "shop",
]

LABEL = "shop"
REFUNDS = f"{LABEL}/refunds"
TRIAGE = f"{LABEL}/triage"
UNKNOWN = f"{LABEL}/nothing"
POLICY_PATH = "references/policy.md"

LISTED = "Use when a customer wants money back"
ORIGIN = f"MCP server {LABEL}"
SHOWN = "Ask for the receipt first."
POLICY = "Refund within 30 days."

FILE_TOOL = "write_note"
SERVER_TOOL = "create_refund"

Call: TypeAlias = tuple[str, dict[str, Any]]
"""A call that a scripted model makes: the name of a tool and its arguments."""

_PATIENCE = 30.0


class Broken(Exception):
    """What a user's program raises that cannot ask."""


class Notebook:
    """The agent's own tool: what it writes is in a file, so that everyone can see whether it ran."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "note.txt"

    def write(self, text: str) -> str:
        """Write a note to a file."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        return f"written: {text}"

    @property
    def lines(self) -> list[str]:
        return self._file.read_text("utf-8").splitlines() if self._file.exists() else []


@dataclass(slots=True)
class Shop:
    """An open host in front of the server, with the user and the agent's own tool beside it."""

    host: Host
    user: User
    folder: Path
    notebook: Notebook
    refunded: list[str] = field(default_factory=list[str])

    def guard(self, conversation: Conversation | None = None) -> Guard:
        """The guard of this agent: its one declared tool writes, and one is of the server itself."""
        return Guard(
            conversation or self.host,
            {FILE_TOOL: ToolKind.WRITE, SERVER_TOOL: ToolKind.READ},
            servers={SERVER_TOOL: LABEL},
        )

    def create_refund(self, order: str) -> str:
        """Stand for a tool of the server, as a framework's own MCP client would offer it."""
        self.refunded.append(order)
        return f"refunded: {order}"

    async def publish(self, name: str) -> None:
        """Let the server have one more skill, and return when the host has heard of it."""
        _publish(self.folder, name, f"Use when testing {name}.", "Do it.")
        with anyio.fail_after(_PATIENCE):
            while f"{LABEL}/{name}" not in {skill.reference for skill in self.host.view.skills}:
                await self.host.refresh(force=True)
                await anyio.sleep(0.02)


@asynccontextmanager
async def shop(folder: Path, *replies: Reply, user: User | None = None) -> AsyncGenerator[Shop]:
    """Serve two skills from a process of its own, and open a host whose user answers with `replies`.

    Without any, the user says yes to everything.
    """
    skills = folder / "served"
    _publish(skills, "refunds", f"{LISTED}, and before you call {SERVER_TOOL}.", SHOWN)
    write_files(skills / "refunds", {POLICY_PATH: f"{POLICY}\n"})
    _publish(skills, "triage", "Use when a request has to find its desk.", "Sort it.")
    program, *args = words_of(skills, "--stdio")
    endpoint = StdioEndpoint(program, tuple(args), environment(folder / "home"))
    asked = user or User(*replies)
    async with hosting(folder, [ServerConfig(LABEL, endpoint, seconds=30)], user=asked) as host:
        await host.refresh()
        yield Shop(host, asked, skills, Notebook(folder))


def is_refusal(text: str) -> bool:
    return text.startswith('{"refused"')


def refusal_in(text: str) -> dict[str, Any]:
    """Return the refusal that a model was given as a tool's result; it says what to do."""
    [(key, refusal)] = json.loads(text).items()
    assert key == "refused"
    assert refusal["sentence"] and refusal["remedy"]
    return refusal


def _publish(skills: Path, name: str, description: str, body: str) -> None:
    text = f"---\nname: {name}\ndescription: {description}\n---\n\n{body}\n"
    write_files(skills / name, {"SKILL.md": text})
