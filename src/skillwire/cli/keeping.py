"""Whose cached files somebody still counts on: what is approved here, or pinned in a lock."""

import json
from pathlib import Path
from typing import Any, cast

from skillwire.cli.answer import Answer
from skillwire.cli.hosting import LOCK_NAME
from skillwire.errors import SkillError
from skillwire.host import Places
from skillwire.host.approval.ledger import Ledger
from skillwire.host.approval.locktrust import LockTrust
from skillwire.host.approval.store import FILE
from skillwire.host.origin import SkillId
from skillwire.host.state.seal import SealedFolder


def needed_origins(answer: Answer, places: Places, lock: Path | None) -> frozenset[tuple[str, str]] | None:
    """Return the label and fingerprint of every server of which something is approved or pinned.

    None when that cannot be known for certain: then nothing may be taken for unneeded.
    """
    try:
        skills = [*_approved(places.state), *_pinned(places.state, lock)]
    except SkillError as error:
        answer.word(("warning:", "yellow"), f" {error}, so what servers left behind is kept")
        return None
    return frozenset((skill.origin.label, skill.origin.fingerprint) for skill in skills)


def _approved(state: Path) -> list[SkillId]:
    folder = SealedFolder(state)
    ledger = folder.load(FILE, Ledger.parse) or Ledger()
    _require_sound(folder)
    return [*ledger.approvals, *ledger.previous]


def _pinned(state: Path, lock: Path | None) -> list[SkillId]:
    """Return what the locks pin that were ever trusted here, and the one at hand."""
    folder = SealedFolder(state)
    locks = {(lock or Path(LOCK_NAME)).absolute()}
    for record in sorted(state.glob("lock-*.json")) if state.is_dir() else ():
        locks.add(Path(folder.load(record.name, _path_in) or record))
        _require_sound(folder)
    trust = LockTrust(state)
    reviews = [trust.review(path) for path in locks]
    known = [found for review in reviews for found in (review.lock, review.trusted) if found is not None]
    return [approval.skill for found in known for approval in found.approvals]


def _path_in(record: bytes) -> str:
    return str(cast(dict[str, Any], json.loads(record))["path"])


def _require_sound(folder: SealedFolder) -> None:
    if folder.tampering is not None:
        raise SkillError(folder.tampering.sentence.rstrip("."))
