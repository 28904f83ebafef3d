"""The `index-april` dialect: entries that strangers wrote, and entries of our own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.finding import Severity
from skillwire.wire.index import SCHEMA, AprilEntry, AprilType, parse_april_entry, schema_findings
from unit.wire.payloads import golden, is_valid

INDEX = golden("index-april-index")

DIGEST = "sha256:" + "a" * 64
ENTRY: dict[str, object] = {
    "name": "tea",
    "type": "skill-md",
    "description": "Use when testing.",
    "url": "skill://tea/SKILL.md",
    "digest": DIGEST,
}
TEMPLATE: dict[str, object] = {
    "type": "mcp-resource-template",
    "description": "One for each product.",
    "url": "skill://docs/{product}/SKILL.md",
}

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from([*ENTRY.values(), *TEMPLATE.values(), *AprilType, "file:///x", "\ud800", "{", "{x}"])
)
json_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
entries = st.dictionaries(st.sampled_from([*ENTRY, "urlTemplate", "x"]), json_values, max_size=7)


def without(*names: str) -> dict[str, object]:
    return {key: value for key, value in ENTRY.items() if key not in names}


@pytest.mark.requirement("DRAFT-02")
@pytest.mark.requirement("DRAFT-04")
@pytest.mark.requirement("NEG-19")
def test_the_golden_index_is_read_and_written_back_as_it_was() -> None:
    for item in INDEX["skills"]:
        entry, findings = parse_april_entry(item)

        assert entry is not None
        assert findings == []
        assert entry.to_json() == item


@pytest.mark.requirement("DRAFT-01")
def test_only_a_known_schema_is_fit_for_use() -> None:
    assert schema_findings(SCHEMA) == []
    for schema in (None, 7, SCHEMA + "x", "\u202e" * 500):
        (finding,) = schema_findings(schema)

        assert (finding.code, finding.severity) == ("index-schema-unknown", Severity.WARNING)
        assert len(finding.message) < 250


@pytest.mark.requirement("DRAFT-02")
def test_an_entry_of_an_unknown_type_is_skipped_with_a_warning() -> None:
    entry, (finding,) = parse_april_entry({**ENTRY, "type": "x"})

    assert entry is None
    assert (finding.code, finding.severity) == ("index-type-unknown", Severity.WARNING)


@pytest.mark.requirement("DRAFT-05")
def test_a_template_has_no_name_and_no_digest() -> None:
    entry, findings = parse_april_entry(TEMPLATE)
    promising, problems = parse_april_entry({**TEMPLATE, "digest": DIGEST})

    assert findings == []
    assert entry == AprilEntry(
        None, AprilType.TEMPLATE, "One for each product.", "skill://docs/{product}/SKILL.md"
    )
    assert promising is None
    assert [finding.code for finding in problems] == ["index-digest-invalid"]


@pytest.mark.requirement("DRAFT-06")
@pytest.mark.parametrize("type_", ["skill-md", "mcp-resource-template"])
def test_url_template_makes_an_entry_a_template(type_: str) -> None:
    older = {"type": type_, "description": "x", "urlTemplate": "skill://docs/{product}/SKILL.md"}

    entry, findings = parse_april_entry(older)

    assert findings == []
    assert entry == AprilEntry(None, AprilType.TEMPLATE, "x", "skill://docs/{product}/SKILL.md")


@pytest.mark.requirement("DRAFT-06")
def test_an_entry_with_both_url_and_url_template_is_skipped() -> None:
    entry, findings = parse_april_entry({**TEMPLATE, "urlTemplate": TEMPLATE["url"]})

    assert entry is None
    assert [finding.code for finding in findings] == ["index-template-invalid"]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        *((value, "index-entry-invalid") for value in (None, 7, without("type"), without("url"))),
        (list[object](), "index-entry-invalid"),
        ({**ENTRY, "type": 7}, "index-entry-invalid"),
        ({**ENTRY, "url": 7}, "index-entry-invalid"),
        pytest.param(without("name"), "name-missing", marks=pytest.mark.requirement("DRAFT-03")),
        ({**ENTRY, "name": "Tea"}, "name-invalid"),
        pytest.param(
            without("description"), "description-missing", marks=pytest.mark.requirement("DRAFT-03")
        ),
        ({**ENTRY, "description": "x" * 1025}, "description-too-long"),
        ({**ENTRY, "url": "file:///tea/SKILL.md"}, "uri-invalid"),
        ({**ENTRY, "url": "skill://tea.zip"}, "uri-invalid"),
        ({**ENTRY, "type": "archive", "url": "data:x"}, "uri-invalid"),
        pytest.param(
            {**ENTRY, "digest": "sha256:1"}, "index-digest-invalid", marks=pytest.mark.requirement("DRAFT-04")
        ),
        ({**TEMPLATE, "url": "skill://tea/SKILL.md"}, "index-template-invalid"),
        ({**TEMPLATE, "url": "skill://{product}"}, "index-template-invalid"),
        ({**TEMPLATE, "url": "skill://{?q}/SKILL.md"}, "index-template-invalid"),
        ({**TEMPLATE, "url": "skill://../{x}/SKILL.md"}, "index-template-invalid"),
    ],
)
def test_what_is_wrong_with_an_entry_makes_it_unusable(value: object, code: str) -> None:
    entry, findings = parse_april_entry(value)

    assert entry is None
    assert code in [finding.code for finding in findings if finding.is_error]


@given(json_values | entries)
def test_no_json_makes_reading_an_entry_fail(value: object) -> None:
    entry, findings = parse_april_entry(value)

    assert (entry is None) == bool(findings)
    assert all(len(finding.message) < 1000 for finding in findings)


@given(entries)
def test_what_is_read_is_what_is_written_and_fits_the_schema(fields: dict[str, object]) -> None:
    entry, _ = parse_april_entry({**ENTRY, **fields})

    if entry is not None:
        assert parse_april_entry(entry.to_json()) == (entry, [])
        plain = AprilEntry(
            None if entry.type is AprilType.TEMPLATE else entry.name,
            *(entry.type, entry.description, entry.url, entry.digest),
        )
        assert is_valid("index-april", {"$schema": SCHEMA, "skills": [plain.to_json()]})
