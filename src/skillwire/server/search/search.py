"""`ServerSearch`: full-text search over the skills of one server, in pages.

Skills that have all words of a query come before those that have some; then
BM25 decides, where a word counts most in a name, then in tags, then in the
path, then in the description. Equals are sorted by URI.

A cursor has the last skill of a page and its position. So it has no state of a
process, and works on any replica of the same skills. If the skills change
meanwhile, the next page begins after that skill at its current position, or, if
it is gone, at the same position: new matches before it are not shown.
"""

import logging
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from heapq import nsmallest
from threading import Lock
from typing import Final, NamedTuple, TypeAlias
from weakref import finalize

import anyio
import anyio.to_thread

from skillwire.core import (
    MAX_COMPATIBILITY,
    MAX_DESCRIPTION,
    MAX_TAGS,
    InvalidCursorError,
    LimitError,
    SkillEntry,
    SkillError,
    SourceError,
    Word,
    excerpt_of,
    index_text,
    is_spaceless,
    joined,
    query_words,
    tags_of,
    visible,
)
from skillwire.runner import scripts_of
from skillwire.server.visibility import EVERYTHING, Visibility, parse_prefix
from skillwire.sources.snapshot import Snapshot
from skillwire.wire.core import read_cursor, write_cursor

# `SearchIndex`: the words of the skills in one snapshot, in SQLite's FTS5.


MAX_QUERY: Final = 400
"""The maximum length of a query."""
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
_MAX_PATH = 512
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
_COUNTED = f"SELECT count(*) FROM (SELECT 1 FROM skills WHERE skills MATCH ? LIMIT {MANY + 1})"

Include: TypeAlias = Callable[[SkillEntry], bool]
Row: TypeAlias = tuple[int, str, str, str, str]


class Hit(NamedTuple):
    """A match. Hits sort in the order of results: the best first, equals by URI."""

    lacks_words: bool
    rank: float
    uri: str


@dataclass(frozen=True, slots=True)
class Term:
    """A word as an FTS5 expression, and the number of skills that have it, up to a limit."""

    expression: str
    count: int


