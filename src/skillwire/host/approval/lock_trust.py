"""Trusted locks: a lock that changed outside skillwire counts only after the user has reviewed it."""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from skillwire.core import LimitError, SourceError
from skillwire.host.approval.lock import (
    InvalidLockError,
    Lock,
    LockDifference,
    Pins,
    lock_bytes,
    parse_lock,
    read_lock_bytes,
    write_lock_bytes,
)
from skillwire.host.approval.store import id_row, parse_id, site_row
from skillwire.host.model import (
    Approval,
    LockUntrustedError,
    Origin,
    OriginKind,
    Refusal,
    RefusedError,
    SkillId,
    binding_of,
)
from skillwire.host.state.vault import Row, SealedFolder, fields, items, text

MAX_LOCKS = 256

Pin: TypeAlias = tuple[SkillId, str]
"""A skill of a lock, with the binding of the content that was pinned."""

_VERSION = 1
_RECORD = frozenset({"version", "path", "contents", "revoked"})
_PIN = frozenset({"label", "fingerprint", "uri", "binding"})
_OPTIONAL = frozenset({"by", "kind"})
_USER = "user"
_PREFIX = "lock-"


class LockState(StrEnum):
    """Whether the user trusts the current bytes of a project's lock."""

    TRUSTED = "trusted"
    CHANGED = "changed"
    """The user trusted other bytes at this path."""
    NEW = "new"
    """The user never trusted a lock at this path."""
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class LockReview:
    """The state and content of a lock, and how it differs from what was trusted.

    All fields are about the same bytes, `lock.content`; pass these to
    `LockTrust.trust` to trust them. `trusted` is the lock that the user
    trusted last, and `revoked` are pins that no longer count, because their
    server listed other content, or, in `withdrawn`, because the user revoked them.
    """

    state: LockState
    lock: Lock | None
    difference: LockDifference
    trusted: Lock | None = None
    revoked: frozenset[Pin] = frozenset()
    withdrawn: frozenset[Pin] = frozenset()


@dataclass(frozen=True, slots=True)
class _LockRecord:
    """The stored record of one lock: the trusted bytes, the newest last, and revoked pins.

    Both are in one file, so that deleting it does not restore revoked pins.
    `withdrawn` are those of `revoked` that the user revoked.
    """

    contents: tuple[bytes, ...] = ()
    revoked: frozenset[Pin] = frozenset()
    withdrawn: frozenset[Pin] = frozenset()


