"""Scanning a skill's folder: what is served, what sets the skill aside, and nothing that is not its own."""

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from folders import (
    held_back,
    manifest_at,
    manifest_of,
    scan,
    skill_md,
    uris,
    write_files,
    write_skill,
)
from skillwire.core.manifest import MAX_FILES, MAX_TOTAL_SIZE, ManifestFile
from skillwire.sources.directory.scan import Scanner, SkillRecord
from skillwire.sources.directory.walk import FoundSkill, Walk

Result = TypeVar("Result")

SECRET = b"outside the skill"


@pytest.fixture
def skill(root: Path) -> Path:
    """A skill, with another one beside it that nothing may take away."""
    write_skill(root / "good")
    return write_skill(root / "pdf", {"real.md": "real\n", "sub/deep.md": "deep\n"})


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    write_files(tmp_path, {"outside/secret.md": SECRET})
    return tmp_path / "outside"


def assert_set_aside(root: Path, code: str, file: str) -> None:
    """The skill `pdf` is not published, because of one finding about `file`; its neighbour is."""
    snapshot = scan(root)
    assert uris(snapshot) == ["skill://good/SKILL.md"]
    assert [
        (report.place, report.uri, [(finding.code, finding.file) for finding in report.findings])
        for report in snapshot.reports
    ] == [("pdf", None, [(code, file)])]


