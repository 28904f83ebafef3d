"""JSON of strangers: one meaning for every reader, at a known price."""

import tracemalloc
from typing import cast

import pytest

from skillwire.core.json import MAX_DEPTH, MAX_VALUES, StrictJsonError, parse_strictly

MIB = 1024 * 1024


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


def many(item: bytes) -> bytes:
    """Return an array of 6 MiB, with a character that takes four bytes."""
    return b"[" + b",".join([item] * (6 * MIB // (len(item) + 1))) + b',"\xf0\x9f\x8d\xb5"]'


@pytest.mark.requirement("ASK-38")
@pytest.mark.parametrize("item", [b'"ab"', b'{"a":1}', b'["xy"]'])
def test_many_small_values_are_refused_before_they_are_parsed(item: bytes) -> None:
    data = many(item)
    assert data.count(b",") + data.count(b"[") + data.count(b"{") < MAX_VALUES

    with pytest.raises(StrictJsonError):
        parse_strictly(data)


@pytest.mark.requirement("ASK-38")
def test_what_is_parsed_takes_a_few_times_its_size_in_memory() -> None:
    data = many(b'"caf\xc3\xa9 au lait"')
    tracemalloc.start()
    try:
        parse_strictly(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    # 64 MiB for the values of any document, and its text with four bytes a character.
    assert peak < 64 * MIB + 4 * len(data)


def test_ordinary_index_entries_are_read_at_any_size() -> None:
    digest = "sha256:" + "0" * 64
    entry = f'{{"name":"some-skill","url":"skill://some-skill/SKILL.md","digest":"{digest}"}}'

    assert len(cast("list[object]", parse_strictly(f"[{','.join([entry] * 80_000)}]".encode()))) == 80_000
