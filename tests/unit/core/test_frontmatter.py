"""`SKILL.md` taken apart: where the frontmatter is, what it says, and what is left alone."""

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillwire.core import Frontmatter, same_value
from skillwire.core.errors import INTERNAL_ERROR, FrontmatterError, InvalidSkillError
from skillwire.core.finding import RULES
from skillwire.core.frontmatter import (
    MAX_FRONTMATTER_BYTES,
    SkillDocument,
    frontmatter_text,
    parse_skill_md,
    walk_strings,
)
from skillwire.core.manifest import ManifestFile
from skillwire.core.yaml12 import JsonValue

properties = settings(deadline=None, max_examples=100)

FIELDS: dict[str, JsonValue] = {"name": "demo", "description": "Use when asked."}
BLOCK = b"name: demo\ndescription: Use when asked.\n"


@pytest.mark.requirement("FMT-02")
@pytest.mark.requirement("FMT-08")
@pytest.mark.parametrize(
    ("data", "body", "body_line"),
    [
        (b"---\n" + BLOCK + b"---\nBody\n", "Body\n", 5),
        (b"---\n" + BLOCK + b"---\n\n# Steps\n", "\n# Steps\n", 5),
        (b"---\n" + BLOCK + b"---\n", "", 5),
        (b"---\n" + BLOCK + b"---", "", 4),
        (b"---\n" + BLOCK + b"--- \t\nBody", "Body", 5),
        (b"--- \t \n" + BLOCK + b"---\nBody", "Body", 5),
        (b"\xef\xbb\xbf---\n" + BLOCK + b"---\nBody", "Body", 5),
        (b"---\r\n" + BLOCK.replace(b"\n", b"\r\n") + b"---\r\nBody\r\n", "Body\r\n", 5),
        (b"\xef\xbb\xbf---\r\n" + BLOCK + b"---\r\nBody", "Body", 5),
        (b"---\n" + BLOCK + b"---\n---\nmore: text\n---\n", "---\nmore: text\n---\n", 5),
        (b"---\n\n# a comment\n" + BLOCK + b"\n---\nBody", "Body", 8),
        (b"---\n" + BLOCK + b"---\n\xef\xbb\xbfBody \xf0\x9f\x98\x80\n", "\ufeffBody 😀\n", 5),
        (b"---\n" + BLOCK + b"---\n\x00\x01\x0c\xc2\x85", "\0\x01\x0c\x85", 5),
    ],
)
def test_a_file_is_its_frontmatter_and_the_text_behind_it(data: bytes, body: str, body_line: int) -> None:
    document = parse_skill_md(data)

    assert document == SkillDocument(Frontmatter(FIELDS), body, body_line)


@pytest.mark.parametrize(
    ("block", "value"),
    [
        (b"x: |\n  ---\n  text\n", "---\ntext\n"),
        (b"x: >-\n  a\n  ---\n", "a ---"),
        (b"x: 'a\n  ---\n  b'\n", "a --- b"),
        (b"x: ---\n", "---"),
        (b"x: '---'\n", "---"),
        (b"x: a\n  ---b\n", "a ---b"),
        (b"x: |\n  a\n   ---\n", "a\n ---\n"),
    ],
)
def test_three_hyphens_inside_a_value_close_nothing(block: bytes, value: str) -> None:
    document = parse_skill_md(b"---\n" + block + b"---\nBody")

    assert (document.frontmatter, document.body) == (Frontmatter({"x": value}), "Body")


def test_three_hyphens_at_the_start_of_a_line_close_the_frontmatter_even_inside_a_value() -> None:
    document = parse_skill_md(b"---\nx: |\n  a\n---\n  b\n---\n")

    assert document == SkillDocument(Frontmatter({"x": "a\n"}), "  b\n---\n", 5)


