"""Provenance checks: ask the provider within a deadline, cache verdicts by content, report failures."""

import logging
from typing import Final, cast

import anyio

from skillwire.core import visible
from skillwire.host.model import (
    MAX_WORDS,
    KnownSkill,
    Provenance,
    ProvenanceProvider,
    ProvenanceResult,
    ProvenanceVerdict,
    SkillId,
    VetoedError,
    binding_of,
)
from skillwire.host.state.audit import AuditLog

CHECK_SECONDS: Final = 10.0
MAX_CACHED: Final = 1_000

logger = logging.getLogger(__name__)


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
