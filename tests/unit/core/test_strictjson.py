"""JSON of strangers: one meaning for every reader, at a known price."""

import pytest

from skillwire.core.json import MAX_DEPTH, MAX_VALUES, StrictJsonError, parse_strictly


def test_a_document_is_read_with_or_without_a_byte_order_mark() -> None:
    assert parse_strictly(b'{"a": [1, "b"]}') == {"a": [1, "b"]}
    assert parse_strictly(b"\xef\xbb\xbf[]") == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b'["\\ud800"]',
        b"[" * 100_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b"[" + b"{}," * MAX_VALUES + b"{}]",
    ],
)
def test_what_readers_could_disagree_about_is_refused(data: bytes) -> None:
    with pytest.raises(StrictJsonError):
        parse_strictly(data)


@pytest.mark.parametrize("data", [b"1e999", b"[-1e999]", b'{"a": {"b": [1e400]}}'])
def test_a_number_that_becomes_infinite_is_refused(data: bytes) -> None:
    with pytest.raises(StrictJsonError):
        parse_strictly(data)


def test_large_numbers_that_can_be_held_are_read() -> None:
    assert parse_strictly(b"[1e308, -1e308, 1e-999]") == [1e308, -1e308, 0.0]
