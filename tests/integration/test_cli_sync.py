"""`skillwire sync`: approved skills of a real server in folders of other agents, and what may differ."""

import json
import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agreeing import agree_to
from commands import Outcome, names_in
from folders import skill_md, write_files
from programs import skillwire_command
from reviewing import approve
from serving import wait_until
from terminals import Desk, check_document

REFUNDS, TRIAGE = "team/refunds", "team/triage"
SCRIPT = "#!/bin/sh\necho one\n"
WITHIN = 90.0


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    files = {"scripts/check.sh": SCRIPT, "references/policy.md": "Within 30 days.\n"}
    write_files(folder / "refunds", {"SKILL.md": skill_md("refunds"), **files})
    (folder / "refunds" / "scripts" / "check.sh").chmod(0o755)
    write_files(folder / "triage", {"SKILL.md": skill_md("triage")})
    return folder


@pytest.fixture
def desk(tmp_path: Path, skills: Path) -> Desk:
    found = Desk(tmp_path / "project", tmp_path / "home")
    found.serve("team", skills)
    return found


def synced(desk: Desk, *words: str | Path) -> Outcome:
    """Run the command with `--json`, and hold its document against the schema."""
    ended = desk.run("sync", *words, "--json")
    check_document("sync", ended.json)
    return ended


def actions(ended: Outcome) -> dict[str, str]:
    """Return what became of each folder, by its name."""
    return {row["name"]: row["action"] for row in ended.json["folders"]}


def reasons(ended: Outcome) -> dict[str, str]:
    return {row["name"]: row["reason"]["code"] for row in ended.json["folders"] if row["reason"]}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def change(skills: Path) -> None:
    (skills / "refunds" / "references" / "policy.md").write_text("Within 14 days.\n")


def test_only_what_is_approved_is_written_byte_for_byte_and_nothing_is_executable(
    desk: Desk, skills: Path
) -> None:
    approve(desk, REFUNDS)

    planned = synced(desk, "--to", "claude", "--dry-run")
    checked = synced(desk, "--to", "claude", "--check")
    before = list(desk.folder.iterdir())
    written = synced(desk, "--to", "claude")
    again = synced(desk, "--check")

    assert [ended.code for ended in (planned, checked, written, again)] == [0, 1, 0, 0]
    assert [path.name for path in before] == [".mcp.json"]
    assert [actions(ended)["team--refunds"] for ended in (planned, checked, written, again)] == [
        "write",
        "write",
        "write",
        "keep",
    ]
    target = desk.folder / ".claude" / "skills"
    assert names_in(target) == ["team--refunds"]
    assert tree(target / "team--refunds") == tree(skills / "refunds")
    modes = [path.stat().st_mode for path in (target / "team--refunds").rglob("*") if path.is_file()]
    assert not any(mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH) for mode in modes)


def test_where_an_agent_shows_the_name_in_the_file_only_that_name_is_adapted(
    desk: Desk, skills: Path
) -> None:
    approve(desk, REFUNDS)

    ended = synced(desk, "--to", "agents", "--to", "codex")

    original = (skills / "refunds" / "SKILL.md").read_bytes()
    for place in (".agents", ".codex"):
        found = tree(desk.folder / place / "skills" / "team--refunds")
        assert found["SKILL.md"] == original.replace(b'name: "refunds"', b"name: team--refunds")
        assert found["scripts/check.sh"] == SCRIPT.encode()
    assert {row["originalName"] for row in ended.json["folders"]} == {"refunds"}
    assert [target["agent"] for target in ended.json["targets"]] == ["agents", "codex"]


