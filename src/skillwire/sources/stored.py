"""`StoredSnapshot`: a snapshot in a SQLite file, answered by queries at one revision.

A row of the table `versions` is the state of one skill from revision `since`
until before revision `until`. All queries of a snapshot are at one revision, so
its answers agree with each other while rows are added. Only the entries that
were used last are in memory.
"""

import json
import sqlite3
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeAlias, cast, overload

from skillwire.core import SKILL_FILE, ByteCache, JsonDict, SkillEntry, SourceError, check_entries
from skillwire.sources.snapshot import (
    AFTER_SLASH,
    Changes,
    RangedEntries,
    Report,
    Snapshot,
    self_and_ancestors,
)

READ_INDEX: Final = "CREATE INDEX versions_read ON versions (uri, since, until, listed, pinned, is_pin, name)"
"""The index that has what most queries read, so that they do not read entries."""

_CHUNK: Final = 500
_CACHED_JSON: Final = 4 * 1024 * 1024
_TIMEOUT_SECONDS: Final = 5.0

Span: TypeAlias = tuple[str, str]
"""A range of URIs: from the first on, and before the second, if that is not empty."""


class SkillDetails(NamedTuple):
    """What a source knows about a skill besides its entry."""

    media_types: Mapping[str, str]
    folders: Sequence[str]
    order: Sequence[str]
    modified: float | None


