"""JSON, written compactly."""

import json

import orjson


def encode(value: object) -> bytes:
    """Write a JSON value.

    orjson knows no integers beyond 64 bits and no half of a surrogate pair, and
    a stranger's entry may hold both; the standard library writes those.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")
