"""`skillwire approve` and `revoke` as programs: what a script may agree to, and what ends."""

import shutil
from pathlib import Path

import pytest

from folders import write_files
from terminals import Desk, check_document

SKILL = "---\nname: refunds\ndescription: Use when testing.\n---\n\nDo it.\n"


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    write_files(folder / "refunds", {"SKILL.md": SKILL, "scripts/check.sh": "echo checked\n"})
    return folder


@pytest.fixture
def desk(tmp_path: Path, empty_home: Path, skills: Path) -> Desk:
    desk = Desk(tmp_path / "project", empty_home)
    desk.serve("acme", skills)
    return desk


def binding(desk: Desk) -> str:
    return desk.run("show", "acme/refunds", "--json").json["binding"]


@pytest.mark.requirement("APPR-10", "APPR-05")
def test_a_script_approves_exactly_what_was_reviewed_and_only_what_it_names(desk: Desk) -> None:
    reviewed = binding(desk)

    silent = desk.run("approve", "acme/refunds", "--json", typed=b"y\ny\n")
    blind = desk.run("approve", "acme/refunds", "--yes", "--json")
    nonsense = desk.run("approve", "acme/refunds", "--yes", "--digest", "sha256:abc", "--json")
    approved = desk.run("approve", "acme/refunds", "--yes", "--digest", reviewed, "--json")
    more = desk.run("approve", "acme/refunds", "--grant", "scripts", "--yes", "--digest", reviewed)
    again = desk.run("approve", "acme/refunds", "--json")

    for outcome in (silent, blind, nonsense, approved, again):
        check_document("approve", outcome.json)
    assert (silent.code, silent.json["error"]["code"]) == (1, "approval-required")
    assert (blind.code, blind.json["error"]["code"]) == (2, "misuse")
    assert (nonsense.code, nonsense.json["error"]["code"]) == (2, "misuse")
    assert (approved.code, approved.json["approved"], approved.json["grants"]) == (0, True, ["load"])
    assert (approved.json["standing"], approved.json["approvals"][0]["binding"]) == ("approved", reviewed)
    assert (more.code, more.lines) == (0, ["approved  acme/refunds from MCP server acme (load, scripts)"])
    assert (again.code, again.json["approved"], again.json["grants"]) == (0, False, ["load", "scripts"])


@pytest.mark.requirement("APPR-01", "APPR-02")
def test_what_changed_since_the_review_is_not_approved(desk: Desk, skills: Path) -> None:
    reviewed = binding(desk)
    (skills / "refunds" / "scripts" / "check.sh").write_text("echo other\n")

    refused = desk.run("approve", "acme/refunds", "--yes", "--digest", reviewed, "--json")

    check_document("approve", refused.json)
    assert (refused.code, refused.json["error"]["code"]) == (1, "skill-changed")
    assert binding(desk) in refused.json["error"]["message"]
    assert desk.run("show", "acme/refunds", "--json").json["standing"] == "new"


@pytest.mark.requirement("APPR-04")
def test_of_a_skill_without_digests_nothing_can_be_remembered(tmp_path: Path, empty_home: Path) -> None:
    desk = Desk(tmp_path / "project", empty_home)
    desk.invite("acme", "dynamic")

    shown = desk.run("show", "acme/refunds", "--json").json
    with desk.window("approve", "acme/refunds") as window:
        code = window.wait_for_end()
        screen = window.screen

    check_document("show", shown)
    assert (shown["standing"], shown["binding"], shown["files"]) == ("dynamic", None, None)
    assert code == 1
    assert screen.startswith("error: acme/refunds has no digests, so an approval cannot be bound to its")


def test_what_settings_forbid_is_said_when_it_is_approved(desk: Desk, skills: Path) -> None:
    server = desk.servers["acme"]
    desk.configure("acme", {**server, "skills": {"trust": "never"}})

    approved = desk.run("approve", "acme/refunds", "--yes", "--digest", binding(desk))

    assert approved.code == 0
    assert "warning: it still cannot be loaded: skills of the server acme are never loaded" in approved.err


@pytest.mark.requirement("HOST-05")
def test_a_yes_is_taken_back_without_the_server(desk: Desk, skills: Path) -> None:
    desk.run("approve", "acme/refunds", "--yes", "--digest", binding(desk))
    shutil.move(skills, skills.with_name("gone"))

    revoked = desk.run("revoke", "acme/refunds", "--json")
    unknown = desk.run("revoke", "acme/refunds", "--json")
    shutil.move(skills.with_name("gone"), skills)
    nothing = desk.run("revoke", "acme/refunds", "--json")

    for outcome in (revoked, unknown, nothing):
        check_document("revoke", outcome.json)
    assert revoked.code == 0
    [ended] = revoked.json["revoked"]
    assert (ended["place"], ended["uri"], ended["grants"]) == (
        "machine",
        "skill://refunds/SKILL.md",
        ["load"],
    )
    assert (unknown.code, unknown.json["error"]["code"]) == (1, "unknown-reference")
    assert (nothing.code, nothing.json["revoked"]) == (0, [])
    assert desk.run("show", "acme/refunds", "--json").json["standing"] == "new"


def test_only_what_is_meant_is_said_to_be_revoked(desk: Desk, skills: Path) -> None:
    write_files(skills / "reports", {"SKILL.md": SKILL.replace("refunds", "reports")})
    for reference in ("acme/refunds", "acme/reports"):
        digest = desk.run("show", reference, "--json").json["binding"]
        assert desk.run("approve", reference, "--yes", "--digest", digest).code == 0
    # The other approval ends as well when the server is asked, and not by this command.
    (skills / "reports" / "SKILL.md").write_text(SKILL.replace("refunds", "reports") + "More.\n")

    first = desk.run("revoke", "acme/refunds")
    second = desk.run("revoke", "acme/refunds")

    assert first.lines[0].startswith("revoked  load for skill://refunds/SKILL.md from MCP server acme")
    assert (first.code, len(first.lines)) == (0, 1)
    assert (second.code, second.lines) == (0, ["there was no approval to revoke"])


def test_what_was_taken_back_is_not_said_to_have_changed(desk: Desk) -> None:
    desk.run("approve", "acme/refunds", "--yes", "--digest", binding(desk))
    assert desk.run("lock", "--write").code == 0
    assert desk.run("revoke", "acme/refunds").code == 0

    listed = desk.run("list")
    why = desk.run("why", "acme/refunds")
    diff = desk.run("diff", "acme/refunds")
    document = desk.run("diff", "acme/refunds", "--json").json

    assert listed.lines[0].split("  ")[1] == "not approved"
    assert why.lines[0] == "acme/refunds  can be loaded once you approve it"
    assert "  ok  approval: exactly these files were approved before, but are not now" in why.lines
    assert "  !   approval: granted before, but not any more; the user is asked" in why.lines
    assert "changed" not in why.out
    assert diff.code == 0
    assert diff.lines[0] == "acme/refunds is NOT approved now; its files are those that were approved before"
    check_document("diff", document)
    assert (document["same"], document["approved"]) == (True, False)


@pytest.mark.requirement("APPR-10")
def test_a_frozen_lock_is_the_whole_policy(desk: Desk) -> None:
    (desk.folder / "skills.lock").write_text("version = 1\n")

    for args in (["approve", "acme/refunds"], ["revoke", "acme/refunds"]):
        refused = desk.run(*args, "--frozen", "--json")

        check_document(args[0], refused.json)
        assert (refused.code, refused.json["error"]["code"]) == (1, "refused")
