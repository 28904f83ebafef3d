"""Strict parsing of untrusted JSON: nothing ambiguous is accepted, and the cost is limited."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final, cast

from skillwire.core.characters import quoted

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 2_000_000
"""How many values a document may contain: a short text can contain very many."""

_MIN_ALLOWED: Final = 64 * 1024 * 1024
_ALLOWED_FACTOR: Final = 8
# The memory that CPython needs for each kind of value besides its text, in bytes, rounded up.
_OBJECT, _EMPTY_OBJECT, _LIST, _STRING, _ITEM = 200, 80, 72, 60, 16
_PART: Final = 1024 * 1024
# Possessive quantifiers, and strings may continue after the part: each byte is matched once.
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
_END: Final = b"\0"


class StrictJsonError(ValueError):
    """A document cannot be used; the message is a predicate, such as `is not JSON`."""


def parse_strictly(data: bytes) -> object:
    """Parse a JSON document.

    Raises:
        StrictJsonError: It is not JSON, repeats a key, contains a lone surrogate
            or a non-finite number, has too many values or levels, or would need
            many times its size in memory.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise StrictJsonError(f"holds more than {MAX_VALUES} values")
    require_little_memory(data)
    try:
        value: object = json.loads(
            data.decode("utf-8-sig"), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except RecursionError as error:
        raise StrictJsonError(f"nests deeper than {MAX_DEPTH} levels") from error
    except StrictJsonError:
        raise
    except ValueError as error:
        raise StrictJsonError("is not JSON") from error
    _require_plain(value)
    return value


def require_little_memory(data: bytes) -> None:
    """Check, before JSON is parsed, that its values need at most a few times its size in memory.

    Values without text, such as millions of empty objects, need thirty times
    as much memory as they have bytes in JSON.

    Raises:
        StrictJsonError: They would need more.
    """
    allowed = max(_MIN_ALLOWED, _ALLOWED_FACTOR * len(data))
    # Counting text as structure is quick, and sufficient for most documents.
    if len(data) + _cost(data, data.count(b'"')) <= allowed:
        return
    total = len(data)
    for structure, strings in _without_text(data):
        total += _cost(structure, strings)
        if total > allowed:
            raise StrictJsonError(
                f"holds so many values that they would need more than {allowed} bytes of memory"
            )


def _cost(structure: bytes, strings: int) -> int:
    """Return how many bytes of memory the values in JSON need, without their text."""
    empty = structure.count(b"{}")
    return (
        _OBJECT * (structure.count(b"{") - empty)
        + _EMPTY_OBJECT * empty
        + _LIST * structure.count(b"[")
        + _ITEM * structure.count(b",")
        + _STRING * strings
    )


def _without_text(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield parts of JSON without its strings, with the number of strings."""
    start, is_inside = 0, False
    while start < len(body):
        end = min(start + _PART, len(body))
        while body[end - 1 : end] == b"\\" and end < len(body):
            end += 1
        part = (b'"' if is_inside else b"") + body[start:end] + _END
        structure, strings = _STRINGS.subn(b"", part)
        # An unclosed string matches up to and including the end marker.
        is_inside = not structure.endswith(_END)
        yield structure, strings
        start = end


def _require_plain(value: object) -> None:
    """Refuse values that cannot be written as JSON again: deep nesting, lone surrogates, `1e999`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        texts: list[str] = []
        below: list[object] = []
        for item in level:
            if isinstance(item, str):
                texts.append(item)
            elif isinstance(item, dict):
                members = cast("dict[str, object]", item)
                texts += members
                below += members.values()
            elif isinstance(item, list):
                below += cast("list[object]", item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise StrictJsonError("holds a number that is too large")
        try:
            for text in texts:
                if not text.isascii():
                    text.encode()
        except UnicodeEncodeError:
            raise StrictJsonError("contains a lone surrogate") from None
        if not below:
            return
        level = below
    raise StrictJsonError(f"nests deeper than {MAX_DEPTH} levels")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise StrictJsonError(f"has the key {quoted(name[:100])} twice in one object")
            seen.add(name)
    return found


def _refuse_constant(text: str) -> object:
    raise StrictJsonError(f"holds {text}, which is not a JSON number")
