"""What authors declare for dialects by name: read from frontmatter, with findings for what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import Frontmatter, SkillArgument
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.yaml12 import JsonValue
from skillwire.wire.by_name import Declarations, FileNote, SkillDependencies, declarations_in

WHOLE = b"""---
name: invoice-fill
description: Fill in invoices. Use when a customer asks for one.
metadata:
  title: Invoice filling
  version: "1.10"
  tags: finance, data entry
  skillwire/arguments: |
    region! (Region): Whose tax rules apply: eu or us.
    currency
  skillwire/tools: read_pdf write_pdf
  skillwire/prompts: greet, say goodbye
  skillwire/resources: |
    file:///forms/index.csv
    file:///forms/{year}.csv
  skillwire/files: |
    references/rules.md (tax-rules, rules): Tax rules by region.
    assets/a b.pdf: The form.
---
Body.
"""


def declared(**fields: JsonValue) -> Declarations:
    return declarations_in(Frontmatter({"name": "tea", "description": "d", **fields}))


@pytest.mark.requirement("P2076-08", "P2076-12", "EXEC-20")
def test_everything_that_can_be_declared_is_read() -> None:
    assert declarations_in(parse_skill_md(WHOLE).frontmatter) == Declarations(
        title="Invoice filling",
        version="1.10",
        tags=("finance", "data entry"),
        arguments=(
            SkillArgument("region", "Region", "Whose tax rules apply: eu or us.", required=True),
            SkillArgument("currency"),
        ),
        dependencies=SkillDependencies(
            ("read_pdf", "write_pdf"),
            ("greet", "say goodbye"),
            ("file:///forms/index.csv", "file:///forms/{year}.csv"),
        ),
        files={
            "references/rules.md": FileNote(("tax-rules", "rules"), "Tax rules by region."),
            "assets/a b.pdf": FileNote((), "The form."),
        },
    )


@pytest.mark.requirement("P2076-08")
def test_a_skill_that_declares_nothing_has_nothing() -> None:
    assert declared() == declared(metadata={}) == declared(metadata="odd") == Declarations()


@pytest.mark.requirement("P2076-08")
@pytest.mark.parametrize(
    ("fields", "tags"),
    [
        ({"tags": ["a", "b c", 3, "a"]}, ("a", "b c")),
        ({"tags": "a b"}, ("a", "b")),
        ({"tags": "a, b c,"}, ("a", "b c")),
        ({"metadata": {"tags": "a b"}}, ("a", "b")),
        ({"tags": ["a"], "metadata": {"tags": "b"}}, ("a",)),
        ({"tags": [], "metadata": {"tags": "b"}}, ("b",)),
        ({"keywords": "k"}, ("k",)),
        ({"keywords": "k", "metadata": {"tags": "t"}}, ("t",)),
        ({"tags": {"a": 1}}, ()),
    ],
)
def test_tags_come_from_a_field_or_from_metadata_as_a_list_or_a_text(
    fields: dict[str, JsonValue], tags: tuple[str, ...]
) -> None:
    assert declared(**fields).tags == tags


@pytest.mark.requirement("P2076-08")
@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({"version": "1.0"}, "1.0"),
        ({"version": 2}, "2"),
        ({"version": 1.1}, None),
        ({"version": True}, None),
        ({"metadata": {"version": "3"}}, "3"),
        ({"version": "1", "metadata": {"version": "3"}}, "1"),
    ],
)
def test_a_version_is_what_the_author_wrote_or_nothing(
    fields: dict[str, JsonValue], version: str | None
) -> None:
    assert declared(**fields).version == version


@pytest.mark.requirement("P2076-12")
@pytest.mark.parametrize(
    "text",
    ["two words: x", "a\na: again", "1a", "a!!: x", ": nameless", "a b", "a (b", "a (b) c", "a (b (c))"],
)
def test_arguments_are_all_read_or_none_with_a_finding(text: str) -> None:
    found = declared(metadata={"skillwire/arguments": f"good: fine\n{text}"})

    assert found.arguments == ()
    assert [(finding.code, finding.rule) for finding in found.findings] == [("arguments-invalid", "P2076-12")]
    assert found.findings[0].fix


@pytest.mark.requirement("P2076-05")
def test_needs_beyond_all_bounds_are_none_with_a_finding() -> None:
    found = declared(metadata={"skillwire/tools": "x" * 300, "skillwire/prompts": "greet"})

    assert found.dependencies == SkillDependencies(prompts=("greet",))
    assert [(finding.code, finding.rule) for finding in found.findings] == [
        ("dependencies-invalid", "P2076-05")
    ]


@pytest.mark.requirement("P2076-06")
def test_a_file_has_a_title_after_a_semicolon() -> None:
    lines = "a.md (forms, more; Common, and other, forms): Examples.\nb.md (; Only a title)"
    found = declared(metadata={"skillwire/files": lines})

    assert found.files == {
        "a.md": FileNote(("forms", "more"), "Examples.", "Common, and other, forms"),
        "b.md": FileNote((), "", "Only a title"),
    }


@pytest.mark.requirement("P2076-02")
def test_icons_are_addresses_with_what_is_known_of_them() -> None:
    found = declared(
        metadata={"skillwire/icons": "https://a.example/i.svg any\n\ndata:image/png;base64,AAAA"}
    )

    assert found.icons == (
        {"src": "https://a.example/i.svg", "sizes": ["any"]},
        {"src": "data:image/png;base64,AAAA"},
    )
    assert found.findings == ()


@pytest.mark.requirement("P2076-02")
@pytest.mark.parametrize(
    "line",
    [
        "http://a.example/i.png",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        "assets/icon.png",
        "https://a.example/i.png text/html",
        "https://a.example/i.png large",
        "https://a.example/i.png light dark",
        "https://a.example/" + "x" * 9000,
    ],
)
def test_an_icon_that_cannot_be_shown_safely_is_left_out_with_a_finding(line: str) -> None:
    found = declared(metadata={"skillwire/icons": f"{line}\nhttps://a.example/good.png"})

    assert found.icons == ({"src": "https://a.example/good.png"},)
    assert [(finding.code, finding.rule) for finding in found.findings] == [("icons-invalid", "P2076-02")]


@pytest.mark.requirement("P2076-02")
def test_keys_with_a_prefix_of_their_own_are_meta_and_others_are_not() -> None:
    metadata: dict[str, JsonValue] = {
        "com.example/owner": "billing",
        "skillwire/tools": "pay",
        "io.modelcontextprotocol/x": "reserved",
        "author": "acme",
    }

    assert declared(metadata=metadata).meta == {"com.example/owner": "billing"}


@pytest.mark.requirement("EXEC-20")
def test_a_line_about_a_file_that_cannot_be_read_is_left_out_with_a_finding() -> None:
    found = declared(metadata={"skillwire/files": "references/a.md: A.\n(odd)\nreferences/a.md: again"})

    assert found.files == {"references/a.md": FileNote((), "A.")}
    assert [finding.code for finding in found.findings] == ["file-notes-invalid"] * 2


@given(
    st.dictionaries(
        st.sampled_from(("arguments", "tools", "prompts", "resources", "files", "icons", "audience")),
        st.text(max_size=200) | st.integers() | st.lists(st.text(max_size=5), max_size=3),
    )
)
def test_nothing_an_author_writes_raises(values: dict[str, JsonValue]) -> None:
    found = declared(metadata={f"skillwire/{key}": value for key, value in values.items()})

    assert all(finding.severity == "warning" for finding in found.findings)
