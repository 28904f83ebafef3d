"""Unpacked archives on a disk: private, closed for good, found by what they are, and never believed."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from skillwire.core.errors import DigestMismatchError, VerificationError
from skillwire.core.manifest import ManifestFile, digest_of
from skillwire.host.state import folders
from skillwire.host.state.content import ArchiveKey, ContentCache, UnpackedArchives
from unit.host.known_skills import server

ARCHIVE = b"an archive, as far as a disk is concerned"
CONTENTS = {digest_of(data): data for data in (b"---\nname: x\n---\n", b"a reference\n", b"")}
ACME = server()
KEY = ArchiveKey(ACME, "skill://shop/refunds.tar.gz", digest_of(ARCHIVE))
BLOCK = 4096
MOST = 1_000_000


def line(content: bytes) -> ManifestFile:
    return ManifestFile.of("SKILL.md", content)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "trees"


@pytest.fixture
def trees(root: Path) -> UnpackedArchives:
    return UnpackedArchives(root)


def files_of(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and path.name != "origin.json"]


def tree_of(root: Path) -> Path:
    [folder] = [path for path in root.glob("*/*") if path.is_dir()]
    return folder


@pytest.mark.requirement("ARC-12")
def test_a_tree_is_kept_and_read_again_by_another_process(trees: UnpackedArchives, root: Path) -> None:
    assert trees.put(KEY, ARCHIVE, CONTENTS)

    later = UnpackedArchives(root)
    assert later.archive(KEY, MOST) == ARCHIVE
    assert [later.read(KEY, line(content)) for content in CONTENTS.values()] == [*CONTENTS.values()]


@pytest.mark.requirement("ARC-10")
@pytest.mark.requirement("ARC-12")
def test_a_tree_is_its_users_alone_and_closed_for_good(trees: UnpackedArchives, root: Path) -> None:
    trees.put(KEY, ARCHIVE, CONTENTS)

    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}

    tree = tree_of(root)
    assert {modes[path] for path in files_of(root)} == {0o400}
    assert (modes[root], modes[tree.parent], modes[tree]) == (0o700, 0o700, 0o500)
    assert {path.stat().st_uid for path in modes} == {os.geteuid()}


@pytest.mark.requirement("ARC-12")
def test_no_name_that_a_server_chose_reaches_the_disk(trees: UnpackedArchives, root: Path) -> None:
    trees.put(ArchiveKey(server("../../up"), "skill://a/../b.tar.gz", KEY.digest), ARCHIVE, CONTENTS)

    names = {part for path in root.rglob("*") for part in path.relative_to(root).parts}

    assert all(re.fullmatch(r"[0-9a-f]{64}|archive|origin\.json", name) for name in names)


@pytest.mark.requirement("ARC-14")
@pytest.mark.parametrize(
    "other",
    [
        ArchiveKey(server("umbrella"), KEY.url, KEY.digest),
        ArchiveKey(server(endpoint="b"), KEY.url, KEY.digest),
        ArchiveKey(ACME, "skill://shop/other.tar.gz", KEY.digest),
        ArchiveKey(ACME, KEY.url, digest_of(b"other")),
    ],
    ids=["label", "endpoint", "url", "digest"],
)
def test_a_tree_is_found_by_server_address_and_digest_alone(
    trees: UnpackedArchives, other: ArchiveKey
) -> None:
    trees.put(KEY, ARCHIVE, CONTENTS)

    assert trees.archive(other, MOST) is None
    assert trees.read(other, line(b"a reference\n")) is None


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"!")


def changed(path: Path) -> None:
    path.write_bytes(bytes(reversed(path.read_bytes())))


@pytest.mark.requirement("ARC-12")
@pytest.mark.requirement("CACHE-02")
@pytest.mark.parametrize("tamper", [longer, changed])
@pytest.mark.parametrize("name", ["archive", "file"])
def test_what_was_changed_is_never_returned_and_the_tree_is_gone(
    trees: UnpackedArchives, root: Path, tamper: Callable[[Path], None], name: str
) -> None:
    trees.put(KEY, ARCHIVE, CONTENTS)
    wanted = line(b"a reference\n")
    path = tree_of(root) / ("archive" if name == "archive" else wanted.digest[7:])
    path.chmod(0o600)
    tamper(path)

    with pytest.raises(DigestMismatchError if name == "archive" else VerificationError):
        trees.archive(KEY, MOST) if name == "archive" else trees.read(KEY, wanted)

    assert files_of(root) == []
    assert trees.archive(KEY, MOST) is None


@pytest.mark.requirement("CACHE-02")
@pytest.mark.parametrize("kind", ["link", "hard-link", "pipe", "open"])
def test_what_is_no_private_file_is_not_read(
    trees: UnpackedArchives, root: Path, tmp_path: Path, kind: str
) -> None:
    trees.put(KEY, ARCHIVE, CONTENTS)
    wanted, elsewhere = line(b"a reference\n"), tmp_path / "elsewhere"
    path = tree_of(root) / wanted.digest[7:]
    tree_of(root).chmod(0o700)
    elsewhere.write_bytes(b"a reference\n")
    if kind == "open":
        path.chmod(0o666)
    else:
        path.unlink()
    if kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "hard-link":
        path.hardlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(path)

    assert trees.read(KEY, wanted) is None
    assert elsewhere.read_bytes() == b"a reference\n"
    assert files_of(root) == []


def test_a_link_in_the_place_of_a_tree_leads_nowhere(
    trees: UnpackedArchives, root: Path, tmp_path: Path
) -> None:
    trees.put(KEY, ARCHIVE, CONTENTS)
    real = tree_of(root)
    moved = tmp_path / "moved"
    real.chmod(0o700)
    real.rename(moved)
    real.symlink_to(moved, target_is_directory=True)

    assert trees.read(KEY, line(b"a reference\n")) is None
    assert sorted(path.name for path in moved.iterdir()) == sorted(
        ["archive", *(digest[7:] for digest in CONTENTS)]
    )


def test_a_tree_that_is_there_is_replaced(trees: UnpackedArchives, root: Path) -> None:
    trees.put(KEY, ARCHIVE, CONTENTS)
    tree_of(root).chmod(0o700)
    (tree_of(root) / "archive").unlink()

    assert trees.put(KEY, ARCHIVE, CONTENTS)
    assert trees.archive(KEY, MOST) == ARCHIVE


@pytest.mark.requirement("ARC-11")
def test_the_tree_that_was_not_used_for_longest_makes_room(root: Path) -> None:
    trees = UnpackedArchives(root, max_bytes_per_origin=5 * BLOCK, max_bytes=100 * BLOCK)
    first, second, third = (ArchiveKey(ACME, f"skill://a/{name}.zip", digest_of(ARCHIVE)) for name in "abc")
    content = {digest_of(b"x"): b"x"}
    for age, key in ((100, first), (200, second)):
        assert trees.put(key, ARCHIVE, content)
        os.utime(root / next(root.glob(f"*/{key.name}")), (age, age))
    assert trees.archive(first, MOST) == ARCHIVE

    assert trees.put(third, ARCHIVE, content)

    assert [trees.archive(key, MOST) for key in (first, second, third)] == [ARCHIVE, None, ARCHIVE]


def test_a_tree_larger_than_the_quota_is_not_kept(root: Path) -> None:
    trees = UnpackedArchives(root, max_bytes_per_origin=2 * BLOCK)

    assert not trees.put(KEY, ARCHIVE, CONTENTS)
    assert files_of(root) == []


def test_a_disk_that_fails_costs_no_more_than_the_tree(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    trees = UnpackedArchives(blocked / "trees")

    assert not trees.put(KEY, ARCHIVE, CONTENTS)
    assert trees.archive(KEY, MOST) is None


def test_what_is_kept_is_counted_and_forgotten_by_server(trees: UnpackedArchives, root: Path) -> None:
    other = ArchiveKey(server("umbrella"), KEY.url, KEY.digest)
    for key in (KEY, other):
        trees.put(key, ARCHIVE, CONTENTS)
    size = len(ARCHIVE) + sum(map(len, CONTENTS.values()))

    usage = trees.usage()

    assert [(origin.label, origin.files, origin.size) for origin in usage.origins] == [
        ("acme", 4, size),
        ("umbrella", 4, size),
    ]
    assert (usage.files, usage.size) == (8, 2 * size)
    assert trees.forget_label("acme") == 1
    assert trees.archive(KEY, MOST) is None
    assert trees.archive(other, MOST) == ARCHIVE
    assert trees.forget(other.origin) and not trees.forget(other.origin)
    assert trees.usage().files == 0


def test_clear_removes_everything(trees: UnpackedArchives, root: Path) -> None:
    trees.put(KEY, ARCHIVE, CONTENTS)

    trees.clear()

    assert [*root.iterdir()] == []


def test_gc_removes_what_crashes_left_and_nothing_else(trees: UnpackedArchives, root: Path) -> None:
    trees.put(KEY, ARCHIVE, CONTENTS)
    inside = tree_of(root).parent
    half, gone = inside / ".skillwire-0123456789abcdef.tmp", inside / ".gone-0123456789abcdef"
    for folder in (half, gone):
        folder.mkdir(mode=0o700)
        (folder / "archive").write_bytes(b"half")
    nobodys = root / ("e" * 64)
    nobodys.mkdir()

    assert trees.gc(older_than=0) == 3
    assert trees.archive(KEY, MOST) == ARCHIVE
    assert not (half.exists() or gone.exists() or nobodys.exists())


def test_without_folder_descriptors_nothing_is_kept(
    trees: UnpackedArchives, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "IS_SUPPORTED", False)

    assert not trees.put(KEY, ARCHIVE, CONTENTS)
    assert trees.archive(KEY, MOST) is None
    assert not root.exists()


@pytest.mark.requirement("CACHE-04")
def test_the_cache_beside_them_takes_no_tree_for_its_own(trees: UnpackedArchives, root: Path) -> None:
    trees.put(KEY, ARCHIVE, CONTENTS)
    cache = ContentCache(root.parent)

    assert cache.usage().files == 0
    cache.clear()
    cache.gc(older_than=0)

    assert trees.archive(KEY, MOST) == ARCHIVE