def in_a_thread(work: Callable[[], Result]) -> Result:
    """Do something that must not block; if it does, the test fails and goes on without it."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(timeout=20)


# Links


def test_a_link_to_a_file_of_the_same_skill_is_served_as_that_file(root: Path, skill: Path) -> None:
    (skill / "alias.md").symlink_to("real.md")
    (skill / "sub" / "up.md").symlink_to("../real.md")
    (skill / "absolute.md").symlink_to(skill / "sub" / "deep.md")
    (skill / "twice.md").symlink_to("alias.md")

    snapshot = scan(root)

    assert snapshot.reports == ()
    manifest = manifest_at(snapshot, "skill://pdf/SKILL.md")
    assert manifest == manifest_of(skill, "skill://pdf/SKILL.md")
    assert manifest.find("skill://pdf/twice.md") == ManifestFile.of("skill://pdf/twice.md", b"real\n")


def test_a_link_through_a_linked_folder_inside_the_skill_is_judged_by_where_it_ends(
    root: Path, skill: Path, outside: Path
) -> None:
    (outside / "back").symlink_to(skill)
    (skill / "round-trip.md").symlink_to(outside / "back" / "real.md")

    manifest = manifest_at(scan(root), "skill://pdf/SKILL.md")

    assert manifest.find("skill://pdf/round-trip.md") == ManifestFile.of(
        "skill://pdf/round-trip.md", b"real\n"
    )


def test_skill_md_itself_may_be_a_link_inside_the_skill(root: Path) -> None:
    write_files(root, {"pdf/docs/main.md": skill_md("pdf")})
    (root / "pdf" / "SKILL.md").symlink_to("docs/main.md")

    snapshot = scan(root)

    assert manifest_at(snapshot, "skill://pdf/SKILL.md") == manifest_of(root / "pdf", "skill://pdf/SKILL.md")


@pytest.mark.requirement("READ-10")
@pytest.mark.parametrize(
    "target",
    [
        "../../outside/secret.md",
        "/etc/hostname",
        "/dev/null",
        "../good/SKILL.md",
        "../pdf-2/real.md",
        "nowhere.md",
        "sub",
        ".",
        "..",
        "loop.md",
        ".hidden.md",
        ".git/config",
    ],
)
def test_a_link_to_anything_but_a_file_of_the_skill_sets_it_aside(
    root: Path, skill: Path, outside: Path, target: str
) -> None:
    write_files(root, {"pdf/.hidden.md": "x", "pdf/.git/config": "x", "pdf-2/real.md": "x"})
    (skill / "loop.md").symlink_to(target)

    assert_set_aside(root, "link", "loop.md")


def test_skill_md_as_a_link_out_of_the_skill_sets_it_aside(root: Path, skill: Path, outside: Path) -> None:
    (outside / "stolen.md").write_bytes(skill_md("pdf"))
    (skill / "SKILL.md").unlink()
    (skill / "SKILL.md").symlink_to(outside / "stolen.md")

    assert_set_aside(root, "link", "SKILL.md")


def test_a_link_in_a_nested_skill_is_judged_for_each_skill_around_it(root: Path) -> None:
    write_skill(root / "outer", {"shared.md": "x"})
    inner = write_skill(root / "outer" / "inner")
    (inner / "alias.md").symlink_to("../shared.md")

    snapshot = scan(root)

    assert held_back(snapshot) == {"outer/inner": ["link"]}
    assert manifest_at(snapshot, "skill://outer/SKILL.md") == manifest_of(
        root / "outer", "skill://outer/SKILL.md"
    )


# Things that are no files


def test_a_fifo_sets_the_skill_aside(root: Path, skill: Path) -> None:
    os.mkfifo(skill / "pipe")

    in_a_thread(lambda: assert_set_aside(root, "special-file", "pipe"))


def test_a_fifo_named_skill_md_blocks_nobody(root: Path, skill: Path) -> None:
    (skill / "SKILL.md").unlink()
    os.mkfifo(skill / "SKILL.md")

    in_a_thread(lambda: assert_set_aside(root, "special-file", "SKILL.md"))


def test_a_socket_sets_the_skill_aside(root: Path, skill: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(skill)  # The path of a socket may not be long.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")

    assert_set_aside(root, "special-file", "socket")


def test_an_oddity_in_a_nested_skill_sets_aside_every_skill_it_is_part_of(root: Path) -> None:
    write_skill(root / "outer")
    write_skill(root / "outer" / "bad")
    write_skill(root / "outer" / "fine")
    os.mkfifo(root / "outer" / "bad" / "pipe")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://outer/fine/SKILL.md"]
    assert held_back(snapshot) == {"outer": ["special-file"], "outer/bad": ["special-file"]}


# Limits


@pytest.mark.requirement("LIM-01", "LIM-03")
@pytest.mark.parametrize(
    ("files", "size", "code"),
    [
        (MAX_FILES, MAX_TOTAL_SIZE, None),
        (MAX_FILES + 1, MAX_TOTAL_SIZE, "too-many-files"),
        (MAX_FILES, MAX_TOTAL_SIZE + 1, "too-large"),
    ],
)
def test_a_skill_may_reach_both_limits_and_exceed_neither(
    root: Path, files: int, size: int, code: str | None
) -> None:
    write_skill(root / "good")
    write_skill(root / "pdf", {f"f/{number}": "" for number in range(files - 1)})
    os.truncate(root / "pdf" / "f" / "0", size - len(skill_md("pdf")))

    if code:
        assert_set_aside(root, code, "")
    else:
        assert manifest_at(scan(root), "skill://pdf/SKILL.md") == manifest_of(
            root / "pdf", "skill://pdf/SKILL.md"
        )


def test_a_sparse_file_of_ten_gigabytes_is_refused_without_reading_it(
    root: Path, skill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (skill / "huge.bin").write_bytes(b"")
    os.truncate(skill / "huge.bin", 10 * 1024**3)
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, at_most(size, 1024)))  # type: ignore[misc]

    in_a_thread(lambda: assert_set_aside(root, "too-large", ""))


def at_most(size: int, limit: int) -> int:
    assert size <= limit, f"{size} bytes are to be read"
    return size


def test_a_skill_file_that_is_huge_is_refused_without_reading_it(root: Path, skill: Path) -> None:
    os.truncate(skill / "SKILL.md", 10 * 1024**3)

    in_a_thread(lambda: assert_set_aside(root, "too-large", ""))


# Names


@pytest.mark.parametrize(
    "name",
    [b"caf\xe9.md", b"\xff\xfe", b"back\\slash.md", b"new\nline.md", b"escape\x1b[0m", b"%2e%2e", b"%252f"],
)
def test_a_name_that_cannot_be_in_a_uri_sets_the_skill_aside(root: Path, skill: Path, name: bytes) -> None:
    write_files(skill, {os.fsdecode(name): "x"})

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://good/SKILL.md"]
    assert held_back(snapshot) == {"pdf": ["unusable-path"]}
    snapshot.reports[0].findings[0].file.encode("utf-8")


def test_a_folder_name_that_is_not_utf8_sets_aside_the_skills_below_it(root: Path, skill: Path) -> None:
    shutil.copytree(skill, root / os.fsdecode(b"caf\xe9") / "xls")

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://good/SKILL.md", "skill://pdf/SKILL.md"]
    assert list(held_back(snapshot).values()) == [["name-differs-from-folder", "unusable-path"]]


@pytest.mark.parametrize(
    ("first", "second"),
    [("skill.md", "SKILL.md"), ("sub/A.md", "SUB/a.md"), ("straße.md", "STRASSE.md")],
)
def test_two_paths_that_are_one_on_other_systems_set_the_skill_aside(
    root: Path, skill: Path, first: str, second: str
) -> None:
    write_files(skill, {name: "x" for name in (first, second) if name != "SKILL.md"})

    snapshot = scan(root)

    assert uris(snapshot) == ["skill://good/SKILL.md"]
    assert held_back(snapshot) == {"pdf": ["path-twins"]}


# What changes while it is looked at


def found(root: Path, directory: str = "pdf") -> FoundSkill:
    return next(skill for skill in Walk(str(root)).run().skills if skill.directory == directory)


def take(root: Path, walked: FoundSkill, *, follow_links: bool = False) -> SkillRecord:
    with Scanner(str(root), follow_links=follow_links) as scanner:
        return in_a_thread(lambda: scanner.record(walked, None))


def delete_file(skill: Path, outside: Path) -> None:
    (skill / "real.md").unlink()


def delete_skill_file(skill: Path, outside: Path) -> None:
    (skill / "SKILL.md").unlink()


def delete_skill(skill: Path, outside: Path) -> None:
    shutil.rmtree(skill)


def append(skill: Path, outside: Path) -> None:
    with (skill / "real.md").open("ab") as file:
        file.write(b"more")


def truncate(skill: Path, outside: Path) -> None:
    os.truncate(skill / "real.md", 1)


def rewrite_with_the_same_size(skill: Path, outside: Path) -> None:
    (skill / "other.md.tmp").write_bytes(b"REAL\n")
    (skill / "other.md.tmp").replace(skill / "real.md")


def replace_by_a_fifo(skill: Path, outside: Path) -> None:
    (skill / "real.md").unlink()
    os.mkfifo(skill / "real.md")


def replace_by_a_folder(skill: Path, outside: Path) -> None:
    (skill / "real.md").unlink()
    (skill / "real.md").mkdir()


def replace_by_a_link(skill: Path, outside: Path) -> None:
    (skill / "real.md").unlink()
    (skill / "real.md").symlink_to(outside / "secret.md")


def replace_a_folder_by_a_link(skill: Path, outside: Path) -> None:
    shutil.rmtree(skill / "sub")
    write_files(outside, {"deep.md": SECRET})
    (skill / "sub").symlink_to(outside)


def replace_the_skill_by_a_link(skill: Path, outside: Path) -> None:
    skill.rename(outside / "pdf")
    skill.symlink_to(outside / "pdf")


CHANGES = [
    delete_file,
    delete_skill_file,
    delete_skill,
    append,
    truncate,
    rewrite_with_the_same_size,
    replace_by_a_fifo,
    replace_by_a_folder,
    replace_by_a_link,
    replace_a_folder_by_a_link,
]


@pytest.mark.requirement("SDK-07")
@pytest.mark.requirement("READ-10")
@pytest.mark.parametrize(
    ("change", "follow_links"),
    [(change, follow) for change in CHANGES for follow in (False, True)]
    + [(replace_the_skill_by_a_link, False)],
)
def test_a_skill_that_changes_between_walk_and_read_is_taken_later(
    root: Path, skill: Path, outside: Path, change: Callable[[Path, Path], None], follow_links: bool
) -> None:
    walked = found(root)
    change(skill, outside)

    record = take(root, walked, follow_links=follow_links)

    assert (record.settled, record.frontmatter) == (False, None)
    assert ManifestFile.of("", SECRET).digest not in record.digests


@pytest.mark.parametrize("follow_links", [False, True])
def test_a_root_that_vanishes_between_walk_and_read_is_no_crash(
    root: Path, skill: Path, follow_links: bool
) -> None:
    walked = found(root)
    shutil.rmtree(root)

    record = take(root, walked, follow_links=follow_links)

    assert (record.settled, record.frontmatter) == (False, None)


def test_a_linked_skill_that_vanishes_closes_no_descriptor_twice(root: Path, skill: Path) -> None:
    before, after = found(root, "good"), found(root, "pdf")

    with Scanner(str(root), follow_links=True) as scanner:
        scanner.record(before, None)
        shutil.rmtree(skill)
        record = scanner.record(after, None)

    assert (record.settled, record.frontmatter) == (False, None)


def test_a_link_inside_the_skill_that_is_turned_outside_before_the_read_is_not_followed(
    root: Path, skill: Path, outside: Path
) -> None:
    (skill / "sub" / "alias.md").symlink_to("deep.md")
    walked = found(root)
    replace_a_folder_by_a_link(skill, outside)

    record = take(root, walked)

    assert (record.settled, record.frontmatter) == (False, None)


def test_a_new_skill_that_is_still_being_written_is_reported_as_such(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(root / "pdf")
    finished = Walk.finished

    def found_and_changed(walk: Walk, start: str = "") -> Iterator[FoundSkill]:
        for skill in finished(walk, start):
            (root / "pdf" / "SKILL.md").write_bytes(skill_md("pdf", body="More.\n"))
            yield skill

    monkeypatch.setattr(Walk, "finished", found_and_changed)

    assert held_back(scan(root)) == {"pdf": ["unsettled"]}


def test_no_descriptor_stays_open(root: Path, skill: Path) -> None:
    (skill / "alias.md").symlink_to("real.md")
    os.mkfifo(root / "good" / "pipe")
    before = len(list(Path("/proc/self/fd").iterdir()))

    for follow_links in (False, True):
        scan(root, follow_links=follow_links)

    assert len(list(Path("/proc/self/fd").iterdir())) == before
