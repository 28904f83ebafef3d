"""`ContentCache`: bytes that match the entry at hand or none, whoever was at the disk meanwhile."""

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from approving import mode_of, origin
from folders import held_back, scan, uris
from skillwire.core.errors import DigestMismatchError, SizeMismatchError, SourceError, VerificationError
from skillwire.core.manifest import ManifestFile
from skillwire.host.state import folders
from skillwire.host.state.content import CacheUsage, ContentCache, OriginUsage

ACME, OTHER = origin(), origin("umbrella")
CONTENT = b"#!/bin/sh\necho\n"
FILE = ManifestFile.of("skill://acme/refunds/scripts/run.sh", CONTENT)
BLOCK = 4096


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(root: Path) -> ContentCache:
    return ContentCache(root)


def named(number: int) -> tuple[ManifestFile, bytes]:
    content = f"file {number}".encode()
    return ManifestFile.of(f"skill://acme/refunds/{number}.md", content), content


def files_in(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("*/*/*") if path.is_file() or path.is_symlink())


def the_file(root: Path) -> Path:
    (found,) = files_in(root)
    return found


def age(root: Path, file: ManifestFile, seconds: int) -> None:
    """Make a cached file look as if it was used so long ago."""
    (path,) = root.glob(f"*/*/{file.digest.removeprefix('sha256:')}")
    used = path.stat().st_mtime_ns - seconds * 10**9
    os.utime(path, ns=(used, used))


# what is kept


@pytest.mark.requirement("CACHE-01")
def test_what_was_put_is_got_again_after_a_restart(root: Path, cache: ContentCache) -> None:
    assert cache.get(ACME, FILE) is None
    assert not root.exists()

    assert cache.put(ACME, FILE, CONTENT)

    assert cache.get(ACME, FILE) == CONTENT
    assert ContentCache(root).get(ACME, FILE) == CONTENT


@pytest.mark.requirement("CACHE-01")
def test_the_digest_of_the_entry_decides_and_the_uri_does_not(cache: ContentCache) -> None:
    cache.put(ACME, FILE, CONTENT)

    assert cache.get(ACME, ManifestFile.of("skill://acme/other/SKILL.md", CONTENT)) == CONTENT
    assert cache.get(ACME, ManifestFile.of(FILE.uri, b"something else")) is None


@pytest.mark.requirement("CACHE-05")
def test_what_is_cached_stays_with_its_origin(root: Path, cache: ContentCache) -> None:
    cache.put(ACME, FILE, CONTENT)

    later = ContentCache(root)
    assert later.get(OTHER, FILE) is None
    assert later.get(origin(endpoint="https://elsewhere.example/mcp"), FILE) is None
    assert later.usage().origins == (OriginUsage("acme", ACME.fingerprint, 1, len(CONTENT)),)


def test_only_digests_name_files_and_none_can_be_executed(root: Path, cache: ContentCache) -> None:
    hostile = ManifestFile.of("skill://acme/refunds/..%2F..%2Fetc/passwd", CONTENT)

    assert cache.put(ACME, hostile, CONTENT)

    path = the_file(root)
    name = hostile.digest.removeprefix("sha256:")
    assert (path.parent.name, path.name) == (name[:2], name)
    assert mode_of(path) == 0o600
    assert {mode_of(folder) for folder in (root, path.parent, path.parent.parent)} == {0o700}


@pytest.mark.requirement("CACHE-04")
def test_a_scan_for_skills_finds_none_in_a_cache(root: Path, cache: ContentCache) -> None:
    content = b"---\nname: refunds\ndescription: Use it.\n---\n"
    cache.put(ACME, ManifestFile.of("skill://acme/refunds/SKILL.md", content), content)

    found = scan(root)

    assert (uris(found), held_back(found)) == ([], {})


def test_empty_files_are_kept_too(cache: ContentCache) -> None:
    empty = ManifestFile.of("skill://acme/refunds/empty", b"")

    assert cache.put(ACME, empty, b"")
    assert cache.get(ACME, empty) == b""


@pytest.mark.parametrize("content", [CONTENT + b"x", CONTENT[:-1], b"X" * len(CONTENT)])
def test_what_does_not_match_is_never_written(root: Path, cache: ContentCache, content: bytes) -> None:
    with pytest.raises(VerificationError):
        cache.put(ACME, FILE, content)

    assert not root.exists()


