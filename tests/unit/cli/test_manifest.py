"""`skillwire manifest`: the entries a server would publish, and what it would hold back."""

import hashlib
import io
import os
import re
import sys
import tracemalloc
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import orjson
import pytest

from commands import Command
from folders import skill_md, write_files, write_skill
from skillwire.cli import manifest
from skillwire.cli.command import Output
from skillwire.core.skill import Skill


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.mark.requirement("TOOL-02")
def test_people_see_uri_name_description_files_and_limits(here: Path, skillwire: Command) -> None:
    write_skill(here / "skills" / "refunds", {"references/policy.md": b"No."})
    text = skill_md("refunds")

    outcome = skillwire("manifest", "skills")

    assert outcome.code == 0
    assert outcome.lines == [
        "skill://refunds/SKILL.md",
        "  refunds",
        "  Use when testing refunds.",
        f"  SKILL.md              {len(text)}  {digest(text)}",
        f"  references/policy.md   3  {digest(b'No.')}",
        f"  2 files (limit 512), {len(text) + 3} bytes (limit 16,777,216)",
        "",
        "1 skill to publish",
    ]


def test_a_prefix_goes_before_every_path(here: Path, skillwire: Command) -> None:
    write_skill(here / "one")

    outcome = skillwire("manifest", ".", "--prefix", "/acme/tools/", "--json")

    assert [skill["uri"] for skill in outcome.json["skills"]] == ["skill://acme/tools/one/SKILL.md"]


@pytest.mark.parametrize("prefix", ["../up", "a//b", "a\x1bb"])
def test_a_prefix_that_cannot_be_part_of_a_uri_is_misuse(here: Path, skillwire: Command, prefix: str) -> None:
    write_skill(here / "one")

    outcome = skillwire("manifest", ".", "--prefix", prefix, "--json")

    assert (outcome.code, outcome.json["error"]["code"]) == (2, "misuse")
    assert "\x1b" not in outcome.out + outcome.err


@pytest.mark.requirement("TOOL-02")
def test_what_cannot_be_published_is_named_and_the_rest_is_printed(here: Path, skillwire: Command) -> None:
    write_skill(here / "skills" / "good")
    write_files(here, {"skills/bad/SKILL.md": b""})

    human, machine = skillwire("manifest", "skills"), skillwire("manifest", "skills", "--json")

    assert (human.code, machine.code) == (1, 1)
    assert human.lines[-4:] == [
        "not published: skills/bad  1 error",
        "  skills/bad/SKILL.md:1: error: the file is empty"
        "; fix: start it with frontmatter that holds `name` and `description` [frontmatter-missing, FMT-02]",
        "",
        "1 skill to publish, 1 not published",
    ]
    assert [skill["uri"] for skill in machine.json["skills"]] == ["skill://good/SKILL.md"]
    assert [
        (item["place"], [found["code"] for found in item["findings"]]) for item in machine.json["quarantined"]
    ] == [("skills/bad", ["frontmatter-missing"])]


def test_remarks_about_what_is_published_go_to_standard_error(here: Path, skillwire: Command) -> None:
    write_files(here, {"skills/one/SKILL.md": skill_md("one", extra="license: 5\n")})

    outcome = skillwire("manifest", "skills")

    assert outcome.code == 0
    assert outcome.lines[-1] == "1 skill to publish"
    assert outcome.err.splitlines() == [
        "skills/one  1 warning",
        "  skills/one/SKILL.md: warning: `license` is not a string"
        "; fix: put it in quotes [license-invalid, FMT-05]",
        "",
    ]


def test_a_linked_folder_is_a_remark_and_no_reason_to_fail(here: Path, skillwire: Command) -> None:
    write_skill(here / "skills" / "one")
    write_skill(here / "elsewhere" / "two")
    (here / "skills" / "two").symlink_to("../elsewhere/two")

    left, entered = (
        skillwire("manifest", "skills", "--json"),
        skillwire("manifest", "skills", "--follow-links", "--json"),
    )

    assert (left.code, [skill["uri"] for skill in left.json["skills"]]) == (0, ["skill://one/SKILL.md"])
    assert (entered.code, [skill["uri"] for skill in entered.json["skills"]]) == (
        0,
        ["skill://one/SKILL.md", "skill://two/SKILL.md"],
    )


def test_a_folder_without_skills_is_a_clear_no(here: Path, skillwire: Command) -> None:
    (here / "empty").mkdir()

    outcome = skillwire("manifest", "empty", "--json")

    assert outcome.code == 1
    assert outcome.json == {
        "schema": "skillwire/manifest/1",
        "error": {
            "code": "no-skill",
            "message": "no SKILL.md was found in empty or below it",
            "fix": "name a folder that holds skills",
        },
    }


