"""The only loading path: approve, fetch, unpack, verify, and return the window to open.

If content does not match its entry, the entry is fetched once more: if it
differs, the skill changed and needs a new approval; if it is the same, the
server's listing is wrong and the load is refused. There is no second retry.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn
from urllib.parse import unquote

from skillwire.core import (
    DIRECTORY_MEDIA_TYPE,
    SKILL_FILE,
    Dialect,
    InvalidUriError,
    SkillEntry,
    SkillError,
    UnlistedFileError,
    canonical_uri,
    files_with_digests,
    fold_path,
    frontmatter_differences,
    has_digest,
    hidden_characters,
    is_script,
    media_type_of,
    parse_uri,
    quoted,
    revealed,
)
from skillwire.host.approval.consent import Actor, Consent, ProvenanceCheck
from skillwire.host.calls import DirectoryItem
from skillwire.host.model import (
    Activation,
    ApprovalDeniedError,
    ApprovalError,
    DynamicFiles,
    KnownSkill,
    NotTextError,
    Preview,
    ShowRules,
    SkillChangedError,
    binding_of,
    checked_arguments,
)
from skillwire.host.registry.registry import Registry
from skillwire.host.state.audit import AuditLog
from skillwire.host.use.fetch import STALE, Files
from skillwire.host.use.present import DEFAULT_PAGE_LENGTH, PagedText, PagedTexts, SkillFileLine, files_of

logger = logging.getLogger(__name__)


def uri_of(skill: KnownSkill, path: str, relative_to: str = SKILL_FILE) -> str:
    """Return the URI of the file that `path` refers to in a text of the skill.

    Raises:
        UnlistedFileError: It is not a file of this skill.
    """
    uri = skill.entry.uri
    if "://" in path:
        if uri.contains(path):
            return canonical_uri(path)
        raise UnlistedFileError(f"{quoted(path)} is not a file of {skill.reference}", uri=path[:500])
    if relative_to == SKILL_FILE and (listed := _listed(skill, path)) is not None:
        return listed
    base, _, name = relative_to.rpartition("/")
    if name != SKILL_FILE:
        raise UnlistedFileError(f"{quoted(relative_to)} is not a {SKILL_FILE}", uri=relative_to[:500])
    found = uri.resolve(f"{base}/{path}" if base and not path.startswith("/") else path)
    root = uri.resolve(base) if base else uri.root
    if found is None or root is None or not found.startswith(root + "/"):
        raise UnlistedFileError(f"{quoted(path)} is outside of {skill.reference}", uri=path[:500])
    return found


def canonical_file_uri(skill: KnownSkill, uri: str) -> str | None:
    """Return the canonical form of a `uri` inside the skill; None for a URI outside of it.

    A lenient server may accept many spellings of one URI. So a URI that could
    be inside the skill, but is not spelled as listed, is refused (SEP-2640,
    "Integrity and verification").

    Raises:
        UnlistedFileError: It may be another spelling of a file of the skill.
    """
    own = skill.entry.uri
    if unquote(uri).strip().partition(":")[0].casefold() != own.scheme:
        return None
    if own.contains(uri):
        return canonical_uri(uri)
    try:
        _, segments = parse_uri(uri)
    except InvalidUriError:
        is_elsewhere = False
    else:
        is_elsewhere = not f"{fold_path('/'.join(segments))}/".startswith(f"{fold_path(own.path)}/")
    if is_elsewhere:
        return None
    raise UnlistedFileError(
        f"{quoted(uri)} may be another spelling of a file of {skill.reference}", uri=uri[:500]
    )


def _listed(skill: KnownSkill, path: str) -> str | None:
    """Return the URI of the file that is listed under exactly this path."""
    try:
        uri = skill.entry.uri.join(path)
    except InvalidUriError:
        return None
    files = files_with_digests(skill.entry)
    return uri if files is not None and files.find(uri) else None


def published_directory(skill: KnownSkill, uri: str) -> str:
    """Return a directory's URI as the server spells it, derived from a file inside it."""
    depth = uri.count("/") + 1
    files = files_with_digests(skill.entry)
    for file in files.files if files is not None else ():
        if file.uri.startswith(uri + "/"):
            return "/".join(file.published.split("/")[:depth])
    return uri


