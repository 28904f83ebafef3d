"""How well a word describes a skill, and the order of the skills that have words of a query.

The order is that of BM25F: each word of the query adds the more to the score of a
skill, the rarer the word is among all skills, the more important the fields are
that have it, and the more often and the more exclusively they do. A word counts
most in the name, then in tags, then in the description, then in the path, then
in headings and the first paragraph of the body, and least in the rest of it.
Repeating a word gains little. The lengths of fields are compared with fixed
averages, not with those of the other skills, so that the weights of a skill
depend on nothing but the skill.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import nlargest
from typing import Final, NamedTuple, TypeAlias

from skillwire.core import MAX_COMPATIBILITY, MAX_DESCRIPTION, Frontmatter
from skillwire.search.words import (
    BODY,
    DESCRIPTION,
    FIELDS,
    MAX_TAGS,
    NAME,
    PATH,
    STOP_TERMS,
    TAGS,
    TERMS,
    Word,
    count_words,
    joined,
    tags_of,
)

MAX_BODY: Final = 8 * 1024
"""How many characters of a body are searched."""
STRONGEST: Final = 255
"""The weight of a word that describes a skill best."""
MOST_SCORED: Final = 10_000
"""How many weights are added up for one query, about; of the most frequent words only the strongest count."""
MOST_RANKED: Final = 2048
"""How many weights of a word are used at most; in other skills it only matches."""
SMALL_SET: Final = 256
"""How many weights of a word are used in every query."""
HAS_SCRIPTS: Final = "\x01has-scripts"
"""Is indexed like a word in skills with scripts. No query has such a word."""
RERANKED: Final = 50
"""How many of the first matches a `Ranker` gets."""

_MAX_NAME = 200
_MAX_PLACE = 512
_SATURATION = 1.5
# A word that a field has more often counts no more, so that repeating it does not outweigh other fields.
_MOST_REPEATED = 4
# Fields count as at least this part of the average: no description of two words shall outweigh a name.
_SHORTEST = 0.3
_FIRST_ROWS = 256
# How much more each word of a query counts in a skill that has more of them.
_COVERAGE_EXPONENT = 0.25


class _Field(NamedTuple):
    """How much a word in a field counts, and how much less in one that is longer than the average."""

    bit: int
    weight: float
    by_length: float
    average: int


_NAME = _Field(1 << FIELDS.index(NAME), 10.0, 0.3, 3)
_TAGS = _Field(1 << FIELDS.index(TAGS), 8.0, 0.3, 6)
_PLACE = _Field(1 << FIELDS.index(PATH), 1.0, 0.3, 3)
_DESCRIPTION = _Field(1 << FIELDS.index(DESCRIPTION), 5.0, 0.7, 40)
_LEAD = _Field(1 << FIELDS.index(BODY), 1.2, 0.6, 60)
_BODY = _Field(1 << FIELDS.index(BODY), 0.5, 0.75, 600)


class Document(NamedTuple):
    """The texts of a skill that are searched: its name, its place and its frontmatter.

    `digest` is that of the file with the body, which is read again when it changes.
    `has_scripts` is for filters.
    """

    name: str
    place: str
    frontmatter: Frontmatter
    digest: str = ""
    has_scripts: bool = False


class Candidate(NamedTuple):
    """One of the first matches, for a `Ranker`."""

    key: str
    document: Document
    score: float


Ranker: TypeAlias = Callable[[str, Sequence[Candidate]], Sequence[float]]
"""Returns new scores for the first matches of a query, in their order; the highest comes first.

