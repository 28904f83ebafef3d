"""JSON Schema 2020-12 of strangers: which schemas are used here, and how one is walked.

A schema and what is held against it both come from strangers, so the price of
a check must be known before. General validators promise no such thing: regular
expressions backtrack, references multiply, and each failure inside `anyOf` is
written out with the value it is about. So schemas are evaluated here
(`validating.py`), step by step, up to a number of steps, and only as far as
the first failure.

What is not evaluated: `pattern` and `format` are remarks for the reader, and
the script itself must look, inside its sandbox. Keywords that cannot be left
out without changing what the others mean make a schema unusable:
`patternProperties`, `unevaluatedItems`, `unevaluatedProperties`, `$dynamicRef`,
an `$id` inside, and references to anything but a place in the schema itself.
Nothing is ever fetched.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, cast
from urllib.parse import unquote

import orjson

from skillwire.core.characters import quoted
from skillwire.core.yaml12 import JsonValue

MAX_SCHEMA_SIZE: Final = 64 * 1024
MISSING: Final = object()
"""What a reference points at that points at nothing."""

TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})

_VERSIONS = frozenset(
    {"https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2020-12/schema#"}
)
_UNUSABLE = frozenset(
    {"patternProperties", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"}
)
_SCHEMA = frozenset(
    {"additionalProperties", "items", "contains", "propertyNames", "not", "if", "then", "else"}
)
_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED_SCHEMAS = frozenset({"properties", "$defs", "dependentSchemas"})


def schema_problem(schema: object) -> str:
    """Say why a schema cannot be used, as the rest of a sentence; empty when it can."""
    if not isinstance(schema, dict):
        return "is no object"
    try:
        if len(orjson.dumps(schema)) > MAX_SCHEMA_SIZE:
            return f"is larger than {MAX_SCHEMA_SIZE} bytes"
    except TypeError:
        return "holds a number beyond 64 bits, or something that has no JSON form"
    root = cast("dict[str, JsonValue]", schema)
    if root.get("$schema", "") not in ("", *_VERSIONS):
        return "is a JSON Schema of another version than 2020-12"
    return _first_problem(root)


def target_of(root: Mapping[str, JsonValue], reference: str) -> object:
    """Return what a reference inside a schema points at, or `MISSING`."""
    if not reference.startswith("#/"):
        return root if reference == "#" else MISSING
    found: object = root
    for part in unquote(reference[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = cast("dict[str, object]", found).get(key, MISSING)
        elif isinstance(found, list) and key.isascii() and key.isdecimal() and len(key) < 6:
            items = cast("list[object]", found)
            found = items[int(key)] if int(key) < len(items) else MISSING
        else:
            return MISSING
    return found


def _first_problem(root: dict[str, JsonValue]) -> str:
    """Look at each subschema that is there or is referred to, once."""
    waiting: list[tuple[str, object]] = [("", root)]
    seen: set[int] = set()
    while waiting:
        place, schema = waiting.pop()
        if isinstance(schema, bool) or id(schema) in seen:
            continue
        if not isinstance(schema, dict):
            return f"has no schema at {quoted('#' + place)}"
        seen.add(id(cast(object, schema)))
        members = cast("dict[str, JsonValue]", schema)
        problem = _problem_of(members, is_root=members is root)
        if problem:
            return f"has {problem} at {quoted('#' + place)}" if place else f"has {problem}"
        if "$ref" in members:
            reference = cast(str, members["$ref"])
            target = target_of(root, reference)
            if target is MISSING:
                return f"refers to {quoted(reference)}, which is no place in it"
            waiting.append((reference[1:], target))
        waiting += [(f"{place}/{name}", inner) for name, inner in _inner(members)]
    return ""


def _inner(members: Mapping[str, JsonValue]) -> Iterator[tuple[str, object]]:
    for keyword, value in members.items():
        if keyword in _SCHEMA:
            yield keyword, value
        elif keyword in _SCHEMAS:
            for position, inner in enumerate(cast("list[JsonValue]", value)):
                yield f"{keyword}/{position}", inner
        elif keyword in _NAMED_SCHEMAS:
            for name, inner in cast("dict[str, JsonValue]", value).items():
                yield f"{keyword}/{name}", inner


def _problem_of(members: Mapping[str, JsonValue], *, is_root: bool) -> str:
    for keyword, value in members.items():
        if keyword in _UNUSABLE or (keyword == "$id" and not is_root):
            return f"`{keyword}`, which is not evaluated here,"
        is_good = _SHAPES.get(keyword)
        if is_good is not None and not is_good(value):
            return f"a malformed `{keyword}`"
    return ""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(value: object) -> bool:
    return _is_number(value) and cast(float, value) > 0


def _is_count(value: object) -> bool:
    return _is_number(value) and cast(float, value) >= 0 and cast(float, value) == int(cast(float, value))


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_filled_list(value: object) -> bool:
    return isinstance(value, list) and len(cast("list[object]", value)) > 0


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _are_names(value: object) -> bool:
    if not isinstance(value, list):
        return False
    names = cast("list[object]", value)
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _are_named_names(value: object) -> bool:
    return isinstance(value, dict) and all(map(_are_names, cast("dict[str, object]", value).values()))


def _is_type(value: object) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return _is_filled_list(value) and _are_names(value) and TYPES.issuperset(cast("list[str]", value))


_SHAPES: Mapping[str, Callable[[object], bool]] = {
    "$ref": _is_text,
    "$id": _is_text,
    "type": _is_type,
    "enum": _is_list,
    "pattern": _is_text,
    "format": _is_text,
    "uniqueItems": _is_flag,
    "multipleOf": _is_positive,
    "required": _are_names,
    "dependentRequired": _are_named_names,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_count),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _is_count),
    **dict.fromkeys(_SCHEMAS, _is_filled_list),
    **dict.fromkeys(_NAMED_SCHEMAS, _is_object),
}
