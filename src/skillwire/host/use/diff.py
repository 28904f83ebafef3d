"""Comparison of a skill as its server lists it now with what the user approved.

The approved bytes come from the cache, by digest, and are verified again; the
new ones are fetched like a preview, verified and not loaded, and only for
files that differ. Archives are compared file by file if both sides can be
unpacked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import anyio.to_thread

from skillwire.core import (
    SKILL_FILE,
    Coverage,
    Frontmatter,
    Manifest,
    ManifestFile,
    SkillEntry,
    SkillError,
    VerificationError,
    frontmatter_differences,
    parse_skill_md,
    path_in,
    require_listed_frontmatter,
)
from skillwire.host.approval.consent import previous_approval
from skillwire.host.approval.lock_trust import ProjectLock
from skillwire.host.approval.store import ApprovalStore
from skillwire.host.model import (
    MOST_FILE_BYTES,
    Basis,
    Change,
    Comparison,
    ComparisonBase,
    DynamicFiles,
    FieldChange,
    FileChange,
    FileState,
    KnownSkill,
    OmissionReason,
    Refusal,
    UnavailableError,
    binding_of,
    with_lines,
)
from skillwire.host.state.audit import AuditLog
from skillwire.host.state.content import ContentCache
from skillwire.host.use.fetch import Files

MOST_FILES: Final = 50
"""How many files are read for one comparison."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""How many bytes are read for one comparison, of what was approved and of what is new."""


def previous_of(skill: KnownSkill, store: ApprovalStore, lock: ProjectLock) -> ComparisonBase:
    """Return what the user approved for a skill: the approval that covers it now, else the newest one."""
    if not skill.is_remote:
        return ComparisonBase(Basis.LOCAL)
    earlier = previous_approval(skill, store, lock)
    if earlier is None:
        return ComparisonBase(Basis.NOTHING)
    own = Basis.APPROVED if earlier.holds else Basis.ENDED
    basis = Basis.LOCKED if earlier.is_pin else own
    return ComparisonBase(basis, earlier.manifest, earlier.granted_at, holds=earlier.holds)


async def compare(
    files: Files,
    cache: ContentCache,
    audit: AuditLog,
    skill: KnownSkill,
    previous: ComparisonBase,
    *,
    full: bool = False,
) -> Comparison:
    """Compare a skill with what was approved. With `full`, also read a skill that was never approved.

    Raises:
        UnavailableError: The server cannot be reached, so its current listing is unknown.
    """
    if skill.offline_since is not None:
        raise UnavailableError(
            f"the server of {skill.reference} cannot be reached, so its current content is unknown",
            fix="try again when the server can be reached",
        )
    if previous.basis is Basis.LOCAL:
        return Comparison(skill, previous)
    try:
        files.require_safe(skill)
        problems: list[Refusal] = []
    except SkillError as error:
        problems = [Refusal.of(error, skill.reference)]
    reader = _ComparisonReader(files, cache, audit, skill, is_blocked=bool(problems))
    is_wanted = full or previous.basis is not Basis.NOTHING
    before, after = previous.manifest, skill.entry.manifest
    if is_wanted:
        before, after = await reader.with_unpacked_archives(before, after)
    changes = [
        await reader.with_lines(file) if is_wanted else _without_lines(file, OmissionReason.NOT_WANTED)
        for file in _differing(skill, before, after)
    ]
    fields = await _field_changes(reader, skill, before)
    problems += reader.problems
    is_dynamic = skill.entry.manifest is None
    return Comparison(skill, previous, tuple(changes), fields, is_dynamic, tuple(problems))


