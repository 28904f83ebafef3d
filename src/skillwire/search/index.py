"""`SearchIndex`: which skills have a word, in a SQLite database, updated by what changed.

For each word the database has the skills that it describes best, with weights,
and the set of all skills that have it. So the cost of a query depends on its
number of words, hardly on the number of skills. The order of matches depends on
the skills alone, not on the changes that led to them.
SQLite's own full-text search computes the weight of every match for every
query, which takes ten times as long for a question of 400 characters in 10,000
bodies.

With a path, the index is a file that the next start continues with. It is used
by one process at a time; others use a file beside it.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import islice
from math import log1p
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from weakref import finalize

import platformdirs

from skillwire.search.database import open_derived
from skillwire.search.scores import (
    MOST_RANKED,
    RERANKED,
    SMALL_SET,
    Candidate,
    Document,
    Ranker,
    Ranking,
    Term,
    WeighedWords,
    bits_of,
    field_names,
    pack,
    row_in,
    rows_in,
    score,
    weigh,
)
from skillwire.search.words import ROOTS, TERMS, Word, is_one_edit, is_spaceless, query_words, tags_of

MAX_INDEX_BYTES: Final = 2 * 1024**3
"""The maximum size of the database; 10,000 skills take about 40 MB."""
MOST_STORED: Final = 2 * MOST_RANKED
"""For how many skills the weight of a word is stored: more than are used, so that some may be removed."""

_FORMAT = 2
_CACHE_KIBIBYTES = 8 * 1024
_BATCH = 1_500_000
# With fewer changes, the index is never rebuilt.
_FEW_CHANGES = 1000
# Rare words would else outweigh everything else in a long question.
_RARITY_EXPONENT = 0.85
# How much another form of a word counts, such as `reviewing` for `review`.
_OTHER_FORM = 0.5
_MOST_FORMS = 4
_MIN_PREFIX = 3
_MAX_EXPANSIONS = 8
# The first letters of a misspelled word are taken as right.
_MIN_CORRECTED = 5
_TRUSTED_LETTERS = 2

_CREATE = (
    "DROP TABLE IF EXISTS documents",
    "DROP TABLE IF EXISTS terms",
    "CREATE TABLE documents "
    "(row INTEGER PRIMARY KEY, key TEXT NOT NULL, digest BLOB NOT NULL, words BLOB NOT NULL)",
    "CREATE TABLE terms (id INTEGER PRIMARY KEY, term TEXT NOT NULL UNIQUE, root TEXT NOT NULL, "
    "count INTEGER NOT NULL, best BLOB NOT NULL, rows BLOB)",
    "CREATE INDEX roots ON terms (root, count DESC, term)",
)
_INSERT_DOCUMENT = "INSERT INTO documents VALUES (?, ?, ?, ?)"
_TERM = "SELECT id, count, best, rows FROM terms WHERE term = ?"
_INSERT_TERM = "INSERT INTO terms (term, root, count, best, rows) VALUES (?, ?, ?, ?, ?)"
_BY_ROOT = "SELECT term FROM terms WHERE root = ? ORDER BY count DESC, term LIMIT ?"
_UPDATE_TERM = "UPDATE terms SET count = ?, best = ?, rows = ? WHERE id = ?"
_BY_PREFIX = "SELECT term, count FROM terms WHERE term >= ? AND term < ?"
_PREFIX_END = "\U0010ffff"


class _StoredTerm(NamedTuple):
    """A term of the index: in how many skills it is, its strongest rows, and all rows if there are more."""

    frequency: int
    best: Sequence[int]
    rows: int


_NO_ROWS: frozenset[int] = frozenset()
_NO_NUMBERS = array("I")

Include: TypeAlias = Callable[[str], bool]


ReadBody: TypeAlias = Callable[[str], str | None]
"""Returns the body of a document by its key; None if it cannot be read now, and may be later."""


def no_body(_key: str) -> str:
    """Return an empty body: for skills whose bodies are not searched."""
    return ""


def index_file(key: str, folder: Path | None = None) -> Path | None:
    """Return where the index of the skills with a key is, by default in the user's cache."""
    if not key:
        return None
    name = blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return (folder or platformdirs.user_cache_path("skillwire") / "search") / name


