"""Has the user agreed? Stores and locks on a real disk, and a user who answers as told."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from skillwire.core.errors import SkillError
from skillwire.core.manifest import digest_of
from skillwire.host.approval.consent import Consent, DynamicPolicy, PromptLimits
from skillwire.host.approval.lock import write_lock
from skillwire.host.approval.lock_trust import LockTrust, ProjectLock
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.model.approval import Approval, ApprovalState, Ask, Grant, Occasion, Question, Reply, now
from skillwire.host.model.origin import KnownSkill
from skillwire.host.state.audit import AuditLog
from unit.host.known_skills import LOCAL, known, server

LOAD = frozenset({Grant.LOAD})
SCRIPT = {"scripts/run.sh": b"echo\n"}


class User:
    """Answers as told, the last answer again and again, and keeps the questions."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.questions: list[Question] = []

    async def __call__(self, question: Question) -> Reply:
        self.questions.append(question)
        return self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]

    @property
    def occasions(self) -> list[Occasion]:
        return [question.occasion for question in self.questions]


class Desk:
    """What a `Consent` needs, in one folder; `consent` makes one as a new run of the host would."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.path = folder / "skills.lock"
        self.seconds = 0.0

    def consent(
        self,
        ask: Ask | None = None,
        *,
        dynamic: DynamicPolicy = "decline",
        is_frozen: bool = False,
        limits: PromptLimits | None = None,
    ) -> Consent:
        lock = ProjectLock(self.path, is_frozen=is_frozen)
        lock.open(LockTrust(self.state))
        return Consent(
            ApprovalStore(self.state),
            lock,
            AuditLog(self.state / "audit.jsonl"),
            ask=ask,
            dynamic=dynamic,
            granted_by="dana",
            limits=limits or PromptLimits(),
            clock=lambda: self.seconds,
        )

    def pin(
        self,
        *skills: KnownSkill,
        grants: frozenset[Grant] = LOAD,
        is_trusted: bool = True,
        after: timedelta = timedelta(),
    ) -> None:
        """Put skills into the project's lock, which the user has looked at or not."""
        pins = [approval(skill, grants) for skill in skills]
        pins = [replace(pin, granted_at=pin.granted_at + after) for pin in pins]
        content = write_lock(self.path, pins)
        if is_trusted:
            LockTrust(self.state).trust(self.path, content)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def approval(skill: KnownSkill, grants: frozenset[Grant] = LOAD) -> Approval:
    assert skill.entry.manifest is not None
    return Approval(skill.id, skill.entry.manifest, grants, now(), "dana")


async def refusal(consent: Consent, skill: KnownSkill) -> str:
    """Return the code with which the model's wish to load is refused, or nothing."""
    try:
        await consent.require_load(skill)
    except SkillError as error:
        return error.refusal
    return ""


OTHERS: dict[str, Callable[[], KnownSkill]] = {
    "another body": lambda: known(body="Other.\n"),
    "a file more": lambda: known(files=SCRIPT),
    "another name": lambda: known("payments"),
    "another label": lambda: known(origin=server("other")),
    "another endpoint": lambda: known(origin=server(endpoint="b")),
    "no digests": lambda: known(is_dynamic=True),
}


@pytest.mark.parametrize("reply", [Reply.ONCE, Reply.ALWAYS])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.requirement("APPR-01")
async def test_a_yes_is_for_exactly_the_content_and_the_origin_that_were_shown(
    reply: Reply, other: str, desk: Desk
) -> None:
    consent = desk.consent(User(reply))
    before = consent.covers(known())

    await consent.require_load(known())

    assert not before
    assert consent.covers(known())
    assert not consent.covers(OTHERS[other]())


@pytest.mark.parametrize("reply", [Reply.ONCE, Reply.ALWAYS])
@pytest.mark.requirement("APPR-05")
async def test_a_yes_to_loading_grants_nothing_else(reply: Reply, desk: Desk) -> None:
    consent = desk.consent(User(reply))

    await consent.require_load(known(files=SCRIPT))

    assert consent.grants(known(files=SCRIPT)) == {Grant.LOAD}


async def test_once_ends_with_the_run_and_always_does_not(desk: Desk) -> None:
    consent = desk.consent(User(Reply.ONCE, Reply.ALWAYS))
    await consent.require_load(known())
    await consent.require_load(known("payments"))

    later = desk.consent()

    assert not later.covers(known())
    assert later.covers(known("payments"))


