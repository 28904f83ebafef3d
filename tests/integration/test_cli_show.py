"""`skillwire show` as a program: everything known of a skill, and its files, without loading it."""

from pathlib import Path

import pytest

from folders import manifest_of, write_files
from skillwire.host.model.approval import binding_of
from terminals import Desk, check_document

SKILL = """---
name: refunds
description: Handles refunds. Use when a customer wants money back.
license: MIT
allowed-tools: Bash(git:*) Read
---

# Refunds
"""
FILES: dict[str, str | bytes] = {
    "SKILL.md": SKILL,
    "references/policy.md": f"a\tb{chr(0x202E)}\n",
    "scripts/check.sh": "echo checked\n",
    "assets/logo.png": b"\x89PNG\r\n\x00\xff",
}


@pytest.fixture
def desk(tmp_path: Path, empty_home: Path) -> Desk:
    write_files(tmp_path / "skills" / "refunds", FILES)
    desk = Desk(tmp_path / "project", empty_home)
    desk.serve("acme", tmp_path / "skills")
    return desk


@pytest.mark.requirement("SEC-12", "HOST-05")
def test_a_skill_is_shown_with_its_origin_first_and_every_file(desk: Desk, tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "skills" / "refunds", "skill://refunds/SKILL.md")
    short = {file.uri: file.digest[7:19] for file in manifest.files}

    plain = desk.run("show", "acme/refunds")
    document = desk.run("show", "acme/refunds", "--json").json

    assert (plain.code, plain.err) == (0, "")
    assert plain.lines == [
        "From: MCP server acme, a name you gave it",
        "Skill: acme/refunds",
        "State: not approved",
        f"Digest of all files: {binding_of(manifest)}",
        "Its address there:",
        "  | skill://refunds/SKILL.md",
        "Description by its author:",
        "  | Handles refunds. Use when a customer wants money back.",
        "More of its frontmatter:",
        "  | license: MIT",
        "! It asks for these tools:",
        "  | Bash(git:*) Read",
        "! Scripts (1): bytes, digest, path:",
        f"  |  13  {short['skill://refunds/scripts/check.sh']}  scripts/check.sh",
        "Other files (4 in all, 174 bytes): bytes, digest, path:",
        f"  | 146  {short['skill://refunds/SKILL.md']}  SKILL.md",
        f"  |   8  {short['skill://refunds/assets/logo.png']}  assets/logo.png",
        f"  |   7  {short['skill://refunds/references/policy.md']}  references/policy.md",
    ]
    check_document("show", document)
    assert (document["standing"], document["attention"], document["approvals"]) == ("new", "normal", [])
    assert document["binding"] == binding_of(manifest)
    assert [(file["uri"], file["digest"], file["size"]) for file in document["files"]] == [
        (file.uri, file.digest, file.size) for file in manifest.files
    ]
    assert [file["path"] for file in document["files"] if file["script"]] == ["scripts/check.sh"]
    assert document["requestedTools"] == "Bash(git:*) Read"


@pytest.mark.requirement("SEC-13")
def test_a_file_is_shown_with_what_hides_in_it_spelled_out_and_binary_ones_only_named(desk: Desk) -> None:
    text = desk.run("show", "acme/refunds", "references/policy.md")
    data = desk.run("show", "acme/refunds", "references/policy.md", "--json").json
    binary = desk.run("show", "acme/refunds", "assets/logo.png")
    unlisted = desk.run("show", "acme/refunds", "../../etc/passwd", "--json")

    assert (text.code, text.out) == (0, "a\tb<U+202E>\n")
    assert "! Characters people cannot see (1; spelled out as <U+…> below): 1 × U+202E" in text.err
    check_document("show", data)
    assert data["content"]["text"] == "a\tb<U+202E>\n"
    assert data["content"]["hidden"] == [
        {"kind": "bidi", "character": "U+202E RIGHT-TO-LEFT OVERRIDE", "line": 1}
    ]
    assert (binary.code, binary.out) == (0, "")
    assert "Size: 8 bytes\nDigest: sha256:" in binary.err
    assert "! Not shown: it is binary\n" in binary.err
    check_document("show", unlisted.json)
    assert (unlisted.code, unlisted.json["error"]["code"]) == (1, "unlisted-file")


def test_a_local_skill_is_shown_with_what_its_author_might_want_to_know(desk: Desk, empty_home: Path) -> None:
    write_files(
        empty_home / ".agents" / "skills" / "notes",
        {"SKILL.md": "---\nname: other\ndescription: Notes.\n---\n[a](gone.md)\n"},
    )

    found = desk.run("show", "other", "--json")

    check_document("show", found.json)
    assert found.json["origin"]["kind"] == "local"
    assert (found.json["standing"], found.json["approvals"]) == ("local", [])
    assert found.json["findings"]


def test_a_skill_nobody_knows_is_one_clear_error(desk: Desk) -> None:
    missing = desk.run("show", "acme/refund", "--json")
    misused = desk.run("show", "--json")

    check_document("show", missing.json)
    assert (missing.code, missing.json["error"]["code"]) == (1, "unknown-reference")
    assert "acme/refunds" in missing.json["error"]["message"]
    assert misused.code == 2
    check_document("show", misused.json)


@pytest.mark.parametrize("columns", [80, 40])
def test_a_terminal_shows_nothing_beyond_its_edge(desk: Desk, columns: int) -> None:
    with desk.window("show", "acme/refunds", columns=columns, lines=60) as shown:
        code = shown.wait_for_end()
        screen = shown.screen
        state = shown.style_of("not approved")

    own = [line for line in screen.split("\n") if not line.startswith("  ")]
    assert code == 0
    assert own[:3] == [
        f"From: MCP server acme, a name you gave{' it' if columns == 80 else ''}",
        "Skill: acme/refunds",
        "State: not approved",
    ]
    assert state.fg == "brown"  # What the emulator calls the terminal's yellow.
