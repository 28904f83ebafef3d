"""Private files and folders of this user: checked when read, replaced atomically, changed under a lock.

A reader sees either the old content or the new, even if the writer crashes.
Nothing here follows a link or blocks on a FIFO.
"""

import errno
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, NoReturn, TypeAlias, TypeVar, cast

from skillwire.core import LimitError, SourceError, quoted
from skillwire.host.model import Refusal, RefusedError

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


# Sealed files: each carries a message authentication code, so that changes by other programs are detected.
# The key is in a file in the same folder, or comes from the embedder. A seal does not protect against a
# program that can read all files of this user.


KEY_FILE = "key"
KEY_BYTES = 32
LOCK_FILE = ".lock"
MAX_SEALED_BYTES = 32 * 1024 * 1024

Stamp: TypeAlias = tuple[int, int, int, int] | None
"""A value that changes whenever a file is replaced; None without a file."""

_MAGIC = b"skillwire-sealed-1"
_LONGEST_HEAD = 256

T = TypeVar("T")

logger = logging.getLogger(__name__)


class TamperedError(RefusedError):
    """A sealed file was changed by another program; its content is ignored."""

    refusal = "state-tampered"

    def __init__(self, message: str, *, reference: str, is_key: bool = False) -> None:
        super().__init__(message, reference=reference)
        self.is_key = is_key


