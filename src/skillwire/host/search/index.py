"""An index of words over some skills, in memory: SQLite's FTS5 with BM25."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias
from weakref import finalize

from skillwire.core.fields import MAX_COMPATIBILITY, MAX_DESCRIPTION
from skillwire.core.tags import MAX_TAGS, tags_of
from skillwire.core.words import Word, index_text, joined
from skillwire.errors import SkillError
from skillwire.host.registry.known import KnownSkill

Texts: TypeAlias = tuple[str, str, str, str, str]
"""What a skill can be found by: name, tags, where it is, description, compatibility."""

_MOST_NAME: Final = 200
_MOST_PLACE: Final = 512

# The tokenizer folds ASCII and stems English; all other text comes to it folded, and in words.
_CREATE = (
    "CREATE VIRTUAL TABLE skills USING "
    "fts5(name, tags, place, description, content='', tokenize='porter ascii')"
)
_INSERT = "INSERT INTO skills(rowid, name, tags, place, description) VALUES (?, ?, ?, ?, ?)"
_RANKED = "SELECT rowid, bm25(skills, 8.0, 4.0, 2.0, 1.0) FROM skills WHERE skills MATCH ?"
_PLAIN = "SELECT rowid FROM skills WHERE skills MATCH ?"


Hit: TypeAlias = tuple[int, float]
"""The position of a skill that was found, and its rank: a lower one is a better match."""


class SkillIndex:
    """The words of a sequence of skills. One thread at a time may use it, any thread."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        finalize(self, database.close)

    @classmethod
    def build(cls, rows: Iterable[Texts]) -> "SkillIndex":
        """Index these texts, in this order.

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
                "searching needs SQLite with FTS5, which this Python lacks",
                fix="use a Python whose sqlite3 module has FTS5; without a query all skills are listed",
            ) from error
        self._database.execute("BEGIN")
        self._database.executemany(_INSERT, (_row(position, texts) for position, texts in enumerate(rows)))
        self._database.execute("COMMIT")

    def hits(self, words: Sequence[Word]) -> tuple[list[Hit], set[int] | None]:
        """Return every skill that has one of the words, and the positions of those that have them all.

        Of a single word the second is None: whoever has it has all.
        """
        terms = [_term(word) for word in words]
        hits: list[Hit] = self._database.execute(_RANKED, (" OR ".join(terms),)).fetchall()
        if len(terms) == 1:
            return hits, None
        complete: list[tuple[int]] = self._database.execute(_PLAIN, (" AND ".join(terms),)).fetchall()
        return hits, {position for (position,) in complete}


def texts_of(skill: KnownSkill) -> Texts:
    """Return what a skill can be found by, as its author wrote it; of the frontmatter only plain text."""
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
    """Write a word for FTS5. It holds letters, digits and marks alone, so the quotes cannot be left."""
    terms = [f'"{word.text}"']
    if word.is_start:
        terms.append(f'"{word.text}"*')
    if word.parts:
        terms.append("(" + " AND ".join(f'"{part}"' for part in word.parts) + ")")
    return f"({' OR '.join(terms)})"