@pytest.mark.requirement("FMT-06")
@pytest.mark.requirement("LIST-04")
def test_every_field_is_kept_as_written() -> None:
    data = b"---\nname: demo\nmodel: opus\nhooks: {a: [1, 1.5, yes, null]}\n2nd: 2026-01-02\n'': x\n---\n"

    frontmatter = parse_skill_md(data).frontmatter

    assert frontmatter.fields == {
        "name": "demo",
        "model": "opus",
        "hooks": {"a": [1, 1.5, "yes", None]},
        "2nd": "2026-01-02",
        "": "x",
    }


@pytest.mark.requirement("FMT-11")
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_what_a_digest_covers_is_not_what_parsing_smooths_over(bom: bytes, end: bytes) -> None:
    data = bom + (b"---\n" + BLOCK + b"---\nBody \n\n").replace(b"\n", end)
    promise = ManifestFile.of("skill://demo/SKILL.md", data)

    document = parse_skill_md(data)

    assert document.frontmatter == Frontmatter(FIELDS)
    assert data.endswith(document.body.encode())
    promise.verify(data)


BROKEN = [
    ("frontmatter-missing", b"", 1),
    ("frontmatter-missing", b"  \n\t\n", 1),
    ("frontmatter-missing", b"\xef\xbb\xbf", 1),
    ("frontmatter-missing", b"# Title\n", 1),
    ("frontmatter-missing", b"\n---\n" + BLOCK + b"---\n", 1),
    ("frontmatter-missing", b" ---\n" + BLOCK + b"---\n", 1),
    ("frontmatter-missing", b"Text\n---\n" + BLOCK + b"---\n", 1),
    ("frontmatter-missing", b"----\n" + BLOCK + b"----\n", 1),
    ("frontmatter-missing", b"--- name: demo\n---\n", 1),
    ("frontmatter-missing", b"---", 1),
    ("frontmatter-missing", b"---\r" + BLOCK + b"---\r", 1),
    ("frontmatter-missing", b"+++\nname = 'demo'\n+++\n", 1),
    ("frontmatter-unclosed", b"---\n", 1),
    ("frontmatter-unclosed", b"---\n" + BLOCK, 1),
    ("frontmatter-unclosed", b"---\n" + BLOCK + b" ---\n", 1),
    ("frontmatter-unclosed", b"---\n" + BLOCK + b"----\n", 1),
    ("frontmatter-unclosed", b"---\n" + BLOCK + b"--- x\n", 1),
    ("frontmatter-unclosed", b"---\n" + BLOCK + b"...\n", 1),
    ("frontmatter-unclosed", b"---\n" + BLOCK + b"---\rBody", 1),
    ("frontmatter-not-a-mapping", b"---\n---\n", 2),
    ("frontmatter-not-a-mapping", b"---\n# a comment\n---\n", 2),
    ("frontmatter-not-a-mapping", b"---\n- name: demo\n---\n", 2),
    ("frontmatter-not-a-mapping", b"---\njust text\n---\n", 2),
    ("not-utf8", b"---\nname: demo\ndescription: caf\xe9\n---\n", 3),
    ("not-utf8", b"---\n" + BLOCK + b"---\n\ncaf\xe9\n", 6),
    ("not-utf8", b"---\n" + BLOCK + b"---\n\xed\xa0\x80\n", 5),
    ("not-utf8", "---\nname: demo\n---\n".encode("utf-16"), 1),
    ("not-utf8", b"\xfe\xff" + "---\nname: demo\n---\n".encode("utf-16-be"), 1),
    ("not-utf8", "---\nname: demo\n---\n".encode("utf-16-le"), 1),
    ("not-utf8", b"PK\x03\x04\xff\xee", 1),
    ("not-utf8", b"# Caf\xe9\n", 1),
    ("yaml-quote", b'---\nname: demo\ndescription: "Use when asked.\nlicense: MIT\n---\n', 3),
    ("yaml-quote", b'---\nname: demo\ndescription: "Use when asked.\nlicense: "MIT"\n---\n', 3),
    ("yaml-quote", b"---\nname: demo\nmetadata:\n  a: 'b\n  c: d\nx: It's here.\n---\n", 4),
    ("yaml-quote", b"---\nname: demo\ntags:\n- 'a\n- b\n---\n", 4),
    ("yaml-syntax", b'---\nname: demo\ndescription: "Use\n  when asked."\nx: [a\ny: b\n---\n', 6),
    ("yaml-syntax", b"---\nname: demo\ndescription: 'It's used.'\n---\n", 3),
    ("yaml-syntax", b"---\nname: demo\ndescription: Use when: asked\n---\n", 3),
    ("yaml-syntax", b"\xef\xbb\xbf---\r\nname: demo\r\nx: [a\r\n---\r\n", 4),
    ("yaml-alias", b"---\nname: demo\n\nx: &a b\n---\n", 4),
    ("yaml-tag", b"---\nx: !!str a\n---\n", 2),
    ("yaml-tag", b"---\nname: demo\nx: !%ED%A0%80 a\n---\n", 2),
    ("yaml-directive", b"---\n%YAML 1.1\n--- # a document\nname: demo\n---\n", 2),
    ("yaml-duplicate-key", b"---\nname: demo\nx: 1\nname: other\n---\n", 4),
    ("yaml-non-string-key", b"---\nname: demo\n1: a\n---\n", 3),
    ("yaml-number", b"---\nname: demo\nx: .inf\n---\n", 3),
    ("yaml-too-deep", b"---\nname: demo\nx: " + b"[" * 32 + b"]" * 32 + b"\n---\n", 3),
    ("yaml-too-large", b"---\nname: demo\nx: [" + b"1," * 10_000 + b"]\n---\n", 3),
    ("yaml-documents", b"---\nname: demo\n--- # another\nx: y\n---\n", 3),
    ("yaml-line-break", "---\nname: demo\nx: a\u2028b\n---\n".encode(), 3),
    ("yaml-line-break", b"---\nname: demo\nx: a\rb\n---\n", 3),
]


