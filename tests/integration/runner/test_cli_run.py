"""`skillwire run` as a program: a script of a skill, shown, agreed to, and run in a real sandbox."""

import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from commands import Outcome, names_in
from folders import write_files
from integration.runner.cli_scripts import FILES, HELLO
from integration.runner.running import needs_sandbox
from programs import http_server
from skillwire.core.manifest import digest_of
from terminals import PROMPT, Desk, check_document

pytestmark = needs_sandbox

EXAMPLES = Path(__file__).parents[3] / "examples" / "skills"
CSV = "city,visits\nOslo,120\nRome,90\n"
TOKEN = "skillwire-run-token-"


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    write_files(folder, FILES)
    return folder


@pytest.fixture
def desk(tmp_path: Path, empty_home: Path) -> Desk:
    return Desk(tmp_path / "project", empty_home)


@pytest.fixture
def lab(desk: Desk, skills: Path) -> Desk:
    """A desk from which the scripts of the skill `lab` may be run."""
    approve(desk, "lab", "--at", skills)
    return desk


def approve(desk: Desk, reference: str, *options: str | Path, grants: tuple[str, ...] = ("scripts",)) -> None:
    binding = desk.run("show", reference, *options, "--json").json["binding"]
    granted = [word for grant in grants for word in ("--grant", grant)]
    agreed = desk.run("approve", reference, *options, *granted, "--yes", "--digest", binding, "--json")
    assert (agreed.code, set(grants) <= set(agreed.json["grants"])) == (0, True), agreed.err
    check_document("approve", agreed.json)


def document(ended: Outcome) -> Any:
    check_document("run", ended.json)
    return ended.json


def test_without_a_script_it_lists_them_with_what_they_take(desk: Desk) -> None:
    listed = desk.run("run", "csv-insights", "--at", EXAMPLES)
    [script] = document(desk.run("run", "csv-insights", "--at", EXAMPLES, "--json"))["scripts"]

    assert listed.code == 0
    for words in ("scripts/profile.py", "Profile CSV text", "csv (string, required): The text", "time 10 s"):
        assert words in listed.out
    assert script["digest"] == digest_of((EXAMPLES / "csv-insights/scripts/profile.py").read_bytes())
    assert script["arguments"]["required"] == ["csv"]
    assert script["limits"] == {"wall_seconds": 10, "memory_bytes": 256 * 1024 * 1024}


def test_a_skill_without_scripts_says_so(desk: Desk, skills: Path) -> None:
    ended = desk.run("run", "plain", "--at", skills)

    assert (ended.code, ended.out, ended.err) == (0, "", "plain has no scripts to run\n")
    assert document(desk.run("run", "plain", "--at", skills, "--json"))["scripts"] == []


@pytest.mark.requirement("EXEC-13")
def test_a_folders_script_needs_a_yes_too_and_the_fix_is_the_command_that_gives_it(desk: Desk) -> None:
    words = ("run", "csv-insights", "profile.py", "--args", json.dumps({"csv": CSV}), "--at", str(EXAMPLES))

    refused = desk.run(*words)
    in_json = document(desk.run(*words, "--json"))
    binding = desk.run("show", "csv-insights", "--at", EXAMPLES, "--json").json["binding"]
    command = shlex.split(refused.err.rpartition("then run `skillwire ")[2].partition("`")[0])
    agreed = desk.run(*command, "--yes", "--digest", binding)
    ended = desk.run(*words)

    assert (refused.code, refused.out) == (1, "")
    assert in_json["error"]["code"] == "approval-required"
    assert in_json["error"]["fix"].endswith(f"skillwire {shlex.join(command)}`")
    assert agreed.code == 0
    assert (ended.code, json.loads(ended.out)["rows"]) == (0, 2)
    assert f"digest  {digest_of((EXAMPLES / 'csv-insights/scripts/profile.py').read_bytes())}" in ended.err
    assert "of csv-insights from local folder" in ended.err
    assert "network none" in ended.err and "secrets none" in ended.err


