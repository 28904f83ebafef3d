"""Approval decisions: look them up, ask the user, and remember the answer.

An approval comes from the frozen lock, or from this machine's store, a
trusted lock, or an earlier answer in this run. When nobody can be asked, the
request is denied.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Final, Literal, TypeAlias, cast

import anyio
import anyio.to_thread

from skillwire.core import Manifest, SkillEntry, quoted, visible
from skillwire.host.approval.lock_trust import ProjectLock
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.model import (
    MAX_WORDS,
    Approval,
    ApprovalDeniedError,
    ApprovalRequiredError,
    ApprovalState,
    Ask,
    Change,
    DynamicDeclinedError,
    Grant,
    KeepsChangingError,
    KnownSkill,
    LockUntrustedError,
    NotLockedError,
    Occasion,
    Origin,
    PromptLimitError,
    Provenance,
    ProvenanceProvider,
    ProvenanceResult,
    ProvenanceVerdict,
    Question,
    Refusal,
    RefusedError,
    Reply,
    ShowRules,
    SkillId,
    Trust,
    UnverifiedFileError,
    VetoedError,
    binding_of,
    now,
)
from skillwire.host.state.audit import AuditLog

logger = logging.getLogger(__name__)

# Provenance checks: ask the provider within a deadline, cache verdicts by content, report failures.


CHECK_SECONDS: Final = 10.0
MAX_CACHED: Final = 1_000


class ProvenanceCheck:
    """Asks a provider about the skills of one host; without a provider there are no results.

    A verdict is cached while the host is open, for exactly the content it is
    about. A failure is not cached: the provider is asked again.
    """

    def __init__(
        self, provider: ProvenanceProvider | None, audit: AuditLog, *, seconds: float = CHECK_SECONDS
    ) -> None:
        self._provider = provider
        self._audit = audit
        self._seconds = seconds
        self._results: dict[tuple[SkillId, str], ProvenanceResult] = {}

    async def result_for(self, skill: KnownSkill) -> ProvenanceResult | None:
        """Return the provider's verdict on a server's skill; None without a provider.

        Nothing of the skill is fetched. Local skills are not checked.
        """
        if self._provider is None or not skill.is_remote:
            return None
        manifest = skill.entry.manifest
        binding = binding_of(manifest)
        cached = self._results.get((skill.id, binding)) if binding else None
        if cached is not None:
            return cached
        subject = Provenance(skill.id.origin, skill.id.uri, manifest, binding)
        found = await self._ask_provider(self._provider, subject, skill.reference)
        if binding and not found.problem:
            self._results.pop((skill.id, binding), None)
            self._results[skill.id, binding] = found
            if len(self._results) > MAX_CACHED:
                del self._results[next(iter(self._results))]
        return found

    async def require_no_veto(self, skill: KnownSkill) -> ProvenanceResult | None:
        """Check a skill that is about to be loaded, and return the result.

        Raises:
            VetoedError: The provider vetoes it.
        """
        found = await self.result_for(skill)
        if found is not None and found.is_veto:
            words = f": {found.words}" if found.words else ""
            raise VetoedError(
                f"the provenance check vetoed {skill.reference}{words}", reference=skill.reference
            )
        return found

    async def _ask_provider(
        self, provider: ProvenanceProvider, subject: Provenance, reference: str
    ) -> ProvenanceResult:
        # A provider may return any type, whatever its annotation.
        answer: object = None
        problem = ""
        with anyio.move_on_after(self._seconds) as clock:
            try:
                answer = cast(object, await provider.check(subject))
            except Exception as error:
                logger.warning("the provenance check of %s failed", reference, exc_info=error)
                problem = f"the check failed ({type(error).__name__})"
        if clock.cancelled_caught:
            problem = f"the check took more than {self._seconds:g} seconds"
        elif not problem and answer is not None and not isinstance(answer, ProvenanceVerdict):
            problem = "the check did not return a verdict"
        found = ProvenanceResult(subject.binding, problem=problem)
        if not problem and isinstance(answer, ProvenanceVerdict):
            found = ProvenanceResult(subject.binding, _short(answer.words), bool(answer.is_veto))
        self._audit.record(
            "provenance",
            reference=reference,
            binding=subject.binding,
            verdict="failed" if problem else "veto" if found.is_veto else "words" if found.words else "none",
        )
        return found


def _short(words: object) -> str:
    """Return a provider's text as one safe line of bounded length."""
    if not isinstance(words, str):
        return ""
    line = " ".join(visible(words[: 4 * MAX_WORDS]).split())
    return line if len(line) <= MAX_WORDS else f"{line[:MAX_WORDS]}…"


