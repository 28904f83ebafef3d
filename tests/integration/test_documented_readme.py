"""The README's commands, typed in their order by someone who has just cloned the repository."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from programs import write_program
from serving import Server, environment
from skillwire.cli.app import COMMANDS
from skillwire.core.validation import links_in

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ADDRESS = "127.0.0.1:8000"
TIMEOUT = 120
QUESTION = "Enter means no"


def commands() -> list[str]:
    """Return what stands in the blocks for a shell, line by line and without remarks."""
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


class Newcomer:
    """Someone with an empty home in a clone, where port 8000 is one that is free."""

    def __init__(self, root: Path) -> None:
        self.folder, home, programs = root / "clone", root / "home", root / "bin"
        self.home = home
        shutil.copytree(ROOT / "examples" / "skills", self.folder / "examples" / "skills")
        home.mkdir()
        write_program(programs / "skillwire", [sys.executable, "-m", "skillwire"])
        self.env = environment(home)
        self.env["PATH"] = f"{programs}:{os.environ['PATH']}"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.servers: list[Server] = []

    def home_file(self, name: str) -> str:
        return (self.home / name).read_text("utf-8")

    def type(self, line: str) -> tuple[int, str]:
        """Type a line into a terminal, agree to what is asked, and return the exit code and the screen."""
        line = line.replace(ADDRESS, f"127.0.0.1:{self.port}").replace(
            "127.0.0.1-8000", f"127.0.0.1-{self.port}"
        )
        if line.startswith("skillwire serve"):
            return self._serve(line)
        child = _spawn(
            "/bin/sh", ["-c", line], cwd=str(self.folder), env={**self.env, "TERM": "dumb"}, timeout=TIMEOUT
        )
        screen = b""
        while child.expect_exact([QUESTION, pexpect.EOF]) == 0:
            screen += child.before + child.after
            child.sendline("y")
        screen += child.before
        child.close()
        return child.exitstatus, screen.decode(errors="replace")

    def _serve(self, line: str) -> tuple[int, str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            shlex.split(line.replace("127.0.0.1:8001", "127.0.0.1:0")),
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            executable=str(Path(self.env["PATH"].split(":")[0]) / "skillwire"),
        )
        server = Server(process)
        self.servers.append(server)
        server.wait_for_words(r"http://\S+/mcp")
        return 0, server.words


def _spawn(*args: Any, **options: Any) -> Any:
    return pexpect.spawn(*args, **options)  # pyright: ignore[reportUnknownVariableType]  # it has few types


@pytest.fixture
def newcomer(tmp_path: Path) -> Generator[Newcomer]:
    newcomer = Newcomer(tmp_path)
    yield newcomer
    for server in newcomer.servers:
        server.stop()
        for pipe in (server.process.stdout, server.process.stderr):
            if pipe is not None:
                pipe.close()


def test_every_command_of_the_readme_works_as_it_is_typed(newcomer: Newcomer) -> None:
    typed = [line for line in commands() if line not in ("pip install .", "codex")]

    screens = {line: newcomer.type(line) for line in typed}

    assert {line: screen for line, (code, screen) in screens.items() if code != 0} == {}
    assert "team/refunds" in screens["skillwire show team/refunds"][1]
    assert QUESTION in screens["skillwire approve team/refunds"][1]
    assert "can be loaded once you approve it" in screens["skillwire why team/triage"][1]
    assert "team/refunds" in screens['skillwire search "customer wants money back"'][1]
    assert (newcomer.folder / "skills.lock").is_file()
    assert "greeting" in screens['skillwire search "greet a visitor" --catalog default'][1]
    assert "publish" in screens["skillwire history greeting"][1]
    assert "skillwire" in tomllib.loads(newcomer.home_file(".codex/config.toml"))["mcp_servers"]
    assert (newcomer.folder / ".agents" / "skills" / "team--refunds" / "SKILL.md").is_file()


def test_what_the_readme_names_besides_exists() -> None:
    named = re.findall(r"`(?:\./)?((?:scripts|examples)/[\w/.-]+)`", README)

    assert "scripts/demo" in named
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert set(re.findall(r"`skillwire ([a-z]+)[ `]", README)) <= COMMANDS.keys()


def test_links_of_the_readme_work_on_a_package_index_and_lead_to_files_that_exist() -> None:
    source = PROJECT["urls"]["Source"]
    targets = [link.target for link in links_in(README)]
    places = [
        re.fullmatch(rf"{re.escape(source)}/(?:blob|tree)/main/([^#]+)(?:#.*)?", target) for target in targets
    ]

    assert [target for target in targets if "://" not in target] == []
    assert [place[1] for place in places if place is not None and not (ROOT / place[1]).exists()] == []
    assert sum(place is not None for place in places) > 10


def test_the_addresses_of_the_project_belong_to_one_place_and_name_what_is_in_it() -> None:
    urls = PROJECT["urls"]

    assert {"Source", "Documentation", "Changelog", "Issues"} <= urls.keys()
    assert all(url.startswith(urls["Source"]) for url in urls.values())
    for url in urls.values():
        path = url.removeprefix(urls["Source"]).partition("/main/")[2]
        assert (ROOT / path).exists()