async def test_a_local_skill_is_loaded_without_a_question_and_its_scripts_are_not(desk: Desk) -> None:
    consent = desk.consent(User(Reply.DENY))
    skill = known(origin=LOCAL, files=SCRIPT)

    await consent.require_load(skill)

    assert consent.grants(skill) == {Grant.LOAD}


@pytest.mark.parametrize("reply", [Reply.ONCE, Reply.ALWAYS])
@pytest.mark.requirement("APPR-02")
@pytest.mark.requirement("APPR-09")
async def test_content_that_was_seen_to_change_is_not_approved_again_by_coming_back(
    reply: Reply, desk: Desk
) -> None:
    user = User(reply, Reply.DENY)
    consent = desk.consent(user)
    await consent.require_load(known())

    consent.observe(known().id, known(extra="license: MIT\n").entry)
    consent.observe(known().id, known().entry)

    assert not consent.covers(known())
    assert not desk.consent().covers(known())
    assert await refusal(consent, known()) == "approval-denied"


async def test_an_entry_that_says_the_same_ends_nothing(desk: Desk) -> None:
    consent = desk.consent(User(Reply.ALWAYS))
    await consent.require_load(known())

    consent.observe(known().id, known().entry)
    consent.observe(known("payments").id, known("payments").entry)

    assert consent.covers(known())


@pytest.mark.requirement("APPR-04")
async def test_an_entry_without_digests_ends_the_approval_of_one_with(desk: Desk) -> None:
    consent = desk.consent(User(Reply.ALWAYS))
    await consent.require_load(known())

    consent.observe(known().id, known(is_dynamic=True).entry)

    assert not consent.covers(known())


@pytest.mark.requirement("APPR-02")
async def test_the_question_after_a_change_says_what_changed(desk: Desk) -> None:
    user = User(Reply.ALWAYS)
    consent = desk.consent(user)
    await consent.require_load(known(files=SCRIPT))
    changed = known(body="Other.\n")
    consent.observe(changed.id, changed.entry)

    await consent.require_load(changed)

    assert user.occasions == [Occasion.FIRST, Occasion.CHANGED]
    question = user.questions[1]
    assert question.change is not None
    assert question.change.modified == ("skill://shop/refunds/SKILL.md",)
    assert question.change.removed == ("skill://shop/refunds/scripts/run.sh",)
    assert question.previous == known(files=SCRIPT).entry.manifest
    assert question.skill == changed
    assert question.may_be_remembered


@pytest.mark.requirement("APPR-02")
@pytest.mark.parametrize("hours", [1, -1])
async def test_the_question_compares_with_the_newest_yes(desk: Desk, hours: int) -> None:
    own, pinned, changed = known(body="Own.\n"), known(body="Pinned.\n"), known(body="New.\n")
    desk.pin(pinned, after=timedelta(hours=hours))
    user = User(Reply.ALWAYS)
    consent = desk.consent(user)
    await consent.approve(own, LOAD)
    consent.observe(changed.id, changed.entry)

    await consent.require_load(changed)

    assert user.questions[0].previous == (pinned if hours > 0 else own).entry.manifest


async def test_what_was_taken_back_and_is_the_same_has_not_changed(desk: Desk) -> None:
    desk.pin(known())
    consent = desk.consent(User(Reply.ALWAYS))
    before = consent.approval_state(known())

    await consent.revoke(known().id)

    assert (before, consent.approval_state(known())) == (ApprovalState.LOCKED, ApprovalState.NEW)
    assert consent.approval_state(known(body="Other.\n")) is ApprovalState.CHANGED


async def test_what_came_back_is_not_approved_and_not_changed(desk: Desk) -> None:
    consent = desk.consent(User(Reply.ALWAYS))
    await consent.approve(known(), LOAD)

    consent.observe(known().id, known(body="Other.\n").entry)

    assert consent.approval_state(known(body="Other.\n")) is ApprovalState.CHANGED
    assert consent.approval_state(known()) is ApprovalState.NEW


@pytest.mark.requirement("APPR-10")
async def test_where_nobody_can_be_asked_the_answer_is_no(desk: Desk) -> None:
    consent = desk.consent(None)

    assert await refusal(consent, known()) == "approval-required"
    found = consent.expected_refusal(known())
    assert found is not None and found.code == "approval-required"