# The last approval of a skill, whether or not it still holds: the base for showing changes.


_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PreviousApproval:
    """What a user agreed to: which files, and when, if that is known.

    `is_pin` is true for a pin of the project's lock, and `holds` while it has
    not ended.
    """

    manifest: Manifest
    granted_at: datetime | None
    is_pin: bool
    holds: bool

    def is_for(self, entry: SkillEntry) -> bool:
        """Return whether an entry lists exactly the files that were approved."""
        return entry.manifest is not None and binding_of(entry.manifest) == binding_of(self.manifest)


def previous_approval(skill: KnownSkill, store: ApprovalStore, lock: ProjectLock) -> PreviousApproval | None:
    """Return the approval that covers a skill as it is now, else the newest earlier one.

    With a frozen lock, only its pins count.
    """
    has_lock = lock.path is not None
    pin = lock.pin(skill.id) if has_lock else None
    if lock.is_frozen:
        return None if pin is None else _from_approval(pin, is_pin=True)
    approval = store.find(skill.id)
    for approved in (pin, approval):
        if approved is not None and approved.is_for(skill.entry):
            return _from_approval(approved, is_pin=approved is pin)
    found = [] if approval is None else [_from_approval(approval)]
    ended = store.previous(skill.id)
    if ended is not None:
        found.append(PreviousApproval(ended.manifest, ended.granted_at, is_pin=False, holds=False))
    pinned = lock.previous(skill.id) if has_lock else None
    if pinned is not None:
        found.append(_from_approval(pinned, is_pin=True, holds=pin is not None))
    # Of two with the same time, the one of this machine wins.
    return max(found, key=lambda each: each.granted_at or _EARLIEST, default=None)


def _from_approval(approval: Approval, *, is_pin: bool = False, holds: bool = True) -> PreviousApproval:
    return PreviousApproval(approval.manifest, approval.granted_at, is_pin, holds)


DynamicPolicy: TypeAlias = Literal["decline", "ask"]
Actor: TypeAlias = Literal["model", "user"]


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """Limits on the questions a user is asked, per changing skill and per server."""

    contents_per_skill: int = 3
    questions_per_server: int = 20
    seconds: float = 600.0
    answer_seconds: float = 600.0