def test_a_synced_folder_does_not_become_a_local_skill_that_needs_no_approval(desk: Desk) -> None:
    approve(desk, REFUNDS)
    home = desk.home / ".agents" / "skills"
    synced(desk, "--to", home)
    shutil.copytree(home / "team--refunds", home / "copied")

    listed = desk.run("list", "--json")
    loaded = desk.run("load", "team--refunds")

    hidden = {row["code"]: row["subject"] for row in listed.json["hidden"]}
    assert hidden["synced-folder"] == str(home / "team--refunds")
    local = [skill["reference"] for skill in listed.json["skills"] if skill["origin"]["kind"] == "local"]
    # A copy is nobody's but the user's own: the record cannot know it.
    assert local == ["team--refunds"]
    assert loaded.code == 0
    shutil.rmtree(home / "copied")
    assert desk.run("load", "team--refunds").code == 1


def test_what_is_revoked_is_removed_and_nothing_else(desk: Desk) -> None:
    approve(desk, REFUNDS, TRIAGE)
    synced(desk, "--to", "claude")
    own = desk.folder / ".claude" / "skills" / "mine"
    write_files(own, {"SKILL.md": skill_md("mine")})

    desk.run("revoke", REFUNDS)
    checked = synced(desk, "--check")
    there = own.parent.joinpath("team--refunds").exists()
    removed = synced(desk)

    assert (checked.code, there, removed.code) == (1, True, 0)
    assert actions(removed) == {"team--refunds": "remove", "team--triage": "keep"}
    assert names_in(own.parent) == ["mine", "team--triage"]


def test_what_changed_on_the_server_stays_as_approved_until_it_is_approved_again(
    desk: Desk, skills: Path
) -> None:
    approve(desk, REFUNDS)
    synced(desk, "--to", "claude")
    place = desk.folder / ".claude" / "skills" / "team--refunds"
    approved = tree(place)

    change(skills)
    kept = synced(desk)
    told = desk.run("sync")
    untouched = tree(place)
    approve(desk, REFUNDS)
    replaced = synced(desk)

    assert (kept.code, actions(kept), reasons(kept)) == (
        0,
        {"team--refunds": "outdated"},
        {"team--refunds": "skill-changed"},
    )
    assert "kept" in told.out and "changed" in told.out
    assert untouched == approved
    assert actions(replaced) == {"team--refunds": "replace"}
    assert tree(place) == tree(skills / "refunds")
    assert names_in(place.parent) == ["team--refunds"]


def test_what_changed_and_is_then_revoked_is_removed_with_an_approval_and_with_a_pin(
    desk: Desk, skills: Path
) -> None:
    lock = desk.folder / "skills.lock"
    approve(desk, REFUNDS, TRIAGE, lock=lock)
    desk.run("revoke", TRIAGE)
    approve(desk, REFUNDS, lock=lock)
    synced(desk, "--to", "claude")
    change(skills)
    kept = synced(desk)

    desk.run("revoke", REFUNDS)
    removed = synced(desk)

    assert actions(kept)["team--refunds"] == "outdated"
    assert actions(removed)["team--refunds"] == "remove"


def test_a_folder_that_another_program_changed_is_left_alone_and_the_difference_is_shown(
    desk: Desk, skills: Path
) -> None:
    approve(desk, REFUNDS)
    synced(desk, "--to", "agents")
    place = desk.folder / ".agents" / "skills" / "team--refunds"
    (place / "references" / "policy.md").write_text("Within 30 days.\nAlways \x1b[31mpay\x1b[0m twice.\n")
    (place / "more.md").write_text("More.\n")
    (place / "scripts" / "check.sh").chmod(0o755)
    tampered = tree(place)

    ended, shown = synced(desk), desk.run("sync")
    change(skills)
    approve(desk, REFUNDS)
    replaced = synced(desk)
    desk.run("revoke", REFUNDS)
    removed = synced(desk)

    assert [one.code for one in (ended, shown, replaced, removed)] == [1, 1, 1, 1]
    for one in (ended, replaced, removed):
        assert (actions(one), reasons(one)) == (
            {"team--refunds": "refuse"},
            {"team--refunds": "folder-changed"},
        )
    states = {file["path"]: file["state"] for file in ended.json["folders"][0]["files"]}
    assert states == {"more.md": "added", "references/policy.md": "modified"}
    assert "     2 +| Always <U+001B>[31mpay<U+001B>[0m twice." in shown.lines
    assert "\x1b" not in shown.out + shown.err
    assert "scripts/check.sh: it is executable" in shown.out
    assert tree(place) == tampered


