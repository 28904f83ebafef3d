"""Keeping a tree up to date: what a second look costs, and that it tells the same as a first one would."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folders import (
    NotedReads,
    codes,
    held_back,
    manifest_at,
    manifest_of,
    scan,
    skill_md,
    tree,
    uris,
    write_files,
    write_skill,
)
from skillwire.core.errors import SourceError
from skillwire.core.uri import SkillUri
from skillwire.sources import Changes, Snapshot
from skillwire.sources.directory.walk import MAX_DEPTH, FolderReader

properties = settings(deadline=None, max_examples=30)


def same_state(left: Snapshot, right: Snapshot) -> bool:
    return (left.entries, left.reports) == (right.entries, right.reports)


# A second look


def test_nothing_changed_gives_the_very_same_snapshot(root: Path, patient_clock: None) -> None:
    write_skill(root / "pdf", {"a.md": "x"})
    write_files(root, {"broken/SKILL.md": ""})
    skills = tree(root)
    first = skills.scan()

    assert skills.scan() is first
    assert skills.scan(["pdf"]) is first
    assert skills.scan([]) is first


def test_an_unchanged_skill_keeps_its_entry_when_another_changes(root: Path, patient_clock: None) -> None:
    write_skill(root / "pdf")
    write_skill(root / "xls", {"a.md": "1"})
    skills = tree(root)
    first = skills.scan().snapshot
    write_files(root, {"xls/a.md": "2"})

    second = skills.scan().snapshot

    assert second.revision == first.revision + 1
    assert second.changes_since(first) == Changes((), (), ("skill://xls/SKILL.md",))
    pdf = SkillUri("skill://pdf/SKILL.md")
    assert second.get(pdf) is first.get(pdf)


def test_only_files_that_changed_are_read_again(root: Path, patient_clock: None, reads: NotedReads) -> None:
    write_skill(root / "pdf", {f"{number}.md": "x" for number in range(5)})
    write_skill(root / "xls", {"a.md": "1"})
    skills = tree(root)
    skills.scan()
    write_files(root, {"pdf/3.md": "y"})

    with reads() as noted:
        skills.scan()

    # The frontmatter is not kept apart, so SKILL.md is read along.
    assert sorted(noted) == ["pdf/3.md", "pdf/SKILL.md"]


def test_files_written_a_moment_ago_are_read_again(root: Path, reads: NotedReads) -> None:
    write_skill(root / "pdf", {"a.md": "x"})
    skills = tree(root)
    first = skills.scan()

    with reads() as noted:
        second = skills.scan()

    assert sorted(noted) == ["pdf/SKILL.md", "pdf/a.md"]
    assert second is first


def test_an_edit_that_keeps_size_and_times_is_noticed(root: Path, patient_clock: None) -> None:
    write_skill(root / "pdf", {"a.md": "one"})
    before = (root / "pdf" / "a.md").stat()
    skills = tree(root)
    skills.scan()
    write_files(root, {"pdf/a.md": "two"})
    os.utime(root / "pdf" / "a.md", ns=(before.st_atime_ns, before.st_mtime_ns))

    second = skills.scan().snapshot

    assert manifest_at(second, "skill://pdf/SKILL.md") == manifest_of(root / "pdf", "skill://pdf/SKILL.md")


def test_a_file_swapped_for_one_of_the_same_size_and_times_is_noticed(
    root: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf", {"a.md": "one", "b.md": "two"})
    os.utime(root / "pdf" / "a.md", ns=(1, 1))
    os.utime(root / "pdf" / "b.md", ns=(1, 1))
    skills = tree(root)
    skills.scan()
    (root / "pdf" / "b.md").rename(root / "pdf" / "c.md")
    (root / "pdf" / "a.md").rename(root / "pdf" / "b.md")
    (root / "pdf" / "c.md").rename(root / "pdf" / "a.md")

    second = skills.scan().snapshot

    assert manifest_at(second, "skill://pdf/SKILL.md") == manifest_of(root / "pdf", "skill://pdf/SKILL.md")


@pytest.mark.requirement("NEST-03")
def test_an_edit_in_a_nested_skill_changes_every_skill_around_it(root: Path) -> None:
    write_skill(root / "outer")
    write_skill(root / "outer" / "inner", {"a.md": "1"})
    skills = tree(root)
    first = skills.scan().snapshot
    write_files(root, {"outer/inner/a.md": "2"})

    second = skills.scan(["outer/inner/a.md"]).snapshot

    changed = ("skill://outer/SKILL.md", "skill://outer/inner/SKILL.md")
    assert second.changes_since(first) == Changes((), (), changed)
    for entry in second.entries:
        assert entry.manifest == manifest_of(root / entry.uri.path, entry.uri.text)


# What is set aside comes back when it is put right


def make_a_fifo(skill: Path) -> None:
    os.mkfifo(skill / "odd")


def make_a_link_out(skill: Path) -> None:
    (skill / "odd").symlink_to("/etc/hostname")


def make_a_link_to_nothing(skill: Path) -> None:
    (skill / "odd").symlink_to("nowhere")


def make_a_huge_file(skill: Path) -> None:
    (skill / "odd").touch()
    os.truncate(skill / "odd", 10**10)


def make_a_twin(skill: Path) -> None:
    (skill / "odd").touch()
    (skill / "ODD").touch()


@pytest.mark.parametrize(
    "spoil", [make_a_fifo, make_a_link_out, make_a_link_to_nothing, make_a_huge_file, make_a_twin]
)
def test_a_skill_that_was_set_aside_is_published_once_the_oddity_is_gone(
    root: Path, spoil: Callable[[Path], None]
) -> None:
    skill = write_skill(root / "pdf", {"a.md": "x"})
    spoil(skill)
    skills = tree(root)
    assert list(held_back(skills.scan().snapshot)) == ["pdf"]
    (skill / "odd").unlink()

    second = skills.scan().snapshot

    assert uris(second) == ["skill://pdf/SKILL.md"]
    assert second.quarantined == ()


def test_an_oddity_that_appears_sets_the_skill_aside(root: Path, patient_clock: None) -> None:
    skill = write_skill(root / "pdf")
    skills = tree(root)
    skills.scan()
    os.mkfifo(skill / "pipe")

    assert held_back(skills.scan(["pdf/pipe"]).snapshot) == {"pdf": ["special-file"]}


def test_a_broken_skill_is_published_once_it_is_mended(root: Path, patient_clock: None) -> None:
    write_files(root, {"pdf/SKILL.md": "broken"})
    skills = tree(root)
    assert held_back(skills.scan().snapshot) == {"pdf": ["frontmatter-missing"]}
    write_files(root, {"pdf/SKILL.md": skill_md("pdf")})

    assert uris(skills.scan(["pdf/SKILL.md"]).snapshot) == ["skill://pdf/SKILL.md"]


def test_a_skill_that_lost_a_clash_is_published_once_the_winner_is_gone(
    root: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf")
    write_skill(root / "copy", name="pdf")
    skills = tree(root)
    skills.scan()
    shutil.rmtree(root / "pdf")

    second = skills.scan(["pdf"]).snapshot

    assert manifest_at(second, "skill://pdf/SKILL.md") == manifest_of(root / "copy", "skill://pdf/SKILL.md")
    assert codes(second) == {"copy": ["name-differs-from-folder"]}


# Looking at parts


@pytest.mark.parametrize(
    ("place", "start"),
    [
        ("", ""),
        ("outer", "outer"),
        ("outer/SKILL.md", "outer"),
        ("outer/inner/SKILL.md", "outer"),
        ("outer/no/such/file", "outer"),
        ("group/pdf/a.md", "group/pdf"),
        ("group", "group"),
        ("group/new", "group/new"),
        ("lower/skill.md", "lower"),
        (".git/index", None),
        ("outer/.swap", None),
        ("outer/.git/config", None),
    ],
)
def test_a_change_leads_to_the_outermost_skill_around_it(root: Path, place: str, start: str | None) -> None:
    write_skill(root / "outer")
    write_skill(root / "outer" / "inner")
    write_skill(root / "group" / "pdf")
    write_files(root, {"lower/skill.md": "x"})
    skills = tree(root)
    skills.scan()

    assert skills.start_for(place) == start


def test_a_change_in_a_skill_nobody_has_seen_yet_leads_to_it(root: Path) -> None:
    skills = tree(root)
    skills.scan()
    write_skill(root / "new" / "pdf", {"deep/a.md": "x"})

    assert skills.start_for("new/pdf/deep/a.md") == "new/pdf"
    assert uris(skills.scan(["new/pdf/deep/a.md"]).snapshot) == ["skill://new/pdf/SKILL.md"]


def test_a_folder_around_skills_that_becomes_a_skill_takes_them_in(root: Path) -> None:
    write_skill(root / "group" / "pdf")
    skills = tree(root)
    skills.scan()
    write_skill(root / "group")

    second = skills.scan(["group/SKILL.md"]).snapshot

    assert uris(second) == ["skill://group/SKILL.md", "skill://group/pdf/SKILL.md"]
    assert same_state(second, scan(root))


def test_a_near_miss_is_forgotten_once_it_is_renamed(root: Path) -> None:
    write_files(root, {"pdf/skill.md": skill_md("pdf")})
    skills = tree(root)
    assert held_back(skills.scan().snapshot) == {"pdf": ["skill-file-case"]}
    (root / "pdf" / "skill.md").rename(root / "pdf" / "SKILL.md")

    second = skills.scan(["pdf/skill.md", "pdf/SKILL.md"]).snapshot

    assert same_state(second, scan(root))


def test_places_inside_each_other_are_looked_at_once(root: Path, reads: NotedReads) -> None:
    for name in ("a/x", "a/y", "a-b", "b"):
        write_skill(root / name)
    skills = tree(root)
    skills.scan()

    with reads() as noted:
        skills.scan(["a/x/SKILL.md", "a", "a/y", "a-b"])

    assert sorted(noted) == ["a-b/SKILL.md", "a/x/SKILL.md", "a/y/SKILL.md"]


def test_a_change_in_a_folder_that_is_not_entered_publishes_nothing(root: Path) -> None:
    skills = tree(root)
    first = skills.scan()
    write_skill(root / "node_modules" / "pdf")
    write_skill(root / "__pycache__" / "xls")

    second = skills.scan(["node_modules/pdf/SKILL.md", "__pycache__", "__pycache__/xls"])

    assert second is first


def test_a_change_behind_a_link_that_is_not_followed_publishes_nothing(root: Path, tmp_path: Path) -> None:
    write_skill(tmp_path / "elsewhere" / "pdf")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "pdf").symlink_to(tmp_path / "elsewhere" / "pdf")
    skills = tree(root)
    first = skills.scan()

    second = skills.scan(["link/pdf/SKILL.md", "link", "pdf", "pdf/SKILL.md"])

    assert (second.snapshot, skills.unsettled) == (first.snapshot, frozenset())


def test_a_change_behind_a_link_publishes_no_folder_twice(root: Path) -> None:
    write_skill(root / "group" / "pdf")
    (root / "again").symlink_to("group")
    skills = tree(root, follow_links=True)
    first = skills.scan()

    second = skills.scan(["again", "again/pdf/SKILL.md", "group/pdf/SKILL.md"])

    assert same_state(second.snapshot, first.snapshot)


def test_a_change_beyond_the_deepest_level_publishes_nothing(root: Path) -> None:
    deep = "/".join(["d"] * (MAX_DEPTH + 1))
    write_skill(root / deep)
    skills = tree(root)
    first = skills.scan()

    second = skills.scan([f"{deep}/SKILL.md"])

    assert same_state(second.snapshot, first.snapshot)


actions = st.sampled_from(["write", "skill", "break", "delete", "rename", "hide"])
some_places = st.sampled_from(["a", "b", "a/b", "a/b/c", "b/a", "b/node_modules/x"])


@given(history=st.lists(st.tuples(actions, some_places, some_places), max_size=8))
@properties
def test_looking_at_what_changed_tells_the_same_as_looking_at_everything(
    history: list[tuple[str, str, str]],
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_skill(root / "a", {"x.md": "x"})
        skills = tree(root)
        skills.scan()
        for action, place, other in history:
            changed = act(root, action, place, other)

            after = skills.scan(changed).snapshot

            assert same_state(after, scan(root)), (action, place, other)


def act(root: Path, action: str, place: str, other: str) -> list[str]:
    """Change something below `root` and return the places where it changed, as a watch would."""
    folder = root / place
    folder.mkdir(parents=True, exist_ok=True)
    if action == "write":
        write_files(folder, {"x.md": other})
        return [place, f"{place}/x.md"]
    if action == "skill":
        write_skill(folder)
        return [place, f"{place}/SKILL.md"]
    if action == "break":
        write_files(folder, {"SKILL.md": other})
        return [place, f"{place}/SKILL.md"]
    if action == "hide":
        write_files(folder, {".hidden/SKILL.md": skill_md("hidden")})
        return [place, f"{place}/.hidden", f"{place}/.hidden/SKILL.md"]
    if action == "rename" and not (root / other).exists() and not other.startswith(place):
        (root / other).parent.mkdir(parents=True, exist_ok=True)
        folder.rename(root / other)
        return [place, other, str(Path(other).parent).removeprefix(".")]
    shutil.rmtree(folder)
    return [place]


# Trouble


def test_a_root_that_cannot_be_read_is_an_error_without_a_path(root: Path) -> None:
    skills = tree(root / "missing")

    with pytest.raises(SourceError) as caught:
        skills.scan()

    assert str(root) not in str(caught.value)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_root_that_is_gone_later_leaves_the_snapshot_as_it_was(root: Path) -> None:
    write_skill(root / "pdf")
    skills = tree(root)
    first = skills.scan()
    root.rename(root.with_name("moved"))

    with pytest.raises(SourceError):
        skills.scan()

    root.with_name("moved").rename(root)
    assert skills.scan() is first


@pytest.mark.requirement("SDK-07")
def test_a_skill_whose_files_change_while_they_are_read_keeps_its_entry(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(root / "pdf", {"a.md": "1"})
    write_skill(root / "xls", {"a.md": "1"})
    skills = tree(root)
    first = skills.scan()
    write_files(root, {"pdf/a.md": "22"})
    read = FolderReader.read

    def read_and_change(
        reader: FolderReader, folder: str, name: str, size: int
    ) -> tuple[bytes, os.stat_result]:
        if (folder, name) == ("pdf", "a.md"):
            write_files(root, {"pdf/a.md": "333"})
        return read(reader, folder, name, size)

    with monkeypatch.context() as patch:
        patch.setattr(FolderReader, "read", read_and_change)
        second = skills.scan()

    assert second is first
    assert skills.unsettled == {"pdf"}
    third = skills.scan().snapshot
    assert manifest_at(third, "skill://pdf/SKILL.md") == manifest_of(root / "pdf", "skill://pdf/SKILL.md")
    assert skills.unsettled == frozenset()


@pytest.mark.requirement("SDK-07")
def test_a_nested_skill_and_the_one_around_it_never_disagree(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(root / "outer")
    write_skill(root / "outer" / "inner", {"a.md": "1"})
    skills = tree(root)
    skills.scan()
    write_files(root, {"outer/inner/a.md": "22"})
    read = FolderReader.read
    seen = 0

    def read_and_change(
        reader: FolderReader, folder: str, name: str, size: int
    ) -> tuple[bytes, os.stat_result]:
        nonlocal seen
        if name == "a.md":
            seen += 1
            if seen == 2:
                write_files(root, {"outer/inner/a.md": "333"})
        return read(reader, folder, name, size)

    with monkeypatch.context() as patch:
        patch.setattr(FolderReader, "read", read_and_change)
        snapshot = skills.scan().snapshot

    lines = {
        manifest.find("skill://outer/inner/a.md")
        for entry in snapshot.entries
        if (manifest := entry.manifest)
    }
    assert len(lines) == 1
