"""The loading path, the only one: approve, fetch, unpack, check, and hand over what may be opened.

Content that no longer matches its entry is looked into once: if the server
now shows another entry, the skill changed and needs a new approval; if it
shows the same one, it does not keep its own promise and the load is refused.
There is no second try after that.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NoReturn

from skillwire.core.frontmatter import SkillDocument
from skillwire.errors import SkillError
from skillwire.host.activation import Activation, DynamicFiles
from skillwire.host.approval.approvals import binding_of
from skillwire.host.approval.consent import Actor, Consent
from skillwire.host.attention import Attentions
from skillwire.host.events import OnActivation
from skillwire.host.failures import SkillChangedError
from skillwire.host.fetching import STALE, Fetcher
from skillwire.host.judging import Judge
from skillwire.host.promises import told_differences
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.registry import Registry
from skillwire.host.search import SkillSearch
from skillwire.host.state.audit import AuditLog
from skillwire.runner import Runner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Machinery:
    """What all conversations of one host share; a `runner` only where scripts may be run."""

    registry: Registry
    fetcher: Fetcher
    consent: Consent
    audit: AuditLog
    protected: tuple[str, ...]
    private: tuple[str, ...]
    page_length: int
    attention: Attentions = field(default_factory=Attentions)
    search: SkillSearch = field(default_factory=SkillSearch)
    judge: Judge | None = None
    on_activation: OnActivation | None = None
    runner: Runner | None = None


async def load(machinery: Machinery, skill: KnownSkill, actor: Actor) -> Activation:
    """Return a window for `skill`, ready to be opened. Nothing has been shown to a model yet.

    Raises:
        ApprovalError: The user has not agreed to exactly this content.
        VetoedError: A provenance check says no.
        VerificationError: The server does not keep its promise.
        SkillError: The skill cannot be had, or must not be.
    """
    try:
        return await _attempt(machinery, skill, actor)
    except STALE as error:
        if _is_lie(error):
            raise
        current = await renew(machinery, skill, error)
        logger.info("%s changed since it was listed", skill.reference)
    return await _attempt(machinery, current, actor)


async def _attempt(machinery: Machinery, skill: KnownSkill, actor: Actor) -> Activation:
    machinery.attention.require_allowed(skill, by_user=actor == "user")
    machinery.fetcher.require_safe(skill)
    # Where the answer is no anyway, nobody else hears which skill was wanted.
    judged = machinery.judge if machinery.consent.expected_refusal(skill) is None else None
    judgement = None if judged is None else await judged.require_no_veto(skill)
    await machinery.consent.require_load(skill, actor=actor, judgement=judgement)
    fetched = DynamicFiles()
    skill = await machinery.fetcher.opened(skill)
    document = await machinery.fetcher.document(skill, fetched)
    if not skill.entry.is_dynamic and not machinery.consent.covers(skill):
        raise SkillChangedError(
            f"{skill.reference} changed on its server while it was loaded", reference=skill.reference
        )
    return Activation.opening(_with_own_fields(skill, document), document, fetched)


def _with_own_fields(skill: KnownSkill, document: SkillDocument) -> KnownSkill:
    """Return a skill of which the listing told only some fields with all that its file has."""
    if not skill.entry.is_summary:
        return skill
    return replace(skill, entry=replace(skill.entry, frontmatter=document.frontmatter, is_summary=False))


def _is_lie(error: SkillError) -> bool:
    """Tell whether the file is the very one that was listed, and only the entry's words differ."""
    return error.refusal == "frontmatter-mismatch"


async def renew(machinery: Machinery, skill: KnownSkill, error: SkillError) -> KnownSkill:
    """Ask the skill's origin once for its entry, after a file did not match; return it if it differs.

    The registry tells the approvals about every entry it sees, so those of
    the old content have ended when this returns.

    Raises:
        SkillError: `error` itself, when the entry is the same or cannot be had.
    """
    try:
        current = await machinery.registry.renew(skill.id)
    except SkillError as failure:
        logger.info("%s does not match, and its entry cannot be had: %s", skill.reference, failure)
        raise error from None
    if is_same(skill, current):
        raise error
    return current


async def require_unchanged(machinery: Machinery, skill: KnownSkill, error: SkillError) -> NoReturn:
    """Say why a file of a loaded skill does not match: because the skill changed, or because it is a lie.

    Raises:
        SkillChangedError: Its origin shows another entry now.
        SkillError: `error` itself.
    """
    await renew(machinery, skill, error)
    raise SkillChangedError(
        f"{skill.reference} changed since it was loaded", reference=skill.reference
    ) from error


def is_same(one: KnownSkill, other: KnownSkill) -> bool:
    """Tell whether two records of one skill promise the same files; without digests, the same fields.

    Of a record that has only some fields, the others are not compared.
    """
    left, right = one.entry.manifest, other.entry.manifest
    if left is not None and right is not None:
        return binding_of(left) == binding_of(right)
    fewer, more = (one, other) if one.entry.is_summary else (other, one)
    return left is right and not told_differences(fewer.entry, more.entry.frontmatter)


@contextmanager
def recorded(audit: AuditLog, event: str, reference: str) -> Generator[None]:
    """Write down that something was refused, and why, before the caller hears of it."""
    try:
        yield
    except SkillError as error:
        audit.record("refusal", during=event, reference=reference, code=error.refusal)
        raise
