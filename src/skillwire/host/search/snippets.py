"""The part of a description that shows why a skill was found."""

import re
from collections.abc import Sequence
from typing import Final

from skillwire.host.presentation import summary_of
from skillwire.host.registry.known import KnownSkill
from skillwire.host.search.words import Word, aligned, is_spaceless

MAX_SNIPPET: Final = 240

_LEAD = 40
_MOST_HITS = 40
_ENTITY = re.compile("&(?:amp|lt|gt);")
_OPEN_ENTITY = re.compile("&[a-z]*$")
_CUT = "…"


def snippet_of(skill: KnownSkill, words: Sequence[Word]) -> str:
    """Return one harmless line from a skill's description, around the words where it has them."""
    summary = summary_of(skill)
    if len(summary) <= MAX_SNIPPET:
        return summary
    start = _start(summary, words)
    text = summary[start:]
    before = _CUT if start else ""
    room = MAX_SNIPPET - len(before)
    if len(text) <= room:
        return before + text
    text = _OPEN_ENTITY.sub("", text[: room - len(_CUT)])
    end = text.rfind(" ", len(text) - _LEAD)
    return before + (text[:end] if end > 0 else text).rstrip() + _CUT


def _start(summary: str, words: Sequence[Word]) -> int:
    """Say where to begin so that as many different words as possible are in view, and the first of them."""
    hits = _hits(summary, words)
    reach = MAX_SNIPPET - _LEAD - 2 * len(_CUT)
    best, most = 0, 0
    for number, (position, _) in enumerate(hits):
        within = {root for later, root in hits[number:] if later + len(root) <= position + reach}
        if len(within) > most:
            best, most = position, len(within)
    if best <= _LEAD:
        return 0
    return summary.find(" ", best - _LEAD, best) + 1 or best


def _hits(summary: str, words: Sequence[Word]) -> list[tuple[int, str]]:
    if not words:
        return []
    roots = {word.root for word in words}
    ways = [root if is_spaceless(root) else rf"\b{root}" for root in sorted(roots, key=len, reverse=True)]
    text = aligned(_ENTITY.sub(lambda entity: " " * len(entity.group()), summary))
    found: list[tuple[int, str]] = []
    for match in re.finditer("|".join(ways), text):
        found.append((match.start(), match.group()))
        if len(found) == _MOST_HITS:
            break
    return found
