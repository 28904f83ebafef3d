"""Finds skills by words, in pages that can be walked to the end.

The order, which one server alone cannot own:

1. Skills that have all words of the query come before those that have some.
2. Then BM25 decides: a word counts most in a name, then in tags, then in where
   the skill is, then in its description. Repeating a word gains little, and
   only so much of each text is looked at.
3. Among equals, servers take turns; the user's own folders count as one.
4. After two skills of one server comes one of another, for as long as another
   has a match: the best of all others is at most the third.

The order does not depend on the size of pages. A cursor is a position in it,
together with a digest of the query and of the whole order. When the registry
changes and the order does not, the cursor goes on being good; when the order
is another one, it is refused. So the pages of one walk always add up to every
match once.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby, islice
from operator import itemgetter
from threading import Lock
from typing import Final, TypeAlias

from skillwire.core.characters import visible
from skillwire.core.words import MAX_QUERY, Word, query_words
from skillwire.errors import InvalidCursorError
from skillwire.host.registry.confusables import LOCAL
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.view import RegistryView
from skillwire.host.search.index import Hit, SkillIndex, Texts, texts_of
from skillwire.host.search.snippets import snippet_of

MAX_LIMIT: Final = 100
"""The most skills one page has, whatever is asked for."""

Include: TypeAlias = Callable[[KnownSkill], bool]

_CURSOR = re.compile("([0-9]{1,9})-([0-9a-f]{16})")
_MOST_IN_A_ROW = 2


@dataclass(frozen=True, slots=True)
class Match:
    """A skill that was found; `snippet` is one harmless line of its description, around the words."""

    skill: KnownSkill
    score: float
    snippet: str


@dataclass(frozen=True, slots=True)
class SearchPage:
    """Some of the skills that were found, and how to get the next.

    `query` is what was looked for, harmless to show, and `total` how many
    skills match altogether. `cursor` is None on the last page.
    """

    query: str
    matches: tuple[Match, ...]
    total: int
    cursor: str | None


class SkillSearch:
    """Finds skills by words, from what the listings say; no file is read.

    Threads may share one. The first search after the skills changed builds
    the index, so call it from a worker thread where an event loop must not
    wait; `include` is then called there.
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

        A query without a letter or digit means all skills, by reference.
        `label` means one server's skills, or with `local` the user's own, and
        `include` says which may be found at all. An empty cursor is none.

        Raises:
            InvalidCursorError: The cursor is not from this search, or the search has other results by now.
            SkillError: This Python cannot search.
        """
        words = query_words(query)
        with self._lock:
            corpus = self._of(view.skills)
            hits, complete = self._searchable().hits(words) if words else (corpus.everything(), None)
        found = corpus.only(hits, label, include)
        if words:
            found = corpus.ranked(found, complete)
        order = _digest(words, [corpus.references[position] for position, _ in found])
        start = _start(cursor, order, len(found)) if cursor else 0
        end = start + min(max(limit, 1), MAX_LIMIT)
        page = islice(corpus.mixed(found) if words else iter(found), start, end)
        return SearchPage(
            " ".join(visible(query[:MAX_QUERY]).split()),
            tuple(_match(view.skills[position], rank, words) for position, rank in page),
            len(found),
            f"{end}-{order}" if end < len(found) else None,
        )

    def _of(self, skills: tuple[KnownSkill, ...]) -> "_Corpus":
        if skills is not self._corpus.skills:
            self._corpus = _Corpus(skills)
        return self._corpus

    def _searchable(self) -> SkillIndex:
        """Return the index of the skills at hand; what a server lists again unchanged is not read again."""
        if self._index is None or not self._corpus.is_indexed:
            texts = [texts_of(skill) for skill in self._corpus.skills]
            if self._index is None or texts != self._texts:
                self._index = None
                self._index = SkillIndex.build(texts)
                self._texts = texts
            self._corpus.is_indexed = True
        return self._index


class _Corpus:
    """The skills of one view, and the orders that they may come in.

    The source of a skill is the label of its server, and nothing for the
    user's own folders.
    """

    def __init__(self, skills: tuple[KnownSkill, ...]) -> None:
        self.skills = skills
        self.references = [skill.reference for skill in skills]
        self._sources = [skill.id.origin.label if skill.is_remote else "" for skill in skills]
        self.is_indexed = False

    def everything(self) -> list[Hit]:
        return [(position, 0.0) for position in range(len(self.skills))]

    def only(self, hits: list[Hit], label: str, include: Include | None) -> list[Hit]:
        """Return the hits of one server, if any is named, that may be found."""
        if label:
            source = "" if label == LOCAL else label
            hits = [hit for hit in hits if self._sources[hit[0]] == source]
        if include is not None:
            hits = [hit for hit in hits if include(self.skills[hit[0]])]
        return hits

    def ranked(self, hits: list[Hit], complete: set[int] | None) -> list[Hit]:
        """Order hits, which come by position, by how well they match; equals take turns by source."""
        if complete is not None:
            first = [hit for hit in hits if hit[0] in complete]
            rest = [hit for hit in hits if hit[0] not in complete]
            return self.ranked(first, None) + self.ranked(rest, None)
        ranked: list[Hit] = []
        for _, group in groupby(sorted(hits, key=itemgetter(1)), key=itemgetter(1)):
            equals = list(group)
            ranked += equals if len(equals) == 1 else self._in_turns(equals)
        return ranked

    def mixed(self, ranked: Iterable[Hit]) -> Iterator[Hit]:
        """Yield every hit once, best first, never three of one source in a row while another has any."""
        upcoming = iter(ranked)
        waiting: deque[Hit] = deque()  # All of the source that has had its turn.
        last, in_a_row = None, 0
        while True:
            barred = last if in_a_row >= _MOST_IN_A_ROW else None
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

    def _in_turns(self, equals: Iterable[Hit]) -> list[Hit]:
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
    """Return what a cursor is bound to: the words, and every match in its order."""
    text = "\n".join([*(word.text for word in words), "", *references])
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _start(cursor: str, order: str, total: int) -> int:
    form = _CURSOR.fullmatch(cursor[:100])
    if form is None:
        raise InvalidCursorError(
            "this is no cursor of a search", fix="start the search again without a cursor"
        )
    start = int(form[1])
    if form[2] != order or not 0 < start < total:
        raise InvalidCursorError(
            "the cursor is of another search, or the skills have changed since",
            fix="start the search again without a cursor",
        )
    return start
