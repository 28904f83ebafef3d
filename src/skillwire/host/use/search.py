"""Full-text search in skills, with pagination.

The order, which no single server can dominate:

1. Skills that have all words of the query come before those that have some.
2. Then BM25 decides: a word counts most in a name, then in tags, then in the
   reference and path, then in the description. Repeating a word gains little,
   and the indexed length of each text is limited.
3. Among equal ranks, servers alternate; local folders count as one server.
4. After two skills of one server comes one of another while there is any, so
   the best match of the others is third at the latest.

The order does not depend on the page size. A cursor is a position in it,
together with a digest of the query and of the whole order. If the registry
changes but the order does not, the cursor stays valid; otherwise it is refused.
So the pages of one search contain every match exactly once.
"""

import re
import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from threading import Lock
from typing import Final, TypeAlias
from weakref import finalize

from skillwire.core import (
    MAX_COMPATIBILITY,
    MAX_DESCRIPTION,
    MAX_QUERY,
    MAX_TAGS,
    InvalidCursorError,
    SkillError,
    Word,
    excerpt_of,
    index_text,
    joined,
    query_words,
    tags_of,
    visible,
)
from skillwire.host.model import LOCAL, KnownSkill, RegistryView
from skillwire.host.use.present import summary_of

# An in-memory full-text index of skills: SQLite's FTS5 with BM25.


Texts: TypeAlias = tuple[str, str, str, str, str]
"""The indexed texts of a skill: name, tags, reference and path, description, compatibility."""

_MOST_NAME: Final = 200
_MOST_PLACE: Final = 512

# The tokenizer folds ASCII and stems English; all other text is folded and split before.
_CREATE = (
    "CREATE VIRTUAL TABLE skills USING "
    "fts5(name, tags, place, description, content='', tokenize='porter ascii')"
)
_INSERT = "INSERT INTO skills(rowid, name, tags, place, description) VALUES (?, ?, ?, ?, ?)"
_RANKED = "SELECT rowid, bm25(skills, 8.0, 4.0, 2.0, 1.0) FROM skills WHERE skills MATCH ?"
_UNRANKED = "SELECT rowid FROM skills WHERE skills MATCH ?"


Hit: TypeAlias = tuple[int, float]
"""The position of a matching skill, and its rank: lower is better."""


class SkillIndex:
    """A full-text index of a sequence of skills. Only one thread at a time may use it."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        finalize(self, database.close)

    @classmethod
    def build(cls, rows: Iterable[Texts]) -> "SkillIndex":
        """Build an index of these texts, in this order.

        Raises:
            SkillError: This Python's SQLite has no full-text search.
        """
        index = cls(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))
        index._fill(rows)
        return index

    def _fill(self, rows: Iterable[Texts]) -> None:
        try:
            self._database.execute(_CREATE)
        except sqlite3.Error as error:
            raise SkillError(
                "searching needs SQLite with FTS5, which this Python does not have",
                fix="use a Python whose sqlite3 module has FTS5; without a query all skills are listed",
            ) from error
        self._database.execute("BEGIN")
        self._database.executemany(_INSERT, (_row(position, texts) for position, texts in enumerate(rows)))
        self._database.execute("COMMIT")

    def hits(self, words: Sequence[Word]) -> tuple[list[Hit], set[int] | None]:
        """Return every skill that has one of the words, and the positions of those that have them all.

        For a single word the second is None, because both are the same.
        """
        terms = [_term(word) for word in words]
        hits: list[Hit] = self._database.execute(_RANKED, (" OR ".join(terms),)).fetchall()
        if len(terms) == 1:
            return hits, None
        complete: list[tuple[int]] = self._database.execute(_UNRANKED, (" AND ".join(terms),)).fetchall()
        return hits, {position for (position,) in complete}


def texts_of(skill: KnownSkill) -> Texts:
    """Return the indexed texts of a skill; of the frontmatter only strings."""
    frontmatter = skill.entry.frontmatter
    compatibility = frontmatter.fields.get("compatibility")
    return (
        skill.name,
        tags_of(frontmatter),
        f"{skill.reference} {skill.entry.uri.path}"[:_MOST_PLACE],
        skill.description,
        compatibility if isinstance(compatibility, str) else "",
    )


def _row(position: int, texts: Texts) -> tuple[int, str, str, str, str]:
    name, tags, place, description, compatibility = texts
    described = index_text(description, MAX_DESCRIPTION)
    if compatibility:
        described += " " + index_text(compatibility, MAX_COMPATIBILITY)
    shown = index_text(name, _MOST_NAME)
    whole = joined(name)
    return (
        position,
        shown if whole == name else f"{shown} {index_text(whole, _MOST_NAME)}",
        index_text(tags, MAX_TAGS),
        index_text(place, _MOST_PLACE),
        described,
    )


def _term(word: Word) -> str:
    """Return a word as an FTS5 query; it has only letters, digits and marks, so it cannot end the quotes."""
    terms = [f'"{word.text}"']
    if word.is_prefix:
        terms.append(f'"{word.text}"*')
    if word.parts:
        terms.append("(" + " AND ".join(f'"{part}"' for part in word.parts) + ")")
    return f"({' OR '.join(terms)})"


# The part of a description that shows why a skill was found.


def snippet_of(skill: KnownSkill, words: Sequence[Word]) -> str:
    """Return one safe line of a skill's description, around the words if it contains them."""
    return excerpt_of(summary_of(skill), words)


MAX_LIMIT: Final = 100
"""The maximum number of skills on one page."""

Include: TypeAlias = Callable[[KnownSkill], bool]

