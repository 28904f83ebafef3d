"""Approved skills while their server is away: what is cached, and is still exactly what was approved."""

import logging
from collections.abc import Iterable

from skillwire.core.entry import SkillEntry
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.uri import SkillUri
from skillwire.errors import SkillError
from skillwire.host.approval.approvals import Approval, Grant
from skillwire.host.registry.known import KnownSkill
from skillwire.host.state.cache import ContentCache

logger = logging.getLogger(__name__)


def cached_skills(approvals: Iterable[Approval], cache: ContentCache) -> list[KnownSkill]:
    """Return the skills that may be loaded without their server, each with the date of its approval.

    The frontmatter comes from the cached file itself, whose digest is the
    approved one, so nothing else needs to be remembered. They are a server's
    skills all the same.
    """
    found = (_cached(approval, cache) for approval in approvals if Grant.LOAD in approval.grants)
    return [skill for skill in found if skill is not None]


def _cached(approval: Approval, cache: ContentCache) -> KnownSkill | None:
    try:
        uri = SkillUri.parse(approval.skill.uri)
        content = cache.get(approval.skill.origin, approval.manifest.require(uri.text))
        if content is None:
            return None
        entry = SkillEntry(uri, parse_skill_md(content).frontmatter, approval.manifest)
    except SkillError as error:
        logger.warning("a cached skill cannot be used while its server is away: %s", error)
        return None
    date = approval.granted_at.date().isoformat()
    # The registry gives it the reference it will be known by.
    return KnownSkill(approval.skill, approval.skill.uri, entry, is_listed=False, offline_since=date)