@pytest.mark.requirement("FMT-02")
@pytest.mark.requirement("FMT-10")
@pytest.mark.parametrize(("reason", "data", "line"), BROKEN, ids=lambda part: repr(part)[:50])
def test_a_file_without_readable_frontmatter_is_refused_with_a_line_and_a_fix(
    reason: str, data: bytes, line: int
) -> None:
    with pytest.raises(FrontmatterError) as caught:
        parse_skill_md(data)

    error = caught.value
    assert (error.reason, error.line) == (reason, line)
    assert error.fix


def test_a_frontmatter_error_is_an_invalid_skill_and_an_internal_error_on_the_wire() -> None:
    with pytest.raises(InvalidSkillError) as caught:
        parse_skill_md(b"")

    assert (type(caught.value), caught.value.code, caught.value.refusal) == (
        FrontmatterError,
        INTERNAL_ERROR,
        "invalid-frontmatter",
    )


def test_every_reason_of_a_frontmatter_error_has_a_rule() -> None:
    reasons = {reason for reason, *_ in BROKEN} | {"frontmatter-too-large"}

    assert {code for code in RULES if code.startswith(("frontmatter-", "yaml-"))} - {"yaml-subset"} <= reasons
    assert reasons <= RULES.keys()


@pytest.mark.requirement("FMT-10")
@pytest.mark.parametrize("closing", [b"---\n", b"---", b"---\r\n", b"---" + b" " * 40 + b"\n"])
def test_frontmatter_of_exactly_the_limit_is_read(closing: bytes) -> None:
    block = filled(MAX_FRONTMATTER_BYTES)

    document = parse_skill_md(b"---\n" + block + closing + b"Body" * closing.endswith(b"\n"))

    assert len(block) == 65_536
    assert document.frontmatter.name == "demo"


@pytest.mark.requirement("FMT-10")
@pytest.mark.parametrize("extra", [1, 2, 5, 8, 9, 100, 100_000])
@pytest.mark.parametrize("closing", [b"---\n", b"---", b"---   \n", b""])
def test_frontmatter_beyond_the_limit_is_refused(extra: int, closing: bytes) -> None:
    block = filled(MAX_FRONTMATTER_BYTES + extra)

    with pytest.raises(FrontmatterError) as caught:
        parse_skill_md(b"---\n" + block + closing)

    assert (caught.value.reason, caught.value.line) == ("frontmatter-too-large", 1)


