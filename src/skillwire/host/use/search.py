"""Full-text search in skills, with pagination.

The order, which no single server can dominate:

1. Skills that have all words of a short query come before those that have some.
2. Then BM25 decides, as in `search.index`: a word counts most in a name, then in
   tags, then in the reference and path, then in the description. Bodies are not
   searched: a host reads no file of a server before it is needed.
3. Among equal ranks, servers alternate; local folders count as one server.
4. After two skills of one server comes one of another while there is any, so
   the best match of the others is third at the latest.

The order does not depend on the page size. A cursor is a position in it,
together with a digest of the query and of the whole order. If the registry
changes but the order does not, the cursor stays valid; otherwise it is refused.
So the pages of one search contain every match exactly once.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from threading import Lock
from typing import Final, TypeAlias

from skillwire.core import InvalidCursorError, visible
from skillwire.host.model import LOCAL, KnownSkill, RegistryView
from skillwire.host.use.present import summary_of
from skillwire.search.index import Document, SearchIndex
from skillwire.search.words import (
    DESCRIPTION,
    MAX_QUERY,
    NAME,
    PATH,
    TAGS,
    Word,
    find_evidence,
    query_words,
    tags_of,
)

MAX_LIMIT: Final = 100
"""The maximum number of skills on one page."""

Include: TypeAlias = Callable[[KnownSkill], bool]
Hit: TypeAlias = tuple[int, float]
"""The position of a matching skill, and its rank: lower is better."""

_CURSOR = re.compile("([0-9]{1,9})-([0-9a-f]{16})")
_MAX_IN_A_ROW = 2


@dataclass(frozen=True, slots=True)
class Match:
    """A matching skill; `snippet` is one safe line of its description, around the words.

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


class SkillSearch:
    """Full-text search in listed skills; no file is read.

    It is thread-safe. The first search after a change of the skills builds the
    index, so call it from a worker thread rather than an event loop; `include`
    is called in that thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._corpus = _Corpus(())
        self._index = SearchIndex(ranks_all=True)

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
            hits, complete = self._hits(corpus, words) if words else (corpus.all_hits(), None)
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

    def _hits(self, corpus: "_Corpus", words: Sequence[Word]) -> tuple[list[Hit], set[int]]:
        """Return every skill that has one of the words, and the positions of those that have them all."""
        self._index.update(corpus, corpus.documents)
        found, _ = self._index.hits(words)
        positions = corpus.positions
        hits = sorted((positions[hit.key], hit.rank) for hit in found)
        return hits, {positions[hit.key] for hit in found if not hit.lacks_words}


class _Corpus:
    """The skills of one view, and their possible orders.

    The source of a skill is the label of its server, or empty for local skills.
    """

    def __init__(self, skills: tuple[KnownSkill, ...]) -> None:
        self.skills = skills
        self.references = [skill.reference for skill in skills]
        self._sources = [skill.id.origin.label if skill.is_remote else "" for skill in skills]
        self.positions = {reference: position for position, reference in enumerate(self.references)}

    def documents(self) -> dict[str, Document]:
        return {
            skill.reference: Document(
                skill.name, f"{skill.reference} {skill.entry.uri.path}", skill.entry.frontmatter
            )
            for skill in self.skills
        }

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
    texts = {
        NAME: skill.name,
        TAGS: tags_of(skill.entry.frontmatter),
        PATH: f"{skill.reference} {skill.entry.uri.path}",
        DESCRIPTION: summary_of(skill),
    }
    found = find_evidence(texts, words)
    return Match(skill, abs(rank), found.snippet, found.fields)


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
