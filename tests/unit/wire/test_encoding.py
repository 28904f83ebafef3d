"""Writing JSON: compactly, and whatever a stranger's entry may hold."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import encode

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_what_is_written_reads_back_as_it_was(value: object) -> None:
    assert json.loads(encode(value)) == value


UNUSUAL = [2**63, 2**64, -(2**63) - 1, 10**40, "half \ud800 of a pair", "the other \udfff half"]


@pytest.mark.parametrize("value", UNUSUAL, ids=ascii)
def test_what_few_writers_know_is_written_in_full(value: object) -> None:
    written = encode({"n": [value], "é": 1})

    assert json.loads(written) == {"n": [value], "é": 1}


def test_the_text_is_compact_and_not_escaped() -> None:
    assert encode({"a": [1, "ü☃"], "b": None}) == '{"a":[1,"ü☃"],"b":null}'.encode()
