"""The approvals granted on this machine: nobody else can add one, and no process loses another's."""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from skillwire.core.entry import SkillEntry
from skillwire.errors import LimitError, SourceError
from skillwire.host.approval.approvals import Approval
from skillwire.host.approval.ledger import Ended, Ledger, check_storable
from skillwire.host.origin import SkillId
from skillwire.host.refusals import Refusal
from skillwire.host.state.seal import SealedFolder, Stamp

FILE = "approvals.json"

_Change: TypeAlias = Callable[[Ledger], Ledger]

logger = logging.getLogger(__name__)


class ApprovalStore:
    """What the user agreed to on this machine, in a sealed file of a private folder.

    Asking never fails: a file that is missing, broken or changed by anything
    else holds no approvals. Changes read the file again under a lock, so that
    several processes can share one store. All methods may be called from any
    thread; they read and write a disk, so an event loop should not.
    """

    def __init__(self, directory: Path, *, key: bytes | None = None) -> None:
        self._folder = SealedFolder(directory, key=key)
        self._memory = threading.Lock()
        self._held = Ledger()
        self._stamp: Stamp = None
        self._is_read = False
        # Revocations that no disk took yet: they hold all the same, and go with the next write.
        self._unwritten: list[_Change] = []

    @property
    def tampering(self) -> Refusal | None:
        """Why the approvals that were here count no more, once that was noticed."""
        self._current()
        return self._folder.tampering

    @property
    def is_tampered(self) -> bool:
        return self.tampering is not None

    def approvals(self) -> Mapping[SkillId, Approval]:
        """Return every approval that holds."""
        return MappingProxyType(self._current().approvals)

    def find(self, skill: SkillId) -> Approval | None:
        return self._current().approvals.get(skill)

    def previous(self, skill: SkillId) -> Ended | None:
        """Return what the skill's last approval was for, if a change ended it and none followed."""
        return self._current().previous.get(skill)

    def grant(self, approval: Approval) -> Approval:
        """Write an approval down and return what now holds for the skill.

        Grants for the same content add up; an approval for other content is
        replaced.

        Raises:
            SourceError: It cannot be written, and nothing changed.
            LimitError: There is no room for another one.
            ValueError: It holds something no file can.
        """
        check_storable(approval)
        return self._change(lambda ledger: ledger.granted(approval))[1].approvals[approval.skill]

    def revoke(self, skill: SkillId) -> bool:
        """Take an approval back; false when there was none.

        Raises:
            SourceError: That cannot be written; it holds for this store only.
        """
        return skill in self._end(lambda ledger: ledger.revoked(skill)).approvals

    def observe(self, skill: SkillId, entry: SkillEntry) -> bool:
        """Note what a server lists now; true when that ended the skill's approval.

        It ends for good: content that comes back is not approved again
        (SEP-2640, "Approval"). A disk that does not take it is logged, and
        the approval is over in this store nevertheless.
        """
        held = self._current()
        if held.observed(skill, entry) is held:
            return False
        self._end_quietly(lambda ledger: ledger.observed(skill, entry))
        return skill not in self._current().approvals

    def forget_origin(self, label: str) -> None:
        """Forget everything about a server that was removed.

        Raises:
            SourceError: That cannot be written; it holds for this store only.
        """
        self._end(lambda ledger: ledger.without_server(label))

    def _current(self) -> Ledger:
        stamp = self._folder.stamp(FILE)
        with self._memory:
            if self._is_read and stamp == self._stamp:
                return self._held
        try:
            found = self._folder.load(FILE, Ledger.parse) or Ledger()
        except SourceError as error:
            logger.warning("no approval counts while they cannot be read: %s", error)
            return Ledger()
        with self._memory:
            self._keep(self._with_unwritten(found), stamp)
            return self._held

    def _end(self, change: _Change) -> Ledger:
        """End something in memory before the disk is asked; return what was written there until now."""
        self._current()
        with self._memory:
            self._unwritten.append(change)
            self._held = change(self._held)
        return self._change(lambda ledger: ledger)[0]

    def _end_quietly(self, change: _Change) -> None:
        try:
            self._end(change)
        except (SourceError, LimitError) as error:
            logger.error("a revocation holds in this process only, because it cannot be written: %s", error)

    def _change(self, change: _Change) -> tuple[Ledger, Ledger]:
        """Apply a change to what the file says now; return what it said, and what it says then."""
        with self._folder.locked():
            before = self._folder.load_locked(FILE, Ledger.parse) or Ledger()
            with self._memory:
                ended = list(self._unwritten)
            after = before
            for end in ended:
                after = end(after)
            after = change(after)
            if after != before:
                self._folder.save(FILE, after.to_bytes())
            with self._memory:
                self._unwritten = self._unwritten[len(ended) :]
                self._keep(self._with_unwritten(after), self._folder.stamp(FILE))
        return before, after

    def _with_unwritten(self, ledger: Ledger) -> Ledger:
        for end in self._unwritten:
            ledger = end(ledger)
        return ledger

    def _keep(self, ledger: Ledger, stamp: Stamp) -> None:
        self._held, self._stamp, self._is_read = ledger, stamp, True
