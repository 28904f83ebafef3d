"""`SearchIndex`: the words of the skills in one snapshot, in SQLite's FTS5.

The database has no name. SQLite keeps it in memory while it is small, and
beyond that in a file that nobody else can open and that goes away with the
process, however that ends. Of each skill only words are kept: its name, tags,
path and description, as its entry has them. Bodies are not looked at.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from weakref import finalize

from skillwire.core.entry import SkillEntry
from skillwire.core.fields import MAX_COMPATIBILITY, MAX_DESCRIPTION
from skillwire.core.tags import MAX_TAGS, tags_of
from skillwire.core.words import Word, index_text, is_spaceless, joined
from skillwire.errors import LimitError, SkillError
from skillwire.sources import Snapshot

MAX_QUERY: Final = 400
"""How many characters a query may have."""
MAX_INDEX_BYTES: Final = 2 * 1024**3
"""How large the database may become; a hundred thousand skills take some 25 MB."""
MANY: Final = 5_000
"""Skills that a few words may find before words that many skills have are left out."""

# Of this thread's own time: a machine that is busy with other things takes longer, and is no reason to fail.
_SEARCH_SECONDS = 2.0
_LONGEST_SECONDS = 20.0
_PAGE_BYTES = 4096
_CACHE_KIBIBYTES = 16 * 1024
_STEPS_BETWEEN_LOOKS = 1000
_SHORTEST_START = 3
_MOST_NAME = 200
_MOST_PLACE = 512
# Below this many changes it is not worth the while to count them.
_FEW_CHANGES = 1000

# The tokenizer folds ASCII and stems English; all other text comes to it folded, and in words.
_CREATE = (
    "CREATE VIRTUAL TABLE skills USING "
    "fts5(name, tags, place, description, content='', tokenize='porter ascii')"
)
_INSERT = "INSERT INTO skills(rowid, name, tags, place, description) VALUES (?, ?, ?, ?, ?)"
# A table without contents forgets a row when it is told once more what was in it.
_DELETE = "INSERT INTO skills(skills, rowid, name, tags, place, description) VALUES ('delete', ?, ?, ?, ?, ?)"
_RANKED = "SELECT rowid, bm25(skills, 8.0, 4.0, 2.0, 1.0) FROM skills WHERE skills MATCH ? LIMIT ?"
_PLAIN = "SELECT rowid FROM skills WHERE skills MATCH ? LIMIT ?"
_COUNTED = f"SELECT count(*) FROM (SELECT 1 FROM skills WHERE skills MATCH ? LIMIT {MANY + 1})"

Include: TypeAlias = Callable[[SkillEntry], bool]
Row: TypeAlias = tuple[int, str, str, str, str]


class Hit(NamedTuple):
    """A skill that was found. Hits are sorted as they are shown: the best come first, equals by URI."""

    lacks_words: bool
    rank: float
    uri: str


@dataclass(frozen=True, slots=True)
class Term:
    """A word as FTS5 looks for it, and how many skills have it, as far as anybody counted."""

    expression: str
    count: int


class SearchIndex:
    """The words of one snapshot after the other. One thread at a time may use it, any thread.

    Whoever meets a `sqlite3.Error` should close it and make another: what a
    change that failed left behind is not to be trusted.
    """

    def __init__(self, *, most_bytes: int = MAX_INDEX_BYTES) -> None:
        self._most_bytes = most_bytes
        self.is_stopped = False
        self._database: sqlite3.Connection | None = None
        self._release: Callable[[], object] | None = None
        self._snapshot: Snapshot | None = None
        self._entries: list[SkillEntry | None] = []
        self._rows: dict[int, int] = {}
        self._until = (0.0, 0.0)

    def close(self) -> None:
        """Forget everything; the file, if there is one, is gone."""
        if self._release is not None:
            self._release()
        self._database, self._release, self._snapshot, self._entries, self._rows = None, None, None, [], {}

    def stop(self) -> None:
        """Make whatever another thread does here fail soon, with a `sqlite3.OperationalError`, for good."""
        self.is_stopped = True

    def update(self, snapshot: Snapshot) -> None:
        """Take in what a snapshot says; what it says as the one before is not read again.

        Raises:
            SkillError: This Python's SQLite has no full-text search.
            sqlite3.Error: The database cannot be written.
        """
        if snapshot is self._snapshot:
            return
        current = {id(entry) for entry in snapshot.entries}
        gone = [row for key, row in self._rows.items() if key not in current]
        new = [entry for entry in snapshot.entries if id(entry) not in self._rows]
        # Also the rows that are gone take room, until everything is written anew.
        changed = len(self._entries) - len(self._rows) + len(gone) + len(new)
        if self._database is None or changed > _FEW_CHANGES + len(current) // 2:
            self.close()
            self._database = _created(self._most_bytes)
            # Also when nobody closes it, so that its file never outlives it.
            self._release = finalize(self, self._database.close)
            gone, new = [], list(snapshot.entries)
        self._change(self._database, gone, new)
        self._snapshot = snapshot

    def hits(self, words: Sequence[Word], include: Include | None = None) -> tuple[list[Hit], bool]:
        """Return the skills that have any of the words, in no order, and whether those are all.

        Words that very many skills have find nothing by themselves beside
        rarer ones. Alone they find skills that are called by them, and where
        there are none of those, the first of all that have them: so many are
        not worth ranking. With `include`, which says what may be found at all,
        as many are looked at as it takes.

        Raises:
            LimitError: It would take too long.
            sqlite3.Error: The database cannot be read.
        """
        database = self._database
        assert database is not None, "updated before it is asked"
        self._until = time.thread_time() + _SEARCH_SECONDS, time.monotonic() + _LONGEST_SECONDS
        database.set_progress_handler(self._is_to_end, _STEPS_BETWEEN_LOOKS)
        try:
            return self._found(database, words, include)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT or self.is_stopped:
                raise
            raise LimitError(
                "too many skills have these words to be ranked in time", fix="use rarer words"
            ) from error
        finally:
            database.set_progress_handler(None, 0)

    def _found(
        self, database: sqlite3.Connection, words: Sequence[Word], include: Include | None
    ) -> tuple[list[Hit], bool]:
        terms = [_term(database, word) for word in words]
        attempts = _attempts(terms)
        most = MANY if include is None and min(term.count for term in terms) > MANY else -1
        complete: set[int] | None = None
        if len(terms) > 1:
            everything = " AND ".join(term.expression for term in terms)
            complete = {row for (row,) in database.execute(_PLAIN, (everything, most))}
        for expression in attempts:
            rows: list[tuple[int, float]] = database.execute(_RANKED, (expression, most)).fetchall()
            found = [
                Hit(complete is not None and row not in complete, rank, entry.uri.text)
                for row, rank in rows
                if (entry := self._entries[row]) is not None and (include is None or include(entry))
            ]
            if found:
                return found, len(rows) != most
        return [], True

    def _change(self, database: sqlite3.Connection, gone: Sequence[int], new: Sequence[SkillEntry]) -> None:
        before = [(row, entry) for row in gone if (entry := self._entries[row]) is not None]
        first = len(self._entries)
        database.execute("BEGIN")
        database.executemany(_DELETE, self._written(before))
        database.executemany(_INSERT, self._written(enumerate(new, first)))
        database.execute("COMMIT")
        for row, entry in before:
            del self._rows[id(entry)]
            self._entries[row] = None
        self._entries += new
        self._rows.update((id(entry), row) for row, entry in enumerate(new, first))

    def _written(self, entries: Iterable[tuple[int, SkillEntry]]) -> Iterator[Row]:
        for row, entry in entries:
            if self.is_stopped:
                raise sqlite3.OperationalError("stopped")
            yield _row(row, entry)

    def _is_to_end(self) -> bool:
        own, wall = self._until
        return self.is_stopped or time.thread_time() > own or time.monotonic() > wall


def require_fts5(database: sqlite3.Connection | None = None) -> None:
    """Check that this Python can search.

    Raises:
        SkillError: Its SQLite has no full-text search.
    """
    database = database or sqlite3.connect(":memory:")
    try:
        database.execute(_CREATE)
    except sqlite3.Error as error:
        raise SkillError(
            "finding skills by words needs SQLite with FTS5, which this Python lacks",
            fix="use a Python whose sqlite3 module has FTS5, or serve without the tool find_skills",
        ) from error
    finally:
        database.close()


def _created(most_bytes: int) -> sqlite3.Connection:
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    try:
        # If anything goes wrong, the whole of it is thrown away: nothing needs to be taken back.
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        database.execute(f"PRAGMA cache_size = -{_CACHE_KIBIBYTES}")
        database.execute(f"PRAGMA max_page_count = {max(most_bytes // _PAGE_BYTES, 1)}")
        database.execute(_CREATE)
    except BaseException:
        database.close()
        raise
    return database


def _row(row: int, entry: SkillEntry) -> Row:
    """Return what is kept of a skill: always the same for one entry, or it could not be taken back."""
    frontmatter = entry.frontmatter
    name, compatibility = frontmatter.name, frontmatter.fields.get("compatibility")
    shown, whole = index_text(name, _MOST_NAME), joined(name)
    described = index_text(frontmatter.description, MAX_DESCRIPTION)
    if isinstance(compatibility, str) and compatibility:
        described += " " + index_text(compatibility, MAX_COMPATIBILITY)
    return (
        row,
        shown if whole == name else f"{shown} {index_text(whole, _MOST_NAME)}",
        index_text(tags_of(frontmatter), MAX_TAGS),
        index_text(entry.uri.path, _MOST_PLACE),
        described,
    )


def _term(database: sqlite3.Connection, word: Word) -> Term:
    """Write a word for FTS5. It holds letters, digits and marks alone, so the quotes cannot be left."""
    ways = [f'"{word.text}"']
    if word.parts:
        ways.append("(" + " AND ".join(f'"{part}"' for part in word.parts) + ")")
    plain = _either(ways)
    if word.is_start and (len(word.text) >= _SHORTEST_START or is_spaceless(word.text)):
        begun = _either([*ways, f'"{word.text}"*'])
        count = _count(database, begun)
        if count <= MANY:
            return Term(begun, count)
    return Term(plain, _count(database, plain))


def _attempts(terms: Sequence[Term]) -> list[str]:
    """Return what to look for, in order, until something is found."""
    telling: list[str] = []
    room = MANY
    for term in sorted(terms, key=lambda term: term.count):
        room -= term.count
        if room >= 0:
            telling.append(term.expression)
    everything = _either([term.expression for term in terms])
    if len(telling) == len(terms):
        return [everything]
    return [_either(telling) if telling else f"{{name}} : {everything}", everything]


def _count(database: sqlite3.Connection, expression: str) -> int:
    [(count,)] = database.execute(_COUNTED, (expression,)).fetchall()
    return count


def _either(expressions: Sequence[str]) -> str:
    return f"({' OR '.join(expressions)})"
