"""`skillwire doctor`: what is wrong is said with a fix, and never with a secret."""

import sys
from pathlib import Path
from typing import Any

import pytest

from approving import LOAD, WHEN, manifest, skill_id
from integration.cli_world import World, local_skill
from skillwire.host.approval.lock_trust import LockTrust
from skillwire.host.approval.store import APPROVALS_FILE, ApprovalStore
from skillwire.host.model.approval import Approval

SECRET = "s3cret-value"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def by_subject(document: Any, area: str) -> dict[str, Any]:
    return {check["subject"]: check for check in document["checks"] if check["area"] == area}


def test_a_world_in_order_has_no_problems(world: World) -> None:
    local_skill(world, "notes")
    world.configure(team=world.server("team", world.write("skills", {"one": "The first."})))

    before = sorted(world.state.iterdir())
    ended = world.run("doctor", "--json", "--wait", "60")

    document = ended.json
    assert (ended.code, document["ok"]) == (0, True)
    server = by_subject(document, "servers")["team"]
    assert server["status"] == "ok"
    assert server["found"].startswith("speaks MCP 2026-07-28, lists 1 skill, ")
    assert by_subject(document, "local skills")[f"{world.home}/.agents/skills"]["found"] == "1 skill"
    assert sorted(world.state.iterdir()) == before and not world.cache.exists(), "looking makes nothing"


@pytest.mark.skipif(not Path("/usr/bin/bwrap").exists(), reason="bubblewrap is not installed here")
def test_scripts_are_really_run_to_see_whether_they_can_be(world: World) -> None:
    checks = by_subject(world.run("doctor", "--json", "--offline").json, "sandbox")

    assert (checks["scripts"]["status"], checks["Python (.py)"]["status"]) == ("ok", "ok")
    assert checks["Python (.py)"]["found"].startswith("runs in the sandbox, version 3.")
    assert checks["shell (.sh)"]["found"].startswith("runs in the sandbox")
    assert checks["Node (.js)"]["status"] in ("ok", "note")
    assert checks["memory"]["found"]


def test_problems_have_a_fix_and_secrets_are_not_repeated(world: World) -> None:
    path = world.configure(
        leaky={"url": f"https://user:{SECRET}@127.0.0.1:9/mcp", "headers": {"Authorization": SECRET}},
        plain={"url": "http://elsewhere.example/mcp"},
        gone={"command": "no-such-program", "env": {"API_TOKEN": SECRET}},
        unset={"command": "sh", "args": ["${NOWHERE_SET}"]},
    )
    path.chmod(0o644)

    ended = world.run("doctor", "--json", "--offline")
    lines = world.run("doctor", "--offline")

    checks = by_subject(ended.json, "configuration")
    assert (ended.code, ended.json["ok"]) == (1, False)
    assert {name: checks[name]["status"] for name in ("leaky", "plain", "gone", "unset")} == {
        "leaky": "ok",
        "plain": "warning",
        "gone": "problem",
        "unset": "problem",
    }
    assert (checks[".mcp.json"]["status"], "chmod 600" in checks[".mcp.json"]["fix"]) == ("warning", True)
    assert "NOWHERE_SET" in checks["unset"]["fix"]
    assert all(check["fix"] for check in ended.json["checks"] if check["status"] in ("warning", "problem"))
    for text in (ended.out, ended.err, lines.out, lines.err):
        assert SECRET not in text


def test_offline_starts_no_server(world: World) -> None:
    world.configure(team={"command": "touch", "args": ["started"]})

    ended = world.run("doctor", "--offline", "--json")

    assert (ended.code, by_subject(ended.json, "servers")) == (0, {})
    assert not (world.project / "started").exists()


def test_servers_that_fail_are_told_apart(world: World) -> None:
    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    world.configure(down={"url": "http://127.0.0.1:9/mcp"}, silent={"command": silent[0], "args": silent[1:]})

    ended = world.run("doctor", "--json", "--wait", "4")

    servers = by_subject(ended.json, "servers")
    assert ended.code == 1
    assert [servers[name]["status"] for name in ("down", "silent")] == ["problem", "problem"]
    assert "cannot be reached" in servers["down"]["found"]
    assert "--wait" in servers["silent"]["fix"]


