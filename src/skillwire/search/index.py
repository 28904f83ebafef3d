"""`SearchIndex`: the words of skills in SQLite's FTS5, ranked twice by BM25.

The first ranking is of the summary of a skill: a word counts most in its name,
then in tags, then in the place, then in the description. The second is of the
summary together with the body of `SKILL.md`, where headings and the first
paragraph count more than the rest. The rank of a skill is the sum of the
reciprocals of both positions (reciprocal rank fusion), so that no long body
outweighs a fitting description. Repeating a word gains little, and the indexed
length of each text is limited.
"""

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias
from weakref import finalize

from skillwire.core import MAX_COMPATIBILITY, MAX_DESCRIPTION, Frontmatter, LimitError, SkillError
from skillwire.search.words import MAX_TAGS, Word, index_text, is_spaceless, joined, tags_of

MAX_INDEX_BYTES: Final = 2 * 1024**3
"""The maximum size of the database; 100,000 skills take about 25 MB."""
MANY: Final = 5_000
"""The number of matches above which a common word is left out of a search."""
_ROOM = 2_000
# The rarest words of a query are searched even if they have more matches than that together.
_ALWAYS = 2

# CPU time of this thread: a search must not fail because the machine is busy.
_SEARCH_SECONDS = 2.0
_LONGEST_SECONDS = 20.0
_PAGE_BYTES = 4096
_CACHE_KIBIBYTES = 16 * 1024
_STEPS_PER_CHECK = 1000
_MIN_PREFIX = 3
_MAX_NAME = 200
_MAX_PLACE = 512
MAX_BODY: Final = 16 * 1024
"""How many characters of a body are indexed."""
_MAX_COUNTS = 20_000
# With fewer changes, the index is never rebuilt.
_FEW_CHANGES = 1000

# The tokenizer folds ASCII and stems English; other text is folded and split before.
_TOKENIZER = "tokenize='porter ascii'"
_SUMMARIES = "summaries"
_BODIES = "bodies"
_CREATE = (
    f"CREATE VIRTUAL TABLE {_SUMMARIES} USING fts5(name, tags, place, description, {_TOKENIZER})",
    f"CREATE VIRTUAL TABLE {_BODIES} USING fts5(name, summary, lead, body, {_TOKENIZER})",
    f"CREATE VIRTUAL TABLE terms USING fts5vocab({_SUMMARIES}, 'row')",
    f"CREATE VIRTUAL TABLE stems USING fts5(word, {_TOKENIZER})",
    "CREATE VIRTUAL TABLE stem_terms USING fts5vocab(stems, 'row')",
)
_INSERT = (
    f"INSERT INTO {_SUMMARIES}(rowid, name, tags, place, description) VALUES (?, ?, ?, ?, ?)",
    f"INSERT INTO {_BODIES}(rowid, name, summary, lead, body) VALUES (?, ?, ?, ?, ?)",
)
_DELETE = tuple(f"DELETE FROM {table} WHERE rowid = ?" for table in (_SUMMARIES, _BODIES))
_WEIGHTS = {_SUMMARIES: "8.0, 4.0, 2.0, 1.0", _BODIES: "8.0, 4.0, 2.0, 1.0"}
_RANKED = {
    table: f"SELECT rowid, bm25({table}, {weights}) FROM {table} WHERE {table} MATCH ? LIMIT ?"
    for table, weights in _WEIGHTS.items()
}
_PLAIN = f"SELECT rowid FROM {_SUMMARIES} WHERE {_SUMMARIES} MATCH ? LIMIT ?"
_COUNTED = {
    table: f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT ?)" for table in _WEIGHTS
}
# A word that no skill has may be misspelled. Its first letters are taken as right.
_MIN_CORRECTED = 5
_TRUSTED_LETTERS = 2
_SIMILAR = "SELECT term, doc FROM terms WHERE term >= ? AND term < ?"
# Reciprocal rank fusion: the share of each ranking, and what softens the difference of first positions.
_SHARES = (1.0, 1.5)
_SOFTENING = 20
# Of longer queries nobody expects that a skill has every word.
_MAX_COMPLETE = 4

Include: TypeAlias = Callable[[str], bool]


class Document(NamedTuple):
    """The texts of a skill that are searched: its name, its place and its frontmatter.

    `digest` is that of the file with the body, which is read when it changes.
    """

    name: str
    place: str
    frontmatter: Frontmatter
    digest: str = ""


