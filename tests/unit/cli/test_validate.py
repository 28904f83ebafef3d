"""`skillwire validate`: what it says about good, bad and hostile skills, and how it ends."""

import os
import re
from pathlib import Path

import pytest

from commands import Command
from folders import skill_md, write_files, write_skill


@pytest.mark.requirement("TOOL-01")
def test_a_folder_of_good_skills_is_good(here: Path, skillwire: Command) -> None:
    write_skill(here / "skills" / "refunds")
    write_skill(here / "skills" / "acme" / "triage")

    outcome = skillwire("validate", "skills")

    assert (outcome.code, outcome.out, outcome.err) == (0, "2 skills: all good\n", "")


def test_a_folder_may_itself_be_a_skill(here: Path, skillwire: Command) -> None:
    write_skill(here / "refunds")

    outcome = skillwire("validate", "refunds")

    assert (outcome.code, outcome.out) == (0, "1 skill: good\n")


def test_the_current_folder_is_called_by_its_real_name(
    here: Path, skillwire: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_skill(here / "refunds", name="returns"))

    outcome = skillwire("validate", ".")

    assert outcome.lines[1].startswith(
        "  SKILL.md:2: error: the folder is named 'refunds' and the skill 'returns'"
    )


@pytest.mark.requirement("TOOL-01", "FMT-03")
def test_a_finding_is_printed_with_its_place_severity_rule_message_and_fix(
    here: Path, skillwire: Command
) -> None:
    write_skill(here / "skills" / "good")
    write_files(here / "skills", {"bad/SKILL.md": skill_md("Bad", body="See [it](gone.md).\n")})

    outcome = skillwire("validate", "skills/")

    assert outcome.code == 1
    assert outcome.err == ""
    assert outcome.lines == [
        "skills/bad  2 errors, 1 warning",
        "  skills/bad/SKILL.md:2: error: `name` 'Bad' has uppercase letters"
        "; fix: set `name: bad` and rename the folder to match [name-invalid, FMT-03]",
        "  skills/bad/SKILL.md:2: error: the folder is named 'bad' and the skill 'Bad'; the two must be equal"
        "; fix: set `name: bad` [name-differs-from-folder, FMT-03]",
        "  skills/bad/SKILL.md:6: warning: the link to 'gone.md' points to a file the skill does not have"
        "; fix: add 'gone.md', or remove the link [broken-link, FMT-08]",
        "",
        "2 skills: 1 good, 1 with errors; 2 errors, 1 warning",
    ]


@pytest.mark.requirement("TOOL-01")
def test_warnings_fail_only_a_strict_run(here: Path, skillwire: Command) -> None:
    write_files(here, {"one/SKILL.md": skill_md("one", body="See [it](gone.md).\n")})

    lenient, strict = skillwire("validate", "one"), skillwire("validate", "one", "--strict")

    assert (lenient.code, lenient.lines[-1]) == (0, "1 skill: good; 1 warning")
    assert (strict.code, strict.lines[-1]) == (1, "1 skill: 0 good, 1 with warnings; 1 warning")


def test_notes_are_counted_and_shown_only_on_demand(here: Path, skillwire: Command) -> None:
    write_skill(here / "one", {"lonely.md": "Nothing mentions this."})

    short, verbose = skillwire("validate", "one"), skillwire("validate", "one", "-v")

    assert short.lines == ["1 skill: good", "1 note; show it with -v"]
    assert verbose.lines == [
        "one  1 note",
        "  one/lonely.md: note: nothing in SKILL.md or the files it mentions names this file"
        "; fix: link to it from SKILL.md, or remove it [unlinked-file, FMT-08]",
        "",
        "1 skill: good",
    ]


