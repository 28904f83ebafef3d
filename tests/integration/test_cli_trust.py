"""A folder brings a configuration and skills of its own: nothing of them counts before the user agreed."""

import json
from pathlib import Path

import pytest

from folders import write_skill
from integration.cli_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    skills = world.write("skills", {"refunds": "Refunds. Use when asked."})
    (world.project / ".mcp.json").write_text(json.dumps({"mcpServers": {"team": _noting(world, skills)}}))
    return world


def _noting(world: World, skills: Path) -> dict[str, object]:
    """Configure a server whose program leaves a trace whenever it is started."""
    server = world.server("team", skills)
    program = Path(str(server["command"]))
    program.write_text(program.read_text().replace("exec ", f"touch {world.root}/started\nexec ", 1))
    return server


def is_started(world: World) -> bool:
    return (world.root / "started").exists()


@pytest.mark.requirement("SEC-16")
@pytest.mark.parametrize(
    "command", [["list"], ["load", "team/refunds"], ["why", "team/refunds"], ["list", "team"]]
)
def test_nothing_is_started_from_a_configuration_that_was_only_found(
    world: World, command: list[str]
) -> None:
    ended = world.run(*command, "--json")

    assert (ended.code, is_started(world)) == (1, False)
    assert "untrusted-config" in ended.out


@pytest.mark.requirement("SEC-16")
def test_the_doctor_starts_nothing_from_it_either_and_says_what_to_do(world: World) -> None:
    ended = world.run("doctor")

    assert not is_started(world)
    assert any("not trusted yet" in line and "skillwire trust" in line for line in ended.lines)


def test_a_configuration_that_is_named_is_used_at_once(world: World) -> None:
    ended = world.run("list", "--config", ".mcp.json", "--wait", "60")

    assert ended.code == 0 and "team/refunds" in ended.out


def test_who_sits_at_a_terminal_is_asked_once_and_shown_what_would_start(world: World) -> None:
    denied = world.show("list", columns=200, answers=[("Enter means no", "n")])
    assert not is_started(world)
    agreed = world.show("list", "--wait", "60", answers=[("Enter means no", "y")])
    again = world.run("list", "--wait", "60")

    assert denied.code == 1 and "team.sh" in "".join(denied.lines)
    assert agreed.code == 0 and any("team/refunds" in line for line in agreed.lines)
    assert "team/refunds" in again.out


def test_a_configuration_that_changed_is_asked_about_again(world: World) -> None:
    world.run("trust", "--yes")
    before = world.run("list", "--wait", "60")
    config = world.project / ".mcp.json"
    document = json.loads(config.read_text())
    config.write_text(json.dumps({"mcpServers": {**document["mcpServers"], "more": {"command": "sh"}}}))

    after = world.run("list", "--json")
    screen = world.show("list", answers=[("Enter means no", "n")])

    assert before.code == 0
    assert after.json["error"]["code"] == "untrusted-config"
    assert any("CHANGED" in line for line in screen.lines)


@pytest.mark.requirement("FS-04")
def test_a_trusted_folders_own_skills_count_until_it_is_forgotten(world: World) -> None:
    write_skill(world.project / ".agents" / "skills" / "notes")

    def seen() -> bool:
        return "notes  " in world.run("list", "--config", ".mcp.json", "--wait", "60").out

    before = seen()
    screen = world.show("trust", answers=[("Enter means no", "y")])
    trusted = seen()
    forgotten = world.run("trust", "--forget")
    after = seen()

    assert (before, trusted, after) == (False, True, False)
    assert any("notes" in line for line in screen.lines)
    assert forgotten.out.startswith("no longer trusted")
    assert world.run("list", "--json").json["error"]["code"] == "untrusted-config"


def test_a_folder_around_it_that_is_trusted_still_covers_it(world: World) -> None:
    world.run("trust", str(world.root), "--yes")

    ended = world.run("trust", "--forget", "--json")

    assert ended.json["trusted"] is True


def test_without_a_terminal_trust_needs_a_clear_yes(world: World) -> None:
    write_skill(world.project / ".agents" / "skills" / "notes")

    ended = world.run("trust")

    assert (ended.code, ended.out) == (1, "")
    assert not is_started(world)
    words = ended.err.splitlines()
    assert words[0] == "A folder would be trusted."
    assert "  | notes" in words
    assert f"  | team: {world.root}/team.sh" in words
    assert words[-1] == "fix: review it, then pass --yes"
