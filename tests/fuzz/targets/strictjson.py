"""JSON of strangers: what is taken, every reader takes, and means the same by it."""

import json
from typing import cast

import orjson

from fuzz.properties import require_fit, same_json
from skillwire.core import encode
from skillwire.core.json import MAX_DEPTH, StrictJsonError, parse_strictly


def check(data: bytes) -> None:
    try:
        value = parse_strictly(data)
    except StrictJsonError as error:
        require_fit(str(error))
        return
    assert parse_strictly(encode(value)) == value
    plain = data.removeprefix(b"\xef\xbb\xbf")
    assert json.loads(plain) == value
    try:
        other = orjson.loads(plain)
    except orjson.JSONDecodeError as error:
        raise AssertionError(f"another reader refuses it: {error}") from error
    assert _depth(value) <= MAX_DEPTH
    assert same_json(other, value), (other, value)


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, cast("dict[str, object]", value).values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, cast("list[object]", value)), default=0)
    return 1