It must return the same scores for the same arguments: pages of one search are
ranked one by one. It is called in a worker thread.
"""


class WeighedWords(NamedTuple):
    """The words of a skill as stems: how well each describes it, and the bits of the fields that have it."""

    terms: Sequence[str]
    weights: bytes
    fields: bytes


def weigh(document: Document, body: str) -> WeighedWords:
    """Return the words of a skill."""
    body = body[:MAX_BODY]
    frontmatter = document.frontmatter
    compatibility = frontmatter.fields.get("compatibility")
    described = frontmatter.description[:MAX_DESCRIPTION]
    if isinstance(compatibility, str):
        described = f"{described} {compatibility[:MAX_COMPATIBILITY]}"
    name = document.name[:_MAX_NAME]
    totals = _parts(_BODY, body)
    bits = dict.fromkeys(totals, _BODY.bit)
    for field, text in (
        (_LEAD, lead_of(body)),
        (_NAME, f"{name} {joined(name)}" if joined(name) != name else name),
        (_TAGS, tags_of(frontmatter)[:MAX_TAGS]),
        (_PLACE, document.place[:_MAX_PLACE]),
        (_DESCRIPTION, described),
    ):
        for term, part in _parts(field, text).items():
            totals[term] = totals.get(term, 0.0) + part
            bits[term] = bits.get(term, 0) | field.bit
    if document.has_scripts:
        totals[HAS_SCRIPTS], bits[HAS_SCRIPTS] = 1.0, 0
    weights = bytes([int(STRONGEST * total / (total + _SATURATION)) for total in totals.values()])
    return WeighedWords(list(totals), weights, bytes(bits.values()))


def _parts(field: _Field, text: str) -> dict[str, float]:
    """Return how much each term of a field adds to its weight."""
    counts = count_words(text, splits=field is not _BODY)
    length = max(counts.total() / field.average, _SHORTEST)
    part = field.weight / (1 - field.by_length + field.by_length * length)
    found: dict[str, float] = {}
    for word, count in counts.items():
        term = TERMS[word]
        found[term] = found.get(term, 0.0) + min(count, _MOST_REPEATED) * part
    if field is _BODY:
        for term in STOP_TERMS & found.keys():
            del found[term]
    return found


_HEADING = re.compile("^ {0,3}#{1,6} .+$", re.MULTILINE)
# Lines up to an empty one or a heading.
_PARAGRAPH = re.compile(
    "^(?! {0,3}#)[^\\n]*[^\\s][^\\n]*(?:\\n(?! {0,3}#)[^\\n]*[^\\s][^\\n]*)*", re.MULTILINE
)


def lead_of(body: str) -> str:
    """Return the headings and the first paragraph of a Markdown text."""
    first = _PARAGRAPH.search(body)
    return "\n".join([*_HEADING.findall(body), *([first.group()] if first else [])])


def field_names(bits: int) -> tuple[str, ...]:
    """Return the names of the fields whose bits are set."""
    return tuple(name for number, name in enumerate(FIELDS) if bits >> number & 1)


class Term(NamedTuple):
    """A word of the index: its rarity, and the rows of the skills that it describes best, as in `pack`.

    These are all, or more than `MOST_RANKED`.
    """

    rarity: float
    best: Sequence[int]


ROW_BITS: Final = 24
_ROW = (1 << ROW_BITS) - 1


def pack(weights: bytes, row: int) -> list[int]:
    """Return weights, each with the row, as numbers; those sort by weight, the strongest first."""
    return [(STRONGEST - weight) << ROW_BITS | row for weight in weights]


def row_in(packed: int) -> int:
    """Return the row of a packed number."""
    return packed & _ROW


def weight_in(packed: int) -> int:
    """Return the weight of a packed number."""
    return STRONGEST - (packed >> ROW_BITS)


def strongest_in(weights: bytes, most: int) -> list[int]:
    """Return the packed numbers of the strongest weights of rows, sorted: all, or more than `most`.

    There are all rows of the last weight, or none. A weight of 0 is no weight.
    """
    found: list[int] = []
    for weight in range(STRONGEST, 0, -1):
        row = weights.find(weight)
        while row >= 0:
            found.append((STRONGEST - weight) << ROW_BITS | row)
            row = weights.find(weight, row + 1)
        if len(found) > most:
            break
    return found


@dataclass(frozen=True, slots=True)
class Ranking:
    """The matches of a query in their order.

    `words` are those of the query, with spelling corrected, and `terms` the
    stems that match them. `rows` are all matches as the bits of a number.
    Those without a score have only words that describe many others better;
    they come last.
    """

    words: tuple[Word, ...]
    terms: frozenset[str]
    scores: Mapping[int, float]
    rows: int
    keys: Sequence[str]

    @property
    def total(self) -> int:
        """The number of all matches."""
        return self.rows.bit_count()

    def __iter__(self) -> Iterator[tuple[str, float]]:
        """Yield the key and the score of each match once, the best first, equals by their keys."""
        scores, keys = self.scores, self.keys
        first = scores
        if len(scores) > _FIRST_ROWS:
            # Most callers want a page: the rest is sorted only for those who go on.
            bound = nlargest(_FIRST_ROWS, scores.values())[-1]
            first = {row: score for row, score in scores.items() if score >= bound}
        yield from _sorted(first, keys)
        if len(first) < len(scores):
            yield from _sorted({row: score for row, score in scores.items() if row not in first}, keys)
        others = sorted(keys[row] for row in rows_in(self.rows) if row not in scores)
        yield from ((key, 0.0) for key in others)


def _sorted(scores: Mapping[int, float], keys: Sequence[str]) -> list[tuple[str, float]]:
    return sorted(((keys[row], score) for row, score in scores.items()), key=lambda one: (-one[1], one[0]))


def rows_in(bits: int) -> Iterator[int]:
    """Yield the positions of the bits that are set, in order."""
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    for number, byte in enumerate(data):
        while byte:
            lowest = byte & -byte
            yield number * 8 + lowest.bit_length() - 1
            byte ^= lowest


def bits_of(rows: Iterable[int], size: int, others: int = 0) -> int:
    """Return a set of rows, each less than `size`, and of `others` as the bits of a number."""
    data = bytearray(others.to_bytes(size // 8 + 1, "little"))
    for row in rows:
        data[row >> 3] |= 1 << (row & 7)
    return int.from_bytes(data, "little")


def score(words: Sequence[Sequence[Term]]) -> dict[int, float]:
    """Return the scores of the rows that words of a query describe.

    A word is one term or several, of which the first counts that a skill has.
    A skill with more of the words gets more for each.
    """
    cap = _cap([min(len(term.best), MOST_RANKED) for alternatives in words for term in alternatives])
    found: dict[int, int] = {}
    for alternatives in words:
        seen: set[int] = set()
        for number, term in enumerate(alternatives, start=1):
            # Another form of the word counts less, and so do its weaker rows.
            best = _strongest(term.best, cap if number == 1 else cap // 4)
            _add(found, best, round(term.rarity * _SCALE), seen)
            if number < len(alternatives):
                seen.update(map(row_in, best))
    most = max(len(words), 1)
    shares = [(number / most) ** _COVERAGE_EXPONENT / _SCALE for number in range(len(words) + 1)]
    return {row: (value & _SUM) * shares[value >> _SUM_BITS] for row, value in found.items()}


def _cap(lengths: Sequence[int]) -> int:
    """Return how many rows of each term are scored, so that a query costs at most a fixed amount."""
    room = MOST_SCORED
    for number, length in enumerate(sorted(lengths)):
        share = room // (len(lengths) - number)
        if length > share:
            return max(share, SMALL_SET)
        room -= length
    return MOST_RANKED


def _strongest(best: Sequence[int], most: int) -> Sequence[int]:
    """Return the first rows; of equal weights all or none, so that row numbers do not decide."""
    if len(best) <= most:
        return best
    return best[: bisect_left(best, best[most] & ~_ROW)]


# Sums of scores are integers, with the number of words above them.
_SUM_BITS = 40
_SUM = (1 << _SUM_BITS) - 1
_SCALE = 1024


def _add(scores: dict[int, int], best: Sequence[int], step: int, seen: Set[int]) -> None:
    """Add the weights of a term to the scores of those rows that do not have another form of the word."""
    most, get = (1 << _SUM_BITS) + STRONGEST * step, scores.get
    if seen:
        best = [packed for packed in best if packed & _ROW not in seen]
    for packed in best:
        row = packed & _ROW
        scores[row] = get(row, 0) + most - step * (packed >> ROW_BITS)
