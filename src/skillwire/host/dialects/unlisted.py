"""Skills that a server serves and does not list: known by the one file that somebody named.

Nothing is promised about such a skill, so it is dynamic, and every load is
asked about. It becomes a skill because a person or the server's own
instructions named its URI, never because of how the URI begins (CONF-07).
"""

import logging

from skillwire.core.entry import SkillEntry, check_frontmatter, name_findings
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import MAX_TOTAL_SIZE
from skillwire.core.uri import SkillUri
from skillwire.errors import InvalidEntryError
from skillwire.host.calls.enumeration import shortened
from skillwire.host.dialects.voice import Peer

logger = logging.getLogger(__name__)


async def entry_from_file(peer: Peer, uri: SkillUri, *, any_path: bool = False) -> SkillEntry:
    """Read the `SKILL.md` at `uri` and make an entry of what it says about itself.

    `any_path` lets the name differ from the path, which the first drafts allowed.

    Raises:
        NotFoundError: The server has no such file.
        FrontmatterError: The file has no readable frontmatter.
        InvalidEntryError: What it says breaks the rules for skills.
        SkillError: The file cannot be had.
    """
    document = parse_skill_md(await peer.read(uri.published, max_bytes=MAX_TOTAL_SIZE))
    frontmatter, findings = check_frontmatter(dict(document.frontmatter.fields))
    if frontmatter is not None:
        findings = [*findings, *path_findings(uri, frontmatter.name, any_path=any_path)]
    errors = [finding for finding in findings if finding.is_error]
    if frontmatter is None or errors:
        raise InvalidEntryError("; ".join(finding.message for finding in shortened(errors)))
    return SkillEntry(uri, frontmatter, None)


def path_findings(uri: SkillUri, name: str, *, any_path: bool) -> list[Finding]:
    """Compare a skill's path with its name: an error if they differ, or a warning with `any_path`.

    The draft of 17 March let them differ. Taking that is for users who know
    that their server is so old, and said so (DRAFT-09).
    """
    findings = name_findings(uri, name)
    if not any_path:
        return findings
    for finding in findings:
        logger.warning("%s is used all the same: %s", uri.text, finding.message)
    return [Finding("path-differs", finding.message, file="") for finding in findings]
