"""What a server may add to its answers: keys that are free, keys that are not, and functions that fail."""

import logging
from typing import Any

import pytest

from skillwire.core import is_unreserved_key
from skillwire.core.entry import SkillEntry
from skillwire.core.skill import Skill
from skillwire.core.yaml12 import JsonValue
from skillwire.server.meta import (
    FORMAT,
    MAX_ADDED,
    Annotate,
    MetaAnnotator,
    Subject,
    frontmatter_meta,
    with_format,
)
from skillwire.wire.core import skill_resource


def entry(**frontmatter: JsonValue) -> SkillEntry:
    named = {key.replace("_", "-"): value for key, value in frontmatter.items()}
    return Skill("tea", description="Use when thirsty.", body="Boil.\n", frontmatter=named).entry()


@pytest.mark.requirement("ASK-04", "META-04")
@pytest.mark.parametrize(
    ("key", "is_free"),
    [
        ("com.example/owner", True),
        ("com.example.team-1/a.b_c-d", True),
        ("skillwire/format", True),
        ("com.example.mcp/x", True),
        ("owner", False),
        ("/owner", False),
        ("com.example/", False),
        ("com..example/x", False),
        ("com.-a/x", False),
        ("com.example/x y", False),
        ("com.example/x\n", False),
        ("io.modelcontextprotocol/serverInfo", False),
        ("io.modelcontextprotocol.skills/license", False),
        ("IO.ModelContextProtocol/x", False),
        ("dev.mcp/x", False),
        ("mcp.dev/x", False),
        ("modelcontextprotocol.io/x", False),
        ("com.mcp.tools/x", False),
    ],
)
def test_a_key_needs_a_prefix_that_is_not_the_protocols(key: str, is_free: bool) -> None:
    assert is_unreserved_key(key) is is_free


@pytest.mark.requirement("ASK-04")
def test_keys_that_are_there_and_keys_that_are_not_free_stay_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes = MetaAnnotator(annotate=lambda _: {"com.example/a": 2, "com.example/b": 3, "progressToken": 4})
    before: dict[str, Any] = {"skills": [], "_meta": {"com.example/a": 1}}

    result = notes.result(before, "skills/list", "")

    assert result["_meta"] == {"com.example/a": 1, "com.example/b": 3}
    [record] = caplog.records
    assert (record.levelno, "progressToken" in record.getMessage()) == (logging.ERROR, True)


def failing(subject: Subject) -> dict[str, JsonValue]:
    raise LookupError(subject.uri)


def no_json(subject: Subject) -> dict[str, JsonValue]:
    values: dict[str, JsonValue] = {"com.example/a": {1, 2}}  # pyright: ignore[reportAssignmentType]
    return values


def too_much(subject: Subject) -> dict[str, JsonValue]:
    return {"com.example/a": "x" * MAX_ADDED}


@pytest.mark.requirement("ASK-04")
@pytest.mark.parametrize("annotate", [failing, no_json, too_much])
def test_a_function_that_fails_costs_no_answer(caplog: pytest.LogCaptureFixture, annotate: Annotate) -> None:
    notes = MetaAnnotator(annotate=annotate)

    assert notes.entry(entry()) == entry()
    assert notes.result({"skills": []}, "skills/list", "") == {"skills": []}
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.ERROR]


@pytest.mark.requirement("ASK-04")
def test_what_an_upstream_said_about_an_entry_is_kept_beside_what_is_added() -> None:
    said = SkillEntry(entry().uri, entry().frontmatter, None, {"_meta": {"org.up/x": 1}, "signature": "s"})
    notes = MetaAnnotator(annotate=lambda subject: {"org.up/x": 2, "com.example/kind": subject.kind})

    noted = notes.entry(said)

    assert noted.extra == {"_meta": {"org.up/x": 1, "com.example/kind": "entry"}, "signature": "s"}
    assert (noted.uri, noted.frontmatter, noted.manifest) == (said.uri, said.frontmatter, said.manifest)


@pytest.mark.requirement("META-03", "ASK-03")
def test_the_mirror_has_every_field_but_those_a_resource_has_anyway() -> None:
    fields: dict[str, JsonValue] = {
        "license": "MIT",
        "metadata": {"a": "b"},
        "odd_field": [1, None, {"x": 2.5}],
    }
    prefix = "io.modelcontextprotocol.skills/"

    skill = entry(**fields)

    assert frontmatter_meta(skill) == {
        f"{prefix}{name}": value
        for name, value in skill.frontmatter.fields.items()
        if name not in ("name", "description")
    }
    assert len(frontmatter_meta(skill)) == 3


@pytest.mark.requirement("META-03")
def test_a_field_that_cannot_be_a_key_is_not_mirrored() -> None:
    skill = entry(**{"two words": 1, "-x": 2, "a/b": 3, "": 4, "é": 5})

    assert frontmatter_meta(skill) == {}


@pytest.mark.requirement("META-03", "ASK-03")
def test_nothing_is_added_to_a_resource_unless_someone_asked() -> None:
    skill = entry(license="MIT")

    assert MetaAnnotator().describe(skill_resource(skill), skill) == skill_resource(skill)


@pytest.mark.requirement("ASK-29")
def test_the_format_is_told_in_the_result_of_a_listing_and_nowhere_else() -> None:
    notes = MetaAnnotator(annotate=with_format)

    listing = notes.result({}, "skills/list", "")

    assert listing["_meta"][FORMAT]["specification"].startswith("https://agentskills.io/")
    assert {"name", "description"} < set(listing["_meta"][FORMAT]["fields"])
    assert notes.result({}, "skills/get", "skill://tea/SKILL.md") == {}
    assert notes.entry(entry()) == entry()


@pytest.mark.requirement("ASK-31")
@pytest.mark.parametrize(
    "media_type", ["text/x-skill", "text/markdown; variant=skill", "text/plain;charset=utf-8"]
)
def test_a_media_type_may_have_parameters(media_type: str) -> None:
    assert MetaAnnotator(media_type=media_type).describe({}, entry())["mimeType"] == media_type


@pytest.mark.requirement("ASK-31")
@pytest.mark.parametrize("media_type", ["markdown", "text/", "text/a b", "text/x\r\nevil: 1", "text/x; y"])
def test_what_is_no_media_type_is_refused_at_once(media_type: str) -> None:
    with pytest.raises(ValueError, match="media type"):
        MetaAnnotator(media_type=media_type)
