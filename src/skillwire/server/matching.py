"""Ranking skills by how well their names and descriptions fit a few words.

A catalog is looked through as a whole: with the text of each skill folded once,
that takes milliseconds for ten thousand of them, and needs no index to keep.
"""

import re
import unicodedata
from dataclasses import dataclass
from math import log
from typing import Final

from skillwire.core.entry import SkillEntry
from skillwire.sources import Snapshot

MAX_QUERY: Final = 400
"""How many characters of a query are looked at."""
MAX_WORDS: Final = 12
"""How many different words of a query count."""

_WORD = re.compile(r"[^\W_]+")
_SHORTEST_ROOT = 4
_LONGEST_ENDING = 3


@dataclass(frozen=True, slots=True)
class _Folded:
    """A skill's words, each with a space before and after."""

    entry: SkillEntry
    name: str
    path: str
    description: str


class Matcher:
    """Ranks the skills of one server. What was folded is kept for as long as the entry is published."""

    def __init__(self) -> None:
        self._folded: tuple[Snapshot | None, list[_Folded]] = (None, [])

    def ranked(self, snapshot: Snapshot, query: str) -> list[SkillEntry]:
        """Return the skills that any word of `query` fits, best first.

        Words that few skills have count for more than words that many have,
        and skills that all words fit for more than others. Equals are sorted
        by URI. It may be called from any thread.
        """
        words = query_words(query)
        skills = self._fold(snapshot)
        scores: dict[int, float] = {}
        fitting: dict[int, int] = {}
        for word in words:
            worth = _worth(word, skills)
            rarity = log(1 + len(skills) / len(worth)) if worth else 0.0
            for position, value in worth.items():
                scores[position] = scores.get(position, 0.0) + value * rarity
                fitting[position] = fitting.get(position, 0) + 1
        # Entries are sorted by URI, and sorting keeps the order of equals.
        order = sorted(
            sorted(scores), key=lambda position: -scores[position] * fitting[position] / len(words)
        )
        return [skills[position].entry for position in order]

    def _fold(self, snapshot: Snapshot) -> list[_Folded]:
        known, folded = self._folded
        if known is not snapshot:
            before = {id(skill.entry): skill for skill in folded}
            folded = [before.get(id(entry)) or _fold_entry(entry) for entry in snapshot.entries]
            self._folded = snapshot, folded
        return folded


def query_words(query: str) -> list[str]:
    """Return the different words of a query, folded, as many as count."""
    return list(dict.fromkeys(_words(query[:MAX_QUERY])))[:MAX_WORDS]


def _worth(word: str, skills: list[_Folded]) -> dict[int, float]:
    """Return what a word is worth for each skill that it fits, by position.

    It stands there whole, as a beginning, or by its root; or inside another
    word, if it is long enough for that to be no accident.
    """
    root = _root(word)
    whole, start, stem = f" {word} ", f" {word}", f" {root}"
    hint = root if len(word) >= _SHORTEST_ROOT or not word.isascii() else start
    found: dict[int, float] = {}
    # This runs for every skill and word, hence one plain loop.
    for position, skill in enumerate(skills):
        value = 0.0
        if hint in (text := skill.name):
            value = 10.0 if whole in text else 7.0 if start in text else 5.0 if stem in text else 4.0
        if hint in (text := skill.description):
            value += 4.0 if whole in text else 2.5 if start in text else 1.5 if stem in text else 1.0
        if hint in (text := skill.path):
            value += 3.0 if whole in text else 2.0 if start in text else 1.0
        if value:
            found[position] = value
    return found


def _root(word: str) -> str:
    """Return the beginning that forms of a word share, near enough; short words are their own."""
    return word[: max(_SHORTEST_ROOT, len(word) - _LONGEST_ENDING)]


def _fold_entry(entry: SkillEntry) -> _Folded:
    name = entry.frontmatter.name
    above = entry.uri.root.partition("://")[2].rpartition("/")[0]
    # Someone may write a name as one word.
    joined = f"{name} {name.replace('-', '')}" if "-" in name else name
    return _Folded(
        entry, *(f" {' '.join(_words(text))} " for text in (joined, above, entry.frontmatter.description))
    )


def _words(text: str) -> list[str]:
    if not text.isascii():
        apart = unicodedata.normalize("NFKD", text)
        text = "".join(character for character in apart if not unicodedata.combining(character))
    return _WORD.findall(text.casefold())
