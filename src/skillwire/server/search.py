"""`ServerSearch`: full-text search over the skills of one server, in pages.

Names, tags, paths, descriptions and the bodies of `SKILL.md` are searched and
ranked as `search.scores` describes. Equals are sorted by URI.

A cursor has the last skill of a page and its position. So it has no state of a
process, and works on any replica of the same skills. If the skills change
meanwhile, the next page begins after that skill at its current position, or, if
it is gone, at the same position: new matches before it are not shown.

The index is updated when the skills are opened, if the tool `find_skills` is
offered, else on the first search, and closed with the skills. It has only the
skills of its own server or view, so other skills do not influence an answer,
not even its order.

The skills of a catalog have one index for all views, which is updated in the
background; see `IndexUpdates`. There, other skills influence only how rare a
word is.
"""

import logging
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final

import anyio
import anyio.to_thread

from skillwire.core import (
    MAX_DESCRIPTION,
    InvalidCursorError,
    LimitError,
    SkillEntry,
    SkillError,
    SourceError,
    visible,
)
from skillwire.runner import scripts_of
from skillwire.search.index import MAX_INDEX_BYTES, ReadBody, SearchIndex, no_body
from skillwire.search.lookup import SearchArea
from skillwire.search.scores import MAX_BODY, Document, Ranker, Ranking
from skillwire.search.words import BODY, DESCRIPTION, Word, excerpt_of, query_words
from skillwire.server.index_updates import IndexUpdates, ReadLater, document_of
from skillwire.server.visibility import EVERYTHING, Visibility, parse_prefix
from skillwire.sources.combined import CombinedSource
from skillwire.sources.snapshot import Snapshot
from skillwire.sources.stored import StoredSnapshot
from skillwire.wire.core import read_cursor, write_cursor

MAX_QUERY: Final = 400
"""The maximum length of a query."""
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
    """A matching skill, an excerpt on one line, and the fields that have words of the query."""

    entry: SkillEntry
    snippet: str
    matched_in: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SkillSearchPage:
    """A page of matches, their total, and the cursor of the next page, if any.

    While much is being indexed in the background, it is not complete.
    """

    matches: tuple[SkillMatch, ...]
    total: int
    cursor: str | None
    is_complete: bool = True


NOTHING: Final = SkillSearchPage((), 0, None)


@dataclass(frozen=True, slots=True)
class _CursorPosition:
    """Where the next page begins: after the skill at a URI, or, if it is gone, after an offset."""

    offset: int
    uri: str