@pytest.mark.requirement("SEC-13")
def test_a_description_can_neither_colour_nor_break_the_line(here: Path, skillwire: Command) -> None:
    text = b'---\nname: one\ndescription: "Use when\\e[31m\\n[bold]you \\u202e can"\n---\n\nDo it.\n'
    write_files(here, {"one/SKILL.md": text})

    human, machine = skillwire("manifest", "one"), skillwire("manifest", "one", "--json")

    assert human.lines[2] == "  Use when<U+001B>[31m [bold]you <U+202E> can"
    assert machine.json["skills"][0]["frontmatter"]["description"] == "Use when\x1b[31m\n[bold]you \u202e can"
    assert "\\u202e" in machine.out


def test_a_skill_that_is_still_being_written_is_held_back(
    here: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_PAUSE", 0)
    write_skill(here / "skills" / "good")
    write_skill(here / "skills" / "busy")
    real_read = os.read

    def read_while_it_grows(descriptor: int, size: int) -> bytes:
        content = real_read(descriptor, size)
        if b"busy" in content:
            with (here / "skills" / "busy" / "SKILL.md").open("ab") as file:
                file.write(b"More.\n")
        return content

    monkeypatch.setattr(os, "read", read_while_it_grows)

    outcome = skillwire("manifest", "skills", "--json")

    assert outcome.code == 1
    assert [skill["uri"] for skill in outcome.json["skills"]] == ["skill://good/SKILL.md"]
    assert [
        (item["place"], [found["code"] for found in item["findings"]]) for item in outcome.json["quarantined"]
    ] == [("skills/busy", ["unsettled"])]


def test_a_terminal_gets_each_file_on_one_line(
    here: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    long = "references/a-name-that-does-not-fit-into-the-line.md"
    text = skill_md("one").replace(b"testing one", b"testing one, and " + b"so on, " * 20)
    write_files(here, {"one/SKILL.md": text, f"one/{long}": b"x" * 1234, "one/你好.md": b"x"})

    outcome = skillwire("manifest", "one")

    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in outcome.lines]
    assert max(map(len, lines)) <= 60
    assert lines[2] == "  Use when testing one, and so on, so on, so on, so on, so…"
    assert lines[3:6] == [
        f"  你好.md                            1  {digest(b'x')[:19]}…",
        f"  SKILL.md                         209  {digest(text)[:19]}…",
        f"  …oes-not-fit-into-the-line.md  1,234  {digest(b'x' * 1234)[:19]}…",
    ]


def test_a_wide_terminal_gets_the_whole_digest(
    here: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    write_skill(here / "one")

    outcome = skillwire("manifest", "one")

    assert f"  SKILL.md  {len(skill_md('one'))}  {digest(skill_md('one'))}" in outcome.lines


@pytest.mark.requirement("ASK-10")
def test_lines_hold_one_core_entry_each_in_the_order_of_uris(here: Path, skillwire: Command) -> None:
    write_skill(here / "skills" / "tea", {"references/a.md": "# A\n"})
    write_files(
        here / "skills", {"acme/refunds/SKILL.md": skill_md("refunds", extra='license: "a\\u2028b"\n')}
    )

    outcome, document = skillwire("manifest", "skills", "--lines"), skillwire("manifest", "skills", "--json")

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.endswith("}\n")
    assert [orjson.loads(line) for line in outcome.out.split("\n")[:-1]] == document.json["skills"]


@pytest.mark.requirement("ASK-10")
def test_what_is_not_published_is_told_beside_the_lines(here: Path, skillwire: Command) -> None:
    write_skill(here / "skills" / "tea")
    write_files(here / "skills", {"broken/SKILL.md": "no frontmatter"})

    outcome = skillwire("manifest", "skills", "--lines")

    assert outcome.code == 1
    assert [orjson.loads(line)["uri"] for line in outcome.lines] == ["skill://tea/SKILL.md"]
    assert "not published: skills/broken" in outcome.err


@pytest.mark.requirement("ASK-10")
def test_lines_and_one_document_exclude_each_other(here: Path, skillwire: Command) -> None:
    write_skill(here / "skills" / "tea")

    outcome = skillwire("manifest", "skills", "--lines", "--json")

    assert outcome.code == 2
    assert outcome.json["error"]["code"] == "misuse"


@pytest.mark.requirement("ASK-10")
def test_thousands_of_entries_are_written_without_being_held_together() -> None:
    count = 5_000
    entry = Skill("tea", description="Use when thirsty.", body="Boil.\n" * 50).entry().to_json()
    lines = Counting()
    answer = Output("manifest", json=False, verbose=False)

    tracemalloc.start()
    try:
        with redirect_stdout(io.TextIOWrapper(io.BufferedWriter(lines))):
            answer.lines({**entry, "uri": f"skill://tea-{number}/SKILL.md"} for number in range(count))
            sys.stdout.flush()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert lines.count == count
    assert lines.size > 1_000_000 > 4 * peak


class Counting(io.RawIOBase):
    """Takes bytes, counts them and the lines, and forgets them."""

    def __init__(self) -> None:
        self.size = self.count = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        taken = bytes(data)
        self.size += len(taken)
        self.count += taken.count(b"\n")
        return len(taken)
