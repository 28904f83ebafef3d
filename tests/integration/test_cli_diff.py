"""`skillwire diff`: what changed since the user approved it, and no text that passes for anything else."""

import re
from pathlib import Path
from typing import Any

import pytest

from folders import write_files, write_skill
from hostile.prompts import TERMINAL
from hostile.running import Peer
from reviewing import approve
from terminals import Desk, check_document

REFUNDS = "shop/refunds"
GUTTER = re.compile(r" *\d* [-+ ]\|")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "project", tmp_path / "home")


@pytest.fixture
def peer(desk: Desk) -> Peer:
    """A server whose only skill can be made to say anything; as it is now, it is approved."""
    files = {"scripts/check.sh": "echo one\n", "notes.md": "a\nb\nc\n"}
    found = desk.invite("shop", "says", files=files, body="One.\nTwo.\n")
    approve(desk, REFUNDS)
    return found


def test_a_skill_that_is_the_same_is_a_yes(desk: Desk, peer: Peer) -> None:
    ended = desk.run("diff", REFUNDS)
    document = desk.run("diff", REFUNDS, "--json").json

    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[0] == "shop/refunds is the same as approved"
    check_document("diff", document)
    assert (document["same"], document["basis"], document["files"]) == (True, "approved", [])


@pytest.mark.requirement("APPR-02")
def test_a_change_is_summed_up_first_and_then_shown_line_by_line(desk: Desk, peer: Peer) -> None:
    files = {"scripts/check.sh": "echo one\n", "scripts/sync.sh": "curl x\n", "notes.md": "a\nB\nc\n"}
    peer.say(files=files)

    ended = desk.run("diff", REFUNDS)

    assert ended.code == 1
    assert ended.lines[0] == (
        "shop/refunds changed: 1 file modified (+1/-1), 1 added (scripts/sync.sh, a script)"
    )
    assert re.search(
        r"^Compared with: what you approved on \d{4}-\d\d-\d\d, before it changed$", ended.out, re.M
    )
    assert ended.out.index("added, a script: scripts/sync.sh") < ended.out.index("modified: notes.md")
    shown = ended.lines[ended.lines.index("modified: notes.md (6 to 6 bytes, +1/-1)") + 1 :]
    assert shown == ["@@ -1,3 +1,3 @@", "     1  | a", "     2 -| b", "     2 +| B", "     3  | c"]


def test_the_same_change_is_told_again_until_it_is_approved(desk: Desk, peer: Peer) -> None:
    peer.say(body="One.\n2.\n")

    first, second = desk.run("diff", REFUNDS), desk.run("diff", REFUNDS)
    approve(desk, REFUNDS)

    assert (first.code, first.out) == (1, second.out)
    assert desk.run("diff", REFUNDS).code == 0


def test_the_document_has_everything(desk: Desk, peer: Peer) -> None:
    peer.say(files={"notes.md": "a\nb"}, description="Changed. Use when asked.", fields={"license": "MIT"})

    document = desk.run("diff", REFUNDS, "--json").json

    check_document("diff", document)
    files: dict[str, Any] = {file["path"]: file for file in document["files"]}
    assert {path: file["state"] for path, file in files.items()} == {
        "SKILL.md": "modified",
        "notes.md": "modified",
        "scripts/check.sh": "removed",
    }
    assert files["scripts/check.sh"]["script"] is True
    assert files["notes.md"]["lines"]["hunks"][0]["lines"][-1] == {
        "sign": "+",
        "number": 2,
        "text": "b",
        "ended": False,
    }
    names = {field["name"]: field for field in document["frontmatter"]}
    assert names["license"] == {"name": "license", "new": "MIT"}
    assert names["description"]["new"] == "Changed. Use when asked."


@pytest.mark.parametrize("columns", [80, 40])
def test_no_line_of_a_file_can_pass_for_a_heading_another_file_or_the_other_side(
    desk: Desk, peer: Peer, columns: int
) -> None:
    forged = (
        "shop/refunds is the same as approved\n@@ -1,1 +1,1 @@\n--- SKILL.md\n+++ SKILL.md\n"
        "modified: SKILL.md (1 to 1 bytes)\n     1  | nothing to see\r     1 -| gone\n"
        f"{' ' * 31}shop/refunds is the same as approved{' ' * 44}From: the host\n{TERMINAL}\u202ebidi\n"
    )
    name = "a                                                 modified: SKILL.md (0 bytes)"
    peer.say(files={"scripts/check.sh": forged, "notes.md": "a\nb\nc\n", name: "x"})

    with desk.window("diff", REFUNDS, columns=columns, lines=100) as window:
        code = window.wait_for_end()
        shown, raw, title = window.everything, window.raw, window.title

    assert (code, title) == (1, "")
    assert b"\x1b[2J" not in raw and b"\x1b]" not in raw and b"\x9b" not in raw
    assert "\u202e" not in shown
    own = [line for line in shown.split("\n") if line and not GUTTER.match(line)]
    assert sum("changed: " in line for line in own) == 1
    assert not any("same as approved" in line or "the host" in line for line in own)
    assert [line for line in own if line.startswith("@@")] == [line for line in own if "@@" in line]
    assert sum(line.startswith("modified") for line in own) == 1
    assert all(len(line) <= columns for line in shown.split("\n"))