class ServerSearch:
    """Searches skills. The first search builds the index; one runs at a time, in a thread.

    `body` returns the text of a skill's instructions, or None if it cannot be
    read at once. It is called in that thread.
    """

    def __init__(
        self,
        body: Callable[[SkillEntry], str | None] | None = None,
        *,
        ranker: Ranker | None = None,
        most_bytes: int = MAX_INDEX_BYTES,
    ) -> None:
        self._body = body
        self._new_index = partial(SearchIndex, ranker=ranker, most_bytes=most_bytes)
        self._index = self._new_index()
        self._updates: IndexUpdates | None = None
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
            LimitError: Too many searches are waiting, or one waited too long.
            SourceError: The index cannot be written or read.
        """
        query = query[:MAX_QUERY]
        words = query_words(query)
        after = None if cursor is None else _read(cursor, words, filters)
        if not words:
            return NOTHING
        is_complete = True
        if snapshot.is_stored:
            if self._updates is None:
                raise _unavailable()
            is_complete = await self._updates.wait()
        page = await self._in_thread(partial(self._search, snapshot, query, limit, after, filters))
        return page if is_complete else replace(page, is_complete=False)

    async def prepare(self, snapshot: Snapshot) -> None:
        """Build the index, so that the first search does not wait for it.

        Raises:
            LimitError: Too many searches are waiting.
            SourceError: The index cannot be written.
        """
        if self._updates is not None:
            self._updates.start()
        else:
            await self._in_thread(partial(self._search, snapshot, "", 1, None, NO_FILTERS))

    def updates(self, source: CombinedSource, read_later: ReadLater) -> IndexUpdates:
        """Return what updates the index of a catalog; it must run until the index is closed."""
        self._updates = IndexUpdates(self._index, self._in_use, source, self._body or _no_text, read_later)
        return self._updates

    async def _in_thread(self, search: Callable[[], SkillSearchPage]) -> SkillSearchPage:
        if self._waiting > MAX_WAITING:
            raise LimitError("too many searches are waiting", fix="try again in a moment")
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

    def use_file(self, path: Path | None) -> None:
        """Keep the index in a file, from which the next start continues; called before the first search."""
        self._index = self._new_index(path)

    def stop(self) -> None:
        """Interrupt what is running, since the index is closed next."""
        self._index.stop()

    def close(self) -> None:
        """Close the index. A running search fails; a later one builds a new index."""
        index, self._index, self._updates = self._index, self._new_index(), None
        index.stop()
        with self._in_use:
            index.close()

    def _search(
        self, snapshot: Snapshot, query: str, limit: int, after: _CursorPosition | None, filters: Filters
    ) -> SkillSearchPage:
        with self._in_use:
            return self._retried(self._index, partial(self._page, snapshot, query, limit, after, filters))

    def _page(
        self,
        snapshot: Snapshot,
        query: str,
        limit: int,
        after: _CursorPosition | None,
        filters: Filters,
        index: SearchIndex,
    ) -> SkillSearchPage:
        ranking = self._ranking(snapshot, query, filters, index)
        start = 0 if after is None else _start(ranking, after)
        shown = [key for key, _ in islice(ranking, start, start + limit)]
        # The index of a catalog may be of another revision.
        found = [(entry, key) for key in shown if (entry := snapshot.by_uri.get(key)) is not None]
        matches = tuple(self._match(entry, ranking, index.fields_of(key, ranking)) for entry, key in found)
        end = start + len(shown)
        cursor = None
        if shown and end < ranking.total:
            cursor = _write(_CursorPosition(end - 1, shown[-1]), query_words(query), filters)
        return SkillSearchPage(matches, ranking.total, cursor)

    def _ranking(self, snapshot: Snapshot, query: str, filters: Filters, index: SearchIndex) -> Ranking:
        if not isinstance(snapshot, StoredSnapshot):
            index.update(snapshot, lambda: _documents(snapshot), self._bodies(snapshot))
            return index.rank(query, (lambda uri: filters.include(snapshot.by_uri[uri])) if filters else None)
        if filters.below != EVERYTHING:
            snapshot = snapshot.below(filters.below)
        selection = snapshot.selection
        return index.rank(
            query,
            area=SearchArea(selection.spans, selection.hidden),
            has_scripts=filters.has_scripts,
            document=lambda uri: document_of(snapshot.by_uri[uri]),
        )

    def _retried(self, index: SearchIndex, page: Callable[[SearchIndex], SkillSearchPage]) -> SkillSearchPage:
        """Return the page; if the index fails, rebuild it once."""
        if time.monotonic() < self._retry_at:
            raise _unavailable()
        attempts = _ATTEMPTS if self._updates is None else 1
        for attempt in range(1, attempts + 1):
            try:
                return page(index)
            except SkillError:
                raise
            except (sqlite3.Error, MemoryError) as error:
                if index.is_stopped:
                    raise SourceError("the skills are being closed") from error
                index.discard()
                if attempt == attempts:
                    logger.exception("the search index failed; next attempt in %d s", _RETRY_SECONDS)
                    self._retry_at = time.monotonic() + _RETRY_SECONDS
                    raise _unavailable() from error
                logger.warning("the search index is rebuilt: %s", error)
            except BaseException:
                index.close()
                raise
        raise AssertionError("the last attempt returns or raises")

    def _bodies(self, snapshot: Snapshot) -> ReadBody:
        body = self._body
        return no_body if body is None else lambda uri: body(snapshot.by_uri[uri])

    def _match(self, entry: SkillEntry, ranking: Ranking, fields: tuple[str, ...]) -> SkillMatch:
        text = entry.frontmatter.description[:MAX_DESCRIPTION]
        if BODY in fields and DESCRIPTION not in fields and self._body is not None:
            text = (self._body(entry) or text)[:MAX_BODY]
        return SkillMatch(entry, excerpt_of(" ".join(visible(text).split()), ranking.words), fields)


def _start(ranking: Ranking, after: _CursorPosition) -> int:
    """Return the position after a skill, or, if it is gone, the offset."""
    found = (number for number, (key, _) in enumerate(ranking, start=1) if key == after.uri)
    return next(found, min(after.offset, ranking.total))


def _no_text(_entry: SkillEntry) -> str:
    return ""


def _documents(snapshot: Snapshot) -> dict[str, Document]:
    return {
        entry.uri.text: Document(
            entry.frontmatter.name, entry.uri.path, entry.frontmatter, _digest_of_body(entry)
        )
        for entry in snapshot.entries
    }


def _digest_of_body(entry: SkillEntry) -> str:
    line = entry.manifest.find(entry.uri.text) if entry.manifest is not None else None
    return "" if line is None else line.digest


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