class SearchIndex:
    """The words of successive snapshots. Any thread may use it, one at a time.

    After a `sqlite3.Error`, close it and make another: a failed change may have
    left it inconsistent.
    """

    def __init__(self, *, most_bytes: int = MAX_INDEX_BYTES) -> None:
        self._most_bytes = most_bytes
        self.is_stopped = False
        self._database: sqlite3.Connection | None = None
        self._release: Callable[[], object] | None = None
        self._snapshot: Snapshot | None = None
        self._entries: list[SkillEntry | None] = []
        self._rows: dict[int, int] = {}
        self._deadlines = (0.0, 0.0)

    def close(self) -> None:
        """Close the database and delete its file, if any."""
        if self._release is not None:
            self._release()
        self._database, self._release, self._snapshot, self._entries, self._rows = None, None, None, [], {}

    def stop(self) -> None:
        """Interrupt operations in other threads with a `sqlite3.OperationalError`, permanently."""
        self.is_stopped = True

    def update(self, snapshot: Snapshot) -> None:
        """Update the index to a snapshot; only changed entries are written.

        Raises:
            SkillError: This Python's SQLite has no full-text search.
            sqlite3.Error: The database cannot be written.
        """
        if snapshot is self._snapshot:
            return
        current = {id(entry) for entry in snapshot.entries}
        gone = [row for key, row in self._rows.items() if key not in current]
        new = [entry for entry in snapshot.entries if id(entry) not in self._rows]
        # Deleted rows take space until the index is rebuilt.
        changed = len(self._entries) - len(self._rows) + len(gone) + len(new)
        if self._database is None or changed > _FEW_CHANGES + len(current) // 2:
            self.close()
            self._database = _create_database(self._most_bytes)
            # If it is never closed, the database is closed with the object.
            self._release = finalize(self, self._database.close)
            gone, new = [], list(snapshot.entries)
        self._change(self._database, gone, new)
        self._snapshot = snapshot

    def hits(self, words: Sequence[Word], include: Include | None = None) -> tuple[list[Hit], bool]:
        """Return the skills that have any of the words, unsorted, and whether those are all.

        Beside rarer words, very common ones are left out of the search. Alone
        they match names only, and if there are none, the first skills that have
        them: so many are not ranked. With `include`, a filter, all matches are
        checked.

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

    def _is_interrupted(self) -> bool:
        own, wall = self._deadlines
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


def _create_database(most_bytes: int) -> sqlite3.Connection:
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    try:
        # On any error the whole database is dropped, so no rollback is needed.
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
    """Return the row of a skill: always the same for one entry, which deleting it needs."""
    frontmatter = entry.frontmatter
    name, compatibility = frontmatter.name, frontmatter.fields.get("compatibility")
    shown, whole = index_text(name, _MAX_NAME), joined(name)
    described = index_text(frontmatter.description, MAX_DESCRIPTION)
    if isinstance(compatibility, str) and compatibility:
        described += " " + index_text(compatibility, MAX_COMPATIBILITY)
    return (
        row,
        shown if whole == name else f"{shown} {index_text(whole, _MAX_NAME)}",
        index_text(tags_of(frontmatter), MAX_TAGS),
        index_text(entry.uri.path, _MAX_PATH),
        described,
    )


def _term(database: sqlite3.Connection, word: Word) -> Term:
    """Write a word for FTS5. It has only letters, digits and marks, so it cannot end the quotes."""
    ways = [f'"{word.text}"']
    if word.parts:
        ways.append("(" + " AND ".join(f'"{part}"' for part in word.parts) + ")")
    plain = _any_of(ways)
    if word.is_prefix and (len(word.text) >= _MIN_PREFIX or is_spaceless(word.text)):
        begun = _any_of([*ways, f'"{word.text}"*'])
        count = _count(database, begun)
        if count <= MANY:
            return Term(begun, count)
    return Term(plain, _count(database, plain))


def _attempts(terms: Sequence[Term]) -> list[str]:
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


def _count(database: sqlite3.Connection, expression: str) -> int:
    [(count,)] = database.execute(_COUNTED, (expression,)).fetchall()
    return count


def _any_of(expressions: Sequence[str]) -> str:
    return f"({' OR '.join(expressions)})"


MAX_WAITING: Final = 32
"""How many searches may wait for a running one, such as the first, which builds the index."""

logger = logging.getLogger(__name__)

_LISTING = "find_skills"
_WAIT_SECONDS = 30.0
# After a failure, no search is tried for this time: building an index takes seconds.
_RETRY_SECONDS = 30.0
_ATTEMPTS = 2
_CURSOR = re.compile(r"([0-9a-f]{12}) ([0-9]{1,9}) (.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of a search.

    `below` is a path such as `acme/billing`, which includes everything below it.
    `has_scripts` selects skills with scripts, or without.
    """

    below: str = EVERYTHING
    has_scripts: bool | None = None

    def __post_init__(self) -> None:
        """Normalize the path.

        Raises:
            InvalidUriError: It cannot be the path of skills.
        """
        object.__setattr__(self, "below", parse_prefix(self.below))

    def __bool__(self) -> bool:
        return self.below != EVERYTHING or self.has_scripts is not None

    def include(self, entry: SkillEntry) -> bool:
        """Return whether a skill passes the filters."""
        if not Visibility((self.below,)).includes(entry.uri):
            return False
        return self.has_scripts is None or bool(scripts_of(entry)) == self.has_scripts


NO_FILTERS: Final = Filters()


@dataclass(frozen=True, slots=True)
class SkillMatch:
    """A matching skill, and an excerpt of its description on one line."""

    entry: SkillEntry
    snippet: str


@dataclass(frozen=True, slots=True)
class SkillSearchPage:
    """A page of matches, their total, and the cursor of the next page, if any.

    `total` is None when there are too many to count.
    """

    matches: tuple[SkillMatch, ...]
    total: int | None
    cursor: str | None


NOTHING: Final = SkillSearchPage((), 0, None)


@dataclass(frozen=True, slots=True)
class _CursorPosition:
    """Where the next page begins: after the skill at a URI, or, if it is gone, after an offset."""

    offset: int
    uri: str


