"""The part of JSON Schema (2020-12) in which a script declares its arguments.

The schema and the value are both untrusted, so the cost of a check must be
bounded. General validators do not guarantee this: regular expressions
backtrack, references multiply, and each failure inside `anyOf` is reported
with its value. So schemas are evaluated here, up to a maximum number of steps,
and only up to the first failure.

The supported keywords are those of `_SHAPES`; a schema with any other is
refused, because ignoring it could change what the schema means. `pattern`
and `format` are accepted and not evaluated: the script itself must check
them, inside its sandbox. References lead to schemas inside the same schema,
and nothing is fetched.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Final, TypeAlias, cast
from urllib.parse import unquote

import orjson

from skillwire.core.characters import quoted
from skillwire.core.yaml12 import JsonValue

MAX_SCHEMA_SIZE: Final = 64 * 1024
MAX_STEPS: Final = 3_000_000
"""The most steps of one check: some for each schema and keyword that a value is checked against."""

_VERSIONS = ("https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2020-12/schema#")
_ANNOTATIONS = (
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
)
_ROOT_ONLY = ("$schema", "$id")
_SCHEMA = ("items", "additionalProperties")
_SCHEMAS = ("allOf", "anyOf", "oneOf")
_NAMED_SCHEMAS = ("properties", "$defs", "definitions")
_BOUNDS = {
    "minimum": (ge, "less than"),
    "maximum": (le, "more than"),
    "exclusiveMinimum": (gt, "not more than"),
    "exclusiveMaximum": (lt, "not less than"),
}
_SIZES = {
    "minLength": (str, ge, "less", "characters"),
    "maxLength": (str, le, "more", "characters"),
    "minItems": (list, ge, "less", "items"),
    "maxItems": (list, le, "more", "items"),
    "minProperties": (dict, ge, "less", "members"),
    "maxProperties": (dict, le, "more", "members"),
}

_OWN = frozenset({"type", "enum", "const", "required", "uniqueItems", *_BOUNDS, *_SIZES})
_PARTS = frozenset({"$ref", "allOf", "items", "properties", "additionalProperties"})
_CHOICES = frozenset({"anyOf", "oneOf"})
_SCHEMA_STEPS = 4

Schema: TypeAlias = "Mapping[str, JsonValue]"
Path: TypeAlias = "tuple[Path, str | int] | None"


class CostlyCheckError(Exception):
    """The check needs more steps than the limit allows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is wrong with a value: where, as a JSON Pointer, and what, as a predicate."""

    pointer: str
    problem: str


def schema_problem(schema: object) -> str:
    """Return why a schema cannot be used, as a predicate; empty when it can."""
    if not isinstance(schema, dict):
        return "is not an object"
    try:
        if len(orjson.dumps(schema)) > MAX_SCHEMA_SIZE:
            return f"is larger than {MAX_SCHEMA_SIZE} bytes"
    except TypeError:
        return "holds a number beyond 64 bits, or something that has no JSON form"
    root = cast("dict[str, JsonValue]", schema)
    if root.get("$schema", _VERSIONS[0]) not in _VERSIONS:
        return "is a JSON Schema of another version than 2020-12"
    references: list[str] = []
    places: set[str] = set()
    for place, members in _subschemas(root):
        problem = _problem_of(members, is_root=not places)
        if problem:
            return f"has {problem} at {quoted(place)}" if places else f"has {problem}"
        places.add(place)
        if isinstance(members, dict) and "$ref" in members:
            references.append(cast(str, members["$ref"]))
    missing = next((one for one in references if _place_of(one) not in places), None)
    return "" if missing is None else f"refers to {quoted(missing)}, which is not a schema in it"


def first_failure(schema: Schema, value: JsonValue) -> Failure | None:
    """Return the first failure of `value` against a schema without problems; None when it is valid.

    Raises:
        CostlyCheckError: The check takes too many steps.
    """
    try:
        return _SchemaCheck(schema).failure(cast(JsonValue, schema), value, None)
    except RecursionError:
        raise CostlyCheckError from None


def _subschemas(root: Schema) -> Iterator[tuple[str, object]]:
    """Yield each schema in a schema, with the reference to it; itself first."""
    waiting: list[tuple[str, object]] = [("#", root)]
    while waiting:
        place, schema = waiting.pop()
        yield place, schema
        for keyword, value in cast(Schema, schema).items() if isinstance(schema, dict) else ():
            if keyword in _SCHEMA:
                waiting.append((f"{place}/{keyword}", value))
            elif keyword in _SCHEMAS:
                inner = enumerate(cast("list[JsonValue]", value))
                waiting += [(f"{place}/{keyword}/{position}", one) for position, one in inner]
            elif keyword in _NAMED_SCHEMAS:
                named = cast(Schema, value).items()
                waiting += [(f"{place}/{keyword}/{_escaped(name)}", one) for name, one in named]


def _problem_of(schema: object, *, is_root: bool) -> str:
    if isinstance(schema, bool):
        return ""
    if not isinstance(schema, dict):
        return "no schema"
    for keyword, value in cast("dict[str, JsonValue]", schema).items():
        if keyword.startswith("x-") or (is_root and keyword in _ROOT_ONLY):
            continue
        is_good = _SHAPES.get(keyword)
        if is_good is None:
            return f"the keyword {quoted(keyword)}, which is not supported,"
        if not is_good(value):
            return f"a malformed `{keyword}`"
    return ""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return _is_number(value) and (isinstance(value, int) or cast(float, value).is_integer())


def _is_filled_list(value: object) -> bool:
    return isinstance(value, list) and len(cast("list[object]", value)) > 0


def _are_names(value: object) -> bool:
    names = cast("list[object]", value) if isinstance(value, list) else [None]
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


_TYPES: Mapping[str, Callable[[object], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": _is_text,
    "number": _is_number,
    "integer": _is_integer,
}


def _is_type(value: object) -> bool:
    names = cast("list[object]", value) if isinstance(value, list) else [value]
    return _is_filled_list(names) and _are_names(names) and _TYPES.keys() >= set(cast("list[str]", names))


_SHAPES: Mapping[str, Callable[[object], bool]] = {
    "type": _is_type,
    "enum": _TYPES["array"],
    "required": _are_names,
    "uniqueItems": _TYPES["boolean"],
    **dict.fromkeys(("const", *_ANNOTATIONS, *_SCHEMA), lambda value: True),
    **dict.fromkeys(("$ref", "pattern", "format"), _is_text),
    **dict.fromkeys(_BOUNDS, _is_number),
    **dict.fromkeys(_SIZES, lambda value: _is_integer(value) and cast(float, value) >= 0),
    **dict.fromkeys(_SCHEMAS, _is_filled_list),
    **dict.fromkeys(_NAMED_SCHEMAS, _TYPES["object"]),
}
"""The supported keywords, and the test of their values; schemas in them are tested on their own."""


class _SchemaCheck:
    """One check of a value against a schema: the targets of references, and the steps left."""

    def __init__(self, root: Schema) -> None:
        self._targets = dict(_subschemas(root))
        self._left = MAX_STEPS

    def failure(self, schema: JsonValue, value: JsonValue, path: Path) -> Failure | None:
        if isinstance(schema, bool):
            self._spend(1)
            return None if schema else _failed(path, "is not allowed")
        members = cast("dict[str, JsonValue]", schema)
        self._spend(_SCHEMA_STEPS + len(members))
        if not _OWN.isdisjoint(members):
            failure = self._own_failure(members, value, path)
            if failure is not None:
                return failure
        if not _PARTS.isdisjoint(members):
            for inner, part, place in self._parts(members, value, path):
                failure = self.failure(inner, part, place)
                if failure is not None:
                    return failure
        return None if _CHOICES.isdisjoint(members) else self._choice_failure(members, value, path)

    def _own_failure(self, schema: Schema, value: JsonValue, path: Path) -> Failure | None:
        """Check what the schema says of the value itself, without its inner schemas."""
        types = schema.get("type", [])
        names = cast("list[str]", types if isinstance(types, list) else [types])
        if names and not any(_TYPES[name](value) for name in names):
            return _failed(path, f"is not of type {' or '.join(names)}")
        if "enum" in schema or "const" in schema:
            problem = self._value_problem(schema, value)
            if problem:
                return _failed(path, problem)
        for keyword, wanted in schema.items():
            limit = cast(float, wanted)
            if keyword in _BOUNDS and _is_number(value):
                is_good, problem = _BOUNDS[keyword]
                if not is_good(cast(float, value), limit):
                    return _failed(path, f"is {problem} {limit}")
            elif keyword in _SIZES:
                kind, is_good, problem, unit = _SIZES[keyword]
                if isinstance(value, kind) and not is_good(len(cast("list[JsonValue]", value)), limit):
                    return _failed(path, f"has {problem} than {limit} {unit}")
        if isinstance(value, dict):
            required = cast("list[str]", schema.get("required", []))
            self._spend(len(required))
            missing = next((name for name in required if name not in value), None)
            return None if missing is None else _failed((path, missing), "is missing")
        return self._duplicate(value, path) if schema.get("uniqueItems") and isinstance(value, list) else None

    def _value_problem(self, schema: Schema, value: JsonValue) -> str:
        key = self._key(value)
        if "const" in schema and key != self._key(schema["const"]):
            return "is not the only allowed value"
        allowed = cast("list[JsonValue]", schema.get("enum", [value]))
        if any(self._key(option) == key for option in allowed):
            return ""
        if allowed and all(isinstance(option, str) for option in allowed):
            return f"is not one of {quoted(', '.join(cast('list[str]', allowed)))}"
        return f"is not one of the {len(allowed)} allowed values"

    def _duplicate(self, items: list[JsonValue], path: Path) -> Failure | None:
        seen: set[Hashable] = set()
        for position, item in enumerate(items):
            key = self._key(item)
            if key in seen:
                return _failed((path, position), "is a duplicate")
            seen.add(key)
        return None

    def _parts(
        self, schema: Schema, value: JsonValue, path: Path
    ) -> Iterator[tuple[JsonValue, JsonValue, Path]]:
        """Yield the inner schemas that must all hold, each with what it must hold for."""
        if "$ref" in schema:
            yield cast(JsonValue, self._targets[_place_of(cast(str, schema["$ref"]))]), value, path
        for inner in cast("list[JsonValue]", schema.get("allOf", [])):
            yield inner, value, path
        if isinstance(value, list) and "items" in schema:
            for position, item in enumerate(value):
                yield schema["items"], item, (path, position)
        elif isinstance(value, dict):
            self._spend(len(value))
            declared = cast("dict[str, JsonValue]", schema.get("properties", {}))
            others = schema.get("additionalProperties", True)
            for name, item in value.items():
                yield declared.get(name, others), item, (path, name)

    def _choice_failure(self, schema: Schema, value: JsonValue, path: Path) -> Failure | None:
        any_of = cast("list[JsonValue]", schema.get("anyOf", []))
        if any_of and all(self.failure(inner, value, None) for inner in any_of):
            return _failed(path, f"matches none of the {len(any_of)} allowed schemas")
        one_of = cast("list[JsonValue]", schema.get("oneOf", []))
        count = sum(self.failure(inner, value, None) is None for inner in one_of)
        if not one_of or count == 1:
            return None
        problem = f"matches {count or 'none'} of {len(one_of)} schemas, and must match exactly one"
        return _failed(path, problem)

    def _key(self, value: JsonValue) -> Hashable:
        """Return a key that is the same for equal values: 1 and 1.0 are equal, 1 and true are not."""
        self._spend(1)
        if isinstance(value, list):
            return ("list", tuple(map(self._key, value)))
        if isinstance(value, dict):
            return ("object", frozenset((name, self._key(item)) for name, item in value.items()))
        return (value, isinstance(value, bool))

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise CostlyCheckError


def _failed(path: Path, problem: str) -> Failure:
    parts: list[str] = []
    while path is not None:
        path, key = path
        parts.append(_escaped(str(key)))
    return Failure("".join(f"/{part}" for part in reversed(parts)), problem)


def _place_of(reference: str) -> str:
    """Return the place that a reference names, as `_subschemas` spells it; empty outside the schema."""
    return f"#{unquote(reference[1:])}" if reference.startswith("#") else ""


def _escaped(name: str) -> str:
    """Return a name as a part of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")
