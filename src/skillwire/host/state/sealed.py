"""Sealed files: each carries a message authentication code, so that changes by other programs are detected.

The key is in a file in the same folder, or comes from the embedder. A seal
detects changes by other programs; it does not protect against a program that
can read all files of this user.
"""

import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, NoReturn, TypeAlias, TypeVar, cast

from skillwire.core import LimitError, SourceError, quoted
from skillwire.host.model import Refusal, RefusedError
from skillwire.host.state.vault import (
    NotPrivateError,
    locked,
    make_folder,
    read_private,
    remove_leftovers,
    replace,
    set_aside,
)

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

    def stamp(self, name: str) -> Stamp:
        """Return a stamp of a file, to detect without reading whether it was replaced."""
        try:
            found = os.lstat(self.directory / name)
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

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
        return self.folder.stamp(self._name)

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