_CURSOR = re.compile("([0-9]{1,9})-([0-9a-f]{16})")
_MAX_IN_A_ROW = 2


@dataclass(frozen=True, slots=True)
class Match:
    """A matching skill; `snippet` is one safe line of its description, around the words."""

    skill: KnownSkill
    score: float
    snippet: str


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


class SkillSearch:
    """Full-text search in listed skills; no file is read.

    It is thread-safe. The first search after a change of the skills builds the
    index, so call it from a worker thread rather than an event loop; `include`
    is called in that thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._corpus = _Corpus(())
        self._texts: list[Texts] = []
        self._index: SkillIndex | None = None

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
            SkillError: This Python's SQLite has no full-text search.
        """
        words = query_words(query)
        with self._lock:
            corpus = self._corpus_for(view.skills)
            hits, complete = self._current_index().hits(words) if words else (corpus.all_hits(), None)
        found = corpus.filtered(hits, label, include)
        if words:
            found = list(corpus.interleaved(corpus.ranked(found, complete)))
        order = _digest(words, [corpus.references[position] for position, _ in found])
        start = _start(cursor, order, len(found)) if cursor else 0
        end = start + min(max(limit, 1), MAX_LIMIT)
        return SearchPage(
            " ".join(visible(query[:MAX_QUERY]).split()),
            tuple(_match(view.skills[position], rank, words) for position, rank in found[start:end]),
            len(found),
            f"{end}-{order}" if end < len(found) else None,
        )

    def _corpus_for(self, skills: tuple[KnownSkill, ...]) -> "_Corpus":
        if skills is not self._corpus.skills:
            self._corpus = _Corpus(skills)
        return self._corpus

    def _current_index(self) -> SkillIndex:
        """Return the index of the current skills; it is rebuilt only if their texts changed."""
        if self._index is None or not self._corpus.is_indexed:
            texts = [texts_of(skill) for skill in self._corpus.skills]
            if self._index is None or texts != self._texts:
                self._index = None
                self._index = SkillIndex.build(texts)
                self._texts = texts
            self._corpus.is_indexed = True
        return self._index


class _Corpus:
    """The skills of one view, and their possible orders.

    The source of a skill is the label of its server, or empty for local skills.
    """

    def __init__(self, skills: tuple[KnownSkill, ...]) -> None:
        self.skills = skills
        self.references = [skill.reference for skill in skills]
        self._sources = [skill.id.origin.label if skill.is_remote else "" for skill in skills]
        self.is_indexed = False

    def all_hits(self) -> list[Hit]:
        return [(position, 0.0) for position in range(len(self.skills))]

    def filtered(self, hits: list[Hit], label: str, include: Include | None) -> list[Hit]:
        """Return the hits of one server, if `label` is set, that `include` accepts."""
        if label:
            source = "" if label == LOCAL else label
            hits = [hit for hit in hits if self._sources[hit[0]] == source]
        if include is not None:
            hits = [hit for hit in hits if include(self.skills[hit[0]])]
        return hits

    def ranked(self, hits: list[Hit], complete: set[int] | None) -> list[Hit]:
        """Return hits, which are sorted by position, by rank; equal ranks alternate by source."""
        if complete is not None:
            first = [hit for hit in hits if hit[0] in complete]
            rest = [hit for hit in hits if hit[0] not in complete]
            return self.ranked(first, None) + self.ranked(rest, None)
        ranked: list[Hit] = []
        for _, group in groupby(sorted(hits, key=itemgetter(1)), key=itemgetter(1)):
            equals = list(group)
            ranked += equals if len(equals) == 1 else self._round_robin(equals)
        return ranked

    def interleaved(self, ranked: Iterable[Hit]) -> Iterator[Hit]:
        """Yield every hit once, best first, with at most two of one source in a row while others have any."""
        upcoming = iter(ranked)
        waiting: deque[Hit] = deque()  # All of the source that is currently barred.
        last, in_a_row = None, 0
        while True:
            barred = last if in_a_row >= _MAX_IN_A_ROW else None
            if waiting and self._sources[waiting[0][0]] != barred:
                hit = waiting.popleft()
            else:
                for hit in upcoming:
                    if self._sources[hit[0]] != barred:
                        break
                    waiting.append(hit)
                else:
                    yield from waiting
                    return
            source = self._sources[hit[0]]
            in_a_row = in_a_row + 1 if source == last else 1
            last = source
            yield hit

    def _round_robin(self, equals: Iterable[Hit]) -> list[Hit]:
        turns: defaultdict[str, int] = defaultdict(int)
        keyed: list[tuple[int, Hit]] = []
        for hit in equals:
            source = self._sources[hit[0]]
            turns[source] += 1
            keyed.append((turns[source], hit))
        keyed.sort()
        return [hit for _, hit in keyed]


def _match(skill: KnownSkill, rank: float, words: Sequence[Word]) -> Match:
    return Match(skill, abs(rank), snippet_of(skill, words))


def _digest(words: Iterable[Word], references: Iterable[str]) -> str:
    """Return the digest of the words and of all matches in order, to which a cursor is bound."""
    text = "\n".join([*(word.text for word in words), "", *references])
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _start(cursor: str, order: str, total: int) -> int:
    form = _CURSOR.fullmatch(cursor[:100])
    if form is None:
        raise InvalidCursorError(
            "this is not a cursor of a search", fix="start the search again without a cursor"
        )
    start = int(form[1])
    if form[2] != order or not 0 < start < total:
        raise InvalidCursorError(
            "the cursor is from another search, or the skills have changed since",
            fix="start the search again without a cursor",
        )
    return start
