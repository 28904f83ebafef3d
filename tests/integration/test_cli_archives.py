"""Archives and partial digests on the command line: what is said, and the option that lets them in."""

from pathlib import Path

import pytest

from hostile.catalog import POLICY
from terminals import Desk, check_document

ARCHIVE = "skill://acme/refunds.tar.gz"


@pytest.fixture
def desk(tmp_path: Path, empty_home: Path) -> Desk:
    return Desk(tmp_path / "project", empty_home)


@pytest.mark.requirement("ARC-18")
@pytest.mark.requirement("APPR-08")
def test_archives_are_unpacked_only_with_the_option_and_every_command_says_what_is_covered(
    desk: Desk,
) -> None:
    peer = desk.invite("shop", "packed", form="alone")

    without = desk.run("list", "--json")
    listed = desk.run("list", "--archives", "--json")
    shown = desk.run("show", "shop/refunds", "--archives", "--json")
    text = desk.run("show", "shop/refunds", "--archives").out
    file = desk.run("show", "shop/refunds", "references/policy.md", "--archives")
    never = desk.run("diff", "shop/refunds", "--archives")

    for command, document in (("list", without), ("list", listed), ("show", shown)):
        check_document(command, document.json)
    assert without.json["skills"] == []
    assert [hidden["code"] for hidden in without.json["hidden"]] == ["archives-off"]
    [skill] = listed.json["skills"]
    assert (skill["dialect"], skill["covers"], skill["files"], skill["size"]) == (
        "index-june",
        "archive",
        None,
        None,
    )
    archive = shown.json["archive"]
    assert (archive["uri"], archive["size"], archive["skillFileDigest"]) == (ARCHIVE, None, None)
    assert f"one archive, digest {archive['digest']}; its files are known when it is unpacked" in text
    assert "dialect index-june" in text and ARCHIVE in text and "verified" not in text.lower()
    assert file.out == POLICY.decode() + "v1"
    assert "was never approved: one archive, digest" in never.out

    binding = shown.json["binding"]
    approved = desk.run("approve", "shop/refunds", "--archives", "--yes", "--digest", binding, "--json")
    loaded = desk.run("load", "shop/refunds", "--archives", "--json")
    refused = desk.run("load", "shop/refunds", "--json")
    why = desk.run("why", "shop/refunds", "--archives")

    check_document("approve", approved.json)
    check_document("load", loaded.json)
    assert (approved.code, loaded.code, refused.code, why.code) == (0, 0, 1, 0)
    assert [file["path"] for file in loaded.json["files"]] == ["references/policy.md", "scripts/check.sh"]
    assert "in the dialect index-june" in why.out and "archive: one archive, digest" in why.out

    peer.say(version=2)
    changed = desk.run("diff", "shop/refunds", "--archives", "--json")
    check_document("diff", changed.json)
    assert [file["path"] for file in changed.json["files"]] == ["SKILL.md", "references/policy.md"]
    assert (changed.json["covers"], changed.json["covered"]) == ("archive", "archive")

    kept = desk.run("cache", "list", "--json").json
    cleared = desk.run("cache", "clear", "--yes", "--json").json
    assert kept["files"] >= 4 and cleared["files"] == 0
    assert desk.run("cache", "list", "--json").json["files"] == 0


@pytest.mark.requirement("IDX-10")
def test_a_skill_of_which_only_the_skill_file_has_a_digest_is_shown_as_that(desk: Desk) -> None:
    desk.invite("shop", "packed", form="plain")

    shown = desk.run("show", "shop/refunds", "--json")
    text = desk.run("show", "shop/refunds").out
    file = desk.run("show", "shop/refunds", "references/policy.md")

    check_document("show", shown.json)
    assert (shown.json["covers"], shown.json["totalSize"]) == ("skill-file", None)
    assert [(line["path"], line["size"]) for line in shown.json["files"]] == [("SKILL.md", None)]
    assert "only SKILL.md has a digest; other files are whatever the server sends" in text
    assert "Unverified: no digest covers this file" in file.err


@pytest.mark.requirement("APPR-08")
def test_a_lock_says_what_its_pins_cover(desk: Desk) -> None:
    desk.invite("shop", "packed")
    binding = desk.run("show", "shop/refunds", "--archives", "--json").json["binding"]
    desk.run("approve", "shop/refunds", "--archives", "--yes", "--digest", binding)

    before = desk.run("lock", "--archives")
    written = desk.run("lock", "--write", "--archives", "--json")
    frozen = desk.run("lock", "--frozen", "--archives", "--json")
    other = desk.run("lock", "--frozen", "--json")

    for document in (written, frozen, other):
        check_document("lock", document.json)
    assert "one archive, digest sha256:" in before.out + before.err
    assert [pin["covers"] for pin in written.json["lock"]["skills"]] == ["archive"]
    assert (frozen.code, other.code) == (0, 1)
