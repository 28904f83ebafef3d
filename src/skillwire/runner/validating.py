"""Holding a value against a JSON Schema, at a price that is known before. See `schema.py`."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import ge, gt, le, lt
from typing import Final, TypeAlias, cast

from skillwire.core.characters import quoted
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.schema import target_of

MAX_STEPS: Final = 3_000_000
"""How much one check may cost: about a step for each schema that is held against a value."""

Schema: TypeAlias = "Mapping[str, JsonValue]"
Path: TypeAlias = "tuple[Path, str | int] | None"

_SHOWN = 40
_LONG_DIVISION = 20


class CostlyCheckError(Exception):
    """The schema asks for more steps than any check may take, or for endlessly many."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is wrong with a value: where, as a JSON Pointer, and what, as the rest of a sentence."""

    pointer: str
    problem: str


def first_failure(schema: Schema, value: JsonValue) -> Failure | None:
    """Return the first thing about `value` that a schema without problems does not allow.

    Raises:
        CostlyCheckError: It takes too many steps to tell.
    """
    try:
        return _Check(schema).failure(cast(JsonValue, schema), value, None)
    except RecursionError:
        raise CostlyCheckError from None


class _Check:
    """One value held against one schema: the root that references start from, and the steps left."""

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
        """Return the schema that a reference points at; each is looked for once."""
        if reference not in self._targets:
            self._targets[reference] = cast(JsonValue, target_of(self._root, reference))
        return self._targets[reference]

    def allows(self, schema: JsonValue, value: JsonValue) -> bool:
        return self.failure(schema, value, None) is None

    def key(self, value: JsonValue) -> Hashable:
        """Return something that equal values share: 1 and 1.0 are equal, and 1 and true are not."""
        self.spend(1)
        if isinstance(value, list):
            return ("list", tuple(map(self.key, value)))
        if isinstance(value, dict):
            return ("object", frozenset((name, self.key(item)) for name, item in value.items()))
        return (value, isinstance(value, bool))


Keyword: TypeAlias = Callable[[_Check, JsonValue, Schema, JsonValue, Path], Failure | None]
"""Gets the keyword's value, the schema around it, a value and its place; the types are as they must."""


def _ref(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
    return check.failure(check.target(cast(str, wanted)), value, path)


def _type(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
    names = cast("list[str]", wanted if isinstance(wanted, list) else [wanted])
    if any(_TYPES[name](value) for name in names):
        return None
    return _failed(path, f"is not of type {' or '.join(names)}")


def _enum(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
    allowed = cast("list[JsonValue]", wanted)
    key = check.key(value)
    if any(check.key(option) == key for option in allowed):
        return None
    options = [option for option in allowed if isinstance(option, str)]
    if options and len(options) == len(allowed):
        return _failed(path, f"is none of {quoted(', '.join(options))}")
    return _failed(path, f"is none of the {len(allowed)} values that are allowed")


def _const(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
    if check.key(value) == check.key(wanted):
        return None
    return _failed(path, "is not the one value that is allowed")


def _all_of(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
    schemas = cast("list[JsonValue]", wanted)
    for schema in schemas:
        failure = check.failure(schema, value, path)
        if failure is not None:
            return failure
    return None


def _any_of(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
    schemas = cast("list[JsonValue]", wanted)
    if any(check.allows(schema, value) for schema in schemas):
        return None
    return _failed(path, f"has none of the {len(schemas)} forms that are allowed")


def _one_of(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
    schemas = cast("list[JsonValue]", wanted)
    count = sum(check.allows(schema, value) for schema in schemas)
    if count == 1:
        return None
    return _failed(path, f"has {count or 'none'} of the {len(schemas)} forms of which it must have one")


def _not(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
    return _failed(path, "has a form that is not allowed") if check.allows(wanted, value) else None


def _if(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
    branch = around.get("then" if check.allows(wanted, value) else "else", True)
    return check.failure(branch, value, path)


def _multiple_of(
    check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    check.spend(_LONG_DIVISION)
    # As people write numbers: 0.3 is a multiple of 0.1, though their nearest doubles are not.
    if not _is_number(value) or Fraction(str(value)) % Fraction(str(wanted)) == 0:
        return None
    return _failed(path, f"is no multiple of {_shown(wanted)}")


def _bound(is_good: Callable[[float, float], bool], problem: str) -> Keyword:
    def run(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
        if not _is_number(value) or is_good(cast(float, value), cast(float, wanted)):
            return None
        return _failed(path, f"is {problem} {_shown(wanted)}")

    return run


def _size(
    kind: type[str] | type[list[object]] | type[dict[str, object]],
    is_good: Callable[[float, float], bool],
    problem: str,
    unit: str,
) -> Keyword:
    def run(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
        if not isinstance(value, kind) or is_good(len(value), cast(float, wanted)):
            return None
        return _failed(path, f"has {problem} than {_shown(wanted)} {unit}")

    return run


def _items(check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path) -> Failure | None:
    if not isinstance(value, list):
        return None
    first = len(cast("list[JsonValue]", around.get("prefixItems", [])))
    for position in range(first, len(value)):
        failure = check.failure(wanted, value[position], (path, position))
        if failure is not None:
            return failure
    return None


def _prefix_items(
    check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
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
    check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    if not isinstance(value, list):
        return None
    count = sum(check.allows(wanted, item) for item in value)
    least, most = around.get("minContains", 1), around.get("maxContains", len(value))
    if cast(float, least) <= count <= cast(float, most):
        return None
    return _failed(path, f"has {count} items of a form of which it must have another number")


def _unique_items(
    check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    if not isinstance(value, list) or not wanted:
        return None
    seen: set[Hashable] = set()
    for position, item in enumerate(value):
        key = check.key(item)
        if key in seen:
            return _failed((path, position), "is there twice")
        seen.add(key)
    return None


def _properties(
    check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
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
    check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
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
    check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    if not isinstance(value, dict):
        return None
    for name in value:
        if not check.allows(wanted, name):
            return _failed((path, name), "has a name that is not allowed")
    return None


def _required(
    check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
) -> Failure | None:
    names = cast("list[str]", wanted)
    if not isinstance(value, dict):
        return None
    check.spend(len(names))
    missing = next((name for name in names if name not in value), None)
    return None if missing is None else _failed((path, missing), "is missing")


def _dependent_required(
    check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
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
    check: _Check, wanted: JsonValue, around: Schema, value: JsonValue, path: Path
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


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: JsonValue) -> bool:
    return _is_number(value) and (isinstance(value, int) or cast(float, value).is_integer())


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
    "number": _is_number,
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