def test_a_line_of_hyphens_cut_off_by_the_limit_closes_nothing() -> None:
    block = filled(MAX_FRONTMATTER_BYTES)

    with pytest.raises(FrontmatterError) as caught:
        parse_skill_md(b"---\n" + block + b"---     not closed\n---\n")

    assert caught.value.reason == "frontmatter-too-large"


def test_a_long_body_is_no_long_frontmatter() -> None:
    document = parse_skill_md(b"---\n" + BLOCK + b"---\n" + b"text\n" * 100_000)

    assert len(document.body) == 500_000


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ("name: demo\ndescription: Use when: asked\n", "description"),
        ("name: demo\ndescription: Steps:\n", "description"),
        ("name: demo\ndescription: Note: a, b: c\nx: y\n", "description"),
        ("name: demo\nmetadata:\n  note: one: two\n", "note"),
        ("list:\n  - note: one: two\n", "note"),
        ("description: Use when: asked\r\nname: demo\r\n", "description"),
    ],
)
def test_the_fix_for_an_unquoted_colon_names_the_field(block: str, field: str) -> None:
    with pytest.raises(FrontmatterError) as caught:
        parse_skill_md(f"---\n{block}---\n".encode())

    assert f"`{field}`" in caught.value.fix


@pytest.mark.parametrize(
    ("block", "hint"),
    [
        ("x:\n\ta: b\n", "spaces"),
        ('x: "\\ud83d\\ude00"\n', "\\u"),
        ("x: [a\n", "quotes"),
        ("a: 'b: c: d'\n\tx\n", "spaces"),
    ],
)
def test_the_fix_for_other_mistakes_names_what_to_look_for(block: str, hint: str) -> None:
    with pytest.raises(FrontmatterError) as caught:
        parse_skill_md(f"---\n{block}---\n".encode())

    assert (caught.value.reason, hint in caught.value.fix) == ("yaml-syntax", True)


def test_text_before_the_opening_line_has_a_fix_of_its_own() -> None:
    fixes: set[str] = set()

    for data in (b"", b"# Title\n", b"\n---\nname: demo\n---\n"):
        with pytest.raises(FrontmatterError) as caught:
            parse_skill_md(data)
        fixes.add(caught.value.fix)

    assert len(fixes) == 3


def test_the_block_can_be_had_as_text_even_when_it_is_not_utf8() -> None:
    assert frontmatter_text(b"\xef\xbb\xbf---\r\nname: \xff\r\n---\r\nBody") == ("name: \ufffd\r\n", 2)


