"""`SearchIndex`: the words of skills in SQLite's FTS5, ranked by BM25.

A word counts most in a name, then in tags, then in the place, then in the
description. Repeating a word gains little, and the indexed length of each text
is limited.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from weakref import finalize

from skillwire.core import MAX_COMPATIBILITY, MAX_DESCRIPTION, Frontmatter, LimitError, SkillError
from skillwire.search.words import MAX_TAGS, Word, index_text, is_spaceless, joined, tags_of

MAX_INDEX_BYTES: Final = 2 * 1024**3
"""The maximum size of the database; 100,000 skills take about 25 MB."""
MANY: Final = 5_000
"""The number of matches above which a common word is left out of a search."""

# CPU time of this thread: a search must not fail because the machine is busy.
_SEARCH_SECONDS = 2.0
_LONGEST_SECONDS = 20.0
_PAGE_BYTES = 4096
_CACHE_KIBIBYTES = 16 * 1024
_STEPS_PER_CHECK = 1000
_MIN_PREFIX = 3
_MAX_NAME = 200
_MAX_PLACE = 512
# With fewer changes, the index is never rebuilt.
_FEW_CHANGES = 1000

# The tokenizer folds ASCII and stems English; other text is folded and split before.
_CREATE = (
    "CREATE VIRTUAL TABLE skills USING "
    "fts5(name, tags, place, description, content='', tokenize='porter ascii')"
)
_INSERT = "INSERT INTO skills(rowid, name, tags, place, description) VALUES (?, ?, ?, ?, ?)"
# A contentless table needs the old values to delete a row.
_DELETE = "INSERT INTO skills(skills, rowid, name, tags, place, description) VALUES ('delete', ?, ?, ?, ?, ?)"
_RANKED = "SELECT rowid, bm25(skills, 8.0, 4.0, 2.0, 1.0) FROM skills WHERE skills MATCH ? LIMIT ?"
_PLAIN = "SELECT rowid FROM skills WHERE skills MATCH ? LIMIT ?"
_COUNTED = "SELECT count(*) FROM (SELECT 1 FROM skills WHERE skills MATCH ? LIMIT ?)"

Include: TypeAlias = Callable[[str], bool]


class Document(NamedTuple):
    """The texts of a skill that are searched: its name, its place and its frontmatter."""

    name: str
    place: str
    frontmatter: Frontmatter


class Hit(NamedTuple):
    """A match. Hits sort in the order of results: the best first, equals by their key."""

    lacks_words: bool
    rank: float
    key: str


@dataclass(frozen=True, slots=True)
class _Term:
    """A word as an FTS5 expression, and the number of skills that have it, up to a limit."""

    expression: str
    count: int


class SearchIndex:
    """An index of documents, which have keys. Any thread may use it, one at a time.

    `ranks_all` includes every match in a search, however many there are.
    After a `sqlite3.Error`, close the index: a failed change may have left it
    inconsistent. The next update builds it again.
    """

    def __init__(self, *, ranks_all: bool = False, most_bytes: int = MAX_INDEX_BYTES) -> None:
        self._ranks_all = ranks_all
        self._most_bytes = most_bytes
        self.is_stopped = False
        self._database: sqlite3.Connection | None = None
        self._release: Callable[[], object] | None = None
        self._version: object = None
        self._keys: list[str] = []
        self._rows: dict[str, tuple[int, Document]] = {}
        self._deadlines = (0.0, 0.0)

    def close(self) -> None:
        """Close the database and delete its file, if any."""
        if self._release is not None:
            self._release()
        self._database, self._release, self._version, self._keys, self._rows = None, None, None, [], {}

    def stop(self) -> None:
        """Interrupt operations in other threads with a `sqlite3.OperationalError`, permanently."""
        self.is_stopped = True

    def update(self, version: object, documents: Callable[[], Mapping[str, Document]]) -> None:
        """Update the index to documents by key; only changed ones are written.

        `documents` is called only if `version` is another object than at the last update.

        Raises:
            SkillError: This Python's SQLite has no full-text search.
            sqlite3.Error: The database cannot be written.
        """
        if version is self._version and self._database is not None:
            return
        current = documents()
        gone = {key: row for key, row in self._rows.items() if current.get(key) != row[1]}
        new = [item for item in current.items() if item[0] not in self._rows or item[0] in gone]
        # Deleted rows take space until the index is rebuilt.
        changed = len(self._keys) - len(self._rows) + len(gone) + len(new)
        if self._database is None or changed > _FEW_CHANGES + len(current) // 2:
            self.close()
            self._database = _create_database(self._most_bytes)
            # If it is never closed, the database is closed with the object.
            self._release = finalize(self, self._database.close)
            gone, new = {}, list(current.items())
        self._change(self._database, gone, new)
        self._version = version

    def hits(self, words: Sequence[Word], include: Include | None = None) -> tuple[list[Hit], bool]:
        """Return the documents that have any of the words, unsorted, and whether those are all.

        Beside rarer words, very common ones are left out of the search. Alone
        they match names only, and if there are none, the first documents that
        have them: so many are not ranked. With `include`, a filter by key, all
        matches are checked.

        Raises:
            LimitError: It would take too long.
            sqlite3.Error: The database cannot be read.
        """
        database = self._database
        assert database is not None, "`update` is called first"
        self._deadlines = time.thread_time() + _SEARCH_SECONDS, time.monotonic() + _LONGEST_SECONDS
        database.set_progress_handler(self._is_interrupted, _STEPS_PER_CHECK)
        try:
            return self._query(database, words, include)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT or self.is_stopped:
                raise
            raise LimitError(
                "too many skills have these words to be ranked in time", fix="use rarer words"
            ) from error
        finally:
            database.set_progress_handler(None, 0)

    def _query(
        self, database: sqlite3.Connection, words: Sequence[Word], include: Include | None
    ) -> tuple[list[Hit], bool]:
        if self._ranks_all:
            terms = [_Term(_expression(word, is_prefix=word.is_prefix), 0) for word in words]
        else:
            terms = [_counted_term(database, word) for word in words]
        most = MANY if include is None and min(term.count for term in terms) > MANY else -1
        complete: set[int] | None = None
        if len(terms) > 1:
            everything = " AND ".join(term.expression for term in terms)
            complete = {row for (row,) in database.execute(_PLAIN, (everything, most))}
        for expression in _attempts(terms):
            rows: list[tuple[int, float]] = database.execute(_RANKED, (expression, most)).fetchall()
            found = [
                Hit(complete is not None and row not in complete, rank, self._keys[row])
                for row, rank in rows
                if include is None or include(self._keys[row])
            ]
            if found:
                return found, len(rows) != most
        return [], True

    def _change(
        self,
        database: sqlite3.Connection,
        gone: Mapping[str, tuple[int, Document]],
        new: Sequence[tuple[str, Document]],
    ) -> None:
        first = len(self._keys)
        database.execute("BEGIN")
        database.executemany(_DELETE, self._written(gone.values()))
        added = [(row, document) for row, (_, document) in enumerate(new, first)]
        database.executemany(_INSERT, self._written(added))
        database.execute("COMMIT")
        for key in gone:
            del self._rows[key]
        self._keys += [key for key, _ in new]
        self._rows.update((self._keys[row], (row, document)) for row, document in added)

    def _written(self, documents: Iterable[tuple[int, Document]]) -> Iterator[tuple[int, str, str, str, str]]:
        for row, document in documents:
            if self.is_stopped:
                raise sqlite3.OperationalError("stopped")
            yield row, *_fields(document)

    def _is_interrupted(self) -> bool:
        own, wall = self._deadlines
        return self.is_stopped or time.thread_time() > own or time.monotonic() > wall


def require_fts5() -> None:
    """Check that this Python can search.

    Raises:
        SkillError: Its SQLite has no full-text search.
    """
    _create_database(MAX_INDEX_BYTES).close()


def _create_database(most_bytes: int) -> sqlite3.Connection:
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    try:
        # On any error the whole database is dropped, so no rollback is needed.
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        database.execute(f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}")
        database.execute(_CREATE)
    except sqlite3.Error as error:
        database.close()
        raise SkillError(
            "searching needs SQLite with FTS5, which this Python does not have",
            fix="use a Python whose sqlite3 module has FTS5, or list the skills instead",
        ) from error
    database.execute(f"PRAGMA max_page_count = {max(most_bytes // _PAGE_BYTES, 1)}")
    return database


def _fields(document: Document) -> tuple[str, str, str, str]:
    """Return the indexed texts: always the same for one document, which deleting it needs."""
    name, place, frontmatter = document
    compatibility = frontmatter.fields.get("compatibility")
    shown, whole = index_text(name, _MAX_NAME), joined(name)
    described = index_text(frontmatter.description, MAX_DESCRIPTION)
    if isinstance(compatibility, str) and compatibility:
        described += " " + index_text(compatibility, MAX_COMPATIBILITY)
    return (
        shown if whole == name else f"{shown} {index_text(whole, _MAX_NAME)}",
        index_text(tags_of(frontmatter), MAX_TAGS),
        index_text(place, _MAX_PLACE),
        described,
    )


def _expression(word: Word, *, is_prefix: bool) -> str:
    """Write a word for FTS5. It has only letters, digits and marks, so it cannot end the quotes."""
    ways = [f'"{word.text}"']
    if word.parts:
        ways.append("(" + " AND ".join(f'"{part}"' for part in word.parts) + ")")
    return _any_of([*ways, f'"{word.text}"*'] if is_prefix else ways)


def _counted_term(database: sqlite3.Connection, word: Word) -> _Term:
    """Return a word and its count; as a prefix only if that is long enough and not very common."""
    if word.is_prefix and (len(word.text) >= _MIN_PREFIX or is_spaceless(word.text)):
        term = _with_count(database, _expression(word, is_prefix=True))
        if term.count <= MANY:
            return term
    return _with_count(database, _expression(word, is_prefix=False))


def _with_count(database: sqlite3.Connection, expression: str) -> _Term:
    [(count,)] = database.execute(_COUNTED, (expression, MANY + 1)).fetchall()
    return _Term(expression, count)


def _attempts(terms: Sequence[_Term]) -> list[str]:
    """Return the expressions to try, in order, until one has matches."""
    telling: list[str] = []
    room = MANY
    for term in sorted(terms, key=lambda term: term.count):
        room -= term.count
        if room >= 0:
            telling.append(term.expression)
    everything = _any_of([term.expression for term in terms])
    if len(telling) == len(terms):
        return [everything]
    return [_any_of(telling) if telling else f"{{name}} : {everything}", everything]


def _any_of(expressions: Sequence[str]) -> str:
    return f"({' OR '.join(expressions)})"
