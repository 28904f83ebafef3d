"""JSON of strangers, read so that every reader understands it alike, and at a price that is known before."""

import json
import math
from typing import Any, Final, cast

from skillwire.core.characters import quoted

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 2_000_000
"""How many values a document may hold: a short text can make a great many of them."""


class StrictJsonError(ValueError):
    """What a document is that cannot be used, as the rest of a sentence about it."""


def parse_strictly(data: bytes) -> object:
    """Read a JSON document.

    Raises:
        StrictJsonError: It is none, repeats a key, holds half a character or
            a number that is none, or has more values or levels than any has to have.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise StrictJsonError(f"holds more than {MAX_VALUES} values")
    try:
        value: object = json.loads(
            data.decode("utf-8-sig"), object_pairs_hook=_once, parse_constant=_no_number
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
    """Refuse what could be read here and not be written again: endless depth, half characters, `1e999`."""
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
            raise StrictJsonError("holds half of a surrogate pair") from None
        if not below:
            return
        level = below
    raise StrictJsonError(f"nests deeper than {MAX_DEPTH} levels")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise StrictJsonError(f"has the key {quoted(name[:100])} twice in one object")
            seen.add(name)
    return found


def _no_number(text: str) -> object:
    raise StrictJsonError(f"holds {text}, which is no number")
