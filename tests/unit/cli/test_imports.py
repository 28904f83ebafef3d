"""Commands import only what they use: no SDK without a server, no sandbox without scripts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from folders import write_skill

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
        ["serve", "--help"],
    ],
    ids=" ".join,
)
def test_a_command_that_needs_no_server_does_not_load_the_sdk(tmp_path: Path, args: list[str]) -> None:
    write_skill(tmp_path / "skills" / "one")

    loaded = loaded_by(tmp_path, *args)

    assert "skillwire.cli.app" in loaded
    assert not loaded & SDK


@pytest.mark.parametrize("args", ["list", "show one", "approve one", "load one"])
def test_a_command_of_the_host_loads_neither_the_sandbox_nor_a_server(tmp_path: Path, args: str) -> None:
    write_skill(tmp_path / ".agents" / "skills" / "one")

    loaded = loaded_by(tmp_path, *args.split())

    assert loaded >= SDK
    assert not loaded & UNUSED
