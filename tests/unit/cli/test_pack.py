"""`skillwire pack`: reproducible archives, refusals, and files that are written whole or not at all."""

import base64
import hashlib
import os
import stat
import sys
from pathlib import Path

import pytest

from commands import Command, names_in
from folders import write_files, write_skill
from skillwire.cli.app import run
from skillwire.cli.command import OutputError
from skillwire.cli.pack import pack_skill, write_whole
from skillwire.core.archive import unpack
from skillwire.core.errors import InvalidArchiveError
from skillwire.core.finding import Finding
from skillwire.core.media import ArchiveFormat
from skillwire.sources.review import ReadSkill


@pytest.fixture
def skill(here: Path) -> Path:
    folder = write_skill(
        here / "skills" / "refunds", {"scripts/run.sh": "#!/bin/sh\n", "a.md": "See run.sh."}
    )
    (folder / "scripts" / "run.sh").chmod(0o755)
    return folder


@pytest.mark.requirement("TOOL-02", "ASK-22")
def test_a_skill_is_packed_and_described(here: Path, skill: Path, skillwire: Command) -> None:
    outcome = skillwire("pack", "skills/refunds")

    data = (here / "refunds.tar.gz").read_bytes()
    hashed = hashlib.sha256(data)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.lines == [
        "path    refunds.tar.gz",
        f"size    {len(data)} bytes, 3 files, tar.gz",
        f"digest  sha256:{hashed.hexdigest()}",
        f"sri     sha256-{base64.b64encode(hashed.digest()).decode()}",
    ]
    assert [(file.path, file.content, file.executable) for file in unpack(data, ArchiveFormat.TAR_GZ)] == [
        ("SKILL.md", (skill / "SKILL.md").read_bytes(), False),
        ("a.md", b"See run.sh.", False),
        ("scripts/run.sh", b"#!/bin/sh\n", True),
    ]


@pytest.mark.requirement("TOOL-02")
@pytest.mark.parametrize("format", ["tar.gz", "zip"])
def test_the_same_skill_gives_the_same_bytes_wherever_and_whenever(
    here: Path, skill: Path, skillwire: Command, format: str
) -> None:
    copy = write_skill(here / "copy" / "refunds", {"a.md": "See run.sh.", "scripts/run.sh": "#!/bin/sh\n"})
    (copy / "scripts" / "run.sh").chmod(0o700)
    os.utime(copy / "a.md", (0, 0))

    skillwire("pack", skill, "-o", f"one.{format}")
    skillwire("pack", copy, "-o", f"two.{format}")

    assert (here / f"one.{format}").read_bytes() == (here / f"two.{format}").read_bytes()


@pytest.mark.parametrize(("output", "kind"), [("x.zip", "zip"), ("x.tgz", "tar.gz"), ("x.skill", "tar.gz")])
def test_the_name_of_the_file_tells_the_format(
    here: Path, skill: Path, skillwire: Command, output: str, kind: str
) -> None:
    outcome = skillwire("pack", skill, "-o", output, "--json")

    assert (outcome.json["path"], outcome.json["format"]) == (output, kind)
    assert unpack((here / output).read_bytes(), ArchiveFormat(kind))


def test_a_name_that_contradicts_the_format_is_misuse(here: Path, skill: Path, skillwire: Command) -> None:
    outcome = skillwire("pack", skill, "-o", "x.zip", "--format", "tar.gz")

    assert outcome.code == 2
    assert names_in(here) == ["skills"]


def test_a_folder_as_the_output_takes_the_archive_in(here: Path, skill: Path, skillwire: Command) -> None:
    (here / "dist").mkdir()

    outcome = skillwire("pack", skill, "-o", "dist", "--json")

    assert (outcome.code, outcome.json["path"]) == (0, "dist/refunds.tar.gz")


def test_an_existing_file_is_replaced_only_by_force(here: Path, skill: Path, skillwire: Command) -> None:
    write_files(here, {"refunds.tar.gz": b"precious"})

    refused = skillwire("pack", skill, "--json")
    kept = (here / "refunds.tar.gz").read_bytes()
    forced = skillwire("pack", skill, "--force")

    assert (refused.code, refused.json["error"]["code"], kept) == (1, "already-exists", b"precious")
    assert forced.code == 0
    assert unpack((here / "refunds.tar.gz").read_bytes(), ArchiveFormat.TAR_GZ)


def test_force_replaces_what_a_link_leads_to_and_keeps_the_link(
    here: Path, skill: Path, skillwire: Command
) -> None:
    write_files(here, {"v1.tar.gz": b"old"})
    (here / "latest.tar.gz").symlink_to("v1.tar.gz")

    outcome = skillwire("pack", skill, "-o", "latest.tar.gz", "--force")

    assert outcome.code == 0
    assert (here / "latest.tar.gz").is_symlink()
    assert unpack((here / "v1.tar.gz").read_bytes(), ArchiveFormat.TAR_GZ)


