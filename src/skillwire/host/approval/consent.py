"""Has the user agreed to this? The one place that knows, asks, and remembers.

An answer comes from the frozen lock, or from what was approved on this
machine, in a trusted lock, or earlier in this run. When nobody can be asked,
the answer is no.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Literal, TypeAlias, cast

import anyio
import anyio.to_thread

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import Manifest
from skillwire.host.approval.approvals import (
    Approval,
    Ask,
    Change,
    Grant,
    Occasion,
    Question,
    Reply,
    Standing,
    binding_of,
    now,
)
from skillwire.host.approval.earlier import earlier_of
from skillwire.host.approval.policy import ProjectLock
from skillwire.host.approval.provenance import Judgement
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.attention import Attentions, Trust
from skillwire.host.failures import (
    ApprovalDeniedError,
    ApprovalRequiredError,
    DynamicDeclinedError,
    KeepsChangingError,
    LockUntrustedError,
    NotLockedError,
    PromptLimitError,
    RefusedError,
    UnverifiedFileError,
)
from skillwire.host.origin import Origin, SkillId
from skillwire.host.refusals import Refusal
from skillwire.host.registry.known import KnownSkill
from skillwire.host.state.audit import AuditLog

logger = logging.getLogger(__name__)

DynamicPolicy: TypeAlias = Literal["decline", "ask"]
Actor: TypeAlias = Literal["model", "user"]


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """How often a user is bothered: by one skill that changes, and by one server."""

    contents_per_skill: int = 3
    questions_per_server: int = 20
    seconds: float = 600.0
    answer_seconds: float = 600.0


class Consent:
    """What the user agreed to, for all conversations of one host."""

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
        attention: Attentions | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._lock = lock
        self._audit = audit
        # A frozen lock is the whole policy, so there is nothing left to ask about.
        self._ask = None if lock.is_frozen else ask
        self._dynamic = dynamic
        self._granted_by = granted_by
        self._limits = limits
        self._attention = attention or Attentions()
        self._clock = clock
        self._asking = anyio.Lock()
        self._once: set[tuple[SkillId, str, Grant]] = set()
        self._denied: set[tuple[SkillId, str, Grant]] = set()
        self._contents: dict[SkillId, set[str]] = defaultdict(set)
        self._questions: dict[str, deque[float]] = defaultdict(deque)

    def grants(self, skill: KnownSkill) -> frozenset[Grant]:
        """Return what is granted to exactly this content, right now."""
        return frozenset(grant for grant in Grant if self.covers(skill, grant))

    def covers(self, skill: KnownSkill, grant: Grant = Grant.LOAD) -> bool:
        """Tell whether the user agreed to `grant` for exactly this content from exactly this origin."""
        if not skill.is_remote and grant is Grant.LOAD:
            return True
        manifest = skill.entry.manifest
        if manifest is None:
            return False
        if not self._lock.is_frozen:
            # Asked of whole catalogs, and few of their skills were ever approved.
            if any(key[0] == skill.id for key in self._once):
                if (skill.id, binding_of(manifest), grant) in self._once:
                    return True
            approval = self._store.find(skill.id)
            if approval is not None and approval.covers(skill.id, skill.entry, grant):
                return True
        pin = self._lock.pin(skill.id)
        return pin is not None and pin.covers(skill.id, skill.entry, grant)

    def observe_all(self, origin: Origin, entries: Sequence[SkillEntry]) -> None:
        """Look at the entries a server shows now, as `observe` does at each.

        A catalog is large, and few of its skills were ever approved.
        """
        known = {skill.uri for skill in self._store.approvals() if skill.origin == origin}
        known |= {key[0].uri for key in self._once if key[0].origin == origin}
        for entry in entries:
            skill = SkillId(origin, entry.uri.text)
            if entry.uri.text in known or self._lock.seen_pin(skill) is not None:
                self.observe(skill, entry)

    def observe(self, skill: SkillId, entry: SkillEntry) -> None:
        """Look at an entry a server shows now: approvals of other content end here, for good.

        A server that returns to what was approved once is asked about again.
        """
        pin = self._lock.seen_pin(skill)
        revoked = self._store.observe(skill, entry)
        stale = {key for key in self._once if key[0] == skill and key[1] != _binding(entry)}
        self._once -= stale
        if pin is not None and pin.is_ended_by(entry):
            revoked = self._lock.revoke(skill) or revoked
        if revoked or stale:
            self._audit.record(
                "approval-revoked", origin=skill.origin.label, uri=skill.uri, code="skill-changed"
            )

    def standing(self, skill: KnownSkill) -> Standing:
        """Say how the user's word stands for exactly this content."""
        if not skill.is_remote:
            return Standing.LOCAL
        manifest = skill.entry.manifest
        if manifest is None:
            return Standing.DYNAMIC
        pin = self._lock.pin(skill.id)
        if pin is not None and pin.covers(skill.id, skill.entry):
            return Standing.LOCKED
        if self.covers(skill):
            is_once = (skill.id, binding_of(manifest), Grant.LOAD) in self._once
            return Standing.ONCE if is_once else Standing.APPROVED
        earlier = earlier_of(skill, self._store, self._lock)
        return Standing.NEW if earlier is None or earlier.is_for(skill.entry) else Standing.CHANGED

    async def require_load(
        self, skill: KnownSkill, *, actor: Actor = "model", judgement: Judgement | None = None
    ) -> None:
        """Make sure the user agrees that this content enters the model's context.

        `judgement` is what a provenance check says of it, for the user to see.

        Raises:
            ApprovalError: The user does not, or cannot be asked.
            DynamicDeclinedError: It has no digests, and such skills are not wanted.
        """
        if self.covers(skill):
            return
        self._require_possible(skill)
        async with self._asking:
            if not self.covers(skill):
                await self._ask_about_load(skill, actor, judgement)

    def expected_refusal(self, skill: KnownSkill) -> Refusal | None:
        """Say why a load would be refused; None when it is covered, or the user would be asked."""
        try:
            if not self.covers(skill):
                self._require_possible(skill)
                self._require_somebody(skill)
        except RefusedError as error:
            return Refusal.of(error)
        return None

    async def request(self, question: Question, grant: Grant, *, actor: Actor = "model") -> None:
        """Ask for a further grant for a skill, unless it is given already.

        A person who wants it is asked even after an earlier no.

        Raises:
            ApprovalError: The user says no, or cannot be asked.
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
                self._require_room(skill)
            reply = await self._put(question, reference=skill.reference)
            await self._settle(skill, grant, reply)

    async def permit(self, question: Question, *, actor: Actor = "model") -> bool:
        """Ask about one call or one read; the answer is for that one alone, and never remembered.

        Raises:
            ApprovalError: Nobody can be asked, or was asked too often.
        """
        skill = question.skill
        assert skill is not None, "without a skill there is nothing to ask about"
        async with self._asking:
            if actor == "model":
                self._require_room(skill)
            return await self._put(question, reference=skill.reference) is not Reply.DENY

    async def require_unverified(self, skill: KnownSkill, uri: str) -> None:
        """Make sure the user agrees that files of a skill are read that have no digest.

        The answer is for the window at hand: nothing that can change at any
        time is approved for later.

        Raises:
            UnverifiedFileError: Content without digests is not wanted here.
            ApprovalError: The user does not agree, or cannot be asked.
        """
        if self._dynamic == "decline" or self._lock.is_frozen:
            raise UnverifiedFileError(
                f"{quoted(uri)} of {skill.reference} has no digest", reference=skill.reference
            )
        if not await self.permit(Question(Occasion.UNVERIFIED, skill, uri=uri)):
            raise ApprovalDeniedError(
                f"the user does not want files of {skill.reference} that have no digest",
                reference=skill.reference,
            )

    async def approve(self, skill: KnownSkill, grants: frozenset[Grant]) -> Approval | None:
        """Remember that the user agreed to exactly the entry in `skill`; None when it has no digests."""
        if skill.entry.manifest is None:
            return None
        approval = Approval(skill.id, skill.entry.manifest, grants, now(), self._granted_by)
        await anyio.to_thread.run_sync(self._store.grant, approval)
        self._denied = {key for key in self._denied if key[0] != skill.id}
        self._contents.pop(skill.id, None)
        self._audit.record(
            "approval",
            origin=skill.id.origin.label,
            uri=skill.id.uri,
            grants=sorted(grants),
            binding=binding_of(skill.entry.manifest),
        )
        return approval

    async def revoke(self, skill: SkillId) -> bool:
        """Take back everything the user agreed to for this skill."""
        before = len(self._once)
        self._once = {key for key in self._once if key[0] != skill}
        revoked = await anyio.to_thread.run_sync(self._store.revoke, skill)
        revoked = await anyio.to_thread.run_sync(self._lock.revoke, skill) or revoked
        self._audit.record("approval-revoked", origin=skill.origin.label, uri=skill.uri, code="user")
        return revoked or len(self._once) < before

    def calm(self) -> None:
        """Forget denials and how often was asked, because the user wants another look."""
        self._denied.clear()
        self._contents.clear()
        self._questions.clear()

    async def _ask_about_load(self, skill: KnownSkill, actor: Actor, judgement: Judgement | None) -> None:
        if actor == "model":
            self._require_not_denied(skill, Grant.LOAD)
            self._require_patience(skill)
        self._require_somebody(skill)
        previous = self.previous(skill)
        occasion = Occasion.FIRST if previous is None else Occasion.CHANGED
        change = None
        if skill.entry.manifest is None:
            occasion = Occasion.DYNAMIC
        elif previous is not None:
            change = Change.between(previous, skill.entry.manifest)
        question = Question(occasion, skill, change=change, previous=previous, judgement=judgement)
        reply = await self._put(question, reference=skill.reference)
        await self._settle(skill, Grant.LOAD, reply)

    def previous(self, skill: KnownSkill) -> Manifest | None:
        """Return what was approved last, so that the user can be shown what is different."""
        earlier = earlier_of(skill, self._store, self._lock)
        return None if earlier is None else earlier.manifest

    def _require_not_denied(self, skill: KnownSkill, grant: Grant) -> None:
        """Check that the user has not said no to the same already."""
        if (skill.id, _binding(skill.entry), grant) in self._denied:
            raise ApprovalDeniedError(
                f"the user has already said no to {grant.value} for {skill.reference}",
                reference=skill.reference,
            )

    def _require_patience(self, skill: KnownSkill) -> None:
        """Check that neither the skill nor its server has been asked about too often."""
        contents, binding = self._contents[skill.id], _binding(skill.entry)
        if len(contents - {binding}) >= self._limits.contents_per_skill:
            raise KeepsChangingError(
                f"{skill.reference} has changed {len(contents)} times while the user was asked about it",
                reference=skill.reference,
            )
        contents.add(binding)
        self._require_room(skill)

    def _require_room(self, skill: KnownSkill) -> None:
        """Check that the skill's server has not caused too many questions already."""
        label = skill.id.origin.label
        asked = self._questions[label]
        while asked and asked[0] <= self._clock() - self._limits.seconds:
            asked.popleft()
        if len(asked) >= self._limits.questions_per_server:
            raise PromptLimitError(
                f"the server {label} has caused {len(asked)} questions in {self._limits.seconds:g} seconds",
                reference=skill.reference,
            )

    def _require_possible(self, skill: KnownSkill) -> None:
        """Check that this is something the user could agree to at all."""
        if skill.entry.is_dynamic and (self._dynamic == "decline" or self._lock.is_frozen):
            raise DynamicDeclinedError(f"{skill.reference} promises no digests", reference=skill.reference)
        if self._lock.is_frozen:
            raise NotLockedError(
                f"the lock does not hold {skill.reference} with exactly these files",
                reference=skill.reference,
            )

    def _require_somebody(self, skill: KnownSkill) -> None:
        """Check that someone can be asked; if not, name the lock where that is the real reason."""
        is_asked = self._attention.trust(skill) is Trust.ASK
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
                f"the settings of the server {skill.id.origin.label} say that nobody is asked about it",
                reference=skill.reference,
                fix="approve it beforehand, or pin it in skills.lock",
            )
        raise ApprovalRequiredError(f"{skill.reference} needs the user's approval", reference=skill.reference)

    async def _put(self, question: Question, *, reference: str) -> Reply:
        """Put a question to the user, within a deadline; silence means no."""
        occasion = question.occasion.value
        if self._ask is None:
            self._audit.record("question", reference=reference, occasion=occasion, reply="nobody")
            raise ApprovalRequiredError(
                f"{reference} needs the user's approval ({occasion})", reference=reference
            )
        if question.skill is not None:
            self._questions[question.skill.id.origin.label].append(self._clock())
        # An embedder's callback may return anything, whatever its annotation says.
        reply: object = Reply.DENY
        with anyio.move_on_after(self._limits.answer_seconds):
            reply = cast(object, await self._ask(question))
        if not isinstance(reply, Reply):
            logger.warning("an approval callback answered with something that is no Reply; taken as no")
            reply = Reply.DENY
        self._audit.record("question", reference=reference, occasion=occasion, reply=reply.value)
        return reply

    async def _settle(self, skill: KnownSkill, grant: Grant, reply: Reply) -> None:
        key = (skill.id, _binding(skill.entry), grant)
        if reply is Reply.DENY:
            self._denied.add(key)
            raise ApprovalDeniedError(
                f"the user does not want {grant.value} for {skill.reference}", reference=skill.reference
            )
        self._denied.discard(key)
        if skill.entry.is_dynamic:
            return
        if reply is Reply.ONCE:
            self._once.add(key)
        else:
            await self.approve(skill, frozenset({grant}))


def _binding(entry: SkillEntry) -> str:
    return "" if entry.manifest is None else binding_of(entry.manifest)
