"""The bridge gets into a client's configuration only after the change was shown and the user agreed."""

import subprocess
from pathlib import Path

import pytest

from folders import skill_md, write_files
from integration.cli_world import World
from integration.test_bridge_process import bridge, open_session
from terminals import PROMPT, Desk

CODEX = 'model = "o" # mine\n\n[mcp_servers.one]\ncommand = "x"\nenv = { KEY = "s3cret" }\n'


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def codex(world: World) -> Path:
    path = world.home / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text(CODEX)
    return path


def test_who_sits_at_a_terminal_sees_the_change_and_decides(world: World) -> None:
    path = codex(world)

    denied = world.show("setup", "codex", columns=200, answers=[("Enter means no", "n")])
    before = path.read_text()
    agreed = world.show("setup", "codex", columns=200, answers=[("Enter means no", "y")])
    after = path.read_text()
    removed = world.show("setup", "codex", "--remove", columns=200, answers=[("Enter means no", "y")])

    assert (denied.code, before) == (1, CODEX)
    assert any("+ [mcp_servers.skillwire]" in line for line in denied.lines)
    assert "s3cret" not in denied.text + agreed.text + removed.text
    assert agreed.code == 0 and after.startswith(CODEX + "\n[mcp_servers.skillwire]\ncommand = ")
    assert (removed.code, path.read_text()) == (0, CODEX)


def test_a_file_that_changes_while_the_question_is_open_is_not_overwritten(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "project", tmp_path / "home")
    path = desk.home / ".gemini" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")

    with desk.window("setup", "gemini") as window:
        window.wait_for(PROMPT)
        path.write_text('{"newer": 1}')
        window.type("y")
        code = window.wait_for_end()

    assert (code, path.read_text()) == (1, '{"newer": 1}')
    assert "changed by another program" in window.everything


def test_without_a_terminal_the_change_is_shown_and_needs_a_clear_yes(world: World) -> None:
    path = codex(world)

    asked = world.run("setup", "codex")
    unasked = world.run("setup", "codex", "--yes", "--json")

    assert (asked.code, asked.out) == (1, "")
    assert asked.err.splitlines()[-1] == "fix: review it, then pass --yes"
    assert "  | + [mcp_servers.skillwire]" in asked.err.splitlines()
    assert (unasked.code, unasked.json["written"]) == (0, True)
    assert path.read_text() != CODEX


def test_the_command_that_is_written_starts_this_installation_from_any_folder(world: World) -> None:
    world.write("project/skills", {"refunds": "Refunds."})
    config = world.configure(team={"command": "x"})
    url = "http://127.0.0.1:9/mcp"

    ended = world.run("setup", "zed", "--config", ".mcp.json", "team", "skills", url, "--yes", "--json")
    command = ended.json["command"]
    place = command.index("bridge")
    version = subprocess.run(
        [*command[:place], "--version"], cwd="/", env=world.env, capture_output=True, timeout=90, check=True
    )

    assert command[place:] == ["bridge", "--config", str(config), "team", str(config.parent / "skills"), url]
    assert version.stdout.startswith(b"skillwire ")


def test_a_server_to_start_is_passed_on_after_two_dashes(world: World) -> None:
    program = world.project / "server.sh"
    program.touch()

    ended = world.run("setup", "goose", "--yes", "--json", "--", "./server.sh", "--config", "x")

    assert ended.json["command"][-5:] == ["bridge", "--", str(program), "--config", "x"]


def test_a_project_file_that_is_named_gets_the_entry_instead_of_the_users(world: World) -> None:
    path = world.project / ".vscode" / "mcp.json"

    ended = world.run("setup", "vscode", "--file", ".vscode/mcp.json", "--yes", "--json")

    assert ended.json["file"] == str(path)
    assert path.is_file() and not [*world.home.glob(".config/Code")]
    (world.project / "other").touch()
    assert path.stat().st_mode == (world.project / "other").stat().st_mode


def test_any_other_client_gets_the_text_to_paste(world: World) -> None:
    named, other = world.run("setup", "windsurf", "--json"), world.run("setup", "other")

    assert (named.code, other.code, other.err) == (0, 0, "")
    assert other.json.keys() == {"mcpServers"}
    assert named.json["snippet"] == other.out
    assert [*world.home.rglob("*.json")] == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["codex", "nowhere"], 2),
        (["codex", "--remove", "http://127.0.0.1:9/mcp"], 2),
        (["--remove"], 2),
        (["windsurf", "--remove"], 2),
        (["codex", "--config", "nowhere.json", "--yes"], 1),
    ],
    ids=str,
)
def test_what_cannot_be_set_up_is_refused_and_nothing_is_written(
    world: World, words: list[str], code: int
) -> None:
    ended = world.run("setup", *words)

    assert (ended.code, [*world.home.iterdir()]) == (code, [])
    assert "error: " in ended.err


def test_an_entry_of_somebody_else_is_named_and_neither_replaced_nor_removed(world: World) -> None:
    path = codex(world)
    path.write_text('[mcp_servers.skillwire]\nurl = "https://example.com"\n')

    for words in (("--yes",), ("--yes", "--remove")):
        ended = world.run("setup", "codex", *words, "--json")

        assert (ended.code, ended.json["error"]["code"]) == (1, "invalid-config")
        assert "mcp_servers.skillwire" in ended.json["error"]["fix"]
    assert path.read_text() == '[mcp_servers.skillwire]\nurl = "https://example.com"\n'


def test_the_first_start_in_this_folder_lists_the_skills(world: World) -> None:
    write_files(world.root / "skills", {"refunds/SKILL.md": skill_md("refunds")})
    world.configure(team=world.server("team", world.root / "skills"))

    done = world.run("setup", "codex", "--yes")
    with bridge(world) as server:
        first = open_session(server)

    assert done.code == 0, done.err
    assert "- team/refunds" in first["result"]["instructions"]
