"""The last yes a user gave for a skill, whether or not it holds: what a change is measured against."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import Manifest
from skillwire.host.approval.approvals import Approval, binding_of
from skillwire.host.approval.policy import ProjectLock
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.registry.known import KnownSkill

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a user agreed to: which files, and when, if that was written down.

    `is_pin` says that it stands in the project's lock, `holds` that it has
    not ended.
    """

    manifest: Manifest
    granted_at: datetime | None
    is_pin: bool
    holds: bool

    def is_for(self, entry: SkillEntry) -> bool:
        """Tell whether an entry lists exactly the files that were agreed to."""
        return entry.manifest is not None and binding_of(entry.manifest) == binding_of(self.manifest)


def earlier_of(skill: KnownSkill, store: ApprovalStore, lock: ProjectLock) -> Earlier | None:
    """Find the yes that covers a skill as it is now, else the newest there was.

    Where the lock is frozen, nothing else was ever agreed to.
    """
    pin = lock.pin(skill.id)
    if lock.is_frozen:
        return None if pin is None else _granted(pin, is_pin=True)
    approval = store.find(skill.id)
    for held in (pin, approval):
        if held is not None and held.is_for(skill.entry):
            return _granted(held, is_pin=held is pin)
    found = _all(skill, store, lock, approval)
    # Of two that are as old, the one of this machine comes first.
    return max(found, key=lambda each: each.granted_at or _LONG_AGO, default=None)


def _all(
    skill: KnownSkill, store: ApprovalStore, lock: ProjectLock, approval: Approval | None
) -> Iterator[Earlier]:
    if approval is not None:
        yield _granted(approval)
    ended = store.previous(skill.id)
    if ended is not None:
        yield Earlier(ended.manifest, ended.granted_at, is_pin=False, holds=False)
    pinned = lock.previous(skill.id)
    if pinned is not None:
        yield _granted(pinned, is_pin=True, holds=lock.pin(skill.id) is not None)


def _granted(approval: Approval, *, is_pin: bool = False, holds: bool = True) -> Earlier:
    return Earlier(approval.manifest, approval.granted_at, is_pin, holds)
