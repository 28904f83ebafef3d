"""The resource `skill://index.json`: which of two dialects it is written in."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.dialects import Dialect
from skillwire.wire.index import SCHEMA, index_shape

GOLDEN = Path(__file__).parent / "golden"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["$schema", "skills", "type", "frontmatter", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@pytest.mark.requirement("NEG-13")
@pytest.mark.parametrize(
    ("name", "dialect"),
    [("index-june-index", Dialect.INDEX_JUNE), ("index-april-index", Dialect.INDEX_APRIL)],
)
def test_each_dialects_index_is_recognised_by_its_shape(name: str, dialect: Dialect) -> None:
    index = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))

    assert index_shape(index) is dialect


@pytest.mark.requirement("NEG-13")
@pytest.mark.requirement("IDX-06")
def test_an_empty_index_is_told_apart_by_its_schema() -> None:
    assert index_shape({"skills": []}) is Dialect.INDEX_JUNE
    assert index_shape({"skills": [], "more": 1}) is Dialect.INDEX_JUNE
    assert index_shape({"$schema": SCHEMA, "skills": []}) is Dialect.INDEX_APRIL


@pytest.mark.requirement("NEG-13")
@pytest.mark.parametrize(
    "value",
    [
        *(None, [], "skills", 7, {}, {"skills": {}}, {"skills": None}, {"$schema": SCHEMA}),
        {"skills": [{"name": "a", "description": "b", "files": ["SKILL.md"]}]},
        {"skills": [{"type": "skill-md"}]},
        {"$schema": SCHEMA, "skills": ["tea"]},
        {"skills": [None]},
    ],
)
def test_any_other_shape_is_no_index_that_we_know(value: object) -> None:
    assert index_shape(value) is None


@given(json_values)
def test_no_json_upsets_the_recognition(value: object) -> None:
    assert index_shape(value) in (Dialect.INDEX_JUNE, Dialect.INDEX_APRIL, None)
