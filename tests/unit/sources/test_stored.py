"""A snapshot in a database answers like one in memory, at each revision."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.catalog.database import SqliteDatabase
from skillwire.catalog.drafts import rows_of
from skillwire.catalog.model import COLUMNS, FOREVER, Draft, SkillRow
from skillwire.catalog.schema import VERSIONS
from skillwire.core import JsonValue, Manifest, ManifestFile, NotFoundError, SkillEntry, SkillUri, SourceError
from skillwire.core.frontmatter import Frontmatter
from skillwire.server.browse import children_of, completions, schemes_of
from skillwire.server.listed import ListedSkills, StoredListing
from skillwire.server.visibility import ListingRules, merge_prefixes
from skillwire.sources.snapshot import (
    RangedEntries,
    Report,
    Snapshot,
    complete_nested_manifests,
    entries_after,
    entries_below,
)
from skillwire.sources.stored import READ_INDEX, SkillsFile, StoredSnapshot
from skillwire.wire.core import read_cursor
from talking import entry_with_files, skill

State = Mapping[str, SkillEntry]
INSERT = f"INSERT INTO versions ({COLUMNS}) VALUES ({', '.join('?' * len(SkillRow._fields))})"


@dataclass
class Store:
    """A database with the rows of several revisions, and the same states in memory."""

    file: SkillsFile
    states: list[Snapshot]

    @property
    def pairs(self) -> Iterator[tuple[Snapshot, StoredSnapshot]]:
        """Each state in memory and in the database."""
        for at, state in enumerate(self.states, start=1):
            yield state, StoredSnapshot.at(self.file, at)


async def never(line: ManifestFile) -> bytes:
    raise AssertionError("no file is read here")


def row_of(entry: SkillEntry, since: int, state: Snapshot) -> SkillRow:
    inside = f"{entry.uri.root}/"
    types = {uri: kind for uri, kind in state.media_types.items() if uri.startswith(inside)}
    folders = tuple(sorted(folder for folder in state.folders if folder.startswith(inside)))
    [row] = rows_of(Draft(entry, never, types, folders, ("b.md",), 12.5), "")
    return row._replace(since=since)


def store_of(states: Sequence[Snapshot]) -> Store:
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.execute(VERSIONS.format(**SqliteDatabase.types))
    database.execute(READ_INDEX)
    database.execute("CREATE TABLE state (one INTEGER PRIMARY KEY, revision INTEGER NOT NULL)")
    database.execute("INSERT INTO state VALUES (1, ?)", (len(states),))
    current: dict[str, SkillRow] = {}
    for at, state in enumerate(states, start=1):
        rows = {entry.uri.text: row_of(entry, at, state) for entry in state.entries}
        for uri, row in current.items():
            if uri not in rows or not rows[uri].has_same_content(row):
                database.execute(
                    "UPDATE versions SET until = ? WHERE uri = ? AND until = ?", (at, uri, FOREVER)
                )
        for uri, row in rows.items():
            if uri not in current or not row.has_same_content(current[uri]):
                database.execute(INSERT, row)
                current[uri] = row
        current = {uri: row for uri, row in current.items() if uri in rows}
    return Store(SkillsFile(database), list(states))


PATHS = ["a", "a-b/c", "a/b/c", "a/d", "ab", "b/a", "b/a/c", "b/a/c/d", "docs/x", "z"]
LEAVES = ["", "b.md", "sub/f.py", "sub/deep/g"]
METADATA: list[dict[str, JsonValue]] = [{}, {"skillwire/listed": "false"}, {"skillwire/pinned": "true"}]


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """A few skills, some inside others, of two schemes, with flags, media types and empty folders."""
    entries: list[SkillEntry] = []
    types: dict[str, str] = {}
    folders: set[str] = set()
    for path in draw(st.lists(st.sampled_from(PATHS), unique=True, max_size=7)):
        files = draw(st.lists(st.sampled_from(LEAVES[1:]), unique=True, max_size=3))
        built = skill(path, scheme="docs" if path.startswith("docs/") else "skill")
        lines = [ManifestFile.of(built.uri.text, built.skill_md)]
        lines += [ManifestFile.of(built.uri.join(name), b"x") for name in files]
        fields = {**built.frontmatter.fields, "metadata": draw(st.sampled_from(METADATA))}
        made = SkillEntry(built.uri, Frontmatter(fields), Manifest.of(lines))
        entries.append(made)
        if draw(st.booleans()):
            folders.add(f"{made.uri.root}/empty/{draw(st.sampled_from('pq'))}")
        if files and draw(st.booleans()):
            types[f"{made.uri.root}/{files[0]}"] = "text/x-own"
    return Snapshot.of(complete_nested_manifests(entries), media_types=types, folders=folders)


def directories_of(state: Snapshot) -> set[str]:
    """Every directory that the state has, and some that it has not."""
    found = {"skill://nope", "skill://a/b", "skill:/", "docs:/"}
    for entry in state.entries:
        assert entry.manifest is not None
        for uri in (*entry.manifest.uris, *state.folders):
            while uri.count("/") >= 2:
                uri = uri.rpartition("/")[0]
                found.add(uri)
    return found


def as_json(entries: Sequence[SkillEntry]) -> list[object]:
    return [entry.to_json() for entry in entries]


def pages(listing: ListedSkills | StoredListing) -> list[bytes]:
    found = [listing.after(None)]
    while b'"nextCursor":"' in found[-1]:
        cursor = found[-1].rpartition(b'"nextCursor":"')[2].partition(b'"')[0].decode()
        found.append(listing.after(read_cursor("skills/list", cursor)))
    return found


@given(st.lists(snapshots(), min_size=1, max_size=3))
@settings(deadline=None, max_examples=60)
def test_a_stored_snapshot_answers_like_one_in_memory_at_each_revision(states: list[Snapshot]) -> None:
    for memory, stored in store_of(states).pairs:
        assert as_json(list(stored.entries)) == as_json(memory.entries)
        assert (len(stored.entries), bool(stored.entries)) == (len(memory.entries), bool(memory.entries))
        assert list(stored.by_uri) == list(memory.by_uri)
        assert dict(stored.media_types) == dict(memory.media_types)
        assert set(stored.folders) == set(memory.folders)
        assert schemes_of(stored) == schemes_of(memory)
        for directory in directories_of(memory):
            for after in ("", f"{directory}/a", f"{directory}/b.md"):
                listed = children_of(stored, directory, after=after)
                expected = children_of(memory, directory, after=after)
                assert (listed is None) == (expected is None), directory
                assert list(listed or ()) == list(expected or ()), (directory, after)
            assert as_json(list(stored.skills_around(directory))) == as_json(
                list(memory.skills_around(directory))
            )
            assert as_json(entries_below(stored.entries, directory)) == as_json(
                entries_below(memory.entries, directory)
            )
            assert as_json(entries_after(stored.entries, directory)[:2]) == as_json(
                entries_after(memory.entries, directory)[:2]
            )
        for typed in ("", "a", "a/", "a/b/c/", "b/a/s"):
            assert completions(stored, "skill", typed) == completions(memory, "skill", typed)
        for entry in memory.entries:
            assert entry.manifest is not None
            for line in entry.manifest.files:
                assert stored.locate(line.uri)[0].to_json() == memory.locate(line.uri)[0].to_json()
            details = stored.details(entry.uri.text)
            assert details is not None and (details.order, details.modified) == (["b.md"], 12.5)


@given(
    snapshots(),
    st.lists(st.sampled_from(["skill://a", "skill://b", "skill://a-b", "docs://docs"]), max_size=2),
    st.lists(st.sampled_from(["skill://b/a", "skill://z"]), max_size=2),
    st.sampled_from([None, 0, 1, 2, 5]),
    st.integers(1, 3),
)
@settings(deadline=None, max_examples=60)
def test_listings_of_a_stored_snapshot_have_the_same_pages(
    state: Snapshot, unlisted: list[str], pins: list[str], most: int | None, size: int
) -> None:
    [(memory, stored)] = store_of([state]).pairs
    rules = ListingRules(pins=tuple(pins), unlisted=tuple(unlisted), most=most)
    assert isinstance(stored.entries, RangedEntries)

    listing = StoredListing(rules, stored.entries, page_size=size)

    expected = ListedSkills(rules, page_size=size).update(memory)
    assert pages(listing) == pages(expected)
    assert as_json(list(listing.entries)) == as_json(expected.entries)
    assert [listing.includes(entry) for entry in memory.entries] == [
        expected.includes(entry) for entry in memory.entries
    ]


@given(snapshots(), st.lists(st.sampled_from(["skill://a", "skill://b/a", "skill://b", "docs://docs/x"])))
@settings(deadline=None, max_examples=60)
def test_a_visible_part_of_a_stored_snapshot_is_that_of_one_in_memory(
    state: Snapshot, prefixes: list[str]
) -> None:
    [(memory, stored)] = store_of([state]).pairs
    within = merge_prefixes(prefixes)

    seen, expected = stored.visible(within, 7), memory.visible(within, 7)

    assert (seen.revision, as_json(list(seen.entries))) == (7, as_json(expected.entries))
    assert dict(seen.media_types) == dict(expected.media_types)
    assert set(seen.folders) == set(expected.folders)
    for entry in memory.entries:
        assert (entry.uri.text in seen.by_uri) == (entry.uri.text in expected.by_uri)
        assert seen.details(entry.uri.text) is None or entry.uri.text in expected.by_uri
        report = Report("here", ())
        without = seen.without(entry, report)
        assert without.reports == (report,)
        assert as_json(list(without.entries)) == as_json(
            [other for other in expected.entries if other.uri != entry.uri]
        )
        assert entry.uri.text not in without.by_uri


@given(st.lists(snapshots(), min_size=2, max_size=4))
@settings(deadline=None, max_examples=60)
def test_changes_between_revisions_are_those_between_snapshots(states: list[Snapshot]) -> None:
    for (memory, stored), (later, stored_later) in pairwise(store_of(states).pairs):
        changes, expected = stored_later.changes_since(stored), later.changes_since(memory)
        assert (changes.added, changes.removed) == (expected.added, expected.removed)
        # What is known beside the entry changes a skill too, which a comparison of entries does not notice.
        assert set(expected.changed) <= set(changes.changed)


def test_a_damaged_row_is_one_clear_error_and_others_are_read() -> None:
    first, second = entry_with_files("a", ["b.md"]), entry_with_files("b", [])
    store = store_of([Snapshot.of([first, second])])
    with store.file.writing() as database:
        database.execute("UPDATE versions SET entry = ? WHERE uri = ?", (b'{"uri": 1}', first.uri.text))
    [(_, stored)] = store.pairs

    with pytest.raises(SourceError, match="damaged"):
        stored.get(first.uri)

    assert stored.get(second.uri).to_json() == second.to_json()


def test_a_skill_that_is_not_there_is_not_found_and_positions_have_bounds() -> None:
    [(_, stored)] = store_of([Snapshot.of([entry_with_files("a", [])])]).pairs

    with pytest.raises(NotFoundError):
        stored.get(SkillUri.build("b"))
    with pytest.raises(IndexError):
        stored.entries[1]

    assert stored.entries[-1].name == stored.entries[0].name == "a"
    assert stored.entries[5:] == [] and stored.entries[-5:-3] == []
