"""A user at a command line: a home, a project with servers of ours, and a terminal to look at."""

import copy
import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pexpect
import pyte

from agreeing import agree_to
from folders import skill_md, write_files
from programs import skillwire_command
from serving import environment

TIMEOUT = 90


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it wrote where."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return orjson.loads(self.out)


@dataclass(frozen=True, slots=True)
class Screen:
    """What a terminal showed, and the bytes that made it show that."""

    code: int
    lines: list[str]
    raw: bytes

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class World:
    """The current folder is `project`; nothing outside of `root` is touched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home, self.project = root / "home", root / "project"
        self.home.mkdir()
        self.project.mkdir()
        self.env = environment(self.home)

    def at(self, name: str) -> "World":
        """Return the same user in another folder."""
        other = copy.copy(self)
        other.project = self.root / name
        other.project.mkdir()
        return other

    @property
    def state(self) -> Path:
        return self.home / ".local" / "state" / "skillwire"

    @property
    def cache(self) -> Path:
        return self.home / ".cache" / "skillwire" / "host"

    def write(self, name: str, skills: Mapping[str, str]) -> Path:
        """Write a folder of skills, by path, each with a description of its own."""
        folder = self.root / name
        files = {
            f"{path}/SKILL.md": f"---\nname: {Path(path).name}\ndescription: {description}\n---\n\nDo it.\n"
            for path, description in skills.items()
        }
        write_files(folder, files)
        return folder

    def server(self, name: str, folder: Path) -> dict[str, Any]:
        """Return the configuration of a server of a folder, behind a program that can be taken away."""
        program = self.root / f"{name}.sh"
        words = shlex.join(skillwire_command("serve", folder, "--no-watch"))
        program.write_text(f"#!/bin/sh\nexec {words}\n")
        program.chmod(0o755)
        return {"command": str(program), "env": self.env}

    def take_away(self, name: str) -> None:
        """Let a server end whenever it is started."""
        (self.root / f"{name}.sh").write_text("#!/bin/sh\nexit 3\n")

    def configure(self, **servers: Mapping[str, Any]) -> Path:
        path = self.project / ".mcp.json"
        path.write_text(json.dumps({"mcpServers": servers}))
        path.chmod(0o600)
        agree_to(path, self.home)
        return path

    def run(self, *args: str | Path, **env: str) -> Ended:
        result = subprocess.run(
            skillwire_command(*args),
            cwd=self.project,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
        )
        return Ended(result.returncode, result.stdout.decode(), result.stderr.decode())

    def show(self, *args: str | Path, columns: int = 80, answers: Sequence[tuple[str, str]] = ()) -> Screen:
        """Run a command in a terminal, answer what it asks, and return what is on the screen at the end."""
        env = {**self.env, "TERM": "xterm-256color"}
        program, *words = skillwire_command(*args)
        child = _spawn(
            program,
            words,
            cwd=str(self.project),
            env={name: value for name, value in (os.environ | env).items() if name not in _SIZES},
            dimensions=(200, columns),
            timeout=TIMEOUT,
        )
        raw = b""
        for question, answer in answers:
            child.expect_exact(question)
            raw += (child.before or b"") + (child.after or b"")
            child.sendline(answer)
        child.expect(pexpect.EOF)
        raw += child.before or b""
        child.close()
        screen = pyte.Screen(columns, 200)
        pyte.ByteStream(screen).feed(raw)
        lines = [line.rstrip() for line in screen.display]
        return Screen(child.exitstatus or 0, [line for line in lines if line], raw)


# The terminal has a size of its own, whatever the tests run in.
_SIZES = ("COLUMNS", "LINES")


def _spawn(*args: Any, **options: Any) -> Any:
    return pexpect.spawn(*args, **options)  # pyright: ignore[reportUnknownVariableType]  # it has few types


SKILLS = {
    "billing/refunds": "Use when a customer asks for money back, or when an invoice was paid twice.",
    "shop/refunds": "Use when returns arrive at the shop.",
    "triage": "Sort incoming tickets by urgency and by team.",
}


def local_skill(world: World, name: str) -> None:
    """Put a skill into the user's own folder."""
    write_files(world.home / ".agents" / "skills", {f"{name}/SKILL.md": skill_md(name)})
