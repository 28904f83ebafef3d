"""Which locks the user has looked at: a lock that changed outside skillwire counts only after that."""

import hashlib
import json
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from skillwire.host.approvals import Approval
from skillwire.host.failures import LockUntrustedError
from skillwire.host.lockfile import (
    InvalidLockError,
    Lock,
    LockDifference,
    lock_bytes,
    parse_lock,
    put_lock,
    read_lock_bytes,
)
from skillwire.host.refusals import Refusal
from skillwire.host.rows import fields, items
from skillwire.host.seal import SealedFolder

MOST_LOCKS = 256

_VERSION = 1
_RECORD = frozenset({"version", "path", "contents"})
_PREFIX = "lock-"


class LockState(StrEnum):
    """How the lock of a project stands to what the user has seen of it."""

    TRUSTED = "trusted"
    CHANGED = "changed"
    """The user trusted it once, and it has other bytes now."""
    NEW = "new"
    """The user never trusted a lock at this place."""
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class LockReview:
    """One look at a lock: how it stands, what it says, and how that differs from what was trusted.

    All three are about the same bytes, which are `lock.content`. To trust
    them is to pass exactly these to `LockTrust.trust`.
    """

    state: LockState
    lock: Lock | None
    difference: LockDifference


class LockTrust:
    """Remembers, for the real path of each lock, the exact bytes the user trusted.

    Records are sealed files in the folder of the approvals. One that was
    tampered with is as good as none, and `tampering` says so.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        self._folder = SealedFolder(directory, key=key)
        self._changing = threading.Lock()

    @property
    def tampering(self) -> Refusal | None:
        return self._folder.tampering

    def state(self, path: Path) -> LockState:
        """Tell how a lock stands, whatever it says.

        Raises:
            InvalidLockError: It cannot be read.
            SourceError: What was trusted cannot be read.
        """
        return _state(read_lock_bytes(path), self._trusted(path))

    def difference(self, path: Path) -> LockDifference:
        """Tell what the user has not seen yet: how a lock differs from what was trusted last."""
        return self.review(path).difference

    def review(self, path: Path) -> LockReview:
        """Look at a lock once.

        Raises:
            InvalidLockError: It cannot be read, or is not valid.
            SourceError: What was trusted cannot be read.
        """
        content, trusted = read_lock_bytes(path), self._trusted(path)
        lock = None if content is None else parse_lock(content, path.name)
        state = _state(content, trusted)
        if state is LockState.TRUSTED:
            return LockReview(state, lock, LockDifference())
        return LockReview(state, lock, LockDifference.between(_last(trusted), lock))

    def trust(self, path: Path, content: bytes) -> None:
        """Trust a lock whose `content` the user has seen.

        Raises:
            LockUntrustedError: The file has other bytes by now, which nobody has seen.
            InvalidLockError: It is not a valid lock.
            SourceError: It cannot be written down.
        """
        parse_lock(content, path.name)
        with self._changing, self._folder.locked():
            if read_lock_bytes(path) != content:
                raise LockUntrustedError(
                    "the lock changed while it was looked at", reference=path.name, fix="look at it again"
                )
            self._remember(path, [content])

    def write(self, path: Path, approvals: Iterable[Approval]) -> Lock:
        """Write a lock and trust it, unless that would lend trust to what nobody has seen.

        Raises:
            LockUntrustedError: The lock that is there is not trusted.
            InvalidLockError: The approvals cannot be in a lock, or it cannot be written.
            SourceError: It cannot be written down.
        """
        content = lock_bytes(approvals)
        with self._changing, self._folder.locked():
            before = read_lock_bytes(path)
            if _state(before, self._trusted(path, is_locked=True)) not in (
                LockState.TRUSTED,
                LockState.ABSENT,
            ):
                raise LockUntrustedError(
                    "the lock changed outside skillwire, and nobody has looked at it since",
                    reference=path.name,
                )
            # Both count until the file is written, so that a crash between leaves a trusted lock.
            self._remember(path, [content] if before is None else [before, content])
            put_lock(path, content)
            self._remember(path, [content])
        return parse_lock(content, path.name)

    def distrust(self, path: Path) -> bool:
        """Forget that a lock was trusted; false when it was not.

        Raises:
            SourceError: It cannot be forgotten.
        """
        with self._changing, self._folder.locked():
            return self._folder.remove(_name(path))

    def _trusted(self, path: Path, *, is_locked: bool = False) -> list[bytes]:
        """Return the bytes that count as trusted, the newest last."""
        load = self._folder.load_locked if is_locked else self._folder.load
        place = _place(path)
        return load(_name(path), lambda record: _parse_record(record, place)) or []

    def _remember(self, path: Path, contents: list[bytes]) -> None:
        self._trusted(path, is_locked=True)
        record = {
            "version": _VERSION,
            "path": _place(path),
            "contents": [content.decode("utf-8") for content in contents],
        }
        self._folder.save(_name(path), json.dumps(record).encode())
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        with suppress(OSError):
            found = [path for path in self._folder.directory.iterdir() if _is_record(path.name)]
            for path in sorted(found, key=lambda path: path.lstat().st_mtime_ns)[:-MOST_LOCKS]:
                path.unlink()


def _state(content: bytes | None, trusted: list[bytes]) -> LockState:
    if content is None:
        return LockState.ABSENT
    if content in trusted:
        return LockState.TRUSTED
    return LockState.CHANGED if trusted else LockState.NEW


def _last(trusted: list[bytes]) -> Lock | None:
    with suppress(InvalidLockError):
        return parse_lock(trusted[-1]) if trusted else None
    return None


def _place(path: Path) -> str:
    """Return the one name of a lock, whatever links lead to its folder."""
    return str(Path(os.path.realpath(path.parent)) / path.name)


def _name(path: Path) -> str:
    return f"{_PREFIX}{hashlib.sha256(os.fsencode(_place(path))).hexdigest()}.json"


def _is_record(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(".json")


def _parse_record(content: bytes, place: str) -> list[bytes]:
    record = fields(json.loads(content), _RECORD)
    contents = items(record["contents"], "contents")
    if record["version"] != _VERSION or record["path"] != place or not contents:
        raise ValueError("it is not the record of this lock")
    return [text.encode() for text in contents if isinstance(text, str)]
