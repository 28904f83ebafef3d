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

Documents are given as a whole with `update`, or by what changed with `write`.
Only their keys are in memory. A search in a `SearchArea` is as if there were no other
documents, except that the rarity of words is that among all documents.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import islice
from math import log1p
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from weakref import finalize

import platformdirs

from skillwire.core import ByteCache
from skillwire.search.database import open_derived
from skillwire.search.lookup import EVERYWHERE, SELECT_EVERY, SELECT_TERM, SearchArea, StoredTerm, TermLookup
from skillwire.search.scores import (
    HAS_SCRIPTS,
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
    strongest_in,
    weigh,
    weight_in,
)
from skillwire.search.words import ROOTS, query_words, tags_of

MAX_INDEX_BYTES: Final = 2 * 1024**3
"""The maximum size of the database; 10,000 skills take about 40 MB."""
MOST_STORED: Final = 2 * MOST_RANKED
"""For how many skills the weight of a word is stored: more than are used, so that some may be removed."""

_FORMAT = 3
_CACHE_KIBIBYTES = 8 * 1024
# The weights of words in areas that are kept between queries, and for how many areas.
_CACHED_TERMS = 16 * 1024 * 1024
_MOST_AREAS = 32
_BATCH = 1_500_000
# With fewer changes, the index is never rebuilt.
_FEW_CHANGES = 1000
# Rare words would else outweigh everything else in a long question.
_RARITY_EXPONENT = 0.85
_CREATE = (
    "DROP TABLE IF EXISTS documents",
    "DROP TABLE IF EXISTS words",
    "DROP TABLE IF EXISTS terms",
    "DROP TABLE IF EXISTS weights",
    "DROP TABLE IF EXISTS state",
    "CREATE TABLE documents (row INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, digest BLOB NOT NULL)",
    "CREATE TABLE words (row INTEGER PRIMARY KEY, words BLOB NOT NULL)",
    "CREATE TABLE terms (id INTEGER PRIMARY KEY, term TEXT NOT NULL UNIQUE, root TEXT NOT NULL, "
    "count INTEGER NOT NULL)",
    "CREATE TABLE weights (id INTEGER PRIMARY KEY, best BLOB NOT NULL, rows BLOB, every BLOB)",
    "CREATE INDEX roots ON terms (root, count DESC, term)",
    "CREATE TABLE state (revision INTEGER NOT NULL)",
    "INSERT INTO state VALUES (0)",
)
_ROW_OF = "SELECT row FROM documents WHERE key = ?"


