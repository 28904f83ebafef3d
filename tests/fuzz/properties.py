"""What every target asks of what it gets: how bytes become text and JSON, and which words may be said."""

import json
import re
from collections.abc import Iterable
from typing import cast

from skillwire.core.finding import RULES, Finding

LONGEST_MESSAGE = 2000

# Whatever moves a cursor, breaks a line, reorders it, or is no whole character.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_NO_JSON = object()


def text_of(data: bytes) -> str:
    """Make a text of any bytes, halves of surrogate pairs among them."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def json_of(data: bytes) -> tuple[object, bool]:
    """Read JSON as kindly as any reader does, and tell whether it was some."""
    try:
        return json.loads(data), True
    except (ValueError, RecursionError):
        return _NO_JSON, False


def same_json(left: object, right: object) -> bool:
    """Compare values of two readers, as doubles where one of them has no larger integers."""
    if isinstance(left, float) or isinstance(right, float):
        return (
            isinstance(left, int | float) and isinstance(right, int | float) and float(left) == float(right)
        )
    if isinstance(left, dict) and isinstance(right, dict):
        members, others = cast("dict[str, object]", left), cast("dict[str, object]", right)
        return members.keys() == others.keys() and all(
            same_json(members[key], others[key]) for key in members
        )
    if isinstance(left, list) and isinstance(right, list):
        items, more = cast("list[object]", left), cast("list[object]", right)
        return len(items) == len(more) and all(map(same_json, items, more))
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def require_fit(message: str) -> None:
    """Check that a message is one to show to anyone: on one line, short, and with nothing hidden in it."""
    assert message, "a refusal says something"
    assert len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} characters: {message[:200]!r}"
    assert not _UNFIT.search(message), f"a message with unfit characters: {message!r}"


def require_fit_findings(findings: Iterable[Finding]) -> None:
    for finding in findings:
        require_fit(finding.message)
        assert finding.code in RULES, finding.code
