"""A project's lock as this host honours it: frozen, trusted, or not looked at yet."""

import logging
from collections.abc import Iterable
from pathlib import Path

from skillwire.errors import LimitError, SourceError
from skillwire.host.approval.approvals import Approval, binding_of
from skillwire.host.approval.lockfile import InvalidLockError, Lock, Pins
from skillwire.host.approval.locktrust import LockReview, LockState, LockTrust, Pin
from skillwire.host.failures import RefusedError
from skillwire.host.origin import Origin, SkillId
from skillwire.host.refusals import Refusal

logger = logging.getLogger(__name__)


class ProjectLock:
    """What a project's `skills.lock` allows.

    A frozen lock is taken as it lies there, and is then the whole policy.
    Another one counts only while its bytes are those the user has seen:
    whoever can change the file cannot thereby approve anything.
    """

    def __init__(self, path: Path | None = None, *, is_frozen: bool = False) -> None:
        self.path = path
        self.is_frozen = is_frozen
        self._trust: LockTrust | None = None
        self._review: LockReview | None = None
        self._pins = self._seen = Pins(None)
        # Pins that ended here: they stay ended in this run, whether or not a disk took that.
        self._ended: set[Pin] = set()

    def open(self, trust: LockTrust) -> None:
        """Read the lock.

        Raises:
            InvalidLockError: It cannot be read, or there is none to be frozen.
        """
        if self.is_frozen and self.path is None:
            raise InvalidLockError("there is no lock that could be frozen", fix="name the lock")
        self._trust = trust
        self.look()

    def look(self) -> LockReview | None:
        """Look at the file again, and return how it stands; None when this host has no lock.

        Raises:
            InvalidLockError: It cannot be read.
        """
        if self.path is None or self._trust is None:
            return None
        self._review = self._trust.review(self.path)
        if self.is_frozen and self._review.lock is None:
            raise InvalidLockError("there is no lock that could be frozen", reference=self.path.name)
        self._pins, self._seen = Pins(self._review.lock), Pins(self._review.trusted)
        return self._review

    @property
    def is_trusted(self) -> bool:
        """Whether the user has seen exactly what the lock says."""
        return self._review is not None and self._review.state is LockState.TRUSTED

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """What the lock says, as far as it counts."""
        lock = self._lock if self.is_frozen or self.is_trusted else None
        return () if lock is None else tuple(filter(self._counts, lock.approvals))

    def pin(self, skill: SkillId) -> Approval | None:
        """Return what the lock says of a skill, if that counts."""
        found = self._pins.find(skill) if self.is_frozen or self.is_trusted else None
        return found if found is not None and self._counts(found) else None

    def seen_pin(self, skill: SkillId) -> Approval | None:
        """Return what the lock said when the user last saw it, unless that ended.

        The file may say something else by now, and may come back to this.
        """
        found = None if self.is_frozen else self._seen.find(skill)
        return found if found is not None and self._counts(found) else None

    def previous(self, skill: SkillId) -> Approval | None:
        """Return what a trusted lock pins, even if that ended: good for showing what changed."""
        return self._pins.find(skill) if self.is_trusted else None

    def revoke(self, skill: SkillId) -> bool:
        """End a pin, until the user looks at the lock again; False when there was none.

        A frozen lock is taken as it is, so nothing in it ends.
        """
        found = self.seen_pin(skill)
        if found is None or self.path is None or self._trust is None:
            return False
        pin = (skill, binding_of(found.manifest))
        self._ended.add(pin)
        try:
            self._trust.revoke(self.path, pin)
        except (SourceError, LimitError) as error:
            logger.error("a pin ended in this process only, because it cannot be written: %s", error)
        return True

    def untrusted_pin(self, skill: SkillId) -> Approval | None:
        """Return what a lock that does not count would have said."""
        return None if self.is_frozen or self.is_trusted else self._pins.find(skill)

    def problems(self) -> tuple[Refusal, ...]:
        """Say why the lock does not count, if so."""
        if self.path is None or self._lock is None or self.is_frozen or self.is_trusted:
            return ()
        return (Refusal("lock-untrusted", self.path.name),)

    def trust(self, content: bytes) -> None:
        """Trust the lock, whose `content` the user was shown.

        Raises:
            LockUntrustedError: It has other bytes by now.
            RefusedError: This host has no lock.
        """
        path, trust = self._required()
        trust.trust(path, content)
        self._ended.clear()
        self.look()

    def write(self, approvals: Iterable[Approval], origins: Iterable[Origin]) -> bytes:
        """Write what is approved for the skills of `origins` into the lock, and trust it; return its bytes.

        Pins that count and are not superseded stay.

        Raises:
            LockUntrustedError: The lock that is there has not been looked at.
            RefusedError: This host has no lock, or it is frozen.
        """
        path, trust = self._required()
        if self.is_frozen:
            raise RefusedError("the lock is frozen", reference=path.name)
        ours = set(origins)
        kept = {approval.skill: approval for approval in self.approvals}
        kept |= {approval.skill: approval for approval in approvals if approval.skill.origin in ours}
        content = trust.write(path, kept.values()).content
        self.look()
        return content

    def _counts(self, approval: Approval) -> bool:
        if self.is_frozen:
            return True
        pin = (approval.skill, binding_of(approval.manifest))
        return pin not in self._ended and (self._review is None or pin not in self._review.revoked)

    @property
    def _lock(self) -> Lock | None:
        return None if self._review is None else self._review.lock

    def _required(self) -> tuple[Path, LockTrust]:
        if self.path is None or self._trust is None:
            raise RefusedError("this host has no lock", fix="name the project's skills.lock")
        return self.path, self._trust