class Consent:
    """The user's approvals and denials, for all conversations of one host."""

    def __init__(
        self,
        store: ApprovalStore,
        lock: ProjectLock,
        audit: AuditLog,
        *,
        ask: Ask | None,
        dynamic: DynamicPolicy,
        granted_by: str,
        limits: PromptLimits,
        show_rules: ShowRules | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._lock = lock
        self._audit = audit
        # A frozen lock is the whole policy, so the user is never asked.
        self._ask = None if lock.is_frozen else ask
        self._dynamic = dynamic
        self._granted_by = granted_by
        self._limits = limits
        self._show_rules = show_rules or ShowRules()
        self._clock = clock
        self._asking = anyio.Lock()
        self._once: set[tuple[SkillId, str, Grant]] = set()
        self._denied: set[tuple[SkillId, str, Grant]] = set()
        self._asked_contents: dict[SkillId, set[str]] = defaultdict(set)
        self._question_times: dict[str, deque[float]] = defaultdict(deque)

    def grants(self, skill: KnownSkill) -> frozenset[Grant]:
        """Return the current grants for exactly this content."""
        return frozenset(grant for grant in Grant if self.covers(skill, grant))

    def covers(self, skill: KnownSkill, grant: Grant = Grant.LOAD) -> bool:
        """Return whether the user agreed to `grant` for exactly this content from exactly this origin."""
        if not skill.is_remote and grant is Grant.LOAD:
            return True
        manifest = skill.entry.manifest
        if manifest is None:
            return False
        if not self._lock.is_frozen:
            # Called for whole catalogs, of which few skills were ever approved.
            if any(key[0] == skill.id for key in self._once):
                if (skill.id, binding_of(manifest), grant) in self._once:
                    return True
            approval = self._store.find(skill.id)
            if approval is not None and approval.covers(skill.id, skill.entry, grant):
                return True
        pin = None if self._lock.path is None else self._lock.pin(skill.id)
        return pin is not None and pin.covers(skill.id, skill.entry, grant)

    def observe_all(self, origin: Origin, entries: Sequence[SkillEntry]) -> None:
        """Call `observe` for the entries that a server lists now and that were ever approved."""
        known = {skill.uri for skill in self._store.approvals() if skill.origin == origin}
        known |= {key[0].uri for key in self._once if key[0].origin == origin}
        for entry in entries:
            skill = SkillId(origin, entry.uri.text)
            if entry.uri.text in known or self._lock.last_trusted_pin(skill) is not None:
                self.observe(skill, entry)

    def observe(self, skill: SkillId, entry: SkillEntry) -> None:
        """Revoke approvals of other content than the entry that a server lists now.

        They are revoked for good: if the server returns to the approved
        content, the user is asked again.
        """
        pin = self._lock.last_trusted_pin(skill)
        revoked = self._store.observe(skill, entry)
        stale = {key for key in self._once if key[0] == skill and key[1] != binding_of(entry.manifest)}
        self._once -= stale
        if pin is not None and pin.is_ended_by(entry):
            revoked = self._lock.revoke(skill) or revoked
        if revoked or stale:
            self._audit.record(
                "approval-revoked", origin=skill.origin.label, uri=skill.uri, code="skill-changed"
            )

    def approval_state(self, skill: KnownSkill) -> ApprovalState:
        """Return the approval state of exactly this content."""
        if not skill.is_remote:
            return ApprovalState.LOCAL
        manifest = skill.entry.manifest
        if manifest is None:
            return ApprovalState.DYNAMIC
        pin = self._lock.pin(skill.id)
        if pin is not None and pin.covers(skill.id, skill.entry):
            return ApprovalState.LOCKED
        if self.covers(skill):
            is_once = (skill.id, binding_of(manifest), Grant.LOAD) in self._once
            return ApprovalState.ONCE if is_once else ApprovalState.APPROVED
        previous = previous_approval(skill, self._store, self._lock)
        return (
            ApprovalState.NEW if previous is None or previous.is_for(skill.entry) else ApprovalState.CHANGED
        )

    async def require_load(
        self,
        skill: KnownSkill,
        *,
        actor: Actor = "model",
        provenance: ProvenanceResult | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> None:
        """Require that the user agrees that this content enters the model's context.

        `provenance` is the result of a provenance check, shown to the user,
        and `arguments` are what would be sent to the skill's server. With
        arguments the user is always asked, because no approval covers them.

        Raises:
            ApprovalError: The user denies it, or cannot be asked.
            DynamicDeclinedError: It has no digests, and the policy declines such skills.
        """
        if self.covers(skill) and not arguments:
            return
        self._require_grantable(skill)
        async with self._asking:
            if not arguments and self.covers(skill):
                return
            if actor == "model":
                self._require_not_denied(skill, Grant.LOAD)
                contents, binding = self._asked_contents[skill.id], binding_of(skill.entry.manifest)
                if len(contents - {binding}) >= self._limits.contents_per_skill:
                    raise KeepsChangingError(
                        f"{skill.reference} has changed {len(contents)} times "
                        "while the user was asked about it",
                        reference=skill.reference,
                    )
                contents.add(binding)
                self._require_server_within_limit(skill)
            self._require_askable(skill)
            approval = previous_approval(skill, self._store, self._lock)
            previous, manifest = None if approval is None else approval.manifest, skill.entry.manifest
            occasion = Occasion.FIRST if previous is None else Occasion.CHANGED
            question = Question(
                Occasion.DYNAMIC if manifest is None else occasion,
                skill,
                change=None if previous is None or manifest is None else Change.between(previous, manifest),
                previous=previous,
                provenance=provenance,
                arguments=tuple((arguments or {}).items()),
            )
            reply = await self._ask_user(question, reference=skill.reference)
            await self._apply_reply(skill, Grant.LOAD, reply)

    def expected_refusal(self, skill: KnownSkill) -> Refusal | None:
        """Return why a load would be refused; None when it is covered, or the user would be asked."""
        try:
            if not self.covers(skill):
                self._require_grantable(skill)
                self._require_askable(skill)
        except RefusedError as error:
            return Refusal.of(error)
        return None

    async def request(self, question: Question, grant: Grant, *, actor: Actor = "model") -> None:
        """Ask for a further grant for a skill, unless it is granted already.

        When the user is the actor, an earlier denial does not prevent asking.

        Raises:
            ApprovalError: The user denies it, or cannot be asked.
        """
        skill = question.skill
        assert skill is not None, "a grant is always for a skill"
        async with self._asking:
            if self.covers(skill, grant):
                return
            if self._lock.is_frozen:
                raise NotLockedError(
                    f"the lock does not grant {grant.value} to {skill.reference}", reference=skill.reference
                )
            if actor == "model":
                self._require_not_denied(skill, grant)
                self._require_server_within_limit(skill)
            reply = await self._ask_user(question, reference=skill.reference)
            await self._apply_reply(skill, grant, reply)

    async def permit(self, question: Question, *, actor: Actor = "model") -> bool:
        """Ask about one call or one read; the answer applies to it alone and is never stored.

        Raises:
            ApprovalError: Nobody can be asked, or the prompt limit is reached.
        """
        skill = question.skill
        assert skill is not None, "without a skill there is nothing to ask about"
        async with self._asking:
            if actor == "model":
                self._require_server_within_limit(skill)
            return await self._ask_user(question, reference=skill.reference) is not Reply.DENY

    async def require_unverified(self, skill: KnownSkill, uri: str) -> None:
        """Require that the user agrees that files without a digest are read.

        The answer applies to the current window only, because such files can
        change at any time.

        Raises:
            UnverifiedFileError: The policy declines content without digests.
            ApprovalError: The user denies it, or cannot be asked.
        """
        if self._dynamic == "decline" or self._lock.is_frozen:
            raise UnverifiedFileError(
                f"{quoted(uri)} of {skill.reference} has no digest", reference=skill.reference
            )
        if not await self.permit(Question(Occasion.UNVERIFIED, skill, uri=uri)):
            raise ApprovalDeniedError(
                f"the user denied reading files of {skill.reference} that have no digest",
                reference=skill.reference,
            )

    async def approve(self, skill: KnownSkill, grants: frozenset[Grant]) -> Approval | None:
        """Store an approval of exactly the entry in `skill`; None when it has no digests."""
        if skill.entry.manifest is None:
            return None
        approval = Approval(skill.id, skill.entry.manifest, grants, now(), self._granted_by)
        await anyio.to_thread.run_sync(self._store.grant, approval)
        self._denied = {key for key in self._denied if key[0] != skill.id}
        self._asked_contents.pop(skill.id, None)
        self._audit.record(
            "approval",
            origin=skill.id.origin.label,
            uri=skill.id.uri,
            grants=sorted(grants),
            binding=binding_of(skill.entry.manifest),
        )
        return approval

    async def revoke(self, skill: SkillId) -> bool:
        """Revoke everything the user agreed to for this skill; False when there was nothing."""
        before = len(self._once)
        self._once = {key for key in self._once if key[0] != skill}
        revoked = await anyio.to_thread.run_sync(self._store.revoke, skill)
        revoked = await anyio.to_thread.run_sync(partial(self._lock.revoke, skill, by_user=True)) or revoked
        self._audit.record("approval-revoked", origin=skill.origin.label, uri=skill.uri, code="user")
        return revoked or len(self._once) < before

    def reset_prompts(self) -> None:
        """Forget earlier denials and reset the prompt limits."""
        self._denied.clear()
        self._asked_contents.clear()
        self._question_times.clear()

    def previous(self, skill: KnownSkill) -> Manifest | None:
        """Return the manifest that was approved last, to show what has changed."""
        previous = previous_approval(skill, self._store, self._lock)
        return None if previous is None else previous.manifest

    def _require_not_denied(self, skill: KnownSkill, grant: Grant) -> None:
        """Check that the user has not denied the same grant for the same content."""
        if (skill.id, binding_of(skill.entry.manifest), grant) in self._denied:
            raise ApprovalDeniedError(
                f"the user has already denied {grant.value} for {skill.reference}",
                reference=skill.reference,
            )

    def _require_server_within_limit(self, skill: KnownSkill) -> None:
        """Check that the prompt limit of the skill's server is not reached."""
        label = skill.id.origin.label
        asked = self._question_times[label]
        while asked and asked[0] <= self._clock() - self._limits.seconds:
            asked.popleft()
        if len(asked) >= self._limits.questions_per_server:
            raise PromptLimitError(
                f"the server {label} has caused {len(asked)} questions in {self._limits.seconds:g} seconds",
                reference=skill.reference,
            )

    def _require_grantable(self, skill: KnownSkill) -> None:
        """Check that policy and lock allow an approval of this skill."""
        if skill.entry.is_dynamic and (self._dynamic == "decline" or self._lock.is_frozen):
            raise DynamicDeclinedError(f"{skill.reference} has no digests", reference=skill.reference)
        if self._lock.is_frozen:
            raise NotLockedError(
                f"the lock does not hold {skill.reference} with exactly these files",
                reference=skill.reference,
            )

    def _require_askable(self, skill: KnownSkill) -> None:
        """Check that the user can be asked; if not, report an untrusted lock where that is the reason."""
        is_asked = self._show_rules.trust(skill) is Trust.ASK
        if self._ask is not None and is_asked:
            return
        pin = self._lock.untrusted_pin(skill.id)
        if pin is not None and pin.covers(skill.id, skill.entry):
            raise LockUntrustedError(
                f"{skill.reference} is pinned in a lock that changed outside skillwire",
                reference=skill.reference,
            )
        if not is_asked:
            raise ApprovalRequiredError(
                f"the settings of the server {skill.id.origin.label} do not allow asking about its skills",
                reference=skill.reference,
                fix="approve it beforehand, or pin it in skills.lock",
            )
        raise ApprovalRequiredError(f"{skill.reference} needs the user's approval", reference=skill.reference)

    async def _ask_user(self, question: Question, *, reference: str) -> Reply:
        """Ask the user, within a deadline; no answer counts as a denial."""
        occasion = question.occasion.value
        if self._ask is None:
            self._audit.record("question", reference=reference, occasion=occasion, reply="nobody")
            raise ApprovalRequiredError(
                f"{reference} needs the user's approval ({occasion})", reference=reference
            )
        times = self._question_times[question.skill.id.origin.label if question.skill is not None else ""]
        times.append(self._clock())
        # An embedder's callback may return any type, whatever its annotation.
        reply: object = Reply.DENY
        try:
            with anyio.move_on_after(self._limits.answer_seconds):
                reply = cast(object, await self._ask(question))
        except ApprovalRequiredError:
            # Nobody saw the question, so it does not count.
            times.pop()
            if question.skill is not None:
                self._asked_contents.pop(question.skill.id, None)
            self._audit.record("question", reference=reference, occasion=occasion, reply="nobody")
            raise
        if not isinstance(reply, Reply):
            logger.warning("the approval callback did not return a Reply; treated as a denial")
            reply = Reply.DENY
        self._audit.record("question", reference=reference, occasion=occasion, reply=reply.value)
        return reply

    async def _apply_reply(self, skill: KnownSkill, grant: Grant, reply: Reply) -> None:
        key = (skill.id, binding_of(skill.entry.manifest), grant)
        if reply is Reply.DENY:
            self._denied.add(key)
            raise ApprovalDeniedError(
                f"the user denied {grant.value} for {skill.reference}", reference=skill.reference
            )
        self._denied.discard(key)
        if skill.entry.is_dynamic:
            return
        if reply is Reply.ONCE:
            self._once.add(key)
        else:
            await self.approve(skill, frozenset({grant}))