async def test_a_question_can_be_foreseen_without_being_asked(desk: Desk) -> None:
    user = User(Reply.DENY)
    consent = desk.consent(user)

    assert consent.expected_refusal(known()) is None
    dynamic = consent.expected_refusal(known(is_dynamic=True))
    assert dynamic is not None and dynamic.code == "dynamic-declined"
    assert user.questions == []


async def test_a_no_is_for_the_model_and_this_content(desk: Desk) -> None:
    user = User(Reply.DENY)
    consent = desk.consent(user)
    for skill in (known(), known(), known(body="Other.\n")):
        assert await refusal(consent, skill) == "approval-denied"
    asked = len(user.questions)

    with pytest.raises(SkillError):
        await consent.require_load(known(), actor="user")
    consent.reset_prompts()
    await refusal(consent, known())

    assert asked == 2
    assert len(user.questions) == 4


async def test_a_later_yes_forgets_the_no(desk: Desk) -> None:
    user = User(Reply.DENY)
    consent = desk.consent(user)
    await refusal(consent, known())

    await consent.approve(known(), LOAD)
    consent.observe(known().id, known(body="Other.\n").entry)
    await refusal(consent, known())

    assert len(user.questions) == 2


@pytest.mark.requirement("APPR-02")
async def test_a_skill_that_keeps_changing_stops_being_asked_about(desk: Desk) -> None:
    """Attack 15."""
    user = User(Reply.DENY)
    consent = desk.consent(user, limits=PromptLimits(contents_per_skill=2))
    versions = [known(body=f"{number}\n") for number in range(4)]

    codes = [await refusal(consent, version) for version in versions]

    assert codes == ["approval-denied", "approval-denied", "keeps-changing", "keeps-changing"]
    assert await refusal(consent, known("payments")) == "approval-denied"


@pytest.mark.requirement("SEC-12")
async def test_a_server_causes_only_so_many_questions_in_a_while(desk: Desk) -> None:
    """Attack 26."""
    user = User(Reply.DENY)
    consent = desk.consent(user, limits=PromptLimits(questions_per_server=2, seconds=60))
    codes = [await refusal(consent, known(name)) for name in ("one", "two", "three")]
    other = await refusal(consent, known("three", origin=server("other")))
    desk.seconds += 61
    later = await refusal(consent, known("three"))

    assert codes == ["approval-denied", "approval-denied", "too-many-prompts"]
    assert (other, later) == ("approval-denied", "approval-denied")


@pytest.mark.requirement("APPR-10")
async def test_silence_means_no(desk: Desk) -> None:
    async def nobody(question: Question) -> Reply:
        await anyio.sleep_forever()
        raise AssertionError(question)

    consent = desk.consent(nobody, limits=PromptLimits(answer_seconds=0.01))

    with anyio.fail_after(30):
        assert await refusal(consent, known()) == "approval-denied"


@pytest.mark.parametrize("answer", [None, True, "always", 1, object()])
async def test_an_answer_that_is_no_reply_means_no(answer: object, desk: Desk) -> None:
    async def confused(question: Question) -> Reply:
        return answer  # type: ignore[return-value]

    consent = desk.consent(confused)

    assert await refusal(consent, known()) == "approval-denied"
    assert not consent.covers(known())


async def test_an_error_of_the_one_who_asks_is_not_a_yes(desk: Desk) -> None:
    async def broken(question: Question) -> Reply:
        raise RuntimeError("the window is gone")

    consent = desk.consent(broken)

    with pytest.raises(RuntimeError):
        await consent.require_load(known())
    assert not consent.covers(known())


async def test_many_who_want_the_same_are_asked_about_once(desk: Desk) -> None:
    user = User(Reply.ONCE)
    consent = desk.consent(user)

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(consent.require_load, known())

    assert len(user.questions) == 1


# Skills without digests


@pytest.mark.requirement("APPR-04")
async def test_a_skill_without_digests_is_asked_about_every_time_or_declined(desk: Desk) -> None:
    user = User(Reply.ALWAYS)
    declining, asking = desk.consent(user), desk.consent(user, dynamic="ask")
    skill = known(is_dynamic=True)

    declined = await refusal(declining, skill)
    before = len(user.questions)
    await asking.require_load(skill)
    await asking.require_load(skill)

    assert (declined, before) == ("dynamic-declined", 0)
    assert user.occasions == [Occasion.DYNAMIC] * 2
    assert not user.questions[0].may_be_remembered
    assert not asking.covers(skill)
    assert await asking.approve(skill, LOAD) is None


