"""Commands import only what they use: no SDK without a server, no sandbox without scripts."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from folders import write_skill
from serving import Json, handshake, modern
from skillwire.server.handshake import MOST_SKILLS

PROGRAM = """
import sys
from skillwire.cli.app import run
try:
    run(sys.argv[1:])
except SystemExit:
    pass
print("loaded:", *sorted(sys.modules), file=sys.stderr)
"""

SDK = {"mcp", "mcp_types"}
TERMINAL = {"rich.console", "rich.text", "rich.progress"}
UNUSED = {
    "fastmcp",
    "skillwire.runner.proxy",
    "skillwire.runner.runner",
    "skillwire.runner.sandbox.sandbox",
    "skillwire.server.http.app",
    "skillwire.server.page.app",
    "skillwire.server.skills",
}


def loaded_by(folder: Path, *args: str) -> set[str]:
    command = [sys.executable, "-c", PROGRAM, *args]
    environment = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, cwd=folder, env=environment
    )
    return set(result.stderr.splitlines()[-1].removeprefix("loaded: ").split())


@pytest.mark.parametrize(
    "args",
    [
        ["why", "digest-mismatch"],
        ["why", "digest-mismatch", "--json"],
        ["token", "new", "tokens.toml", "--name", "ci"],
        ["completion", "bash"],
        ["trust", "--help"],
        ["trust", "skills"],
        ["validate", "skills"],
        ["manifest", "skills"],
        ["pack", "skills/one", "-o", "one.tar.gz"],
        ["new", "refunds"],
        ["publish", "skills"],
        ["publish", "skills", "--dry-run"],
        ["history"],
        ["rollback", "one@1"],
        ["catalog", "stats"],
        ["catalog", "sync"],
        ["serve", "--help"],
    ],
    ids=" ".join,
)
def test_a_command_that_needs_no_server_does_not_load_the_sdk(tmp_path: Path, args: list[str]) -> None:
    write_skill(tmp_path / "skills" / "one")

    loaded = loaded_by(tmp_path, *args)

    assert "skillwire.cli.app" in loaded
    assert not loaded & SDK
    assert not loaded & TERMINAL


@pytest.mark.parametrize("args", ["list", "show one", "approve one", "load one"])
def test_a_command_of_the_host_loads_neither_the_sandbox_nor_a_server(tmp_path: Path, args: str) -> None:
    write_skill(tmp_path / ".agents" / "skills" / "one")

    loaded = loaded_by(tmp_path, *args.split())

    assert loaded >= SDK
    assert not loaded & (UNUSED | TERMINAL)


HANDSHAKE = """
import sys
import threading
from types import SimpleNamespace
from skillwire.cli.common import main

def run(args):
    for thread in threading.enumerate():
        if thread.name == "handshake":
            thread.join()
    print("loaded:", *sorted(sys.modules), file=sys.stderr)

sys.modules["skillwire.cli.app"] = SimpleNamespace(run=run)
main()
"""


@pytest.mark.parametrize("skills", [1, MOST_SKILLS + 1])
@pytest.mark.parametrize("first", [handshake(), modern("server/discover")], ids=["legacy", "modern"])
def test_the_first_answer_over_stdio_needs_neither_the_sdk_nor_an_event_loop(
    tmp_path: Path, skills: int, first: Json
) -> None:
    for number in range(skills):
        write_skill(tmp_path / "skills" / f"s{number}")
    command = [sys.executable, "-c", HANDSHAKE, "serve", "skills"]
    result = subprocess.run(
        command, input=orjson.dumps(first) + b"\n", capture_output=True, timeout=60, cwd=tmp_path
    )

    loaded = set(result.stderr.decode().splitlines()[-1].removeprefix("loaded: ").split())

    assert "result" in orjson.loads(result.stdout)
    assert "skillwire.server.handshake" in loaded
    assert not loaded & {*SDK, "asyncio", "httpx2", "pydantic", "rich", "starlette", "typer", "watchfiles"}


SERVE = """
import os
import sys
from skillwire.cli import serve
from skillwire.cli.app import run

def stop(*args, **more):
    print("loaded:", *sorted(sys.modules), file=sys.stderr, flush=True)
    os._exit(0)

serve._announce_url = stop
run(["serve", "skills", "--http", "127.0.0.1:0"])
"""


def test_a_server_that_runs_no_scripts_loads_neither_the_sandbox_nor_a_host(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "one")
    command = [sys.executable, "-c", SERVE]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path)

    loaded = set(result.stderr.splitlines()[-1].removeprefix("loaded: ").split())

    assert "skillwire.server.http.app" in loaded
    assert not loaded & {"skillwire.host", "skillwire.runner.runner", "skillwire.runner.sandbox.sandbox"}
