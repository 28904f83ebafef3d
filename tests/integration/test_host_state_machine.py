"""Approvals and content in any order: nothing unapproved, changed or unlisted ever reaches the model."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from integration.hosting_machine import Approvals
from integration.hosting_shop import INNER, REFUNDS, Shop
from skillwire.host.model.approval import Reply

PROFILE = settings(
    max_examples=360 if settings.get_current_profile_name() == "proof" else 40,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
)
TRAVELLED = (
    "loaded because the user said yes",
    "loaded after an earlier yes for once",
    "loaded by a remembered yes",
    "loaded by a trusted lock",
    "loaded by a frozen lock",
    "a file was read",
    "a skill was written into a lock",
    "approvals were tampered with",
    "a cached file was replaced",
    "approval-denied",
    "lock-untrusted",
    "not-in-lock",
    "unlisted-file",
)
"""The ways that must have been gone, or the machine has proven less than it says."""

Story = Callable[[Approvals], None]


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def shop(portal: BlockingPortal) -> Iterator[Shop]:
    with portal.wrap_async_context_manager(Shop().running()) as shop:
        yield shop


@pytest.mark.requirement("APPR-01")
@pytest.mark.requirement("APPR-02")
@pytest.mark.requirement("INT-04")
@pytest.mark.requirement("INT-06")
@pytest.mark.requirement("READ-03")
@pytest.mark.requirement("READ-05")
@pytest.mark.requirement("CACHE-07")
def test_nothing_reaches_the_model_that_the_user_has_not_agreed_to_whatever_happens(
    portal: BlockingPortal, shop: Shop, tmp_path: Path
) -> None:
    """Attacks 7, 14, 18, 19, 22, 25, 40, 71 and 72, in any order."""
    Approvals.outcomes.clear()

    def machine() -> Approvals:
        return Approvals(portal, shop, tmp_path)

    # Any callable that makes a machine will do, although only its class is annotated.
    run_state_machine_as_test(cast(type[RuleBasedStateMachine], machine), settings=PROFILE)

    assert [way for way in TRAVELLED if not Approvals.outcomes[way]] == []


def a_lock_that_saw_a_change(machine: Approvals) -> None:
    """A pin ended because the skill changed; a yes to the new content does not bring the old one back."""
    machine.begin(is_locked=True)
    machine.change(what="body", is_seen=True)
    machine.load(REFUNDS, Reply.ALWAYS, "user", 0, "nothing")
    machine.revert(number=0, is_seen=True, uri=REFUNDS)


def a_lock_that_came_back_after_a_change(machine: Approvals) -> None:
    """The lock said something else while the skill changed; when both come back, the pin stays ended."""
    machine.begin(is_locked=True)
    machine.change_the_lock_outside(how="comment", uri=REFUNDS, is_used=False)
    machine.look_at_the_lock()
    machine.change(what="body", is_seen=True)
    machine.revert(number=0, is_seen=False, uri=REFUNDS)
    machine.change_the_lock_outside(how="restore", uri=REFUNDS, is_used=True)


def approvals_deleted_after_a_change(machine: Approvals) -> None:
    """A pin ended because the skill changed; whoever deletes the note of that does not bring it back."""
    machine.begin(is_locked=True)
    machine.change(what="body", is_seen=True)
    machine.change_the_approvals_outside(how="delete", uri=REFUNDS, is_used=False)
    machine.revert(number=0, is_seen=True, uri=REFUNDS)


def approvals_edited_after_a_revocation(machine: Approvals) -> None:
    """The user revoked a pinned skill; whoever changes the note of that does not bring it back."""
    machine.begin(is_locked=True)
    machine.revoke(INNER, Reply.DENY, "notes.md")
    machine.change_the_approvals_outside(how="flip", uri=INNER, is_used=True)


def a_skill_that_came_back(machine: Approvals) -> None:
    """A remembered yes ends when another version is seen, also when the first returns after a restart."""
    machine.begin(is_locked=False)
    machine.load(REFUNDS, Reply.ALWAYS, "model", 0, "nothing")
    machine.change(what="rename", is_seen=True)
    machine.revert(number=0, is_seen=True, uri=REFUNDS)
    machine.restart(uri=REFUNDS)


def a_yes_for_once_that_came_back(machine: Approvals) -> None:
    """A yes for this run ends when another version is seen, although the host goes on."""
    machine.begin(is_locked=False)
    machine.flip_flop(what="file", uri=REFUNDS, first=Reply.ONCE, reply=Reply.DENY)


def a_yes_for_once_that_was_taken_back(machine: Approvals) -> None:
    machine.begin(is_locked=False)
    machine.revoke(INNER, Reply.ONCE, "notes.md")


def an_old_entry_approved(machine: Approvals) -> None:
    """A yes to an entry that was shown long ago covers that entry, and ends when the present one is seen."""
    machine.begin(is_locked=False)
    machine.change(what="body", is_seen=True)
    machine.approve_a_record(number=0)
    machine.load_again(REFUNDS, Reply.DENY, is_known=False)
    machine.revert(number=0, is_seen=False, uri=REFUNDS)
    machine.load_again(REFUNDS, Reply.DENY, is_known=True)


def a_lock_edited_to_pin_the_present(machine: Approvals) -> None:
    """Whoever edits the lock approves nothing by it, until the user has looked."""
    machine.begin(is_locked=True)
    machine.change_the_lock_outside(how="forge", uri=REFUNDS, is_used=True)
    machine.trust_the_lock(is_changed_meanwhile=True)
    machine.restart(uri=REFUNDS)


def a_change_seen_while_the_user_decides(machine: Approvals) -> None:
    machine.begin(is_locked=False)
    machine.load(REFUNDS, Reply.ALWAYS, "model", 0, "changed-and-seen")
    machine.load(REFUNDS, Reply.DENY, "model", 0, "nothing")
    machine.read_file(REFUNDS, "references/policy.md", 0)


@pytest.mark.parametrize(
    "story",
    [
        a_lock_that_saw_a_change,
        a_lock_that_came_back_after_a_change,
        approvals_deleted_after_a_change,
        approvals_edited_after_a_revocation,
        a_skill_that_came_back,
        a_yes_for_once_that_came_back,
        a_yes_for_once_that_was_taken_back,
        an_old_entry_approved,
        a_lock_edited_to_pin_the_present,
        a_change_seen_while_the_user_decides,
    ],
)
@pytest.mark.requirement("APPR-02")
def test_stories_that_are_easily_told_wrong(
    story: Story, portal: BlockingPortal, shop: Shop, tmp_path: Path
) -> None:
    """The same checks as above, on ways that chance seldom goes."""
    machine = Approvals(portal, shop, tmp_path)
    try:
        story(machine)
    finally:
        machine.teardown()