@pytest.mark.requirement("APPR-01")
def test_tampering_is_a_problem_and_stays_visible_afterwards(world: World) -> None:
    ApprovalStore(world.state).grant(Approval(skill_id(), manifest(), LOAD, WHEN))
    path = world.state / APPROVALS_FILE
    path.write_bytes(path.read_bytes().replace(b"acme", b"evil"))

    first, second = world.run("doctor", "--json"), world.run("doctor", "--json")

    assert (first.code, by_subject(first.json, "places")["approvals"]["status"]) == (1, "problem")
    assert (second.code, by_subject(second.json, "places")["tampering"]["status"]) == (0, "warning")


def test_open_folders_and_files_are_warned_about(world: World) -> None:
    ApprovalStore(world.state).grant(Approval(skill_id(), manifest(), LOAD, WHEN))
    world.state.chmod(0o755)
    (world.state / APPROVALS_FILE).chmod(0o644)

    places = by_subject(world.run("doctor", "--json").json, "places")

    assert (places["state"]["status"], places["state files"]["status"]) == ("warning", "warning")
    assert APPROVALS_FILE in places["state files"]["found"]


@pytest.mark.requirement("CACHE-04")
def test_a_cache_inside_a_folder_of_skills_is_a_problem(world: World) -> None:
    local_skill(world, "notes")

    ended = world.run("doctor", "--json", XDG_CACHE_HOME=str(world.home / ".agents" / "skills"))

    assert ended.code == 1
    assert by_subject(ended.json, "places")["folders"]["status"] == "problem"


def test_a_lock_is_valid_trusted_or_looked_at_with_suspicion(world: World) -> None:
    lock = world.project / "skills.lock"
    LockTrust(world.state).write(lock, [Approval(skill_id(), manifest(), LOAD, WHEN)])

    trusted = world.run("doctor", "--json")
    lock.write_bytes(lock.read_bytes() + b"# more\n")
    changed = world.run("doctor", "--json")
    lock.write_bytes(b"[[")
    broken = world.run("doctor", "--json")

    found = [by_subject(ended.json, "lock")["skills.lock"] for ended in (trusted, changed, broken)]
    assert [check["status"] for check in found] == ["ok", "warning", "problem"]
    assert found[0]["found"] == "trusted, 1 skill pinned"
    assert broken.code == 1


@pytest.mark.requirement("FS-04")
def test_a_project_that_is_not_trusted_is_named(world: World) -> None:
    world.write("project/.agents/skills", {"mine": "My own."})

    folders = by_subject(world.run("doctor", "--json").json, "local skills")

    check = folders[f"{world.project}/.agents/skills"]
    assert (check["status"], "not trusted" in check["found"]) == ("warning", True)


@pytest.mark.parametrize("columns", [80, 40])
def test_a_terminal_shows_words_beside_their_status(world: World, columns: int) -> None:
    world.configure(gone={"command": "no-such-program"})

    screen = world.show("doctor", "--offline", columns=columns)

    assert screen.code == 1
    assert max(map(len, screen.lines)) <= columns
    assert "configuration" in screen.lines
    start = screen.lines.index(next(line for line in screen.lines if line.startswith("  problem  gone:")))
    rest = screen.lines[start + 1 :]
    wrapped = rest[: rest.index(next(line for line in rest if "fix:" in line))]
    assert all(line.startswith(" " * 11) for line in wrapped)


def test_elsewhere_each_check_is_one_line(world: World) -> None:
    world.configure(gone={"command": "no-such-program"})

    ended = world.run("doctor", "--offline")

    assert {line.split(":")[0] for line in ended.lines} <= {"ok", "note", "warning", "problem"}
    assert ended.err.startswith("1 problem, ")
