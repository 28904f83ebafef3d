"""The folders of the cache, opened by descriptors so that links in them are never followed.

A link or file in place of a folder is removed, never followed. Names of other
forms are left alone.
"""

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skillwire.core import SourceError
from skillwire.host.state.vault import (
    STALE_AFTER,
    NotPrivateError,
    check_private,
    is_temporary,
    read_up_to,
    temporary_name,
    write_whole,
)

# Without folder descriptors (Windows) the cache cannot be used safely.
IS_SUPPORTED = os.open in os.supports_dir_fd and os.utime in os.supports_fd

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NOFOLLOW
_READ = os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0)
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
_LINKED = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})
_NAME = re.compile(r"[0-9a-f]{64}")
_SHARD = re.compile(r"[0-9a-f]{2}")
_BEING_REMOVED = re.compile(r"\.gone-[0-9a-f]{16}")


@contextmanager
def folder(name: str | os.PathLike[str], above: int | None = None, *, make: bool = False) -> Generator[int]:
    """Open a folder, relative to the folder `above` if given, without following links.

    Raises:
        FileNotFoundError: There is none; a link or file of that name was removed.
        OSError: It cannot be opened.
    """
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=above)
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=above)
    except OSError as error:
        if error.errno in _LINKED and above is not None:
            os.unlink(name, dir_fd=above)
            raise FileNotFoundError(errno.ENOENT, "a link was in place of a folder") from error
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read(above: int, name: str, most: int, *, touch: bool = False) -> bytes:
    """Read at most `most` bytes of a file; with `touch`, update its time of last use.

    Raises:
        NotPrivateError: It is a link, not a regular file, another user's, or has several hard links.
        OSError: It cannot be read.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=above)
    except OSError as error:
        if error.errno in _LINKED:
            raise NotPrivateError(error.errno, "it is a link") from error
        raise
    try:
        found = os.fstat(descriptor)
        check_private(found)
        if found.st_nlink != 1:
            raise NotPrivateError(errno.EMLINK, "it has several hard links")
        content = read_up_to(descriptor, most)
        if touch:
            with suppress(OSError):
                os.utime(descriptor)
        return content
    finally:
        os.close(descriptor)


def write(above: int, name: str, content: bytes) -> None:
    """Write a file atomically, readable by this user only and not executable.

    Raises:
        OSError: It cannot be written; nothing of it is left.
    """
    temporary = temporary_name()
    try:
        descriptor = os.open(temporary, CREATE, 0o600, dir_fd=above)
        try:
            write_whole(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        remove(above, temporary)
        raise
    os.fsync(above)


def remove(above: int, name: str) -> bool:
    """Remove a file, a link, or a folder of that name; False when that fails."""
    try:
        return remove_tree(above, name) if _is_folder(above, name) else _unlink(above, name)
    except OSError:
        return False


def remove_tree(above: int, name: str) -> bool:
    """Remove a folder and its contents; False when there is none.

    It is renamed first, so that a crash does not leave it half removed under its own name.

    Raises:
        OSError: Not all of it can be removed.
    """
    gone = f".gone-{secrets.token_hex(8)}"
    try:
        os.rename(name, gone, src_dir_fd=above, dst_dir_fd=above)
    except FileNotFoundError:
        return False
    _remove_renamed(above, gone)
    return True


@contextmanager
def opened(root: Path, subject: str) -> Generator[int | None]:
    """Open a folder for a user's command; yield None when there is none.

    Raises:
        SourceError: The folder cannot be used; the message starts with `subject`.
    """
    if not (IS_SUPPORTED and os.path.lexists(root)):
        yield None
        return
    try:
        with folder(root) as inside:
            yield inside
    except OSError as error:
        raise SourceError(f"{subject} cannot be used: {error.strerror or type(error).__name__}") from error


def is_name(name: str) -> bool:
    """Return whether a name is one that the cache gives: 64 hex digits."""
    return _NAME.fullmatch(name) is not None


def origins(root: int) -> list[str]:
    """Return the names of all folders or files in a folder whose names the cache gave, such as origins."""
    return sorted(filter(is_name, _names(root)))


def shards(inside: int) -> list[str]:
    """Return the names of the folders for files, each of two hex digits, in the folder of an origin."""
    return [name for name in _names(inside) if _SHARD.fullmatch(name)]


def statuses(opened: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the name and status of each item in a folder, in no order."""
    with os.scandir(opened) as entries:
        for entry in entries:
            with suppress(OSError):
                yield entry.name, entry.stat(follow_symlinks=False)


def remove_leftovers(root: int, *, older_than: float = STALE_AFTER) -> int:
    """Remove leftovers of interrupted writes and removals, and return their number."""
    oldest = time.time() - older_than
    removed = _remove_leftovers(root, oldest)
    for origin in origins(root):
        with suppress(OSError), folder(origin, root) as inside:
            removed += _remove_leftovers(inside, oldest)
            for name in shards(inside):
                with suppress(OSError), folder(name, inside) as shard:
                    removed += _remove_leftovers(shard, oldest)
    return removed


def age(above: int, name: str) -> float:
    """Return the seconds since an item of a folder last changed."""
    return time.time() - os.stat(name, dir_fd=above, follow_symlinks=False).st_mtime


def _names(descriptor: int) -> list[str]:
    return os.listdir(descriptor)


def _remove_leftovers(descriptor: int, oldest: float) -> int:
    removed = 0
    for name in _names(descriptor):
        with suppress(OSError):
            if _BEING_REMOVED.fullmatch(name):
                _remove_renamed(descriptor, name)
                removed += 1
            elif is_temporary(name):
                if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mtime <= oldest:
                    removed += remove(descriptor, name)
    return removed


def _remove_renamed(above: int, name: str) -> None:
    if _is_folder(above, name):
        _make_writable(above, name)
        shutil.rmtree(name, dir_fd=above)
    else:
        os.unlink(name, dir_fd=above)


def _make_writable(above: int, name: str) -> None:
    """Make a folder and those inside it writable, so that their files can be removed."""
    with suppress(OSError), folder(name, above) as opened:
        os.fchmod(opened, 0o700)
        for inside in _names(opened):
            if _is_folder(opened, inside):
                _make_writable(opened, inside)


def _unlink(above: int, name: str) -> bool:
    os.unlink(name, dir_fd=above)
    return True


def _is_folder(above: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
