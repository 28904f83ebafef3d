"""Files of variables: what they hold, and that no message repeats it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.host.connect.config_file import parse_env_file
from skillwire.host.model.errors import ConfigError


def parse(text: str) -> dict[str, str]:
    return parse_env_file(text.encode(), ".env")


def test_a_file_is_read_as_people_write_it() -> None:
    text = """\
# The shop
API_KEY=abc123
export REGION=eu
  PADDED =  two words   # not this
EMPTY=
HASH=a#b
SINGLE='a # b \\n "c"'   # comment
DOUBLE="a # b\\n\\"c\\"\\t\\\\ \\$ \\x"
URL=https://example.org/?a=1&b=$HOME

KEY="-----BEGIN-----
line
-----END-----"
API_KEY=later
"""

    assert parse(text) == {
        "API_KEY": "later",
        "REGION": "eu",
        "PADDED": "two words",
        "EMPTY": "",
        "HASH": "a#b",
        "SINGLE": 'a # b \\n "c"',
        "DOUBLE": 'a # b\n"c"\t\\ $ \\x',
        "URL": "https://example.org/?a=1&b=$HOME",
        "KEY": "-----BEGIN-----\nline\n-----END-----",
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("\n \n#\n", {}),
        ("A=1", {"A": "1"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("\ufeffA=1", {"A": "1"}),
        ("A=#x", {"A": ""}),
        ("A= # x", {"A": ""}),
        ("A=''", {"A": ""}),
        ("A=b=c", {"A": "b=c"}),
        ("A=it's", {"A": "it's"}),
        ("A.b-c=1", {"A.b-c": "1"}),
    ],
)
def test_small_files_are_read(text: str, found: dict[str, str]) -> None:
    assert parse(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "s3cret",
        "=s3cret",
        "1A=s3cret",
        "A B=s3cret",
        "A: s3cret",
        "A='s3cret' more",
        'A="s3cret"s3cret',
        "A=s3cret\0",
        "A='a\0b'",
        "export",
        "A-ü=s3cret",
    ],
)
def test_a_line_that_is_none_is_named_by_its_number_alone(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("# one\nFINE=1\n" + text + "\n")

    assert "line 3" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError):
        parse_env_file(b"A=\xff", ".env")


@pytest.mark.parametrize(
    "text", ["A=" + " " * 900_000 + "#", "A='" + "x" * 900_000, " " * 900_000, "A=1\n" * 200_000]
)
def test_large_files_are_read_at_once(text: str) -> None:
    assert set(parse(text)) <= {"A"}


@given(st.text(max_size=60) | st.text(alphabet="A=\"'\\# \n", max_size=40))
def test_any_text_reads_or_is_one_clear_error(text: str) -> None:
    try:
        found = parse_env_file(text.encode("utf-8", "surrogatepass"), ".env")
    except ConfigError:
        return
    assert all(name and "=" not in name and "\0" not in value for name, value in found.items())


@given(
    st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,5}", fullmatch=True), st.text(max_size=20), max_size=5)
)
def test_values_in_quotes_are_read_as_they_were(values: dict[str, str]) -> None:
    values = {name: value.replace("\0", "").replace("\r", "") for name, value in values.items()}
    escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in values.items()}
    text = "".join(f'{name}="{value}"\n' for name, value in escaped.items())
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return

    assert parse_env_file(data, ".env") == values