def children_of(skill: KnownSkill, uri: str) -> tuple[SkillFileLine, ...]:
    """List the direct children of a directory of the skill, from its manifest."""
    below = "" if uri == skill.entry.uri.root else skill.entry.uri.relative_path(uri) + "/"
    found: dict[str, SkillFileLine] = {}
    for file in files_of(skill):
        if file.path.startswith(below):
            name, slash, _ = file.path[len(below) :].partition("/")
            path = below + name
            found[path] = SkillFileLine(path, None, DIRECTORY_MEDIA_TYPE) if slash else file
    return tuple(found.values())


def dynamic_file_lines(entry: SkillEntry, uri: str) -> tuple[SkillFileLine, ...]:
    """List the files of a dynamic skill that its server listed below the directory at `uri`."""
    return tuple(
        SkillFileLine(path := entry.uri.relative_path(file), None, media_type_of(path))
        for file in entry.dynamic_files
        if file.startswith(f"{uri}/")
    )


def directory_lines(skill: KnownSkill, items: Iterable[DirectoryItem]) -> tuple[SkillFileLine, ...]:
    """List a directory as the server returned it, if not every file has a digest."""
    entry = skill.entry
    return tuple(
        SkillFileLine(
            entry.uri.relative_path(item.uri),
            item.size,
            item.media_type or "",
            is_unverified=not (entry.is_dynamic or item.is_directory or has_digest(entry, item.uri)),
        )
        for item in items
    )


