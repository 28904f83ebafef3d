"""`skillwire publish --static`, and what `validate --publish` says before it."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from commands import Command
from folders import skill_md, write_files, write_skill

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
HOME = ".well-known/agent-skills"


def check(schema: str, value: Any) -> None:
    validator: Any = Draft202012Validator(json.loads((SCHEMAS / schema).read_text("utf-8")))
    validator.validate(value)


@pytest.fixture
def skills(here: Path) -> Path:
    write_skill(here / "skills" / "tea")
    write_skill(here / "skills" / "bag", {"a.md": "things"})
    return here / "skills"


@pytest.mark.requirement("TOOL-02")
@pytest.mark.requirement("TOOL-03")
@pytest.mark.requirement("DISC-02")
@pytest.mark.requirement("DISC-14")
def test_a_site_is_written_and_described(here: Path, skills: Path, skillwire: Command) -> None:
    outcome = skillwire("publish", "skills", "--static", "out", "--json")

    assert outcome.code == 0
    check("cli/publish.json", outcome.json)
    index = here / "out" / HOME / "index.json"
    document = json.loads(index.read_bytes())
    check("wire/well-known.json", document)
    assert outcome.json["index"] == f"out/{HOME}/index.json"
    assert outcome.json["digest"] == f"sha256:{hashlib.sha256(index.read_bytes()).hexdigest()}"
    assert [(found["name"], found["type"], found["isNew"]) for found in outcome.json["skills"]] == [
        ("bag", "archive", True),
        ("tea", "skill-md", True),
    ]
    for entry in document["skills"]:
        data = (index.parent / entry["url"]).read_bytes()
        assert entry["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_people_are_told_each_skill_and_what_is_kept_of_earlier_sites(
    here: Path, skills: Path, skillwire: Command
) -> None:
    skillwire("publish", "skills", "--static", "out")
    write_files(skills, {"tea/SKILL.md": skill_md("tea", body="Better.\n")})

    changed = skillwire("publish", "skills", "--static", "out")
    pruned = skillwire("publish", "skills", "--static", "out", "--prune")

    assert [line.split("  ")[:3] for line in changed.lines] == [
        ["bag", "archive", "same"],
        ["tea", "skill-md", "new"],
    ]
    assert changed.err == f"published 2 skills at out/{HOME}/index.json; 1 of earlier sites kept\n"
    assert pruned.err == f"published 2 skills at out/{HOME}/index.json; 1 of earlier sites removed\n"
    assert len(list((here / "out" / HOME).iterdir())) == 3


@pytest.mark.requirement("DISC-14")
@pytest.mark.parametrize(
    ("path", "content", "code"),
    [
        ("bad/SKILL.md", b"no frontmatter\n", "frontmatter-missing"),
        ("bad/SKILL.md", skill_md("other"), "name-differs-from-folder"),
        ("bad/SKILL.md", b"---\nname: bad\n---\n\nDo it.\n", "description-missing"),
        ("more/tea/SKILL.md", skill_md("tea"), "name-not-unique"),
        ("bad/skill.md", b"x", "skill-file-case"),
    ],
)
def test_a_bad_site_is_refused_whole(
    here: Path, skills: Path, skillwire: Command, path: str, content: bytes, code: str
) -> None:
    write_files(skills, {path: content})

    outcome = skillwire("publish", "skills", "--static", "out", "--json")

    assert outcome.code == 1
    check("cli/publish.json", outcome.json)
    assert code in {finding["code"] for finding in outcome.json["error"]["findings"]}
    assert not (here / "out").exists()


@pytest.mark.requirement("DISC-14")
def test_a_skill_inside_another_is_left_out_and_said_so(here: Path, skillwire: Command) -> None:
    write_skill(here / "skills" / "outer")
    write_skill(here / "skills" / "outer" / "inner")

    outcome = skillwire("publish", "skills", "--static", "out", "--json")

    assert outcome.code == 0
    check("cli/publish.json", outcome.json)
    assert [found["name"] for found in outcome.json["skills"]] == ["outer"]
    assert [found["uri"] for found in outcome.json["leftOut"]] == ["skill://outer/inner/SKILL.md"]
    assert "site-left-out" in outcome.err


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["publish", "skills", "--prune"], 2),
        (["publish", "skills", "--static", "out", "--prefix", "acme"], 2),
        (["publish", "skills", "--version", "1.2"], 2),
        (["publish", "skills", "--prefix", "a//b"], 2),
        (["publish", "skills", "--catalog", "skills.db"], 2),
        (["publish", "nowhere", "--static", "out"], 2),
        (["publish", "empty", "--static", "out"], 1),
        (["publish", "skills", "--static", "taken"], 1),
        (["publish", "skills", "--static", "skills/tea/SKILL.md"], 1),
    ],
)
def test_a_call_that_leads_nowhere_writes_nothing(
    here: Path, skills: Path, skillwire: Command, args: list[str], code: int
) -> None:
    (here / "empty").mkdir()
    write_files(here / "taken" / HOME, {"index.json": "{}"})
    before = sorted(here.rglob("*"))

    outcome = skillwire(*args, "--json")

    assert outcome.code == code
    check("cli/publish.json", outcome.json)
    assert sorted(here.rglob("*")) == before


@pytest.mark.requirement("DISC-14")
def test_a_site_that_everyone_may_change_is_warned_about(
    here: Path, skills: Path, skillwire: Command
) -> None:
    skillwire("publish", "skills", "--static", "out")
    (here / "out" / HOME).chmod(0o777)

    outcome = skillwire("publish", "skills", "--static", "out")

    assert outcome.code == 0
    assert outcome.err.startswith(f"warning: every user of this machine may change out/{HOME}\n")


@pytest.mark.requirement("ASK-12")
@pytest.mark.requirement("NAME-02")
def test_names_that_repeat_are_an_error_only_before_publishing(here: Path, skillwire: Command) -> None:
    write_skill(here / "skills" / "a" / "tea")
    write_skill(here / "skills" / "b" / "tea")

    plain = skillwire("validate", "skills", "--json")
    publish = skillwire("validate", "skills", "--publish", "--json")
    allowed = skillwire("validate", "skills", "--publish", "--allow-duplicate-names", "--json")

    assert [outcome.code for outcome in (plain, publish, allowed)] == [0, 1, 0]
    codes = [[skill["findings"][0]["code"] for skill in found.json["skills"]] for found in (plain, publish)]
    assert codes == [["duplicate-name"] * 2, ["name-not-unique"] * 2]
    assert allowed.json == plain.json
    assert skillwire("validate", "skills", "--allow-duplicate-names").code == 2


def test_a_web_site_cannot_be_served_over_stdio(here: Path, skills: Path, skillwire: Command) -> None:
    outcome = skillwire("serve", "skills", "--stdio", "--dialect", "well-known", "--json")

    assert (outcome.code, outcome.json["error"]["code"]) == (2, "misuse")