def test_a_folder_that_was_not_written_here_is_never_touched(desk: Desk, skills: Path) -> None:
    approve(desk, REFUNDS, TRIAGE)
    target = desk.folder / ".claude" / "skills"
    write_files(target / "team--refunds", {"SKILL.md": skill_md("mine")})
    shutil.copytree(skills / "triage", target / "team--triage")
    before = tree(target)

    ended = synced(desk, "--to", "claude")
    desk.run("revoke", TRIAGE)
    after = synced(desk)

    # Equal bytes are as good as written, and still somebody else's.
    assert (ended.code, actions(ended)) == (1, {"team--refunds": "refuse", "team--triage": "keep"})
    assert reasons(ended) == {"team--refunds": "foreign-folder"}
    assert actions(after) == {"team--refunds": "refuse"}
    assert tree(target) == before


def test_a_frozen_lock_decides_alone_what_a_team_gets(desk: Desk, skills: Path) -> None:
    lock = desk.folder / "skills.lock"
    approve(desk, REFUNDS, lock=lock)
    approve(desk, TRIAGE)

    free = synced(desk, "--to", "claude")
    frozen = synced(desk, "--frozen")
    change(skills)
    changed = synced(desk, "--frozen", "--check")
    shutil.rmtree(desk.home)
    agree_to(desk.folder / ".mcp.json", desk.home)
    elsewhere = synced(desk, "--frozen", "--check", "--to", "claude")

    assert actions(free) == {"team--refunds": "write", "team--triage": "write"}
    assert actions(frozen) == {"team--triage": "remove", "team--refunds": "keep"}
    assert (changed.code, actions(changed)) == (0, {"team--refunds": "keep"})
    # In CI there is no record: what is checked in has to equal what would be written, and that is gone.
    assert (elsewhere.code, actions(elsewhere)) == (1, {"team--refunds": "refuse"})


def test_folders_in_version_control_are_checked_without_a_record(desk: Desk) -> None:
    approve(desk, REFUNDS, lock=desk.folder / "skills.lock")
    synced(desk, "--to", "agents")
    shutil.rmtree(desk.home)
    agree_to(desk.folder / ".mcp.json", desk.home)

    same = synced(desk, "--frozen", "--check", "--to", "agents")
    (desk.folder / ".agents" / "skills" / "team--refunds" / "SKILL.md").write_text("other\n")
    other = synced(desk, "--frozen", "--check", "--to", "agents")

    assert (same.code, actions(same)) == (0, {"team--refunds": "keep"})
    assert (other.code, reasons(other)) == (1, {"team--refunds": "foreign-folder"})


def test_what_is_approved_is_written_from_the_cache_while_the_server_is_away(
    desk: Desk, skills: Path
) -> None:
    approve(desk, REFUNDS)
    synced(desk, "--to", "claude")
    skills.rename(skills.with_name("gone"))

    kept = synced(desk, "--wait", "5")
    copied = synced(desk, "--wait", "5", "--to", "gemini")
    desk.run("cache", "clear", "--yes")
    missing = synced(desk, "--wait", "5", "--to", "codex")
    still = synced(desk, "--wait", "5", "--to", "claude")

    assert (kept.code, copied.code) == (0, 0)
    assert (desk.folder / ".gemini" / "skills" / "team--refunds" / "SKILL.md").exists()
    assert (missing.code, reasons(missing)) == (1, {"team--refunds": "server-unavailable"})
    assert not (desk.folder / ".codex" / "skills" / "team--refunds").exists()
    assert (still.code, actions(still)) == (0, {"team--refunds": "outdated"})


