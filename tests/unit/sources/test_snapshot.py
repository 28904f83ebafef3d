"""Snapshots: finding skills and files in them, telling two apart, and skills that lie inside each other."""

from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import InvalidSkillError, NotFoundError
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE, Manifest, ManifestFile
from skillwire.core.uri import SkillUri
from skillwire.sources import Changes, Report, Snapshot
from skillwire.sources.snapshot import complete_nested_manifests, enclosures, has_files_below, over_limits

properties = settings(deadline=None)


def entry(path: str, files: Mapping[str, bytes] | None = None, *, scheme: str = "skill") -> SkillEntry:
    """Make an entry by hand; its `SKILL.md` is as good as its path."""
    uri = SkillUri.build(path, scheme=scheme)
    contents = {"SKILL.md": path.encode(), **(files or {})}
    manifest = Manifest.of(ManifestFile.of(uri.join(name), content) for name, content in contents.items())
    return SkillEntry(uri, Frontmatter({"name": uri.name}), manifest)


def dynamic(path: str) -> SkillEntry:
    uri = SkillUri.build(path)
    return SkillEntry(uri, Frontmatter({"name": uri.name}), None)


# Finding things


def test_entries_and_reports_are_sorted_whatever_the_order_they_came_in() -> None:
    snapshot = Snapshot.of(
        [entry("b"), entry("a"), entry("a/b")],
        reports=[Report("z", ()), Report("y", (), SkillUri.build("a"))],
        revision=7,
    )

    assert snapshot.revision == 7
    assert snapshot.entries == (entry("a"), entry("a/b"), entry("b"))
    assert list(snapshot.by_uri) == ["skill://a/SKILL.md", "skill://a/b/SKILL.md", "skill://b/SKILL.md"]
    assert [report.place for report in snapshot.reports] == ["y", "z"]
    assert snapshot.quarantined == (Report("z", ()),)


def test_a_skill_is_found_by_its_uri_in_any_spelling() -> None:
    snapshot = Snapshot.of([entry("acme/my notes/pdf")])

    found = snapshot.get(SkillUri.parse("SKILL://acme/m%79%20notes/pdf/SKILL.md"))

    assert found == entry("acme/my notes/pdf")


def test_a_skill_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFoundError) as caught:
        Snapshot.of([entry("a")]).get(SkillUri.build("b"))

    assert (caught.value.uri, caught.value.code) == ("skill://b/SKILL.md", -32602)


@pytest.mark.parametrize(
    ("uri", "owner", "found"),
    [
        ("skill://outer/SKILL.md", "outer", "skill://outer/SKILL.md"),
        ("skill://outer/a.md", "outer", "skill://outer/a.md"),
        ("skill://outer/deep/down/b.md", "outer", "skill://outer/deep/down/b.md"),
        ("skill://outer/inner/SKILL.md", "outer/inner", "skill://outer/inner/SKILL.md"),
        ("skill://outer/inner/c.md", "outer/inner", "skill://outer/inner/c.md"),
        ("skill://outer/inner/left-over.md", "outer", "skill://outer/inner/left-over.md"),
        ("SKILL://outer/%61.md", "outer", "skill://outer/a.md"),
        ("skill://outer/deep/down%2Fb.md", None, None),
    ],
)
def test_a_file_belongs_to_the_innermost_skill_that_lists_it(
    uri: str, owner: str | None, found: str | None
) -> None:
    inner = {"c.md": b"c"}
    outer = {
        "a.md": b"a",
        "deep/down/b.md": b"b",
        "inner/SKILL.md": b"outer/inner",
        "inner/c.md": b"c",
        "inner/left-over.md": b"d",
    }
    snapshot = Snapshot.of([entry("outer", outer), entry("outer/inner", inner)])

    if owner is None:
        with pytest.raises(NotFoundError):
            snapshot.locate(uri)
        return
    located, file = snapshot.locate(uri)

    assert located.uri == SkillUri.build(owner)
    assert file is not None
    assert file.uri == found


@pytest.mark.requirement("READ-10")
@pytest.mark.parametrize(
    "uri",
    [
        *("skill://pdf/b.md", "skill://pdf", "skill://pdf/A.md", "skill://PDF/a.md", "skill://pdf/a.md/x"),
        *("skill://pdf/%2e%2e/pdf/a.md", "skill://pdf/a.md?x", "docs://pdf/a.md", "file:///etc/passwd", ""),
        "skill://pdf/" + "a" * 20_000,
    ],
)
def test_what_no_skill_lists_is_not_found(uri: str) -> None:
    snapshot = Snapshot.of([entry("pdf", {"a.md": b"a"})])

    with pytest.raises(NotFoundError) as caught:
        snapshot.locate(uri)

    assert len(str(caught.value)) < 500


def test_every_file_inside_a_dynamic_skill_may_be_there() -> None:
    snapshot = Snapshot.of([dynamic("live"), entry("live/fixed", {"a.md": b"a"})])

    assert snapshot.locate("skill://live/any/thing.md") == (dynamic("live"), None)
    assert snapshot.locate("skill://live/fixed/b.md") == (dynamic("live"), None)
    located, file = snapshot.locate("skill://live/fixed/a.md")
    assert (located, file) == (
        entry("live/fixed", {"a.md": b"a"}),
        ManifestFile.of("skill://live/fixed/a.md", b"a"),
    )


# Telling two apart


def test_changes_name_what_was_added_removed_and_changed() -> None:
    older = Snapshot.of([entry("same"), entry("gone"), entry("edited", {"a.md": b"1"})])
    newer = Snapshot.of([entry("same"), entry("new"), entry("edited", {"a.md": b"2"})], revision=2)

    changes = newer.changes_since(older)

    assert changes == Changes(
        ("skill://new/SKILL.md",), ("skill://gone/SKILL.md",), ("skill://edited/SKILL.md",)
    )
    assert changes


