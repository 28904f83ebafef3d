"""A folder that is one skill, served at an exact path."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from folders import delete, held_back, manifest_of, skill_md, uris, write_files, write_skill
from skillwire.core.errors import InvalidSkillError, InvalidUriError, SourceError
from skillwire.core.uri import SkillUri
from skillwire.sources import DirectorySource

REFUNDS = SkillUri("skill://acme/billing/refunds/SKILL.md")


def one(
    folder: Path, *, at: str = "acme/billing/refunds", prefix: str = "", scheme: str = "skill"
) -> DirectorySource:
    return DirectorySource(folder, at=at, prefix=prefix, scheme=scheme, watch=False)


async def test_the_folder_is_served_at_the_path_whatever_its_own_name_is(root: Path) -> None:
    write_skill(root, {"a.md": "x"}, name="refunds")

    async with one(root) as source:
        snapshot = source.snapshot

        assert uris(snapshot) == [REFUNDS.text]
        assert snapshot.reports == ()
        assert snapshot.get(REFUNDS).manifest == manifest_of(root, REFUNDS.text)
        assert await source.read_file("skill://acme/billing/refunds/a.md") == b"x"
        assert source.place_of(REFUNDS) == str(root)


async def test_skills_inside_it_and_empty_folders_come_below_the_path(root: Path) -> None:
    write_skill(root, name="refunds")
    write_skill(root / "parts" / "inner", {"b.md": "y"})
    (root / "empty").mkdir()

    async with one(root) as source:
        assert uris(source.snapshot) == [REFUNDS.text, "skill://acme/billing/refunds/parts/inner/SKILL.md"]
        assert source.snapshot.folders == {"skill://acme/billing/refunds/empty"}
        assert await source.read_file("skill://acme/billing/refunds/parts/inner/b.md") == b"y"


@pytest.mark.parametrize(
    ("at", "prefix", "scheme", "uri"),
    [
        ("refunds", "", "skill", "skill://refunds/SKILL.md"),
        ("/acme/refunds/", "", "skill", "skill://acme/refunds/SKILL.md"),
        ("Acme/refunds", "", "skill", "skill://acme/refunds/SKILL.md"),
        ("refunds", "corp", "docs", "docs://corp/refunds/SKILL.md"),
        ("acme/refunds", "corp/", "skill", "skill://corp/acme/refunds/SKILL.md"),
        ("my team/refunds", "", "skill", "skill://my%20team/refunds/SKILL.md"),
    ],
)
async def test_prefix_and_scheme_go_before_the_path(
    root: Path, at: str, prefix: str, scheme: str, uri: str
) -> None:
    write_skill(root, name="refunds")

    async with one(root, at=at, prefix=prefix, scheme=scheme) as source:
        assert uris(source.snapshot) == [uri]


@pytest.mark.parametrize("at", ["", "/", "a//b", "a/../b", "a/.", "back\\slash", "a/\0"])
def test_a_path_that_cannot_be_part_of_a_uri_is_refused_at_once(root: Path, at: str) -> None:
    with pytest.raises(InvalidUriError):
        one(root, at=at)


# What is no such skill


@pytest.mark.requirement("SDK-01")
@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"SKILL.md": skill_md("other")}, ["'refunds'", "'other'"]),
        ({}, ["no SKILL.md"]),
        ({"skill.md": skill_md("refunds")}, ["'skill.md'"]),
        ({"SKILL.md": b"no frontmatter"}, ["SKILL.md: "]),
        ({"SKILL.md": b"---\nname: refunds\n---\n"}, ["`description` is missing"]),
        ({"SKILL.md": skill_md("refunds"), "con\\trol": b""}, ["contains a separator"]),
        ({"deeper/SKILL.md": skill_md("deeper")}, ["no SKILL.md"]),
    ],
)
async def test_a_folder_that_is_not_that_skill_does_not_open(
    root: Path, files: dict[str, bytes], words: list[str]
) -> None:
    write_files(root, files)
    source = one(root)

    with pytest.raises(InvalidSkillError) as caught:
        async with source:
            raise AssertionError("it must not open")

    assert REFUNDS.text in str(caught.value)
    assert all(word in str(caught.value) for word in words)
    assert str(root) not in str(caught.value)
    assert str(root.parent) not in str(caught.value)
    with pytest.raises(SourceError):
        _ = source.snapshot


async def test_all_errors_are_told_at_once(root: Path) -> None:
    write_files(root, {"SKILL.md": "---\nname: Not OK\ncompatibility: ''\n---\n"})

    with pytest.raises(InvalidSkillError) as caught:
        async with one(root):
            raise AssertionError("it must not open")

    for word in ("`name`", "`description`", "`compatibility`"):
        assert word in str(caught.value)
    assert caught.value.fix


async def test_a_folder_that_is_not_there_is_a_source_error(root: Path) -> None:
    with pytest.raises(SourceError):
        async with one(root / "missing"):
            raise AssertionError("it must not open")


async def test_a_source_that_did_not_open_can_be_opened_when_the_skill_is_right(root: Path) -> None:
    write_skill(root, name="other")
    source = one(root)
    with pytest.raises(InvalidSkillError):
        await source.__aenter__()
    write_skill(root, name="refunds")

    async with source:
        assert uris(source.snapshot) == [REFUNDS.text]


async def test_a_failed_second_opening_leaves_the_snapshot_of_the_first(root: Path) -> None:
    write_skill(root, name="refunds")
    source = one(root)
    async with source:
        first = source.snapshot
    write_skill(root, name="other")
    with pytest.raises(InvalidSkillError):
        await source.__aenter__()

    assert source.snapshot is first
    write_skill(root, {"a.md": "x"}, name="refunds")
    async with source:
        assert source.snapshot.revision > first.revision


# Later


def give_it_another_name(root: Path) -> None:
    write_skill(root, name="other")


def break_it(root: Path) -> None:
    write_files(root, {"SKILL.md": "broken"})


def delete_it(root: Path) -> None:
    delete(root / "SKILL.md")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (give_it_another_name, "uri-name-mismatch"),
        (break_it, "frontmatter-missing"),
        (delete_it, "skill-file-missing"),
    ],
)
async def test_what_breaks_later_is_set_aside_with_a_report_and_comes_back(
    root: Path, change: Callable[[Path], object], code: str
) -> None:
    write_skill(root, name="refunds")
    write_skill(root / "inner")
    inner = "skill://acme/billing/refunds/inner/SKILL.md"

    async with one(root) as source:
        change(root)
        broken = await source.refresh()
        write_skill(root, name="refunds")
        mended = await source.refresh()

    # What lies inside goes on under its own URI, as in any broken skill.
    assert uris(broken) == [inner]
    assert held_back(broken) == {"": [code]}
    assert uris(mended) == [REFUNDS.text, inner]
    assert mended.reports == ()


async def test_a_watched_skill_that_breaks_is_set_aside_while_it_is_open(root: Path) -> None:
    write_skill(root, name="refunds")

    async with DirectorySource(root, at="acme/billing/refunds") as source:
        with anyio.fail_after(20):
            snapshot = source.snapshot
            await anyio.to_thread.run_sync(write_files, root, {"SKILL.md": "broken"})
            while snapshot.entries:
                snapshot = await source.wait_for_change(snapshot.revision)

    assert held_back(snapshot) == {"": ["frontmatter-missing"]}


async def test_without_a_path_a_skill_at_the_root_is_still_served_under_its_name(root: Path) -> None:
    write_skill(root, name="refunds")

    async with DirectorySource(root, watch=False) as source:
        assert uris(source.snapshot) == ["skill://refunds/SKILL.md"]
