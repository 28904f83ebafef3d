"""Skills that arrive as one archive: whether this host unpacks them, and where their files are read from.

An archive is fetched when its skill is loaded, or when a person wants to see a
file of it, and never before. Its digest is checked before anything is
unpacked, and nothing is kept of one that is dangerous, too large, or not what
the listing says. From then on every file comes out of the unpacked tree; the
server is not asked for single files, which no digest would cover.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import anyio
import anyio.to_thread

from skillwire.core.archive import ArchiveFormat, ArchiveLimits, UnpackBudget, UnpackedFile, unpack
from skillwire.core.archive_limits import DEFAULT_BUDGET, DEFAULT_LIMITS
from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.core.uri import SKILL_FILE, SkillUri
from skillwire.errors import (
    DigestMismatchError,
    InvalidArchiveError,
    InvalidUriError,
    LimitError,
    SizeMismatchError,
    VerificationError,
)
from skillwire.host.failures import ArchiveBudgetError, ArchivesOffError
from skillwire.host.origin import Origin
from skillwire.host.promises import archive_format, archive_line, packed_skill_file, require_told
from skillwire.host.registry.known import KnownSkill
from skillwire.host.state.audit import AuditLog
from skillwire.host.state.trees import TreeKey, Trees

Read: TypeAlias = Callable[[str, int], Awaitable[bytes]]
"""Asks a skill's server for a resource of at most so many bytes."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArchivePolicy:
    """Which archives a host unpacks. A host that is given no policy unpacks none (ARC-18).

    `formats` are those it unpacks, `limits` hold for one archive, `budget` for
    all of one server while the host runs, in bytes. With `servers`, only
    archives of the servers with these labels are unpacked.
    """

    formats: frozenset[ArchiveFormat] = frozenset(ArchiveFormat)
    limits: ArchiveLimits = DEFAULT_LIMITS
    budget: int = DEFAULT_BUDGET
    servers: frozenset[str] | None = None

    def formats_for(self, label: str) -> frozenset[ArchiveFormat]:
        """Return the formats in which the archives of one server are unpacked."""
        return self.formats if self.servers is None or label in self.servers else frozenset()


NO_ARCHIVES = ArchivePolicy(frozenset())
"""The policy of a host that was given none."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What came out of an archive: its files by their paths, or below a skill, and their bytes by digest."""

    manifest: Manifest
    contents: dict[str, bytes]

    @classmethod
    def of(cls, files: Iterable[UnpackedFile]) -> "Unpacked":
        lines = [(ManifestFile.of(file.path, file.content), file.content) for file in files]
        return cls(Manifest.of(line for line, _ in lines), {line.digest: content for line, content in lines})

    def below(self, uri: SkillUri) -> "Unpacked":
        """Return the same with the files where the skill at `uri` has them."""
        return replace(self, manifest=placed(self.manifest, uri))


