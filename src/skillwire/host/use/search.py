"""Full-text search in skills, with pagination.

The order, which no single server can dominate:

1. That of `search.scores`. Bodies are searched only of local skills: a host
   reads no file of a server before it is needed.
2. Among equal scores, servers alternate; local folders count as one server.
3. After two skills of one server comes one of another while there is any, so
   the best match of the others is third at the latest.

The order does not depend on the page size. A cursor is a position in it,
together with a digest of the query and of everything before the position. If
that has changed meanwhile, the cursor is refused. So the pages of one search
contain every match exactly once.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

from skillwire.core import FrontmatterError, InvalidCursorError, SkillError, SourceError, body_text, visible
from skillwire.host.model import LOCAL, KnownSkill, RegistryView
from skillwire.host.registry.local import read_local_file
from skillwire.host.use.present import escaped_line, summary_of
from skillwire.search.index import SearchIndex
from skillwire.search.scores import MAX_BODY, Document, Ranker
from skillwire.search.words import BODY, DESCRIPTION, MAX_QUERY, Word, excerpt_of, query_words

SEARCH_FOLDER: Final = "search"
"""The folder of indexes, in the cache."""
MAX_LIMIT: Final = 100
"""The maximum number of skills on one page."""

Include: TypeAlias = Callable[[KnownSkill], bool]
Hit: TypeAlias = tuple[str, float]
"""The key of a matching skill, and its score."""

_CURSOR = re.compile("([0-9]{1,9})-([0-9a-f]{16})")
_MAX_IN_A_ROW = 2


@dataclass(frozen=True, slots=True)
class Match:
    """A matching skill; `snippet` is one safe line of its description or instructions, around the words.

    `matched_in` are the fields that have words of the query.
    """

    skill: KnownSkill
    score: float
    snippet: str
    matched_in: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of matching skills.

    `query` is the query, safe to show, and `total` the number of all matches.
    `cursor` is for the next page; None on the last one.
    """

    query: str
    matches: tuple[Match, ...]
    total: int
    cursor: str | None


Found: TypeAlias = tuple[list[str], int, tuple[Match, ...]]


class SkillSearch:
    """Full-text search in listed skills; no file of a server is read.

    It is thread-safe. The first search after a change of the skills updates
    the index, so call it from a worker thread rather than an event loop;
    `include` is called in that thread. With a `path`, the index is a file that
    the next start continues with.
    """

    def __init__(self, path: Path | None = None, *, ranker: Ranker | None = None) -> None:
        self._lock = Lock()
        self._corpus = _Corpus(())
        self._index = SearchIndex(path, ranker=ranker)

    def find(
        self,
        view: RegistryView,
        query: str,
        *,
        limit: int = 10,
        cursor: str | None = None,
        label: str = "",
        include: Include | None = None,
    ) -> SearchPage:
        """Return a page of the skills that have words of the query.

        A query without a letter or digit matches all skills, sorted by
        reference. `label` limits the search to one server, or with `local` to
        local skills, and `include` filters skills. An empty cursor counts as
        none.

        Raises:
            InvalidCursorError: The cursor is not from this search, or its results have changed.
            SourceError: The index cannot be written or read.
        """
        query = query[:MAX_QUERY]
        words = query_words(query)
        wanted = None if cursor is None or not cursor else _read(cursor)
        start = 0 if wanted is None else wanted.start
        end = start + min(max(limit, 1), MAX_LIMIT)
        with self._lock:
            if view.skills is not self._corpus.skills:
                self._corpus = _Corpus(view.skills)
            corpus = self._corpus
            if words:
                first, total, found = self._retried(
                    partial(self._page, corpus, query, start, end, label, include)
                )
            else:
                skills = [skill for skill in view.skills if corpus.includes(skill, label, include)]
                first, total = [_key_of(skill) for skill in skills[:end]], len(skills)
                found = tuple(corpus.match(_key_of(skill), 0.0, (), ()) for skill in skills[start:end])
        if wanted is not None and (wanted.order != _digest(words, first[:start]) or not 0 < start < total):
            raise InvalidCursorError(
                "the cursor is from another search, or the skills have changed since",
                fix="start the search again without a cursor",
            )
        return SearchPage(
            " ".join(visible(query).split()),
            found,
            total,
            f"{end}-{_digest(words, first)}" if end < total else None,
        )

    def close(self) -> None:
        """Close the index; its file stays for the next start."""
        with self._lock:
            self._index.close()

    def _retried(self, search: Callable[[], Found]) -> Found:
        """Return what was found; if the index fails, rebuild it once."""
        try:
            return search()
        except sqlite3.Error:
            self._index.discard()
        try:
            return search()
        except sqlite3.Error as error:
            self._index.discard()
            raise SourceError("skills cannot be searched at the moment", fix="try again later") from error

    def _page(
        self, corpus: _Corpus, query: str, start: int, end: int, label: str, include: Include | None
    ) -> Found:
        """Return the keys up to the end of a page, the number of all matches, and those of the page."""
        self._index.update(corpus, corpus.documents, corpus.body)
        ranking = self._index.rank(query, corpus.filter(label, include))
        order = list(islice(corpus.interleaved(corpus.ranked(ranking)), end))
        found = tuple(
            corpus.match(key, score, ranking.words, self._index.fields_of(key, ranking))
            for key, score in order[start:]
        )
        return [key for key, _ in order], ranking.total, found


