"""Approved skills as files for other agents: which they are, and their approved bytes.

What is exported is what a model may load here, with exactly the approved
content, from the cache or from the skill's own server. Nobody is asked, and
nothing is loaded.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import anyio.to_thread

from skillwire.core import Coverage, NotFoundError, SkillError, coverage_words, files_with_digests, path_in
from skillwire.host.approval.lock_trust import ProjectLock
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.model import (
    Approval,
    ApprovalRequiredError,
    ApprovalValidity,
    DynamicFiles,
    Grant,
    KnownSkill,
    Origin,
    Refusal,
    SkillChangedError,
    SkillId,
    UnavailableError,
    UnverifiedFileError,
    binding_of,
    full_reference,
)
from skillwire.host.state.content import ContentCache
from skillwire.host.use.fetch import Files, cached_skills
from skillwire.host.use.load import SkillLoader, recording_refusals


@dataclass(frozen=True, slots=True)
class ApprovedSkill:
    """An approval that holds, for a skill of a server of this host.

    `refusal` is the reason why a model may not load it: if `is_barred`, for
    what the user decided or what it is, otherwise only for now.
    """

    approval: Approval
    reference: str
    refusal: Refusal | None = None
    is_barred: bool = False

    @property
    def id(self) -> SkillId:
        return self.approval.skill

    @property
    def binding(self) -> str:
        return binding_of(self.approval.manifest)


class SkillExport:
    """Returns the approved skills of one host, and their verified files."""

    def __init__(
        self,
        loader: SkillLoader,
        store: ApprovalStore,
        lock: ProjectLock,
        cache: ContentCache,
        origins: Collection[Origin],
    ) -> None:
        self._loader = loader
        self._store = store
        self._lock = lock
        self._cache = cache
        self._origins = frozenset(origins)

    def skills(self) -> list[ApprovedSkill]:
        """Return all skills with an approval to be loaded that holds, sorted by label and URI."""
        found = sorted(self._holding(), key=lambda each: (each.skill.origin.label, each.skill.uri))
        return [self._approved(approval) for approval in found if approval.skill.origin in self._origins]

    def reference(self, skill: SkillId) -> str:
        """Return the reference of a skill, known here or not."""
        known = self._loader.registry.known(skill)
        return full_reference(skill.origin.label, skill.uri) if known is None else known.reference

    def validity(self, skill: SkillId, binding: str) -> ApprovalValidity:
        """Return whether the approval of exactly this content still holds, for a skill of any server."""
        for approval in self._holding():
            if approval.skill == skill:
                is_same = binding_of(approval.manifest) == binding
                return ApprovalValidity.APPROVED if is_same else ApprovalValidity.CHANGED
        if self._lock.is_frozen:
            return ApprovalValidity.ENDED
        ended, pin = self._store.previous(skill), self._lock.last_trusted_pin(skill)
        if ended is not None and binding_of(ended.manifest) == binding:
            return ApprovalValidity.CHANGED
        if pin is not None and binding_of(pin.manifest) == binding:
            return ApprovalValidity.UNTRUSTED
        return (
            ApprovalValidity.CHANGED if self._lock.ended_by_change(skill, binding) else ApprovalValidity.ENDED
        )

    async def files(self, approved: ApprovedSkill) -> dict[str, bytes]:
        """Return every file of a skill by its path, exactly as it was approved.

        Raises:
            UnavailableError: The approved bytes are neither in the cache nor served any more.
            ApprovalError: It is no longer approved.
            SkillError: A model may not load it, or its files cannot be fetched or are not the approved ones.
        """
        loader, files = self._loader, self._loader.files
        with recording_refusals(loader.audit, "export", approved.reference):
            skill = await self._current(approved)
            self._require_exportable(skill)
            if loader.provenance is not None:
                await loader.provenance.require_no_veto(skill)
            opened, _ = await files.document(skill, DynamicFiles())
            contents = await _contents(files, opened)
            if not loader.consent.covers(skill):
                raise SkillChangedError(
                    f"{skill.reference} changed on its server while it was read", reference=skill.reference
                )
        loader.audit.record("export", reference=approved.reference, binding=approved.binding)
        return contents

    def _holding(self) -> Iterator[Approval]:
        """Yield the approvals to load that hold: one for each skill, that of the lock first."""
        pins = {pin.skill: pin for pin in self._lock.approvals if Grant.LOAD in pin.grants}
        yield from pins.values()
        if not self._lock.is_frozen:
            for approval in self._store.approvals().values():
                if approval.skill not in pins and Grant.LOAD in approval.grants:
                    yield approval

    def _approved(self, approval: Approval) -> ApprovedSkill:
        skill = approval.skill
        known, reference = self._loader.registry.known(skill), self.reference(skill)
        found = ApprovedSkill(approval, reference)
        if approval.manifest.coverage is Coverage.SKILL_FILE:
            refusal = Refusal("unverified-file", reference, coverage_words(approval.manifest))
            return replace(found, refusal=refusal, is_barred=True)
        if known is None:
            return replace(found, refusal=self._unknown(skill, reference))
        try:
            self._loader.show_rules.require_allowed(known, by_user=False)
        except SkillError as error:
            return replace(found, refusal=Refusal.of(error, reference), is_barred=True)
        return found

    def _unknown(self, skill: SkillId, reference: str) -> Refusal:
        """Return why the registry does not have a skill: its server does not list it, or did not answer."""
        status = next(
            (each for each in self._loader.registry.view.servers if each.origin == skill.origin), None
        )
        if status is None or status.is_unanswered:
            return Refusal("server-unavailable", reference)
        return Refusal.of(NotFoundError("the server does not list it any more", uri=skill.uri), reference)

    async def _current(self, approved: ApprovedSkill) -> KnownSkill:
        """Return the approved skill as it is listed; or as it was approved, if its text is cached.

        Raises:
            UnavailableError: The server lists other content, and the approved text is not cached.
        """
        approval = approved.approval
        known = self._loader.registry.known(approval.skill)
        if known is not None and approval.is_for(known.entry):
            return known
        found = await anyio.to_thread.run_sync(
            cached_skills, [approval], self._cache, self._loader.files.archives
        )
        if not found:
            raise UnavailableError(
                f"the approved content of {approved.reference} is not cached, and its server has another one",
                fix="approve what the server sends now, or ask its operator for the approved version",
            )
        return replace(found[0], reference=approved.reference)

    def _require_exportable(self, skill: KnownSkill) -> None:
        loader, coverage = self._loader, skill.entry.coverage
        loader.show_rules.require_allowed(skill, by_user=False)
        loader.files.require_safe(skill)
        if not loader.consent.covers(skill):
            raise ApprovalRequiredError(
                f"{skill.reference} is not approved any more", reference=skill.reference
            )
        if coverage not in (Coverage.FILES, Coverage.ARCHIVE):
            raise UnverifiedFileError(
                f"not every file of {skill.reference} has a digest", reference=skill.reference
            )


async def _contents(files: Files, skill: KnownSkill) -> dict[str, bytes]:
    """Return all files of a skill by path; all have digests."""
    manifest, fetched = files_with_digests(skill.entry), DynamicFiles()
    assert manifest is not None, "the skill has a complete manifest"
    return {path_in(skill.entry, uri): await files.file(skill, uri, fetched) for uri in manifest.uris}
