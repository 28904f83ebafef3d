"""A project's lock as a host honours it: absent, unseen, trusted, changed, frozen."""

from pathlib import Path

import pytest

from skillwire.host.approval.lock import InvalidLockError, parse_lock, write_lock
from skillwire.host.approval.lock_trust import LockState, LockTrust, ProjectLock
from skillwire.host.model.approval import Approval, Grant, now
from skillwire.host.model.errors import LockUntrustedError, RefusedError
from skillwire.host.model.origin import KnownSkill
from unit.host.known_skills import known, server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "skills.lock"


@pytest.fixture
def trust(tmp_path: Path) -> LockTrust:
    return LockTrust(tmp_path / "state")


def approval(skill: KnownSkill) -> Approval:
    assert skill.entry.manifest is not None
    return Approval(skill.id, skill.entry.manifest, frozenset({Grant.LOAD}), now(), "dana")


def opened(path: Path | None, trust: LockTrust, *, is_frozen: bool = False) -> ProjectLock:
    lock = ProjectLock(path, is_frozen=is_frozen)
    lock.open(trust)
    return lock


def test_a_host_without_a_lock_has_no_pins_and_no_problem(trust: LockTrust) -> None:
    lock = opened(None, trust)

    assert lock.reload() is None
    assert (lock.approvals, lock.pin(known().id), lock.problems()) == ((), None, ())
    assert not lock.is_trusted
    with pytest.raises(RefusedError):
        lock.write([], [])
    with pytest.raises(RefusedError):
        lock.trust(b"")


def test_a_lock_that_is_not_there_yet_is_no_problem(path: Path, trust: LockTrust) -> None:
    lock = opened(path, trust)

    review = lock.reload()

    assert review is not None and review.state is LockState.ABSENT
    assert (lock.approvals, lock.problems()) == ((), ())


@pytest.mark.requirement("APPR-10")
def test_a_lock_that_nobody_has_seen_allows_nothing_and_says_so(path: Path, trust: LockTrust) -> None:
    write_lock(path, [approval(known())])

    lock = opened(path, trust)

    assert (lock.is_trusted, lock.approvals, lock.pin(known().id)) == (False, (), None)
    unseen = lock.untrusted_pin(known().id)
    assert unseen is not None and unseen.manifest == known().entry.manifest
    assert [found.code for found in lock.problems()] == ["lock-untrusted"]


def test_a_lock_counts_from_the_moment_its_content_is_trusted(path: Path, trust: LockTrust) -> None:
    content = write_lock(path, [approval(known())])
    lock = opened(path, trust)

    lock.trust(content)

    assert lock.is_trusted
    assert [found.skill for found in lock.approvals] == [known().id]
    assert lock.pin(known().id) is not None
    assert lock.pin(known("payments").id) is None
    assert lock.pin(known(origin=server("other")).id) is None
    assert lock.untrusted_pin(known().id) is None
    assert lock.problems() == ()
    assert opened(path, trust).is_trusted


def test_content_that_is_not_in_the_file_is_not_trusted(path: Path, trust: LockTrust) -> None:
    content = write_lock(path, [approval(known())])
    lock = opened(path, trust)
    path.write_bytes(content + b"# more\n")

    with pytest.raises(LockUntrustedError):
        lock.trust(content)

    assert not lock.is_trusted


def test_a_change_outside_counts_for_nothing_as_soon_as_it_is_looked_at(path: Path, trust: LockTrust) -> None:
    lock = opened(path, trust)
    lock.write([approval(known())], [known().id.origin])
    write_lock(path, [approval(known(body="Other.\n"))])

    before = lock.pin(known().id)
    review = lock.reload()

    assert before is not None and before.manifest == known().entry.manifest
    assert review is not None and review.state is LockState.CHANGED
    assert len(review.difference.changed) == 1
    assert (lock.pin(known().id), lock.is_trusted) == (None, False)


def test_writing_trusts_what_was_written_and_keeps_what_was_pinned(path: Path, trust: LockTrust) -> None:
    lock = opened(path, trust)
    other = server("other")
    first = lock.write([approval(known("payments", origin=other))], [other])

    second = lock.write([approval(known()), approval(known("stranger", origin=server("x")))], [server()])

    assert parse_lock(first).approvals[0].skill.origin == other
    assert [found.skill.origin.label for found in parse_lock(second).approvals] == ["acme", "other"]
    assert path.read_bytes() == second
    assert lock.is_trusted


def test_an_unseen_lock_is_not_written_over(path: Path, trust: LockTrust) -> None:
    content = write_lock(path, [approval(known())])
    lock = opened(path, trust)

    with pytest.raises(LockUntrustedError):
        lock.write([approval(known("payments"))], [server()])

    assert path.read_bytes() == content


@pytest.mark.requirement("APPR-10")
def test_a_frozen_lock_counts_as_it_lies_there_and_is_not_written(path: Path, trust: LockTrust) -> None:
    content = write_lock(path, [approval(known())])
    lock = opened(path, trust, is_frozen=True)

    assert [found.skill for found in lock.approvals] == [known().id]
    assert lock.pin(known().id) is not None
    assert (lock.problems(), lock.untrusted_pin(known().id)) == ((), None)
    with pytest.raises(RefusedError):
        lock.write([], [server()])
    assert path.read_bytes() == content


def test_frozen_needs_a_lock(path: Path, trust: LockTrust) -> None:
    with pytest.raises(InvalidLockError):
        opened(None, trust, is_frozen=True)
    with pytest.raises(InvalidLockError):
        opened(path, trust, is_frozen=True)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_lock_that_is_none_is_one_clear_error(is_frozen: bool, path: Path, trust: LockTrust) -> None:
    path.write_bytes(b"no lock")

    with pytest.raises(InvalidLockError):
        opened(path, trust, is_frozen=is_frozen)


def test_a_lock_behind_a_link_is_not_read(path: Path, trust: LockTrust, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.lock"
    write_lock(target, [approval(known())])
    path.symlink_to(target)

    with pytest.raises(InvalidLockError):
        opened(path, trust)


@pytest.mark.requirement("APPR-02")
def test_a_pin_ends_also_while_the_file_says_something_else(path: Path, trust: LockTrust) -> None:
    skill = known()
    lock = opened(path, trust)
    content = lock.write([approval(skill)], [server()])
    path.write_bytes(content + b"# changed by hand\n")
    lock.reload()
    assert lock.pin(skill.id) is None

    assert lock.revoke(skill.id)
    path.write_bytes(content)

    for again in (lock, opened(path, trust)):
        again.reload()
        assert again.is_trusted
        assert again.pin(skill.id) is None
    lock.trust(content)
    assert lock.pin(skill.id) is not None