def test_a_digest_that_is_none_is_never_a_path(root: Path, cache: ContentCache) -> None:
    cache.put(ACME, FILE, CONTENT)

    for digest in ("sha256:../../x", "sha256:" + "A" * 64, "../" * 20, ""):
        assert cache.get(ACME, ManifestFile(FILE.uri, digest, 1)) is None


def test_a_size_beyond_reason_asks_for_no_memory(cache: ContentCache) -> None:
    cache.put(ACME, FILE, CONTENT)

    assert cache.get(ACME, ManifestFile(FILE.uri, FILE.digest, 2**63 - 1)) is None


# what others did to it


@pytest.mark.requirement("CACHE-02")
@pytest.mark.requirement("CACHE-03")
@pytest.mark.requirement("CACHE-07")
@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"X" * len(CONTENT), DigestMismatchError),
        (CONTENT + b"rm -rf\n", SizeMismatchError),
        (CONTENT[:-1], SizeMismatchError),
        (b"", SizeMismatchError),
    ],
    ids=["swapped", "longer", "shorter", "empty"],
)
def test_bytes_that_changed_fail_as_a_fresh_read_would_and_are_removed(
    root: Path, cache: ContentCache, content: bytes, error: type[VerificationError]
) -> None:
    cache.put(ACME, FILE, CONTENT)
    assert cache.get(ACME, FILE) == CONTENT
    path = the_file(root)
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(VerificationError) as fresh:
        FILE.verify(content)
    with pytest.raises(error) as cached:
        cache.get(ACME, FILE)

    assert type(cached.value) is type(fresh.value)
    assert cached.value.uri == FILE.uri
    assert cache.get(ACME, FILE) is None
    assert cache.put(ACME, FILE, CONTENT)
    assert cache.get(ACME, FILE) == CONTENT


@pytest.mark.requirement("CACHE-03")
def test_nothing_beside_the_file_is_believed(root: Path, cache: ContentCache) -> None:
    """The name is a digest label too: a file under the wrong name is the wrong file."""
    other, content = named(1)
    cache.put(ACME, FILE, CONTENT)
    cache.put(ACME, other, content)
    first, second = (next(root.glob(f"*/*/{file.digest[7:]}")) for file in (FILE, other))
    first.replace(second)

    with pytest.raises(VerificationError):
        cache.get(ACME, other)