@dataclass(slots=True)
class _ComparisonReader:
    """Reads what a comparison needs, within its limits."""

    files: Files
    cache: ContentCache
    audit: AuditLog
    skill: KnownSkill
    is_blocked: bool
    problems: list[Refusal] = field(default_factory=list[Refusal])
    _unpacked: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _files: int = 0
    _bytes: int = 0

    async def with_lines(self, file: FileChange) -> FileChange:
        """Return a change with its changed lines, or with the reason why they are omitted."""
        sides = [side for side in (file.old, file.new) if side is not None]
        if not all(self.skill.entry.uri.contains(side.uri) for side in sides):
            return _without_lines(file, OmissionReason.PACKED)
        if file.moved_from:
            return _without_lines(file, OmissionReason.MOVED)
        size = sum(side.known_size or 0 for side in sides)
        if any((side.known_size or 0) > MOST_FILE_BYTES for side in sides):
            return _without_lines(file, OmissionReason.TOO_LARGE)
        if self._files >= MOST_FILES or self._bytes + size > MOST_BYTES:
            return _without_lines(file, OmissionReason.TOO_MUCH)
        self._files, self._bytes = self._files + 1, self._bytes + size
        old = b"" if file.old is None else await self.approved(file.old)
        if old is None:
            return _without_lines(file, OmissionReason.NOT_CACHED)
        if self.is_blocked and file.new is not None:
            return _without_lines(file, OmissionReason.REFUSED)
        try:
            new = b"" if file.new is None else await self._current(file.new)
        except SkillError as error:
            return _without_lines(file, OmissionReason.REFUSED, Refusal.of(error, self.skill.reference))
        self._check_frontmatter(file, new)
        if max(len(old), len(new)) > MOST_FILE_BYTES:
            return _without_lines(file, OmissionReason.TOO_LARGE)
        return await anyio.to_thread.run_sync(with_lines, file, old, new)

    async def with_unpacked_archives(
        self, before: Manifest | None, after: Manifest | None
    ) -> tuple[Manifest | None, Manifest | None]:
        """Return both sides with archives replaced by their files, if both can be unpacked."""
        if after is None or (before is not None and binding_of(before) == binding_of(after)):
            return before, after
        old, new = before, after
        if before is not None and before.coverage is Coverage.ARCHIVE:
            old = await self._cached_archive_files(before)
        if after.coverage is Coverage.ARCHIVE:
            new = await self._listed_archive_files()
        is_known = new is not None and (old is not None or before is None)
        return (old, new) if is_known else (before, after)

    async def _cached_archive_files(self, manifest: Manifest) -> Manifest | None:
        """Return the files of an approved archive, if it is still cached."""
        archives = self.files.archives
        skill = self.skill
        try:
            found = await anyio.to_thread.run_sync(
                archives.cached, skill.id.origin, manifest, skill.entry.uri
            )
        except SkillError:
            return None  # The limits have changed since it was unpacked.
        if found is None:
            return None
        self._unpacked = found.contents
        return found.manifest

    async def _listed_archive_files(self) -> Manifest | None:
        """Return the files of the archive that is listed now, unless it cannot be fetched."""
        if self.is_blocked:
            return None
        try:
            opened = await self.files.opened(self.skill)
        except SkillError as error:
            self.problems.append(Refusal.of(error, self.skill.reference))
            return None
        self.skill = opened
        return opened.entry.files

    async def approved(self, file: ManifestFile) -> bytes | None:
        """Return the approved bytes, if they are still cached and unchanged."""
        if file.digest in self._unpacked:
            return self._unpacked[file.digest]
        try:
            return await anyio.to_thread.run_sync(self.cache.get, self.skill.id.origin, file)
        except VerificationError:
            return None  # The cached file was modified and has been removed.

    async def _current(self, file: ManifestFile) -> bytes:
        content = await self.files.file(self.skill, file.uri, DynamicFiles())
        self.audit.record("preview", reference=self.skill.reference, uri=file.uri)
        return content

    def _check_frontmatter(self, file: FileChange, content: bytes) -> None:
        """Add a problem if the frontmatter of a new `SKILL.md` does not match the listing."""
        if file.path != SKILL_FILE or file.new is None:
            return
        try:
            require_listed_frontmatter(self.skill.entry, parse_skill_md(content).frontmatter)
        except SkillError as error:
            self.problems.append(Refusal.of(error, self.skill.reference))


def _differing(skill: KnownSkill, before: Manifest | None, after: Manifest | None) -> list[FileChange]:
    """Return the files that differ: `SKILL.md` first, then scripts, then all others."""
    if after is None:
        return []
    old = before or Manifest.of(())
    change = Change.between(old, after)
    gone = {line.digest: line.uri for line in map(old.require, change.removed)}
    found = [
        *(_changed(skill, FileState.MODIFIED, old.find(uri), after.find(uri)) for uri in change.modified),
        *(_changed(skill, FileState.ADDED, None, after.find(uri), gone) for uri in change.added),
        *(_changed(skill, FileState.REMOVED, old.find(uri), None) for uri in change.removed),
    ]
    return sorted(found, key=lambda file: (file.path != SKILL_FILE, not file.is_script, file.path))


def _changed(
    skill: KnownSkill,
    state: FileState,
    old: ManifestFile | None,
    new: ManifestFile | None,
    gone: Mapping[str, str] | None = None,
) -> FileChange:
    file = new or old
    assert file is not None, "a file that differs was there before or is there now"
    entry = skill.entry
    source = (gone or {}).get(file.digest, "")
    moved_from = path_in(entry, source) if source else ""
    return FileChange(path_in(entry, file.uri), state, old, new, moved_from=moved_from)


def _without_lines(file: FileChange, omission: OmissionReason, refusal: Refusal | None = None) -> FileChange:
    return replace(file, omission=omission, refusal=refusal)


async def _field_changes(
    reader: _ComparisonReader, skill: KnownSkill, approved: Manifest | None
) -> tuple[FieldChange, ...] | None:
    """Compare the listed frontmatter with that of the approved `SKILL.md`."""
    if approved is None:
        return ()
    line = approved.find(skill.id.uri)
    content = None if line is None else await reader.approved(line)
    if content is None:
        return None
    try:
        before = parse_skill_md(content).frontmatter
    except SkillError:
        return None
    return tuple(_fields(before, skill.entry))


def _fields(before: Frontmatter, entry: SkillEntry) -> Iterable[FieldChange]:
    old, new = before.fields, entry.frontmatter.fields
    for name in frontmatter_differences(entry, before):
        yield FieldChange(name, old.get(name), new.get(name), name in old, name in new)