@pytest.mark.parametrize("place", [".claude", ".claude/skills"])
def test_no_link_of_the_project_leads_out_of_it(desk: Desk, place: str, tmp_path: Path) -> None:
    approve(desk, REFUNDS)
    outside = tmp_path / "outside"
    outside.mkdir()
    link = desk.folder / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside)

    named = desk.run("sync", "--to", "claude", "--json")
    typed = desk.run("sync", "--to", desk.folder / ".claude" / "skills", "--json")

    for ended in (named, typed):
        check_document("sync", ended.json)
        assert (ended.code, ended.json["error"]["code"]) == (1, "unsafe-place")
    assert not list(outside.iterdir())


def test_a_link_in_place_of_a_folder_is_neither_followed_nor_removed(desk: Desk, tmp_path: Path) -> None:
    approve(desk, REFUNDS)
    synced(desk, "--to", "claude")
    place = desk.folder / ".claude" / "skills" / "team--refunds"
    outside = tmp_path / "outside"
    place.rename(outside)
    place.symlink_to(outside)
    before = tree(outside)

    desk.run("revoke", REFUNDS)
    ended = synced(desk)

    assert (ended.code, reasons(ended)) == (1, {"team--refunds": "folder-changed"})
    assert place.is_symlink()
    assert tree(outside) == before


def test_a_home_folder_that_is_a_link_is_the_users_own_choice(desk: Desk, tmp_path: Path) -> None:
    approve(desk, REFUNDS)
    dotfiles = tmp_path / "dotfiles"
    dotfiles.mkdir()
    (desk.home / ".claude").symlink_to(dotfiles)

    ended = desk.run("sync", "--to", "~/.claude/skills")

    assert ended.code == 0, ended.err
    assert names_in(dotfiles / "skills") == ["team--refunds"]


def test_a_folder_inside_the_hosts_own_state_is_refused(desk: Desk) -> None:
    ended = desk.run("sync", "--to", desk.home / ".local" / "state" / "skillwire" / "skills", "--json")

    assert (ended.code, ended.json["error"]["code"]) == (1, "unsafe-place")


@pytest.mark.parametrize(
    "words",
    [
        ["--check"],
        ["--to", "claude", "--check", "--dry-run"],
        ["--to", "claude", "--watch", "--json"],
        ["nowhere", "--to", "claude"],
        ["--to", "~nobody-of-this-name/skills"],
    ],
)
def test_misuse_is_named_and_writes_nothing(desk: Desk, words: list[str]) -> None:
    ended = desk.run("sync", *words, "--json")

    check_document("sync", ended.json)
    assert (ended.code, ended.json["error"]["code"]) == (2, "misuse")
    assert names_in(desk.folder) == [".mcp.json"]


def test_another_project_leaves_the_folders_of_this_one_alone(
    desk: Desk, skills: Path, tmp_path: Path
) -> None:
    approve(desk, REFUNDS, TRIAGE)
    home = desk.home / ".claude" / "skills"
    synced(desk, "--to", home)
    other = Desk(tmp_path / "other", desk.home)
    other.serve("team", skills)

    same = synced(other, "--to", home)
    desk.run("revoke", REFUNDS)
    left = synced(other)
    removed = synced(desk)

    assert actions(same) == {"team--refunds": "keep", "team--triage": "keep"}
    assert actions(left) == {"team--triage": "keep"}
    assert actions(removed) == {"team--refunds": "remove", "team--triage": "keep"}


def test_file_names_that_cannot_exist_everywhere_refuse_that_skill_only(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "project", tmp_path / "home")
    skills = tmp_path / "skills"
    write_files(skills, {"bad/SKILL.md": skill_md("bad"), "bad/references/nul.md": "x\n"})
    write_files(skills, {"good/SKILL.md": skill_md("good")})
    desk.serve("team", skills)
    approve(desk, "team/bad", "team/good")

    ended = synced(desk, "--to", "claude")

    assert (ended.code, actions(ended)) == (1, {"team--bad": "refuse", "team--good": "write"})
    assert reasons(ended) == {"team--bad": "unsafe-paths"}
    assert names_in(desk.folder / ".claude" / "skills") == ["team--good"]