@pytest.mark.requirement("TOOL-01")
def test_json_is_one_document_with_every_finding(here: Path, skillwire: Command) -> None:
    write_skill(here / "good", {"lonely.md": "Nothing mentions this."})
    write_files(here, {"empty/SKILL.md": b"", "lower/skill.md": skill_md("lower")})

    outcome = skillwire("validate", ".", "--json")

    assert (outcome.code, outcome.err, outcome.json["ok"]) == (1, "", False)
    assert [
        (place["path"], place.get("name"), [found["code"] for found in place["findings"]])
        for place in (*outcome.json["skills"], *outcome.json["folders"])
    ] == [
        ("empty", None, ["frontmatter-missing"]),
        ("good", "good", ["unlinked-file"]),
        ("lower", None, ["skill-file-case"]),
    ]
    assert [outcome.json["summary"][what] for what in ("skills", "errors", "notes")] == [2, 2, 1]


@pytest.mark.requirement("FMT-01")
def test_a_folder_without_any_skill_is_a_clear_no(here: Path, skillwire: Command) -> None:
    write_files(here, {"docs/readme.md": "Hello."})

    outcome = skillwire("validate", "docs")

    assert outcome.code == 1
    assert outcome.lines == [
        "docs  1 error",
        "  docs: error: no SKILL.md was found in this folder or below it"
        "; fix: name a folder that holds skills, or create one with `skillwire new NAME`"
        " [skill-file-missing, FMT-01]",
        "",
        "0 skills; 1 error",
    ]


def test_a_folder_without_skills_does_not_hide_the_others(here: Path, skillwire: Command) -> None:
    write_skill(here / "skills" / "one")
    (here / "empty").mkdir()

    outcome = skillwire("validate", "empty", "skills")

    assert (outcome.code, outcome.lines[-1]) == (1, "1 skill: good; 1 error")


@pytest.mark.parametrize("path", ["gone", "file", "loop", "x" * 5000])
def test_a_bad_argument_never_hides_the_others(here: Path, skillwire: Command, path: str) -> None:
    write_skill(here / "one")
    write_skill(here / "two", name="other")
    write_files(here, {"file": b""})
    (here / "loop").symlink_to("loop")

    human = skillwire("validate", path, "one", "two")
    machine = skillwire("validate", path, "one", "two", "--json")

    assert (human.code, machine.code) == (2, 2)
    assert human.lines[-1] == "2 skills: 1 good, 1 with errors; 1 error"
    assert human.err.startswith("error: ")
    assert machine.json["ok"] is False
    assert [skill["path"] for skill in machine.json["skills"]] == ["one", "two"]
    assert [error["code"] for error in machine.json["errors"]] == ["no-such-folder"]


def test_every_bad_argument_gets_its_line(here: Path, skillwire: Command) -> None:
    outcome = skillwire("validate", "gone", "lost")

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == (
        "error: there is no file or folder gone\nfix: check the path\n"
        "error: there is no file or folder lost\nfix: check the path\n"
    )


@pytest.mark.parametrize("file", ["SKILL.md", "references/deep/policy.md"])
def test_a_file_of_a_skill_means_that_skill(here: Path, skillwire: Command, file: str) -> None:
    write_skill(here / "skills" / "one", {"references/deep/policy.md": b"Be kind."}, name="other")
    write_skill(here / "skills" / "two")

    outcome = skillwire("validate", f"skills/one/{file}", "skills/one/SKILL.md", "--json")

    assert outcome.code == 1
    assert [(skill["path"], skill["name"]) for skill in outcome.json["skills"]] == [("skills/one", "other")]


def test_a_skill_file_in_the_wrong_case_is_named_as_such(here: Path, skillwire: Command) -> None:
    write_files(here, {"one/skill.md": skill_md("one")})

    outcome = skillwire("validate", "one/skill.md", "--json")

    assert [item["code"] for item in outcome.json["folders"][0]["findings"]] == ["skill-file-case"]