class Archives:
    """Unpacks the archives of all servers of one host, and reads what came out of them."""

    def __init__(self, policy: ArchivePolicy, trees: Trees, audit: AuditLog) -> None:
        self._policy = policy
        self._trees = trees
        self._audit = audit
        self._budgets: dict[Origin, UnpackBudget] = {}
        self._locks: dict[Origin, anyio.Lock] = {}
        self._known: dict[TreeKey, Manifest] = {}
        # What no disk took. No server can fill it: it was paid for from the budget.
        self._held: dict[TreeKey, dict[str, bytes]] = {}

    def require_allowed(self, skill: KnownSkill) -> None:
        """Check from the entry alone whether the skill's archive may be fetched and unpacked.

        Raises:
            ArchivesOffError: Policy does not want it.
            LimitError: It is larger than any archive may be.
        """
        line = _line_of(skill.entry)
        label, allowed = skill.id.origin.label, self._policy.formats_for(skill.id.origin.label)
        if not allowed:
            whose = f"of the server {label}" if self._policy.formats else "at all"
            raise ArchivesOffError(
                f"{skill.reference} comes as an archive, and this host unpacks none {whose}",
                reference=skill.reference,
            )
        # What an approval was for is remembered without the media type; its bytes tell.
        format = archive_format(line)
        if (format is None and line.extra) or (format is not None and format not in allowed):
            raise ArchivesOffError(
                f"{skill.reference} is packed in a way this host does not unpack", reference=skill.reference
            )
        if line.known_size is not None and line.size > self._policy.limits.max_stream_size:
            raise LimitError(f"the archive has {line.size} bytes, more than this host unpacks")

    async def opened(self, skill: KnownSkill, read: Read) -> KnownSkill:
        """Return the skill with the files that its archive holds, fetched and unpacked now if need be.

        Raises:
            VerificationError: The archive, or its `SKILL.md`, is not what the entry promises.
            InvalidArchiveError: It must not be unpacked.
            LimitError: It is too large, or the server's archives are together.
            SkillError: It cannot be had, or must not be.
        """
        self.require_allowed(skill)
        known = self._known.get(_key(skill))
        if known is None:
            known = (await self._unpacked(skill, read)).manifest
        _require_promised(skill.entry, known)
        return replace(skill, entry=replace(skill.entry, unpacked=placed(known, skill.entry.uri)))

    async def file(self, skill: KnownSkill, uri: str, read: Read) -> bytes:
        """Return a file of a skill that was `opened`, as it came out of the archive.

        A tree that is gone, or was changed by something else, is made again
        from the archive.

        Raises:
            UnlistedFileError: The archive holds no such file; nothing was sent.
            SkillError: As for `opened`.
        """
        assert skill.entry.unpacked is not None, "a file is read out of an unpacked archive"
        line, key = skill.entry.unpacked.require(uri), _key(skill)
        held = self._held.get(key)
        if held is not None:
            return held[line.digest]
        try:
            content = await anyio.to_thread.run_sync(self._trees.read, key, line)
        except VerificationError as error:
            self._note_mismatch(skill, uri, error)
            content = None
        if content is None:
            content = (await self._unpacked(skill, read)).contents[line.digest]
        return content

    def kept(self, origin: Origin, manifest: Manifest, uri: SkillUri) -> "Unpacked | None":
        """Return what an archive of the skill at `uri` holds, if it is still kept. This uses a disk.

        No server is asked. None when it is not here, is not what `manifest`
        promises, or policy does not want it unpacked.

        Raises:
            SkillError: The archive cannot be unpacked.
        """
        line = archive_line(manifest, uri.text)
        limits, key = self._policy.limits, TreeKey(origin, line.uri, line.digest)
        try:
            archive = self._trees.archive(key, limits.max_stream_size)
        except VerificationError as error:
            logger.warning("an unpacked archive was changed by something else, and is gone: %s", error)
            return None
        format = None if archive is None else ArchiveFormat.of_content(archive)
        if archive is None or format is None or format not in self._policy.formats_for(origin.label):
            return None
        return Unpacked.of(unpack(archive, format, limits=limits)).below(uri)

    async def _unpacked(self, skill: KnownSkill, read: Read) -> "Unpacked":
        """Return what an archive holds, from the disk or the server, and keep it."""
        key = _key(skill)
        async with self._locks.setdefault(key.origin, anyio.Lock()):
            archive = await self._kept_archive(skill)
            budget = None
            if archive is None:
                budget = self._budget(key.origin)
                budget.require(1)
                archive = await self._fetched(skill, read)
            found = await anyio.to_thread.run_sync(self._unpack, skill, archive, budget)
            if await anyio.to_thread.run_sync(self._trees.put, key, archive, found.contents):
                self._held.pop(key, None)
            else:
                self._held[key] = found.contents
            self._known[key] = found.manifest
            return found

    async def _kept_archive(self, skill: KnownSkill) -> bytes | None:
        try:
            return await anyio.to_thread.run_sync(
                self._trees.archive, _key(skill), self._policy.limits.max_stream_size
            )
        except VerificationError as error:
            self._note_mismatch(skill, _key(skill).url, error)
            return None

    async def _fetched(self, skill: KnownSkill, read: Read) -> bytes:
        line = _line_of(skill.entry)
        most = self._policy.limits.max_stream_size
        self._audit.record("read", reference=skill.reference, uri=line.uri, source="server")
        archive = await read(line.published, most if line.known_size is None else min(line.size, most))
        line.verify(archive)
        return archive

    def _unpack(self, skill: KnownSkill, archive: bytes, budget: UnpackBudget | None) -> "Unpacked":
        """Unpack an archive whose digest was checked, and check what the listing says of what is inside."""
        format = archive_format(_line_of(skill.entry)) or ArchiveFormat.of_content(archive)
        if format is None or format not in self._policy.formats_for(skill.id.origin.label):
            raise ArchivesOffError(
                f"{skill.reference} is packed in a way this host does not unpack", reference=skill.reference
            )
        found = Unpacked.of(unpack(archive, format, limits=self._policy.limits, budget=budget))
        _require_promised(skill.entry, found.manifest)
        content = found.contents[found.manifest.require(SKILL_FILE).digest]
        require_told(skill.entry, parse_skill_md(content).frontmatter)
        placed(found.manifest, skill.entry.uri)
        return found

    def _budget(self, origin: Origin) -> UnpackBudget:
        return self._budgets.setdefault(origin, _ServerBudget(origin.label, self._policy.budget))

    def _note_mismatch(self, skill: KnownSkill, uri: str, error: VerificationError) -> None:
        logger.warning("an unpacked archive was changed by something else, and is made anew: %s", error)
        self._audit.record("cache-mismatch", reference=skill.reference, uri=uri, code=error.refusal)