class SealedFolder:
    """A private folder of sealed files.

    A file that was tampered with counts as absent: it is renamed with a date,
    and `tampering` is set from then on. Every write carries a higher number
    than the one before, so an older copy of a file that was already read is
    not accepted.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        self.directory = directory
        self.tampering: Refusal | None = None
        self._given_key = key
        self._newest: dict[str, int] = {}

    @contextmanager
    def locked(self) -> Generator[None]:
        """Create the folder and lock it against other writers.

        Raises:
            SourceError: Another process holds it, or the folder cannot be used.
        """
        try:
            make_folder(self.directory)
            with locked(self.directory / LOCK_FILE):
                yield
        except OSError as error:
            _raise_source_error("the host's state cannot be written", error)

    def load(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Return the parsed file `name`; None when it is absent or was tampered with.

        Content that `parse` rejects with a ValueError counts as tampered with, even if its seal is valid.

        Raises:
            SourceError: The file cannot be read now.
        """
        try:
            return self._open(name, parse)
        except TamperedError as first:
            # File and key may have been replaced between two reads, so read again under the lock.
            try:
                with self.locked():
                    return self.load_locked(name, parse)
            except SourceError as error:
                logger.warning("a tampered file could not be set aside: %s", error)
                self.tampering = Refusal.of(first)
                return None

    def load_locked(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Load a file like `load`, for a caller that holds the lock.

        Raises:
            SourceError: The file cannot be read now, or a tampered file cannot be set aside.
        """
        try:
            return self._open(name, parse)
        except TamperedError as error:
            self.tampering = Refusal.of(error)
            self._set_aside(name)
            if error.is_key:
                self._set_aside(KEY_FILE)
            return None

    def save(self, name: str, content: bytes) -> None:
        """Seal `content` and write it to `name`, for a caller that holds the lock and has loaded the file.

        Raises:
            LimitError: It is too large.
            SourceError: It cannot be written; the old content is unchanged.
        """
        if len(content) > MAX_SEALED_BYTES:
            raise LimitError("the host's state is full", fix="revoke some approvals")
        number = max(self._newest.get(name, 0) + 1, time.time_ns() // 1_000_000)
        try:
            key = self._key_to_write()
            head = b"%s %d %s\n" % (_MAGIC, number, _mac(key, name, number, content).encode())
            replace(self.directory / name, head + content)
            remove_leftovers(self.directory, older_than=0)
        except OSError as error:
            _raise_source_error("the host's state cannot be written", error)
        self._newest[name] = number

    def remove(self, name: str) -> bool:
        """Remove a file, for a caller that holds the lock.

        Raises:
            SourceError: It cannot be removed.
        """
        try:
            (self.directory / name).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            _raise_source_error("the host's state cannot be written", error)
        return True

    def _open(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        sealed = self._read(name, MAX_SEALED_BYTES + _LONGEST_HEAD)
        if sealed is None:
            return None
        end = sealed.find(b"\n", 0, _LONGEST_HEAD)
        parts = sealed[: max(end, 0)].split(b" ")
        if len(parts) != 3 or parts[0] != _MAGIC or not (parts[1].isdigit() and len(parts[1]) <= 20):
            raise TamperedError(f"{name} has no seal", reference=name)
        number, content = int(parts[1]), sealed[end + 1 :]
        key = self._key()
        if key is None:
            raise TamperedError(f"the key of {name} is missing", reference=name)
        if not hmac.compare_digest(_mac(key, name, number, content).encode(), parts[2]):
            raise TamperedError(f"{name} was changed by another program", reference=name)
        if number < self._newest.get(name, 0):
            raise TamperedError(f"{name} was replaced by an older copy", reference=name)
        try:
            parsed = parse(content)
        except ValueError as error:
            raise TamperedError(f"{name} cannot be parsed", reference=name) from error
        self._newest[name] = number
        return parsed

    def _key(self) -> bytes | None:
        if self._given_key is not None:
            return self._given_key
        key = self._read(KEY_FILE, KEY_BYTES, is_key=True)
        if key is not None and len(key) != KEY_BYTES:
            raise TamperedError("the host's key has the wrong length", reference=KEY_FILE, is_key=True)
        return key

    def _key_to_write(self) -> bytes:
        """Return the key, or create one if there is no usable key."""
        try:
            found = self._key()
        except TamperedError as error:
            self.tampering = Refusal.of(error)
            self._set_aside(KEY_FILE)
            found = None
        if found is not None:
            return found
        key = secrets.token_bytes(KEY_BYTES)
        replace(self.directory / KEY_FILE, key)
        return key

    def _read(self, name: str, most: int, *, is_key: bool = False) -> bytes | None:
        try:
            return read_private(self.directory / name, most=most, secret=is_key)
        except (NotPrivateError, PermissionError, IsADirectoryError) as error:
            reason = f"{name} is not a private file of this user"
            raise TamperedError(reason, reference=name, is_key=is_key) from error
        except OSError as error:
            _raise_source_error("the host's state cannot be read", error)

    def _set_aside(self, name: str) -> None:
        try:
            target = set_aside(self.directory / name, "tampered")
        except OSError as error:
            _raise_source_error("a tampered file cannot be set aside", error)
        if target is not None:
            logger.warning("%s was tampered with; it is ignored and kept as %s", name, target.name)


class SealedTable(Generic[T]):
    """The content of one sealed file: `empty` while there is none, or none that can be used."""

    def __init__(
        self,
        folder: SealedFolder,
        name: str,
        empty: T,
        parse: Callable[[bytes], T],
        write: Callable[[T], bytes],
    ) -> None:
        self.folder = folder
        self._name = name
        self._empty = empty
        self._parse = parse
        self._write = write

    @property
    def stamp(self) -> Stamp:
        """A stamp of the file, to detect without reading whether it was replaced."""
        try:
            found = os.lstat(self.folder.directory / self._name)
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def read(self) -> T:
        """Return the content.

        Raises:
            SourceError: The file cannot be read now.
        """
        found = self.folder.load(self._name, self._parse)
        return self._empty if found is None else found

    def read_or_empty(self) -> T:
        """Return the content; if it cannot be read, log that and return what an empty file contains."""
        try:
            return self.read()
        except SourceError as error:
            logger.warning("%s is ignored because it cannot be read: %s", self._name, error)
            return self._empty

    def change(self, change: Callable[[T], T], done: Callable[[T], None] | None = None) -> tuple[T, T]:
        """Apply a change, locked against other processes; return the content before and after.

        `done` is called with the new content before the lock is released.

        Raises:
            LimitError: It would be too large.
            SourceError: It cannot be written; the old content is unchanged.
        """
        with self.folder.locked():
            found = self.folder.load_locked(self._name, self._parse)
            before = self._empty if found is None else found
            after = change(before)
            if after != before:
                self.folder.save(self._name, self._write(after))
            if done is not None:
                done(after)
        return before, after


# Strict reading of stored rows: missing, unknown and invalid fields are errors.


Row: TypeAlias = dict[str, object]

MAX_TEXT = 1000


def fields(value: object, names: Set[str], optional: Set[str] = frozenset()) -> Row:
    """Check that a value is a mapping with these fields and at most the optional ones, and return it.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(value, Mapping):
        raise ValueError("it is not a table of fields")
    row = cast(Row, value)
    missing, unknown = names - row.keys(), row.keys() - names - optional
    if missing:
        raise ValueError(f"it has no `{min(missing)}`")
    if unknown:
        raise ValueError(f"it has the unknown field {quoted(min(unknown))}")
    return row


def items(value: object, name: str) -> Sequence[object]:
    """Return a value that must be a list.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is not a list")
    return cast(list[object], value)


def text(row: Row, name: str, most: int = MAX_TEXT, *, least: int = 1) -> str:
    """Return a field that must be a text.

    Raises:
        ValueError: It is not, or is too short or too long.
    """
    value = row[name]
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise ValueError(f"`{name}` is not a text of {least} to {most} characters")
    return value


def _mac(key: bytes, name: str, number: int, content: bytes) -> str:
    """Return the authentication code of the content, bound to the file name and the number."""
    made = hmac.new(key, b"%s\0%s\0%d\0" % (_MAGIC, name.encode(), number), hashlib.sha256)
    made.update(content)
    return made.hexdigest()


def _raise_source_error(message: str, error: OSError) -> NoReturn:
    raise SourceError(f"{message}: {error.strerror or type(error).__name__}") from error