@pytest.mark.requirement("EXEC-13", "EXEC-19")
def test_a_servers_script_runs_here_once_it_is_approved(desk: Desk) -> None:
    arguments = json.dumps({"csv": CSV})
    with http_server(EXAMPLES, "--no-watch", env=desk.env) as server:
        desk.configure("team", {"url": server.url})
        words = ("run", "team/csv-insights", "scripts/profile.py", "--args", arguments)

        refused = desk.run(*words, "--json")
        approve(desk, "team/csv-insights")
        only_scripts = desk.run(*words, "--json")
        approve(desk, "team/csv-insights", grants=("load",))
        ended = document(desk.run(*words, "--json"))

    assert (refused.code, document(refused)["error"]["code"]) == (1, "approval-required")
    assert refused.json["error"]["fix"].endswith(
        "`skillwire approve team/csv-insights --grant load --grant scripts`"
    )
    assert only_scripts.code == 1, "whose scripts are run is loaded, which is a grant of its own"
    assert (ended["where"], ended["ending"], ended["exitCode"]) == ("sandbox", "exited", 0)
    assert (ended["origin"]["kind"], ended["origin"]["label"]) == ("server", "team")
    assert ended["structured"]["rows"] == 2
    assert json.loads(ended["stdout"]) == ended["structured"]
    assert ended["limits"]["wall_seconds"] == 10
    assert 0 < ended["usage"]["wall_seconds"] < 10


def test_arguments_come_from_the_line_a_file_or_standard_input(lab: Desk, skills: Path) -> None:
    (lab.folder / "given.json").write_text('{"name": "file"}')

    said = [
        lab.run("run", "lab", "hello.py", "--at", skills).out,
        lab.run("run", "lab", "hello", "--at", skills, "--args", '{"name": "line"}').out,
        lab.run("run", "lab", "hello.py", "--at", skills, "--args", "@given.json").out,
        lab.run("run", "lab", "hello.py", "--at", skills, "--args", "-", typed=b'{"name": "pipe"}').out,
    ]

    assert said == ["hello nobody\n", "hello line\n", "hello file\n", "hello pipe\n"]