def plant_link(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to(outside)


def plant_hard_link(path: Path, outside: Path) -> None:
    path.unlink()
    path.hardlink_to(outside)


def plant_pipe(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def plant_folder(path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("x")


def plant_linked_shelf(path: Path, outside: Path) -> None:
    path.parent.rename(outside.parent / "moved")
    path.parent.symlink_to(outside.parent / "moved")


def plant_linked_origin(path: Path, outside: Path) -> None:
    path.parent.parent.rename(outside.parent / "moved")
    path.parent.parent.symlink_to(outside.parent / "moved")


def open_to_others(path: Path, outside: Path) -> None:
    path.chmod(0o666)


@pytest.mark.requirement("CACHE-02")
@pytest.mark.parametrize(
    "plant",
    [
        plant_link,
        plant_hard_link,
        plant_pipe,
        plant_folder,
        plant_linked_shelf,
        plant_linked_origin,
        open_to_others,
    ],
)
def test_nothing_is_read_or_written_through_what_was_planted(
    tmp_path: Path, root: Path, cache: ContentCache, plant: Callable[[Path, Path], None]
) -> None:
    outside = tmp_path / "outside" / "file"
    outside.parent.mkdir()
    outside.write_bytes(CONTENT)
    cache.put(ACME, FILE, CONTENT)
    path = the_file(root)
    plant(path, outside)

    assert cache.get(ACME, FILE) is None

    assert cache.put(ACME, FILE, CONTENT)
    assert cache.get(ACME, FILE) == CONTENT
    assert outside.read_bytes() == CONTENT
    assert outside.stat().st_nlink == 1
    assert path.lstat().st_nlink == 1
    assert not any(part.is_symlink() for part in (path, path.parent, path.parent.parent))


@pytest.mark.requirement("CACHE-02")
def test_a_cache_that_is_a_link_is_not_used(
    tmp_path: Path, root: Path, cache: ContentCache, caplog: pytest.LogCaptureFixture
) -> None:
    cache.put(ACME, FILE, CONTENT)
    root.rename(tmp_path / "moved")
    root.symlink_to(tmp_path / "moved")

    assert cache.get(ACME, FILE) is None
    assert not cache.put(ACME, *named(1))
    for command in (cache.clear, cache.usage, cache.gc, lambda: cache.forget(ACME)):
        with pytest.raises(SourceError):
            command()

    assert len(files_in(tmp_path / "moved")) == 1
    assert len(caplog.records) == 1


# quotas


def test_what_was_used_longest_ago_makes_room(root: Path) -> None:
    cache = ContentCache(root, max_bytes_per_origin=3 * BLOCK)
    for number in range(3):
        cache.put(ACME, *named(number))
        age(root, named(number)[0], 100 - number)
    assert cache.get(ACME, named(0)[0]) is not None

    assert cache.put(ACME, *named(3))

    left = [number for number in range(4) if cache.get(ACME, named(number)[0]) is not None]
    assert left == [0, 3]


def test_one_server_does_not_take_the_room_of_another(root: Path) -> None:
    cache = ContentCache(root, max_bytes_per_origin=4 * BLOCK, max_bytes=100 * BLOCK)
    cache.put(OTHER, FILE, CONTENT)
    age(root, FILE, 10_000)

    for number in range(20):
        assert cache.put(ACME, *named(number))

    assert cache.get(OTHER, FILE) == CONTENT
    assert cache.get(ACME, named(19)[0]) is not None
    assert cache.usage().files <= 5


def test_all_servers_together_stay_within_the_whole(root: Path) -> None:
    cache = ContentCache(root, max_bytes_per_origin=4 * BLOCK, max_bytes=8 * BLOCK)

    for number in range(40):
        assert cache.put(origin(f"server-{number % 5}"), *named(number))
        assert cache.get(origin(f"server-{number % 5}"), named(number)[0]) is not None
        assert cache.usage().files <= 8


def test_the_quota_counts_what_other_processes_wrote(root: Path) -> None:
    caches = [ContentCache(root, max_bytes_per_origin=32 * BLOCK, max_bytes=64 * BLOCK) for _ in range(2)]

    for number in range(100):
        caches[number % 2].put(ACME, *named(number))

    assert caches[0].usage().files <= 32 + 2 * 4


def test_a_file_larger_than_the_quota_is_not_kept(root: Path) -> None:
    cache = ContentCache(root, max_bytes_per_origin=BLOCK)
    content = b"x" * (BLOCK + 1)

    assert not cache.put(ACME, ManifestFile.of(FILE.uri, content), content)
    assert not root.exists()


def test_what_was_just_written_stays_however_old_the_clock_makes_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ContentCache(root, max_bytes_per_origin=BLOCK)
    cache.put(ACME, *named(0))
    age(root, named(0)[0], -10_000)

    assert cache.put(ACME, *named(1))

    assert cache.get(ACME, named(1)[0]) is not None
    assert cache.get(ACME, named(0)[0]) is None


# failures


@pytest.mark.parametrize("failing", ["open", "write", "fsync", "replace", "mkdir"])
def test_a_failing_disk_costs_the_cache_and_is_reported_once(
    root: Path,
    cache: ContentCache,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: str,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(os, failing, full)
        assert not cache.put(ACME, FILE, CONTENT)
        assert not cache.put(ACME, *named(1))
        assert cache.get(ACME, FILE) is None

    assert len(caplog.records) == 1
    assert files_in(root) == []
    assert cache.put(ACME, FILE, CONTENT)
    assert cache.get(ACME, FILE) == CONTENT


def test_without_folder_descriptors_there_is_no_cache(
    root: Path, cache: ContentCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "IS_SUPPORTED", False)

    assert not cache.put(ACME, FILE, CONTENT)
    assert cache.get(ACME, FILE) is None
    assert cache.usage() == CacheUsage(0, 0, ())
    assert not root.exists()


def test_many_threads_share_a_cache(root: Path) -> None:
    cache = ContentCache(root, max_bytes_per_origin=10 * BLOCK)
    wrong: list[int] = []

    def work(start: int) -> None:
        for number in range(start, start + 20):
            file, content = named(number % 25)
            if not cache.put(ACME, file, content) or cache.get(ACME, file) not in (content, None):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert wrong == []
    assert cache.usage().files <= 10


# removing


@pytest.mark.requirement("CACHE-06")
def test_a_removed_server_takes_its_files_along(root: Path, cache: ContentCache) -> None:
    moved = origin(endpoint="https://elsewhere.example/mcp")
    for where in (ACME, moved, OTHER):
        cache.put(where, FILE, CONTENT)

    assert cache.forget_label("acme") == 2

    assert [cache.get(where, FILE) for where in (ACME, moved, OTHER)] == [None, None, CONTENT]
    assert len(list(root.iterdir())) == 1


@pytest.mark.requirement("CACHE-06")
@pytest.mark.parametrize("said", [b"", b"{}", b"[" * 100_000, b'{"label": "umbrella", "fingerprint": "x"}'])
def test_a_folder_that_lies_about_its_server_goes_with_any(
    root: Path, cache: ContentCache, said: bytes
) -> None:
    cache.put(ACME, FILE, CONTENT)
    cache.put(OTHER, FILE, CONTENT)
    (acme,) = {path.parent.parent for path in files_in(root) if "acme" in _said(path)}
    (acme / "origin.json").write_bytes(said)

    assert cache.forget_label("acme") == 1

    assert cache.get(ACME, FILE) is None
    assert cache.get(OTHER, FILE) == CONTENT


def _said(path: Path) -> str:
    return (path.parent.parent / "origin.json").read_text()


@pytest.mark.requirement("CACHE-06")
def test_one_endpoint_can_be_forgotten(cache: ContentCache) -> None:
    moved = origin(endpoint="https://elsewhere.example/mcp")
    cache.put(ACME, FILE, CONTENT)
    cache.put(moved, FILE, CONTENT)

    assert cache.forget(ACME)
    assert not cache.forget(ACME)

    assert [cache.get(ACME, FILE), cache.get(moved, FILE)] == [None, CONTENT]


def test_clearing_removes_what_is_the_caches_and_nothing_else(root: Path, cache: ContentCache) -> None:
    cache.put(ACME, FILE, CONTENT)
    (root / "notes.txt").write_text("mine")
    (root / "folder").mkdir()

    cache.clear()

    assert sorted(path.name for path in root.iterdir()) == ["folder", "notes.txt"]
    assert cache.usage() == CacheUsage(0, 0, ())


def test_a_cache_that_was_never_used_can_be_cleared_and_counted(root: Path, cache: ContentCache) -> None:
    cache.clear()

    assert cache.usage() == CacheUsage(0, 0, ())
    assert (cache.gc(), cache.forget(ACME), cache.forget_label("acme")) == (0, False, 0)
    assert not root.exists()


def test_usage_counts_files_and_bytes_by_origin(cache: ContentCache) -> None:
    cache.put(OTHER, FILE, CONTENT)
    cache.put(ACME, FILE, CONTENT)
    cache.put(ACME, *named(1))

    assert cache.usage() == CacheUsage(
        3,
        2 * len(CONTENT) + 6,
        (
            OriginUsage("acme", ACME.fingerprint, 2, len(CONTENT) + 6),
            OriginUsage("umbrella", OTHER.fingerprint, 1, len(CONTENT)),
        ),
    )


def test_what_crashes_left_behind_is_collected(root: Path, cache: ContentCache) -> None:
    cache.put(ACME, FILE, CONTENT)
    shelf_folder = the_file(root).parent
    (shelf_folder / ".skillwire-0123456789abcdef.tmp").write_bytes(b"half")
    (shelf_folder.parent / ".skillwire-0123456789abcdef.tmp").write_bytes(b"half")
    (root / ".gone-0123456789abcdef" / "aa").mkdir(parents=True)
    (root / ("0" * 64)).mkdir()

    assert cache.gc() == 1
    assert cache.gc(older_than=0) == 3
    assert cache.gc(older_than=0) == 0

    assert cache.get(ACME, FILE) == CONTENT
    assert len(list(root.iterdir())) == 1


def test_collecting_enforces_a_quota_that_became_smaller(root: Path, cache: ContentCache) -> None:
    for number in range(10):
        cache.put(ACME, *named(number))

    assert ContentCache(root, max_bytes=5 * BLOCK).gc() == 6
    assert cache.usage().files == 4