@pytest.mark.requirement("NAME-02")
def test_skills_that_share_a_name_name_each_other(here: Path, skillwire: Command) -> None:
    write_skill(here / "a" / "refunds")
    write_skill(here / "b" / "refunds")
    write_skill(here / "b" / "other")

    outcome = skillwire("validate", "a", "b")

    assert outcome.code == 0
    assert outcome.lines == [
        "a/refunds  1 warning",
        "  a/refunds/SKILL.md: warning: the name 'refunds' is also used by b/refunds"
        "; fix: rename one of them, or serve them separately [duplicate-name, NAME-02]",
        "",
        "b/refunds  1 warning",
        "  b/refunds/SKILL.md: warning: the name 'refunds' is also used by a/refunds"
        "; fix: rename one of them, or serve them separately [duplicate-name, NAME-02]",
        "",
        "3 skills: all good; 2 warnings",
    ]


@pytest.mark.requirement("NAME-02")
def test_a_name_shared_by_many_names_only_some_of_them(here: Path, skillwire: Command) -> None:
    for place in "abcdef":
        write_skill(here / place / "same")

    outcome = skillwire("validate", ".")

    assert "the name 'same' is also used by b/same, c/same, d/same and 2 more;" in outcome.out


def test_folders_that_overlap_are_looked_at_once(here: Path, skillwire: Command) -> None:
    write_skill(here / "skills" / "team" / "one")
    write_files(here, {"skills/team/lower/skill.md": skill_md("lower")})
    (here / "same").symlink_to("skills")

    outcome = skillwire("validate", "skills", "skills/team", "skills/team/one", "same", "--json")

    assert [skill["path"] for skill in outcome.json["skills"]] == ["skills/team/one"]
    assert [folder["path"] for folder in outcome.json["folders"]] == ["skills/team/lower"]


def test_linked_folders_are_entered_only_on_demand(here: Path, skillwire: Command) -> None:
    write_skill(here / "elsewhere" / "one", {"a.md": "See a.md."})
    (here / "skills").mkdir()
    (here / "skills" / "one").symlink_to("../elsewhere/one")

    left, entered = skillwire("validate", "skills"), skillwire("validate", "skills", "--follow-links", "-v")

    assert (left.code, left.lines[-2:]) == (1, ["0 skills; 1 error", "1 note; show it with -v"])
    assert (entered.code, entered.lines[-1]) == (0, "1 skill: good")


@pytest.mark.requirement("SEC-13")
def test_hidden_text_is_found_and_never_reaches_the_terminal(here: Path, skillwire: Command) -> None:
    body = "Fine\u202e\x1b[31m[red]tags[/red]\U000e0041 :smile:\n"
    write_files(
        here,
        {
            "one/SKILL.md": skill_md("one", body=body),
            "one/we\x1b]0;title\x07ird[bold].md": b"x",
            os.fsdecode(b"one/not-\xff-utf8.md"): b"x",
        },
    )

    human, machine = skillwire("validate", "one"), skillwire("validate", "one", "--json")

    assert human.code == 1
    lines = [re.sub("\ufffd+", "?", line) for line in human.lines if line.startswith("  one/")]
    assert [re.sub(r": (error|warning): .* \[", r" \1 [", line) for line in lines] == [
        "  one/SKILL.md:6 warning [hidden-characters, SEC-13]",
        "  one/SKILL.md:6 warning [terminal-escape, SEC-13]",
        "  one/SKILL.md:6 warning [hidden-characters, SEC-13]",
        "  one/not-?-utf8.md error [unusable-path, URI-10]",
        "  one/we<U+001B>]0;title<U+0007>ird[bold].md error [unusable-path, URI-10]",
    ]
    assert not set(human.out + machine.out) & set("\x1b\x07\u202e\U000e0041\udcff")
    assert {"one/SKILL.md", "one/we\x1b]0;title\x07ird[bold].md"} < {
        item["file"] for item in machine.json["skills"][0]["findings"]
    }


