"""The folder one works in: its lock, its own skills, and the user's."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from skillwire.cli.answer import plural
from skillwire.cli.checkup.check import Area, Check
from skillwire.errors import SkillError
from skillwire.host import LocalRoot, LockState
from skillwire.host.approval.locktrust import LockReview, LockTrust
from skillwire.host.registry.local import LocalSkills
from skillwire.host.state.trust import FolderTrust

_LOCK = Area("lock")
_FOLDERS = Area("local skills")


def check_lock(path: Path, state: Path, *, is_named: bool, frozen: bool) -> Check:
    """Say whether the lock can be read, and whether the user has looked at it."""
    try:
        review = LockTrust(state).review(path)
    except SkillError as error:
        return _LOCK.problem(path.name, str(error), error.fix or "restore it, or write it again")
    return _reviewed(path, review, is_named=is_named, frozen=frozen)


def _reviewed(path: Path, review: LockReview, *, is_named: bool, frozen: bool) -> Check:
    if review.lock is None:
        if is_named or frozen:
            return _LOCK.problem(path.name, "there is no such file", "write it with skillwire lock")
        return _LOCK.note(path.name, "this folder has none")
    pins = plural(len(review.lock.approvals), "skill")
    if frozen:
        return _LOCK.ok(path.name, f"frozen, {pins} pinned")
    if review.state is LockState.TRUSTED:
        ended = f", {len(review.revoked)} of them ended" if review.revoked else ""
        return _LOCK.ok(path.name, f"trusted, {pins} pinned{ended}")
    words = "changed outside skillwire" if review.state is LockState.CHANGED else "never looked at here"
    return _LOCK.warning(
        path.name, f"{pins} pinned, {words}, so it does not count", "look at it with skillwire lock"
    )


def check_folders(roots: Sequence[LocalRoot], state: Path) -> Iterator[Check]:
    """Say what lies in each folder of skills, and whether a project's is trusted."""
    trust = FolderTrust(state) if state.is_dir() else None
    existing = [root for root in roots if root.path.is_dir()]
    if not existing:
        yield _FOLDERS.note("folders", f"none of {', '.join(str(root.path) for root in roots)} is there")
    for root in existing:
        yield _folder(root, trust)


def _folder(root: LocalRoot, trust: FolderTrust | None) -> Check:
    place = str(root.path)
    scan = LocalSkills([root], trust).scan()
    if any(refusal.code == "untrusted-folder" for refusal in scan.hidden):
        return _FOLDERS.warning(
            place,
            "not used, because this project's folder is not trusted",
            "look at it, then trust the folder",
        )
    found = plural(len(scan.skills), "skill")
    if scan.hidden:
        return _FOLDERS.warning(
            place,
            f"{found}, {len(scan.hidden):,} more not used",
            "see skillwire list for what is wrong with them",
        )
    return _FOLDERS.ok(place, found)
