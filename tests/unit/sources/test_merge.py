"""Merging again after a change: cheaper than merging everything, and never another result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import InvalidSkillError
from skillwire.core.manifest import MAX_TOTAL_SIZE, Manifest, ManifestFile
from skillwire.core.uri import SkillUri
from skillwire.sources import DynamicSkill, MemorySource, Snapshot
from skillwire.sources import combined as merge
from skillwire.sources.combined import MergedSnapshots, merge_changes, merge_strictly, reuse_only_part
from talking import skill

properties = settings(deadline=None, max_examples=200)


@dataclass(frozen=True)
class Piece:
    """One skill as a part has it: files by path with their content, or none for a dynamic one."""

    files: tuple[tuple[str, str], ...] = ()
    dynamic: bool = False
    large: bool = False
    typed: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


Pieces: TypeAlias = Mapping[str, Piece]


def entry_of(path: str, piece: Piece) -> SkillEntry:
    uri = SkillUri.build(path)
    frontmatter = Frontmatter({"name": uri.name, "description": "Use when testing."})
    if piece.dynamic:
        return SkillEntry(uri, frontmatter, None)
    lines = [ManifestFile.of(uri.text, path.encode())]
    lines += [ManifestFile.of(uri.join(name), text.encode()) for name, text in piece.files]
    if piece.large:
        lines.append(ManifestFile(uri.join("large.bin"), "sha256:" + "0" * 64, MAX_TOTAL_SIZE // 2))
    return SkillEntry(uri, frontmatter, Manifest.of(lines))


class Part:
    """A source that is changed skill by skill; what does not change stays the same object."""

    def __init__(self) -> None:
        self._pieces: dict[str, Piece] = {}
        self._entries: dict[str, SkillEntry] = {}
        self._revision = 1

    def change(self, path: str, piece: Piece | None) -> None:
        self._revision += 1
        self._pieces.pop(path, None)
        before = self._entries.pop(path, None)
        if piece is not None:
            self._pieces[path] = piece
            entry = entry_of(path, piece)
            self._entries[path] = before if before is not None and before == entry else entry

    def snapshot(self) -> Snapshot:
        return Snapshot.of(
            self._entries.values(),
            revision=self._revision,
            media_types={
                f"skill://{path}/{name}": f"text/x-{path.count('/')}"
                for path, piece in self._pieces.items()
                for name in piece.typed
            },
            folders=[
                f"skill://{path}/{name}" for path, piece in self._pieces.items() for name in piece.empty
            ],
        )


# Few values, so that skills often meet; "a-b" sorts between "a" and what lies inside it.
paths = st.sampled_from(["a", "a/b", "a/b/c", "a/c", "a-b", "b"])
pieces = st.builds(
    Piece,
    files=st.sampled_from([(), (("x.md", "1"),), (("x.md", "2"), ("b/x.md", "1")), (("b/c/x.md", "2"),)]),
    dynamic=st.sampled_from([False, False, False, True]),
    large=st.sampled_from([False, False, True]),
    typed=st.sampled_from([(), (), ("x.md",), ("b/x.md",)]),
    empty=st.sampled_from([(), (), ("b",), ("b", "b/d"), ("e",)]),
)
change = st.tuples(st.integers(0, 2), paths, st.none() | pieces)
batches = st.lists(st.lists(change, min_size=1, max_size=3), min_size=1, max_size=8)


def assert_same(merged: MergedSnapshots, expected: MergedSnapshots) -> None:
    assert merged == expected
    assert list(merged.by_uri) == [entry.uri.text for entry in merged.entries]
    assert list(merged.refused) == list(expected.refused)


@given(batches)
@properties
def test_merging_changes_gives_what_merging_everything_gives(
    steps: list[list[tuple[int, str, Piece | None]]],
) -> None:
    parts = [Part(), Part(), Part()]
    merged = merge.merge([part.snapshot() for part in parts])
    for step in steps:
        for position, path, piece in step:
            parts[position].change(path, piece)
        now = [part.snapshot() for part in parts]

        merged = merge_changes(merged, now)

        assert_same(merged, merge.merge(now))


@given(batches)
@properties
def test_a_part_that_is_alone_and_ready_is_what_merging_it_would_give(
    steps: list[list[tuple[int, str, Piece | None]]],
) -> None:
    raw = Part()
    for step in steps:
        for _, path, piece in step:
            raw.change(path, piece)
    # What a merge gives out is ready to be served, as what our own sources publish is.
    first = merge.merge([raw.snapshot()])
    ready = Snapshot(7, first.entries, (), first.by_uri, first.media_types, first.folders)
    empty = Snapshot.of(())

    for parts in ([ready], [empty, ready], [ready, empty]):
        shared = reuse_only_part(parts, [True] * len(parts))

        assert shared is not None
        assert_same(shared, merge.merge(parts))
        assert shared.entries is ready.entries
        assert shared.by_uri is ready.by_uri or not ready.entries


def snapshot_of(*paths: str) -> Snapshot:
    return MemorySource(map(skill, paths)).snapshot


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([snapshot_of("a"), snapshot_of("b")], [True, True]),
        ([snapshot_of("a"), snapshot_of()], [False, True]),
    ],
)
def test_nothing_is_shared_where_something_may_need_merging(
    parts: Sequence[Snapshot], whole: Sequence[bool]
) -> None:
    assert reuse_only_part(parts, whole) is None


def test_sources_without_skills_are_an_empty_catalog() -> None:
    shared = reuse_only_part([snapshot_of(), Snapshot.of(())], [True, False])

    assert shared is not None
    assert shared.entries == ()


def test_many_changes_at_once_are_merged_as_everything_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "MAX_CHANGES", 2)
    before = merge.merge([snapshot_of("a"), snapshot_of("b")])
    parts = [snapshot_of("a", "c", "d", "e"), before.parts[1]]

    merged = merge_changes(before, parts)

    assert_same(merged, merge.merge(parts))
    assert len(merged.entries) == 5


def test_a_skill_that_a_part_lists_twice_is_refused_after_a_change_as_well() -> None:
    twice = Snapshot.of([skill("a").entry(), skill("a").entry(), skill("b").entry()])
    once = snapshot_of("a", "b")
    other = snapshot_of("c")

    for first, second in ((once, twice), (twice, once)):
        before = merge.merge([first, other])
        merged = merge_changes(before, [second, other])
        assert_same(merged, merge.merge([second, other]))


def test_nothing_but_other_reports_leaves_everything_as_it_is() -> None:
    part, other = snapshot_of("a"), snapshot_of("b")
    before = merge.merge([part, other])

    merged = merge_changes(before, [replace(part, revision=9), other])

    assert merged.entries is before.entries
    assert merged.by_uri is before.by_uri
    assert merged.parts[0].revision == 9


def test_what_does_not_change_is_the_same_object_afterwards() -> None:
    source, other = MemorySource(map(skill, ["a", "m/n", "z"])), snapshot_of("b", "outer")
    before = merge.merge([source.snapshot, other])
    source.add(skill("outer/inner"))

    merged = merge_changes(before, [source.snapshot, other])

    assert [entry.uri.path for entry in merged.entries] == ["a", "b", "m/n", "outer", "outer/inner", "z"]
    changed = [uri for uri, entry in before.by_uri.items() if merged.by_uri[uri] is not entry]
    assert changed == ["skill://outer/SKILL.md"]


def test_a_folder_is_empty_only_until_another_part_puts_a_file_there() -> None:
    folders = Snapshot.of([skill("a").entry()], folders=["skill://a/b", "skill://a/c", "skill://gone/d"])
    inner = snapshot_of("a/b")

    assert merge.merge([folders, snapshot_of("x")]).folders == {"skill://a/b", "skill://a/c"}
    assert merge.merge([folders, inner]).folders == {"skill://a/c"}
    # Two that claim the same URI are both refused, and their folders with them.
    assert merge.merge([folders, snapshot_of("a")]).folders == frozenset()


def test_media_types_are_those_of_the_part_that_serves_the_file() -> None:
    outer = MemorySource(
        [skill("a").with_reference("b/x.md", "1", media_type="text/x-outer").with_reference("y.md", "")]
    )
    inner = MemorySource([skill("a/b").with_reference("x.md", "1")])
    own = MemorySource([skill("a/b").with_reference("x.md", "1", media_type="text/x-inner")])
    twice = MemorySource([skill("a")])

    assert merge.merge([outer.snapshot]).media_types == {"skill://a/b/x.md": "text/x-outer"}
    assert merge.merge([outer.snapshot, inner.snapshot]).media_types == {}
    assert merge.merge([outer.snapshot, own.snapshot]).media_types == {"skill://a/b/x.md": "text/x-inner"}
    assert merge.merge([outer.snapshot, twice.snapshot]).media_types == {}


def test_a_dynamic_skill_in_the_wrong_place_is_an_error_where_strictness_is_asked_for() -> None:
    made = DynamicSkill("b", path="a/b", description="Use when testing.", body=lambda: "")
    parts = [snapshot_of("a"), MemorySource([made]).snapshot]

    assert list(merge.merge(parts).refused) == ["skill://a/b/SKILL.md"]
    with pytest.raises(InvalidSkillError):
        merge_strictly(parts)
