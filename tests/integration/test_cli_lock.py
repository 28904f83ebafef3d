"""`skillwire lock`: shown, changed by others, trusted, written, and held against the servers."""

import shutil
from pathlib import Path

import pytest

from agreeing import agree_to
from folders import write_skill
from reviewing import approve
from skillwire.core.manifest import digest_of
from terminals import PROMPT, Desk, check_document

REFUNDS = "team/refunds"


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills" / "refunds", {"scripts/check.sh": "echo one\n"})
    return tmp_path / "skills"


@pytest.fixture
def desk(tmp_path: Path, skills: Path) -> Desk:
    found = Desk(tmp_path / "project", tmp_path / "home")
    found.serve("team", skills)
    return found


@pytest.fixture
def lock(desk: Desk) -> Path:
    return desk.folder / "skills.lock"


@pytest.mark.requirement("APPR-10")
def test_what_was_approved_is_written_and_counts(desk: Desk, lock: Path) -> None:
    approve(desk, REFUNDS)

    before = desk.run("lock", "--json")
    written = desk.run("lock", "--write", "--json")
    after = desk.run("lock")

    for ended in (before, written):
        check_document("lock", ended.json)
    assert (before.code, before.json["lock"]["state"]) == (1, "absent")
    assert [pin["uri"] for pin in before.json["unwritten"]["added"]] == ["skill://refunds/SKILL.md"]
    assert (written.code, written.json["lock"]["state"]) == (0, "trusted")
    assert written.json["lock"]["digest"] == digest_of(lock.read_bytes())
    assert (after.code, after.lines[0]) == (0, "skills.lock  trusted, 1 skill pinned")


@pytest.mark.requirement("APPR-10")
def test_a_lock_that_came_from_elsewhere_is_trusted_only_as_it_was_reviewed(desk: Desk, lock: Path) -> None:
    approve(desk, REFUNDS, lock=lock)
    shutil.rmtree(desk.home / ".local")

    shown = desk.run("lock", "--json")
    digest = shown.json["lock"]["digest"]
    unasked = desk.run("lock", "--trust", "--json")
    other = desk.run("lock", "--trust", "--yes", "--digest", digest_of(b"other"), "--json")
    trusted = desk.run("lock", "--trust", "--yes", "--digest", digest, "--json")

    for ended in (shown, unasked, other, trusted):
        check_document("lock", ended.json)
    assert (shown.code, shown.json["lock"]["state"]) == (1, "new")
    assert [pin["grants"] for pin in shown.json["difference"]["added"]] == [["load"]]
    assert (unasked.code, unasked.json["error"]["code"]) == (1, "approval-required")
    assert (other.code, other.json["error"]["code"]) == (1, "lock-untrusted")
    assert (trusted.code, trusted.json["lock"]["state"]) == (0, "trusted")
    assert desk.run("lock").code == 0


def test_on_a_terminal_the_difference_is_shown_and_the_user_is_asked(desk: Desk, lock: Path) -> None:
    approve(desk, REFUNDS, lock=lock)
    text = lock.read_text().replace('["load"]', '["load", "scripts"]')
    lock.write_text(text.replace('approved_by = ""', 'approved_by = "\\u001b[2J\\u202eevil"'))

    denied, no = desk.answer("lock", "--trust", typed="n", columns=40)
    shown, yes = desk.answer("lock", "--trust", typed="y")

    assert (no, yes) == (1, 0)
    assert "| team skill://refunds/SKILL.md" in shown
    assert "grants: load to load, scripts" in shown
    assert "Trust skills.lock?" in shown and PROMPT in shown
    assert all(len(line) <= 40 for line in denied.split("\n"))
    assert desk.run("lock").lines[0] == "skills.lock  trusted, 1 skill pinned"


