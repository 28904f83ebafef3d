"""JSON Schema of strangers: it means what it means to everyone, and has a price that is known before."""

import json
import time
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from skillwire.core.yaml12 import JsonValue
from skillwire.runner.schema import MAX_SCHEMA_SIZE, CostlyCheckError, Failure, first_failure, schema_problem

SECONDS = 20
"""Far more than any check takes, and far less than what is tried here would take."""

small = st.integers(-2, 4)
keys = st.sampled_from(["a", "b", "c"])
scalars = (
    st.none()
    | st.booleans()
    | small
    | st.sampled_from([0.5, 1.0, 2.5, -0.0])
    | st.sampled_from(["", "a", "bc"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
counts = st.integers(0, 3)
types = st.sampled_from(["null", "boolean", "object", "array", "number", "integer", "string"])


def keywords_with(inner: st.SearchStrategy[JsonValue]) -> st.SearchStrategy[JsonValue]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(keys, inner, max_size=2)
    known_names = st.lists(keys, unique=True, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": types | st.lists(types, min_size=1, max_size=3, unique=True),
            "enum": st.lists(values, min_size=1, max_size=3),
            "const": values,
            **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), small),
            **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), counts),
            **dict.fromkeys(("minProperties", "maxProperties"), counts),
            **dict.fromkeys(("items", "additionalProperties"), inner),
            **dict.fromkeys(("allOf", "anyOf", "oneOf"), several),
            "properties": named,
            "required": known_names,
            "uniqueItems": st.booleans(),
            "title": st.just("words"),
            "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two", "#/$defs/tree"]),
        },
    ).map(lambda schema: dict(list(schema.items())))


def only(name: str) -> JsonValue:
    return {"type": name}


leaves: st.SearchStrategy[JsonValue] = st.booleans() | types.map(only)
schemas = st.recursive(leaves, keywords_with, max_leaves=6)
DEFINITIONS: dict[str, JsonValue] = {
    "one": {"minimum": 1},
    "two": {"$ref": "#/$defs/one", "type": ["integer", "string"]},
    "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
}


def is_valid(schema: dict[str, JsonValue], value: JsonValue) -> bool:
    check = cast("Callable[[JsonValue], bool]", Draft202012Validator(schema).is_valid)  # pyright: ignore[reportUnknownMemberType]  # the stubs leave a parameter out
    return check(value)


@settings(deadline=None, max_examples=600)
@given(schemas, values)
def test_a_value_is_taken_exactly_when_another_validator_takes_it(
    schema: JsonValue, value: JsonValue
) -> None:
    whole: dict[str, JsonValue] = {"$defs": dict(DEFINITIONS), "allOf": [schema]}
    assert schema_problem(whole) == ""

    failure = first_failure(whole, value)

    assert (failure is None) == is_valid(whole, value)


@pytest.mark.parametrize(
    ("schema", "failure"),
    [
        ({"type": "array"}, Failure("", "is not of type array")),
        ({"required": ["c"]}, Failure("/c", "is missing")),
        ({"properties": {"a/b~": {"maximum": 1}}}, Failure("/a~1b~0", "is more than 1")),
        (
            {"properties": {"list": {"items": {"minLength": 3}}}},
            Failure("/list/1", "has less than 3 characters"),
        ),
        ({"properties": {"list": {"uniqueItems": True}}}, None),
        ({"additionalProperties": False}, Failure("/a~1b~0", "is not allowed")),
        ({"properties": {"word": {"enum": ["x", "y"]}}}, Failure("/word", "is not one of 'x, y'")),
        ({"properties": {"word": {"const": 1}}}, Failure("/word", "is not the only allowed value")),
    ],
)
def test_a_failure_says_where_and_what(schema: dict[str, JsonValue], failure: Failure | None) -> None:
    value: JsonValue = {"a/b~": 2, "list": ["long", "x"], "word": "z"}

    assert first_failure(schema, value) == failure


def test_a_pattern_is_a_remark_and_never_run() -> None:
    schema: dict[str, JsonValue] = {
        "properties": {"a": {"type": "string", "pattern": "^(a+)+$", "format": "uri"}}
    }
    started = time.process_time()

    assert schema_problem(schema) == ""
    assert first_failure(schema, {"a": "a" * 100_000 + "!"}) is None
    assert time.process_time() - started < SECONDS


UNUSABLE: list[object] = [
    None,
    True,
    [],
    "object",
    {"$schema": "http://json-schema.org/draft-07/schema#"},
    {"$schema": 5},
    {"$ref": "http://example.com/"},
    {"$ref": "file:///etc/passwd"},
    {"$ref": "#/$defs/none"},
    {"$ref": "#anchor"},
    {"$ref": "other.json#/a"},
    {"$ref": "#/required", "required": ["a"]},
    {"$ref": "#/required/00000000001", "required": ["a"]},
    {"$ref": 5},
    {"$ref": "#/words", "words": {"type": 5}},
    {"$ref": "%23"},
    {"type": []},
    {"type": ["string", "string"]},
    {"type": {}},
    {"enum": "a"},
    {"allOf": []},
    {"anyOf": {}},
    {"items": [{}]},
    {"items": None},
    {"properties": {"a": 5}},
    {"required": ["a", "a"]},
    {"required": "a"},
    {"minLength": -1},
    {"maxItems": 1.5},
    {"maxItems": True},
    {"minimum": "1"},
    {"uniqueItems": 1},
    {"pattern": 5},
    {"maximum": 10**30},
    {"description": "x" * MAX_SCHEMA_SIZE},
    {"const": object()},
]