class LockTrust:
    """Stores, for the real path of each lock, the exact bytes the user trusted, and revoked pins.

    Records are sealed files in the folder of the approvals. A record that was
    tampered with is ignored and reported in `tampering`.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        self._folder = SealedFolder(directory, key=key)
        self._changing = threading.Lock()

    @property
    def tampering(self) -> Refusal | None:
        return self._folder.tampering

    def state(self, path: Path) -> LockState:
        """Return the state of a lock, whether or not its content is valid.

        Raises:
            InvalidLockError: It cannot be read.
            SourceError: The stored record cannot be read.
        """
        return _state(read_lock_bytes(path), self._record(path))

    def difference(self, path: Path) -> LockDifference:
        """Return how a lock differs from what the user trusted last."""
        return self.review(path).difference

    def review(self, path: Path) -> LockReview:
        """Read a lock and compare it with what was trusted.

        Raises:
            InvalidLockError: It cannot be read, or is not valid.
            SourceError: The stored record cannot be read.
        """
        content, trusted = read_lock_bytes(path), self._record(path)
        lock = None if content is None else parse_lock(content, path.name)
        state = _state(content, trusted)
        if state is LockState.TRUSTED:
            return LockReview(state, lock, LockDifference(), lock, trusted.revoked, trusted.withdrawn)
        last = _last(trusted)
        difference = LockDifference.between(last, lock)
        return LockReview(state, lock, difference, last, trusted.revoked, trusted.withdrawn)

    def trust(self, path: Path, content: bytes) -> None:
        """Trust a lock whose `content` the user has reviewed; all its pins count from then on.

        Raises:
            LockUntrustedError: The file has other bytes by now, which were not reviewed.
            InvalidLockError: It is not a valid lock.
            SourceError: The record cannot be written.
        """
        parse_lock(content, path.name)
        with self._changing, self._folder.locked():
            if read_lock_bytes(path) != content:
                raise LockUntrustedError(
                    "the lock changed during the review", reference=path.name, fix="review it again"
                )
            self._save(path, _LockRecord((content,)))

    def revoke(self, path: Path, pin: Pin, *, by_user: bool = False) -> None:
        """Revoke a pin until the user trusts the lock again.

        Raises:
            SourceError: The record cannot be written.
        """
        with self._changing, self._folder.locked():
            record = self._record(path, is_locked=True)
            withdrawn = record.withdrawn | {pin} if by_user else record.withdrawn
            if record.contents and (pin not in record.revoked or withdrawn != record.withdrawn):
                self._save(path, replace(record, revoked=record.revoked | {pin}, withdrawn=withdrawn))

    def write(self, path: Path, approvals: Iterable[Approval]) -> Lock:
        """Write a lock and trust it, unless it replaces a lock that is not trusted.

        The caller leaves out revoked pins: all pins that are written count.

        Raises:
            LockUntrustedError: The existing lock is not trusted.
            InvalidLockError: The approvals cannot be in a lock, or it cannot be written.
            SourceError: The record cannot be written.
        """
        content = lock_bytes(approvals)
        with self._changing, self._folder.locked():
            before, record = read_lock_bytes(path), self._record(path, is_locked=True)
            if _state(before, record) not in (LockState.TRUSTED, LockState.ABSENT):
                raise LockUntrustedError(
                    "the lock changed outside skillwire and has not been reviewed since",
                    reference=path.name,
                )
            # Both versions are trusted until the file is written, so that a crash leaves a trusted lock.
            both = (content,) if before is None else (before, content)
            self._save(path, replace(record, contents=both))
            write_lock_bytes(path, content)
            self._save(path, _LockRecord((content,)))
        return parse_lock(content, path.name)

    def distrust(self, path: Path) -> bool:
        """Stop trusting a lock; False when it was not trusted.

        Raises:
            SourceError: The record cannot be removed.
        """
        with self._changing, self._folder.locked():
            return self._folder.remove(_file_name(path))

    def _record(self, path: Path, *, is_locked: bool = False) -> _LockRecord:
        load = self._folder.load_locked if is_locked else self._folder.load
        lock_path = _lock_path(path)
        return load(_file_name(path), lambda record: _parse_record(record, lock_path)) or _LockRecord()

    def _save(self, path: Path, record: _LockRecord) -> None:
        self._record(path, is_locked=True)
        pins = [
            {
                **id_row(skill),
                **site_row(skill),
                "binding": binding,
                **({"by": _USER} if (skill, binding) in record.withdrawn else {}),
            }
            for skill, binding in record.revoked
        ]
        document = {
            "version": _VERSION,
            "path": _lock_path(path),
            "contents": [content.decode("utf-8") for content in record.contents],
            "revoked": sorted(pins, key=lambda pin: [str(value) for value in pin.values()]),
        }
        self._folder.save(_file_name(path), json.dumps(document).encode())
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        with suppress(OSError):
            found = [path for path in self._folder.directory.iterdir() if _is_record(path.name)]
            for path in sorted(found, key=lambda path: path.lstat().st_mtime_ns)[:-MAX_LOCKS]:
                path.unlink()


def _state(content: bytes | None, trusted: _LockRecord) -> LockState:
    if content is None:
        return LockState.ABSENT
    if content in trusted.contents:
        return LockState.TRUSTED
    return LockState.CHANGED if trusted.contents else LockState.NEW


def _last(trusted: _LockRecord) -> Lock | None:
    with suppress(InvalidLockError):
        return parse_lock(trusted.contents[-1]) if trusted.contents else None
    return None


def _lock_path(path: Path) -> str:
    """Return the path of a lock with the links in its folder resolved."""
    return str(Path(os.path.realpath(path.parent)) / path.name)


def _file_name(path: Path) -> str:
    return f"{_PREFIX}{hashlib.sha256(os.fsencode(_lock_path(path))).hexdigest()}.json"


def _is_record(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(".json")


def _parse_record(content: bytes, lock_path: str) -> _LockRecord:
    record = fields(json.loads(content), _RECORD)
    contents = items(record["contents"], "contents")
    if record["version"] != _VERSION or record["path"] != lock_path or not contents:
        raise ValueError("it is not the record of this lock")
    rows = [fields(row, _PIN, _OPTIONAL) for row in items(record["revoked"], "revoked")]
    pins = {(parse_id(row, _kind_of(row)), text(row, "binding")): row.get("by") for row in rows}
    return _LockRecord(
        tuple(known.encode() for known in contents if isinstance(known, str)),
        frozenset(pins),
        frozenset(pin for pin, by in pins.items() if by == _USER),
    )


def _kind_of(row: Row) -> OriginKind:
    return OriginKind(text(row, "kind")) if "kind" in row else OriginKind.SERVER


# A project's lock as the host applies it: frozen, trusted, or not reviewed yet.


logger = logging.getLogger(__name__)


class ProjectLock:
    """What a project's `skills.lock` allows.

    A frozen lock is used as it is, and is then the whole policy. Any other
    lock counts only while its bytes are those the user has trusted, so that
    write access to the file is not enough to approve anything.
    """

    def __init__(self, path: Path | None = None, *, is_frozen: bool = False) -> None:
        self.path = path
        self.is_frozen = is_frozen
        self._trust: LockTrust | None = None
        self._review: LockReview | None = None
        self._pins = self._trusted_pins = Pins(None)
        # Pins revoked in this run: they stay revoked even if that could not be written.
        self._revoked: set[Pin] = set()
        self._withdrawn: set[Pin] = set()

    def open(self, trust: LockTrust) -> None:
        """Read the lock.

        Raises:
            InvalidLockError: It cannot be read, or it should be frozen and there is none.
        """
        if self.is_frozen and self.path is None:
            raise InvalidLockError("a frozen lock is required, and none is given", fix="pass the lock's path")
        self._trust = trust
        self.reload()

    def reload(self) -> LockReview | None:
        """Read the file again and return its review; None when this host has no lock.

        Raises:
            InvalidLockError: It cannot be read.
        """
        if self.path is None or self._trust is None:
            return None
        self._review = self._trust.review(self.path)
        if self.is_frozen and self._review.lock is None:
            raise InvalidLockError("a frozen lock is required, and there is none", reference=self.path.name)
        self._pins, self._trusted_pins = Pins(self._review.lock), Pins(self._review.trusted)
        return self._review

    @property
    def is_trusted(self) -> bool:
        """Whether the user trusts the current content of the lock."""
        return self._review is not None and self._review.state is LockState.TRUSTED

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """The pins of the lock that count."""
        lock = self._lock if self.is_frozen or self.is_trusted else None
        return () if lock is None else tuple(filter(self._counts, lock.approvals))

    def pin(self, skill: SkillId) -> Approval | None:
        """Return the pin of a skill, if it counts."""
        found = self._pins.find(skill) if self.is_frozen or self.is_trusted else None
        return found if found is not None and self._counts(found) else None

    def last_trusted_pin(self, skill: SkillId) -> Approval | None:
        """Return the pin of a skill in the lock that was trusted last, unless it was revoked.

        The file may have other content by now, and may return to this.
        """
        found = None if self.is_frozen else self._trusted_pins.find(skill)
        return found if found is not None and self._counts(found) else None

    def previous(self, skill: SkillId) -> Approval | None:
        """Return the pin of a skill in a trusted lock, even if revoked, to show what changed."""
        return self._pins.find(skill) if self.is_trusted else None

    def ended_by_change(self, skill: SkillId, binding: str) -> bool:
        """Return whether a pin of this content was revoked because its server listed something else."""
        found = None if self.is_frozen else self._trusted_pins.find(skill)
        pin = (skill, binding)
        if found is None or binding_of(found.manifest) != binding or self._counts(found):
            return False
        return pin not in self._withdrawn and (self._review is None or pin not in self._review.withdrawn)

    def revoke(self, skill: SkillId, *, by_user: bool = False) -> bool:
        """Revoke a pin until the user trusts the lock again; False when there was none that counted.

        Pins of a frozen lock cannot be revoked.
        """
        counted = self.last_trusted_pin(skill) is not None
        found = None if self.is_frozen or not (counted or by_user) else self._trusted_pins.find(skill)
        if found is None or self.path is None or self._trust is None:
            return False
        pin = (skill, binding_of(found.manifest))
        self._revoked.add(pin)
        if by_user:
            self._withdrawn.add(pin)
        try:
            self._trust.revoke(self.path, pin, by_user=by_user)
        except (SourceError, LimitError) as error:
            logger.error("a pin is revoked in this process only, because that cannot be written: %s", error)
        return counted

    def untrusted_pin(self, skill: SkillId) -> Approval | None:
        """Return the pin of a skill in a lock that is not trusted."""
        return None if self.is_frozen or self.is_trusted else self._pins.find(skill)

    def problems(self) -> tuple[Refusal, ...]:
        """Return why the lock does not count; empty when it does."""
        if self.path is None or self._lock is None or self.is_frozen or self.is_trusted:
            return ()
        return (Refusal("lock-untrusted", self.path.name),)

    def trust(self, content: bytes) -> None:
        """Trust the lock, whose `content` the user has reviewed.

        Raises:
            LockUntrustedError: It has other bytes by now.
            RefusedError: This host has no lock.
        """
        path, trust = self._require_lock()
        trust.trust(path, content)
        self._revoked.clear()
        self._withdrawn.clear()
        self.reload()

    def write(self, approvals: Iterable[Approval], origins: Iterable[Origin]) -> bytes:
        """Write the approvals of the skills of `origins` to the lock, trust it, and return its bytes.

        Pins that count and are not replaced stay.

        Raises:
            LockUntrustedError: The existing lock is not trusted.
            RefusedError: This host has no lock, or it is frozen.
        """
        path, trust = self._require_lock()
        if self.is_frozen:
            raise RefusedError("the lock is frozen", reference=path.name)
        ours = set(origins)
        kept = {approval.skill: approval for approval in self.approvals}
        kept |= {approval.skill: approval for approval in approvals if approval.skill.origin in ours}
        content = trust.write(path, kept.values()).content
        self.reload()
        return content

    def _counts(self, approval: Approval) -> bool:
        if self.is_frozen:
            return True
        pin = (approval.skill, binding_of(approval.manifest))
        return pin not in self._revoked and (self._review is None or pin not in self._review.revoked)

    @property
    def _lock(self) -> Lock | None:
        return None if self._review is None else self._review.lock

    def _require_lock(self) -> tuple[Path, LockTrust]:
        if self.path is None or self._trust is None:
            raise RefusedError("this host has no lock", fix="pass the path of the project's skills.lock")
        return self.path, self._trust
