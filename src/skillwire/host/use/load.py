"""The only loading path: approve, fetch, unpack, verify, and return the window to open.

If content does not match its entry, the entry is fetched once more: if it
differs, the skill changed and needs a new approval; if it is the same, the
server's listing is wrong and the load is refused. There is no second retry.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from skillwire.core import (
    SkillDocument,
    SkillError,
    UnlistedFileError,
    files_with_digests,
    frontmatter_differences,
    has_digest,
    hidden_characters,
    is_script,
    quoted,
    revealed,
)
from skillwire.host.approval.consent import Actor, Consent
from skillwire.host.approval.provenance import ProvenanceCheck
from skillwire.host.model import (
    Activation,
    ApprovalDeniedError,
    ApprovalError,
    DynamicFiles,
    KnownSkill,
    OnEvent,
    Preview,
    ShowRules,
    SkillChangedError,
    binding_of,
    checked_arguments,
)
from skillwire.host.registry.registry import Registry
from skillwire.host.state.audit import AuditLog
from skillwire.host.use.fetch import STALE, Files
from skillwire.host.use.files import text_of, uri_of
from skillwire.host.use.present import PagedText, PagedTexts
from skillwire.host.use.search import SkillSearch

if TYPE_CHECKING:
    from skillwire.runner import Runner


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostServices:
    """The collaborators that all conversations of one host share; `runner` is set if scripts may be run."""

    registry: Registry
    files: Files
    consent: Consent
    audit: AuditLog
    protected: tuple[str, ...]
    private: tuple[str, ...]
    page_length: int
    show_rules: ShowRules = field(default_factory=ShowRules)
    search: SkillSearch = field(default_factory=SkillSearch)
    provenance: ProvenanceCheck | None = None
    on_event: OnEvent | None = None
    runner: Runner | None = None
    texts: PagedTexts = field(default_factory=PagedTexts)


async def load(
    services: HostServices, skill: KnownSkill, actor: Actor, arguments: Mapping[str, object] | None = None
) -> Activation:
    """Return a window for `skill`, ready to be opened. Nothing has been shown to a model yet.

    `arguments` are shown to the user before they are sent to the skill's server.

    Raises:
        InvalidArgumentsError: The skill does not take these arguments.
        ArgumentsNeededError: Required arguments are missing.
        ApprovalError: The user has not approved exactly this content.
        VetoedError: The provenance check vetoes the content.
        VerificationError: The files do not match the server's listing.
        SkillError: The skill cannot be fetched, or must not be loaded.
    """
    try:
        return await _attempt(services, skill, actor, arguments)
    except STALE as error:
        if _is_listing_wrong(error):
            raise
        current = await renew(services, skill, error)
        logger.info("%s changed since it was listed; loading the current version", skill.reference)
    return await _attempt(services, current, actor, arguments)


async def _attempt(
    services: HostServices, skill: KnownSkill, actor: Actor, given: Mapping[str, object] | None
) -> Activation:
    services.show_rules.require_allowed(skill, by_user=actor == "user")
    services.files.require_safe(skill)
    arguments = checked_arguments(skill, given)
    # Do not reveal to the provider which skill is wanted if the load is refused anyway.
    check = services.provenance if services.consent.expected_refusal(skill) is None else None
    result = None if check is None else await check.require_no_veto(skill)
    await services.consent.require_load(skill, actor=actor, provenance=result, arguments=arguments)
    fetched = DynamicFiles(arguments)
    skill = await services.files.opened(skill)
    document = await services.files.document(skill, fetched)
    if not skill.entry.is_dynamic and not services.consent.covers(skill):
        raise SkillChangedError(
            f"{skill.reference} changed on its server while it was being loaded", reference=skill.reference
        )
    return Activation.opening(_with_own_fields(skill, document), document, fetched)


def _with_own_fields(skill: KnownSkill, document: SkillDocument) -> KnownSkill:
    """Return a skill whose listing has only some fields with the full frontmatter of its file."""
    if not skill.entry.is_summary:
        return skill
    return replace(skill, entry=replace(skill.entry, frontmatter=document.frontmatter, is_summary=False))


def _is_listing_wrong(error: SkillError) -> bool:
    """Return whether the file has the listed digest, and only the entry's frontmatter is wrong."""
    return error.refusal == "frontmatter-mismatch"