class _Corpus:
    """The skills of one view, and their possible orders.

    The source of a skill is the label of its server, or empty for local skills.
    """

    def __init__(self, skills: tuple[KnownSkill, ...]) -> None:
        self.skills = skills
        self._by_key = {_key_of(skill): skill for skill in skills}
        self._excluded: tuple[tuple[str, Include | None], frozenset[str]] = ("", None), frozenset()

    def __getitem__(self, key: str) -> KnownSkill:
        return self._by_key[key]

    def documents(self) -> dict[str, Document]:
        return {
            key: Document(skill.name, _place_of(skill), skill.entry.frontmatter, _digest_of_body(skill))
            for key, skill in self._by_key.items()
        }

    def body(self, key: str) -> str | None:
        """Return the instructions of a local skill, or an empty text: a server is not asked for any."""
        skill = self[key]
        if skill.directory is None:
            return ""
        try:
            return body_text(read_local_file(skill, skill.entry.uri.text))
        except FrontmatterError:
            return ""
        except SkillError:
            return None

    def match(self, key: str, score: float, words: Sequence[Word], fields: tuple[str, ...]) -> Match:
        """Return a match with an excerpt: of the instructions, if only they have words of the query."""
        skill = self[key]
        body = (self.body(key) or "")[:MAX_BODY] if BODY in fields and DESCRIPTION not in fields else ""
        line = escaped_line(body) if body else summary_of(skill)
        return Match(skill, score, excerpt_of(line, words), fields)

    def includes(self, skill: KnownSkill, label: str, include: Include | None) -> bool:
        """Return whether a skill is of the source, if `label` is set, and `include` accepts it."""
        if label and _source_of(skill) != ("" if label == LOCAL else label):
            return False
        return include is None or include(skill)

    def filter(self, label: str, include: Include | None) -> Callable[[str], bool] | None:
        """Return a filter by key, or None if every skill passes; the last one is remembered."""
        if not label and include is None:
            return None
        if self._excluded[0] != (label, include):
            excluded = [skill for skill in self.skills if not self.includes(skill, label, include)]
            self._excluded = (label, include), frozenset(map(_key_of, excluded))
        keys = self._excluded[1]
        return (lambda key: key not in keys) if keys else None

    def ranked(self, ranking: Iterable[Hit]) -> Iterator[Hit]:
        """Yield hits, the best first; equal scores alternate by source."""
        for _, group in groupby(ranking, key=itemgetter(1)):
            equals = list(group)
            yield from equals if len(equals) == 1 else self._round_robin(equals)

    def _source(self, hit: Hit) -> str:
        return _source_of(self[hit[0]])

    def interleaved(self, ranked: Iterable[Hit]) -> Iterator[Hit]:
        """Yield every hit once, best first, with at most two of one source in a row while others have any."""
        upcoming = iter(ranked)
        waiting: deque[Hit] = deque()  # All of the source that is currently barred.
        last, in_a_row = None, 0
        while True:
            barred = last if in_a_row >= _MAX_IN_A_ROW else None
            if waiting and self._source(waiting[0]) != barred:
                hit = waiting.popleft()
            else:
                for hit in upcoming:
                    if self._source(hit) != barred:
                        break
                    waiting.append(hit)
                else:
                    yield from waiting
                    return
            source = self._source(hit)
            in_a_row = in_a_row + 1 if source == last else 1
            last = source
            yield hit

    def _round_robin(self, equals: Iterable[Hit]) -> list[Hit]:
        turns: defaultdict[str, int] = defaultdict(int)
        keyed: list[tuple[int, Hit]] = []
        for hit in equals:
            source = self._source(hit)
            turns[source] += 1
            keyed.append((turns[source], hit))
        keyed.sort()
        return [hit for _, hit in keyed]


def _key_of(skill: KnownSkill) -> str:
    """Return the key of a skill: equal scores are sorted by URI, as on a server, and then by reference."""
    return f"{skill.id.uri} {skill.reference}"


def _source_of(skill: KnownSkill) -> str:
    return skill.id.origin.label if skill.is_remote else ""


def _place_of(skill: KnownSkill) -> str:
    """Return where a skill is: of a local one, the path without the scope of its folder."""
    path = skill.entry.uri.path
    return f"{skill.id.origin.label} {path}" if skill.is_remote else path.partition("/")[2]


def _digest_of_body(skill: KnownSkill) -> str:
    manifest = skill.entry.manifest
    line = None if skill.directory is None or manifest is None else manifest.find(skill.entry.uri.text)
    return "" if line is None else line.digest


def _digest(words: Iterable[Word], keys: Iterable[str]) -> str:
    """Return the digest of the words and of the matches on earlier pages, to which a cursor is bound."""
    text = "\n".join([*(word.text for word in words), "", *keys])
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


class _Cursor(NamedTuple):
    start: int
    order: str


def _read(cursor: str) -> _Cursor:
    form = _CURSOR.fullmatch(cursor[:100])
    if form is None:
        raise InvalidCursorError(
            "this is not a cursor of a search", fix="start the search again without a cursor"
        )
    return _Cursor(int(form[1]), form[2])