# Further grants, and single calls


def scripts(skill: KnownSkill) -> Question:
    uri = skill.entry.uri.join("scripts/run.sh")
    return Question(
        Occasion.SCRIPTS,
        skill,
        uri=uri,
        script="scripts/run.sh",
        script_digest=digest_of(SCRIPT["scripts/run.sh"]),
        script_content=SCRIPT["scripts/run.sh"],
    )


@pytest.mark.requirement("APPR-05")
async def test_a_further_grant_is_asked_for_once_and_added_to_the_others(desk: Desk) -> None:
    user = User(Reply.ALWAYS)
    consent = desk.consent(user)
    skill = known(files=SCRIPT)
    await consent.require_load(skill)

    await consent.request(scripts(skill), Grant.SCRIPTS)
    await consent.request(scripts(skill), Grant.SCRIPTS)

    assert user.occasions == [Occasion.FIRST, Occasion.SCRIPTS]
    assert desk.consent().grants(skill) == {Grant.LOAD, Grant.SCRIPTS}


@pytest.mark.parametrize("reply", [Reply.ONCE, Reply.ALWAYS])
@pytest.mark.requirement("APPR-05")
async def test_each_grant_needs_a_question_of_its_own_however_the_others_were_given(
    reply: Reply, desk: Desk
) -> None:
    user = User(reply)
    consent = desk.consent(user)
    skill = known(files=SCRIPT, extra="allowed-tools: Write\n")

    await consent.require_load(skill)
    after_load = consent.grants(skill)
    await consent.request(scripts(skill), Grant.SCRIPTS)
    after_scripts = consent.grants(skill)
    await consent.request(Question(Occasion.ALLOWED_TOOLS, skill, tools=("Write",)), Grant.ALLOWED_TOOLS)

    assert after_load == {Grant.LOAD}
    assert after_scripts == {Grant.LOAD, Grant.SCRIPTS}
    assert consent.grants(skill) == {Grant.LOAD, Grant.SCRIPTS, Grant.ALLOWED_TOOLS}
    assert user.occasions == [Occasion.FIRST, Occasion.SCRIPTS, Occasion.ALLOWED_TOOLS]


@pytest.mark.requirement("APPR-05")
async def test_a_no_to_a_further_grant_leaves_the_others(desk: Desk) -> None:
    consent = desk.consent(User(Reply.ALWAYS, Reply.DENY))
    skill = known(files=SCRIPT)
    await consent.require_load(skill)

    with pytest.raises(SkillError) as caught:
        await consent.request(scripts(skill), Grant.SCRIPTS)

    assert caught.value.refusal == "approval-denied"
    assert consent.grants(skill) == {Grant.LOAD}


@pytest.mark.parametrize("reply", [Reply.ONCE, Reply.ALWAYS])
@pytest.mark.requirement("SEC-09")
async def test_a_yes_to_one_call_is_never_remembered(reply: Reply, desk: Desk) -> None:
    user = User(reply, reply, Reply.DENY)
    consent = desk.consent(user)
    question = Question(Occasion.CROSS_ORIGIN, known(), servers=("acme", "other"), uri="skill://x/y")

    answers = [await consent.permit(question) for _ in range(3)]

    assert answers == [True, True, False]
    assert len(user.questions) == 3
    assert consent.grants(known()) == frozenset()


async def test_a_revoked_skill_is_asked_about_again(desk: Desk) -> None:
    user = User(Reply.ALWAYS, Reply.ONCE, Reply.DENY)
    consent = desk.consent(user)
    await consent.require_load(known())
    assert await consent.revoke(known().id)
    await consent.require_load(known())
    assert await consent.revoke(known().id)

    assert not await consent.revoke(known().id)
    assert await refusal(consent, known()) == "approval-denied"
    assert not desk.consent().covers(known())


# The lock


