"""`LockTrust`: a lock counts when the user has seen these very bytes."""

import errno
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from approving import approval, manifest, skill_id
from commands import names_in
from skillwire.core.errors import SourceError
from skillwire.host.approval import lock_trust
from skillwire.host.approval.lock import InvalidLockError, LockDifference, lock_bytes, write_lock
from skillwire.host.approval.lock_trust import LockState, LockTrust
from skillwire.host.model.approval import Approval, binding_of
from skillwire.host.model.errors import LockUntrustedError
from skillwire.host.model.origin import OriginKind


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project" / "skills.lock"


@pytest.fixture
def trust(tmp_path: Path) -> LockTrust:
    return LockTrust(tmp_path / "state")


def again(tmp_path: Path) -> LockTrust:
    return LockTrust(tmp_path / "state")


def test_where_there_is_no_lock_nothing_is_made(tmp_path: Path, trust: LockTrust, lock: Path) -> None:
    review = trust.review(lock)

    assert (review.state, review.lock, review.difference.is_empty) == (LockState.ABSENT, None, True)
    assert names_in(tmp_path) == ["project"]


@pytest.mark.requirement("APPR-10")
def test_a_lock_that_came_with_a_checkout_is_new_until_it_is_trusted(
    tmp_path: Path, trust: LockTrust, lock: Path
) -> None:
    content = write_lock(lock, [approval()])
    assert trust.state(lock) is LockState.NEW
    assert trust.difference(lock) == LockDifference(added=(approval(),))

    trust.trust(lock, content)

    assert again(tmp_path).state(lock) is LockState.TRUSTED
    assert again(tmp_path).difference(lock).is_empty


@pytest.mark.requirement("APPR-10")
def test_a_lock_that_changed_outside_is_shown_before_it_counts(
    tmp_path: Path, trust: LockTrust, lock: Path
) -> None:
    trust.write(lock, [approval(), approval("billing")])
    changed = approval("billing", {"SKILL.md": b"New.\n"})
    content = write_lock(lock, [changed, approval("reports")])

    review = again(tmp_path).review(lock)

    assert review.state is LockState.CHANGED
    assert review.difference == LockDifference(
        (approval("reports"),), (approval(),), ((approval("billing"), changed),)
    )
    assert review.lock is not None
    trust.trust(lock, review.lock.content)
    assert review.lock.content == content
    assert trust.state(lock) is LockState.TRUSTED


@pytest.mark.requirement("APPR-10")
def test_a_single_byte_makes_another_lock(trust: LockTrust, lock: Path) -> None:
    trust.write(lock, [approval()])
    with lock.open("ab") as file:
        file.write(b"\n")

    assert trust.state(lock) is LockState.CHANGED
    assert trust.difference(lock).is_empty


def test_what_is_written_through_skillwire_is_trusted(tmp_path: Path, trust: LockTrust, lock: Path) -> None:
    written = trust.write(lock, [approval()])
    trust.write(lock, [approval(), approval("billing")])

    assert written.content == lock_bytes([approval()])
    assert lock.read_bytes() == lock_bytes([approval(), approval("billing")])
    assert again(tmp_path).state(lock) is LockState.TRUSTED
    lock.write_bytes(written.content)
    assert again(tmp_path).state(lock) is LockState.CHANGED


@pytest.mark.requirement("APPR-10")
def test_writing_lends_no_trust_to_what_nobody_has_seen(trust: LockTrust, lock: Path) -> None:
    foreign = write_lock(lock, [approval("planted")])

    for _ in range(2):
        with pytest.raises(LockUntrustedError):
            trust.write(lock, [approval("planted"), approval()])
        assert lock.read_bytes() == foreign

    lock.unlink()
    trust.write(lock, [approval()])
    write_lock(lock, [approval("planted")])
    with pytest.raises(LockUntrustedError):
        trust.write(lock, [approval("planted"), approval()])


def test_a_lock_that_changes_while_the_user_looks_is_not_trusted(trust: LockTrust, lock: Path) -> None:
    shown = write_lock(lock, [approval()])
    write_lock(lock, [approval("planted")])

    with pytest.raises(LockUntrustedError):
        trust.trust(lock, shown)

    assert trust.state(lock) is LockState.NEW


def test_a_lock_that_is_not_valid_cannot_be_trusted(trust: LockTrust, lock: Path) -> None:
    lock.write_bytes(b"version = 2\n")

    assert trust.state(lock) is LockState.NEW
    with pytest.raises(InvalidLockError):
        trust.review(lock)
    with pytest.raises(InvalidLockError):
        trust.trust(lock, b"version = 2\n")
    assert trust.state(lock) is LockState.NEW


def test_trust_is_for_one_place_whatever_links_lead_there(
    tmp_path: Path, trust: LockTrust, lock: Path
) -> None:
    content = trust.write(lock, [approval()]).content
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "skills.lock").write_bytes(content)
    (tmp_path / "linked").symlink_to(lock.parent)

    assert trust.state(tmp_path / "other" / "skills.lock") is LockState.NEW
    assert trust.state(tmp_path / "linked" / "skills.lock") is LockState.TRUSTED


def test_trust_can_be_taken_back(trust: LockTrust, lock: Path) -> None:
    trust.write(lock, [approval()])

    assert trust.distrust(lock)
    assert not trust.distrust(lock)

    assert trust.state(lock) is LockState.NEW


