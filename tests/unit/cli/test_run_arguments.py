"""`--args`: a JSON object, a file that holds one, or standard input; anything else is misuse."""

import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.cli.command import MisuseError
from skillwire.cli.run import MAX_BYTES, read_arguments


class Input:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_without_the_option_a_script_is_given_an_empty_object() -> None:
    assert read_arguments(None) == {}


def test_json_may_stand_there_lie_in_a_file_or_come_from_standard_input(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "given.json").write_text('{"csv": "a,b"}')
    monkeypatch.setattr(sys, "stdin", Input(b'{"csv": "c"}'))

    assert read_arguments('{"csv": "ä"}') == {"csv": "ä"}
    assert read_arguments("@given.json") == {"csv": "a,b"}
    assert read_arguments("-") == {"csv": "c"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ("null", "is not a JSON object"),
        ('{"a": NaN}', "holds NaN, which is not a JSON number"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": "\\ud800"}', "surrogate"),
        ("\udcff", "is not JSON"),
        ("[" * 100_000, "is not JSON|nests deeper"),
        ('{"a":' * 80 + "1" + "}" * 80, "nests deeper"),
        ("@nowhere.json", "cannot be read"),
        ("@", "cannot be read"),
        ("@a\0b", "cannot be read"),
        ('{"a": "' + "x" * MAX_BYTES + '"}', "more than"),
    ],
    ids=lambda value: str(value)[:20].encode("ascii", "replace").decode(),
)
def test_what_is_no_object_is_misuse(here: Path, text: str, words: str) -> None:
    with pytest.raises(MisuseError, match=words) as caught:
        read_arguments(text)

    assert caught.value.fix


def test_a_file_that_has_no_end_is_not_read_to_it() -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("there is no /dev/zero")
    with pytest.raises(MisuseError, match="more than"):
        read_arguments("@/dev/zero")


@given(st.text().filter(lambda text: not text.startswith("@") and text != "-"))
def test_any_text_is_an_object_or_misuse(text: str) -> None:
    try:
        assert isinstance(read_arguments(text), dict)
    except MisuseError:
        pass