def no_body(_key: str) -> str:
    """Return an empty body: for indexes of summaries alone."""
    return ""


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
        self._has_bodies = False
        self._counts: dict[tuple[str, str], int] = {}
        self._deadlines = (0.0, 0.0)

    def close(self) -> None:
        """Close the database and delete its file, if any."""
        if self._release is not None:
            self._release()
        self._database, self._release, self._version, self._keys, self._rows = None, None, None, [], {}
        self._has_bodies = False
        self._counts.clear()

    def stop(self) -> None:
        """Interrupt operations in other threads with a `sqlite3.OperationalError`, permanently."""
        self.is_stopped = True

    def update(
        self,
        version: object,
        documents: Callable[[], Mapping[str, Document]],
        body: Callable[[str], str] = no_body,
    ) -> None:
        """Update the index to documents by key; only changed ones are written.

        `documents` is called only if `version` is another object than at the
        last update, and `body` for the key of each document that is written.

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
        self._change(self._database, gone, new, body)
        self._counts.clear()
        self._version = version

    def hits(self, words: Sequence[Word], include: Include | None = None) -> tuple[list[Hit], bool]:
        """Return the documents that have any of the words, unsorted, and whether those are all.

        Of a query of a few words, documents whose summary has all come first.

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
        summaries, are_all = self._ranking(database, _SUMMARIES, words, include)
        rankings = [summaries]
        if self._has_bodies:
            with_bodies, are_all_bodies = self._ranking(database, _BODIES, words, include)
            rankings.append(with_bodies)
            are_all = are_all and are_all_bodies
        complete = self._complete(database, words) if 1 < len(words) <= _MAX_COMPLETE else None
        return [
            Hit(complete is not None and row not in complete, rank, self._keys[row])
            for row, rank in _fused(rankings).items()
        ], are_all

    def _ranking(
        self, database: sqlite3.Connection, table: str, words: Sequence[Word], include: Include | None
    ) -> tuple[list[tuple[int, float]], bool]:
        """Return the rows of a table that have any of the words with their BM25, and if these are all."""
        terms = [self._term(database, table, word) for word in words]
        most = MANY if not self._ranks_all and include is None and min(t.count for t in terms) > MANY else -1
        for expression in _attempts(terms, ranks_all=self._ranks_all):
            rows: list[tuple[int, float]] = database.execute(_RANKED[table], (expression, most)).fetchall()
            found = [row for row in rows if include is None or include(self._keys[row[0]])]
            if found:
                return found, len(rows) != most
        return [], True

    def _complete(self, database: sqlite3.Connection, words: Sequence[Word]) -> set[int]:
        """Return the rows whose summary has all words."""
        everything = " AND ".join(self._term(database, _SUMMARIES, word).expression for word in words)
        return {row for (row,) in database.execute(_PLAIN, (everything, -1))}

    def _term(self, database: sqlite3.Connection, table: str, word: Word) -> _Term:
        """Return a word and its count.

        A word that no skill has is taken as a prefix, if it may be one, or else as
        misspelled.
        """
        exact = _expression(word)
        for expression in (exact, f'"{word.text}"*') if _may_be_prefix(word) else (exact,):
            if any(self._count(database, each, expression) for each in _WEIGHTS):
                return _Term(expression, self._count(database, table, expression))
        similar = self._similar(database, word.text)
        expression = exact if similar is None else f'"{similar}"'
        return _Term(expression, self._count(database, table, expression))

    def _similar(self, database: sqlite3.Connection, word: str) -> str | None:
        """Return the most frequent stem in summaries that is one edit away from that of a word, if any."""
        if len(word) < _MIN_CORRECTED or not (word.isascii() and word.isalpha()):
            return None
        database.execute("INSERT INTO stems(rowid, word) VALUES (1, ?)", (word,))
        [(stem,)] = database.execute("SELECT term FROM stem_terms").fetchall()
        database.execute("DELETE FROM stems")
        start = stem[:_TRUSTED_LETTERS]
        rows = database.execute(_SIMILAR, (start, start + "\x7f"))
        similar = [(-count, term) for term, count in rows if is_one_edit(stem, term)]
        return min(similar)[1] if similar else None

    def _count(self, database: sqlite3.Connection, table: str, expression: str) -> int:
        count = self._counts.get((table, expression))
        if count is None:
            [(count,)] = database.execute(_COUNTED[table], (expression, MANY + 1)).fetchall()
            if len(self._counts) < _MAX_COUNTS:
                self._counts[table, expression] = count
        return count

    def _change(
        self,
        database: sqlite3.Connection,
        gone: Mapping[str, tuple[int, Document]],
        new: Sequence[tuple[str, Document]],
        body: Callable[[str], str],
    ) -> None:
        first = len(self._keys)
        removed = [(row,) for row, _ in gone.values()]
        database.execute("BEGIN")
        for statement in _DELETE:
            database.executemany(statement, removed)
        for row, (key, document) in enumerate(new, first):
            if self.is_stopped:
                raise sqlite3.OperationalError("stopped")
            self._insert(database, row, document)
            if body is not no_body:
                self._insert_body(database, row, document, body(key))
        database.execute("COMMIT")
        for key in gone:
            del self._rows[key]
        self._keys += [key for key, _ in new]
        self._rows.update((key, (row, document)) for row, (key, document) in enumerate(new, first))

    def _insert(self, database: sqlite3.Connection, row: int, document: Document) -> None:
        database.execute(_INSERT[0], (row, *_fields(document)))

    def _insert_body(self, database: sqlite3.Connection, row: int, document: Document, body: str) -> None:
        """Write the summary again beside the body, also of skills without one, so that all are ranked."""
        name, *summary = _fields(document)
        lead, rest = split_body(body[:MAX_BODY])
        texts = index_text(lead, MAX_BODY), index_text(rest, MAX_BODY)
        database.execute(_INSERT[1], (row, name, " ".join(summary), *texts))
        self._has_bodies = True

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
        for statement in _CREATE:
            database.execute(statement)
    except sqlite3.Error as error:
        database.close()
        raise SkillError(
            "searching needs SQLite with FTS5, which this Python does not have",
            fix="use a Python whose sqlite3 module has FTS5, or list the skills instead",
        ) from error
    database.execute(f"PRAGMA max_page_count = {max(most_bytes // _PAGE_BYTES, 1)}")
    return database