@pytest.mark.requirement("APPR-10")
def test_a_forged_record_trusts_nothing(tmp_path: Path, trust: LockTrust, lock: Path) -> None:
    trust.write(lock, [approval()])
    foreign = write_lock(lock, [approval("planted")])
    (record,) = (tmp_path / "state").glob("lock-*.json")
    record.write_bytes(record.read_bytes().replace(b"refunds", b"planted"))

    found = again(tmp_path)

    assert found.state(lock) is LockState.NEW
    assert found.tampering is not None
    assert len(list((tmp_path / "state").glob("lock-*.json.tampered-*"))) == 1
    found.trust(lock, foreign)
    assert again(tmp_path).state(lock) is LockState.TRUSTED


def test_the_record_of_one_lock_is_none_for_another(tmp_path: Path, trust: LockTrust, lock: Path) -> None:
    content = trust.write(lock, [approval()]).content
    (record,) = (tmp_path / "state").glob("lock-*.json")
    stolen = record.read_bytes()
    other = tmp_path / "skills.lock"
    other.write_bytes(content)
    trust.trust(other, content)
    (second,) = set((tmp_path / "state").glob("lock-*.json")) - {record}
    second.write_bytes(stolen)

    assert again(tmp_path).state(other) is LockState.NEW
    assert again(tmp_path).state(lock) is LockState.TRUSTED


def test_a_tampered_record_does_not_stop_a_write(tmp_path: Path, trust: LockTrust, lock: Path) -> None:
    trust.write(lock, [approval()])
    (record,) = (tmp_path / "state").glob("lock-*.json")
    record.write_bytes(b"")
    lock.unlink()

    again(tmp_path).write(lock, [approval("billing")])

    assert again(tmp_path).state(lock) is LockState.TRUSTED


def test_only_so_many_locks_are_remembered(
    tmp_path: Path, trust: LockTrust, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_trust, "MAX_LOCKS", 2)
    locks = [tmp_path / f"{number}.lock" for number in range(3)]
    for number, path in enumerate(locks):
        trust.write(path, [approval()])
        for record in (tmp_path / "state").glob("lock-*.json"):
            # Two writes may fall into one tick of the clock.
            os.utime(record, ns=(0, record.stat().st_mtime_ns - 10**9 * (3 - number)))

    assert [trust.state(path) for path in locks] == [LockState.NEW, LockState.TRUSTED, LockState.TRUSTED]


def test_a_lock_that_cannot_be_written_leaves_the_old_one_trusted(
    trust: LockTrust, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust.write(lock, [approval()])

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(SourceError):
            trust.write(lock, [approval("billing")])

    assert lock.read_bytes() == lock_bytes([approval()])
    assert trust.state(lock) is LockState.TRUSTED


def test_a_record_that_cannot_be_removed_is_reported(
    tmp_path: Path, trust: LockTrust, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust.write(lock, [approval()])

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", fail)
        with pytest.raises(SourceError):
            trust.distrust(lock)

    assert trust.state(lock) is LockState.TRUSTED


CONTENTS = st.sampled_from([(), (approval(),), (approval(), approval("billing"))])
STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["edit", "trust", "write", "delete"]), CONTENTS), max_size=8
)


@pytest.mark.requirement("APPR-10")
@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_a_lock_counts_only_with_bytes_that_were_trusted_last(
    steps: list[tuple[int, str, tuple[Approval, ...]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trusts = (LockTrust(Path(folder) / "state"), LockTrust(Path(folder) / "state"))
        path = Path(folder) / "skills.lock"
        seen: bytes | None = None
        for which, what, approvals in steps:
            there = path.read_bytes() if path.exists() else None
            if what == "edit":
                write_lock(path, approvals)
            elif what == "delete":
                path.unlink(missing_ok=True)
            elif what == "trust" and there is not None:
                trusts[which].trust(path, there)
                seen = there
            elif what == "write" and there in (None, seen):
                seen = trusts[which].write(path, approvals).content
            there = path.read_bytes() if path.exists() else None
            if there is None:
                expected = LockState.ABSENT
            elif there == seen:
                expected = LockState.TRUSTED
            else:
                expected = LockState.NEW if seen is None else LockState.CHANGED
            assert [trust.state(path) for trust in trusts] == [expected, expected]


@pytest.mark.requirement("APPR-02")
@pytest.mark.parametrize("kind", [OriginKind.SERVER, OriginKind.SITE])
def test_a_pin_that_ended_stays_so_until_the_user_looks_at_the_lock_again(
    tmp_path: Path, kind: OriginKind
) -> None:
    path, state = tmp_path / "skills.lock", tmp_path / "state"
    trust = LockTrust(state)
    skill = replace(skill_id(), origin=replace(skill_id().origin, kind=kind))
    lock = trust.write(path, [replace(approval(), skill=skill)])
    pin = (skill, binding_of(manifest()))

    trust.revoke(path, pin)
    trust.revoke(path, pin)

    assert LockTrust(state).review(path).revoked == {pin}
    assert LockTrust(state).state(path) is LockState.TRUSTED
    trust.trust(path, lock.content)
    assert LockTrust(state).review(path).revoked == frozenset()


def test_removing_the_record_of_pins_that_ended_removes_the_trust_as_well(tmp_path: Path) -> None:
    path, state = tmp_path / "skills.lock", tmp_path / "state"
    trust = LockTrust(state)
    trust.write(path, [approval()])
    trust.revoke(path, (skill_id(), binding_of(manifest())))

    for record in state.glob("lock-*.json"):
        record.unlink()

    assert LockTrust(state).state(path) is LockState.NEW
