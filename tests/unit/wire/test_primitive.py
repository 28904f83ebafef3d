"""The `primitive` dialect: skills by name, to and from the wire."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skillwire.core import MAX_FINDINGS, MAX_ITEMS, MAX_TEXT, SkillArgument
from skillwire.core.yaml12 import JsonValue
from skillwire.wire.by_name import (
    MAX_NAME,
    PrimitiveFile,
    PrimitiveItem,
    SkillDefinition,
    SkillDependencies,
    parse_definition,
    parse_item,
)
from unit.wire.payloads import ANY_JSON, golden, is_valid

FIELDS = ("name", "title", "description", "version", "tags", "icons", "arguments", "dependencies", "_meta")
NEARLY = st.dictionaries(
    st.sampled_from((*FIELDS, "instructions", "files", "uri", "tools", "prompts", "resources", "required")),
    ANY_JSON
    | st.lists(st.dictionaries(st.sampled_from(("name", "uri", "title", "x")), ANY_JSON, max_size=3)),
)


def item(value: object) -> PrimitiveItem:
    parsed, findings = parse_item(value)
    assert parsed is not None
    assert findings == []
    return parsed


def codes(value: object) -> list[str]:
    return [finding.code for finding in parse_item(value)[1]]


@pytest.mark.requirement("P2076-02", "NEG-19")
def test_a_listing_is_read_and_written_again_as_it_was() -> None:
    listing = golden("primitive-list")

    read = [item(one) for one in listing["skills"]]

    assert [one.to_json() for one in read] == listing["skills"]
    assert read[0] == PrimitiveItem(
        "invoice-fill",
        title="Invoice filling",
        description="Fill in invoices. Use when a customer asks for one.",
        version="1.2.0",
        tags=("finance", "pdf"),
        icons=({"src": "https://example.com/invoice.png", "mimeType": "image/png"},),
        arguments=(
            SkillArgument("region", "Region", "Whose tax rules apply.", required=True),
            SkillArgument("currency"),
        ),
        dependencies=SkillDependencies(("open_doc",), ("greet",), ("file:///invoices/{year}.csv",)),
        meta={"example.com/rank": 3},
    )


@pytest.mark.requirement("P2076-03", "P2076-06")
def test_a_whole_skill_is_read_and_written_again_as_it_was() -> None:
    answer = golden("primitive-get")

    definition, findings = parse_definition({**answer, "resultType": "complete", "ttlMs": 1})

    assert findings == []
    assert definition is not None
    assert definition.to_json() == answer
    assert definition.files[1] == PrimitiveFile("assets/form.pdf", "skill://invoice-fill/assets/form.pdf")


@pytest.mark.requirement("P2076-02", "NEG-19")
def test_members_this_version_does_not_know_are_passed_on() -> None:
    assert item({"name": "tea", "rank": [1]}).to_json() == {"name": "tea", "rank": [1]}
    definition, _ = parse_definition({"instructions": "", "rank": [1]})
    assert definition == SkillDefinition("", extra={"rank": [1]})


@pytest.mark.requirement("P2076-02")
@pytest.mark.parametrize(
    "value",
    [None, [], "tea", {}, {"name": None}, {"name": ""}, {"name": 7}, {"name": "x" * (MAX_NAME + 1)}],
)
def test_an_item_without_a_usable_name_is_none(value: object) -> None:
    parsed, findings = parse_item(value)

    assert parsed is None
    assert [(finding.code, finding.rule) for finding in findings] == [("primitive-item-invalid", "P2076-02")]
    assert not is_valid("primitive", value, "item")


@pytest.mark.requirement("P2076-03")
@pytest.mark.parametrize("value", [None, {}, {"instructions": 1}, {"instructions": "half \ud800"}])
def test_an_answer_without_usable_instructions_is_none(value: object) -> None:
    parsed, findings = parse_definition(value)

    assert parsed is None
    assert [finding.code for finding in findings] == ["primitive-skill-invalid"]


@pytest.mark.requirement("P2076-02")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", 1),
        ("description", "x" * (MAX_TEXT + 1)),
        ("version", 1.0),
        ("tags", "a b"),
        ("tags", [1]),
        ("icons", ["x"]),
        ("arguments", {}),
        ("arguments", [{"title": "nameless"}]),
        ("arguments", [{"name": ""}]),
        ("dependencies", []),
        ("dependencies", {"tools": "x"}),
        ("dependencies", {"prompts": ["greet"]}),
        ("dependencies", {"resources": [{"type": "ref/resource"}]}),
        ("_meta", []),
    ],
)
def test_a_malformed_optional_member_is_left_out_with_a_finding(field: str, value: object) -> None:
    parsed, findings = parse_item({"name": "tea", field: value})

    assert parsed == PrimitiveItem("tea")
    assert [finding.code for finding in findings] == ["primitive-field-invalid"]
    assert not is_valid("primitive", {"name": "tea", field: value}, "item")


def test_of_two_arguments_with_one_name_the_first_is_used() -> None:
    parsed, findings = parse_item({"name": "tea", "arguments": [{"name": "a", "title": "A"}, {"name": "a"}]})

    assert parsed == PrimitiveItem("tea", arguments=(SkillArgument("a", "A"),))
    assert [finding.code for finding in findings] == ["primitive-field-invalid"]


def test_endless_lists_are_cut_and_their_mistakes_too() -> None:
    parsed, findings = parse_item({"name": "tea", "tags": ["t"] * 10_000, "icons": [1] * 10_000})

    assert parsed is not None
    assert len(parsed.tags) == MAX_ITEMS
    assert len(findings) == MAX_FINDINGS


def test_a_finding_quotes_little_and_nothing_that_a_terminal_obeys() -> None:
    _, findings = parse_item({"name": "\x1b[31m" + "x" * 5000})

    assert len(findings[0].message) < 200
    assert "\x1b" not in findings[0].message


CORE_MEMBERS = ("uri", "frontmatter", "resources")


@given(ANY_JSON | NEARLY)
@example({"name": "tea", "resources": None})
def test_no_json_is_too_strange_to_be_read(value: JsonValue) -> None:
    parsed, findings = parse_item(value)
    definition, remarks = parse_definition(value)

    assert len(findings) <= MAX_FINDINGS
    assert len(remarks) <= MAX_FINDINGS
    if parsed is None:
        assert [finding.code for finding in findings] == ["primitive-item-invalid"]
    else:
        again, _ = parse_item(parsed.to_json())
        assert repr(again) == repr(parsed)  # NaN differs from itself
        # Members of `core` that a stranger put beside them are kept, whatever they hold.
        own = {name: value for name, value in parsed.to_json().items() if name not in CORE_MEMBERS}
        assert is_valid("primitive", own, "item")
    if definition is not None:
        again, _ = parse_definition(definition.to_json())
        assert repr(again) == repr(definition)