@pytest.mark.parametrize("schema", UNUSABLE)
def test_a_schema_that_is_none_or_cannot_be_evaluated_has_a_problem(schema: object) -> None:
    assert schema_problem(schema)


@pytest.mark.parametrize(
    "keyword",
    [
        *("$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveRef", "$schema", "$vocabulary"),
        *("contains", "minContains", "maxContains", "prefixItems", "unevaluatedItems"),
        *("dependentRequired", "dependentSchemas", "patternProperties", "propertyNames"),
        *("if", "then", "else", "not", "multipleOf", "unevaluatedProperties", "dependencies", "nullable"),
    ],
)
def test_a_keyword_that_is_not_supported_is_refused_by_name_wherever_it_is(keyword: str) -> None:
    inner: JsonValue = {"items": {"anyOf": [True, {keyword: {}}]}}

    problem = schema_problem({"properties": {"a/b": inner}})

    assert problem == (
        f"has the keyword '{keyword}', which is not supported, at '#/properties/a~1b/items/anyOf/1'"
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:a", "$comment": "words"},
        {"title": "words", "description": "words", "default": 1, "examples": [1], "x-order": 1},
        {
            "$ref": "#/properties/a~1b%25",
            "properties": {"a/b%": {"items": {"$ref": "#/definitions/a"}}},
            "definitions": {"a": {"oneOf": [{"$ref": "#/definitions/a/oneOf/1"}, {"format": "uri"}]}},
        },
    ],
)
def test_remarks_and_references_inside_are_supported(schema: dict[str, JsonValue]) -> None:
    assert schema_problem(schema) == ""
    assert first_failure(schema, {}) is None or "definitions" in schema


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from(["type", "items", "allOf", "properties", "$ref", "required", "enum"]), values
    )
)
def test_no_schema_without_a_problem_makes_the_check_fail(schema: dict[str, JsonValue]) -> None:
    if not schema_problem(schema):
        first_failure(schema, {"a": [1, {"b": None}]})
        Draft202012Validator.check_schema(schema)


def three_of(level: int) -> JsonValue:
    return {
        "allOf": [{"$ref": f"#/$defs/{level}"}, {"$ref": f"#/$defs/{level}"}, {"$ref": f"#/$defs/{level}"}]
    }


LAUGHS: dict[str, JsonValue] = {
    "$ref": "#/$defs/0",
    "$defs": {**{str(level): three_of(level + 1) for level in range(60)}, "60": True},
}


def many(schema: JsonValue, number: int) -> list[JsonValue]:
    return [schema] * number


COSTLY: list[tuple[dict[str, JsonValue], object]] = [
    ({"$ref": "#"}, {}),
    ({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"}]}}}, {}),
    (LAUGHS, {}),
    ({"properties": {"a": {"allOf": many({"items": {}}, 1000)}}}, {"a": [0] * 400_000}),
    (
        {"properties": {"a": {"items": {"enum": list(range(5000))}}}},
        {"a": [-1.5, 4999] + [4999] * 100_000},
    ),
    (
        {"allOf": many({"properties": {"x" * 9: {}}, "additionalProperties": True}, 900)},
        {str(n): 0 for n in range(9999)},
    ),
]


@pytest.mark.parametrize(
    ("schema", "value"),
    COSTLY,
    ids=["itself", "itself-again", "laughs", "items", "enum", "members"],
)
def test_a_schema_that_costs_too_much_is_given_up_in_time(
    schema: dict[str, JsonValue], value: JsonValue
) -> None:
    assert schema_problem(schema) == ""
    started = time.process_time()  # Others may work on this machine, too.

    try:
        given_up = first_failure(schema, value) is not None
    except CostlyCheckError:
        given_up = True

    assert given_up
    assert time.process_time() - started < SECONDS


def test_a_large_value_that_fits_is_taken() -> None:
    rows: JsonValue = [[number, None] for number in range(60_000)]
    schema: dict[str, JsonValue] = {
        "properties": {"rows": {"items": {"items": {"anyOf": [{"type": "number"}, {"type": "null"}]}}}}
    }

    assert len(json.dumps(rows)) > 850_000
    assert first_failure(schema, {"rows": rows}) is None


def test_items_that_cannot_be_sorted_are_still_compared_quickly() -> None:
    items: JsonValue = [*([number] for number in range(100_000)), {}, "a", None, [99_999.0]]
    started = time.process_time()

    failure = first_failure({"properties": {"a": {"uniqueItems": True}}}, {"a": items})

    assert failure == Failure("/a/100003", "is a duplicate")
    assert time.process_time() - started < SECONDS
