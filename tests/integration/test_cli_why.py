"""`skillwire why`: the chain behind a skill, a server or a code, with the command that helps."""

from pathlib import Path

import pytest

from folders import write_skill
from hostile.prompts import TERMINAL
from reviewing import approve
from terminals import Desk, check_document

REFUNDS = "team/refunds"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk with a server of two skills, one that cannot be started, and one that is turned off."""
    found = Desk(tmp_path / "project", tmp_path / "home")
    write_skill(tmp_path / "skills" / "refunds", {"scripts/check.sh": "echo one\n"})
    write_skill(tmp_path / "skills" / "reports")
    found.serve("team", tmp_path / "skills")
    found.configure("dead", {"command": str(tmp_path / "nothing-here")})
    found.configure("old", {"command": "none", "disabled": True})
    return found


@pytest.mark.requirement("HOST-05")
def test_a_skill_goes_from_new_over_approved_and_changed_to_gone(desk: Desk, tmp_path: Path) -> None:
    new = desk.run("why", REFUNDS)
    approve(desk, REFUNDS)
    approved = desk.run("why", REFUNDS)
    (tmp_path / "skills" / "refunds" / "scripts" / "check.sh").write_text("echo two\n")
    changed = desk.run("why", REFUNDS)
    (tmp_path / "skills" / "refunds").rename(tmp_path / "elsewhere")
    gone = desk.run("why", REFUNDS)

    assert [ended.code for ended in (new, approved, changed, gone)] == [0, 0, 0, 1]
    assert new.lines[0] == "team/refunds  can be loaded once you approve it"
    assert new.lines[-1] == "  skillwire approve team/refunds"
    assert approved.lines[0] == "team/refunds  can be loaded"
    assert changed.lines[0] == "team/refunds  changed since it was approved; you would be asked"
    assert "  skillwire diff team/refunds" in changed.lines
    assert gone.lines[0] == "team/refunds  cannot be loaded"
    assert "unknown-reference" in gone.out


def test_what_can_be_loaded_needs_no_approval_whatever_was_refused_before(desk: Desk) -> None:
    refused = desk.run("load", REFUNDS)
    approve(desk, REFUNDS)

    ended = desk.run("why", REFUNDS, "--json")

    assert (refused.code, ended.code) == (1, 0)
    assert [step["what"] for step in ended.json["steps"]][-1] == "before"
    assert ended.json["commands"] == ["skillwire load team/refunds"]


@pytest.mark.requirement("APPR-10")
def test_with_a_frozen_lock_nobody_is_asked_and_the_lock_is_what_helps(desk: Desk, tmp_path: Path) -> None:
    approve(desk, "team/reports", lock=desk.folder / "skills.lock")
    approve(desk, REFUNDS)

    absent = desk.run("why", REFUNDS, "--frozen", "--json")
    pinned = desk.run("why", "team/reports", "--frozen", "--json")
    write_skill(tmp_path / "skills" / "reports", {"more.md": "more\n"})
    other = desk.run("why", "team/reports", "--frozen", "--json")

    for ended, reference in ((absent, REFUNDS), (other, "team/reports")):
        assert ended.code == 1
        check_document("why", ended.json)
        assert not any("asked" in step["found"] for step in ended.json["steps"])
        assert ended.json["commands"] == [
            f"skillwire diff --frozen {reference}",
            "skillwire lock --frozen",
            "skillwire lock",
        ]
    assert "it is pinned, with other files: 1 file added" in other.out
    assert (pinned.code, pinned.json["commands"]) == (0, ["skillwire load team/reports"])


def test_documents_keep_to_their_schema_and_name_what_is_wrong(desk: Desk) -> None:
    codes: dict[str, set[str]] = {}
    for word in ("team/refunds", "team/refudns", "dead/x", "dead", "old", "team", "refunds"):
        ended = desk.run("why", word, "--json", "--wait", "30")
        check_document("why", ended.json)
        assert ended.code == (0 if ended.json["ok"] else 1)
        codes[word] = {step["refusal"]["code"] for step in ended.json["steps"] if step["refusal"]}

    assert codes == {
        "team/refunds": {"not-approved"},
        "team/refudns": {"unknown-reference"},
        "dead/x": {"server-unavailable", "unknown-reference"},
        "dead": {"server-unavailable"},
        "old": {"turned-off"},
        "team": set(),
        "refunds": {"unknown-reference"},
    }


def test_a_name_without_its_server_leads_to_the_whole_reference(desk: Desk) -> None:
    ended = desk.run("why", "refunds")

    assert ended.code == 1
    assert "      did you mean: team/refunds" in ended.lines
    assert "  skillwire why team/refunds" in ended.lines


def test_a_code_is_explained_without_asking_a_server(desk: Desk, tmp_path: Path) -> None:
    mark = tmp_path / "started"
    desk.configure("team", {"command": "/bin/sh", "args": ["-c", f"touch {mark}"]})

    ended = desk.run("why", "digest-mismatch")
    document = desk.run("why", "digest-mismatch", "--json").json

    assert (ended.code, ended.err) == (0, "")
    assert ended.lines == [
        "digest-mismatch  The file's bytes do not match the digest in the server's listing.",
        "  about: bytes that do not match the listing",
        "  rule: INT-02",
        "  to do: refresh the listing; if the error persists, do not use the skill",
    ]
    check_document("why", document)
    assert (document["kind"], document["steps"]) == ("code", [])
    assert not mark.exists()


def test_a_skill_that_is_called_like_a_code_is_explained_too(desk: Desk) -> None:
    write_skill(desk.home / ".agents" / "skills" / "network")

    ended = desk.run("why", "network")

    assert "network  can be loaded" in ended.lines
    assert "  about: what a loaded skill may do" in ended.lines


@pytest.mark.parametrize("columns", [80, 40])
def test_it_fits_a_terminal_and_no_text_begins_where_a_step_does(desk: Desk, columns: int) -> None:
    odd = f"team/{TERMINAL}\u202ex{' ' * 60}  ok  approval          granted\n  ok  approval"

    with desk.window("why", odd, columns=columns, lines=60) as window:
        code = window.wait_for_end()
        shown, raw = window.everything.split("\n"), window.raw

    assert code == 1
    assert all(len(line) <= columns for line in shown)
    assert b"\x1b[2J" not in raw and b"\x1b]52" not in raw and "\u202e".encode() not in raw
    assert not any(line.startswith("  ok  approval") for line in shown)


def test_a_host_that_cannot_be_opened_is_the_reason_for_everything(desk: Desk) -> None:
    (desk.folder / "skills.lock").write_text("nonsense")

    ended = desk.run("why", REFUNDS, "--json")

    assert ended.code == 1
    check_document("why", ended.json)
    assert [step["refusal"]["code"] for step in ended.json["steps"]] == ["lock-invalid"]
    assert ended.json["commands"] == ["skillwire lock"]


def test_misuse_is_told_from_a_no(desk: Desk) -> None:
    nothing, nowhere = desk.run("why"), desk.run("why", "x", "--at", "no-such-place", "--json")

    assert (nothing.code, nowhere.code) == (2, 2)
    check_document("why", nowhere.json)
