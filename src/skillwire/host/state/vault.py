"""Files and folders that are this user's alone: read with care, replaced in one step, changed under a lock.

Whoever reads sees the old content or the new, whatever happens to the writer
in between. Nothing here follows a link or waits on a FIFO.
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

from skillwire.errors import SourceError

try:
    import fcntl
except ImportError:  # Windows: processes are not kept apart there, only threads are.
    fcntl = None

LOCK_TIMEOUT = 10.0
MOST_SET_ASIDE = 16
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
    """What stands at a path is not a plain file, or folder, of this user alone."""


def make_folder(path: Path) -> None:
    """Make a folder that only this user can open, with what is missing above it.

    One that is there already is closed to others.

    Raises:
        NotPrivateError: A link, a file, or someone else's folder stands there.
        OSError: It cannot be made.
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
    """Read a file of this user alone that holds at most `most` bytes; None when there is none.

    A secret must not be readable by others either.

    Raises:
        NotPrivateError: It is a link or no plain file, belongs to someone
            else, is open to others, or is too large.
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
    """Read a plain file of anyone's that holds at most `most` bytes; None when there is none.

    Raises:
        NotPrivateError: It is a link or no plain file, or too large.
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
            raise NotPrivateError(errno.EINVAL, "it is no plain file")
        return _read_small(descriptor, most)
    finally:
        os.close(descriptor)


def check_private(found: os.stat_result, forbidden: int = 0o022) -> None:
    """Check that a status is that of a plain file of this user, without the `forbidden` permissions.

    Raises:
        NotPrivateError: It is not.
    """
    if not stat.S_ISREG(found.st_mode):
        raise NotPrivateError(errno.EINVAL, "it is no plain file")
    if not _HAS_OWNERS:
        return
    if found.st_uid != os.geteuid():
        raise NotPrivateError(errno.EPERM, "it belongs to another user")
    if found.st_mode & forbidden:
        raise NotPrivateError(errno.EPERM, "it is open to other users")


def replace(path: Path, content: bytes, *, mode: int | None = 0o600) -> None:
    """Write a file in one step, so that a reader, or a crash, finds the old content or all of the new.

    Without a mode, a file gets the permissions any new file of this user gets.

    Raises:
        OSError: It cannot be written; the old content is still there.
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
    """Read to the end of a file, but no more than `most` bytes, whatever its status claims."""
    parts: list[bytes] = []
    while most > 0 and (part := os.read(descriptor, min(most, _CHUNK))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def write_whole(descriptor: int, content: bytes) -> None:
    """Write all of `content`, in as many pieces as the system wants."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(path: Path) -> None:
    """Make the names in a folder as lasting as the files; where folders cannot be synced, do nothing."""
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
    """Remove what writers that died left in a folder, and return how many files that were.

    Leave `older_than` as it is unless the caller holds the lock every writer takes.
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
    """Give a file that must not be used a dated name beside its own; None when it is gone.

    Of those set aside earlier the newest are kept, so that nobody can fill a disk this way.

    Raises:
        OSError: It cannot be renamed.
    """
    prefix = f"{path.name}.{reason}-"
    kept = sorted(found.name for found in path.parent.iterdir() if found.name.startswith(prefix))
    for name in kept[: max(0, len(kept) - MOST_SET_ASIDE + 1)]:
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
    """Keep every other thread and process out that takes the same lock file; the file itself stays.

    The system releases the lock of a process that dies.

    Raises:
        SourceError: Someone else held the lock for all of `timeout` seconds.
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
        "the host's state is in use by another process, which did not let go of it in time",
        fix="try again, or end the other process",
    )


def _read_small(descriptor: int, most: int) -> bytes:
    content = read_up_to(descriptor, most + 1)
    if len(content) > most:
        raise NotPrivateError(errno.EFBIG, f"it is larger than {most} bytes")
    return content