@pytest.mark.requirement("APPR-10")
async def test_a_trusted_lock_counts_and_an_unseen_one_does_not(desk: Desk) -> None:
    desk.pin(known(), is_trusted=False)
    unseen = desk.consent()
    code = await refusal(unseen, known())
    desk.pin(known())
    trusted = desk.consent()

    assert (unseen.covers(known()), code) == (False, "lock-untrusted")
    assert trusted.covers(known())
    assert not trusted.covers(known(body="Other.\n"))
    assert not trusted.covers(known(origin=server(endpoint="b")))
    assert await refusal(trusted, known("payments")) == "approval-required"


@pytest.mark.requirement("APPR-10")
async def test_a_frozen_lock_is_the_whole_policy(desk: Desk) -> None:
    user = User(Reply.ALWAYS)
    await desk.consent(user).require_load(known("payments"))
    desk.pin(known(), is_trusted=False)
    frozen = desk.consent(user, is_frozen=True, dynamic="ask")

    assert frozen.covers(known())
    assert await refusal(frozen, known("payments")) == "not-in-lock"
    assert await refusal(frozen, known(body="Other.\n")) == "not-in-lock"
    assert await refusal(frozen, known(is_dynamic=True)) == "dynamic-declined"
    with pytest.raises(SkillError) as caught:
        await frozen.request(scripts(known()), Grant.SCRIPTS)
    assert caught.value.refusal == "not-in-lock"
    assert len(user.questions) == 1


@pytest.mark.requirement("APPR-02")
async def test_a_pin_ends_when_other_content_is_seen(desk: Desk) -> None:
    desk.pin(known(), known("payments"))
    consent = desk.consent()

    consent.observe(known().id, known(body="Other.\n").entry)

    assert not consent.covers(known())
    assert not desk.consent().covers(known())
    assert consent.covers(known("payments"))
    assert desk.consent(is_frozen=True).covers(known())


@pytest.mark.requirement("APPR-02")
async def test_a_yes_to_new_content_does_not_bring_the_pin_of_the_old_back(desk: Desk) -> None:
    desk.pin(known())
    consent = desk.consent(User(Reply.ALWAYS))
    changed = known(body="Other.\n")
    consent.observe(changed.id, changed.entry)

    await consent.require_load(changed)
    consent.observe(known().id, known().entry)

    assert not consent.covers(known())
    assert not desk.consent().covers(known())


@pytest.mark.parametrize("how", ["deleted", "edited"])
@pytest.mark.parametrize("name", ["approvals.json", "lock-*.json", "key"])
@pytest.mark.requirement("APPR-01")
async def test_a_pin_that_ended_does_not_come_back_when_someone_else_writes_to_the_state(
    how: str, name: str, desk: Desk
) -> None:
    """Attack 25."""
    desk.pin(known())
    await desk.consent(User(Reply.ALWAYS)).require_load(known("payments"))
    await desk.consent().revoke(known().id)
    [path] = desk.state.glob(name)
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b" ")

    assert not desk.consent().covers(known())


async def test_a_pin_counts_again_when_the_user_approves_the_same_content(desk: Desk) -> None:
    desk.pin(known())
    consent = desk.consent(User(Reply.ALWAYS))
    await consent.revoke(known().id)

    await consent.require_load(known())

    assert consent.covers(known())


# Somebody else


@pytest.mark.parametrize("how", ["edited", "deleted", "key"])
@pytest.mark.requirement("APPR-01")
async def test_approvals_that_something_else_wrote_to_are_none(how: str, desk: Desk) -> None:
    """Attack 25."""
    await desk.consent(User(Reply.ALWAYS)).require_load(known())
    path = desk.state / "approvals.json"
    old, new = known().entry.manifest, known(body="Other.\n").entry.manifest
    assert old is not None and new is not None
    if how == "edited":
        text = path.read_text("utf-8").replace(old.files[0].digest, new.files[0].digest)
        path.write_text(text, "utf-8")
    elif how == "deleted":
        path.unlink()
    else:
        (desk.state / "key").unlink()

    later = desk.consent()

    assert not later.covers(known())
    assert not later.covers(known(body="Other.\n"))


async def test_every_question_and_its_answer_are_in_the_audit_log(desk: Desk) -> None:
    consent = desk.consent(User(Reply.ALWAYS))
    await consent.require_load(known())
    consent.observe(known().id, known(body="Other.\n").entry)

    log = (desk.state / "audit.jsonl").read_text("utf-8")

    for words in ('"question"', '"always"', '"approval"', '"approval-revoked"', '"skill-changed"'):
        assert words in log
    assert "Do it." not in log
