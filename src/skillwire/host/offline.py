"""Approved skills while their server is away: what is cached, and is still exactly what was approved."""

import logging
from collections.abc import Iterable

from skillwire.core.entry import SkillEntry
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import Coverage
from skillwire.core.uri import SkillUri
from skillwire.errors import SkillError
from skillwire.host.approval.approvals import Approval, Grant
from skillwire.host.archives import Archives
from skillwire.host.registry.known import KnownSkill
from skillwire.host.state.cache import ContentCache

logger = logging.getLogger(__name__)


def cached_skills(approvals: Iterable[Approval], cache: ContentCache, archives: Archives) -> list[KnownSkill]:
    """Return the skills that may be loaded without their server, each with the date of its approval.

    The frontmatter comes from the kept file itself, whose digest is the
    approved one, so nothing else needs to be remembered. They are a server's
    skills all the same.
    """
    found = (_cached(approval, cache, archives) for approval in approvals if Grant.LOAD in approval.grants)
    return [skill for skill in found if skill is not None]


def _cached(approval: Approval, cache: ContentCache, archives: Archives) -> KnownSkill | None:
    try:
        uri = SkillUri.parse(approval.skill.uri)
        content = _skill_file(approval, uri, cache, archives)
        if content is None:
            return None
        entry = SkillEntry(uri, parse_skill_md(content).frontmatter, approval.manifest)
    except SkillError as error:
        logger.warning("a cached skill cannot be used while its server is away: %s", error)
        return None
    date = approval.granted_at.date().isoformat()
    # The registry gives it the reference it will be known by.
    return KnownSkill(approval.skill, approval.skill.uri, entry, is_listed=False, offline_since=date)


def _skill_file(approval: Approval, uri: SkillUri, cache: ContentCache, archives: Archives) -> bytes | None:
    origin, manifest = approval.skill.origin, approval.manifest
    if manifest.coverage is not Coverage.ARCHIVE:
        return cache.get(origin, manifest.require(uri.text))
    kept = archives.kept(origin, manifest, uri)
    return None if kept is None else kept.contents[kept.manifest.require(uri.text).digest]