@pytest.mark.requirement("TOOL-01")
def test_files_that_are_none_stop_neither_the_command_nor_the_other_skills(
    here: Path, skillwire: Command
) -> None:
    write_skill(here / "good")
    (here / "fifo").mkdir()
    os.mkfifo(here / "fifo" / "SKILL.md")
    write_skill(here / "huge", {"data.bin": b""})
    os.truncate(here / "huge" / "data.bin", 10 * 2**30)
    write_skill(here / "leak")
    (here / "leak" / "secret.md").symlink_to("/etc/passwd")
    write_files(here, {"latin/SKILL.md": b"---\nname: latin\ndescription: caf\xe9\n---\n"})

    outcome = skillwire("validate", ".", "--json")

    assert {
        skill["path"]: [item["code"] for item in skill["findings"] if item["severity"] == "error"]
        for skill in outcome.json["skills"]
    } == {
        "fifo": ["special-file"],
        "good": [],
        "huge": ["too-large"],
        "latin": ["not-utf8"],
        "leak": ["link"],
    }
    assert outcome.code == 1


def test_a_folder_whose_name_is_no_text_is_named_all_the_same(here: Path, skillwire: Command) -> None:
    write_skill(here / os.fsdecode(b"not-\xff"), name="fine")

    human, machine = skillwire("validate", "."), skillwire("validate", ".", "--json")

    assert human.lines[0] == "not-<U+DCFF>  1 error"
    assert machine.json["skills"][0]["path"] == "not-\ufffd"


def test_a_skill_with_very_many_findings_does_not_flood_the_terminal(here: Path, skillwire: Command) -> None:
    body = "".join(f"[a](gone-{number}.md)\n" for number in range(60))
    write_files(here, {"one/SKILL.md": skill_md("wrong", body=body)})

    outcome = skillwire("validate", "one")

    assert outcome.lines[0] == "one  1 error, 60 warnings"
    assert outcome.lines[1].endswith(" [name-differs-from-folder, FMT-03]")
    assert outcome.lines[-3:] == [
        "  and 11 more; --json shows them all",
        "",
        "1 skill: 0 good, 1 with errors; 1 error, 60 warnings",
    ]


def related(name: str, text: str) -> bytes:
    return skill_md(name, extra=f"metadata:\n  skillwire/{text}\n")


@pytest.mark.requirement("ASK-13")
def test_relations_to_skills_that_are_not_there_and_in_circles_are_warnings(
    here: Path, skillwire: Command
) -> None:
    write_files(
        here / "skills",
        {
            "acme/refunds/SKILL.md": related("refunds", "requires: ledger, gone"),
            "acme/ledger/SKILL.md": related("ledger", "requires: acme/refunds"),
            "tea/SKILL.md": related("tea", "related: ledger"),
        },
    )

    outcome = skillwire("validate", "skills", "--json")

    found = {
        skill["name"]: [(finding["code"], finding["severity"]) for finding in skill["findings"]]
        for skill in outcome.json["skills"]
    }
    assert outcome.code == 0
    assert found == {
        "refunds": [("relation-unknown", "warning"), ("relation-cycle", "warning")],
        "ledger": [("relation-cycle", "warning")],
        "tea": [],
    }
    [cycle] = [skill["findings"][0] for skill in outcome.json["skills"] if skill["name"] == "ledger"]
    assert (cycle["rule"], cycle["file"]) == ("ASK-13", "skills/acme/ledger/SKILL.md")
    assert "skills/acme/refunds" in cycle["message"]


@pytest.mark.requirement("ASK-14")
def test_a_declared_need_that_cannot_be_read_is_a_warning_at_its_line(here: Path, skillwire: Command) -> None:
    write_files(here / "skills", {"tea/SKILL.md": related("tea", "dependencies: kettle (2")})

    outcome = skillwire("validate", "skills", "--json")

    [skill] = outcome.json["skills"]
    assert [(found["code"], found["line"]) for found in skill["findings"]] == [("needs-invalid", 4)]
