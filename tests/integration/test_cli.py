"""The command line as a program of its own: exit codes, streams, and no traceback whatever happens."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

import skillwire
from folders import skill_md, write_files, write_skill

COMMAND = [sys.executable, "-m", "skillwire"]
TIMEOUT = 60
# The commands run in folders of their own, where a relative PYTHONPATH leads nowhere.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(skillwire.__file__).parents[1])}
EXAMPLES = Path(__file__).parents[2] / "examples" / "skills"


def run(*args: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    words = [str(arg) for arg in args]
    env = {**ENVIRONMENT, **environment}
    return subprocess.run([*COMMAND, *words], cwd=cwd, env=env, capture_output=True, timeout=TIMEOUT)


@pytest.mark.requirement("TOOL-01")
def test_our_own_examples_pass_the_strictest_check(tmp_path: Path) -> None:
    result = run("validate", EXAMPLES, "--strict", "--json", cwd=tmp_path)

    assert (result.returncode, result.stderr) == (0, b"")
    assert orjson.loads(result.stdout)["ok"] is True


@pytest.mark.requirement("TOOL-02")
def test_an_example_packs_to_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    example = EXAMPLES / "csv-insights"

    first = run("pack", example, "-o", "-", cwd=tmp_path, PYTHONHASHSEED="1", TZ="UTC")
    second = run("pack", example, "-o", "-", cwd=tmp_path, PYTHONHASHSEED="2", TZ="Asia/Tokyo")

    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout == second.stdout
    assert first.stdout.startswith(b"\x1f\x8b")


def test_a_skill_goes_from_new_to_pack(tmp_path: Path) -> None:
    created = run("new", "acme/refunds", "--with", "scripts,references,assets", cwd=tmp_path)
    checked = run("validate", "acme", "--strict", cwd=tmp_path)
    published = run("manifest", ".", "--json", cwd=tmp_path)
    packed = run("pack", "acme/refunds", cwd=tmp_path)
    script = subprocess.run(
        [sys.executable, "acme/refunds/scripts/check.py", "acme/refunds/SKILL.md"],
        cwd=tmp_path,
        capture_output=True,
        timeout=TIMEOUT,
    )

    assert [item.returncode for item in (created, checked, published, packed, script)] == [0, 0, 0, 0, 0]
    assert checked.stdout == b"1 skill: good\n"
    assert [skill["uri"] for skill in orjson.loads(published.stdout)["skills"]] == [
        "skill://acme/refunds/SKILL.md"
    ]
    assert (tmp_path / "refunds.tar.gz").is_file()


@pytest.mark.parametrize(
    ("args", "code"),
    [(["pack", "bad"], 1), (["validate", "gone"], 2), (["validate"], 2), (["nonsense"], 2), (["-x"], 2)],
)
def test_failures_have_their_exit_code_and_no_traceback(tmp_path: Path, args: list[str], code: int) -> None:
    write_files(tmp_path, {"bad/SKILL.md": b"\xff\xfe\x00"})

    result = run(*args, cwd=tmp_path)

    assert (result.returncode, result.stdout) == (code, b"")
    assert [line[:6] for line in result.stderr.splitlines()].count(b"error:") == 1
    assert b"Traceback" not in result.stderr


def test_json_has_standard_output_for_itself(tmp_path: Path) -> None:
    result = run("validate", "gone", "--json", cwd=tmp_path)

    assert result.returncode == 2
    assert orjson.loads(result.stdout)["error"]["code"] == "no-such-folder"
    assert result.stderr.startswith(b"error: ")


def test_a_reader_that_leaves_ends_the_program_quietly(tmp_path: Path) -> None:
    body = "".join(f"[a](gone-{number}.md)\n" for number in range(45))
    write_files(tmp_path, {f"{number}/SKILL.md": skill_md("wrong", body=body) for number in range(40)})

    with subprocess.Popen(
        [*COMMAND, "validate", "."],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        words = process.stderr.read()
        code = process.wait(TIMEOUT)

    assert (code, words) == (1, b"")


@pytest.mark.parametrize(
    "args", [["--help"], ["validate", "one"], ["validate", "one", "--json"], ["pack", "one", "-o", "-"]]
)
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path, args: list[str]) -> None:
    write_skill(tmp_path / "one")

    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*COMMAND, *args],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT,
        )

    assert result.returncode == 1
    assert result.stderr == b"error: cannot write to standard output: No space left on device\n"


def test_closed_streams_are_no_reason_to_fail(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")

    command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *COMMAND, "validate", "one"]
    result = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, timeout=TIMEOUT)

    assert result.returncode == 0


def test_an_interrupt_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / "many" / f"{number % 50}" / f"{number}").mkdir(parents=True)
    # The interrupt comes from inside, at the first look into a folder, so that no time is guessed.
    trap = "import os, sys; sys.addaudithook(lambda e, a: e == 'os.scandir' and os.kill(os.getpid(), 2))"
    # Whoever runs the tests in the background may have told them to ignore interrupts.
    trap += "; import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{trap}; from skillwire.cli.common import main; sys.argv[1:] = ['validate', 'many']; main()"

    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, timeout=TIMEOUT)

    assert result.returncode == 128 + signal.SIGINT
    assert b"Traceback" not in result.stderr


def test_a_terminal_that_knows_only_ascii_is_no_reason_to_fail(tmp_path: Path) -> None:
    write_files(tmp_path, {"größe/SKILL.md": skill_md("größe"), os.fsdecode(b"one/\xff.md"): b"x"})
    write_skill(tmp_path / "one")

    human = run("validate", ".", cwd=tmp_path, PYTHONIOENCODING="ascii")
    machine = run("validate", ".", "--json", cwd=tmp_path, PYTHONIOENCODING="ascii")

    assert (human.returncode, human.stderr) == (1, b"")
    assert rb"gr\xf6\xdfe  1 warning" in human.stdout
    assert [skill["path"] for skill in orjson.loads(machine.stdout)["skills"]] == ["größe", "one"]


@pytest.mark.requirement("SEC-13")
def test_a_terminal_receives_our_own_escapes_and_no_strangers(tmp_path: Path) -> None:
    write_files(tmp_path, {"one/SKILL.md": skill_md("wrong"), "one/\x1b]0;pwned\x07\x1b[2J[red].md": b"x"})

    shown = _on_a_terminal(tmp_path, "validate", "one", "-v")

    assert b"\x1b[1;31merror\x1b[0m" in shown
    assert b"<U+001B>]0;pwned<U+0007><U+001B>[2J[red].md" in shown
    assert b"\x1b]0;" not in shown and b"\x1b[2J" not in shown


def test_a_terminal_gets_no_archive(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")

    shown = _on_a_terminal(tmp_path, "pack", "one", "-o", "-")

    assert b"standard output is a terminal" in shown
    assert b"\x1f\x8b" not in shown


def _on_a_terminal(cwd: Path, *args: str) -> bytes:
    """Run a command with a terminal for all its streams, and return what the terminal showed."""
    main, side = pty.openpty()
    env = {**ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "80"}
    env.pop("NO_COLOR", None)
    with subprocess.Popen([*COMMAND, *args], cwd=cwd, env=env, stdin=side, stdout=side, stderr=side):
        os.close(side)
        shown = b""
        try:
            while chunk := os.read(main, 65536):
                shown += chunk
        except OSError:
            pass  # Linux reports the end of a terminal as an error.
    os.close(main)
    return shown
