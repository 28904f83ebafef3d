"""Completion in real shells: quick, from what is known, and with nothing in it that a shell would obey."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from integration.cli_world import TIMEOUT, World
from programs import skillwire_command, write_program
from skillwire.cli.references import FOLDER, file_for
from skillwire.host import Storage

BASH = """
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
_skillwire skillwire
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = """
source $argv[1]
complete -C $argv[2] | string replace -r '\\t.*' ''
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world in which skills were listed once, and the server has gone since."""
    world = World(tmp_path_factory.mktemp("world"))
    folder = world.write("skills", {"refunds": "One.", "a/report": "Two.", "b/report": "Three."})
    world.write("home/.agents/skills", {"notes": "Mine.", "$(touch pwned)": "Evil."})
    world.configure(team=world.server("team", folder))
    assert world.run("list", "--wait", "60").code == 0
    world.take_away("team")
    write_program(world.root / "bin" / "skillwire", skillwire_command())
    for shell in ("bash", "zsh", "fish"):
        script = world.run("completion", shell)
        assert (script.code, script.err) == (0, "")
        (world.root / shell).write_text(script.out)
    return world


def completed(world: World, shell: str, line: str) -> list[str]:
    code = {"bash": BASH, "fish": FISH}[shell]
    words = ["bash", "--norc", "-c", code, "bash"] if shell == "bash" else ["fish", "--no-config", "-c", code]
    env = {**world.env, "PATH": f"{world.root / 'bin'}{os.pathsep}{world.env['PATH']}"}
    result = subprocess.run(
        [*words, str(world.root / shell), line],
        cwd=world.project,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert result.stderr == ""
    return [word for word in result.stdout.splitlines() if word]


LINES = {
    "skillwire li": ["list"],
    "skillwire list --fro": ["--frozen"],
    "skillwire cache ": ["list", "clear", "gc"],
    "skillwire list --config .mc": [".mcp.json"],
    "skillwire list te": ["team"],
    "skillwire completion z": ["zsh"],
    "skillwire show te": ["team/a/report", "team/b/report", "team/refunds"],
    "skillwire show --json team/a": ["team/a/report"],
    "skillwire show n": ["notes"],
    "skillwire show team/refunds ": [],
    "skillwire list -- te": [],
}


def require(shell: str) -> None:
    """Skip a test for want of a shell; where everything has to be there, fail instead."""
    if shutil.which(shell) is None:
        is_strict = os.environ.get("CI") or os.environ.get("SKILLWIRE_REQUIRE_ALL")
        (pytest.fail if is_strict else pytest.skip)(f"needs {shell}, which is not installed")


@pytest.mark.parametrize("line", LINES)
def test_bash_completes_commands_options_and_references(world: World, line: str) -> None:
    assert completed(world, "bash", line) == LINES[line]


@pytest.mark.parametrize("line", [line for line in LINES if " -- " not in line])
def test_fish_completes_commands_options_and_references(world: World, line: str) -> None:
    require("fish")

    assert sorted(completed(world, "fish", line)) == sorted(LINES[line])


def test_zsh_accepts_the_script(world: World) -> None:
    require("zsh")
    code = 'autoload -Uz compinit && compinit -u -D && source "$1" && echo "$_comps[skillwire]"'
    result = subprocess.run(
        ["zsh", "-f", "-c", code, "zsh", str(world.root / "zsh")],
        env=world.env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "_skillwire\n", "")


def test_a_colon_in_a_reference_does_not_part_it(world: World) -> None:
    path = file_for(world.project, world.state)
    before = path.read_bytes()
    path.write_bytes(b"team/skill://hidden/one\nteam/skill://hidden/two\n")

    found = completed(world, "bash", "skillwire show team/skill://hidden/t")
    path.write_bytes(before)

    # Bash puts these behind the last colon of what was typed.
    assert found == ["//hidden/two"]


def test_a_reference_a_shell_would_obey_is_never_offered(world: World) -> None:
    path = file_for(world.project, world.state)
    before = path.read_bytes()
    assert b"pwned" not in before
    path.write_bytes(before + b"$(touch pwned)\n`touch pwned`\n;touch pwned\n-rf\n~root\ngood\x1b[31m\n")

    ended = world.run("completion", "--references=")
    offered = completed(world, "bash", "skillwire show ")
    path.write_bytes(before)

    assert ended.lines == offered == ["notes", "team/a/report", "team/b/report", "team/refunds"]
    assert not (world.project / "pwned").exists()


def test_completing_loads_neither_the_host_nor_what_prints(world: World) -> None:
    code = (
        "import sys; from skillwire.cli.app import run; run(['completion', '--references=te']); "
        "print(sorted({'skillwire.host', 'mcp', 'pydantic', 'rich.console', 'anyio'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=world.project, env=world.env, capture_output=True, timeout=TIMEOUT
    )

    assert result.stdout.decode().splitlines() == ["team/a/report", "team/b/report", "team/refunds", "[]"]


def test_references_are_kept_privately_and_for_each_folder(world: World) -> None:
    elsewhere = subprocess.run(
        [sys.executable, "-m", "skillwire", "completion", "--references="],
        cwd=world.root,
        env=world.env,
        capture_output=True,
        timeout=TIMEOUT,
    )
    (kept,) = (world.state / FOLDER).iterdir()

    assert elsewhere.stdout == b""
    assert kept == file_for(world.project, world.state)
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_the_reader_looks_where_the_host_keeps_its_state(tmp_path: Path) -> None:
    assert file_for(tmp_path) == file_for(tmp_path, Storage().state)


def test_no_shell_is_misuse(world: World) -> None:
    ended = world.run("completion", "--json")

    assert (ended.code, ended.json["error"]["code"]) == (2, "misuse")
