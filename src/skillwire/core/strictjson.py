"""Strict parsing of untrusted JSON: nothing ambiguous is accepted, and the cost is limited."""

import json
import math
from typing import Any, Final, cast

from skillwire.core.characters import quoted

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 2_000_000
"""How many values a document may contain: a short text can contain very many."""


class StrictJsonError(ValueError):
    """A document cannot be used; the message is a predicate, such as `is not JSON`."""


def parse_strictly(data: bytes) -> object:
    """Parse a JSON document.

    Raises:
        StrictJsonError: It is not JSON, repeats a key, contains a lone surrogate
            or a non-finite number, or has too many values or levels.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise StrictJsonError(f"holds more than {MAX_VALUES} values")
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
            "".join(texts).encode()
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
