"""The `exec` dialect: skills with scripts, references and assets, to and from the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import MAX_FINDINGS
from skillwire.core.errors import EXECUTION_FAILED
from skillwire.core.yaml12 import JsonValue
from skillwire.wire.execute import (
    REFERENCE_NOT_FOUND,
    SKILL_NOT_FOUND,
    Annotations,
    ExecFile,
    ExecItem,
    ExecSkill,
    ReferenceContent,
    parse_content,
    parse_item,
    parse_skill,
)
from unit.wire.payloads import ANY_JSON, golden, is_valid

TEA = {"name": "tea", "description": "Make tea. Use when thirsty."}
NEARLY = st.dictionaries(
    st.sampled_from(("title", "keywords", "annotations", "scripts", "references", "assets", "metadata", "x")),
    ANY_JSON
    | st.lists(st.dictionaries(st.sampled_from(("name", "path", "description")), ANY_JSON, max_size=3))
    | st.dictionaries(st.sampled_from(("audience", "priority", "lastModified")), ANY_JSON),
)


@pytest.mark.requirement("EXEC-02", "EXEC-09")
def test_a_listing_is_read_and_written_again_as_it_was() -> None:
    listing = golden("exec-list")

    read = [parse_item(one) for one in listing["skills"]]

    assert [findings for _, findings in read] == [[], []]
    assert [one.to_json() for one, _ in read if one is not None] == listing["skills"]
    assert read[0][0] == ExecItem(
        "chart-maker",
        "Draw charts. Use when numbers should be seen.",
        title="Charts",
        keywords=("plot", "graph"),
        annotations=Annotations(("assistant",), 0.7, "2026-02-03T09:00:00Z"),
    )


@pytest.mark.requirement("EXEC-03")
def test_a_whole_skill_is_read_and_written_again_as_it_was() -> None:
    answer = golden("exec-read")

    skill, findings = parse_skill(answer)

    assert findings == []
    assert skill is not None
    assert {"skill": skill.to_json()} == answer
    assert skill.scripts == (ExecFile("plot.py", "Draws one chart", "scripts/plot.py"),)


@pytest.mark.requirement("EXEC-04")
@pytest.mark.parametrize(
    ("what", "content"), [("text", b"# Styles\n"), ("blob", b"\x89PNG\r\n\x1a\n")], ids=["text", "binary"]
)
def test_a_reference_is_read_and_written_again_as_it_was(what: str, content: bytes) -> None:
    answer = golden(f"exec-reference-{what}")

    reference, findings = parse_content(answer)

    assert findings == []
    assert reference is not None
    assert reference.content == content
    assert {"content": reference.to_json()} == answer


def test_an_empty_file_is_a_file() -> None:
    for key in ("text", "blob"):
        reference, findings = parse_content({"content": {"uri": "skill://tea/a", key: ""}})
        assert (reference, findings) == (ReferenceContent("skill://tea/a", b""), [])


@pytest.mark.requirement("EXEC-07")
def test_the_codes_are_those_of_the_page() -> None:
    assert (SKILL_NOT_FOUND, EXECUTION_FAILED, REFERENCE_NOT_FOUND) == (-32002, -32003, -32004)


@pytest.mark.requirement("EXEC-02")
@pytest.mark.parametrize(
    "value",
    [
        None,
        {"name": "tea"},
        {"description": "d"},
        {**TEA, "name": "Tea"},
        {**TEA, "name": "a/b"},
        {**TEA, "name": "t" * 65},
        {**TEA, "name": "green tea"},
        {**TEA, "description": ""},
        {**TEA, "description": "d" * 1025},
    ],
)
def test_an_item_without_a_usable_name_and_description_is_none(value: object) -> None:
    parsed, findings = parse_item(value)

    assert parsed is None
    assert {(finding.code, finding.rule) for finding in findings} == {("exec-item-invalid", "EXEC-02")}
    assert not is_valid("exec", value, "item")


@pytest.mark.requirement("EXEC-03")
@pytest.mark.parametrize("value", [None, {}, {"skill": []}, {"skill": TEA}, {"skill": {"instructions": "x"}}])
def test_an_answer_that_lacks_what_a_skill_must_have_is_none(value: object) -> None:
    parsed, findings = parse_skill(value)

    assert parsed is None
    assert {finding.code for finding in findings} == {"exec-skill-invalid"}


@pytest.mark.requirement("EXEC-04")
@pytest.mark.parametrize(
    "content",
    [
        None,
        {"text": "x"},
        {"uri": "skill://tea/a"},
        {"uri": "skill://tea/a", "text": "x", "blob": "eA=="},
        {"uri": "skill://tea/a", "text": 1},
        {"uri": "skill://tea/a", "blob": "no base64!"},
        {"uri": "skill://tea/a", "blob": "é"},
    ],
)
def test_a_reference_without_usable_bytes_is_none(content: object) -> None:
    parsed, findings = parse_content({"content": content})

    assert parsed is None
    assert {finding.code for finding in findings} == {"exec-content-invalid"}


@pytest.mark.requirement("EXEC-09")
@pytest.mark.parametrize(
    "annotations",
    [
        {"audience": ["robot"]},
        {"audience": "user"},
        {"priority": 1.1},
        {"priority": -0.1},
        {"priority": True},
        {"priority": "high"},
        {"priority": float("nan")},
        {"lastModified": "yesterday"},
        {"lastModified": "2026-13-01T00:00:00Z"},
        {"lastModified": 5},
    ],
)
def test_a_malformed_annotation_is_left_out_with_a_finding(annotations: dict[str, object]) -> None:
    parsed, findings = parse_item({**TEA, "annotations": annotations})

    assert parsed == ExecItem(TEA["name"], TEA["description"])
    assert [finding.code for finding in findings] == ["exec-annotations-invalid"]


@pytest.mark.requirement("EXEC-09")
@pytest.mark.parametrize("priority", [0, 1, 0.5])
@pytest.mark.parametrize(
    "moment", ["2026-01-15", "2026-01-15T10:30:00Z", "2026-01-15T10:30:00.123456789+02:00"]
)
def test_annotations_within_their_bounds_are_kept(priority: float, moment: str) -> None:
    annotations = {"audience": ["user", "assistant"], "priority": priority, "lastModified": moment}

    parsed, findings = parse_item({**TEA, "annotations": annotations})

    assert findings == []
    assert parsed is not None
    assert parsed.annotations.to_json() == annotations


@pytest.mark.requirement("EXEC-10")
@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "a/../../b", "a//b", "", "a\\b", "a/.", "x" * 3000]
)
def test_a_file_whose_path_does_not_stay_inside_the_skill_is_left_out(path: str) -> None:
    skill = {**TEA, "instructions": "", "references": [{"name": "a", "description": "d", "path": path}]}

    parsed, findings = parse_skill({"skill": skill})

    assert parsed == ExecSkill(TEA["name"], TEA["description"], "")
    assert len(findings) == 1


@pytest.mark.requirement("EXEC-20")
def test_a_file_without_a_description_has_its_name_for_one() -> None:
    skill = {**TEA, "instructions": "", "assets": [{"name": "a.png", "path": "assets/a.png"}]}

    parsed, findings = parse_skill({"skill": skill})

    assert parsed is not None
    assert parsed.assets == (ExecFile("a.png", "a.png", "assets/a.png"),)
    assert [finding.code for finding in findings] == ["exec-field-invalid"]


@given(NEARLY, ANY_JSON)
def test_no_json_is_too_strange_to_be_read(members: dict[str, JsonValue], other: JsonValue) -> None:
    for value in (other, members, {**TEA, **members}):
        item, findings = parse_item(value)
        assert len(findings) <= MAX_FINDINGS
        if item is not None:
            assert is_valid("exec", {**item.to_json(), **dict.fromkeys(item.extra)}, "item") or item.extra
            assert repr(parse_item(item.to_json())[0]) == repr(item)
    for value in (other, {"skill": other}, {"skill": {**TEA, "instructions": "x", **members}}):
        skill, findings = parse_skill(value)
        assert len(findings) <= MAX_FINDINGS
        if skill is not None:
            assert repr(parse_skill({"skill": skill.to_json()})[0]) == repr(skill)
    for value in (other, {"content": other}, {"content": {"uri": "u", "text": other}}):
        reference, _ = parse_content(value)
        if reference is not None:
            assert parse_content({"content": reference.to_json()})[0] == reference
