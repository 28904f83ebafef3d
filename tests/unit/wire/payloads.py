"""What the tests of the dialects share: golden payloads, the published schemas, and any JSON at all."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from skillwire.core.yaml12 import JsonValue

_GOLDEN = Path(__file__).parent / "golden"
_SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas" / "wire"

ANY_JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def golden(name: str) -> Any:
    return json.loads((_GOLDEN / f"{name}.json").read_text("utf-8"))


def schema_of(dialect: str) -> Any:
    return json.loads((_SCHEMAS / f"{dialect}.json").read_text("utf-8"))


@cache
def _validator(dialect: str, definition: str) -> Any:
    schema = schema_of(dialect)
    wanted = {"$defs": schema["$defs"], "$ref": f"#/$defs/{definition}"} if definition else schema
    return Draft202012Validator(wanted)


def is_valid(dialect: str, value: object, definition: str = "") -> bool:
    """Return whether a value is what the schema of a dialect, or one definition in it, describes."""
    return _validator(dialect, definition).is_valid(value)
