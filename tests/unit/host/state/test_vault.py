"""Private files: what is not read, what a failed write leaves, and who waits for whom."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from approving import foreign_file, mode_of
from commands import names_in
from skillwire.core.errors import SourceError
from skillwire.host.state import vault
from skillwire.host.state.vault import NotPrivateError, locked, read_plain, read_private, replace, set_aside


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    replace(path, b"old")
    return path


def test_what_was_written_is_read_and_only_this_user_may(file: Path) -> None:
    assert read_private(file, most=3, secret=True) == b"old"
    assert mode_of(file) == 0o600


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    assert read_private(tmp_path / "gone", most=1) is None
    assert read_plain(tmp_path / "gone", most=1) is None


def test_a_file_that_is_too_large_is_not_read(file: Path) -> None:
    with pytest.raises(NotPrivateError):
        read_private(file, most=2)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_others_can_write_is_not_read(file: Path, mode: int) -> None:
    file.chmod(mode)

    with pytest.raises(NotPrivateError):
        read_private(file, most=10)


def test_a_secret_others_can_read_is_not_used(file: Path) -> None:
    file.chmod(0o644)

    assert read_private(file, most=10) == b"old"
    with pytest.raises(NotPrivateError):
        read_private(file, most=10, secret=True)


def test_a_link_is_not_followed(tmp_path: Path, file: Path) -> None:
    (tmp_path / "link").symlink_to(file)

    for read in (read_private, read_plain):
        with pytest.raises(NotPrivateError):
            read(tmp_path / "link", most=10)


def test_a_pipe_or_a_folder_is_not_read_and_nobody_waits_on_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path, tmp_path / "pipe"):
        for read in (read_private, read_plain):
            with pytest.raises(NotPrivateError):
                read(path, most=10)


def test_bytes_reach_the_disk_before_their_name_and_the_name_before_the_return(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noting(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            done.append(name)
            return real(*args)

        return call

    for name in ("write", "fsync", "replace"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))

    replace(file, b"new")

    assert done == ["write", "fsync", "replace", "fsync"]


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_content_and_nothing_else(
    file: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, failing, full)

    with pytest.raises(OSError, match="no space"):
        replace(file, b"new")

    monkeypatch.undo()
    assert file.read_bytes() == b"old"
    assert names_in(file.parent) == ["file"]


def test_a_link_is_replaced_and_what_it_led_to_is_not_touched(tmp_path: Path, file: Path) -> None:
    (tmp_path / "link").symlink_to(file)

    replace(tmp_path / "link", b"new")

    assert file.read_bytes() == b"old"
    assert not (tmp_path / "link").is_symlink()


def test_leftovers_of_dead_writers_are_removed_and_other_files_are_not(tmp_path: Path, file: Path) -> None:
    for name in (".skillwire-0123456789abcdef.tmp", ".skillwire-mine.tmp", "notes.tmp"):
        (tmp_path / name).write_text("half")

    assert vault.remove_leftovers(tmp_path) == 0
    assert vault.remove_leftovers(tmp_path, older_than=0) == 1
    assert names_in(tmp_path) == [".skillwire-mine.tmp", "file", "notes.tmp"]


def test_what_is_set_aside_keeps_its_bytes_and_only_so_many_are_kept(tmp_path: Path) -> None:
    for number in range(vault.MAX_SET_ASIDE + 3):
        (tmp_path / "file").write_text(str(number))
        assert set_aside(tmp_path / "file", "bad") is not None

    kept = [(tmp_path / name).read_text() for name in names_in(tmp_path)]
    assert kept == [str(number) for number in range(3, vault.MAX_SET_ASIDE + 3)]
    assert set_aside(tmp_path / "file", "bad") is None


def test_a_lock_keeps_others_out_until_it_is_released(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"), pytest.raises(SourceError), locked(tmp_path / "lock", timeout=0.02):
        pytest.fail("two holders")

    with locked(tmp_path / "lock", timeout=0):
        pass


def test_threads_are_kept_apart_where_processes_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault, "fcntl", None)

    with locked(tmp_path / "lock"), pytest.raises(SourceError), locked(tmp_path / "lock", timeout=0.02):
        pytest.fail("two holders")
    with locked(tmp_path / "lock", timeout=0.02):
        pass


def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(NotPrivateError):
        read_private(foreign_file(tmp_path), most=10_000_000)


def test_a_lock_is_released_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        raise ZeroDivisionError

    with locked(tmp_path / "lock", timeout=0):
        pass


def test_who_waits_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "lock"):
            held.set()
            done.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    threading.Timer(0.05, done.set).start()
    with locked(tmp_path / "lock", timeout=10):
        assert done.is_set()
    holder.join(10)


def test_a_lock_that_is_a_link_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match=r"symbolic|links"), locked(tmp_path / "lock", timeout=0):
        pytest.fail("followed a link")

    assert not (tmp_path / "elsewhere").exists()