@pytest.mark.parametrize(
    ("words", "code", "refusal"),
    [
        (("hello.py", "--args", "{"), 2, "misuse"),
        (("hello.py", "--args", "[]"), 2, "misuse"),
        (("hello.py", "--args", "@nowhere"), 2, "misuse"),
        (("--args", "{}"), 2, "misuse"),
        (("nope.py",), 1, "script-not-found"),
        (("../hello.py",), 1, "script-not-found"),
        (("scripts/../scripts/hello.py",), 1, "script-not-found"),
        (("hello.py", "--args", '{"name": 7}'), 1, "invalid-script-arguments"),
        (("hello.py", "--args", '{"other": "x"}'), 1, "invalid-script-arguments"),
        (("hello.py", "--policy", "nowhere.toml"), 1, "invalid-policy"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_refused_with_a_code(
    lab: Desk, skills: Path, words: tuple[str, ...], code: int, refusal: str
) -> None:
    ended = lab.run("run", "lab", *words, "--at", skills, "--json")

    assert (ended.code, document(ended)["error"]["code"]) == (code, refusal)


def test_an_unknown_skill_is_a_clear_no(lab: Desk, skills: Path) -> None:
    ended = lab.run("run", "laboratory", "hello.py", "--at", skills, "--json")

    assert (ended.code, document(ended)["error"]["code"]) == (1, "unknown-reference")


def test_a_script_that_fails_is_a_no_with_all_that_it_said(lab: Desk, skills: Path) -> None:
    ended = lab.run("run", "lab", "fails.py", "--at", skills)
    told = document(lab.run("run", "lab", "fails.py", "--at", skills, "--json"))

    assert (ended.code, ended.out) == (1, "so far\n")
    assert "no such column\n" in ended.err
    assert ended.err.endswith("error: scripts/fails.py of lab: exit status 3\n")
    assert (told["ending"], told["exitCode"], told["isError"]) == ("exited", 3, True)
    assert (told["stdout"], told["stderr"]) == ("so far\n", "no such column\n")


@pytest.mark.requirement("EXEC-13")
def test_a_script_is_stopped_at_its_limit_and_the_words_tell_which(lab: Desk, skills: Path) -> None:
    ended = lab.run("run", "lab", "sleeps.py", "--at", skills)
    told = document(lab.run("run", "lab", "sleeps.py", "--at", skills, "--json"))

    assert (ended.code, ended.out) == (1, "begun\n")
    assert "stopped at a limit (time: 1 s allowed" in ended.err
    assert "fix: " in ended.err
    assert (told["ending"], told["limit"]["name"], told["limit"]["allowed"]) == ("limit", "wall_seconds", 1)


@pytest.mark.requirement("EXEC-10")
def test_nothing_a_script_writes_acts_on_the_terminal(lab: Desk, skills: Path) -> None:
    piped = lab.run("run", "lab", "paints.py", "--at", skills)
    with lab.window("run", "lab", "paints.py", "--at", skills) as shown:
        code = shown.wait_for_end()

    assert (piped.code, code) == (0, 0)
    for text in (piped.out, piped.err):
        assert "\x1b" not in text and "\u202e" not in text
    assert shown.title == ""
    assert "red" in shown.everything and "  | " in shown.everything
    assert b"\x1b[31mred" not in shown.raw and b"\x1b]0;" not in shown.raw
    assert not [line for line in shown.everything.splitlines() if line.startswith("error:")]


@pytest.mark.requirement("EXEC-17")
def test_files_are_listed_unless_a_folder_is_named_for_them(lab: Desk, skills: Path) -> None:
    ended = lab.run("run", "lab", "leaves.py", "--at", skills)

    assert (ended.code, ended.out) == (0, "done\n")
    assert "keep them with --output DIR" in ended.err
    assert f"10  {digest_of(b'#!/bin/sh' + bytes([10]))}  report.md" in ended.err
    assert names_in(lab.folder) == []


@pytest.mark.requirement("EXEC-17")
def test_files_are_kept_under_names_that_harm_nobody(lab: Desk, skills: Path) -> None:
    ended = lab.run("run", "lab", "leaves.py", "--at", skills, "--output", "new/out")
    out = lab.folder / "new" / "out"

    assert (ended.code, ended.out) == (1, "done\n"), "not everything was kept"
    assert {path.relative_to(out).as_posix() for path in out.rglob("*")} <= {
        "charts",
        "charts/one.svg",
        "report.md",
        "Report.md",
    }
    assert (out / "charts" / "one.svg").read_bytes() == b"#!/bin/sh\n"
    kept = [path for path in out.iterdir() if path.is_file()]
    assert len(kept) == 1 and kept[0].stat().st_mode & 0o777 == 0o600
    assert "\x1b" not in ended.err
    assert not out.joinpath("passwd").is_symlink()
    assert names_in(lab.folder) == ["new"] and names_in(lab.folder / "new") == ["out"]


@pytest.mark.requirement("EXEC-17")
def test_what_was_kept_and_what_was_not_is_in_the_document(lab: Desk, skills: Path) -> None:
    told = document(lab.run("run", "lab", "leaves.py", "--at", skills, "--output", "out", "--json"))

    kept = {file["path"] for file in told["files"] if file["kept"]}
    assert kept == {path.relative_to(lab.folder / "out").as_posix() for path in _files(lab.folder / "out")}
    skipped = {item["path"] for item in told["skipped"]}
    assert {".bashrc", "CON", "a:b", "passwd"} <= skipped
    assert told["output"] == "out"


def test_a_folder_with_something_in_it_is_refused_before_anything_runs(lab: Desk, skills: Path) -> None:
    write_files(lab.folder, {"out/mine.txt": "mine"})

    ended = lab.run("run", "lab", "leaves.py", "--at", skills, "--output", "out", "--json")
    here = lab.run("run", "lab", "leaves.py", "--at", skills, "--output", ".", "--json")

    assert (ended.code, document(ended)["error"]["code"]) == (1, "already-exists")
    assert here.code in (1, 2)
    assert names_in(lab.folder / "out") == ["mine.txt"]


def test_what_a_script_said_is_not_lost_when_its_files_cannot_be_kept(lab: Desk, skills: Path) -> None:
    (lab.folder / "file").write_text("mine")
    words = ("run", "lab", "leaves.py", "--at", skills, "--output", "file/out")

    ended = lab.run(*words)
    told = document(lab.run(*words, "--json"))

    assert (ended.code, ended.out) == (1, "done\n")
    assert "error: file/out cannot be written: Not a directory\n" in ended.err
    assert (told["stdout"], told["output"]) == ("done\n", None)
    assert (lab.folder / "file").read_text() == "mine"


@pytest.mark.requirement("EXEC-19")
def test_a_script_that_its_server_keeps_runs_there_after_a_yes_to_each_run(desk: Desk) -> None:
    words = ("run", "team/csv-insights", "profile.py", "--args", json.dumps({"csv": CSV}))
    with http_server(EXAMPLES, "--no-watch", "--scripts", env=desk.env) as server:
        desk.configure("team", {"url": server.url, "skills": {"dialect": "exec"}})

        unasked = desk.run(*words, "--json")
        listed = desk.run("run", "team/csv-insights")
        with desk.window(*words, lines=200) as shown:
            shown.wait_for(PROMPT)
            shown.type("once")
            shown.wait_for(PROMPT, times=2)
            shown.type("once")
            code = shown.wait_for_end()

    assert (unasked.code, document(unasked)["error"]["code"]) == (1, "dynamic-declined")
    assert (listed.code, "does not list its scripts" in listed.err) == (0, True)
    assert code == 0
    assert "where   on the server" in shown.everything
    assert '"rows": 2' in shown.everything.replace("\n", "")


@pytest.mark.requirement("EXEC-13")
def test_in_a_terminal_the_bytes_are_shown_and_only_yes_runs_them(desk: Desk, skills: Path) -> None:
    words = ("run", "lab", "hello.py", "--at", skills)

    screen, denied = desk.answer(*words, typed="n", lines=80)
    _, once = desk.answer(*words, typed="once", lines=80)
    _, again = desk.answer(*words, typed="always", lines=80)
    after = desk.run(*words)

    assert "print('hello'" in screen
    assert digest_of(HELLO.encode()) in screen.replace("\n", "")
    assert PROMPT in screen
    assert (denied, once, again) == (1, 0, 0)
    assert (after.code, after.out) == (0, "hello nobody\n"), "it was remembered"


@pytest.mark.requirement("EXEC-13", "APPR-02")
def test_any_change_of_the_skill_ends_the_yes(lab: Desk, skills: Path) -> None:
    before = lab.run("run", "lab", "hello.py", "--at", skills)
    (skills / "lab" / "scripts" / "other.py").write_text("print('more')\n")

    after = lab.run("run", "lab", "hello.py", "--at", skills, "--json")

    assert before.code == 0
    assert (after.code, document(after)["error"]["code"]) == (1, "approval-required")


def test_a_long_run_shows_a_sign_of_life_and_leaves_no_trace_of_it(lab: Desk, skills: Path) -> None:
    with lab.window("run", "lab", "sleeps.py", "--at", skills) as shown:
        shown.wait_for("running sleeps.py")
        code = shown.wait_for_end()

    assert code == 1
    assert "running sleeps.py" not in shown.screen


@pytest.mark.requirement("EXEC-13")
def test_ctrl_c_ends_the_script_with_everything_it_started(lab: Desk, skills: Path) -> None:
    token = f"{TOKEN}{time.monotonic_ns()}"
    arguments = json.dumps({"token": token})
    with lab.window("run", "lab", "forks.py", "--at", skills, "--args", arguments) as shown:
        _wait_until(lambda: _count(token) >= 3, "the script has started its processes")
        shown.press("c")
        code = shown.wait_for_end(within=30)
        left = _count(token)

    assert code == 130
    assert left == 0, "nothing of it is left when the command has ended"
    assert "interrupted; the script is no longer running" in shown.everything
    assert "Traceback" not in shown.everything


@pytest.mark.requirement("EXEC-12")
def test_without_a_sandbox_nothing_runs_and_the_reason_is_said(lab: Desk, skills: Path) -> None:
    policy = lab.folder / "policy.toml"
    policy.write_text('bubblewrap = "/nowhere/bwrap"\n')

    ended = lab.run("run", "lab", "hello.py", "--at", skills, "--policy", policy, "--json")

    assert (ended.code, document(ended)["error"]["code"]) == (1, "sandbox-unavailable")
    assert document(ended)["error"]["fix"]
    assert "hello" not in ended.out


def test_a_policy_caps_what_a_script_asks_for(lab: Desk, skills: Path) -> None:
    policy = lab.folder / "policy.toml"
    policy.write_text(
        "[limits]\nwall_seconds = 2\ncpu_seconds = 2\n[most]\nwall_seconds = 3\ncpu_seconds = 3\n"
    )

    told = document(lab.run("run", "lab", "hello.py", "--at", skills, "--policy", policy, "--json"))

    assert (told["limits"]["wall_seconds"], told["limits"]["cpu_seconds"]) == (3, 2)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _count(token: str) -> int:
    """Count the processes of this machine that have a token as a word of their command line."""
    found = 0
    for place in Path("/proc").iterdir():
        try:
            words = (place / "cmdline").read_bytes().split(b"\0") if place.name.isdigit() else []
        except OSError:
            continue
        found += token.encode() in words
    return found


def _wait_until(condition: Any, what: str, within: float = 60) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