def test_even_force_does_not_replace_what_is_no_file(here: Path, skill: Path, skillwire: Command) -> None:
    os.mkfifo(here / "pipe")

    outcome = skillwire("pack", skill, "-o", "pipe", "--force", "--json")

    assert (outcome.code, outcome.json["error"]["code"]) == (1, "already-exists")
    assert stat.S_ISFIFO((here / "pipe").stat().st_mode)


def test_an_archive_is_not_written_into_the_skill_it_holds(
    skill: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(skill)

    outcome = skillwire("pack", ".")

    assert outcome.code == 2
    assert outcome.err == (
        "error: refunds.tar.gz would become part of the skill itself\n"
        "fix: write it somewhere else: -o ../refunds.tar.gz\n"
    )
    assert names_in(skill) == ["SKILL.md", "a.md", "scripts"]


def test_a_folder_that_does_not_exist_cannot_take_an_archive(
    here: Path, skill: Path, skillwire: Command
) -> None:
    outcome = skillwire("pack", skill, "-o", "dist/x.zip", "--json")

    assert (outcome.code, outcome.json["error"]["code"]) == (2, "no-such-folder")
    assert names_in(here) == ["skills"]


@pytest.mark.requirement("TOOL-02")
def test_a_skill_with_errors_is_refused_with_its_findings(here: Path, skillwire: Command) -> None:
    write_files(here, {"bad/SKILL.md": b""})

    human, machine = skillwire("pack", "bad"), skillwire("pack", "bad", "--json")

    assert (human.code, human.out) == (1, "")
    assert human.err.splitlines() == [
        "bad  1 error",
        "  bad/SKILL.md:1: error: the file is empty"
        "; fix: start it with frontmatter that holds `name` and `description` [frontmatter-missing, FMT-02]",
        "",
        "error: bad has 1 error, so it is not packed",
        "fix: correct the errors and try again",
    ]
    assert machine.json["error"]["code"] == "invalid-skill"
    assert [found["file"] for found in machine.json["error"]["findings"]] == ["bad/SKILL.md"]
    assert names_in(here) == ["bad"]


def test_warnings_are_mentioned_and_no_obstacle(here: Path, skillwire: Command) -> None:
    write_skill(here / "one", {"run.pyc": b"\0"})

    outcome = skillwire("pack", "one")

    assert (outcome.code, outcome.err) == (0, "1 warning; see it with: skillwire validate one\n")


def test_a_folder_of_skills_is_refused_with_a_suggestion(here: Path, skill: Path, skillwire: Command) -> None:
    outcome = skillwire("pack", "skills")

    assert outcome.code == 1
    assert outcome.err == "error: there is no SKILL.md in skills\nfix: name one skill: skills/refunds\n"


def test_a_folder_named_skill_md_is_no_skill(here: Path, skillwire: Command) -> None:
    (here / "odd" / "SKILL.md").mkdir(parents=True)

    outcome = skillwire("pack", "odd", "--json")

    assert (outcome.code, outcome.json["error"]["code"]) == (1, "no-skill")


def test_a_skill_that_unpacking_would_refuse_is_refused(here: Path, skillwire: Command) -> None:
    deep = "/".join("abcdefghijklmnopqrst")
    write_skill(here / "one", {f"{deep}/x.md": "x"})

    outcome = skillwire("pack", "one", "--json")

    assert (outcome.code, outcome.json["error"]["code"]) == (1, "over-limit")
    assert names_in(here) == ["one"]


def test_the_archive_can_go_to_standard_output(
    skill: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    code = run(["pack", str(skill), "-o", "-"])

    captured = capfdbinary.readouterr()
    assert code == 0
    assert len(unpack(captured.out, ArchiveFormat.TAR_GZ)) == 3
    assert captured.err.splitlines()[0] == b"path    -"


def test_the_archive_and_json_do_not_share_standard_output(skill: Path, skillwire: Command) -> None:
    outcome = skillwire("pack", skill, "-o", "-", "--json")

    assert (outcome.code, outcome.json["error"]["code"]) == (2, "misuse")


def test_a_terminal_gets_no_archive(skill: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    outcome = skillwire("pack", skill, "-o", "-")

    assert (outcome.code, outcome.out) == (2, "")


def test_a_failed_write_leaves_nothing_behind(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(OutputError):
        write_whole(here / "x.zip", b"data")

    assert names_in(here) == []


def test_a_written_file_has_the_permissions_of_any_other(here: Path) -> None:
    (here / "plain").write_bytes(b"")

    write_whole(here / "x.zip", b"data")

    assert (here / "x.zip").stat().st_mode == (here / "plain").stat().st_mode
    assert names_in(here) == ["plain", "x.zip"]


def test_a_file_that_was_not_read_whole_is_not_packed() -> None:
    problem = Finding("unsettled", "it changed while it was read", file="a.md")
    reading = ReadSkill("one", {"SKILL.md": b"x", "a.md": 5}, frozenset(), (problem,))

    with pytest.raises(InvalidArchiveError):
        pack_skill(reading, ArchiveFormat.ZIP)
