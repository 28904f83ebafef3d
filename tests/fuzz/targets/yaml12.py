"""YAML: what is built from libyaml's events is what PyYAML's own constructor builds, and JSON means JSON."""

import json
from typing import Any, cast

import orjson
import yaml
from yaml.cyaml import CBaseLoader  # pyright: ignore[reportMissingTypeStubs]

from fuzz.properties import text_of
from skillwire.core import same_value
from skillwire.core.yaml12 import JsonValue, YamlRefusedError, parse_yaml

_REASONS = frozenset(
    {"syntax", "quote", "alias", "tag", "directive", "duplicate-key", "non-string-key", "number", "too-deep"}
    | {"too-large", "documents", "line-break"}
)


def check(data: bytes) -> None:
    text = text_of(data)
    try:
        value = parse_yaml(text)
    except YamlRefusedError as error:
        assert error.reason in _REASONS, error.reason
        assert error.line is None or 0 <= error.line <= text.count("\n") + 1
        return
    orjson.dumps(value)
    assert _same_shape(value, yaml.load(text, Loader=CBaseLoader))
    try:
        meant = json.loads(text)
    except (ValueError, RecursionError):
        return
    assert same_value(cast(JsonValue, meant), value), (meant, value)


def _same_shape(ours: JsonValue, theirs: Any) -> bool:
    """Compare with a value in which every scalar is its text; an empty document is none or no text."""
    if isinstance(ours, dict):
        return (
            isinstance(theirs, dict)
            and ours.keys() == cast("dict[str, Any]", theirs).keys()
            and all(_same_shape(item, theirs[key]) for key, item in ours.items())
        )
    if isinstance(ours, list):
        return (
            isinstance(theirs, list)
            and len(ours) == len(cast("list[Any]", theirs))
            and all(map(_same_shape, ours, cast("list[Any]", theirs)))
        )
    if isinstance(ours, str):
        return ours == theirs
    if ours is None:
        return theirs is None or str(theirs).lower() in ("", "~", "null")
    if isinstance(ours, bool):
        return str(theirs).lower() == str(ours).lower()
    return isinstance(theirs, str) and float(ours) == _number(theirs)


def _number(text: str) -> float:
    base = {"0x": 16, "0o": 8}.get(text[:2])
    return float(text) if base is None else float(int(text[2:], base))