class SkillsFile:
    """Reads the table `versions` of a SQLite file. Thread-safe."""

    def __init__(self, database: sqlite3.Connection) -> None:
        """Use a connection that threads may share, and close it in the end."""
        self._lock = threading.Lock()
        self._database = database
        self._parsed: ByteCache[tuple[str, int], tuple[SkillEntry, SkillDetails]] = ByteCache(_CACHED_JSON)

    @classmethod
    def open(cls, path: Path) -> "SkillsFile":
        """Open a file that other connections write to.

        Raises:
            SourceError: It cannot be opened.
        """
        try:
            uri = f"{path.absolute().as_uri()}?mode=ro"
            return cls(
                sqlite3.connect(
                    uri, uri=True, timeout=_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
                )
            )
        except sqlite3.Error as error:
            raise SourceError(f"the catalog at {path} cannot be opened: {error}") from error

    @contextmanager
    def writing(self) -> Generator[sqlite3.Connection]:
        """Keep the connection from other threads during the block, which commits or rolls back.

        Raises:
            SourceError: The file cannot be written.
        """
        with self._lock, _database_errors():
            yield self._database

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def fetch(self, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of a query.

        Raises:
            SourceError: The file cannot be read.
        """
        with self._lock, _database_errors():
            return self._database.execute(statement, parameters).fetchall()

    def revision(self) -> int:
        """Return the newest revision in the file.

        Raises:
            SourceError: The file cannot be read.
        """
        return self.fetch("SELECT revision FROM state", ())[0][0]

    def find(self, uri: str, at: int) -> tuple[SkillEntry, SkillDetails] | None:
        """Return the state of a skill at a revision; None when there is no such skill.

        Raises:
            SourceError: The file cannot be read, or the row is damaged.
        """
        found = self.fetch(
            "SELECT since FROM versions WHERE uri = ? AND since <= ? AND until > ?", (uri, at, at)
        )
        if not found:
            return None
        [since] = found[0]
        known = self._parsed.get((uri, since))
        if known is None:
            rows = self.fetch(f"SELECT {_COLUMNS} FROM versions WHERE uri = ? AND since = ?", (uri, since))
            [known] = self.parsed(rows) or [None]
        return known

    def parsed(self, rows: Sequence[tuple[Any, ...]]) -> list[tuple[SkillEntry, SkillDetails]]:
        """Parse rows of `uri, since, entry, details, modified`; those that were used last are known.

        Raises:
            SourceError: A row is damaged.
        """
        found = {key: known for row in rows if (known := self._parsed.get(key := (row[0], row[1])))}
        new = [row for row in rows if (row[0], row[1]) not in found]
        try:
            values = [json.loads(row[2]) for row in new]
            for row, (entry, _) in zip(new, check_entries(values), strict=True):
                if entry is None or entry.uri.text != row[0]:
                    raise ValueError("an entry is invalid")
                key, known = (row[0], row[1]), (entry, _details(json.loads(row[3]), row[4]))
                found[key] = known
                self._parsed.put(key, known, len(row[2]) + len(row[3]))
        except (ValueError, TypeError) as error:
            raise SourceError(
                f"the catalog is damaged: {error}", fix="check it with `skillwire catalog verify`"
            ) from error
        return [found[row[0], row[1]] for row in rows]


@contextmanager
def _database_errors() -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise SourceError(f"the catalog cannot be read: {error}", fix="try again later") from error


_COLUMNS: Final = "uri, since, entry, details, modified"


def _details(value: JsonDict, modified: float | None) -> SkillDetails:
    return SkillDetails(
        value.get("mediaTypes") or {}, value.get("folders") or (), value.get("order") or (), modified
    )


_PINS: Final = {True: "is_pin = 1", False: "is_pin = 0"}


@dataclass(frozen=True, slots=True)
class _Selection:
    """Which rows belong to a snapshot or a listing: those in `spans` but not in `hidden`.

    With `is_listed`, skills that their authors hide are left out; `is_pin`
    restricts it to immutable versions, or to other skills. With `pins`, only skills in these spans,
    and those that their authors pinned, are included.
    """

    at: int
    spans: tuple[Span, ...] = (("", ""),)
    hidden: tuple[Span, ...] = ()
    is_listed: bool = False
    is_pin: bool | None = None
    pins: tuple[Span, ...] | None = None

    def within(self, low: str, high: str) -> "_Selection":
        """Return the part of the selection in one span."""
        cut = ((max(low, start), min(filter(None, (high, end)), default="")) for start, end in self.spans)
        return replace(self, spans=tuple(span for span in cut if not span[1] or span[0] < span[1]))

    def conditions(self) -> tuple[str, list[object]]:
        """Return the condition that does not depend on a span, and its parameters."""
        parts, values = ["since <= ? AND until > ?"], list[object]((self.at, self.at))
        if self.is_listed:
            parts.append("listed")
        if self.is_pin is not None:
            parts.append(_PINS[self.is_pin])
        for span in self.hidden:
            parts.append("NOT (uri >= ? AND uri < ?)")
            values += span
        if self.pins is not None:
            parts.append(f"(pinned{' OR (uri >= ? AND uri < ?)' * len(self.pins)})")
            values += [value for span in self.pins for value in span]
        return " AND ".join(parts), values


def spans_of(prefixes: Iterable[str]) -> tuple[Span, ...]:
    """Return the spans of everything below directories, sorted; `prefixes` do not contain each other."""
    return tuple(sorted((f"{prefix}/", prefix + AFTER_SLASH) for prefix in prefixes))


class StoredEntries(RangedEntries):
    """The entries of a selection, sorted by URI."""

    def __init__(self, file: SkillsFile, selection: _Selection) -> None:
        self._file = file
        self._selection = selection

    def between(self, low: str, high: str) -> Self:
        return type(self)(self._file, self._selection.within(low, high))

    def listed(
        self, *, unlisted: Iterable[str] = (), pins: Iterable[str] = (), most: int | None = None
    ) -> Self:
        hidden = (*self._selection.hidden, *spans_of(unlisted))
        shown = type(self)(self._file, replace(self._selection, is_listed=True, hidden=hidden))
        if most is None or len(shown) <= most:
            return shown
        return type(self)(self._file, replace(shown._selection, pins=spans_of(pins)))

    def uris(self) -> Iterator[str]:
        """Yield the URIs."""
        return (row[0] for row in self._rows("uri"))

    def names(self) -> Iterator[tuple[str, str]]:
        return ((uri, name) for uri, name in self._rows("uri, name"))

    def versions(self) -> Iterator[tuple[SkillEntry, str]]:
        """Yield the immutable versions, each with its number."""
        pins = type(self)(self._file, replace(self._selection, is_pin=True))
        for row in pins._rows(f"{_COLUMNS}, version"):
            [(entry, _)] = self._file.parsed([row[:-1]])
            yield entry, row[-1]

    def digests(self, count: int) -> Iterator[tuple[str, str]]:
        """Yield the first URIs with the digests of the entries."""
        return ((uri, digest) for uri, digest in self._rows("uri, digest", limit=count))

    def last_uri(self) -> str | None:
        """Return the last URI."""
        for span in reversed(self._selection.spans):
            rows = self._query("uri", span, "ORDER BY uri DESC LIMIT 1")
            if rows:
                return rows[0][0]
        return None

    def first_uri(self) -> str | None:
        """Return the first URI."""
        return next((row[0] for row in self._rows("uri", limit=1)), None)

    def written(self, count: int) -> list[tuple[str, bytes]]:
        return [(uri, bytes(entry)) for uri, entry in self._rows("uri, entry", limit=count)]

    @cached_property
    def _length(self) -> int:
        return sum(self._query("COUNT(*)", span)[0][0] for span in self._selection.spans)

    def __len__(self) -> int:
        return self._length

    def __bool__(self) -> bool:
        return self.first_uri() is not None

    def __iter__(self) -> Iterator[SkillEntry]:
        chunk: list[tuple[Any, ...]] = []
        for row in self._rows(_COLUMNS):
            chunk.append(row)
            if len(chunk) == _CHUNK:
                yield from (entry for entry, _ in self._file.parsed(chunk))
                chunk = []
        yield from (entry for entry, _ in self._file.parsed(chunk))

    def __contains__(self, value: object) -> bool:
        uri = value.uri.text if isinstance(value, SkillEntry) else ""
        return bool(uri) and bool(self.between(uri, f"{uri}\x01"))

    @overload
    def __getitem__(self, index: int) -> SkillEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SkillEntry]: ...
    def __getitem__(self, index: int | slice) -> SkillEntry | Sequence[SkillEntry]:
        if isinstance(index, slice):
            start, stop, step = index.indices(
                len(self) if index.stop is None or index.stop < 0 else index.stop
            )
            rows = self._rows(_COLUMNS, skip=start, limit=max(0, stop - start))
            return [entry for entry, _ in self._file.parsed(list(rows))][::step]
        position = index + len(self) if index < 0 else index
        rows = list(self._rows(_COLUMNS, skip=position, limit=1)) if position >= 0 else []
        if not rows:
            raise IndexError("there are not so many skills")
        return self._file.parsed(rows)[0][0]

    def _rows(self, columns: str, *, skip: int = 0, limit: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield rows in the order of URIs; `columns` begin with `uri`. Nothing is locked in between."""
        left = limit
        for low, high in self._selection.spans:
            while left is None or left > 0:
                count = _CHUNK if left is None else min(left, _CHUNK)
                rows = self._query(columns, (low, high), "ORDER BY uri LIMIT ? OFFSET ?", count, skip)
                if rows:
                    skip, low = 0, f"{rows[-1][0]}\x01"
                elif skip:
                    skip = max(0, skip - self._query("COUNT(*)", (low, high))[0][0])
                yield from rows
                left = None if left is None else left - len(rows)
                if len(rows) < count:
                    break

    def _query(self, columns: str, span: Span, ending: str = "", *values: object) -> list[tuple[Any, ...]]:
        condition, parameters = self._selection.conditions()
        bounds: list[object] = [bound for bound in span if bound]
        where = "".join(f"uri {sign} ? AND " for sign, bound in zip((">=", "<"), span, strict=True) if bound)
        statement = f"SELECT {columns} FROM versions WHERE {where}{condition} {ending}"
        return self._file.fetch(statement, (*bounds, *parameters, *values))


class _EntriesByUri(Mapping[str, SkillEntry]):
    def __init__(self, file: SkillsFile, selection: _Selection) -> None:
        self._file = file
        self._selection = selection
        self._entries = StoredEntries(file, selection)

    def details(self, uri: str) -> tuple[SkillEntry, SkillDetails] | None:
        """Return a skill of the selection with its details."""
        spans, hidden = self._selection.spans, self._selection.hidden
        if not _is_in(uri, spans) or _is_in(uri, hidden):
            return None
        return self._file.find(uri, self._selection.at)

    def around(self, uri: str) -> Iterator[SkillDetails]:
        """Yield the details of the skills around a file or directory, innermost first."""
        for folder in self_and_ancestors(uri):
            found = self.details(f"{folder}/{SKILL_FILE}")
            if found is not None:
                yield found[1]

    def __getitem__(self, uri: str) -> SkillEntry:
        found = self.details(uri)
        if found is None:
            raise KeyError(uri)
        return found[0]

    def __contains__(self, uri: object) -> bool:
        return isinstance(uri, str) and self.details(uri) is not None

    def __iter__(self) -> Iterator[str]:
        return self._entries.uris()

    def __len__(self) -> int:
        return len(self._entries)


def _is_in(uri: str, spans: Iterable[Span]) -> bool:
    return any(low <= uri and (not high or uri < high) for low, high in spans)


class _MediaTypes(Mapping[str, str]):
    """The media types of files that their names do not imply."""

    def __init__(self, skills: _EntriesByUri) -> None:
        self._skills = skills

    def __getitem__(self, uri: str) -> str:
        for details in self._skills.around(uri.rpartition("/")[0]):
            if uri in details.media_types:
                return details.media_types[uri]
        raise KeyError(uri)

    def __iter__(self) -> Iterator[str]:
        found = (self._skills.details(uri) for uri in self._skills)
        return (file for one in found if one is not None for file in one[1].media_types)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Folders(Set[str]):
    """The empty directories inside skills."""

    def __init__(self, skills: _EntriesByUri) -> None:
        self._skills = skills

    def __contains__(self, folder: object) -> bool:
        return isinstance(folder, str) and any(
            folder in details.folders for details in self._skills.around(folder)
        )

    def __iter__(self) -> Iterator[str]:
        found = (self._skills.details(uri) for uri in self._skills)
        return (folder for one in found if one is not None for folder in one[1].folders)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, slots=True)