class ServerSearch:
    """Searches skills. The first search builds the index; one runs at a time, in a thread."""

    def __init__(self, *, most_bytes: int = MAX_INDEX_BYTES) -> None:
        self._most_bytes = most_bytes
        self._index = SearchIndex(most_bytes=most_bytes)
        self._in_use = Lock()
        self._limiter = anyio.CapacityLimiter(1)
        self._waiting = 0
        self._retry_at = 0.0

    async def find(
        self,
        snapshot: Snapshot,
        query: str,
        *,
        limit: int = 10,
        cursor: str | None = None,
        filters: Filters = NO_FILTERS,
    ) -> SkillSearchPage:
        """Return a page of the skills in `snapshot` that have words of the query.

        A longer query than `MAX_QUERY` is cut. A query without a letter or
        digit has no matches.

        Raises:
            InvalidCursorError: The cursor belongs to another search, or is invalid.
            LimitError: Too many searches are waiting, or it takes too long.
            SourceError: The index cannot be written or read.
        """
        words = query_words(query[:MAX_QUERY])
        after = None if cursor is None else _read(cursor, words, filters)
        if not words:
            return NOTHING
        if self._waiting > MAX_WAITING:
            raise LimitError("too many searches are waiting", fix="try again in a moment")
        search = partial(self._search, snapshot, words, limit, after, filters)
        self._waiting += 1
        try:
            with anyio.fail_after(_WAIT_SECONDS):
                return await anyio.to_thread.run_sync(search, limiter=self._limiter)
        except TimeoutError as error:
            raise LimitError("the search waited too long in the queue", fix="try again later") from error
        finally:
            self._waiting -= 1

    def cursor_after(self, entry: SkillEntry, query: str, filters: Filters = NO_FILTERS) -> str:
        """Return a cursor after a skill that does not reveal how many come before it.

        If the skill is gone by then, the search starts at the beginning.
        """
        return _write(_CursorPosition(0, entry.uri.text), query_words(query[:MAX_QUERY]), filters)

    def close(self) -> None:
        """Close the index. A running search fails; a later one builds a new index."""
        index, self._index = self._index, SearchIndex(most_bytes=self._most_bytes)
        index.stop()
        with self._in_use:
            index.close()

    def _search(
        self,
        snapshot: Snapshot,
        words: Sequence[Word],
        limit: int,
        after: _CursorPosition | None,
        filters: Filters,
    ) -> SkillSearchPage:
        with self._in_use:
            index = self._index
            hits, are_all = self._hits(index, snapshot, words, filters)
        last = next((hit for hit in hits if after is not None and hit.uri == after.uri), None)
        if last is not None:
            later = [hit for hit in hits if hit > last]
            start, shown = len(hits) - len(later), nsmallest(limit, later)
        else:
            start = 0 if after is None else min(after.offset, len(hits))
            shown = nsmallest(start + limit, hits)[start:]
        matches = tuple(_match(snapshot, hit, words) for hit in shown)
        end = start + len(shown)
        cursor = (
            _write(_CursorPosition(end - 1, shown[-1].uri), words, filters)
            if shown and end < len(hits)
            else None
        )
        return SkillSearchPage(matches, len(hits) if are_all else None, cursor)

    def _hits(
        self, index: SearchIndex, snapshot: Snapshot, words: Sequence[Word], filters: Filters
    ) -> tuple[list[Hit], bool]:
        """Return the hits of the index; if it fails, rebuild it once."""
        if time.monotonic() < self._retry_at:
            raise _unavailable()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                index.update(snapshot)
                return index.hits(words, filters.include if filters else None)
            except SkillError:
                raise
            except (sqlite3.Error, MemoryError) as error:
                index.close()
                if index.is_stopped:
                    raise SourceError("the skills are being closed") from error
                if attempt == _ATTEMPTS:
                    logger.exception("the search index failed; next attempt in %d s", _RETRY_SECONDS)
                    self._retry_at = time.monotonic() + _RETRY_SECONDS
                    raise _unavailable() from error
                logger.warning("the search index is rebuilt: %s", error)
            except BaseException:
                index.close()
                raise
        raise AssertionError("the last attempt returns or raises")


def _match(snapshot: Snapshot, hit: Hit, words: Sequence[Word]) -> SkillMatch:
    entry = snapshot.by_uri[hit.uri]
    line = " ".join(visible(entry.frontmatter.description[:MAX_DESCRIPTION]).split())
    return SkillMatch(entry, excerpt_of(line, words))


def _unavailable() -> SourceError:
    return SourceError("skills cannot be searched at the moment", fix="try again later, or list them")


def _digest(words: Sequence[Word], filters: Filters) -> str:
    """Return a digest of the query and the filters, to which a cursor is bound."""
    text = "\n".join([*(word.text for word in words), filters.below, str(filters.has_scripts)])
    return blake2b(text.encode("utf-8", "replace"), digest_size=6).hexdigest()


def _write(position: _CursorPosition, words: Sequence[Word], filters: Filters) -> str:
    return write_cursor(_LISTING, f"{_digest(words, filters)} {position.offset} {position.uri}")


def _read(cursor: str, words: Sequence[Word], filters: Filters) -> _CursorPosition:
    form = _CURSOR.fullmatch(read_cursor(_LISTING, cursor))
    if form is None or form[1] != _digest(words, filters):
        raise InvalidCursorError(
            "the cursor belongs to another search",
            fix="send it with the same query, or start again without one",
        )
    return _CursorPosition(int(form[2]), form[3])
