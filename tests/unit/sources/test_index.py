"""The index: a restart reads nothing that did not change, and an index that is not right changes nothing."""

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from folders import (
    NotedReads,
    held_back,
    manifest_at,
    manifest_of,
    scan,
    skill_md,
    uris,
    write_files,
    write_skill,
)
from skillwire.sources.directory import scan as index
from skillwire.sources.directory.publish import MountPoint
from skillwire.sources.directory.scan import ScanIndex
from skillwire.sources.directory.tree import SkillTree
from skillwire.sources.snapshot import Snapshot


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def start(root: Path, cache: Path) -> Snapshot:
    """Scan as a new process would, with what the index kept."""
    kept = ScanIndex.for_root(str(root), cache)
    return SkillTree(str(root), MountPoint("skill"), index=kept).scan().snapshot


def the_index(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


# What it saves


def test_a_restart_reads_nothing_when_nothing_changed(
    root: Path, cache: Path, patient_clock: None, reads: NotedReads
) -> None:
    write_skill(root / "pdf", {"a/b.md": "x"})
    write_skill(root / "pdf" / "inner")
    (root / "pdf" / "link.md").symlink_to("a/b.md")
    write_files(root, {"broken/SKILL.md": "x"})
    first = start(root, cache)

    with reads() as noted:
        second = start(root, cache)

    assert noted == []
    assert second == first == scan(root)


def test_a_restart_reads_only_what_changed(
    root: Path, cache: Path, patient_clock: None, reads: NotedReads
) -> None:
    write_skill(root / "pdf", {"a.md": "1", "b.md": "1"})
    write_skill(root / "xls", {"a.md": "1"})
    start(root, cache)
    write_files(root, {"pdf/b.md": "2"})
    write_skill(root / "new")

    with reads() as noted:
        second = start(root, cache)

    assert sorted(noted) == ["new/SKILL.md", "pdf/SKILL.md", "pdf/b.md"]
    assert second == scan(root)


def test_an_edit_that_keeps_size_and_times_is_noticed_after_a_restart(
    root: Path, cache: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf", {"a.md": "one"})
    before = (root / "pdf" / "a.md").stat()
    start(root, cache)
    write_files(root, {"pdf/a.md": "two"})
    os.utime(root / "pdf" / "a.md", ns=(before.st_atime_ns, before.st_mtime_ns))

    second = start(root, cache)

    assert manifest_at(second, "skill://pdf/SKILL.md") == manifest_of(root / "pdf", "skill://pdf/SKILL.md")


def test_files_written_a_moment_ago_are_not_trusted_after_a_restart(
    root: Path, cache: Path, reads: NotedReads
) -> None:
    write_skill(root / "pdf")
    start(root, cache)

    with reads() as noted:
        start(root, cache)

    assert noted == ["pdf/SKILL.md"]


def test_the_index_says_nothing_of_where_the_folder_is_mounted(
    root: Path, cache: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf")
    start(root, cache)
    kept = ScanIndex.for_root(str(root), cache)

    snapshot = SkillTree(str(root), MountPoint("docs", "acme"), index=kept).scan().snapshot

    assert uris(snapshot) == ["docs://acme/pdf/SKILL.md"]


def test_two_roots_keep_an_index_each(root: Path, cache: Path, patient_clock: None) -> None:
    write_skill(root / "a" / "pdf")
    write_skill(root / "b" / "pdf", {"more.md": "x"})
    start(root / "a", cache)
    start(root / "b", cache)

    assert len(list(cache.iterdir())) == 2
    assert start(root / "a", cache) == scan(root / "a")
    assert start(root / "b", cache) == scan(root / "b")


def test_without_a_place_of_its_own_the_index_lives_in_the_users_cache(root: Path, empty_home: Path) -> None:
    kept = ScanIndex.for_root(str(root))

    assert kept.path.parent == empty_home / ".cache" / "skillwire" / "scan"


def test_what_a_restart_finds_unchanged_is_not_written_again(
    root: Path, cache: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf")
    start(root, cache)
    before = the_index(cache).stat()

    start(root, cache)

    assert the_index(cache).stat() == before


def test_one_name_that_is_not_utf8_does_not_cost_the_others_their_place(
    root: Path, cache: Path, patient_clock: None, reads: NotedReads
) -> None:
    write_skill(root / "good")
    write_skill(root / "odd", {os.fsdecode(b"caf\xe9.md"): "x"})
    start(root, cache)

    with reads() as noted:
        second = start(root, cache)

    assert "good/SKILL.md" not in noted
    assert held_back(second) == {"odd": ["unusable-path"]}


@pytest.mark.parametrize(
    "value",
    [str(2**64 - 1), str(-(2**63)), "1e300", "0.1", "'\U0001f600'", "[true, null, {a: [1.0]}]", '"\\0"'],
)
def test_every_value_of_frontmatter_survives_a_restart(
    root: Path, cache: Path, patient_clock: None, reads: NotedReads, value: str
) -> None:
    write_files(root, {"pdf/SKILL.md": skill_md("pdf", extra=f"x-value: {value}\n")})
    first = start(root, cache)

    with reads() as noted:
        second = start(root, cache)

    assert noted == []
    assert second == first
    assert uris(second) == ["skill://pdf/SKILL.md"]


# An index that is not right


def damage(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        content = json.loads(path.read_bytes())
        change(content)
        path.write_text(json.dumps(content, separators=(",", ":")))

    return apply


def row(content: dict[str, Any]) -> list[Any]:
    return content["skills"][0]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "no JSON": lambda path: path.write_bytes(b"\x00\xff not json"),
    "another kind of JSON": lambda path: path.write_bytes(b"[1, 2]"),
    "deeply nested": lambda path: path.write_bytes(b"[" * 100_000),
    "another version": damage(lambda content: content.update(format=99)),
    "no version": damage(lambda content: content.pop("format")),
    "another root": damage(lambda content: content.update(root="/elsewhere")),
    "no skills": damage(lambda content: content.pop("skills")),
    "skills of another kind": damage(lambda content: content.update(skills={"a": 1})),
    "a row of another kind": damage(lambda content: content.update(skills=[7])),
    "a short row": damage(lambda content: row(content).pop()),
    "a long row": damage(lambda content: row(content).append(None)),
    "a folder of another kind": damage(lambda content: row(content).__setitem__(0, ["pdf"])),
    "a stamp cut short": damage(lambda content: row(content)[2].pop()),
    "a stamp of another kind": damage(lambda content: row(content).__setitem__(1, None)),
    "a digest missing": damage(lambda content: row(content)[4].pop()),
    "a digest of another kind": damage(lambda content: row(content)[4].__setitem__(0, 7)),
    "a digest that is none": damage(lambda content: row(content)[4].__setitem__(0, "sha256:xyz")),
    "another digest": damage(lambda content: row(content)[4].__setitem__(0, "sha256:" + "0" * 64)),
    "no digests": damage(lambda content: row(content).__setitem__(4, [])),
    "frontmatter of another kind": damage(lambda content: row(content).__setitem__(5, ["x"])),
    "findings of another kind": damage(lambda content: row(content).__setitem__(6, 7)),
    "a finding cut short": damage(lambda content: row(content).__setitem__(6, [["link"]])),
    "links of another kind": damage(lambda content: row(content).__setitem__(7, ["x"])),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_index_is_ignored(root: Path, cache: Path, patient_clock: None, kind: str) -> None:
    write_skill(root / "pdf", {"a.md": "x"})
    first = start(root, cache)
    DAMAGE[kind](the_index(cache))

    second = start(root, cache)

    assert (second.entries, second.reports) == (first.entries, first.reports)


def move_behind_a_link(path: Path) -> None:
    path.rename(path.parent.parent / "moved.json")
    path.symlink_to(path.parent.parent / "moved.json")


DISTRUSTED: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "others may write it": lambda path, _: path.chmod(0o602),
    "the group may write it": lambda path, _: path.chmod(0o660),
    "it belongs to another user": lambda _, patch: patch.setattr(os, "geteuid", lambda: os.getuid() + 1),
    "it is too large": lambda _, patch: patch.setattr(index, "MAX_INDEX_BYTES", 10),
    "it is a link": lambda path, _: move_behind_a_link(path),
}


@pytest.mark.parametrize("make", DISTRUSTED.values(), ids=DISTRUSTED.keys())
def test_an_index_that_cannot_be_trusted_is_ignored(
    root: Path,
    cache: Path,
    patient_clock: None,
    monkeypatch: pytest.MonkeyPatch,
    reads: NotedReads,
    make: Callable[[Path, pytest.MonkeyPatch], object],
) -> None:
    write_skill(root / "pdf")
    start(root, cache)
    make(the_index(cache), monkeypatch)

    with reads() as noted:
        start(root, cache)

    assert noted == ["pdf/SKILL.md"]


def test_one_changed_byte_in_the_index_is_noticed(root: Path, cache: Path, patient_clock: None) -> None:
    write_skill(root / "pdf", {"a.md": "x"})
    first = start(root, cache)
    path = the_index(cache)
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])

        assert start(root, cache) == first


def test_an_index_that_is_a_folder_is_ignored_and_leaves_nothing_open(root: Path, cache: Path) -> None:
    write_skill(root / "pdf")
    ScanIndex.for_root(str(root), cache).path.mkdir(parents=True)
    before = len(list(Path("/proc/self/fd").iterdir()))

    snapshot = start(root, cache)

    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert snapshot == scan(root)


def test_an_index_that_is_a_fifo_is_ignored_and_blocks_nobody(root: Path, cache: Path) -> None:
    write_skill(root / "pdf")
    path = ScanIndex.for_root(str(root), cache).path
    path.parent.mkdir()
    os.mkfifo(path)
    results: list[Snapshot] = []
    thread = threading.Thread(target=lambda: results.append(start(root, cache)), daemon=True)

    thread.start()
    thread.join(5)

    blocked = thread.is_alive()
    if blocked:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # Let the thread go.
        thread.join(5)
    assert not blocked
    assert results == [scan(root)]


# Writing


def test_the_index_is_private_and_leaves_no_other_file_behind(
    root: Path, cache: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf")

    start(root, cache)

    assert stat.S_IMODE(the_index(cache).stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_cache_that_cannot_be_made_costs_nothing(root: Path, tmp_path: Path) -> None:
    write_skill(root / "pdf")
    write_files(tmp_path, {"cache": "a file where a folder should be"})

    snapshot = start(root, tmp_path / "cache")

    assert snapshot == scan(root)


def test_an_index_that_cannot_be_replaced_leaves_no_other_file_behind(
    root: Path, cache: Path, patient_clock: None
) -> None:
    write_skill(root / "pdf")
    path = ScanIndex.for_root(str(root), cache).path
    write_files(path, {"in/the/way": "x"})

    snapshot = start(root, cache)

    assert snapshot == scan(root)
    assert list(cache.iterdir()) == [path]


def test_a_write_that_fails_half_way_keeps_the_old_index(
    root: Path, cache: Path, patient_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(root / "pdf")
    start(root, cache)
    before = the_index(cache).read_bytes()
    write_skill(root / "xls")

    def refuse(path: Path, target: Path) -> Path:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        start(root, cache)

    assert the_index(cache).read_bytes() == before
    assert start(root, cache) == scan(root)