DIFFERENT: list[tuple[JsonValue, JsonValue]] = [
    *((True, 1), (False, 0), (True, 1.0), (None, False), (None, 0), (None, ""), (0, ""), ("1", 1)),
    *(("a", "A"), ("é", "e\u0301"), (1, 2), (1.5, 1), (10**400, 1.0), (10**400, 10**400 + 1)),
    *(([1, 2], [2, 1]), ([1], [1, 1]), ([], None), ([], {}), ([True], [1]), ({"a": 1}, [1]), ([[]], [[[]]])),
    *(({"a": None}, {}), ({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), ({"a": {"b": True}}, {"a": {"b": 1}})),
    (float("nan"), float("nan")),
]

ALIKE: list[tuple[JsonValue, JsonValue]] = [
    *((1, 1.0), (0, -0.0), (-7, -7.0), (True, True), (False, False), (None, None), ("a", "a"), ("", "")),
    *((2**53, 2**53 + 1), (2**53 + 1, 9007199254740992.0), (2**64 - 1, 18446744073709551616.0)),
    *((10**400, 10**400), (1e300, 10**300), ([], []), ({}, {}), ([1, {"a": [2.0]}], [1.0, {"a": [2]}])),
    ({"a": 1, "b": None}, {"b": None, "a": 1.0}),
]


@pytest.mark.requirement("OPEN-01")
@pytest.mark.parametrize(
    ("left", "right", "alike"),
    [*((*pair, True) for pair in ALIKE), *((*pair, False) for pair in DIFFERENT)],
    ids=lambda part: repr(part)[:25],
)
def test_values_compare_as_every_json_reader_sees_them(
    left: JsonValue, right: JsonValue, alike: bool
) -> None:
    assert (same_value(left, right), same_value(right, left)) == (alike, alike)


def test_frontmatter_is_equal_when_every_field_is() -> None:
    one = Frontmatter({"name": "demo", "description": "d", "x": 1})

    same = Frontmatter({"x": 1.0, "description": "d", "name": "demo"})

    assert one == same
    assert hash(one) == hash(same)
    assert one != Frontmatter({"name": "demo", "description": "d", "x": True})
    assert one != {"name": "demo", "description": "d", "x": 1}


def test_differences_name_every_field_that_is_not_the_same() -> None:
    entry = Frontmatter({"name": "demo", "same": 1, "typed": True, "gone": None, "list": [1, 2]})

    file = Frontmatter({"name": "other", "same": 1.0, "typed": 1, "list": [2, 1], "new": None})

    assert entry.differences(file) == ["gone", "list", "name", "new", "typed"]
    assert entry.differences(entry) == []


@pytest.mark.parametrize(
    ("fields", "name", "description"),
    [
        ({"name": "demo", "description": "d"}, "demo", "d"),
        ({}, "", ""),
        ({"name": None, "description": ["d"]}, "", ""),
        ({"name": 7, "description": True}, "", ""),
    ],
)
def test_name_and_description_are_strings_whatever_the_fields_are(
    fields: dict[str, JsonValue], name: str, description: str
) -> None:
    frontmatter = Frontmatter(fields)

    assert (frontmatter.name, frontmatter.description) == (name, description)


def test_frontmatter_and_documents_cannot_be_changed() -> None:
    document = parse_skill_md(b"---\n" + BLOCK + b"---\n")

    with pytest.raises(dataclasses.FrozenInstanceError):
        document.body = "other"  # pyright: ignore[reportAttributeAccessIssue]  # that is the point
    with pytest.raises(dataclasses.FrozenInstanceError):
        document.frontmatter.fields = {}  # pyright: ignore[reportAttributeAccessIssue]  # that is the point


def test_all_strings_of_a_value_are_walked_keys_included() -> None:
    value: JsonValue = {"a": ["b", 1, {"c": "d"}], "e": None, "f": True}

    assert list(walk_strings(value)) == ["a", "b", "c", "d", "e", "f"]


PIECES = [
    *(
        b"---",
        b"---\n",
        b"\n",
        b"\r\n",
        b"\r",
        b"name: demo",
        b": ",
        b"- ",
        b"\xef\xbb\xbf",
        b"\xff",
        b"\xe9",
    ),
    *(
        b"\x00",
        b"a",
        b" ",
        b"\t",
        b"'",
        b'"',
        b"[",
        b"{",
        b"|",
        b"&a",
        b"*a",
        b"!x",
        b"\xe2\x80\xa8",
        b"\xc2\x85",
    ),
]


@properties
@given(
    st.binary()
    | st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join)
    | st.binary().map(lambda block: b"---\n" + block + b"\n---\n")
    | st.lists(st.sampled_from(PIECES), max_size=25).map(
        lambda parts: b"---\n" + b"".join(parts) + b"\n---\n"
    )
)
@example(b"---\na: !%ED%A0%80 b\n---\n")
def test_any_bytes_give_a_document_or_a_frontmatter_error(data: bytes) -> None:
    try:
        document = parse_skill_md(data)
    except FrontmatterError as error:
        assert error.reason in RULES
        assert error.line is not None
        assert 1 <= error.line <= data.count(b"\n") + 2
    else:
        assert data.endswith(document.body.encode())
        assert (
            document.body_line == (data + b"\n").count(b"\n") - document.body.count("\n") or not document.body
        )


def filled(size: int) -> bytes:
    """Make a frontmatter block of exactly `size` bytes."""
    block = b"name: demo\n# "
    return block + b"x" * (size - len(block) - 1) + b"\n"