def text_of(content: bytes, uri: str) -> str:
    """Return a file's text.

    Raises:
        NotTextError: It is not UTF-8, or contains a null byte.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        message = f"{quoted(uri)} ({len(content)} bytes) is not a text file"
        raise NotTextError(message, reference=uri[:500])
    return text


class SkillLoader:
    """Loads skills and reads the files of loaded ones, for all conversations of one host.

    A load is one call on each of its parts: the registry has the entry,
    `consent` the approval, `files` the verified content, and the result is the
    window to open.
    """

    def __init__(
        self,
        registry: Registry,
        files: Files,
        consent: Consent,
        audit: AuditLog,
        show_rules: ShowRules,
        *,
        provenance: ProvenanceCheck | None = None,
        page_length: int = DEFAULT_PAGE_LENGTH,
    ) -> None:
        self.registry = registry
        self.files = files
        self.consent = consent
        self.audit = audit
        self.show_rules = show_rules
        self.provenance = provenance
        self.page_length = page_length
        self.texts = PagedTexts()

    async def load(
        self, skill: KnownSkill, actor: Actor, arguments: Mapping[str, object] | None = None
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
            return await self._attempt(skill, actor, arguments)
        except STALE as error:
            if error.refusal == "frontmatter-mismatch":
                raise  # The file has the listed digest, and only the entry's frontmatter is wrong.
            current = await self.renew(skill, error)
            logger.info("%s changed since it was listed; loading the current version", skill.reference)
        return await self._attempt(current, actor, arguments)

    async def _attempt(
        self, skill: KnownSkill, actor: Actor, given: Mapping[str, object] | None
    ) -> Activation:
        self.show_rules.require_allowed(skill, by_user=actor == "user")
        self.files.require_safe(skill)
        arguments = checked_arguments(skill, given) if given or skill.takes_arguments else {}
        result = None
        # Do not reveal to the provider which skill is wanted if the load is refused anyway.
        if self.provenance is not None and self.consent.expected_refusal(skill) is None:
            result = await self.provenance.require_no_veto(skill)
        await self.consent.require_load(skill, actor=actor, provenance=result, arguments=arguments)
        fetched = DynamicFiles(arguments)
        skill, document = await self.files.document(skill, fetched)
        if not skill.entry.is_dynamic and not self.consent.covers(skill):
            raise SkillChangedError(
                f"{skill.reference} changed on its server while it was being loaded",
                reference=skill.reference,
            )
        if skill.entry.is_summary:  # The listing has only some fields; the file has all of them.
            entry = replace(skill.entry, frontmatter=document.frontmatter, is_summary=False)
            skill = replace(skill, entry=entry)
        return Activation(skill, document, fetched)

    async def renew(self, skill: KnownSkill, error: SkillError) -> KnownSkill:
        """Fetch the skill's entry once after a file did not match; return it if it differs.

        The registry reports every entry to the approvals, so the approvals of the
        old content have ended when this returns.

        Raises:
            SkillError: `error` itself, if the entry is the same or cannot be fetched.
        """
        try:
            current = await self.registry.renew(skill.id)
        except SkillError as failure:
            logger.info(
                "%s does not match its entry, and the entry cannot be fetched again: %s",
                skill.reference,
                failure,
            )
            raise error from None
        if is_same(skill, current):
            raise error
        return current

    async def require_unchanged(self, skill: KnownSkill, error: SkillError) -> NoReturn:
        """Raise the reason why a file of a loaded skill does not match its entry.

        Raises:
            SkillChangedError: The skill's origin lists another entry now.
            SkillError: `error` itself, if the entry is the same.
        """
        await self.renew(skill, error)
        raise SkillChangedError(
            f"{skill.reference} changed since it was loaded", reference=skill.reference
        ) from error

    def is_current(
        self, window: Activation, skill: KnownSkill, arguments: Mapping[str, object] | None
    ) -> bool:
        """Return whether a window has the content a new load would return, and is still approved.

        A skill generated from arguments is current for the same arguments, or if none are given.
        """
        if arguments is not None and dict(arguments) != dict(window.fetched.arguments):
            return False
        if window.skill.entry.is_dynamic:
            return is_same(window.skill, skill)
        return is_same(window.skill, skill) and self.consent.covers(window.skill)

    async def content_of(self, window: Activation, uri: str) -> bytes:
        """Return the bytes of a file of a loaded skill.

        Raises:
            UnlistedFileError: The skill has no such file; no request was sent.
            UnverifiedFileError: The file has no digest, and the policy does not allow such files.
            ApprovalError: The approval was withdrawn, or the user denied files without digests.
            SkillChangedError: The skill changed since it was loaded.
            SkillError: The file cannot be fetched.
        """
        skill = window.skill
        self.require_still_approved(window)
        if skill.is_remote and not skill.entry.is_dynamic and not has_digest(skill.entry, uri):
            await self._require_permission(window, uri)
        try:
            return await self.files.file(skill, uri, window.fetched)
        except UnlistedFileError:
            raise
        except STALE as error:
            return await self.require_unchanged(skill, error)

    async def pages_of(self, window: Activation, uri: str, length: int) -> PagedText:
        """Return a text file of a loaded skill in pages of at most `length` bytes.

        A file with a digest is fetched and scanned once.

        Raises:
            NotTextError: The file is not text.
            SkillError: As for `content_of`.
        """
        skill = window.skill
        line = skill.entry.files.find(uri) if skill.is_remote and skill.entry.files is not None else None
        key = (skill.id if line is None else line.digest, uri, length)
        if line is not None and (known := self.texts.get(key)) is not None:
            self.require_still_approved(window)
            self.audit.record("read", reference=skill.reference, uri=uri, source="cache")
            return known
        content = await self.content_of(window, uri)
        return self.texts.prepared(key, content, lambda: PagedText.of(text_of(content, uri), length))

    async def directory(self, window: Activation, path: str) -> tuple[SkillFileLine, ...]:
        """Return what a directory of a loaded skill contains now; see `Conversation.read_skill_directory`.

        Raises:
            NotDeclaredError: The server does not offer to read directories.
            SkillChangedError: There are files that the approved skill does not have.
            SkillError: The directory cannot be read.
        """
        skill, inside = window.skill, path.strip("/")
        uri = skill.entry.uri.root if inside in ("", ".") else uri_of(skill, inside)
        if not skill.is_remote or skill.entry.unpacked is not None:
            return children_of(skill, uri)
        connection = self.files.connection(skill.id.origin.label)
        if skill.entry.is_dynamic and skill.dialect is not Dialect.CORE:
            # Older dialects have no directories; their answer for a skill names the files.
            return dynamic_file_lines(
                await connection.get_skill(skill.entry.uri, arguments=window.fetched.arguments), uri
            )
        items = await connection.read_directory(published_directory(skill, uri))
        if skill.entry.files is None:
            return directory_lines(skill, items)
        held = skill.entry.files.uris
        strange = [item.uri for item in items if not item.is_directory and item.uri not in held]
        if strange:
            error = UnlistedFileError(
                f"{quoted(strange[0])} is in the directory and not in the skill's manifest", uri=strange[0]
            )
            await self.require_unchanged(skill, error)
        return children_of(skill, uri)

    def require_still_approved(self, window: Activation) -> None:
        """Check that a skill is still approved as it was loaded; dynamic skills are not checked.

        Raises:
            SkillChangedError: The skill changed since it was loaded.
            ApprovalError: The approval was withdrawn.
        """
        skill = window.skill
        if not skill.entry.is_dynamic and not self.consent.covers(skill):
            current = self.registry.known(skill.id)
            kind = ApprovalError if current is not None and is_same(current, skill) else SkillChangedError
            raise kind(f"{skill.reference} is no longer approved as it was loaded", reference=skill.reference)

    async def _require_permission(self, window: Activation, uri: str) -> None:
        """Check that files without digests may be read in this window; the user is asked once."""
        skill = window.skill
        if not skill.entry.uri.contains(uri):
            raise UnlistedFileError(f"{quoted(uri)} is not inside the skill", uri=uri[:500])
        if window.fetched.permission is None:
            try:
                await self.consent.require_unverified(skill, uri)
            except ApprovalDeniedError:
                window.fetched.permission = False
                raise
            window.fetched.permission = True
        if not window.fetched.permission:
            raise ApprovalDeniedError(
                f"the user denied reading files of {skill.reference} that have no digest",
                reference=skill.reference,
            )

    async def preview(self, reference: str, path: str) -> Preview:
        """Fetch one file of a skill and verify it against the entry.

        Raises:
            SkillError: The file cannot be fetched, or does not match the entry.
        """
        with recording_refusals(self.audit, "preview", reference):
            skill = await self.registry.resolve(reference)
            self.files.require_safe(skill)
            uri = uri_of(skill, path)
            content = await self.files.file(skill, uri, DynamicFiles())
        self.audit.record("preview", reference=reference, uri=uri)
        return _preview_of(skill, uri, content)

    async def review(self, skill: KnownSkill) -> AsyncGenerator[Preview]:
        """Yield every file of a skill that has a digest: `SKILL.md` first, then scripts, then the others.

        Files are fetched on demand, verified against exactly the entry in
        `skill`, and cached.

        Raises:
            SkillError: A file cannot be fetched, or does not match the entry.
        """
        with recording_refusals(self.audit, "review", skill.reference):
            self.files.require_safe(skill)
            opened = await self.files.opened(skill)
        for uri in _in_order(opened):
            with recording_refusals(self.audit, "review", skill.reference):
                content = await self.files.file(opened, uri, DynamicFiles())
            self.audit.record("preview", reference=skill.reference, uri=uri)
            yield _preview_of(opened, uri, content)


def is_same(one: KnownSkill, other: KnownSkill) -> bool:
    """Return whether two records of one skill have the same digests; without digests, the same fields.

    If a record has only some fields, only these are compared.
    """
    left, right = one.entry.manifest, other.entry.manifest
    if left is not None and right is not None:
        return binding_of(left) == binding_of(right)
    fewer, more = (one, other) if one.entry.is_summary else (other, one)
    return left is right and not frontmatter_differences(fewer.entry, more.entry.frontmatter)


@contextmanager
def recording_refusals(audit: AuditLog, event: str, reference: str) -> Generator[None]:
    """Record a refusal in the audit log before it is raised to the caller."""
    try:
        yield
    except SkillError as error:
        audit.record("refusal", during=event, reference=reference, code=error.refusal)
        raise


_MOST_HIDDEN = 1000


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