async def renew(services: HostServices, skill: KnownSkill, error: SkillError) -> KnownSkill:
    """Fetch the skill's entry once after a file did not match; return it if it differs.

    The registry reports every entry to the approvals, so the approvals of the
    old content have ended when this returns.

    Raises:
        SkillError: `error` itself, if the entry is the same or cannot be fetched.
    """
    try:
        current = await services.registry.renew(skill.id)
    except SkillError as failure:
        logger.info(
            "%s does not match its entry, and the entry cannot be fetched again: %s", skill.reference, failure
        )
        raise error from None
    if is_same(skill, current):
        raise error
    return current


async def require_unchanged(services: HostServices, skill: KnownSkill, error: SkillError) -> NoReturn:
    """Raise the reason why a file of a loaded skill does not match its entry.

    Raises:
        SkillChangedError: The skill's origin lists another entry now.
        SkillError: `error` itself, if the entry is the same.
    """
    await renew(services, skill, error)
    raise SkillChangedError(
        f"{skill.reference} changed since it was loaded", reference=skill.reference
    ) from error


def is_same(one: KnownSkill, other: KnownSkill) -> bool:
    """Return whether two records of one skill have the same digests; without digests, the same fields.

    If a record has only some fields, only these are compared.
    """
    left, right = one.entry.manifest, other.entry.manifest
    if left is not None and right is not None:
        return binding_of(left) == binding_of(right)
    fewer, more = (one, other) if one.entry.is_summary else (other, one)
    return left is right and not frontmatter_differences(fewer.entry, more.entry.frontmatter)


def is_current(
    services: HostServices, window: Activation, skill: KnownSkill, arguments: Mapping[str, object] | None
) -> bool:
    """Return whether a window has the content a new load would return, and is still approved.

    A skill generated from arguments is current for the same arguments, or if none are given.
    """
    if arguments is not None and dict(arguments) != dict(window.fetched.arguments):
        return False
    if window.skill.entry.is_dynamic:
        return is_same(window.skill, skill)
    return is_same(window.skill, skill) and services.consent.covers(window.skill)


@contextmanager
def recording_refusals(audit: AuditLog, event: str, reference: str) -> Generator[None]:
    """Record a refusal in the audit log before it is raised to the caller."""
    try:
        yield
    except SkillError as error:
        audit.record("refusal", during=event, reference=reference, code=error.refusal)
        raise


# Reading files of a loaded skill: verified against the loaded entry, while it is still approved.


async def content_of(services: HostServices, window: Activation, uri: str) -> bytes:
    """Return the bytes of a file of a loaded skill.

    Raises:
        UnlistedFileError: The skill has no such file; no request was sent.
        UnverifiedFileError: The file has no digest, and the policy does not allow such files.
        ApprovalError: The approval was withdrawn, or the user denied files without digests.
        SkillChangedError: The skill changed since it was loaded.
        SkillError: The file cannot be fetched.
    """
    skill = window.skill
    require_still_approved(services, window)
    if skill.is_remote and not skill.entry.is_dynamic and not has_digest(skill.entry, uri):
        await _require_permission(services, window, uri)
    try:
        return await services.files.file(skill, uri, window.fetched)
    except UnlistedFileError:
        raise
    except STALE as error:
        return await require_unchanged(services, skill, error)


