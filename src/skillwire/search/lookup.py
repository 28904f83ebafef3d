"""`TermLookup`: the terms of an index that match the words of a query, everywhere or in an area."""

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from skillwire.core import ByteCache
from skillwire.search.scores import MOST_RANKED, row_in, strongest_in
from skillwire.search.words import ROOTS, TERMS, Word, is_one_edit, is_spaceless

# How much another form of a word counts, such as `reviewing` for `review`.
_OTHER_FORM = 0.5
_MOST_FORMS = 4
_MIN_PREFIX = 3
_MAX_EXPANSIONS = 8
# How many words of other areas are skipped, to find one that is in the area.
_MOST_SKIPPED = 200
# The first letters of a misspelled word are taken as right.
_MIN_CORRECTED = 5
_TRUSTED_LETTERS = 2

# Translates the weights of all rows to the digits of a binary number.
_DIGITS = b"0" + b"1" * 255

SELECT_TERM: Final = "SELECT id, count, best, rows FROM terms JOIN weights USING (id) WHERE term = ?"
SELECT_EVERY: Final = "SELECT every FROM weights WHERE id = ?"
_BY_ROOT = "SELECT term FROM terms WHERE root = ? ORDER BY count DESC, term LIMIT ?"
_BY_PREFIX = "SELECT term, count FROM terms WHERE term >= ? AND term < ?"
# One edit leaves the first or the last half of a word as it is, or swaps two letters in the middle.
_BY_HALVES = (
    "SELECT term, count FROM terms WHERE term >= :low AND term < :high "
    "AND length(term) BETWEEN :length - 1 AND :length + 1 AND "
    "(substr(term, 1, :half) = :start OR substr(term, :half - :length) = :end OR "
    "substr(term, 1, :half - 1) = substr(:start, 1, :half - 1) AND "
    "substr(term, :half - :length + 1) = substr(:end, 2))"
)
_PREFIX_END = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class SearchArea:
    """The keys in ranges: in one of `spans`, and in none of `hidden`.

    A range is from the first key on, and before the second, if that is not empty.
    """

    spans: tuple[tuple[str, str], ...] = (("", ""),)
    hidden: tuple[tuple[str, str], ...] = ()

    @property
    def is_everything(self) -> bool:
        """Whether there is no other key."""
        return ("", "") in self.spans and not self.hidden

    def includes(self, key: str) -> bool:
        """Return whether a key is in the area."""
        return _is_in(key, self.spans) and not _is_in(key, self.hidden)


EVERYWHERE: Final = SearchArea()


def _is_in(key: str, ranges: Iterable[tuple[str, str]]) -> bool:
    return any(low <= key and (not high or key < high) for low, high in ranges)


class StoredTerm(NamedTuple):
    """A term of the index: in how many skills it is, its strongest rows, and all rows if there are more.

    In an area, the rows are only those in the area.
    """

    frequency: int
    best: Sequence[int]
    rows: int

    @property
    def size(self) -> int:
        """The approximate memory in bytes."""
        return 200 + 4 * len(self.best) + self.rows.bit_length() // 8


class TermLookup:
    """The terms that match the words of one query, each read once.

    With a `mask`, only the rows in an area count; then terms are kept in `cache`.
    """

    def __init__(
        self,
        database: sqlite3.Connection,
        area: SearchArea,
        mask: bytearray | None,
        cache: ByteCache[tuple[SearchArea, str], StoredTerm],
    ) -> None:
        self._database = database
        self._area = area
        self._mask = mask
        self._cache = cache
        self._found: dict[str, StoredTerm | None] = {}

    def find(self, name: str) -> StoredTerm | None:
        """Return a term, or None if no document has it."""
        if name not in self._found:
            self._found[name] = self._read(name)
        return self._found[name]

    def __getitem__(self, name: str) -> StoredTerm:
        return self.find(name) or StoredTerm(0, (), 0)

    def _read(self, name: str) -> StoredTerm | None:
        if self._mask is not None and (known := self._cache.get((self._area, name))):
            return known if known.best else None
        rows = self._database.execute(SELECT_TERM, (name,)).fetchall()
        if not rows:
            return None
        number, count, best, bits = rows[0]
        term = StoredTerm(count, array("I", best), 0 if bits is None else int.from_bytes(bits, "little"))
        if self._mask is None:
            return term
        if len(term.best) == count:
            best = array("I", [packed for packed in term.best if self._mask[row_in(packed)]])
            term = StoredTerm(count, best, 0)
        else:
            [(every,)] = self._database.execute(SELECT_EVERY, (number,)).fetchall()
            term = _in_mask(count, every, self._mask)
        self._cache.put((self._area, name), term, term.size)
        return term if term.best else None

    def resolve(self, words: Iterable[Word]) -> Iterator[tuple[Word, Mapping[str, float]]]:
        """Yield each word, corrected if need be, with the terms of the index that match it.

        Each term has a factor: other forms of a word count less than the word.
        """
        for word in words:
            if forms := self._forms(word.text):
                yield word, forms
            elif expanded := self._expand(word):
                yield word, dict.fromkeys(expanded, 1.0)
            elif similar := self._similar(TERMS[word.text]):
                yield Word(similar), self._forms(similar)
            else:
                yield word, {}
            for part in word.parts:
                yield Word(part), self._forms(part)

    def _forms(self, word: str) -> Mapping[str, float]:
        """Return the term of a word and the most frequent other forms of it."""
        term = TERMS[word]
        most = _MOST_FORMS if self._mask is None else _MOST_SKIPPED
        stored = (name for (name,) in self._database.execute(_BY_ROOT, (ROOTS[term], most)).fetchall())
        found = list(islice(filter(self.find, stored), _MOST_FORMS))
        forms = {form: _OTHER_FORM for form in found if form != term}
        return {term: 1.0, **forms} if len(forms) < len(found) or self.find(term) else forms

    def _expand(self, word: Word) -> tuple[str, ...]:
        """Return the most frequent terms that begin with a word, if it may be a prefix."""
        if not word.is_prefix or not (len(word.text) >= _MIN_PREFIX or is_spaceless(word.text)):
            return ()
        rows: list[tuple[str, int]] = self._database.execute(
            _BY_PREFIX, (word.text, word.text + _PREFIX_END)
        ).fetchall()
        names = [name for name, _ in sorted(rows, key=lambda row: (-row[1], row[0]))[:_MOST_SKIPPED]]
        return tuple(islice(filter(self.find, names), _MAX_EXPANSIONS))

    def _similar(self, term: str) -> str | None:
        """Return the most frequent term that is one edit away, if any."""
        if len(term) < _MIN_CORRECTED or not (term.isascii() and term.isalpha()):
            return None
        low, half = term[:_TRUSTED_LETTERS], len(term) // 2
        values = {"low": low, "high": low + _PREFIX_END, "length": len(term), "half": half}
        rows = self._database.execute(_BY_HALVES, {**values, "start": term[:half], "end": term[half:]})
        similar = sorted((-count, found) for found, count in rows if is_one_edit(term, found))
        return next((name for _, name in similar if self.find(name)), None)


def _in_mask(count: int, every: bytes, mask: bytearray) -> StoredTerm:
    """Return the part of a term in an area, from the weights of all rows."""
    masked = int.from_bytes(every, "little") & int.from_bytes(mask, "little")
    inside = masked.to_bytes(len(every), "little")
    best = array("I", strongest_in(inside, MOST_RANKED))
    return StoredTerm(count, best, int(inside.translate(_DIGITS)[::-1], 2))
