"""Opening files below a root: no link on the way is followed, and nothing but a regular file is read."""

import os
from pathlib import Path

import pytest

from folders import write_files
from skillwire.sources.directory.walk import FileMovedError, FolderReader, read_unlinked


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_files_are_read_in_any_order_of_folders(root: Path) -> None:
    contents = {"top.md": b"0", "a/b/c.md": b"1", "a/b2/c.md": b"2", "a/d.md": b"3", "e/f.md": b"4"}
    write_files(root, contents)

    with FolderReader(str(root)) as reader:
        read = {
            path: reader.read(path.rpartition("/")[0], path.rpartition("/")[2], 1)[0]
            for path in ("a/b/c.md", "a/d.md", "e/f.md", "top.md", "a/b2/c.md", "a/b/c.md")
        }

    assert read == contents


def test_no_more_than_one_byte_beyond_the_expected_size_is_read(root: Path) -> None:
    write_files(root, {"long.md": b"0123456789"})

    with FolderReader(str(root)) as reader:
        content, status = reader.read("", "long.md", 4)

    assert (content, status.st_size) == (b"01234", 10)


@pytest.mark.requirement("READ-10")
@pytest.mark.parametrize("path", ["link.md", "linked/secret.md", "a/linked/secret.md"])
def test_no_link_is_followed_wherever_it_stands(root: Path, path: str) -> None:
    write_files(root.parent, {"outside/secret.md": "secret"})
    (root / "a").mkdir()
    (root / "link.md").symlink_to(root.parent / "outside" / "secret.md")
    (root / "linked").symlink_to(root.parent / "outside")
    (root / "a" / "linked").symlink_to(root.parent / "outside")
    folder, _, name = path.rpartition("/")

    with FolderReader(str(root)) as reader, pytest.raises(OSError):
        reader.read(folder, name, 100)


def test_a_folder_that_moves_away_while_it_is_open_does_not_lead_out_of_the_root(root: Path) -> None:
    write_files(root, {"a/1.md": "inside", "a/2.md": "inside"})
    write_files(root.parent, {"outside/2.md": "secret"})

    with FolderReader(str(root)) as reader:
        first = reader.read("a", "1.md", 10)[0]
        (root / "a").rename(root / "b")
        (root / "a").symlink_to(root.parent / "outside")
        second = reader.read("a", "2.md", 10)[0]

    assert (first, second) == (b"inside", b"inside")


def test_a_fifo_is_neither_waited_for_nor_read(root: Path) -> None:
    os.mkfifo(root / "pipe")

    with FolderReader(str(root)) as reader, pytest.raises(FileMovedError):
        reader.read("", "pipe", 10)


def test_a_fifo_with_a_writer_is_neither_waited_for_nor_read(root: Path) -> None:
    os.mkfifo(root / "pipe")
    both_ends = os.open(root / "pipe", os.O_RDWR)
    try:
        with FolderReader(str(root)) as reader, pytest.raises(OSError):
            reader.read("", "pipe", 10)
    finally:
        os.close(both_ends)


def test_a_folder_is_not_read(root: Path) -> None:
    (root / "folder").mkdir()

    with FolderReader(str(root)) as reader, pytest.raises(OSError):
        reader.read("", "folder", 10)


def test_after_a_failure_the_reader_goes_on(root: Path) -> None:
    write_files(root, {"a/b/c.md": b"1", "x.md": b"2"})

    with FolderReader(str(root)) as reader:
        for folder in ("a/missing/deeper", "missing", "a/b/c.md"):
            with pytest.raises(OSError):
                reader.read(folder, "c.md", 1)
        read = [reader.read("a/b", "c.md", 1)[0], reader.read("", "x.md", 1)[0]]

    assert read == [b"1", b"2"]


def test_every_descriptor_is_closed_at_the_end(root: Path) -> None:
    write_files(root, {"a/b/c/d.md": b"1"})
    before = open_descriptors()

    with FolderReader(str(root)) as reader:
        reader.read("a/b/c", "d.md", 1)
        with pytest.raises(OSError):
            reader.read("a/b/missing", "d.md", 1)

    assert open_descriptors() == before


# --- One call for a whole path, where the system has it ---


@pytest.mark.requirement("READ-10")
def test_a_path_without_links_is_read_in_one_call_and_no_other(root: Path) -> None:
    write_files(root, {"a/inside.md": b"0123456789"})
    write_files(root.parent, {"outside/secret.md": "secret"})
    (root / "link.md").symlink_to(root / "a" / "inside.md")
    (root / "linked").symlink_to(root.parent / "outside")
    os.mkfifo(root / "pipe")
    before = open_descriptors()

    found = [
        read_unlinked(f"{root}/{path}", 4)
        for path in ("a/inside.md", "a//inside.md", "link.md", "linked/secret.md", "a", "missing.md")
    ]

    assert found in ([b"01234", b"01234", None, None, None, None], [None] * 6)
    assert not read_unlinked(f"{root}/pipe", 4)
    assert open_descriptors() == before
