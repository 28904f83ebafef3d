"""`skillwire serve`: what it takes, and how it refuses to start."""

import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Command
from configs import configured
from folders import write_files, write_skill

HTTP = ("--http", "127.0.0.1:0")
REFUSED_WITHIN = 60
OPTIONS = [
    "--stdio",
    "--http",
    "--workers",
    "--name",
    "--watch",
    "--dialect",
    "--upstream",
    "--scripts",
    "--token-file",
    "--public-url",
    "--allow-anonymous",
    "--catalog",
    "--config",
    "--print-config",
    "--json",
    "--verbose",
]


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Give the tests their signals back: a server takes them for good, as its process is its own.

    One that starts although it should refuse to is told to end after a while.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGALRM, end_the_server)
    signal.alarm(REFUSED_WITHIN)
    yield
    signal.alarm(0)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def end_the_server(*_: object) -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def one(here: Path) -> Path:
    """A folder with one skill."""
    write_skill(here / "skills" / "one")
    return here / "skills"


def test_help_lists_every_option(skillwire: Command) -> None:
    outcome = skillwire("serve", "--help")

    assert (outcome.code, outcome.err) == (0, "")
    assert "[DIR]..." in outcome.lines[0]
    listed = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", outcome.out, re.MULTILINE)
    assert sorted(listed) == sorted([*OPTIONS, "--help"])
    assert max(map(len, outcome.lines)) <= 80


def test_help_of_the_program_loads_nothing_that_serves() -> None:
    heavy = {"mcp", "mcp_types", "uvicorn", "starlette", "pydantic", "anyio", "skillwire.server"}
    code = f"""
import sys
from skillwire.cli.app import run
run(["--help"])
print(sorted({heavy} & set(sys.modules)), file=sys.stderr)
"""

    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert "serve" in result.stdout
    assert result.stderr.strip() == "[]"


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "there is nothing to serve"),
        (["gone"], "there is no folder gone"),
        (["skills", "gone"], "there is no folder gone"),
        (["skills/one/SKILL.md"], "skills/one/SKILL.md is not a folder"),
        (["skills", "--http", "8000"], "'8000' is not HOST:PORT"),
        (["skills", "--http", f"localhost:{'9' * 5000}"], "is not HOST:PORT"),
        (["skills", "--stdio", *HTTP], "--stdio and --http exclude each other"),
        (["skills", "--stdio", "--workers", "2"], "several workers can share an HTTP port"),
        (["skills", *HTTP, "--workers", "0"], "invalid value for '--workers'"),
        (["skills", *HTTP, "--workers", "65"], "invalid value for '--workers'"),
        (["skills", *HTTP, "--workers", "many"], "invalid value for '--workers'"),
        (
            ["skills", *HTTP, "--rate", "20/100"],
            '--rate is set in the configuration file: rate = "N[/BURST]"',
        ),
        (["skills", *HTTP, "--page-size=3"], "--page-size is set in the configuration file: page_size = N"),
        (["skills", *HTTP, "--pin", "a"], '--pin is set in the configuration file: pin = ["PATH"]'),
        (["skills", "--strict"], "--strict is set in the configuration file: strict = true"),
        (
            ["skills", "--no-instructions"],
            "--no-instructions is set in the configuration file: instructions = false",
        ),
        (
            ["skills", "--instructions"],
            "--instructions is set in the configuration file: instructions = true",
        ),
        (["skills", "--speed", "9"], "no such option: --speed"),
    ],
)
def test_misuse_is_one_line_and_a_hint(skillwire: Command, args: list[str], words: str) -> None:
    outcome = skillwire("serve", *args)

    assert (outcome.code, outcome.out) == (2, "")
    error, fix = outcome.err.splitlines()
    assert error.startswith("error: ") and words in error
    assert fix.startswith("fix: ")