class _ServerBudget(UnpackBudget):
    """The budget of one server, which says whose it is when it is used up."""

    def __init__(self, label: str, total: int) -> None:
        super().__init__(total)
        self._label = label

    def require(self, size: int) -> None:
        if size > self.remaining:
            raise self._spent()

    def spend(self, size: int) -> None:
        try:
            super().spend(size)
        except LimitError as error:
            raise self._spent() from error

    def _spent(self) -> ArchiveBudgetError:
        return ArchiveBudgetError(
            f"the archives of {self._label} have unpacked to as much as this host allows them together"
        )


def _line_of(entry: SkillEntry) -> ManifestFile:
    assert entry.manifest is not None, "an archive has a digest"
    return archive_line(entry.manifest, entry.uri.text)


def _key(skill: KnownSkill) -> TreeKey:
    line = _line_of(skill.entry)
    return TreeKey(skill.id.origin, line.uri, line.digest)


def _require_promised(entry: SkillEntry, manifest: Manifest) -> None:
    """Check the `SKILL.md` of an archive against what the entry promises of it besides (ARC-16).

    Raises:
        VerificationError: It is another one.
    """
    promised = None if entry.manifest is None else packed_skill_file(entry.manifest, entry.uri.text)
    found = manifest.require(SKILL_FILE)
    if promised is None:
        return
    if promised.known_size not in (None, found.size):
        raise SizeMismatchError(
            f"{SKILL_FILE} in the archive has {found.size} bytes where the listing says {promised.size}",
            uri=entry.uri.text,
        )
    if promised.digest != found.digest:
        raise DigestMismatchError(
            f"{SKILL_FILE} in the archive does not match the listing's digest", uri=entry.uri.text
        )


def placed(manifest: Manifest, uri: SkillUri) -> Manifest:
    """Return the files of an archive below the URI of the skill it holds (ARC-14).

    Raises:
        InvalidArchiveError: One of them cannot have a URI there.
    """
    try:
        return Manifest.of(replace(line, uri=uri.join(line.uri)) for line in manifest.files)
    except InvalidUriError as error:
        message = f"a path in the archive is too long below {quoted(uri.root)}"
        raise InvalidArchiveError(message) from error
