"""Reading JSON as editors write it: comments and last commas are nothing, and all else is strict."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.host.connect.config_file import MAX_CONFIG_BYTES, parse_json, read_bytes
from skillwire.host.model.errors import ConfigError


def parse(text: str) -> object:
    return parse_json(text.encode(), "mcp.json")


def fault(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_json(text if isinstance(text, bytes) else text.encode(), "mcp.json")
    return str(caught.value)


RELAXED: list[tuple[str, object]] = [
    ("// first\n{} // last", {}),
    ("/* a */ [ /* b */ 1 /* c */ , 2 /* d */ ] /* e */", [1, 2]),
    ("[1, // one\r\n 2, // two\r\n]", [1, 2]),
    ('{"a": 1,}', {"a": 1}),
    ('{"a": [1,] , /* more */ }', {"a": [1]}),
    ("[[],]", [[]]),
    ("[{},]", [{}]),
    ('["a",\n// "b",\n]', ["a"]),
    ("/**/[/***/1/* / * // */]", [1]),
]


@pytest.mark.parametrize(("text", "value"), RELAXED)
def test_comments_and_last_commas_are_nothing(text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    "value",
    [
        "// no",
        "/* no */",
        "a,]",
        ",}",
        'a \\" // b',
        "\\",
        "\\\\",
        '"',
        "https://example.org/*",
        "*/",
        "\u2028//",
    ],
)
def test_what_looks_like_a_comment_in_a_text_is_text(value: str) -> None:
    text = json.dumps({"a": value, "b": [value]}, ensure_ascii=False)

    assert parse(text) == {"a": value, "b": [value]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "// nothing",
        "[,]",
        "{,}",
        "[1,,]",
        "[,1]",
        '{"a":,}',
        '{"a",}',
        "{},",
        ",",
        "[1,",
        "[1 2]",
        "tr/**/ue",
        "1/**/2",
        "[1]/",
        "# comment\n[]",
        "['a']",
        "{a: 1}",
        '["a]',
        '["a\nb"]',
        '["\\',
        "[0x1]",
        "[+1]",
        "[.5]",
        "[NaN]",
        "[Infinity]",
        "[-Infinity]",
        "\x00",
        "[1]\x00",
        "\u00a0[1]",
        "/* [1]",
        "[1] /* never */ /* ends",
        "/*/",
    ],
)
def test_anything_else_that_is_no_json_is_refused(text: str) -> None:
    assert "mcp.json" in fault(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{\n  // comment\n  "a": /* x\n y */ oops\n}', "line 4, column 7"),
        ('{\n  "a": 1, // one\n  , "b": 2\n}', "line 3, column 3"),
        ("[\n  1, /* é\n */ 2, /* x */ ?\n]", "line 3, column 16"),
        ("[1,\n\n /* open\n ]", "line 3"),
    ],
)
def test_a_fault_is_named_with_its_place_in_the_file(text: str, place: str) -> None:
    assert place in fault(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a": 1, /* "b": 3, */ "a": 2}',
        '{"a": 1, // "b"\n "\\u0061": 2,}',
        '[{"x": {"a": 1, "b": 2, "a": 1}}]',
    ],
)
def test_a_key_that_occurs_twice_is_named(text: str) -> None:
    assert "'a' occurs twice" in fault(text)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 500_000,
        b'{"a":' * 150_000,
        b"[" * 500_000 + b"]" * 500_000,
        b"[" + b"," * 1_000_000 + b"]",
        b"[1" + b"/**/" * 250_000,
        b"/*" + b"*" * 1_000_000,
        b"/" * 1_000_000,
        b'"' + b"\\" * 1_000_000,
        b"[1," + b" " * 1_000_000,
        b"{" + b",".join(b'"%d":0' % number for number in range(90_000)) + b',"89999":0}',
        b"[" + b"9" * 100_000 + b"]",
        b"\xff\xfe[\x001\x00]\x00",
    ],
    ids=range(12),
)
def test_hostile_files_are_refused_at_once(data: bytes) -> None:
    assert len(fault(data)) < 200


def test_large_files_are_read_at_once() -> None:
    text = "[" + "/* x */ 1, // y\n" * 60_000 + "]"

    assert parse(text) == [1] * 60_000


def test_a_name_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(ConfigError):
        read_bytes(Path("a\0b"))


def test_a_file_that_is_too_large_or_none_is_refused_without_its_folder(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "gone")

    for name in ("large", "pipe", "link", "gone"):
        with pytest.raises(ConfigError) as caught:
            read_bytes(tmp_path / name)
        assert name in str(caught.value) and str(tmp_path) not in str(caught.value)


# Properties

DOCUMENTS: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)
NOISE = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "\t\r\n",
        "// x\n",
        '// " ] } ,\r\n',
        "/**/",
        "/* x */",
        '/* " */',
        "/* ,]} // \n */",
        "/* * / */",
        "//\n//\n",
        "/* \\ */",
    ]
)


def tokens(value: object) -> list[str]:
    """Write a document as the tokens of strict JSON; `,?` is where a last comma may stand."""
    if isinstance(value, dict):
        items = [[json.dumps(key), ":", *tokens(item)] for key, item in value.items()]  # type: ignore[misc]
        return ["{", *joined(items), "}"]
    if isinstance(value, list):
        return ["[", *joined([tokens(item) for item in value]), "]"]  # type: ignore[misc]
    return [json.dumps(value, ensure_ascii=False)]


def joined(items: list[list[str]]) -> list[str]:
    if not items:
        return []
    return [token for item in items[:-1] for token in (*item, ",")] + items[-1] + [",?"]


@given(DOCUMENTS, st.data())
def test_a_document_with_comments_and_commas_reads_as_the_plain_one(
    document: Any, data: st.DataObject
) -> None:
    written = tokens(document)
    plain = "".join(token for token in written if token != ",?")
    noisy = data.draw(NOISE)
    for token in written:
        noisy += data.draw(st.sampled_from(["", ","])) if token == ",?" else token
        noisy += data.draw(NOISE)

    assert json.dumps(parse(noisy)) == json.dumps(json.loads(plain)) == json.dumps(document)


@given(DOCUMENTS, st.sampled_from([None, 2]))
def test_strict_json_reads_as_it_always_did(document: Any, indent: int | None) -> None:
    text = json.dumps(document, indent=indent)

    assert json.dumps(parse(text)) == json.dumps(document)


@given(st.text(max_size=40) | st.text(alphabet='{}[],:"\\/* \n1at', max_size=40))
def test_any_text_reads_or_is_one_clear_error(text: str) -> None:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    try:
        parse_json(data, "mcp.json")
    except ConfigError as error:
        assert "mcp.json" in str(error)


@given(st.binary(max_size=40))
def test_any_bytes_read_or_are_one_clear_error(data: bytes) -> None:
    try:
        parse_json(data, "mcp.json")
    except ConfigError as error:
        assert str(error).isascii()
