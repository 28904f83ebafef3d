"""The rules for frontmatter fields: names, lengths and types, at and beyond each boundary."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.core.fields import field_findings, is_name, no_line, published_findings, suggest_name
from skillwire.core.finding import Finding, Severity
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.yaml12 import JsonValue

properties = settings(deadline=None, max_examples=60)

GOOD: dict[str, JsonValue] = {"name": "demo", "description": "Does things. Use when asked."}

VALID_NAMES = [
    "a",
    "0",
    "pdf-processing",
    "data-analysis",
    "a-b-c",
    "1-2",
    "123",
    "0x1f",
    "null",
    "a" * 64,
    "a-" * 31 + "ab",
]

INVALID_NAMES = [
    *("PDF-Processing", "A", "-pdf", "pdf-", "-", "--", "pdf--processing", "a" * 65, "a-" * 32 + "ab"),
    *"a_b a.b a/b ../a . .. a%20b a:b @a/b".split(),
    *("a b", " a", "a ", "a\\b", "a\n", "\na", "a\0"),
    *("é-", "-é", "é--é", "É", "ﬁ", "e\u0301", "²", "a\u200bb", "Straße", "é" * 65, "a b é", "😀", "\u202ea"),
]

LOCAL_NAMES = ["é", "café", "straße", "日本語", "данные-2", "a-é", "é" * 64]


@pytest.mark.requirement("FMT-03")
@pytest.mark.parametrize("name", VALID_NAMES)
def test_a_name_of_lowercase_letters_digits_and_single_hyphens_is_fine(name: str) -> None:
    assert is_name(name)
    assert findings(name=name) == []


@pytest.mark.requirement("FMT-03")
@pytest.mark.parametrize("name", INVALID_NAMES)
def test_any_other_name_is_an_error_with_a_name_to_use_instead(name: str) -> None:
    found = findings(name=name)

    assert [(finding.code, finding.rule, finding.severity) for finding in found] == [
        ("name-invalid", "FMT-03", Severity.ERROR)
    ]
    assert f"`name: {suggest_name(name)}`" in found[0].fix
    assert not is_name(name)


@pytest.mark.requirement("OPEN-02")
@pytest.mark.parametrize("name", LOCAL_NAMES)
def test_a_name_beyond_ascii_is_a_warning_in_a_folder_and_an_error_over_mcp(name: str) -> None:
    frontmatter = Frontmatter({**GOOD, "name": name})

    local, published = field_findings(frontmatter), published_findings(frontmatter)

    assert [(finding.code, finding.severity) for finding in local] == [("name-unicode", Severity.WARNING)]
    assert [(finding.code, finding.severity) for finding in published] == [("name-invalid", Severity.ERROR)]


@pytest.mark.requirement("FMT-02")
@pytest.mark.parametrize("value", [None, ""])
def test_an_empty_name_counts_as_missing(value: JsonValue) -> None:
    absent = field_findings(Frontmatter({"description": GOOD["description"]}))

    present = findings(name=value)

    assert codes(absent) == codes(present) == ["name-missing"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("PDF Processing", "pdf-processing"),
        ("--a__b--", "a-b"),
        ("Café Münster", "cafe-munster"),
        ("日本語", "my-skill"),
        ("", "my-skill"),
        ("x" * 63 + "-y", "x" * 63),
    ],
)
def test_the_suggested_name_is_the_nearest_valid_one(text: str, name: str) -> None:
    assert suggest_name(text) == name


@properties
@given(st.text())
def test_a_suggested_name_is_always_valid_and_a_valid_name_is_its_own_suggestion(text: str) -> None:
    suggested = suggest_name(text)

    assert is_name(suggested)
    assert suggest_name(suggested) == suggested


@pytest.mark.requirement("FMT-04")
@pytest.mark.parametrize("character", ["x", "é", "日", "😀"])
def test_a_description_has_at_most_1024_characters_whatever_their_bytes(character: str) -> None:
    fits = "Use when " + character * 1015
    assert len(fits) == 1024

    assert findings(description=fits) == []
    assert codes(findings(description=fits + character)) == ["description-too-long"]


@pytest.mark.requirement("FMT-02")
@pytest.mark.parametrize("value", [None, "", " ", "\n\t ", "\u00a0", 0, 7, False, True, [], ["text"], {}])
def test_a_description_that_says_nothing_or_is_no_string_counts_as_missing(value: JsonValue) -> None:
    absent = field_findings(Frontmatter({"name": "demo"}))

    present = findings(description=value)

    assert codes(absent) == codes(present) == ["description-missing"]


def test_the_finding_tells_an_empty_description_from_one_of_another_type() -> None:
    empty, blank, number = (findings(description=value)[0].message for value in ("", "   ", 7))

    assert empty == blank != number


@pytest.mark.requirement("FMT-04")
@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("Helps with PDFs.", ["description-vague"]),
        ("Extracts text. Use when the user mentions PDFs.", []),
        ("Whenever a release is cut, tags it.", []),
        ("Run this before committing.", []),
        ("Formatter", ["description-vague"]),
    ],
)
def test_a_description_ought_to_say_when_to_use_the_skill(description: str, expected: list[str]) -> None:
    assert codes(findings(description=description)) == expected


@pytest.mark.requirement("FMT-05")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("x", []), ("x" * 500, []), ("😀" * 500, [])),
        *(("", ["compatibility-invalid"]), ("x" * 501, ["compatibility-invalid"])),
        *(
            (None, ["compatibility-invalid"]),
            (3.14, ["compatibility-invalid"]),
            (["git"], ["compatibility-invalid"]),
        ),
    ],
    ids=lambda part: repr(part)[:30],
)
def test_compatibility_is_a_string_of_1_to_500_characters(value: JsonValue, expected: list[str]) -> None:
    assert codes(findings(compatibility=value)) == expected


@pytest.mark.requirement("FMT-05")
@pytest.mark.parametrize("value", [None, True, 2.0, ["Read", "MIT"], {"Read": True}])
@pytest.mark.parametrize(
    ("field", "good"), [("license", "MIT. See LICENSE.txt"), ("allowed-tools", "Bash(git:*)")]
)
def test_a_license_or_tools_that_are_no_string_are_a_warning(field: str, good: str, value: JsonValue) -> None:
    assert findings(**{field: good}) == []
    assert [(finding.code, finding.severity) for finding in findings(**{field: value})] == [
        (f"{field}-invalid", Severity.WARNING)
    ]


@pytest.mark.requirement("FMT-05")
@pytest.mark.parametrize("value", [1, 1.5, True, False, 0, [], ["a"], [{"a": "b"}]])
@pytest.mark.parametrize("field", ["name", "metadata"])
def test_a_name_or_metadata_of_another_type_is_an_error(field: str, value: JsonValue) -> None:
    assert codes(findings(**{field: value})) == [f"{field}-invalid"]


@pytest.mark.requirement("FMT-05")
def test_each_metadata_value_that_is_no_string_is_an_error_with_its_own_fix() -> None:
    good = findings(metadata={"author": "acme", "version": "1.0", "empty": ""})

    bad = findings(
        metadata={"a": 1, "b": 1.5, "c": True, "d": None, "e": ["x"], "f": {"x": "y"}, "g": "fine"}
    )

    assert good == []
    assert codes(bad) == ["metadata-invalid"] * 6
    assert [finding.fix for finding in bad[:4]] == [
        'write `a: "1"`',
        'write `b: "1.5"`',
        'write `c: "true"`',
        'write `d: ""`, or remove it',
    ]
    assert len({finding.message for finding in bad}) == 6


@pytest.mark.requirement("FMT-07")
def test_a_metadata_key_with_the_reserved_prefix_is_a_warning() -> None:
    found = findings(metadata={"io.modelcontextprotocol/x": "y", "io.modelcontextprotocol": "fine"})

    assert [(finding.code, finding.rule, finding.severity) for finding in found] == [
        ("metadata-reserved", "FMT-07", Severity.WARNING)
    ]


@pytest.mark.requirement("FMT-06")
@pytest.mark.parametrize("value", [None, True, 1, "x", ["x"], {"x": {"y": "z"}}])
def test_an_unknown_field_is_only_worth_a_note(value: JsonValue) -> None:
    found = findings(model=value)

    assert [(finding.code, finding.rule, finding.severity) for finding in found] == [
        ("field-unknown", "FMT-06", Severity.INFO)
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((2**53 - 1, False), (2**53, True), (-(2**53) + 1, False), (-(2**53), True), (float(2**60), False)),
        *(([1, [2**53]], True), ({"a": {"b": [2**60]}}, True), ({"a": 1}, False), ([], False), (True, False)),
    ],
)
def test_an_integer_that_javascript_cannot_hold_is_a_warning_at_any_depth(
    value: JsonValue, expected: bool
) -> None:
    found = findings(x=value)

    assert ("big-integer" in codes(found)) is expected


def test_findings_carry_the_line_their_field_stands_on() -> None:
    lines = {("name",): 2, ("description",): 3, ("metadata", "a"): 9, ("x",): 11}
    fields: dict[str, JsonValue] = {"name": "A", "description": "", "metadata": {"a": 1}, "x": 2**60}

    found = field_findings(Frontmatter(fields), lambda *path: lines.get(path))

    assert [(finding.code, finding.line) for finding in found] == [
        ("name-invalid", 2),
        ("description-missing", 3),
        ("metadata-invalid", 9),
        ("field-unknown", 11),
        ("big-integer", 11),
    ]
    assert no_line("name") is None


def test_a_hostile_key_is_shown_short_and_harmless() -> None:
    key = "\x1b[31m\u202e\n" + "k" * 10_000

    found = findings(**{key: 2**60}, metadata={key: 1, "io.modelcontextprotocol/" + key: "x"})

    assert sorted(codes(found)) == ["big-integer", "field-unknown", "metadata-invalid", "metadata-reserved"]
    for finding in found:
        assert (finding.message + finding.fix).isprintable()
        assert len(finding.message + finding.fix) < 400


json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
known_keys = st.sampled_from(["name", "description", "license", "compatibility", "metadata", "allowed-tools"])


@properties
@given(st.dictionaries(known_keys | st.text(), json_values, max_size=6))
def test_any_fields_give_findings_and_nothing_else(fields: dict[str, JsonValue]) -> None:
    found = published_findings(Frontmatter(fields))

    json.dumps([finding.to_json() for finding in found])
    assert {"name-missing", "name-invalid"} & set(codes(found)) or is_name(str(fields["name"]))


def test_quoting_makes_a_name_that_looks_like_a_number_a_name() -> None:
    bare = parse_skill_md(b"---\nname: 123\ndescription: Use when asked.\n---\n").frontmatter
    quoted = parse_skill_md(b"---\nname: '123'\ndescription: Use when asked.\n---\n").frontmatter

    assert codes(field_findings(bare)) == ["name-invalid"]
    assert field_findings(quoted) == []


def findings(**fields: JsonValue) -> list[Finding]:
    """Check good frontmatter with the given fields put over it."""
    return field_findings(Frontmatter({**GOOD, **fields}))


def codes(found: list[Finding]) -> list[str]:
    return [finding.code for finding in found]


@pytest.mark.requirement("FMT-06")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("allowed_tools", "allowed-tools"),
        ("allowedTools", "allowed-tools"),
        ("Allowed Tools", "allowed-tools"),
        ("allowed-tool", "allowed-tools"),
        ("licence", "license"),
        ("Name", "name"),
        ("descripton", "description"),
        ("meta-data", "metadata"),
        ("lisence", "license"),
        ("naem", "name"),
    ],
)
def test_a_near_miss_of_a_field_is_a_warning_that_names_the_field(written: str, meant: str) -> None:
    found = field_findings(Frontmatter({**GOOD, written: "x"}))

    assert [(finding.code, finding.fix) for finding in found] == [("field-misspelled", f"write `{meant}`")]


@pytest.mark.requirement("FMT-06")
@pytest.mark.parametrize("key", ["model", "version", "tools", "tags", "hooks", "argument-hint", "x" * 10_000])
def test_a_field_that_is_like_none_of_the_format_is_only_noted(key: str) -> None:
    found = field_findings(Frontmatter({**GOOD, key: "x"}))

    assert [finding.code for finding in found] == ["field-unknown"]