@pytest.mark.requirement("APPR-10")
def test_a_lock_that_changed_is_never_written_over(desk: Desk, lock: Path) -> None:
    approve(desk, REFUNDS, lock=lock)
    lock.write_text(lock.read_text() + "# by someone\n")
    before = lock.read_bytes()

    ended = desk.run("lock", "--write", "--json")

    assert (ended.code, ended.json["error"]["code"]) == (1, "lock-untrusted")
    assert lock.read_bytes() == before


@pytest.mark.requirement("APPR-10")
def test_a_frozen_lock_is_held_against_what_the_servers_show(desk: Desk, lock: Path, skills: Path) -> None:
    approve(desk, REFUNDS, lock=lock)
    shutil.rmtree(desk.home)
    agree_to(desk.folder / ".mcp.json", desk.home)

    same = desk.run("lock", "--frozen")
    write_skill(skills / "reports")
    more = desk.run("lock", "--frozen", "--json")
    partial = desk.run("lock", "--frozen", "--partial")
    (skills / "refunds" / "scripts" / "check.sh").write_text("echo two\n")
    different = desk.run("lock", "--frozen", "--partial", "--json")
    shutil.rmtree(skills / "refunds")
    missing = desk.run("lock", "--frozen", "--partial", "--json")
    desk.configure("team", {"command": str(lock.parent / "nothing-here")})
    moved = desk.run("lock", "--frozen", "--wait", "1", "--json")

    assert (same.code, same.lines) == (0, ["same        team/refunds", "skills.lock: 1 same"])
    assert (more.code, partial.code) == (1, 0)
    states = {}
    for name, ended in (("more", more), ("different", different), ("missing", missing), ("moved", moved)):
        check_document("lock", ended.json)
        states[name] = {skill["reference"]: skill["state"] for skill in ended.json["skills"]}
    assert states["more"] == {"team/refunds": "same", "team/reports": "not-in-lock"}
    assert (different.code, states["different"]["team/refunds"]) == (1, "different")
    assert different.json["skills"][0]["files"]["modified"] == ["skill://refunds/scripts/check.sh"]
    assert (missing.code, states["missing"]["team/skill://refunds"]) == (1, "missing")
    assert (moved.code, states["moved"]) == (1, {"team/skill://refunds": "different"})
    assert lock.exists()


def test_a_pin_whose_server_is_not_there_has_the_reason(desk: Desk, lock: Path, tmp_path: Path) -> None:
    approve(desk, REFUNDS, lock=lock)
    (tmp_path / "skills").rename(tmp_path / "gone")
    away = desk.run("lock", "--frozen", "--wait", "4", "--json")
    config = desk.folder / ".mcp.json"
    config.write_text('{"mcpServers": {}}')
    removed = desk.run("lock", "--frozen", "--json")

    for ended in (away, removed):
        check_document("lock", ended.json)
        assert (ended.code, ended.json["skills"][0]["state"]) == (1, "unreachable")
    assert away.json["skills"][0]["refusal"]["code"] == "server-unavailable"
    assert removed.json["skills"][0]["refusal"]["code"] == "unknown-reference"


def test_a_lock_that_is_none_is_invalid_and_nothing_is_lost(desk: Desk, lock: Path) -> None:
    lock.write_text('version = 1\n"\x1b[2J" = 2\n')

    ended, document = desk.run("lock"), desk.run("lock", "--json")

    assert (ended.code, document.code) == (1, 1)
    check_document("lock", document.json)
    assert document.json["lock"]["state"] == "invalid"
    assert document.json["lock"]["problem"]["code"] == "lock-invalid"
    assert "\x1b" not in ended.out + ended.err


@pytest.mark.parametrize(
    "words",
    [
        ["--write", "--trust"],
        ["--partial"],
        ["--yes"],
        ["--trust", "--yes"],
        ["--trust", "--yes", "--digest", "short"],
    ],
)
def test_options_that_mean_nothing_together_are_misuse(desk: Desk, words: list[str]) -> None:
    ended = desk.run("lock", *words, "--json")

    assert ended.code == 2
    check_document("lock", ended.json)