@pytest.mark.parametrize("prefix", ["../up", "a//b"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_prefix_that_cannot_be_part_of_a_uri_is_misuse(
    one: Path, skillwire: Command, prefix: str, workers: str
) -> None:
    config = configured(one.parent, prefix=prefix)

    outcome = skillwire("serve", one, *HTTP, *config, "--workers", workers)

    assert (outcome.code, outcome.out) == (2, "")
    assert f"the prefix {prefix} cannot be used" in outcome.err


def test_a_key_that_is_misspelled_is_named_with_its_line_and_the_nearest_key(
    one: Path, here: Path, skillwire: Command
) -> None:
    (here / "serve.toml").write_text('ttl = 5\npublic_ulr = "https://skills.example/mcp"\n')

    outcome = skillwire("serve", one, *HTTP, "--config", "serve.toml", "--json")

    assert outcome.code == 1
    assert outcome.json["error"] == {
        "code": "invalid-config",
        "message": 'serve.toml, line 2: unknown key "public_ulr"; did you mean "public_url"?',
        "fix": "write public_url",
    }


def test_options_can_be_printed_as_a_file_that_says_the_same(
    one: Path, here: Path, skillwire: Command
) -> None:
    (here / "serve.toml").write_text('folders = ["skills"]\nttl = 5\nname = "From the file"\n')
    typed = ("--http", "127.0.0.1:0", "--name", "Typed", "--dialect", "prompt", "--no-watch")

    first = skillwire("serve", "--config", "serve.toml", *typed, "--print-config")
    (here / "again.toml").write_text(first.out)
    again = skillwire("serve", "--config", "again.toml", "--print-config")
    document = skillwire("serve", "--config", "again.toml", "--print-config", "--json").json

    assert (first.code, first.err, again.code) == (0, "", 0)
    assert again.out == first.out
    assert tomllib.loads(first.out)["folders"] == [str(one)]
    said = {"name": "Typed", "ttl": 5, "http": "127.0.0.1:0", "dialect": ["prompt"], "watch": False}
    assert said.items() <= tomllib.loads(first.out).items()
    assert said.items() <= document["config"].items()


@pytest.mark.parametrize(
    ("content", "typed", "http"),
    [('http = "127.0.0.1:0"', "--stdio", ""), ("stdio = true", "--http=127.0.0.1:0", "127.0.0.1:0")],
)
def test_a_transport_that_is_typed_replaces_that_of_the_file(
    one: Path, here: Path, skillwire: Command, content: str, typed: str, http: str
) -> None:
    (here / "serve.toml").write_text(content)

    outcome = skillwire("serve", one, typed, "--config", "serve.toml", "--print-config", "--json")

    assert (outcome.json["config"]["http"], outcome.json["config"]["stdio"]) == (http, not http)


def test_misuse_is_json_when_json_was_asked_for(one: Path, skillwire: Command) -> None:
    outcome = skillwire("serve", one, "--http", "8000", "--json")

    assert outcome.code == 2
    assert outcome.json == {
        "schema": "skillwire/serve/1",
        "error": {
            "code": "misuse",
            "message": "'8000' is not HOST:PORT",
            "fix": "write it like 127.0.0.1:8000",
        },
    }


def test_an_address_that_cannot_be_had_is_one_line(one: Path, skillwire: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        single = skillwire("serve", one, "--http", address)
        several = skillwire("serve", one, "--http", address, "--workers", "2")

    expected = f"error: cannot listen on {address}: Address already in use\n"
    for outcome in (single, several):
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err == expected + "fix: choose another port; 0 takes any that is free\n"


@pytest.mark.requirement("SDK-05")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_two_folders_with_the_same_skills_are_refused_and_all_places_named(
    here: Path, skillwire: Command, workers: str
) -> None:
    for place in ("left/one", "left/two", "left/three", "right/one", "right/two", "right/four"):
        write_skill(here / place)

    outcome = skillwire("serve", "left", "right", *HTTP, "--workers", workers)

    assert (outcome.code, outcome.out) == (1, "")
    for uri, places in {
        "skill://one/SKILL.md": ["left/one", "right/one"],
        "skill://two/SKILL.md": ["left/two", "right/two"],
    }.items():
        assert "\n".join([f"{uri} comes from:", *(f"  {place}" for place in places)]) in outcome.err
    assert "three" not in outcome.err and "four" not in outcome.err
    assert "serving" not in outcome.err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_strict_does_not_start_with_a_broken_skill_and_says_which(
    one: Path, skillwire: Command, workers: str
) -> None:
    write_files(one, {"broken/SKILL.md": "no frontmatter"})

    config = configured(one.parent, strict=True)
    outcome = skillwire("serve", one, *HTTP, *config, "--json", "--workers", workers)

    assert outcome.code == 1
    assert outcome.json["error"]["message"] == "some skills cannot be published: broken"
    assert "WARNING: broken: the file does not start with frontmatter" in outcome.err
    assert "serving" not in outcome.err


@pytest.mark.requirement("EXEC-11")
def test_a_policy_is_for_servers_that_run_scripts(skillwire: Command, one: Path) -> None:
    outcome = skillwire("serve", one, *HTTP, *configured(one.parent, script_policy="policy.toml"))

    assert outcome.code == 2
    assert "--scripts" in outcome.err


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize("content", [None, "unknown = 1\n", "{"])
def test_a_policy_that_is_not_understood_starts_no_server(
    skillwire: Command, one: Path, here: Path, content: str | None
) -> None:
    if content is not None:
        (here / "policy.toml").write_text(content)
        (here / "policy.toml").chmod(0o600)

    config = configured(here, script_policy="policy.toml")
    outcome = skillwire("serve", one, *HTTP, "--scripts", *config)

    assert outcome.code in (1, 2)
    assert "policy" in outcome.err
    assert "serving" not in outcome.err
