"""Folders of skills on disk: written whole, compared by content, and removed only as they were written."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from approving import skill_id
from commands import names_in
from folders import write_files
from skillwire.bridge.folders import (
    FolderChangedError,
    FolderChanges,
    OccupiedPlaceError,
    build,
    content_of,
    opened_target,
    put,
    read_file,
    replace,
    require_writable_paths,
    settle,
    take,
)
from skillwire.core import digest_of
from skillwire.host import FolderChange, SyncedFolder, SyncedFolders, SyncRecord, UnsafePlaceError
from skillwire.host.model import UnsafePathsError

NAME, NEW = "team--refunds", ".skillwire-0000000000000000.tmp"
OLD_FILES = {"SKILL.md": b"old\n", "scripts/check.sh": b"echo\n"}
NEW_FILES = {"SKILL.md": b"new\n", "references/deep/policy.md": b"30 days\n"}


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: digest_of(content) for path, content in files.items()}


OLD, AFTER = digests(OLD_FILES), digests(NEW_FILES)


@pytest.fixture
def above(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def written(folder: Path, name: str, files: Mapping[str, bytes]) -> Path:
    write_files(folder / name, dict(files))
    return folder / name


def test_a_folder_is_built_beside_its_place_and_renamed_into_it(above: int, tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        build(above, NEW, NEW_FILES)
    finally:
        os.umask(umask)
    put(above, NEW, NAME)

    found = content_of(above, NAME)
    assert found is not None and found.matches(AFTER)
    assert names_in(tmp_path) == [NAME]
    assert (tmp_path / NAME / "SKILL.md").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / NAME / "references").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file", "link"])
def test_nothing_that_is_in_a_place_is_written_over(above: int, tmp_path: Path, kind: str) -> None:
    place = tmp_path / NAME
    match kind:
        case "file":
            place.write_text("mine")
        case "link":
            place.symlink_to("nowhere")
        case _:
            written(tmp_path, NAME, {"mine.md": b"mine"} if kind == "folder" else {})
            place.mkdir(exist_ok=True)
    build(above, NEW, NEW_FILES)
    before = place.lstat()

    with pytest.raises(OccupiedPlaceError):
        put(above, NEW, NAME)

    assert place.lstat().st_ino == before.st_ino


def test_what_another_program_changed_gets_its_place_back(above: int, tmp_path: Path) -> None:
    place = written(tmp_path, NAME, {**OLD_FILES, "mine.md": b"mine"})
    build(above, NEW, NEW_FILES)

    with pytest.raises(FolderChangedError):
        replace(above, NEW, NAME, OLD)
    settle(above, NEW, NAME, OLD, AFTER)
    with pytest.raises(FolderChangedError):
        take(above, NAME, NEW, OLD)
    settle(above, NEW, NAME, OLD, None)

    assert (place / "mine.md").read_bytes() == b"mine"
    assert names_in(tmp_path) == [NAME]


STATES = {
    "a write that built half": (None, {"SKILL.md": b"ne"}, None, None, AFTER, None),
    "a write that was renamed": (NEW_FILES, None, None, None, AFTER, AFTER),
    "a write that lost its place": ({"mine.md": b"mine"}, NEW_FILES, None, None, AFTER, None),
    "an exchange that did not begin": (OLD_FILES, NEW_FILES, None, OLD, AFTER, OLD),
    "an exchange that is done": (NEW_FILES, OLD_FILES, None, OLD, AFTER, AFTER),
    "an exchange whose old folder is half removed": (
        NEW_FILES,
        {"SKILL.md": b"old\n"},
        None,
        OLD,
        AFTER,
        AFTER,
    ),
    "an exchange of a changed folder": (NEW_FILES, {"SKILL.md": b"mine\n"}, None, OLD, AFTER, OLD),
    "an exchange in two steps after the first": (None, NEW_FILES, OLD_FILES, OLD, AFTER, OLD),
    "an exchange in two steps after the second": (NEW_FILES, None, OLD_FILES, OLD, AFTER, AFTER),
    "a removal that did not begin": (OLD_FILES, None, None, OLD, None, OLD),
    "a removal that is half done": (None, {"scripts/check.sh": b"echo\n"}, None, OLD, None, None),
    "a removal of a changed folder": (None, {"SKILL.md": b"mine\n"}, None, OLD, None, OLD),
}


@pytest.mark.parametrize("state", STATES)
def test_whatever_was_interrupted_is_finished_or_undone_and_nothing_temporary_is_left(
    above: int, tmp_path: Path, state: str
) -> None:
    here, temporary, aside, before, after, expected = STATES[state]
    for name, files in ((NAME, here), (NEW, temporary), (f"{NEW}-before", aside)):
        if files is not None:
            written(tmp_path, name, files)

    left = settle(above, NEW, NAME, before, after)

    assert left is expected
    assert not list(tmp_path.glob(".skillwire-*"))
    changed = "changed" in state
    found = content_of(above, NAME)
    if changed:
        assert (tmp_path / NAME / "SKILL.md").read_bytes() == b"mine\n"
    elif expected is not None:
        assert found is not None and found.matches(expected)


def test_what_is_neither_a_plain_file_nor_a_folder_of_files_is_named(above: int, tmp_path: Path) -> None:
    place = written(tmp_path, NAME, OLD_FILES)
    (place / "link.md").symlink_to("/etc/passwd")
    (place / "empty").mkdir()
    (place / "scripts" / "check.sh").chmod(0o755)
    os.mkfifo(place / "pipe")

    found = content_of(above, NAME)

    assert found is not None
    assert sorted(found.odd) == ["empty", "link.md", "pipe", "scripts/check.sh"]
    assert found.files == OLD
    assert not found.matches(OLD)
    assert read_file(above, NAME, "link.md", 100) is None
    assert read_file(above, NAME, "pipe", 100) is None
    assert read_file(above, NAME, "SKILL.md", 3) is None
    assert read_file(above, NAME, "SKILL.md", 4) == b"old\n"


def test_a_folder_that_somebody_filled_is_read_only_up_to_a_limit(above: int, tmp_path: Path) -> None:
    place = written(tmp_path, NAME, OLD_FILES)
    for number in range(2_100):
        (place / f"{number}.md").touch()

    found = content_of(above, NAME)

    assert found is not None and found.odd
    assert len(found.files) < 2_100


def test_a_link_in_place_of_a_folder_is_not_followed(above: int, tmp_path: Path) -> None:
    written(tmp_path, "outside", OLD_FILES)
    (tmp_path / NAME).symlink_to("outside")

    found = content_of(above, NAME)

    assert found is not None and not found.files
    assert not found.matches({})


@pytest.mark.parametrize("link", [".agents", ".agents/skills"])
def test_a_target_inside_the_project_has_no_link_in_its_path(tmp_path: Path, link: str) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside"
    (project / link).parent.mkdir(parents=True)
    outside.mkdir()
    (project / link).symlink_to(outside)

    with pytest.raises(UnsafePlaceError), opened_target(project / ".agents" / "skills", project, make=True):
        pass

    assert not list(outside.iterdir())


def test_a_target_is_made_only_when_it_is_written_to(tmp_path: Path) -> None:
    target = tmp_path / "project" / ".agents" / "skills"
    target.parents[1].mkdir()

    with opened_target(target, target.parents[1]) as missing:
        assert missing is None
    with opened_target(target, target.parents[1], make=True) as made:
        assert made is not None

    assert target.is_dir()


@pytest.mark.parametrize(
    "paths",
    [
        ["SKILL.md", "a/B.md", "A/b.md"],
        ["SKILL.md", "notes", "notes/one.md"],
        ["SKILL.md", "aux.txt"],
        ["SKILL.md", "\u00e9.md", "e\u0301.md"],
        ["SKILL.md", "../outside.md"],
        ["SKILL.md", "a\\b.md"],
        ["SKILL.md", "/etc/passwd"],
    ],
)
def test_files_that_cannot_exist_together_everywhere_are_refused(paths: list[str]) -> None:
    with pytest.raises(UnsafePathsError):
        require_writable_paths(paths)


def test_a_change_that_was_interrupted_is_understood_without_writing(tmp_path: Path) -> None:
    store, target = SyncedFolders(tmp_path / "state"), tmp_path / "skills"
    written(target, NAME, NEW_FILES)
    written(target, NEW, OLD_FILES)
    before, after = (
        SyncedFolder(str(target), NAME, str(tmp_path), skill_id(), digest_of(b""), files)
        for files in (OLD, AFTER)
    )
    change = FolderChange(str(target), NAME, NEW, before, after)
    store.change(lambda _: SyncRecord(folders={before.key: before}).beginning(change))
    changes = FolderChanges(store)

    expected = changes.expected()

    assert names_in(target) == [NEW, NAME]
    assert expected.folders == {after.key: after} and not expected.changes
    assert changes.recover() == expected
    assert names_in(target) == [NAME]
