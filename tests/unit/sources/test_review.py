"""Reviewing a skill's folder: what is read, what is not, and that nothing stops a review."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from folders import skill_md, write_files, write_skill
from skillwire.core.finding import Finding
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE
from skillwire.sources.directory.walk import FoundSkill, Walk
from skillwire.sources.review import ReadSkill, read_skill, review

NOBODY = 65534


def found_in(root: Path, directory: str = "one", *, follow_links: bool = False) -> FoundSkill:
    """Walk `root` and return the one skill at `directory`."""
    walk = Walk(str(root), follow_links).run()
    return next(found for found in walk.skills if found.directory == directory)


def codes(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.file, finding.code) for finding in findings]


@contextmanager
def as_nobody() -> Generator[None]:
    """Give up root's power to read everything, if the tests run as root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.fixture
def open_root() -> Generator[Path]:
    """A folder that any user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_reading_holds_every_file_and_what_may_be_run(root: Path) -> None:
    write_skill(root / "one", {"scripts/run.sh": "#!/bin/sh\n", "a.md": "See run.sh."})
    (root / "one" / "scripts" / "run.sh").chmod(0o744)

    reading = read_skill(str(root), found_in(root))

    assert reading == ReadSkill(
        folder="one",
        files={"SKILL.md": skill_md("one"), "a.md": b"See run.sh.", "scripts/run.sh": b"#!/bin/sh\n"},
        executables=frozenset({"scripts/run.sh"}),
        problems=(),
    )
    assert reading.name == "one"


def test_a_good_skill_has_no_findings(root: Path) -> None:
    write_files(root, {"one/SKILL.md": skill_md("one", body="See [a](a.md).\n"), "one/a.md": "a"})

    assert review(str(root), found_in(root)) == []


@pytest.mark.requirement("FMT-03")
def test_the_root_of_the_walk_goes_by_its_real_name(root: Path) -> None:
    write_skill(root, name="skills")
    (root.parent / "alias").symlink_to("skills")

    findings = review(str(root.parent / "alias"), found_in(root, ""))

    assert findings == []


def test_findings_come_sorted_with_the_walks_problems_among_them(root: Path) -> None:
    write_files(root, {"one/SKILL.md": skill_md("two", body="See [b](b.md) and z.md.\n"), "one/c~": "x"})
    os.mkfifo(root / "one" / "b.fifo")
    (root / "one" / "z.md").symlink_to("/etc/passwd")

    findings = review(str(root), found_in(root))

    assert codes(findings) == [
        ("SKILL.md", "name-differs-from-folder"),
        ("SKILL.md", "broken-link"),
        ("b.fifo", "special-file"),
        ("c~", "generated-file"),
        ("c~", "unlinked-file"),
        ("z.md", "link"),
    ]


@pytest.mark.requirement("READ-10")
def test_a_link_inside_the_skill_counts_as_the_file_it_leads_to(root: Path) -> None:
    write_skill(root / "one", {"references/real.md": "The alias is alias.md."})
    (root / "one" / "alias.md").symlink_to("references/real.md")

    reading = read_skill(str(root), found_in(root))

    assert reading.files["alias.md"] == b"The alias is alias.md."
    assert reading.problems == ()


@pytest.mark.requirement("READ-10")
@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret.md", "gone.md", "."])
def test_a_link_that_leads_elsewhere_is_an_error_and_is_not_followed(root: Path, target: str) -> None:
    write_files(root, {"secret.md": "Secret."})
    write_files(root, {"one/SKILL.md": skill_md("one", body="See [it](references/it.md).\n")})
    (root / "one" / "references").mkdir()
    (root / "one" / "references" / "it.md").symlink_to(target)

    reading = read_skill(str(root), found_in(root))

    assert set(reading.files) == {"SKILL.md"}
    assert codes(reading.findings()) == [("references/it.md", "link")]


@pytest.mark.requirement("READ-10")
def test_a_link_in_the_place_of_a_file_that_was_seen_is_not_followed(root: Path) -> None:
    write_skill(root / "one", {"a.md": "Fine."})
    write_files(root, {"secret.md": "Secret."})
    found = found_in(root)
    (root / "one" / "a.md").unlink()
    (root / "one" / "a.md").symlink_to("../secret.md")

    reading = read_skill(str(root), found)

    assert reading.files["a.md"] == len("Fine.")
    assert codes(list(reading.problems)) == [("a.md", "unsettled")]


def test_a_skill_in_a_linked_folder_is_read_when_links_are_followed(root: Path, tmp_path: Path) -> None:
    write_skill(tmp_path / "elsewhere" / "one", {"a.md": "a"})
    (root / "one").symlink_to(tmp_path / "elsewhere" / "one")
    found = found_in(root, follow_links=True)

    followed = read_skill(str(root), found, follow_links=True)
    refused = read_skill(str(root), found)

    assert (followed.files, followed.problems) == ({"SKILL.md": skill_md("one"), "a.md": b"a"}, ())
    assert codes(list(refused.problems)) == [("SKILL.md", "unsettled"), ("a.md", "unsettled")]


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_a_skill_file_that_is_none_is_not_said_to_be_missing(root: Path, kind: str) -> None:
    (root / "one").mkdir()
    if kind == "fifo":
        os.mkfifo(root / "one" / "SKILL.md")
    else:
        (root / "one" / "SKILL.md").symlink_to("gone.md")

    findings = review(str(root), found_in(root))

    assert codes(findings) == [("SKILL.md", "special-file" if kind == "fifo" else "link")]


@pytest.mark.requirement("LIM-03")
def test_of_a_huge_file_only_the_size_is_used(root: Path) -> None:
    write_skill(root / "one", {"data.bin": b"", "z.md": "See data.bin and z.md."})
    os.truncate(root / "one" / "data.bin", 10 * 2**30)

    reading = read_skill(str(root), found_in(root))

    assert reading.files["data.bin"] == 10 * 2**30
    assert reading.files["z.md"] == b"See data.bin and z.md."
    assert ("", "too-large") in codes(reading.findings())


@pytest.mark.requirement("LIM-03")
def test_a_huge_skill_file_is_not_read_either(root: Path) -> None:
    write_skill(root / "one")
    os.truncate(root / "one" / "SKILL.md", 10 * 2**30)

    reading = read_skill(str(root), found_in(root))

    assert (reading.files, reading.name) == ({"SKILL.md": 10 * 2**30}, "")
    assert codes(reading.findings()) == [("", "too-large")]


def test_files_are_read_while_they_fit_into_the_limit_together(root: Path) -> None:
    rest = MAX_TOTAL_SIZE - len(skill_md("one"))
    write_skill(root / "one", {"a.bin": bytes(rest), "b.bin": b"x", "c.bin": b""})

    reading = read_skill(str(root), found_in(root))

    assert {path: isinstance(content, bytes) for path, content in reading.files.items()} == {
        "SKILL.md": True,
        "a.bin": True,
        "b.bin": False,
        "c.bin": True,
    }


@pytest.mark.requirement("LIM-03")
def test_of_a_skill_with_too_many_files_only_the_skill_file_is_read(root: Path) -> None:
    write_skill(root / "one", {f"{number}.md": "x" for number in range(MAX_FILES)})

    reading = read_skill(str(root), found_in(root))

    assert [path for path, content in reading.files.items() if isinstance(content, bytes)] == ["SKILL.md"]
    assert ("", "too-many-files") in codes(reading.findings())


def test_a_file_that_may_not_be_read_is_an_error(open_root: Path) -> None:
    write_skill(open_root / "one", {"a.md": "See a.md."})
    (open_root / "one" / "a.md").chmod(0)
    found = found_in(open_root)

    with as_nobody():
        findings = review(str(open_root), found)

    assert findings == [
        Finding(
            "unreadable", "it cannot be read: Permission denied", file="a.md", fix="check its permissions"
        )
    ]


def test_a_skill_file_that_may_not_be_read_is_the_only_finding(open_root: Path) -> None:
    write_skill(open_root / "one")
    (open_root / "one" / "SKILL.md").chmod(0)
    found = found_in(open_root)

    with as_nobody():
        findings = review(str(open_root), found)

    assert codes(findings) == [("SKILL.md", "unreadable")]


@pytest.mark.parametrize("change", ["grown", "shrunk", "deleted", "a folder", "a fifo"])
def test_a_file_that_changed_since_the_walk_is_unsettled(root: Path, change: str) -> None:
    write_skill(root / "one", {"a.md": "Before."})
    found = found_in(root)
    file = root / "one" / "a.md"
    if change in ("grown", "shrunk"):
        file.write_text("Before and after." if change == "grown" else "B")
    else:
        file.unlink()
    if change == "a folder":
        file.mkdir()
    elif change == "a fifo":
        os.mkfifo(file)

    reading = read_skill(str(root), found)

    assert codes(list(reading.problems)) == [("a.md", "unsettled")]
    assert reading.files["a.md"] == len("Before.")


def test_a_skill_that_was_deleted_since_the_walk_is_unsettled(root: Path) -> None:
    write_skill(root / "one")
    found = found_in(root)
    shutil.rmtree(root)

    reading = read_skill(str(root), found)

    assert codes(reading.findings()) == [("SKILL.md", "unsettled")]


def test_names_that_are_no_text_are_reviewed_like_any_other(root: Path) -> None:
    write_skill(root / "one", {os.fsdecode(b"bad-\xff.md"): "x", "we\x1b[31mird.md": "x"})

    findings = review(str(root), found_in(root))

    assert [code for _, code in codes(findings) if code != "unlinked-file"] == ["unusable-path"] * 2


@pytest.mark.parametrize("text", [b"", b"\xff\xfe\x00", b"---\n", b"---\n[\n---\n", b"---\nname: 5\n---\n"])
def test_a_skill_file_that_makes_no_sense_has_no_name(root: Path, text: bytes) -> None:
    write_files(root, {"one/SKILL.md": text})

    reading = read_skill(str(root), found_in(root))

    assert reading.name == ""
    assert any(finding.is_error for finding in reading.findings())
