"""JSON of strangers: one meaning for every reader, at a known price."""

import pytest

from skillwire.wire.strictjson import MAX_DEPTH, MAX_VALUES, StrictJsonError, parse_strictly


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