async def pages_of(services: HostServices, window: Activation, uri: str) -> PagedText:
    """Return a text file of a loaded skill in pages; one with a digest is fetched and scanned once.

    Raises:
        NotTextError: The file is not text.
        SkillError: As for `content_of`.
    """
    skill, length = window.skill, services.page_length
    line = skill.entry.files.find(uri) if skill.is_remote and skill.entry.files is not None else None
    key = (skill.id, uri) if line is None else (line.digest, uri)
    if line is not None and (known := services.texts.get(key)) is not None:
        require_still_approved(services, window)
        services.audit.record("read", reference=skill.reference, uri=uri, source="cache")
        return known
    content = await content_of(services, window, uri)
    return services.texts.prepared(key, content, lambda: PagedText.of(text_of(content, uri), length))


def require_still_approved(services: HostServices, window: Activation) -> None:
    """Check that a skill is still approved as it was loaded; dynamic skills are not checked.

    Raises:
        SkillChangedError: The skill changed since it was loaded.
        ApprovalError: The approval was withdrawn.
    """
    skill = window.skill
    if not skill.entry.is_dynamic and not services.consent.covers(skill):
        current = services.registry.known(skill.id)
        kind = ApprovalError if current is not None and is_same(current, skill) else SkillChangedError
        raise kind(f"{skill.reference} is no longer approved as it was loaded", reference=skill.reference)


async def _require_permission(services: HostServices, window: Activation, uri: str) -> None:
    """Check that files without digests may be read in this window; the user is asked once."""
    skill = window.skill
    if not skill.entry.uri.contains(uri):
        raise UnlistedFileError(f"{quoted(uri)} is not inside the skill", uri=uri[:500])
    if window.fetched.permission is None:
        try:
            await services.consent.require_unverified(skill, uri)
        except ApprovalDeniedError:
            window.fetched.permission = False
            raise
        window.fetched.permission = True
    if not window.fetched.permission:
        raise ApprovalDeniedError(
            f"the user denied reading files of {skill.reference} that have no digest",
            reference=skill.reference,
        )


# Previews of a skill's files for a person, before anything is loaded.


_MOST_HIDDEN = 1000


async def preview(services: HostServices, reference: str, path: str) -> Preview:
    """Fetch one file of a skill and verify it against the entry.

    Raises:
        SkillError: The file cannot be fetched, or does not match the entry.
    """
    with recording_refusals(services.audit, "preview", reference):
        skill = await services.registry.resolve(reference)
        services.files.require_safe(skill)
        uri = uri_of(skill, path)
        content = await services.files.file(skill, uri, DynamicFiles())
    services.audit.record("preview", reference=reference, uri=uri)
    return _preview_of(skill, uri, content)


async def review(services: HostServices, skill: KnownSkill) -> AsyncGenerator[Preview]:
    """Yield every file of a skill that has a digest: `SKILL.md` first, then scripts, then the others.

    Files are fetched on demand, verified against exactly the entry in
    `skill`, and cached.

    Raises:
        SkillError: A file cannot be fetched, or does not match the entry.
    """
    with recording_refusals(services.audit, "review", skill.reference):
        services.files.require_safe(skill)
        opened = await services.files.opened(skill)
    for uri in _in_order(opened):
        with recording_refusals(services.audit, "review", skill.reference):
            content = await services.files.file(opened, uri, DynamicFiles())
        services.audit.record("preview", reference=skill.reference, uri=uri)
        yield _preview_of(opened, uri, content)


def _in_order(skill: KnownSkill) -> list[str]:
    """Return the URIs of a skill's files: `SKILL.md` first, then scripts, then the others."""
    files = files_with_digests(skill.entry)
    uris = () if files is None else files.uris
    return sorted(
        uris, key=lambda uri: (uri != skill.id.uri, not is_script(skill.entry.uri.relative_path(uri)), uri)
    )


def _preview_of(skill: KnownSkill, uri: str, content: bytes) -> Preview:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return Preview(skill, uri, content, None, ())
    return Preview(skill, uri, content, revealed(text), tuple(hidden_characters(text, most=_MOST_HIDDEN)))
