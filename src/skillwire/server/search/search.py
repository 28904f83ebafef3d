"""`SkillSearch`: finds skills of one server by words, in pages that can be walked to the end.

Skills that have all words of a query come before those that have some; then
BM25 decides, where a word counts most in a name, then in tags, then in the
path, then in the description. Equals are sorted by URI.

A cursor says after which skill to go on, and how many came before it. So it
holds no state of a process, and any replica of the same skills can go on. When
the skills change meanwhile, the search goes on after that skill, wherever it
stands now, and if it is gone, after as many as came before it: what is new
before that place is not shown any more, and the rest is.
"""

import logging
import re
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from heapq import nsmallest
from threading import Lock
from typing import Final

import anyio
import anyio.to_thread

from skillwire.core.characters import visible
from skillwire.core.entry import SkillEntry
from skillwire.core.excerpts import excerpt_of
from skillwire.core.fields import MAX_DESCRIPTION
from skillwire.core.words import Word, query_words
from skillwire.errors import InvalidCursorError, LimitError, SkillError, SourceError
from skillwire.runner import scripts_of
from skillwire.server.access.sight import EVERYTHING, Sight, place
from skillwire.server.search.index import MAX_INDEX_BYTES, MAX_QUERY, Hit, SearchIndex
from skillwire.sources import Snapshot
from skillwire.wire.cursor import read_cursor, write_cursor

MAX_WAITING: Final = 32
"""How many searches may wait for one that goes on, as for the first, which makes the index."""

logger = logging.getLogger(__name__)