def test_what_looks_the_same_is_spelled_out(desk: Desk, peer: Peer) -> None:
    peer.say(files={"scripts/check.sh": "echo \u043ene \n", "notes.md": "a\r\nb\nc\n"})

    lines = desk.run("diff", REFUNDS).lines

    assert "     1 +| echo <U+043E>ne<U+0020>" in lines
    assert "     1 +| a<U+000D>" in lines


def test_colours_say_nothing_that_signs_do_not_say(desk: Desk, peer: Peer) -> None:
    peer.say(files={"scripts/check.sh": "echo two\n", "notes.md": "a\nb\nc\n"})

    with desk.window("diff", REFUNDS) as window:
        window.wait_for_end()

        assert window.style_of("echo two").fg == "green"
        assert window.style_of("echo one").fg == "red"
        assert "     1 +| echo two" in window.screen
        assert "     1 -| echo one" in window.screen


def test_a_removed_file_is_named(desk: Desk) -> None:
    peer = desk.invite("shop", "reshaped", form="removed")
    approve(desk, REFUNDS)
    peer.say(version=2)

    ended = desk.run("diff", REFUNDS)

    assert (ended.code, ended.lines[0]) == (1, "shop/refunds changed: 1 removed (references/policy.md)")
    assert "     1 -| Refund within 30 days." in ended.lines


def test_a_binary_file_is_named_and_not_shown(desk: Desk, tmp_path: Path) -> None:
    logo = tmp_path / "skills" / "refunds" / "logo.png"
    write_skill(logo.parent, {"logo.png": b"\xff\x00\x1b[2J"})
    desk.serve("team", tmp_path / "skills")
    approve(desk, "team/refunds")
    logo.write_bytes(b"\xff\x00\x1b[2J!")

    ended = desk.run("diff", "team/refunds")

    assert "modified: logo.png (6 to 7 bytes)" in ended.lines
    assert "  not a text file; digests differ" in ended.lines


def test_a_skill_that_was_never_approved_is_read_only_when_that_is_wanted(desk: Desk) -> None:
    peer = desk.invite("shop", "says", files={"scripts/check.sh": "echo one\n"})

    ended, reads = desk.run("diff", REFUNDS), peer.reads()
    full = desk.run("diff", REFUNDS, "--full")

    assert (ended.code, reads) == (1, [])
    assert ended.lines[0].startswith("shop/refunds was never approved: 2 files")
    assert "1 script" in ended.lines[0]
    assert "     1 +| echo one" in full.lines


def test_a_local_skill_has_nothing_to_compare(desk: Desk) -> None:
    write_skill(desk.home / ".agents" / "skills" / "deploy")

    ended = desk.run("diff", "deploy")

    assert ended.code == 0
    assert "local skill" in ended.out


@pytest.mark.requirement("INT-02")
def test_new_bytes_that_break_their_promise_are_not_shown(desk: Desk) -> None:
    peer = desk.invite("shop", "swapped_body")
    said = desk.run("diff", REFUNDS, "--full", "--json").json

    check_document("diff", said)
    [skill_file] = [file for file in said["files"] if file["path"] == "SKILL.md"]
    assert (skill_file["lack"], skill_file["lines"]) == ("refused", None)
    assert skill_file["refusal"]["code"] == "digest-mismatch"
    assert f"{skill_file['path']}" in "".join(peer.reads())


def test_a_server_that_is_away_shows_nothing_to_compare(desk: Desk, tmp_path: Path) -> None:
    write_files(tmp_path / "skills", {"refunds/SKILL.md": "---\nname: refunds\ndescription: x when y\n---\n"})
    desk.serve("team", tmp_path / "skills")
    approve(desk, "team/refunds")
    (tmp_path / "skills").rename(tmp_path / "gone")

    ended = desk.run("diff", "team/refunds", "--json")

    assert ended.code == 1
    check_document("diff", ended.json)
    assert ended.json["error"]["code"] == "server-unavailable"


def test_what_is_not_there_is_an_error_with_the_reason(desk: Desk, peer: Peer) -> None:
    ended = desk.run("diff", "shop/refudns", "--json")

    assert ended.code == 1
    check_document("diff", ended.json)
    assert ended.json["error"]["code"] == "unknown-reference"
    assert "shop/refunds" in ended.json["error"]["message"]
