"""How long an answer over HTTP may be kept, by its own headers (RFC 9111)."""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

MOST_SECONDS: Final = 365 * 24 * 3600.0

_SECONDS = re.compile(r"[0-9]{1,10}")
_VALIDATOR = re.compile(r"[\x20-\x7e]{1,1024}")


def fresh_seconds(headers: Mapping[str, str]) -> float | None:
    """Return for how many seconds an answer stays good; None when its headers do not say.

    What cannot be understood counts as not to be kept at all. Headers are
    given with lowercase names.
    """
    directives = _directives(headers.get("cache-control", ""))
    if "no-store" in directives or "no-cache" in directives:
        return 0.0
    if "max-age" in directives:
        lifetime = _number(directives["max-age"])
    elif "expires" in headers:
        lifetime = _between(headers.get("date", ""), headers["expires"])
    else:
        return None
    return max(0.0, min(lifetime, MOST_SECONDS) - _number(headers.get("age", "0")))


def validators(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that ask whether an answer has changed; none when it has no tag and no date."""
    for name, asked in (("etag", "If-None-Match"), ("last-modified", "If-Modified-Since")):
        if _VALIDATOR.fullmatch(headers.get(name, "")):
            return {asked: headers[name]}
    return {}


def _directives(text: str) -> dict[str, str]:
    parts = (part.partition("=") for part in text.split(","))
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in parts}


def _number(text: str) -> float:
    return float(text) if _SECONDS.fullmatch(text.strip()) else 0.0


def _between(start: str, end: str) -> float:
    try:
        return (parsedate_to_datetime(end) - parsedate_to_datetime(start)).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return 0.0
