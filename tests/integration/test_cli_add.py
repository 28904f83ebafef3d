"""`skillwire add`: what the user types is written, trusted and usable; what lay there before is neither."""

import json
from pathlib import Path

import pytest

from integration.cli_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.write("skills", {"refunds": "Refunds. Use when asked."})
    return world


def command_of(world: World) -> list[str]:
    """Return the command of a server that works."""
    return [str(world.server("team", world.root / "skills")["command"])]


def config_of(world: World) -> dict[str, object]:
    return json.loads((world.project / ".mcp.json").read_text())


def test_a_server_that_was_added_is_listed_by_the_command_that_add_names(world: World) -> None:
    command = command_of(world)

    added = world.run("add", "team", "--", "env", f"PYTHONPATH={world.env['PYTHONPATH']}", *command)
    listed = world.run(*next_command(added.err), "--wait", "60")

    assert added.code == 0
    assert listed.lines and listed.lines[0].startswith("team/refunds")
    entry = {"command": "env", "args": [f"PYTHONPATH={world.env['PYTHONPATH']}", *command]}
    assert config_of(world) == {"mcpServers": {"team": entry}}
    assert json.dumps(entry) in added.out


def next_command(words: str) -> list[str]:
    """Return the last command line that a command suggests, without the program's name."""
    line = [line for line in words.splitlines() if line.startswith("next: skillwire ")][-1]
    return line.removeprefix("next: skillwire ").split()


@pytest.mark.requirement("SEC-16")
def test_adding_a_server_does_not_trust_those_that_the_folder_brought_along(world: World) -> None:
    trace = world.root / "started"
    brought = {"evil": {"command": "touch", "args": [str(trace)]}}
    (world.project / ".mcp.json").write_text(json.dumps({"mcpServers": brought}))

    added = world.run("add", "team", "http://127.0.0.1:9/mcp", "--json")
    listed = world.run("list", "--json")
    mine = world.run("list", "team", "--json")

    assert added.json["trusted"] is False
    assert [ended.json["error"]["code"] for ended in (listed, mine)] == ["untrusted-config"] * 2
    assert not trace.exists()
    assert set(json.loads((world.project / ".mcp.json").read_text())["mcpServers"]) == {"evil", "team"}


@pytest.mark.requirement("SEC-16")
def test_a_configuration_the_user_has_agreed_to_stays_trusted_with_what_they_add(world: World) -> None:
    world.configure(down={"url": "http://127.0.0.1:9/mcp"})

    added = world.run("add", "other", "http://127.0.0.1:9/other", "--json")
    listed = world.run("list", "--json", "--wait", "60")

    assert added.json["trusted"] is True
    assert [origin["label"] for origin in listed.json["origins"]] == ["down", "other"]


def test_a_label_that_is_taken_is_replaced_only_when_the_user_says_so(world: World) -> None:
    world.run("add", "team", "http://127.0.0.1:9/one")

    refused = world.run("add", "team", "http://127.0.0.1:9/two", "--json")
    kept = config_of(world)
    forced = world.run("add", "team", "http://127.0.0.1:9/two", "--force", "--json")

    assert (refused.code, refused.json["error"]["code"]) == (1, "already-exists")
    assert "--force" in refused.json["error"]["fix"]
    assert kept == {"mcpServers": {"team": {"type": "http", "url": "http://127.0.0.1:9/one"}}}
    assert (forced.code, forced.json["replaced"]) == (0, True)
    assert config_of(world) == {"mcpServers": {"team": {"type": "http", "url": "http://127.0.0.1:9/two"}}}


def test_the_file_that_counts_in_a_folder_is_the_one_that_is_written(world: World) -> None:
    (world.project / ".vscode").mkdir()
    editor = world.project / ".vscode" / "mcp.json"
    editor.write_text('{"servers": {}, "inputs": []}')
    editor.chmod(0o640)

    world.run("add", "team", "http://127.0.0.1:9/mcp")

    assert not (world.project / ".mcp.json").exists()
    assert json.loads(editor.read_text()) == {
        "servers": {"team": {"type": "http", "url": "http://127.0.0.1:9/mcp"}},
        "inputs": [],
    }
    assert editor.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["team", "localhost:8000/mcp"], "skillwire add team http://localhost:8000/mcp"),
        (["team", "mcp.example.com/mcp"], "skillwire add team https://mcp.example.com/mcp"),
        (["team", "."], "skillwire add team -- skillwire serve ."),
        (["my team", "http://127.0.0.1:9/mcp"], "my-team"),
        (["team"], "skillwire add team URL"),
        (["team", "http://127.0.0.1:9/mcp", "--", "true"], "skillwire add team -- COMMAND"),
        (["user", "http://127.0.0.1:9/mcp"], "use a word of"),
    ],
    ids=lambda value: str(value),
)
def test_what_cannot_be_added_is_refused_with_what_would_work(
    world: World, words: list[str], fix: str
) -> None:
    ended = world.run("add", *words)

    assert (ended.code, fix in ended.err, [*world.project.iterdir()]) == (2, True, [])