def _fields(document: Document) -> tuple[str, str, str, str]:
    """Return the indexed texts of a summary."""
    name, place, frontmatter, _ = document
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


def split_body(body: str) -> tuple[str, str]:
    """Return the headings and the first paragraph of a Markdown text, and all other lines."""
    lead: list[str] = []
    rest: list[str] = []
    in_paragraph, had_paragraph = False, False
    for line in body.splitlines():
        text = line.strip()
        if text.startswith("#"):
            lead.append(text)
        elif text and not had_paragraph:
            in_paragraph = True
            lead.append(text)
        elif text:
            rest.append(text)
        if in_paragraph and (not text or text.startswith("#")):
            had_paragraph = True
    return "\n".join(lead), "\n".join(rest)


def is_one_edit(word: str, other: str) -> bool:
    """Return whether one letter was replaced, added or left out, or two neighbours were swapped."""
    shorter, longer = sorted((word, other), key=len)
    same = 0
    while same < len(shorter) and shorter[same] == longer[same]:
        same += 1
    if len(shorter) != len(longer):
        return shorter[same:] == longer[same + 1 :]
    is_swapped = shorter[same : same + 2] == longer[same : same + 2][::-1]
    return shorter[same + 1 :] == longer[same + 1 :] or (
        is_swapped and shorter[same + 2 :] == longer[same + 2 :]
    )


def _may_be_prefix(word: Word) -> bool:
    return word.is_prefix and (len(word.text) >= _MIN_PREFIX or is_spaceless(word.text))


def _expression(word: Word) -> str:
    """Write a word for FTS5. It has only letters, digits and marks, so it cannot end the quotes."""
    if not word.parts:
        return f'"{word.text}"'
    return _any_of([f'"{word.text}"', "(" + " AND ".join(f'"{part}"' for part in word.parts) + ")"])


def _attempts(terms: Sequence[_Term], *, ranks_all: bool) -> list[str]:
    """Return the expressions to try, in order, until one has matches."""
    everything = _any_of([term.expression for term in terms])
    telling: list[str] = []
    total = 0
    for term in sorted(terms, key=lambda term: term.count):
        total += term.count
        if total <= (MANY if len(telling) < _ALWAYS else _ROOM):
            telling.append(term.expression)
    if ranks_all or len(telling) == len(terms):
        return [everything]
    return [_any_of(telling) if telling else f"{{name}} : {everything}", everything]


def _fused(rankings: Sequence[Sequence[tuple[int, float]]]) -> dict[int, float]:
    """Return the fused rank of each row, lower is better; equal rows of a ranking share a position."""
    fused: dict[int, float] = {}
    for share, ranking in zip(_SHARES, rankings, strict=False):
        position, before = 0, None
        for number, (row, rank) in enumerate(sorted(ranking, key=itemgetter(1)), start=1):
            if rank != before:
                position, before = number, rank
            fused[row] = fused.get(row, 0.0) - share / (_SOFTENING + position)
    return fused


def _any_of(expressions: Sequence[str]) -> str:
    return f"({' OR '.join(expressions)})"