_LISTING = "find_skills"
_WAIT_SECONDS = 30.0
# After a failure nobody tries again for so long: making an index takes seconds.
_REST_SECONDS = 30.0
_ATTEMPTS = 2
_CURSOR = re.compile(r"([0-9a-f]{12}) ([0-9]{1,9}) (.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Filters:
    """Which skills may be found at all.

    `below` is a place as `acme/billing`, and stands for what is there and
    everything below it. `has_scripts` asks for skills with scripts, or without.
    """

    below: str = EVERYTHING
    has_scripts: bool | None = None

    def __post_init__(self) -> None:
        """Bring the place into its canonical form.

        Raises:
            InvalidUriError: It can be the place of no skill.
        """
        object.__setattr__(self, "below", place(self.below))

    def __bool__(self) -> bool:
        return self.below != EVERYTHING or self.has_scripts is not None

    def include(self, entry: SkillEntry) -> bool:
        """Tell whether a skill may be found."""
        if not Sight((self.below,)).sees(entry.uri):
            return False
        return self.has_scripts is None or bool(scripts_of(entry)) == self.has_scripts


NO_FILTERS: Final = Filters()


@dataclass(frozen=True, slots=True)
class Match:
    """A skill that was found, and one harmless line of its description."""

    entry: SkillEntry
    snippet: str


@dataclass(frozen=True, slots=True)
class SearchPage:
    """Some of the skills that were found, how many there are, and how to get the next, if any.

    `total` is None when there are too many to be counted.
    """

    matches: tuple[Match, ...]
    total: int | None
    cursor: str | None


NOTHING: Final = SearchPage((), 0, None)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to go on: after the skill at a URI, or, if it is gone, after so many others."""

    position: int
    uri: str


class SkillSearch:
    """Finds skills by words. The first search makes the index; one goes on at a time, in a thread."""

    def __init__(self, *, most_bytes: int = MAX_INDEX_BYTES) -> None:
        self._most_bytes = most_bytes
        self._index = SearchIndex(most_bytes=most_bytes)
        self._in_use = Lock()
        self._turn = anyio.CapacityLimiter(1)
        self._waiting = 0
        self._rests_until = 0.0

    async def find(
        self,
        snapshot: Snapshot,
        query: str,
        *,
        limit: int = 10,
        cursor: str | None = None,
        filters: Filters = NO_FILTERS,
    ) -> SearchPage:
        """Return a page of the skills in `snapshot` that have words of the query.

        Of a query as much counts as one may have. Without a letter or digit
        it finds nothing.

        Raises:
            InvalidCursorError: The cursor is of another search, or of none.
            LimitError: Too many look for skills at the moment, or it takes too long.
            SourceError: The index cannot be written or read.
        """
        words = query_words(query[:MAX_QUERY])
        after = None if cursor is None else _read(cursor, words, filters)
        if not words:
            return NOTHING
        if self._waiting > MAX_WAITING:
            raise LimitError("too many searches wait already", fix="try again in a moment")
        look = partial(self._look, snapshot, words, limit, after, filters)
        self._waiting += 1
        try:
            with anyio.fail_after(_WAIT_SECONDS):
                return await anyio.to_thread.run_sync(look, limiter=self._turn)
        except TimeoutError as error:
            raise LimitError("the search waited too long for its turn", fix="try again later") from error
        finally:
            self._waiting -= 1

    def cursor_after(self, entry: SkillEntry, query: str, filters: Filters = NO_FILTERS) -> str:
        """Return a cursor that goes on after a skill, and tells nothing of those before it.

        If the skill is gone by then, the search starts again.
        """
        return _write(_Place(0, entry.uri.text), query_words(query[:MAX_QUERY]), filters)

    def close(self) -> None:
        """Forget the index. A search that goes on ends without an answer; a later one makes another."""
        index, self._index = self._index, SearchIndex(most_bytes=self._most_bytes)
        index.stop()
        with self._in_use:
            index.close()

    def _look(
        self, snapshot: Snapshot, words: Sequence[Word], limit: int, after: _Place | None, filters: Filters
    ) -> SearchPage:
        with self._in_use:
            index = self._index
            hits, are_all = self._hits(index, snapshot, words, filters)
        last = next((hit for hit in hits if after is not None and hit.uri == after.uri), None)
        if last is not None:
            later = [hit for hit in hits if hit > last]
            start, shown = len(hits) - len(later), nsmallest(limit, later)
        else:
            start = 0 if after is None else min(after.position, len(hits))
            shown = nsmallest(start + limit, hits)[start:]
        matches = tuple(_match(snapshot, hit, words) for hit in shown)
        end = start + len(shown)
        cursor = _write(_Place(end - 1, shown[-1].uri), words, filters) if shown and end < len(hits) else None
        return SearchPage(matches, len(hits) if are_all else None, cursor)

    def _hits(
        self, index: SearchIndex, snapshot: Snapshot, words: Sequence[Word], filters: Filters
    ) -> tuple[list[Hit], bool]:
        """Ask the index; if it fails, fill it again, once."""
        if time.monotonic() < self._rests_until:
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
                    logger.exception("the index of skills cannot be used, so none are found for a while")
                    self._rests_until = time.monotonic() + _REST_SECONDS
                    raise _unavailable() from error
                logger.warning("the index of skills is made again: %s", error)
            except BaseException:
                index.close()
                raise
        raise AssertionError("the last attempt returns or raises")


def _match(snapshot: Snapshot, hit: Hit, words: Sequence[Word]) -> Match:
    entry = snapshot.by_uri[hit.uri]
    line = " ".join(visible(entry.frontmatter.description[:MAX_DESCRIPTION]).split())
    return Match(entry, excerpt_of(line, words))


def _unavailable() -> SourceError:
    return SourceError("skills cannot be found by words at the moment", fix="try again later, or list them")


def _digest(words: Sequence[Word], filters: Filters) -> str:
    """Return what a cursor is bound to: what was looked for, and where."""
    text = "\n".join([*(word.text for word in words), filters.below, str(filters.has_scripts)])
    return blake2b(text.encode("utf-8", "replace"), digest_size=6).hexdigest()


def _write(place: _Place, words: Sequence[Word], filters: Filters) -> str:
    return write_cursor(_LISTING, f"{_digest(words, filters)} {place.position} {place.uri}")


def _read(cursor: str, words: Sequence[Word], filters: Filters) -> _Place:
    form = _CURSOR.fullmatch(read_cursor(_LISTING, cursor))
    if form is None or form[1] != _digest(words, filters):
        raise InvalidCursorError(
            "the cursor is of another search", fix="send it with the same query, or start again without one"
        )
    return _Place(int(form[2]), form[3])
