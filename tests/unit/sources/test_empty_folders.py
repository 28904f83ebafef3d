"""Folders without files: no manifest tells of them, so the snapshot does."""

from pathlib import Path

import anyio
import pytest

from folders import delete, held_back, link, scan, tree, uris, write_files, write_skill
from skillwire.sources import CombinedSource, DirectorySource, MemorySource
from skillwire.sources.directory.publish import MountPoint
from skillwire.sources.directory.scan import ScanIndex
from skillwire.sources.directory.tree import SkillTree
from skillwire.sources.directory.walk import FolderReader


def make_folders(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).mkdir(parents=True)


def test_folders_without_any_file_are_named_at_every_depth(root: Path) -> None:
    write_skill(root / "pdf", {"full/a.md": "x"})
    make_folders(root, "pdf/empty", "pdf/full/empty", "pdf/deep/down/here", "pdf/deep/too")

    assert scan(root).folders == {
        "skill://pdf/empty",
        "skill://pdf/full/empty",
        "skill://pdf/deep",
        "skill://pdf/deep/down",
        "skill://pdf/deep/down/here",
        "skill://pdf/deep/too",
    }


def test_a_folder_with_files_somewhere_below_is_no_empty_one(root: Path) -> None:
    write_skill(root / "pdf", {"a/b/c.md": "x"})

    assert scan(root).folders == frozenset()


def test_hidden_names_neither_fill_a_folder_nor_are_folders(root: Path) -> None:
    write_skill(root / "pdf", {"kept/.gitkeep": "", "other/.cache/a.md": "x"})
    make_folders(root, "pdf/.hidden", "pdf/.git/refs")

    assert scan(root).folders == {"skill://pdf/kept", "skill://pdf/other"}


def test_only_folders_inside_published_skills_count(root: Path) -> None:
    write_skill(root / "pdf")
    write_files(root, {"broken/SKILL.md": "no frontmatter"})
    make_folders(root, "empty", "group/empty", "broken/empty")

    snapshot = scan(root)

    assert list(held_back(snapshot)) == ["broken"]
    assert snapshot.folders == frozenset()


def test_a_folder_inside_a_nested_skill_has_one_uri(root: Path) -> None:
    write_skill(root / "copy", name="outer")
    write_skill(root / "copy" / "inner")
    make_folders(root, "copy/inner/empty")

    assert scan(root, prefix="Acme").folders == {"skill://acme/outer/inner/empty"}


def test_a_skill_in_a_broken_one_keeps_its_empty_folders(root: Path) -> None:
    write_skill(root / "outer" / "inner")
    write_files(root, {"outer/SKILL.md": "broken"})
    make_folders(root, "outer/inner/empty", "outer/empty")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://outer/inner/SKILL.md"]
    assert snapshot.folders == {"skill://outer/inner/empty"}


def test_a_folder_that_holds_only_a_link_to_a_file_is_not_empty(root: Path) -> None:
    write_skill(root / "pdf", {"real/a.md": "x"})
    make_folders(root, "pdf/links")
    link(root / "pdf" / "links" / "b.md", "../real/a.md")

    assert scan(root).folders == frozenset()


def test_names_are_percent_encoded_and_those_no_uri_can_have_left_out(root: Path) -> None:
    write_skill(root / "pdf")
    make_folders(root, "pdf/my notes/é", "pdf/odd/back\\slash")

    assert scan(root).folders == {
        "skill://pdf/my%20notes",
        "skill://pdf/my%20notes/%C3%A9",
        "skill://pdf/odd",
    }


# Changes


@pytest.mark.parametrize("places", [None, ["pdf/new"], ["pdf"]])
def test_an_empty_folder_that_appears_or_disappears_is_a_new_snapshot(
    root: Path, patient_clock: None, places: list[str] | None
) -> None:
    write_skill(root / "pdf")
    write_skill(root / "xls")
    make_folders(root, "xls/old")
    skills = tree(root)
    first = skills.scan().snapshot
    make_folders(root, "pdf/new")

    second = skills.scan(places).snapshot
    same = skills.scan(places).snapshot
    (root / "pdf" / "new").rmdir()
    third = skills.scan(places).snapshot

    assert first.folders == third.folders == {"skill://xls/old"}
    assert second.folders == {"skill://xls/old", "skill://pdf/new"}
    assert same is second
    assert [first.revision, second.revision, third.revision] == [1, 2, 3]
    assert not second.changes_since(first)
    assert second.entries == first.entries == third.entries


def test_a_folder_that_gets_its_first_file_is_no_longer_empty(root: Path) -> None:
    write_skill(root / "pdf")
    make_folders(root, "pdf/a/b")
    skills = tree(root)
    before = skills.scan().snapshot
    write_files(root, {"pdf/a/c.md": "x"})

    after = skills.scan(["pdf/a/c.md"]).snapshot

    assert before.folders == {"skill://pdf/a", "skill://pdf/a/b"}
    assert after.folders == {"skill://pdf/a/b"}


def test_a_skill_that_goes_takes_its_empty_folders_along(root: Path) -> None:
    write_skill(root / "pdf")
    make_folders(root, "pdf/empty")
    skills = tree(root)
    skills.scan()
    delete(root / "pdf")

    assert skills.scan(["pdf"]).snapshot.folders == frozenset()


def test_a_folder_is_not_called_empty_while_its_skill_is_served_with_files_in_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(root / "pdf", {"a/b.md": "x"})
    skills = tree(root)
    first = skills.scan().snapshot
    delete(root / "pdf" / "a" / "b.md")
    with monkeypatch.context() as patch:
        # A skill that is being written keeps what it had.
        patch.setattr(FolderReader, "read", _gone)
        second = skills.scan().snapshot

    third = skills.scan().snapshot

    assert second.entries == first.entries
    assert second.folders == frozenset()
    assert third.folders == {"skill://pdf/a"}


def _gone(*_arguments: object) -> None:
    raise FileNotFoundError(2, "gone")


def test_a_restart_with_an_index_finds_empty_folders_made_meanwhile(
    root: Path, tmp_path: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf")
    make_folders(root, "pdf/one")
    index = ScanIndex.for_root(str(root), tmp_path / "cache")
    SkillTree(str(root), MountPoint("skill"), index=index).scan()
    (root / "pdf" / "one").rmdir()
    make_folders(root, "pdf/two")

    snapshot = SkillTree(str(root), MountPoint("skill"), index=index).scan().snapshot

    assert snapshot.folders == {"skill://pdf/two"}
    assert snapshot == scan(root)


async def test_a_watched_folder_tells_of_empty_folders_that_come_and_go(root: Path) -> None:
    write_skill(root / "pdf")

    async with DirectorySource(root) as source, CombinedSource([source, MemorySource()]) as catalog:
        with anyio.fail_after(20):
            snapshot = catalog.snapshot
            await anyio.to_thread.run_sync(make_folders, root, "pdf/empty")
            while not snapshot.folders:
                snapshot = await catalog.wait_for_change(snapshot.revision)
            assert snapshot.folders == {"skill://pdf/empty"}
            await anyio.to_thread.run_sync((root / "pdf" / "empty").rmdir)
            while snapshot.folders:
                snapshot = await catalog.wait_for_change(snapshot.revision)