class SearchIndex:
    """An index of documents, which have keys. Any thread may use it, one at a time.

    After a `sqlite3.Error`, call `discard`. The next update builds the index again.
    """

    def __init__(
        self, path: Path | None = None, *, ranker: Ranker | None = None, most_bytes: int = MAX_INDEX_BYTES
    ) -> None:
        self._path = path
        self._ranker = ranker
        self._most_bytes = most_bytes
        self.is_stopped = False
        self._database: sqlite3.Connection | None = None
        self._file: Path | None = None
        self._release: Callable[[], object] | None = None
        self._version: object = None
        self._keys: list[str] = []
        self._free: list[int] = []
        self._rows: dict[str, tuple[int, Document]] = {}

    def close(self) -> None:
        """Close the database. A file stays for the next start."""
        if self._release is not None:
            self._release()
        self._database, self._file, self._release, self._version = None, None, None, None
        self._keys, self._free, self._rows = [], [], {}

    def discard(self) -> None:
        """Close the database, and delete its file."""
        file = self._file
        self.close()
        if file is not None:
            with suppress(OSError):
                file.unlink()

    def stop(self) -> None:
        """Interrupt updates in other threads with a `sqlite3.OperationalError`, permanently."""
        self.is_stopped = True

    def update(
        self,
        version: object,
        documents: Callable[[], Mapping[str, Document]],
        body: ReadBody = no_body,
    ) -> None:
        """Update the index to documents by key; only changed ones are read and written.

        `documents` is called only if `version` is another object than at the
        last update, and `body` for the key of each document that is written.

        Raises:
            sqlite3.Error: The database cannot be written.
        """
        if version is self._version and self._database is not None:
            return
        current = documents()
        gone = self._open(current) if self._database is None else self._gone(current)
        new = [item for item in current.items() if item[0] not in self._rows]
        if len(gone) + len(new) > _FEW_CHANGES + len(current) // 2 and self._keys:
            self.discard()
            gone, new = self._open({}), list(current.items())
        assert self._database is not None, "it is open now"
        if gone or new:
            self._change(self._database, gone, new, body)
        self._version = version

    def rank(self, query: str, include: Include | None = None) -> Ranking:
        """Return the documents that have words of a query; `include` is a filter by key.

        A word that no document has is taken as a prefix, if it is the last one,
        or else as misspelled.

        Raises:
            sqlite3.Error: The database cannot be read.
        """
        assert self._database is not None, "`update` is called first"
        resolved = list(self._resolve(self._database, query_words(query)))
        words = tuple(word for word, _ in resolved)
        found = self._terms(self._database, {name for _, names in resolved for name in names})
        scores = score([self._weighed(names, found) for _, names in resolved if names])
        rows = 0
        for term in found.values():
            rows |= term.rows
        few = [row_in(packed) for term in found.values() if not term.rows for packed in term.best]
        rows = bits_of(few, len(self._keys), rows)
        if include is not None:
            kept = {row for row in rows_in(rows) if include(self._keys[row])}
            rows = bits_of(kept, len(self._keys))
            scores = {row: value for row, value in scores.items() if row in kept}
        ranking = Ranking(words, frozenset(found), scores, rows, self._keys)
        return ranking if self._ranker is None else self._reranked(ranking, query, self._ranker)

    def fields_of(self, key: str, ranking: Ranking) -> tuple[str, ...]:
        """Return the fields of a match that have words of the query.

        Raises:
            sqlite3.Error: The database cannot be read.
        """
        assert self._database is not None, "`update` is called first"
        row, _ = self._rows[key]
        bits = 0
        words = self._words_of(self._database, row)
        for term, fields in zip(words.terms, words.fields, strict=True):
            if term in ranking.terms:
                bits |= fields
        return field_names(bits)

    def _reranked(self, ranking: Ranking, query: str, ranker: Ranker) -> Ranking:
        """Let the user's ranker put the first matches into another order; all others stay behind them."""
        first = [Candidate(key, self._rows[key][1], value) for key, value in islice(ranking, RERANKED)]
        scores = dict(ranking.scores)
        above = max(scores.values(), default=0.0) + 1.0
        values = ranker(query, first)
        for position, number in enumerate(sorted(range(len(first)), key=lambda number: -values[number])):
            scores[self._rows[first[number].key][0]] = above + len(first) - position
        return Ranking(ranking.words, ranking.terms, scores, ranking.rows, ranking.keys)

    # Words of a query

    def _resolve(
        self, database: sqlite3.Connection, words: Iterable[Word]
    ) -> Iterator[tuple[Word, Mapping[str, float]]]:
        """Yield each word, corrected if need be, with the terms of the index that match it.

        Each term has a factor: other forms of a word count less than the word.
        """
        for word in words:
            if forms := self._forms(database, word.text):
                yield word, forms
            elif expanded := self._expand(database, word):
                yield word, dict.fromkeys(expanded, 1.0)
            elif similar := self._similar(database, TERMS[word.text]):
                yield Word(similar), self._forms(database, similar)
            else:
                yield word, {}
            for part in word.parts:
                yield Word(part), self._forms(database, part)

    def _forms(self, database: sqlite3.Connection, word: str) -> Mapping[str, float]:
        """Return the term of a word and the most frequent other forms of it."""
        term = TERMS[word]
        found: list[tuple[str]] = database.execute(_BY_ROOT, (ROOTS[term], _MOST_FORMS)).fetchall()
        forms = {form: _OTHER_FORM for (form,) in found if form != term}
        return {term: 1.0, **forms} if len(forms) < len(found) or self._has(database, term) else forms

    def _has(self, database: sqlite3.Connection, term: str) -> bool:
        return bool(database.execute("SELECT 1 FROM terms WHERE term = ?", (term,)).fetchall())

    def _expand(self, database: sqlite3.Connection, word: Word) -> tuple[str, ...]:
        """Return the most frequent terms that begin with a word, if it may be a prefix."""
        if not word.is_prefix or not (len(word.text) >= _MIN_PREFIX or is_spaceless(word.text)):
            return ()
        rows: list[tuple[str, int]] = database.execute(
            _BY_PREFIX, (word.text, word.text + _PREFIX_END)
        ).fetchall()
        return tuple(term for term, _ in sorted(rows, key=lambda row: (-row[1], row[0]))[:_MAX_EXPANSIONS])

    def _similar(self, database: sqlite3.Connection, term: str) -> str | None:
        """Return the most frequent term that is one edit away, if any."""
        if len(term) < _MIN_CORRECTED or not (term.isascii() and term.isalpha()):
            return None
        start = term[:_TRUSTED_LETTERS]
        rows = database.execute(_BY_PREFIX, (start, start + _PREFIX_END))
        similar = [(-count, found) for found, count in rows if is_one_edit(term, found)]
        return min(similar)[1] if similar else None

    def _terms(self, database: sqlite3.Connection, names: set[str]) -> dict[str, _StoredTerm]:
        """Return terms by name."""
        marks = ", ".join("?" * len(names))
        rows = database.execute(
            f"SELECT term, count, best, rows FROM terms WHERE term IN ({marks})", tuple(names)
        )
        return {
            name: _StoredTerm(count, array("I", best), 0 if bits is None else int.from_bytes(bits, "little"))
            for name, count, best, bits in rows
        }

    def _weighed(self, names: Mapping[str, float], found: Mapping[str, _StoredTerm]) -> list[Term]:
        """Return the terms of one word, all as rare as they are together."""
        total = len(self._rows)
        count = min(sum(found[name].frequency for name in names), total)
        rarity = log1p((total - count + 0.5) / (count + 0.5)) ** _RARITY_EXPONENT
        return [Term(rarity * factor, found[name].best) for name, factor in names.items()]

    # Changes

    def _open(self, current: Mapping[str, Document]) -> list[int]:
        """Open the database, and return the rows of documents that are not current."""
        self._database, self._file = open_derived(
            self._path,
            version=_FORMAT,
            create=_CREATE,
            most_bytes=self._most_bytes,
            cache_kibibytes=_CACHE_KIBIBYTES,
        )
        # If it is never closed, the database is closed with the object.
        self._release = finalize(self, self._database.close)
        stored: list[tuple[int, str, bytes]] = self._database.execute(
            "SELECT row, key, digest FROM documents"
        ).fetchall()
        self._keys = [""] * (max((row for row, _, _ in stored), default=-1) + 1)
        gone: list[int] = []
        for row, key, digest in stored:
            self._keys[row] = key
            document = current.get(key)
            if document is not None and _digest(document) == digest:
                self._rows[key] = row, document
            else:
                gone.append(row)
        used = {row for row, _, _ in stored}
        self._free = [row for row in range(len(self._keys)) if row not in used]
        return gone

    def _gone(self, current: Mapping[str, Document]) -> list[int]:
        """Forget the documents that are not current, and return their rows."""
        gone = [key for key, (_, document) in self._rows.items() if current.get(key) != document]
        return [self._rows.pop(key)[0] for key in gone]

    def _change(
        self,
        database: sqlite3.Connection,
        gone: Sequence[int],
        new: Sequence[tuple[str, Document]],
        body: ReadBody,
    ) -> None:
        removed: defaultdict[str, set[int]] = defaultdict(set)
        added: defaultdict[str, array[int]] = defaultdict(partial(array, "I"))
        database.execute("BEGIN")
        for row in gone:
            for term in self._words_of(database, row).terms:
                removed[term].add(row)
        database.executemany("DELETE FROM documents WHERE row = ?", [(row,) for row in gone])
        free = [*self._free, *gone]
        rows: dict[str, tuple[int, Document]] = {}
        count = 0
        for key, document in new:
            if self.is_stopped:
                raise sqlite3.OperationalError("stopped")
            row = free.pop() if free else self._new_row()
            text = body(key)
            words = weigh(document, text or "")
            # Without its body it is read again by the next process.
            digest = _digest(document) if text is not None else b""
            database.execute(_INSERT_DOCUMENT, (row, key, digest, _pack_words(words)))
            for term, packed in zip(words.terms, pack(words.weights, row), strict=True):
                added[term].append(packed)
            rows[key] = row, document
            count += len(words.terms)
            if count > _BATCH:
                self._merge(database, removed, added)
                removed.clear()
                added.clear()
                count = 0
        self._merge(database, removed, added)
        database.execute("COMMIT")
        self._free = free
        for key, (row, _) in rows.items():
            self._keys[row] = key
        self._rows.update(rows)

    def _new_row(self) -> int:
        self._keys.append("")
        return len(self._keys) - 1

    def _merge(
        self, database: sqlite3.Connection, removed: Mapping[str, set[int]], added: Mapping[str, array[int]]
    ) -> None:
        """Take rows from terms, and add others.

        `best` are always the strongest rows, and more than are used, or all.
        Where too few are left after removals, they are collected anew.
        """
        size = len(self._keys)
        absent = None, 0, b"", None
        has_terms = bool(database.execute("SELECT 1 FROM terms LIMIT 1").fetchall())
        short: set[str] = set()
        for term in sorted(removed.keys() | added.keys()):
            old, new = removed.get(term, _NO_ROWS), added.get(term, _NO_NUMBERS)
            found = database.execute(_TERM, (term,)).fetchall() if has_terms else ()
            number, count, best, bits = found[0] if found else absent
            known = array("I", best)
            # Weaker ones than the last would follow others that are not in `best`.
            fitting = new if len(known) == count else [one for one in new if one < known[-1]]
            kept = known if not old else [one for one in known if row_in(one) not in old]
            count += len(new) - len(old)
            ranked = sorted([*kept, *fitting])
            rows = None
            if bits is not None or count > SMALL_SET:
                others = 0 if bits is None else int.from_bytes(bits, "little") & ~bits_of(old, size)
                every = bits_of(map(row_in, ranked if bits is None else new), size, others)
                rows = every.to_bytes(size // 8 + 1, "little")
                if len(ranked) <= min(count - 1, MOST_RANKED):
                    short.add(term)
                ranked = ranked[:MOST_STORED]
            values = count, array("I", ranked).tobytes(), rows
            if number is None:
                database.execute(_INSERT_TERM, (term, ROOTS[term], *values))
            elif count:
                database.execute(_UPDATE_TERM, (*values, number))
            else:
                database.execute("DELETE FROM terms WHERE id = ?", (number,))
        if short:
            self._refill(database, short)

    def _refill(self, database: sqlite3.Connection, names: set[str]) -> None:
        """Collect the strongest rows of terms from all documents."""
        best: defaultdict[str, array[int]] = defaultdict(partial(array, "I"))
        for row, words in database.execute("SELECT row, words FROM documents"):
            found = _unpack_words(words)
            for term, packed in zip(found.terms, pack(found.weights, row), strict=True):
                if term in names:
                    best[term].append(packed)
        database.executemany(
            "UPDATE terms SET best = ? WHERE term = ?",
            [(array("I", sorted(rows)[:MOST_STORED]).tobytes(), term) for term, rows in best.items()],
        )

    def _words_of(self, database: sqlite3.Connection, row: int) -> WeighedWords:
        [(words,)] = database.execute("SELECT words FROM documents WHERE row = ?", (row,)).fetchall()
        return _unpack_words(words)


def _pack_words(words: WeighedWords) -> bytes:
    return b"\0".join(("\n".join(words.terms).encode(), words.weights + words.fields))


def _unpack_words(data: bytes) -> WeighedWords:
    text, _, numbers = data.partition(b"\0")
    middle = len(numbers) // 2
    return WeighedWords(text.decode().split("\n") if text else [], numbers[:middle], numbers[middle:])


def _digest(document: Document) -> bytes:
    """Return a digest of everything that the words of a document depend on."""
    frontmatter = document.frontmatter
    texts = (
        document.name,
        document.place,
        document.digest,
        frontmatter.description,
        str(frontmatter.fields.get("compatibility", "")),
        tags_of(frontmatter),
    )
    return blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=16).digest()
