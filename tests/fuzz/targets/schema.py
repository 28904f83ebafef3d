"""JSON Schema: our evaluator and the `jsonschema` package say yes and no to the same values."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import jsonschema.validators

from fuzz.properties import require_fit
from skillwire.core.json import StrictJsonError, parse_strictly
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.schema import CostlyCheckError, first_failure, schema_problem


def _no_errors(*_: object) -> Iterator[Any]:
    return iter(())


# A pattern is a remark here.
_IGNORED = {"pattern", "format"}
_validators: Any = jsonschema.validators
_Other = _validators.extend(_validators.Draft202012Validator, dict.fromkeys(_IGNORED, _no_errors))
# What makes another evaluator look for things elsewhere.
_ELSEWHERE = {"$id", "$schema"}


def check(data: bytes) -> None:
    """The document is a list of a schema and values to hold against it."""
    try:
        document = parse_strictly(data)
    except StrictJsonError:
        return
    if not isinstance(document, list) or not document:
        return
    schema, *values = cast("list[JsonValue]", document)
    problem = schema_problem(schema)
    if problem:
        require_fit(problem)
        return
    root = cast("Mapping[str, JsonValue]", schema)
    for value in values[:5]:
        try:
            failure = first_failure(root, value)
        except CostlyCheckError:
            return
        if failure is not None:
            assert failure.problem
            assert failure.pointer == "" or failure.pointer.startswith("/")
        if not any(f'"{word}"'.encode() in data for word in _ELSEWHERE) and b"\\" not in data:
            try:
                is_valid = _Other(root).is_valid(value)
            except RecursionError:
                return
            assert is_valid == (failure is None), (schema, value, failure)
