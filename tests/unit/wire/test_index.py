"""The resource `skill://index.json`: which of two dialects it is written in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.dialects import Dialect
from skillwire.wire.index import SCHEMA, index_shape
from unit.wire.payloads import ANY_JSON, golden

MEMBERS = st.sampled_from(["$schema", "skills", "type", "frontmatter", "x"])


@pytest.mark.requirement("NEG-13")
@pytest.mark.parametrize(
    ("name", "dialect"),
    [("index-june-index", Dialect.INDEX_JUNE), ("index-april-index", Dialect.INDEX_APRIL)],
)
def test_each_dialects_index_is_recognised_by_its_shape(name: str, dialect: Dialect) -> None:
    index = golden(name)

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


@given(ANY_JSON | st.dictionaries(MEMBERS, ANY_JSON | st.lists(st.dictionaries(MEMBERS, ANY_JSON))))
def test_no_json_upsets_the_recognition(value: object) -> None:
    assert index_shape(value) in (Dialect.INDEX_JUNE, Dialect.INDEX_APRIL, None)