def test_equal_entries_are_no_change_even_in_a_newer_revision() -> None:
    older = Snapshot.of([entry("a", {"b.md": b"1"}), dynamic("live")])
    newer = Snapshot.of([entry("a", {"b.md": b"1"}), dynamic("live")], revision=9)

    assert not newer.changes_since(older)


def test_a_skill_that_becomes_dynamic_has_changed() -> None:
    changes = Snapshot.of([dynamic("a")]).changes_since(Snapshot.of([entry("a")]))

    assert changes == Changes((), (), ("skill://a/SKILL.md",))


# Skills inside each other


def test_a_manifest_that_is_complete_stays_the_same_object() -> None:
    whole = entry("a", {"b/SKILL.md": b"a/b"})

    assert complete_nested_manifests([entry("a/b"), whole])[0] is whole


def test_names_that_only_begin_alike_do_not_lie_inside_each_other() -> None:
    parts = [entry("a"), entry("a-b"), entry("ab/c"), entry("b/a"), entry("a/b", scheme="docs")]

    assert set(map(id, complete_nested_manifests(parts))) == set(map(id, parts))
    assert enclosures(parts) == {}


def test_where_two_skills_disagree_about_a_file_the_inner_one_counts() -> None:
    outer, inner = entry("a", {"b/SKILL.md": b"old", "b/x.md": b"old"}), entry("a/b", {"x.md": b"new"})

    assert complete_nested_manifests([outer, inner])[0] == entry(
        "a", {"b/SKILL.md": b"a/b", "b/x.md": b"new"}
    )


def test_a_dynamic_skill_inside_one_with_digests_is_refused() -> None:
    with pytest.raises(InvalidSkillError, match=r"skill://a/b/SKILL\.md"):
        complete_nested_manifests([entry("a"), dynamic("a/b")])


def test_inside_a_dynamic_skill_everything_may_lie() -> None:
    parts = [dynamic("a"), entry("a/b", {"x.md": b"1"}), dynamic("a/c")]

    assert complete_nested_manifests(parts) == parts


def test_what_an_entry_carries_besides_survives_being_completed() -> None:
    uri = SkillUri.build("a")
    manifest = Manifest.of([ManifestFile.of(uri.text, b"a")])
    outer = SkillEntry(uri, Frontmatter({"name": "a"}), manifest, {"x-unknown": 1})

    completed = complete_nested_manifests([outer, entry("a/b")])[0]

    assert completed.extra == {"x-unknown": 1}


@pytest.mark.requirement("NEST-03")
@example({"a", "a/b/c", "a/b/c/0"})
@given(st.sets(st.lists(st.sampled_from("ab0"), min_size=1, max_size=4).map("/".join), max_size=8))
@properties
def test_after_nesting_every_enclosing_manifest_holds_every_nested_one(paths: set[str]) -> None:
    nested = complete_nested_manifests(entry(path, {"x.md": path.encode()}) for path in paths)

    assert {item.uri.path for item in nested} == paths
    for outer in nested:
        inside = {inner.uri.path for inner in nested if outer.uri.contains(inner.uri.text)}
        assert outer.manifest == Manifest.of(
            line
            for path in inside
            for line in (
                ManifestFile.of(f"skill://{path}/SKILL.md", path.encode()),
                ManifestFile.of(f"skill://{path}/x.md", path.encode()),
            )
        )


# Limits


@pytest.mark.requirement("LIM-03")
def test_only_what_is_beyond_a_limit_is_named() -> None:
    uri = SkillUri.build("big")

    def sized(sizes: list[int]) -> SkillEntry:
        files = [ManifestFile(uri.join(str(number)), "", size) for number, size in enumerate(sizes)]
        return SkillEntry(uri, Frontmatter({"name": "big"}), Manifest.of(files))

    assert over_limits([sized([0] * MAX_FILES), sized([MAX_TOTAL_SIZE]), dynamic("live")]) == {}
    for sizes, code in (([0] * (MAX_FILES + 1), "too-many-files"), ([MAX_TOTAL_SIZE, 1], "too-large")):
        found = over_limits([sized(sizes)])
        assert list(found) == [uri.text]
        assert [finding.code for finding in found[uri.text]] == [code]


# What is said besides


def test_a_snapshot_has_no_media_types_and_no_empty_folders_unless_told() -> None:
    plain = Snapshot.of([entry("a")])
    told = Snapshot.of(
        [entry("a")], media_types={"skill://a/x": "text/x-y"}, folders=["skill://a/b", "skill://a/b"]
    )

    assert (plain.media_types, plain.folders) == ({}, frozenset())
    assert (told.media_types, told.folders) == ({"skill://a/x": "text/x-y"}, {"skill://a/b"})
    assert plain != told
    assert not told.changes_since(plain)


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("skill://a/docs", True),
        ("skill://a/docs/deep", True),
        ("skill://a/docs/deep/x.md", False),
        ("skill://a/doc", False),
        ("skill://a/docs-2", False),
        ("skill://a/zzz", False),
        ("skill://a", False),
        ("skill://b/docs", False),
    ],
)
def test_a_manifest_tells_of_every_folder_with_a_file_in_it(folder: str, expected: bool) -> None:
    manifest = entry("a", {"docs/deep/x.md": b"", "docs.md": b"", "docs-3/y.md": b""}).manifest
    assert manifest is not None

    assert has_files_below(manifest, folder) is expected
