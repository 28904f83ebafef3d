"""`skillwire new`: skills that validate from the first minute, created whole or not at all."""

import os
from itertools import chain, combinations
from pathlib import Path

import pytest

from commands import Command, names_in
from folders import write_files
from skillwire.cli.command import AlreadyExistsError, OutputError
from skillwire.cli.new import create
from skillwire.core.frontmatter import parse_skill_md

PARTS = ("references", "scripts", "assets")
CHOICES = [",".join(some) for some in chain.from_iterable(combinations(PARTS, count) for count in range(4))]


@pytest.mark.requirement("FMT-01", "FMT-02", "FMT-03", "FMT-04")
@pytest.mark.parametrize("parts", CHOICES)
def test_a_new_skill_passes_the_strictest_check_without_a_remark(
    here: Path, skillwire: Command, parts: str
) -> None:
    created = skillwire("new", "refunds", "--with", parts)

    checked = skillwire("validate", "refunds", "--strict", "--json")

    assert created.code == 0
    assert checked.code == 0
    assert [skill["findings"] for skill in checked.json["skills"]] == [[]]


def test_a_name_may_be_a_path_below_a_folder_that_does_not_exist_yet(here: Path, skillwire: Command) -> None:
    outcome = skillwire("new", "acme/billing/refunds/", "--dir", "skills", "--with", "scripts")

    assert outcome.code == 0
    assert outcome.lines == [
        "skills/acme/billing/refunds/SKILL.md",
        "skills/acme/billing/refunds/scripts/check.py",
    ]
    assert outcome.err == (
        "Write the instructions in SKILL.md, then run: skillwire validate skills/acme/billing/refunds\n"
    )
    assert os.access(here / "skills/acme/billing/refunds/scripts/check.py", os.X_OK)
    assert names_in(here) == ["skills"]


@pytest.mark.parametrize(
    "description",
    [
        "Pays back: money. Use when it's due.",
        'Quotes " and \\ too. Use when odd.',
        "Größe 你好 👋🏽. Use when – so.",
    ],
)
def test_a_description_is_kept_to_the_letter(here: Path, skillwire: Command, description: str) -> None:
    skillwire("new", "refunds", "--description", description)

    text = (here / "refunds" / "SKILL.md").read_bytes()

    assert parse_skill_md(text).frontmatter.fields == {"name": "refunds", "description": description}
    assert skillwire("validate", "refunds", "--strict").code == 0


@pytest.mark.parametrize("description", ["   ", "x" * 1025, "Use when\x1b[31m", "Use when\u202e", "\udcff"])
def test_a_description_that_breaks_a_rule_is_misuse(here: Path, skillwire: Command, description: str) -> None:
    outcome = skillwire("new", "refunds", "--description", description, "--json")

    assert (outcome.code, outcome.json["error"]["code"]) == (2, "misuse")
    assert names_in(here) == []


@pytest.mark.requirement("FMT-03")
@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("Bad Name", "bad-name"),
        ("refunds!", "refunds"),
        ("acme/Été", "acme/ete"),
        ("x--y", "x-y"),
        ("x" * 65, "x" * 64),
        ("/tmp/x", "tmp/x"),
        ("../x", "my-skill/x"),
        (".hidden/x", "hidden/x"),
        ("a//b", "a/b"),
        ("\x1b[31m", "31m"),
        ("", "my-skill"),
    ],
)
def test_a_bad_name_is_misuse_and_gets_a_better_one_suggested(
    here: Path, skillwire: Command, name: str, better: str
) -> None:
    outcome = skillwire("new", name, "--json")

    assert outcome.code == 2
    assert outcome.json["error"]["fix"] == f"try: skillwire new {better}"
    assert "\x1b" not in outcome.err
    assert names_in(here) == []


def test_an_unknown_part_is_misuse(here: Path, skillwire: Command) -> None:
    outcome = skillwire("new", "refunds", "--with", "references,docs")

    assert outcome.code == 2
    assert outcome.err == (
        "error: --with cannot create 'docs'\nfix: choose from references, scripts or assets\n"
    )


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_what_exists_is_left_alone(here: Path, skillwire: Command, kind: str) -> None:
    if kind == "folder":
        (here / "refunds").mkdir()
    elif kind == "file":
        write_files(here, {"refunds": b"mine"})
    else:
        (here / "refunds").symlink_to("nowhere")
    before = (here / "refunds").lstat()

    outcome = skillwire("new", "refunds", "--json")

    assert (outcome.code, outcome.json["error"]["code"]) == (1, "already-exists")
    assert (here / "refunds").lstat() == before
    assert names_in(here) == ["refunds"]


def test_a_file_in_the_way_of_a_folder_is_a_clear_no(here: Path, skillwire: Command) -> None:
    write_files(here, {"acme": b"mine"})

    outcome = skillwire("new", "acme/refunds", "--json")

    assert (outcome.code, outcome.json["error"]["code"]) == (1, "cannot-write")
    assert names_in(here) == ["acme"]


def test_a_failure_half_way_leaves_nothing_behind(here: Path) -> None:
    files = {"SKILL.md": b"x", "SKILL.md/below-a-file": b"x"}

    with pytest.raises(OutputError):
        create(here / "acme" / "refunds", files)

    assert names_in(here) == []


def test_someone_who_was_faster_keeps_what_they_made(here: Path) -> None:
    create(here / "acme" / "one", {"SKILL.md": b"first"})

    with pytest.raises(AlreadyExistsError):
        create(here / "acme" / "one", {"SKILL.md": b"second"})

    assert (here / "acme" / "one" / "SKILL.md").read_bytes() == b"first"