class WeighedDocument(NamedTuple):
    """The words of a document to be written; `digest` is what it was made from, empty if incomplete."""

    key: str
    digest: bytes
    words: WeighedWords


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
        self._documents: Mapping[str, Document] = {}
        # For each area that was used last: 255 at each row that is in it.
        self._masks: dict[SearchArea, bytearray] = {}
        self._terms: ByteCache[tuple[SearchArea, str], StoredTerm] = ByteCache(_CACHED_TERMS)

    def close(self) -> None:
        """Close the database. A file stays for the next start."""
        if self._release is not None:
            self._release()
        self._database, self._file, self._release, self._version = None, None, None, None
        self._keys, self._free, self._documents = [], [], {}
        self._masks, self._terms = {}, ByteCache(_CACHED_TERMS)

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
        if self._database is None:
            database = self.open()
            known = {
                key: digest == _digest(current[key]) if key in current else False
                for key, digest in database.execute("SELECT key, digest FROM documents ORDER BY row")
            }
        else:
            database = self._database
            known = {key: current.get(key) == document for key, document in self._documents.items()}
        gone = [key for key, is_current in known.items() if not is_current]
        new = [key for key in current if not known.get(key)]
        if len(gone) + len(new) > _FEW_CHANGES + len(current) // 2 and known:
            self.discard()
            database, gone, new = self.open(), [], list(current)
        if gone or new:
            self.write(gone, (_weighed(key, current[key], body(key)) for key in new))
        self._documents, self._version = current, version

    def write(
        self, gone: Iterable[str], new: Iterable[WeighedDocument], *, revision: int | None = None
    ) -> None:
        """Remove documents by key, and then add others, all or nothing; `revision` is stored with them.

        A document that changed is in both.

        Raises:
            sqlite3.Error: The database cannot be written.
        """
        database = self.open()
        database.execute("BEGIN")
        self._change(database, [row for key in gone for (row,) in database.execute(_ROW_OF, (key,))], new)
        if revision is not None:
            database.execute("UPDATE state SET revision = ?", (revision,))
        database.execute("COMMIT")

    @property
    def revision(self) -> int:
        """The revision that was stored last; 0 for none."""
        return self.open().execute("SELECT revision FROM state").fetchall()[0][0]

    @property
    def is_open(self) -> bool:
        """Whether the database is open."""
        return self._database is not None

    def __len__(self) -> int:
        return len(self._keys) - len(self._free)

    def digests(self, after: str, through: str) -> dict[str, bytes]:
        """Return the digests of the documents behind a key and up to another, if that is not empty."""
        until = (through,) if through else ()
        return dict(
            self.open().execute(
                f"SELECT key, digest FROM documents WHERE key > ? {'AND key <= ?' if until else ''}",
                (after, *until),
            )
        )

    def digests_of(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the digests of those documents that the index has."""
        database = self.open()
        query = "SELECT key, digest FROM documents WHERE key = ?"
        return dict(row for key in keys for row in database.execute(query, (key,)))

    def incomplete(self, most: int) -> list[str]:
        """Return the keys of some documents without a digest."""
        query = "SELECT key FROM documents WHERE digest = x'' ORDER BY random() LIMIT ?"
        return [key for (key,) in self.open().execute(query, (most,))]

    def rank(
        self,
        query: str,
        include: Include | None = None,
        *,
        area: SearchArea = EVERYWHERE,
        has_scripts: bool | None = None,
        document: Callable[[str], Document] | None = None,
    ) -> Ranking:
        """Return the documents in an area that have words of a query; `include` is a filter by key.

        A word that no document has is taken as a prefix, if it is the last one,
        or else as misspelled. `has_scripts` selects documents by what they say
        about that, and `document` returns those for the user's ranker, if not
        those of the last `update`.

        Raises:
            sqlite3.Error: The database cannot be read.
        """
        lookup = TermLookup(self.open(), area, None if area.is_everything else self._mask(area), self._terms)
        resolved = list(lookup.resolve(query_words(query)))
        words = tuple(word for word, _ in resolved)
        found = {name: lookup[name] for _, names in resolved for name in names}
        scores = score([self._weighed(names, found) for _, names in resolved if names])
        rows = self._rows(found.values())
        if has_scripts is not None:
            marked = self._rows(filter(None, [lookup[HAS_SCRIPTS]]))
            rows = rows & marked if has_scripts else rows & ~marked
        if include is not None:
            rows = bits_of((row for row in rows_in(rows) if include(self._keys[row])), len(self._keys))
        if has_scripts is not None or include is not None:
            kept = rows.to_bytes(len(self._keys) // 8 + 1, "little")
            scores = {row: value for row, value in scores.items() if kept[row >> 3] >> (row & 7) & 1}
        ranking = Ranking(words, frozenset(found), scores, rows, self._keys)
        if self._ranker is None:
            return ranking
        return self._reranked(ranking, query, self._ranker, document or self._documents.__getitem__)

    def fields_of(self, key: str, ranking: Ranking) -> tuple[str, ...]:
        """Return the fields of a match that have words of the query.

        Raises:
            sqlite3.Error: The database cannot be read.
        """
        bits = 0
        words = self._words_of(self.open(), self._row_of(key))
        for term, fields in zip(words.terms, words.fields, strict=True):
            if term in ranking.terms:
                bits |= fields
        return field_names(bits)

    def _reranked(
        self, ranking: Ranking, query: str, ranker: Ranker, document: Callable[[str], Document]
    ) -> Ranking:
        """Let the user's ranker put the first matches into another order; all others stay behind them."""
        first = [Candidate(key, document(key), value) for key, value in islice(ranking, RERANKED)]
        scores = dict(ranking.scores)
        above = max(scores.values(), default=0.0) + 1.0
        values = ranker(query, first)
        for position, number in enumerate(sorted(range(len(first)), key=lambda number: -values[number])):
            scores[self._row_of(first[number].key)] = above + len(first) - position
        return Ranking(ranking.words, ranking.terms, scores, ranking.rows, ranking.keys)

    def _weighed(self, names: Mapping[str, float], found: Mapping[str, StoredTerm]) -> list[Term]:
        """Return the terms of one word, all as rare as they are together."""
        total = len(self)
        count = min(sum(found[name].frequency for name in names), total)
        rarity = log1p((total - count + 0.5) / (count + 0.5)) ** _RARITY_EXPONENT
        return [Term(rarity * factor, found[name].best) for name, factor in names.items()]

    def _rows(self, terms: Iterable[StoredTerm]) -> int:
        """Return all rows of terms as the bits of a number."""
        rows, few = 0, list[int]()
        for term in terms:
            if term.rows:
                rows |= term.rows
            else:
                few += map(row_in, term.best)
        return bits_of(few, len(self._keys), rows)

    def _row_of(self, key: str) -> int:
        return self.open().execute(_ROW_OF, (key,)).fetchall()[0][0]

    def _mask(self, area: SearchArea) -> bytearray:
        """Return 255 at each row in an area, and 0 at the others."""
        mask = self._masks.pop(area, None)
        if mask is None:
            mask = bytearray(len(self._keys))
            for value, ranges in ((255, area.spans), (0, area.hidden)):
                for low, high in ranges:
                    until = (high,) if high else ()
                    query = f"SELECT row FROM documents WHERE key >= ? {'AND key < ?' if until else ''}"
                    for (row,) in self.open().execute(query, (low, *until)):
                        mask[row] = value
            if len(self._masks) >= _MOST_AREAS:
                del self._masks[next(iter(self._masks))]
                self._terms = ByteCache(_CACHED_TERMS)  # Terms of that area would no longer be updated.
        self._masks[area] = mask
        return mask

    # Changes

    def open(self) -> sqlite3.Connection:
        """Open the database, unless it is open.

        Raises:
            sqlite3.Error: It cannot be opened.
        """
        if self._database is not None:
            return self._database
        database, self._file = open_derived(
            self._path,
            version=_FORMAT,
            create=_CREATE,
            most_bytes=self._most_bytes,
            cache_kibibytes=_CACHE_KIBIBYTES,
        )
        # If it is never closed, the database is closed with the object.
        self._release = finalize(self, database.close)
        keys = dict(database.execute("SELECT row, key FROM documents"))
        self._keys = [keys.get(row, "") for row in range(max(keys, default=-1) + 1)]
        self._free = [row for row, key in enumerate(self._keys) if not key]
        self._database = database
        return database

    def _change(
        self, database: sqlite3.Connection, gone: Sequence[int], new: Iterable[WeighedDocument]
    ) -> None:
        removed: defaultdict[str, set[int]] = defaultdict(set)
        added: defaultdict[str, array[int]] = defaultdict(partial(array, "I"))
        for row in gone:
            for term in self._words_of(database, row).terms:
                removed[term].add(row)
        for table in ("documents", "words"):
            database.executemany(f"DELETE FROM {table} WHERE row = ?", [(row,) for row in gone])
        for row in gone:
            self._set_key(row, "")
        free = self._free
        free += gone
        count = 0
        for key, digest, words in new:
            if self.is_stopped:
                raise sqlite3.OperationalError("stopped")
            row = free.pop() if free else len(self._keys)
            self._set_key(row, key)
            database.execute("INSERT INTO documents VALUES (?, ?, ?)", (row, key, digest))
            database.execute("INSERT INTO words VALUES (?, ?)", (row, _pack_words(words)))
            for term, packed in zip(words.terms, pack(words.weights, row), strict=True):
                added[term].append(packed)
            count += len(words.terms)
            if count > _BATCH:
                self._merge(database, removed, added)
                removed.clear()
                added.clear()
                count = 0
        self._merge(database, removed, added)

    def _set_key(self, row: int, key: str) -> None:
        is_new = row == len(self._keys)
        if is_new:
            self._keys.append(key)
        else:
            self._keys[row] = key
        for area, mask in self._masks.items():
            if is_new:
                mask.append(0)
            mask[row] = 255 if key and area.includes(key) else 0

    def _merge(
        self, database: sqlite3.Connection, removed: Mapping[str, set[int]], added: Mapping[str, array[int]]
    ) -> None:
        """Take rows from terms, and add others.

        `best` are always the strongest rows, and more than are used, or all. If
        they are not all, `every` has the weight of each row.
        """
        size = len(self._keys)
        absent = None, 0, b"", None
        has_terms = bool(database.execute("SELECT 1 FROM terms LIMIT 1").fetchall())
        for term in sorted(removed.keys() | added.keys()):
            if self.is_stopped:
                raise sqlite3.OperationalError("stopped")
            old, new = removed.get(term, _NO_ROWS), added.get(term, _NO_NUMBERS)
            found = database.execute(SELECT_TERM, (term,)).fetchall() if has_terms else ()
            number, count, best, bits = found[0] if found else absent
            known = array("I", best)
            # Weaker ones than the last would follow others that are not in `best`.
            is_whole = len(known) == count
            fitting = new if is_whole else [one for one in new if one < known[-1]]
            kept = known if not old else [one for one in known if row_in(one) not in old]
            count += len(new) - len(old)
            ranked = sorted([*kept, *fitting])
            rows = None
            if bits is not None or count > SMALL_SET:
                others = 0 if bits is None else int.from_bytes(bits, "little") & ~bits_of(old, size)
                all_rows = bits_of(map(row_in, ranked if bits is None else new), size, others)
                rows = all_rows.to_bytes(size // 8 + 1, "little")
            every = None
            if not is_whole or len(ranked) > MOST_STORED:
                stored = b"" if is_whole else database.execute(SELECT_EVERY, (number,)).fetchall()[0][0]
                every = _placed(stored, size, old, ranked if is_whole else new)
                if len(ranked) <= min(count - 1, MOST_RANKED):
                    ranked = strongest_in(every, MOST_STORED)
                ranked = ranked[:MOST_STORED]
                every = every if len(ranked) < count else None
            weights = array("I", ranked).tobytes(), rows, every
            if number is None:
                insert = "INSERT INTO terms (term, root, count) VALUES (?, ?, ?)"
                number = database.execute(insert, (term, ROOTS[term], count)).lastrowid
                database.execute("INSERT INTO weights VALUES (?, ?, ?, ?)", (number, *weights))
            elif count:
                database.execute("UPDATE terms SET count = ? WHERE id = ?", (count, number))
                update = "UPDATE weights SET best = ?, rows = ?, every = ? WHERE id = ?"
                database.execute(update, (*weights, number))
            else:
                for table in ("terms", "weights"):
                    database.execute(f"DELETE FROM {table} WHERE id = ?", (number,))
            for area in self._masks:
                self._terms.discard((area, term))

    def _words_of(self, database: sqlite3.Connection, row: int) -> WeighedWords:
        [(words,)] = database.execute("SELECT words FROM words WHERE row = ?", (row,)).fetchall()
        return _unpack_words(words)


def _placed(every: bytes, size: int, old: Iterable[int], new: Iterable[int]) -> bytes:
    """Return the weights of all rows, without those of old rows, and with new ones."""
    weights = bytearray(every)
    weights.extend(bytes(size - len(weights)))
    for row in old:
        weights[row] = 0
    for packed in new:
        weights[row_in(packed)] = weight_in(packed)
    return bytes(weights)


def _weighed(key: str, document: Document, text: str | None) -> WeighedDocument:
    """Return a document to be written; without its body it is read again by the next process."""
    return WeighedDocument(key, b"" if text is None else _digest(document), weigh(document, text or ""))


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
