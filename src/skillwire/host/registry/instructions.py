"""Skill URIs in a server's instructions: hints, to be confirmed before they mean anything."""

import re
from typing import Final

from skillwire.core.uri import SKILL_FILE, SkillUri
from skillwire.errors import InvalidUriError

MAX_URIS: Final = 20
MAX_INSPECTED: Final = 65_536

_ENDING = f"/{SKILL_FILE}"
# What no URI holds, so it parts one from the words around it.
_GAP = re.compile(r"[\s<>\"`{}|\\^]+")
_SCHEME_END = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*\Z")
_LONGEST_SCHEME = 64
# What may follow a URI: the end, or punctuation that does not lead on to more of a file's name.
_AFTER = re.compile(r"[.:!?]*(?:[,;)\]'…]|[*_]++(?![A-Za-z0-9])|\Z)")


def uris_in(text: str) -> tuple[str, ...]:
    """Return the URIs of `SKILL.md` files that a text mentions: canonical, each once, at most 20.

    The text is a stranger's: no more than its first 64 KiB is looked at, and
    each character a limited number of times. What no skill may have as its
    URI is passed over.
    """
    found: dict[str, None] = {}
    for word in _GAP.split(text[:MAX_INSPECTED]):
        start = 0
        while (end := _end_of_uri(word, start)) is not None:
            uri = _uri_before(word, start, end)
            if uri is not None:
                found[uri] = None
                if len(found) == MAX_URIS:
                    return tuple(found)
            start = end
    return tuple(found)


def _end_of_uri(word: str, start: int) -> int | None:
    """Return the place after the next `/SKILL.md` with which a URI may end."""
    while (ending := word.find(_ENDING, start)) >= 0:
        start = ending + len(_ENDING)
        if _AFTER.match(word, start):
            return start
    return None


def _uri_before(word: str, start: int, end: int) -> str | None:
    """Return the URI that ends at `end` and begins nowhere before `start`."""
    middle = word.rfind("://", start, end)
    if middle < 0:
        return None
    scheme = _SCHEME_END.search(word[max(start, middle - _LONGEST_SCHEME) : middle])
    if scheme is None:
        return None
    try:
        return SkillUri.parse(scheme.group() + word[middle:end]).text
    except InvalidUriError:
        return None