class StoredSnapshot(Snapshot):
    """The skills in a SQLite file at the revision `selection.at`, or a part of them."""

    file: SkillsFile = field(kw_only=True)
    selection: _Selection = field(kw_only=True)

    @classmethod
    def at(cls, file: SkillsFile, revision: int) -> "StoredSnapshot":
        """Return all skills at a revision of the file."""
        return cls._of(file, _Selection(revision), revision)

    @classmethod
    def _of(cls, file: SkillsFile, selection: _Selection, revision: int) -> "StoredSnapshot":
        skills = _EntriesByUri(file, selection)
        entries, types, folders = StoredEntries(file, selection), _MediaTypes(skills), _Folders(skills)
        return cls(revision, entries, (), skills, types, folders, file=file, selection=selection)

    @property
    def stored(self) -> StoredEntries:
        """The entries, read when they are needed."""
        return cast(StoredEntries, self.entries)

    def visible(self, prefixes: Iterable[str], revision: int) -> "StoredSnapshot":
        return self._of(self.file, replace(self.selection, spans=spans_of(prefixes)), revision)

    def without_versions(self) -> "StoredSnapshot":
        """Return the snapshot without immutable versions."""
        return self._of(self.file, replace(self.selection, is_pin=False), self.revision)

    def below(self, prefix: str) -> "StoredSnapshot":
        """Return the part below a directory."""
        [(low, high)] = spans_of([prefix])
        return self._of(self.file, self.selection.within(low, high), self.revision)

    def without(self, skill: SkillEntry, report: Report) -> "StoredSnapshot":
        hidden = (*self.selection.hidden, (skill.uri.text, f"{skill.uri.text}\x01"))
        part = self._of(self.file, replace(self.selection, hidden=hidden), self.revision)
        return replace(part, reports=self._reports_with(skill, report))

    def versions(self) -> Iterator[tuple[SkillEntry, str]]:
        return self.stored.versions()

    def details(self, uri: str) -> SkillDetails | None:
        """Return the details of a skill; None when there is no such skill."""
        found = cast(_EntriesByUri, self.by_uri).details(uri)
        return None if found is None else found[1]

    def first_uri(self, low: str, high: str = "") -> str | None:
        return self.stored.between(low, high).first_uri()

    def folders_below(self, directory: str) -> Iterable[str]:
        inside = f"{directory}/"
        around = cast(_EntriesByUri, self.by_uri).around(directory)
        return {folder for details in around for folder in details.folders if folder.startswith(inside)}

    def changes_since(self, older: Snapshot) -> Changes:
        if not isinstance(older, StoredSnapshot) or older.file is not self.file:
            return Snapshot.changes_since(self, older)
        old, now = older.selection.at, self.selection.at
        places = self.file.fetch(
            "SELECT DISTINCT uri FROM versions WHERE since > ? AND since <= ? OR until > ? AND until <= ?",
            (old, now, old, now),
        )
        uris = [uri for (uri,) in places]
        before, after = self._states(uris, older.selection), self._states(uris, self.selection)
        return Changes(
            tuple(sorted(after.keys() - before.keys())),
            tuple(sorted(before.keys() - after.keys())),
            tuple(sorted(uri for uri in before.keys() & after.keys() if before[uri] != after[uri])),
        )

    def digests(self, after: str, count: int) -> dict[str, str]:
        """Return the digests of the entries of the first skills behind a URI, sorted by URI."""
        return dict(self.stored.between(f"{after}\x01", "").digests(count))

    def changed_since(self, revision: int, most: int) -> list[str] | None:
        """Return the URIs of the skills that changed after a revision; None when there are more than `most`.

        A skill may be missing that is gone since so long that the file no longer has it.
        """
        now = self.selection.at
        places = self.file.fetch(
            "SELECT uri FROM versions WHERE since > ? AND since <= ? "
            "UNION SELECT uri FROM versions WHERE until > ? AND until <= ? LIMIT ?",
            (revision, now, revision, now, most + 1),
        )
        return None if len(places) > most else [uri for (uri,) in places]

    def digests_of(self, uris: Iterable[str]) -> dict[str, str]:
        """Return the digests of the entries at these URIs, without those that are gone."""
        return {uri: state[0] for uri, state in self._states(uris, self.selection).items()}

    def read(self, uris: Sequence[str]) -> list[SkillEntry]:
        """Return the entries at these URIs, in any order, without those that are gone."""
        at = self.selection.at
        query = f"SELECT {_COLUMNS} FROM versions WHERE uri = ? AND since <= ? AND until > ?"
        rows = [row for uri in uris for row in self.file.fetch(query, (uri, at, at))]
        return [entry for entry, _ in self.file.parsed(rows)]

    def _states(self, uris: Iterable[str], selection: _Selection) -> dict[str, tuple[str, str]]:
        """Return what entries and details depend on, of those skills that are in a selection."""
        statement = "SELECT digest, details FROM versions WHERE uri = ? AND since <= ? AND until > ?"
        if selection.is_pin is not None:
            statement += f" AND {_PINS[selection.is_pin]}"
        return {
            uri: rows[0]
            for uri in uris
            if _is_in(uri, selection.spans) and not _is_in(uri, selection.hidden)
            if (rows := self.file.fetch(statement, (uri, selection.at, selection.at)))
        }

    def _neighbours(self, directory: str) -> Sequence[str]:
        before = self.stored.between("", directory).last_uri()
        return [uri for uri in (before, self.first_uri(directory)) if uri is not None]
