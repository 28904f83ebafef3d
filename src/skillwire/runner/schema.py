"""Untrusted JSON Schemas (2020-12): which are supported, and how references are resolved.

The schema and the value are both untrusted, so the cost of a check must be
bounded. General validators do not guarantee this: regular expressions
backtrack, references multiply, and each failure inside `anyOf` is reported
with its value. So schemas are evaluated here (`validating.py`), up to a
maximum number of steps, and only up to the first failure.

`pattern` and `format` are not evaluated; the script itself must check them,
inside its sandbox. A schema is refused if it has keywords that cannot be
ignored without changing the meaning of others: `patternProperties`,
`unevaluatedItems`, `unevaluatedProperties`, `$dynamicRef`, a nested `$id`,
and references outside the schema itself. Nothing is fetched.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import ge, gt, le, lt
from typing import Final, TypeAlias, cast
from urllib.parse import unquote

import orjson

from skillwire.core import JsonValue, quoted

MAX_SCHEMA_SIZE: Final = 64 * 1024
MISSING: Final = object()
"""The target of a reference that points at nothing."""

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
    """Return why a schema cannot be used, as a predicate; empty when it can."""
    if not isinstance(schema, dict):
        return "is not an object"
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
    """Return the target of a reference inside a schema, or `MISSING`."""
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
    """Return the first problem of any subschema, checking each once."""
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
                return f"refers to {quoted(reference)}, which does not exist in it"
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
            return f"`{keyword}`, which is not supported,"
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


# Validate a value against a JSON Schema at a bounded cost. See `schema.py`.


MAX_STEPS: Final = 3_000_000
"""The most steps of one check: about one for each schema that a value is checked against."""

Schema: TypeAlias = "Mapping[str, JsonValue]"
Path: TypeAlias = "tuple[Path, str | int] | None"

_SHOWN = 40
_LONG_DIVISION = 20


class CostlyCheckError(Exception):
    """The check needs more steps than the limit allows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is wrong with a value: where, as a JSON Pointer, and what, as a predicate."""

    pointer: str
    problem: str


def first_failure(schema: Schema, value: JsonValue) -> Failure | None:
    """Return the first failure of `value` against a schema without problems; None when it is valid.

    Raises:
        CostlyCheckError: The check takes too many steps.
    """
    try:
        return _SchemaCheck(schema).failure(cast(JsonValue, schema), value, None)
    except RecursionError:
        raise CostlyCheckError from None


class _SchemaCheck:
    """One check of a value against a schema: the root for references, and the steps left."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = MAX_STEPS
        self._targets: dict[str, JsonValue] = {}

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise CostlyCheckError

    def failure(self, schema: JsonValue, value: JsonValue, path: Path) -> Failure | None:
        self.spend(1)
        if isinstance(schema, bool):
            return None if schema else _failed(path, "is not allowed")
        members = cast("dict[str, JsonValue]", schema)
        for keyword, wanted in members.items():
            check = _KEYWORDS.get(keyword)
            if check is not None:
                self.spend(1)
                failure = check(self, wanted, members, value, path)
                if failure is not None:
                    return failure
        return None

    def target(self, reference: str) -> JsonValue:
        """Return the schema that a reference points at, from a cache."""
        if reference not in self._targets:
            self._targets[reference] = cast(JsonValue, target_of(self._root, reference))
        return self._targets[reference]

    def allows(self, schema: JsonValue, value: JsonValue) -> bool:
        return self.failure(schema, value, None) is None

    def key(self, value: JsonValue) -> Hashable:
        """Return a key that is the same for equal values: 1 and 1.0 are equal, 1 and true are not."""
        self.spend(1)
        if isinstance(value, list):
            return ("list", tuple(map(self.key, value)))
        if isinstance(value, dict):
            return ("object", frozenset((name, self.key(item)) for name, item in value.items()))
        return (value, isinstance(value, bool))


Keyword: TypeAlias = Callable[[_SchemaCheck, JsonValue, Schema, JsonValue, Path], Failure | None]
"""Takes the keyword's value, the schema around it, a value and its path; the types were checked before."""


