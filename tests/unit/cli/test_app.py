"""The program as a whole: help, versions, misuse, and what every command does alike."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import skillwire as package
from commands import Command
from folders import write_skill
from skillwire.cli import app, validate
from skillwire.cli.app import COMMANDS, load_command


def failing(error: BaseException) -> Callable[..., object]:
    def fail(*_args: object, **_options: object) -> object:
        raise error

    return fail


def test_help_is_short_and_lists_every_command(skillwire: Command) -> None:
    outcome = skillwire("--help")

    assert (outcome.code, outcome.err) == (0, "")
    assert len(outcome.lines) < 50
    assert max(map(len, outcome.lines)) <= 80
    for name, summary in COMMANDS.items():
        assert f"  {name:10}  {summary}" in outcome.lines


def test_the_app_runs_in_typers_own_runner_too() -> None:
    result = CliRunner().invoke(app.app, ["--help"])

    assert (result.exit_code, result.output.splitlines()[0]) == (
        0,
        "Usage: root [OPTIONS] COMMAND [ARGS]...",
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_says_what_each_command_says(name: str, skillwire: Command) -> None:
    outcome = skillwire(name, "--help")

    command = load_command(name)
    assert outcome.code == 0
    assert outcome.lines[2] == f"  {COMMANDS[name]}"
    assert command.name == name
    for one in getattr(command, "commands", {"": command}).values():
        assert {"--json", "--verbose"} <= {flag for option in one.params for flag in option.opts}


def test_the_version_is_that_of_the_package(skillwire: Command) -> None:
    outcome = skillwire("--version")

    assert (outcome.code, outcome.out, outcome.err) == (0, f"skillwire {package.__version__}\n", "")


def test_no_command_at_all_shows_the_help_and_is_misuse(skillwire: Command) -> None:
    outcome = skillwire()

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("Usage: skillwire ")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["validate", "--nope"], "error: no such option: --nope\nfix: see skillwire validate --help\n"),
        (["pack"], "error: missing argument 'DIR'\nfix: see skillwire pack --help\n"),
        (["--nope"], "error: no such option: --nope\nfix: see skillwire --help\n"),
        (
            ["valdate"],
            "error: no such command 'valdate'. Did you mean 'validate'?\nfix: see skillwire --help\n",
        ),
    ],
)
def test_misuse_is_one_line_and_a_hint(skillwire: Command, args: list[str], words: str) -> None:
    outcome = skillwire(*args)

    assert (outcome.code, outcome.out, outcome.err) == (2, "", words)


def test_misuse_is_json_when_json_was_asked_for(skillwire: Command) -> None:
    outcome = skillwire("new", "a", "b", "--json")

    assert outcome.code == 2
    assert outcome.json == {
        "schema": "skillwire/new/1",
        "error": {
            "code": "misuse",
            "message": "got unexpected extra argument(s) (b)",
            "fix": "see skillwire new --help",
        },
    }


def test_arguments_cannot_act_on_the_terminal(skillwire: Command) -> None:
    outcome = skillwire("validate", "gone\x1b[31m\u202e")

    assert outcome.err == "error: there is no file or folder gone<U+001B>[31m<U+202E>\nfix: check the path\n"


def test_an_interrupted_command_ends_at_once_without_a_word(
    here: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate, "review_folders", failing(KeyboardInterrupt()))

    outcome = skillwire("validate", here)

    assert (outcome.code, outcome.out, outcome.err) == (130, "", "")


def test_a_bug_is_one_line_and_its_trace_is_for_those_who_ask(
    here: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate, "review_folders", failing(KeyError("a\x1bb")))

    short, verbose = skillwire("validate", here, "--json"), skillwire("validate", here, "-v")

    assert (short.code, verbose.code) == (1, 1)
    assert short.json["error"]["message"] == "unexpected KeyError: 'a\\x1bb'"
    assert "Traceback" not in short.err
    assert "Traceback" in verbose.err


def test_a_file_that_the_system_refuses_is_one_line(
    here: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = PermissionError(13, "Permission denied", "secret")
    monkeypatch.setattr(validate, "review_folders", failing(error))

    outcome = skillwire("validate", here)

    assert (outcome.code, outcome.err) == (1, "error: secret: Permission denied\n")


def test_log_lines_go_to_standard_error_and_are_harmless(
    here: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(here / "one")
    reviewed = validate.review_folders

    def chatty(*args: object, **options: object) -> object:
        logging.getLogger("skillwire.sources").info("looking at \x1b[31m%s", "one")
        logging.getLogger("skillwire.sources").warning("worked around \u202e%s", "one")
        return reviewed(*args, **options)  # pyright: ignore[reportArgumentType]  # passed on as it came

    monkeypatch.setattr(validate, "review_folders", chatty)

    short, verbose = skillwire("validate", "one"), skillwire("validate", "one", "--verbose")

    assert short.err == "WARNING: worked around <U+202E>one\n"
    assert verbose.err == "INFO: looking at <U+001B>[31mone\nWARNING: worked around <U+202E>one\n"
    assert short.out == verbose.out == "1 skill: good\n"


def test_a_terminal_gets_colours_and_wrapped_lines(
    here: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    write_skill(here / "refunds", name="returns")

    outcome = skillwire("validate", "refunds")

    assert outcome.lines == [
        "\x1b[1mrefunds\x1b[0m  1 error",
        "  refunds/SKILL.md:2  \x1b[1;31merror\x1b[0m  name-differs-from-folder (FMT-03)",
        "    the folder is named 'refunds' and the skill 'returns';",
        "    the two must be equal",
        "    \x1b[1mfix:\x1b[0m rename the folder to `returns`, or set `name:",
        "    refunds`",
        "",
        "\x1b[1;31m1 skill: 0 good, 1 with errors; 1 error\x1b[0m",
    ]


def test_a_terminal_without_colours_gets_none(
    here: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    write_skill(here / "refunds", name="returns")

    outcome = skillwire("validate", "refunds")

    assert "\x1b[31m" not in outcome.out and "\x1b[1;31m" not in outcome.out
