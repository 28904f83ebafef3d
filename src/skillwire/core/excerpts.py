"""The part of a text that shows why it was found."""

import re
from collections.abc import Sequence
from typing import Final

from skillwire.core.words import Word, aligned, is_spaceless

MAX_EXCERPT: Final = 240

_LEAD = 40
_MOST_HITS = 40
# What stands for a character in text that was escaped is no word of it, and is not cut in two.
_ENTITY = re.compile("&(?:amp|lt|gt);")
_OPEN_ENTITY = re.compile("&[a-z]*$")
_CUT = "…"


def excerpt_of(line: str, words: Sequence[Word]) -> str:
    """Return so much of one line of text as can be shown, around the words where it has them."""
    if len(line) <= MAX_EXCERPT:
        return line
    start = _start(line, words)
    text = line[start:]
    before = _CUT if start else ""
    room = MAX_EXCERPT - len(before)
    if len(text) <= room:
        return before + text
    text = _OPEN_ENTITY.sub("", text[: room - len(_CUT)])
    end = text.rfind(" ", len(text) - _LEAD)
    return before + (text[:end] if end > 0 else text).rstrip() + _CUT


def _start(line: str, words: Sequence[Word]) -> int:
    """Say where to begin so that as many different words as possible are in view, and the first of them."""
    hits = _hits(line, words)
    reach = MAX_EXCERPT - _LEAD - 2 * len(_CUT)
    best, most = 0, 0
    for number, (position, _) in enumerate(hits):
        within = {root for later, root in hits[number:] if later + len(root) <= position + reach}
        if len(within) > most:
            best, most = position, len(within)
    if best <= _LEAD:
        return 0
    return line.find(" ", best - _LEAD, best) + 1 or best


def _hits(line: str, words: Sequence[Word]) -> list[tuple[int, str]]:
    if not words:
        return []
    roots = {word.root for word in words}
    ways = [root if is_spaceless(root) else rf"\b{root}" for root in sorted(roots, key=len, reverse=True)]
    text = aligned(_ENTITY.sub(lambda entity: " " * len(entity.group()), line))
    found: list[tuple[int, str]] = []
    for match in re.finditer("|".join(ways), text):
        found.append((match.start(), match.group()))
        if len(found) == _MOST_HITS:
            break
    return found
