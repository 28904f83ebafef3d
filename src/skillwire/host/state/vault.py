"""Private files and folders of this user: checked when read, replaced atomically, changed under a lock.

A reader sees either the old content or the new, even if the writer crashes.
Nothing here follows a link or blocks on a FIFO.
"""

import errno
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from skillwire.core import SourceError

try:
    import fcntl
except ImportError:  # Windows: locks work between threads only, not between processes.
    fcntl = None

LOCK_TIMEOUT = 10.0
MAX_SET_ASIDE = 16
STALE_AFTER = 3600.0

# Windows has none of these flags.
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_READ = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
_LINKED = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})
_HAS_OWNERS = hasattr(os, "geteuid")
_TEMPORARY = re.compile(r"\.skillwire-[0-9a-f]{16}\.tmp")
_LONGEST_PAUSE = 0.05
_CHUNK = 1024 * 1024
_threads = threading.Lock()


class NotPrivateError(OSError):
    """The path is not a private regular file, or folder, of this user."""


def make_folder(path: Path) -> None:
    """Create a folder that only this user can open, with missing parents.

    Permissions of others are removed from an existing folder.

    Raises:
        NotPrivateError: The path is a link, a file, or another user's folder.
        OSError: It cannot be created.
    """
    if not path.parent.is_dir():
        make_folder(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        sync_folder(path.parent)
    if not _HAS_OWNERS:
        return
    try:
        descriptor = os.open(path, _FOLDER | _NOFOLLOW)
    except OSError as error:
        if error.errno in _LINKED:
            raise NotPrivateError(error.errno, "not a folder, or a link to one") from error
        raise
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise NotPrivateError(errno.EPERM, "the folder belongs to another user")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def read_private(path: Path, *, most: int, secret: bool = False) -> bytes | None:
    """Read a private file of at most `most` bytes; None when there is none.

    A secret must not be readable by other users either.

    Raises:
        NotPrivateError: It is a link or not a regular file, belongs to another
            user, is writable by others, or is too large.
        OSError: It cannot be read.
    """
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _LINKED:
            raise NotPrivateError(error.errno, "it is a link") from error
        raise
    try:
        check_private(os.fstat(descriptor), 0o077 if secret else 0o022)
        return _read_small(descriptor, most)
    finally:
        os.close(descriptor)


def read_plain(path: Path, *, most: int) -> bytes | None:
    """Read a regular file of any user of at most `most` bytes; None when there is none.

    Raises:
        NotPrivateError: It is a link or not a regular file, or too large.
        OSError: It cannot be read.
    """
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPrivateError(error.errno, "it is a symbolic link") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotPrivateError(errno.EINVAL, "it is not a regular file")
        return _read_small(descriptor, most)
    finally:
        os.close(descriptor)


def check_private(found: os.stat_result, forbidden: int = 0o022) -> None:
    """Check that a status is that of a regular file of this user, without the `forbidden` permissions.

    Raises:
        NotPrivateError: It is not.
    """
    if not stat.S_ISREG(found.st_mode):
        raise NotPrivateError(errno.EINVAL, "it is not a regular file")
    if not _HAS_OWNERS:
        return
    if found.st_uid != os.geteuid():
        raise NotPrivateError(errno.EPERM, "it belongs to another user")
    if found.st_mode & forbidden:
        raise NotPrivateError(errno.EPERM, "it is open to other users")


def replace(path: Path, content: bytes, *, mode: int | None = 0o600) -> None:
    """Write a file atomically: readers see the old content or all of the new, also after a crash.

    Without a mode, the file gets the default permissions of a new file.

    Raises:
        OSError: It cannot be written; the old content is unchanged.
    """
    temporary = path.with_name(temporary_name())
    try:
        descriptor = os.open(temporary, _CREATE, 0o666 if mode is None else 0o600)
        try:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(descriptor, mode)
            write_whole(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def read_up_to(descriptor: int, most: int) -> bytes:
    """Read to the end of a file, but no more than `most` bytes, whatever size its status reports."""
    parts: list[bytes] = []
    while most > 0 and (part := os.read(descriptor, min(most, _CHUNK))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def write_whole(descriptor: int, content: bytes) -> None:
    """Write all of `content`, in as many system calls as needed."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(path: Path) -> None:
    """Sync a folder, so that the names of its files are durable; do nothing where that is not supported."""
    if not _HAS_OWNERS:
        return
    descriptor = os.open(path, _FOLDER | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def temporary_name() -> str:
    return f".skillwire-{secrets.token_hex(8)}.tmp"


def is_temporary(name: str) -> bool:
    return _TEMPORARY.fullmatch(name) is not None


def remove_leftovers(folder: Path, *, older_than: float = STALE_AFTER) -> int:
    """Remove temporary files of interrupted writes from a folder, and return their number.

    Pass a lower `older_than` only while holding the lock that every writer takes.
    """
    removed = 0
    oldest = time.time() - older_than
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime <= oldest:
                        Path(entry.path).unlink()
                        removed += 1
    return removed


def set_aside(path: Path, reason: str) -> Path | None:
    """Rename a file that must not be used, adding the reason and date; None when it is gone.

    Only the newest renamed files are kept, so that they cannot fill the disk.

    Raises:
        OSError: It cannot be renamed.
    """
    prefix = f"{path.name}.{reason}-"
    kept = sorted(found.name for found in path.parent.iterdir() if found.name.startswith(prefix))
    for name in kept[: max(0, len(kept) - MAX_SET_ASIDE + 1)]:
        with suppress(OSError):
            path.with_name(name).unlink()
    target = path.with_name(f"{prefix}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    try:
        path.rename(target)
    except FileNotFoundError:
        return None
    sync_folder(path.parent)
    return target


@contextmanager
def locked(path: Path, *, timeout: float = LOCK_TIMEOUT) -> Generator[None]:
    """Hold an exclusive lock against all threads and processes that use the same lock file.

    The file itself stays. The system releases the lock when a process dies.

    Raises:
        SourceError: The lock was not free within `timeout` seconds.
        OSError: The lock file cannot be opened.
    """
    if fcntl is None:
        if not _threads.acquire(timeout=timeout):
            raise _busy()
        try:
            yield
        finally:
            _threads.release()
        return
    descriptor = os.open(path, _OPEN_LOCK, 0o600)
    try:
        _wait_for(descriptor, time.monotonic() + timeout)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, deadline: float) -> None:
    assert fcntl is not None
    pause = 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _busy() from None
        time.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _busy() -> SourceError:
    return SourceError(
        "the host's state is locked by another process",
        fix="try again, or end the other process",
    )


def _read_small(descriptor: int, most: int) -> bytes:
    content = read_up_to(descriptor, most + 1)
    if len(content) > most:
        raise NotPrivateError(errno.EFBIG, f"it is larger than {most} bytes")
    return content
