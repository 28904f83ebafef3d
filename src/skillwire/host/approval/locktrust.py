"""Which locks the user has looked at: a lock that changed outside skillwire counts only after that."""

import hashlib
import json
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from skillwire.host.approval.approvals import Approval
from skillwire.host.approval.lockfile import (
    InvalidLockError,
    Lock,
    LockDifference,
    lock_bytes,
    parse_lock,
    put_lock,
    read_lock_bytes,
)
from skillwire.host.approval.rows import fields, id_row, items, parse_id, text
from skillwire.host.failures import LockUntrustedError
from skillwire.host.origin import OriginKind, SkillId
from skillwire.host.refusals import Refusal
from skillwire.host.state.seal import SealedFolder

MOST_LOCKS = 256

Pin: TypeAlias = tuple[SkillId, str]
"""A skill of a lock, with the binding of the content that was pinned."""

_VERSION = 1
_RECORD = frozenset({"version", "path", "contents", "revoked"})
_PIN = frozenset({"label", "fingerprint", "uri", "binding"})
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

    All of it is about the same bytes, which are `lock.content`. To trust
    them is to pass exactly these to `LockTrust.trust`. `trusted` is the lock
    that the user has seen last, and `revoked` are pins that count no more,
    because a server was seen to show other content.
    """

    state: LockState
    lock: Lock | None
    difference: LockDifference
    trusted: Lock | None = None
    revoked: frozenset[Pin] = frozenset()


@dataclass(frozen=True, slots=True)
class _Record:
    """What is remembered of one lock: the bytes that are trusted, the newest last, and pins that ended.

    Both are in one file, so that whoever removes it gains nothing by it.
    """

    contents: tuple[bytes, ...] = ()
    revoked: frozenset[Pin] = frozenset()


class LockTrust:
    """Remembers, for the real path of each lock, the exact bytes the user trusted, and pins that ended.

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
            return LockReview(state, lock, LockDifference(), lock, trusted.revoked)
        last = _last(trusted)
        return LockReview(state, lock, LockDifference.between(last, lock), last, trusted.revoked)

    def trust(self, path: Path, content: bytes) -> None:
        """Trust a lock whose `content` the user has seen; all its pins count then.

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
            self._remember(path, _Record((content,)))

    def revoke(self, path: Path, pin: Pin) -> None:
        """Let a pin count no more, until the user looks at the lock again.

        Raises:
            SourceError: It cannot be written down.
        """
        with self._changing, self._folder.locked():
            record = self._trusted(path, is_locked=True)
            if record.contents and pin not in record.revoked:
                self._remember(path, replace(record, revoked=record.revoked | {pin}))

    def write(self, path: Path, approvals: Iterable[Approval]) -> Lock:
        """Write a lock and trust it, unless that would lend trust to what nobody has seen.

        Pins that ended are for the caller to leave out: all that are written count.

        Raises:
            LockUntrustedError: The lock that is there is not trusted.
            InvalidLockError: The approvals cannot be in a lock, or it cannot be written.
            SourceError: It cannot be written down.
        """
        content = lock_bytes(approvals)
        with self._changing, self._folder.locked():
            before, record = read_lock_bytes(path), self._trusted(path, is_locked=True)
            if _state(before, record) not in (LockState.TRUSTED, LockState.ABSENT):
                raise LockUntrustedError(
                    "the lock changed outside skillwire, and nobody has looked at it since",
                    reference=path.name,
                )
            # Both count until the file is written, so that a crash between leaves a trusted lock.
            both = (content,) if before is None else (before, content)
            self._remember(path, replace(record, contents=both))
            put_lock(path, content)
            self._remember(path, _Record((content,)))
        return parse_lock(content, path.name)

    def distrust(self, path: Path) -> bool:
        """Forget that a lock was trusted; false when it was not.

        Raises:
            SourceError: It cannot be forgotten.
        """
        with self._changing, self._folder.locked():
            return self._folder.remove(_name(path))

    def _trusted(self, path: Path, *, is_locked: bool = False) -> _Record:
        load = self._folder.load_locked if is_locked else self._folder.load
        place = _place(path)
        return load(_name(path), lambda record: _parse_record(record, place)) or _Record()

    def _remember(self, path: Path, record: _Record) -> None:
        self._trusted(path, is_locked=True)
        pins = [{**id_row(skill), "binding": binding} for skill, binding in record.revoked]
        document = {
            "version": _VERSION,
            "path": _place(path),
            "contents": [content.decode("utf-8") for content in record.contents],
            "revoked": sorted(pins, key=lambda pin: [str(value) for value in pin.values()]),
        }
        self._folder.save(_name(path), json.dumps(document).encode())
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        with suppress(OSError):
            found = [path for path in self._folder.directory.iterdir() if _is_record(path.name)]
            for path in sorted(found, key=lambda path: path.lstat().st_mtime_ns)[:-MOST_LOCKS]:
                path.unlink()


def _state(content: bytes | None, trusted: _Record) -> LockState:
    if content is None:
        return LockState.ABSENT
    if content in trusted.contents:
        return LockState.TRUSTED
    return LockState.CHANGED if trusted.contents else LockState.NEW


def _last(trusted: _Record) -> Lock | None:
    with suppress(InvalidLockError):
        return parse_lock(trusted.contents[-1]) if trusted.contents else None
    return None


def _place(path: Path) -> str:
    """Return the one name of a lock, whatever links lead to its folder."""
    return str(Path(os.path.realpath(path.parent)) / path.name)


def _name(path: Path) -> str:
    return f"{_PREFIX}{hashlib.sha256(os.fsencode(_place(path))).hexdigest()}.json"


def _is_record(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(".json")


def _parse_record(content: bytes, place: str) -> _Record:
    record = fields(json.loads(content), _RECORD)
    contents = items(record["contents"], "contents")
    if record["version"] != _VERSION or record["path"] != place or not contents:
        raise ValueError("it is not the record of this lock")
    pins = [fields(row, _PIN) for row in items(record["revoked"], "revoked")]
    return _Record(
        tuple(known.encode() for known in contents if isinstance(known, str)),
        frozenset((parse_id(row, OriginKind.SERVER), text(row, "binding")) for row in pins),
    )