def _ref(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    return check.failure(check.target(cast(str, wanted)), value, path)


def _type(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    names = cast("list[str]", wanted if isinstance(wanted, list) else [wanted])
    if any(_TYPES[name](value) for name in names):
        return None
    return _failed(path, f"is not of type {' or '.join(names)}")


def _enum(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    allowed = cast("list[JsonValue]", wanted)
    key = check.key(value)
    if any(check.key(option) == key for option in allowed):
        return None
    options = [option for option in allowed if isinstance(option, str)]
    if options and len(options) == len(allowed):
        return _failed(path, f"is not one of {quoted(', '.join(options))}")
    return _failed(path, f"is not one of the {len(allowed)} allowed values")


def _const(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    if check.key(value) == check.key(wanted):
        return None
    return _failed(path, "is not the only allowed value")


def _all_of(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    schemas = cast("list[JsonValue]", wanted)
    for schema in schemas:
        failure = check.failure(schema, value, path)
        if failure is not None:
            return failure
    return None


def _any_of(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    schemas = cast("list[JsonValue]", wanted)
    if any(check.allows(schema, value) for schema in schemas):
        return None
    return _failed(path, f"matches none of the {len(schemas)} allowed schemas")


def _one_of(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    schemas = cast("list[JsonValue]", wanted)
    count = sum(check.allows(schema, value) for schema in schemas)
    if count == 1:
        return None
    return _failed(path, f"matches {count or 'none'} of {len(schemas)} schemas, and must match exactly one")


def _not(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    return _failed(path, "matches a schema that is not allowed") if check.allows(wanted, value) else None


def _if(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    branch = around.get("then" if check.allows(wanted, value) else "else", True)
    return check.failure(branch, value, path)


def _multiple_of(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    check.spend(_LONG_DIVISION)
    # In decimal: 0.3 is a multiple of 0.1, although their nearest doubles are not.
    if not _is_json_number(value) or Fraction(str(value)) % Fraction(str(wanted)) == 0:
        return None
    return _failed(path, f"is not a multiple of {_shown(wanted)}")


def _bound(is_good: Callable[[float, float], bool], problem: str) -> Keyword:
    def run(
        check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
    ) -> Failure | None:
        if not _is_json_number(value) or is_good(cast(float, value), cast(float, wanted)):
            return None
        return _failed(path, f"is {problem} {_shown(wanted)}")

    return run


def _size(
    kind: type[str] | type[list[object]] | type[dict[str, object]],
    is_good: Callable[[float, float], bool],
    problem: str,
    unit: str,
) -> Keyword:
    def run(
        check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
    ) -> Failure | None:
        if not isinstance(value, kind) or is_good(len(value), cast(float, wanted)):
            return None
        return _failed(path, f"has {problem} than {_shown(wanted)} {unit}")

    return run


def _items(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    if not isinstance(value, list):
        return None
    first = len(cast("list[JsonValue]", around.get("prefixItems", [])))
    for position in range(first, len(value)):
        failure = check.failure(wanted, value[position], (path, position))
        if failure is not None:
            return failure
    return None


def _prefix_items(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    schemas = cast("list[JsonValue]", wanted)
    if not isinstance(value, list):
        return None
    for position, (schema, item) in enumerate(zip(schemas, value, strict=False)):
        failure = check.failure(schema, item, (path, position))
        if failure is not None:
            return failure
    return None


def _contains(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    if not isinstance(value, list):
        return None
    count = sum(check.allows(wanted, item) for item in value)
    least, most = around.get("minContains", 1), around.get("maxContains", len(value))
    if cast(float, least) <= count <= cast(float, most):
        return None
    return _failed(path, f"has {count} items that match `contains`, which is not an allowed number")


def _unique_items(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    if not isinstance(value, list) or not wanted:
        return None
    seen: set[Hashable] = set()
    for position, item in enumerate(value):
        key = check.key(item)
        if key in seen:
            return _failed((path, position), "is a duplicate")
        seen.add(key)
    return None


def _properties(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    schemas = cast("dict[str, JsonValue]", wanted)
    if not isinstance(value, dict):
        return None
    check.spend(len(schemas))
    for name, schema in schemas.items():
        if name in value:
            failure = check.failure(schema, value[name], (path, name))
            if failure is not None:
                return failure
    return None


def _additional_properties(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    if not isinstance(value, dict):
        return None
    check.spend(len(value))
    declared = cast("dict[str, JsonValue]", around.get("properties", {}))
    for name, item in value.items():
        if name not in declared:
            failure = check.failure(wanted, item, (path, name))
            if failure is not None:
                return failure
    return None


def _property_names(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    if not isinstance(value, dict):
        return None
    for name in value:
        if not check.allows(wanted, name):
            return _failed((path, name), "has a name that is not allowed")
    return None


def _required(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    names = cast("list[str]", wanted)
    if not isinstance(value, dict):
        return None
    check.spend(len(names))
    missing = next((name for name in names if name not in value), None)
    return None if missing is None else _failed((path, missing), "is missing")


def _dependent_required(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    needs = cast("dict[str, JsonValue]", wanted)
    if not isinstance(value, dict):
        return None
    for name, others in needs.items():
        check.spend(1)
        if name in value:
            failure = _required(check, others, around, value, path)
            if failure is not None:
                return failure
    return None


def _dependent_schemas(
    check: _SchemaCheck, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    schemas = cast("dict[str, JsonValue]", wanted)
    if not isinstance(value, dict):
        return None
    for name, schema in schemas.items():
        check.spend(1)
        if name in value:
            failure = check.failure(schema, value, path)
            if failure is not None:
                return failure
    return None


def _is_json_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: JsonValue) -> bool:
    return _is_json_number(value) and (isinstance(value, int) or cast(float, value).is_integer())


def _shown(number: JsonValue) -> str:
    text = str(number)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _failed(path: Path, problem: str) -> Failure:
    parts: list[str] = []
    while path is not None:
        path, key = path
        parts.append(str(key).replace("~", "~0").replace("/", "~1"))
    return Failure("".join(f"/{part}" for part in reversed(parts)), problem)


_TYPES: Mapping[str, Callable[[JsonValue], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": _is_json_number,
    "integer": _is_integer,
}

_KEYWORDS: Mapping[str, Keyword] = {
    "$ref": _ref,
    "type": _type,
    "enum": _enum,
    "const": _const,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "multipleOf": _multiple_of,
    "minimum": _bound(ge, "less than"),
    "maximum": _bound(le, "more than"),
    "exclusiveMinimum": _bound(gt, "not more than"),
    "exclusiveMaximum": _bound(lt, "not less than"),
    "minLength": _size(str, ge, "less", "characters"),
    "maxLength": _size(str, le, "more", "characters"),
    "minItems": _size(list, ge, "less", "items"),
    "maxItems": _size(list, le, "more", "items"),
    "minProperties": _size(dict, ge, "less", "members"),
    "maxProperties": _size(dict, le, "more", "members"),
    "items": _items,
    "prefixItems": _prefix_items,
    "contains": _contains,
    "uniqueItems": _unique_items,
    "properties": _properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "required": _required,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
}
