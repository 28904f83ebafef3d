"""Reading a file of a loaded skill: under the entry that was loaded, while the user still agrees to it."""

from skillwire.core.characters import quoted
from skillwire.errors import UnlistedFileError
from skillwire.host.activation import Activation
from skillwire.host.failures import ApprovalDeniedError, ApprovalError, SkillChangedError
from skillwire.host.fetching import STALE
from skillwire.host.loading import Machinery, is_same, require_unchanged
from skillwire.host.promises import is_promised


async def content_of(machinery: Machinery, window: Activation, uri: str) -> bytes:
    """Return the bytes of a file of a loaded skill.

    Raises:
        UnlistedFileError: The skill has no such file; nothing was sent.
        UnverifiedFileError: The file has no digest, and such files are not wanted.
        ApprovalError: The user no longer agrees, or does not want files without digests.
        SkillChangedError: The skill changed since it was loaded.
        SkillError: The file cannot be had.
    """
    skill = window.skill
    require_still_approved(machinery, window)
    if skill.is_remote and not skill.entry.is_dynamic and not is_promised(skill.entry, uri):
        await _require_permission(machinery, window, uri)
    try:
        return await machinery.fetcher.file(skill, uri, window.fetched)
    except UnlistedFileError:
        raise
    except STALE as error:
        return await require_unchanged(machinery, skill, error)


def require_still_approved(machinery: Machinery, window: Activation) -> None:
    """Check that the user still agrees to a skill as it was loaded; one that promises nothing is left alone.

    Raises:
        SkillChangedError: The skill changed since.
        ApprovalError: The user took the approval back.
    """
    skill = window.skill
    if not skill.entry.is_dynamic and not machinery.consent.covers(skill):
        current = machinery.registry.known(skill.id)
        kind = ApprovalError if current is not None and is_same(current, skill) else SkillChangedError
        raise kind(f"{skill.reference} is no longer approved as it was loaded", reference=skill.reference)


async def _require_permission(machinery: Machinery, window: Activation, uri: str) -> None:
    """Make sure that files without digests may be read in this window; the user is asked once."""
    skill = window.skill
    if not skill.entry.uri.contains(uri):
        raise UnlistedFileError(f"{quoted(uri)} is not inside the skill", uri=uri[:500])
    if window.fetched.permission is None:
        try:
            await machinery.consent.require_unverified(skill, uri)
        except ApprovalDeniedError:
            window.fetched.permission = False
            raise
        window.fetched.permission = True
    if not window.fetched.permission:
        raise ApprovalDeniedError(
            f"the user does not want files of {skill.reference} that have no digest",
            reference=skill.reference,
        )
