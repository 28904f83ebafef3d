"""Sealed files: each carries a code that only a holder of the key can make, so a change by anyone else shows.

The key lies in a file of its own beside them, or comes from the embedder. A
seal tells what another program changed; it is no secret kept from a program
that may read everything this user may.
"""

import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeAlias, TypeVar

from skillwire.errors import LimitError, SourceError
from skillwire.host.failures import RefusedError
from skillwire.host.refusals import Refusal
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
"""What changes whenever a file is replaced; None where there is none."""

_MARK = b"skillwire-sealed-1"
_LONGEST_HEAD = 256

T = TypeVar("T")

logger = logging.getLogger(__name__)


class TamperedError(RefusedError):
    """A sealed file is not as a holder of the key left it; nothing in it counts."""

    refusal = "state-tampered"
    requirement = "APPR-01"

    def __init__(self, message: str, *, reference: str, is_key: bool = False) -> None:
        super().__init__(message, reference=reference)
        self.is_key = is_key


class SealedFolder:
    """A private folder of sealed files.

    A file that was tampered with is as good as absent: it is set aside under a
    dated name, and `tampering` says so from then on. Every write carries a
    higher number than the one before, so a folder that has seen a file does
    not accept an older copy of it.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        self.directory = directory
        self.tampering: Refusal | None = None
        self._given = key
        self._newest: dict[str, int] = {}

    def stamp(self, name: str) -> Stamp:
        """Tell, without reading it, whether a file was replaced since another stamp was taken."""
        try:
            found = os.lstat(self.directory / name)
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Make the folder and keep every other writer out of it.

        Raises:
            SourceError: Another process holds it, or the folder cannot be used.
        """
        try:
            make_folder(self.directory)
            with locked(self.directory / LOCK_FILE):
                yield
        except OSError as error:
            _give_up("the host's state cannot be written", error)

    def load(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Return what `parse` makes of the file `name`; None when there is nothing that counts.

        What `parse` rejects with a ValueError was not written by this program, whatever its seal says.

        Raises:
            SourceError: The file may be sound, but cannot be read now.
        """
        try:
            return self._open(name, parse)
        except TamperedError as first:
            # It may have been replaced between two looks at it, so look again when nobody can.
            try:
                with self.locked():
                    return self.load_locked(name, parse)
            except SourceError as error:
                logger.warning("a tampered file could not be set aside: %s", error)
                self.tampering = Refusal.of(first)
                return None

    def load_locked(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Do the same as `load` for a caller that holds the lock.

        Raises:
            SourceError: The file cannot be read now, or a tampered one not be set aside.
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
        """Seal `content` and put it under `name`, for a caller that holds the lock and has loaded the file.

        Raises:
            LimitError: It is too large.
            SourceError: It cannot be written; what was there before still is.
        """
        if len(content) > MAX_SEALED_BYTES:
            raise LimitError("there is no room to remember more", fix="revoke some approvals")
        number = max(self._newest.get(name, 0) + 1, time.time_ns() // 1_000_000)
        try:
            key = self._key_to_write()
            head = b"%s %d %s\n" % (_MARK, number, _code(key, name, number, content).encode())
            replace(self.directory / name, head + content)
            remove_leftovers(self.directory, older_than=0)
        except OSError as error:
            _give_up("the host's state cannot be written", error)
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
            _give_up("the host's state cannot be written", error)
        return True

    def _open(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        sealed = self._read(name, MAX_SEALED_BYTES + _LONGEST_HEAD)
        if sealed is None:
            return None
        end = sealed.find(b"\n", 0, _LONGEST_HEAD)
        parts = sealed[: max(end, 0)].split(b" ")
        if len(parts) != 3 or parts[0] != _MARK or not (parts[1].isdigit() and len(parts[1]) <= 20):
            raise TamperedError(f"{name} carries no seal", reference=name)
        number, content = int(parts[1]), sealed[end + 1 :]
        key = self._key()
        if key is None:
            raise TamperedError(f"the key {name} was sealed with is gone", reference=name)
        if not hmac.compare_digest(_code(key, name, number, content).encode(), parts[2]):
            raise TamperedError(f"{name} was changed by something else", reference=name)
        if number < self._newest.get(name, 0):
            raise TamperedError(f"{name} was replaced by an older copy of itself", reference=name)
        try:
            parsed = parse(content)
        except ValueError as error:
            raise TamperedError(f"{name} cannot be understood", reference=name) from error
        self._newest[name] = number
        return parsed

    def _key(self) -> bytes | None:
        if self._given is not None:
            return self._given
        key = self._read(KEY_FILE, KEY_BYTES, is_key=True)
        if key is not None and len(key) != KEY_BYTES:
            raise TamperedError("the host's key is broken", reference=KEY_FILE, is_key=True)
        return key

    def _key_to_write(self) -> bytes:
        """Return the key, or a new one where there is none that could be used."""
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
            _give_up("the host's state cannot be read", error)

    def _set_aside(self, name: str) -> None:
        try:
            target = set_aside(self.directory / name, "tampered")
        except OSError as error:
            _give_up("a tampered file cannot be set aside", error)
        if target is not None:
            logger.warning("%s was tampered with; it is kept as %s and counts no more", name, target.name)


def _code(key: bytes, name: str, number: int, content: bytes) -> str:
    """Return the code over the exact bytes, bound to the file they are for and to their number."""
    made = hmac.new(key, b"%s\0%s\0%d\0" % (_MARK, name.encode(), number), hashlib.sha256)
    made.update(content)
    return made.hexdigest()


def _give_up(message: str, error: OSError) -> NoReturn:
    raise SourceError(f"{message}: {error.strerror or type(error).__name__}") from error
