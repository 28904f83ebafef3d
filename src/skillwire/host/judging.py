"""Asking a provenance provider, within bounds: what it says is kept by content, and its failures are told."""

import logging
from typing import Final, cast

import anyio

from skillwire.core.characters import visible
from skillwire.host.approval.approvals import binding_of
from skillwire.host.approval.provenance import (
    MAX_WORDS,
    Judgement,
    Provenance,
    ProvenanceProvider,
    ProvenanceVerdict,
)
from skillwire.host.failures import VetoedError
from skillwire.host.origin import SkillId
from skillwire.host.registry.known import KnownSkill
from skillwire.host.state.audit import AuditLog

JUDGE_SECONDS: Final = 10.0
MAX_KEPT: Final = 1_000

logger = logging.getLogger(__name__)


class Judge:
    """What a provider says of the skills of one host; without a provider nothing is said of any.

    A verdict is kept for as long as the host is open, and only for the very
    content it is about. That a provider failed is not kept: it is asked again.
    """

    def __init__(
        self, provider: ProvenanceProvider | None, audit: AuditLog, *, seconds: float = JUDGE_SECONDS
    ) -> None:
        self._provider = provider
        self._audit = audit
        self._seconds = seconds
        self._kept: dict[tuple[SkillId, str], Judgement] = {}

    async def of(self, skill: KnownSkill) -> Judgement | None:
        """Return what the provider says of a server's skill; None when there is no provider to ask.

        Nothing of the skill is fetched for it. Local skills are the user's own
        and are not asked about.
        """
        if self._provider is None or not skill.is_remote:
            return None
        manifest = skill.entry.manifest
        binding = "" if manifest is None else binding_of(manifest)
        kept = self._kept.get((skill.id, binding)) if binding else None
        if kept is not None:
            return kept
        subject = Provenance(skill.id.origin, skill.id.uri, manifest, binding)
        found = await self._asked(self._provider, subject, skill.reference)
        if binding and not found.problem:
            self._kept.pop((skill.id, binding), None)
            self._kept[skill.id, binding] = found
            if len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return found

    async def require_no_veto(self, skill: KnownSkill) -> Judgement | None:
        """Ask about a skill that is to be loaded, and return what else was said.

        Raises:
            VetoedError: The provider says no.
        """
        found = await self.of(skill)
        if found is not None and found.is_veto:
            words = f": {found.words}" if found.words else ""
            raise VetoedError(
                f"the provenance check says no to {skill.reference}{words}", reference=skill.reference
            )
        return found

    async def _asked(self, provider: ProvenanceProvider, subject: Provenance, reference: str) -> Judgement:
        # A provider is someone else's code, which may return anything, whatever its annotation says.
        answer: object = None
        problem = ""
        with anyio.move_on_after(self._seconds) as clock:
            try:
                answer = cast(object, await provider.judge(subject))
            except Exception as error:
                logger.warning("the provenance check of %s failed", reference, exc_info=error)
                problem = f"the check failed ({type(error).__name__})"
        if clock.cancelled_caught:
            problem = f"the check took more than {self._seconds:g} seconds"
        elif not problem and answer is not None and not isinstance(answer, ProvenanceVerdict):
            problem = "the check answered with something that is no verdict"
        found = Judgement(subject.binding, problem=problem)
        if not problem and isinstance(answer, ProvenanceVerdict):
            found = Judgement(subject.binding, _short(answer.words), bool(answer.is_veto))
        self._audit.record(
            "provenance",
            reference=reference,
            binding=subject.binding,
            verdict="failed" if problem else "veto" if found.is_veto else "words" if found.words else "none",
        )
        return found


def _short(words: object) -> str:
    """Return a provider's words as one harmless line of bounded length."""
    if not isinstance(words, str):
        return ""
    line = " ".join(visible(words[: 4 * MAX_WORDS]).split())
    return line if len(line) <= MAX_WORDS else f"{line[:MAX_WORDS]}…"
