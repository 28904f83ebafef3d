"""Reading a local `SKILL.md` kindly: one slip is understood, and everything else is as strict as ever."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core.errors import FrontmatterError
from skillwire.core.frontmatter import parse_skill_md
from skillwire.host.registry.local import parse_leniently


def document(frontmatter: str, body: str = "Do it.\n") -> bytes:
    return f"---\n{frontmatter}---\n{body}".encode()


def test_a_file_without_a_slip_is_read_as_it_is() -> None:
    data = document("name: a\ndescription: Use when asked.\n")

    found = parse_leniently(data)

    assert found.document == parse_skill_md(data)
    assert found.findings == ()
    assert found.repaired is data


@pytest.mark.requirement("FS-03")
@pytest.mark.parametrize(
    ("line", "description"),
    [
        ("description: Use when: asked", "Use when: asked"),
        ("description: It's this: that 'one'", "It's this: that 'one'"),
        ("description: Ends with a colon:", "Ends with a colon:"),
        ("description: a: b # a remark", "a: b"),
        ("description:   a: b   ", "a: b"),
        ("description: a: b\r", "a: b"),
        ('description: say "x": y', 'say "x": y'),
    ],
)
def test_a_colon_in_a_value_without_quotes_is_read_as_the_author_meant(line: str, description: str) -> None:
    data = document(f"name: a\n{line}\nlicense: MIT\n")
    with pytest.raises(FrontmatterError):
        parse_skill_md(data)

    found = parse_leniently(data)

    assert found.document.frontmatter.fields == {"name": "a", "description": description, "license": "MIT"}
    assert found.document.body == "Do it.\n"
    assert [(finding.code, finding.line) for finding in found.findings] == [("yaml-syntax", 3)]
    assert parse_skill_md(found.repaired) == found.document


@pytest.mark.requirement("FS-03")
def test_several_such_values_are_each_reported() -> None:
    data = document("name: a\ndescription: one: two\nmetadata:\n  author: A: B\n  tools: x: y: z\n")

    found = parse_leniently(data)

    assert found.document.frontmatter.fields == {
        "name": "a",
        "description": "one: two",
        "metadata": {"author": "A: B", "tools": "x: y: z"},
    }
    assert [finding.line for finding in found.findings] == [3, 5, 6]


def test_a_byte_order_mark_and_crlf_stay_what_they_are() -> None:
    data = b"\xef\xbb\xbf---\r\nname: a\r\ndescription: b: c\r\n---\r\nBody\r\n"

    found = parse_leniently(data)

    assert found.document.frontmatter.fields == {"name": "a", "description": "b: c"}
    assert found.document.body == "Body\r\n"


def test_text_in_a_block_is_not_touched() -> None:
    data = document("name: a\ndescription: |\n  note: this: is\n  fine: too: here\nlicense: b: c\n")

    found = parse_leniently(data)

    assert found.document.frontmatter.description == "note: this: is\nfine: too: here\n"
    assert found.document.frontmatter.fields["license"] == "b: c"


@pytest.mark.requirement("FS-03")
@pytest.mark.parametrize(
    "frontmatter",
    [
        "name: [a\n",
        "name: 'a\n",
        "name: a\nname: b\n",
        "\tname: a\n",
        "name: &a b\n",
        "name: a: b\n  more: of it\n",
        "name: {a: b: c}\n",
        "- a\n",
        "",
    ],
)
def test_anything_else_is_the_error_of_the_file_as_it_is(frontmatter: str) -> None:
    data = document(frontmatter)
    with pytest.raises(FrontmatterError) as strict:
        parse_skill_md(data)

    with pytest.raises(FrontmatterError) as lenient:
        parse_leniently(data)

    assert (lenient.value.reason, lenient.value.line) == (strict.value.reason, strict.value.line)


def test_there_is_an_end_to_kindness_and_it_comes_soon() -> None:
    many = document("".join(f"k{number}: a: b\n" for number in range(3000)))
    wide = document("a: b: " + " " * 60_000 + "\n")
    started = time.process_time()

    with pytest.raises(FrontmatterError):
        parse_leniently(many)
    assert parse_leniently(wide).document.frontmatter.fields == {"a": "b:"}

    assert time.process_time() - started < 2.0


@settings(deadline=None)
@given(st.binary(max_size=80) | st.text("ab:'\"- #\n\r[]{}|>&", max_size=80).map(document))
def test_whatever_the_bytes_are_the_strict_reading_wins_where_there_is_one(data: bytes) -> None:
    try:
        strict = parse_skill_md(data)
    except FrontmatterError:
        strict = None
    try:
        found = parse_leniently(data)
    except FrontmatterError:
        assert strict is None
        return
    assert (not found.findings) == (strict is not None)
    if strict is not None:
        assert found.document == strict