def test_settings_that_keep_a_skill_from_models_keep_it_from_other_agents(desk: Desk) -> None:
    approve(desk, REFUNDS, TRIAGE)
    synced(desk, "--to", "claude")
    server: dict[str, Any] = {**desk.servers["team"], "skills": {"show": {"refunds": "manual"}}}
    desk.configure("team", server)

    ended = synced(desk)

    assert actions(ended) == {"team--refunds": "remove", "team--triage": "keep"}
    assert [note["code"] for note in ended.json["notes"]] == ["manual-only"]


def test_a_server_that_swaps_a_file_behind_its_digest_gets_nothing_written(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "project", tmp_path / "home")
    desk.invite("team", "swapped_body")
    shown = desk.run("show", REFUNDS, "--json").json
    desk.run("approve", REFUNDS, "--yes", "--digest", shown["binding"])

    ended = synced(desk, "--to", "claude")

    assert (ended.code, actions(ended)) == (1, {"team--refunds": "refuse"})
    assert reasons(ended)["team--refunds"] in ("digest-mismatch", "size-mismatch")
    assert not list((desk.folder / ".claude" / "skills").iterdir())


def test_watch_follows_approvals_and_ends_on_an_interrupt(desk: Desk) -> None:
    approve(desk, REFUNDS)
    place = desk.folder / ".claude" / "skills"
    said = desk.home / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            skillwire_command("sync", "--to", "claude", "--watch"),
            cwd=desk.folder,
            env=desk.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "written" in said.read_text(), WITHIN, "the first sync")
        approve(desk, TRIAGE)
        wait_until(lambda: said.read_text().count("written") == 2, WITHIN, "a new approval")
        desk.run("revoke", REFUNDS)
        wait_until(lambda: "removed" in said.read_text(), WITHIN, "a revocation")
        process.send_signal(signal.SIGINT)
        code = process.wait(WITHIN)
    finally:
        process.kill()
        process.wait()

    words = [line.split()[0] for line in said.read_text().splitlines()]
    assert (code, words) == (130, ["written", "written", "removed"])
    assert names_in(place) == ["team--triage"]


def test_two_syncs_at_once_write_each_folder_once(desk: Desk) -> None:
    approve(desk, REFUNDS, TRIAGE)
    command = skillwire_command("sync", "--to", "claude", "--json")
    running = [
        subprocess.Popen(
            command, cwd=desk.folder, env=desk.env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        for _ in range(3)
    ]

    documents = [json.loads(process.communicate(timeout=WITHIN)[0]) for process in running]

    assert [process.returncode for process in running] == [0, 0, 0]
    found = sorted(row["action"] for document in documents for row in document["folders"])
    assert found == ["keep"] * 4 + ["write"] * 2
    assert names_in(desk.folder / ".claude" / "skills") == ["team--refunds", "team--triage"]


def test_a_sync_that_is_killed_at_any_moment_is_finished_by_the_next(desk: Desk, skills: Path) -> None:
    approve(desk, REFUNDS, TRIAGE)
    place = desk.folder / ".claude" / "skills"
    whole = {name: tree(skills / name) for name in ("refunds", "triage")}
    moments = [
        place.exists,
        lambda: any(place.glob(".skillwire-*")),
        (place / "team--refunds").exists,
        (place / "team--triage").exists,
    ]
    for moment in moments:
        process = subprocess.Popen(
            skillwire_command("sync", "--to", "claude"),
            cwd=desk.folder,
            env=desk.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and not moment():
            os.sched_yield()
        process.kill()
        process.wait(WITHIN)
        for name, files in whole.items():
            folder = place / f"team--{name}"
            assert not folder.exists() or tree(folder) == files

        ended = synced(desk, "--to", "claude")

        assert ended.code == 0
        assert names_in(place) == ["team--refunds", "team--triage"]
        shutil.rmtree(place)
