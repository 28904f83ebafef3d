"""Breaking lines where a terminal ends, so that the terminal never does."""

import unicodedata
from functools import lru_cache
from typing import Final

NARROWEST: Final = 2
"""Columns that are always used: less cannot hold one wide character."""

_WIDE = frozenset("FW")
_UNSURE = frozenset({"So", "Sk", "Co", "Cn"})


@lru_cache(maxsize=4096)
def columns_of(character: str) -> int:
    """Return how many columns a visible character takes at most.

    Terminals disagree about symbols, and some take those of unsure width for
    wide ones. A line that is too short is harmless; one that is too long is
    broken by the terminal, and goes on at the edge.
    """
    if character < "\x7f":
        return 1
    if unicodedata.east_asian_width(character) in _WIDE or unicodedata.category(character) in _UNSURE:
        return 2
    is_letter = unicodedata.category(character)[0] in "LMN"
    return 2 if unicodedata.east_asian_width(character) == "A" and not is_letter else 1


def broken(text: str, width: int | None, *, indent: int = 0) -> list[str]:
    """Return the parts of a line, none wider than `width`, together the whole line.

    It is broken after a space where one is near, and anywhere else otherwise.
    The parts after the first leave room for `indent` columns. Without a
    width the line stays whole.
    """
    if width is None:
        return [text]
    parts: list[str] = []
    start, room = 0, max(width, NARROWEST)
    while start < len(text):
        end = _end(text, start, room)
        if end < len(text):
            space = text.rfind(" ", start, end)
            # A space at the very front is an indentation, and one far back would waste the line.
            if space > start + (end - start) // 2:
                end = space + 1
        parts.append(text[start:end])
        start, room = end, max(width - indent, NARROWEST)
    return parts or [""]


def _end(text: str, start: int, room: int) -> int:
    """Return where the part that starts at `start` has filled `room` columns, one character at least."""
    used = 0
    for position in range(start, len(text)):
        used += columns_of(text[position])
        if used > room:
            return max(position, start + 1)
    return len(text)
