"""Reading a skill's files: from the cache or from the skill's own server, verified either way.

Files are fetched one at a time, on demand; only an archive is fetched whole.
Bytes that do not match the entry are never returned to a caller.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from skillwire.core import (
    SKILL_FILE,
    UNKNOWN_SIZE,
    ArchiveFormat,
    Coverage,
    DigestMismatchError,
    InvalidArchiveError,
    InvalidUriError,
    LimitError,
    Manifest,
    ManifestFile,
    NotFoundError,
    SizeMismatchError,
    SkillDocument,
    SkillEntry,
    SkillError,
    SkillUri,
    UnlistedFileError,
    VerificationError,
    archive_format,
    archive_line,
    has_digest,
    packed_skill_file,
    parse_skill_md,
    path_findings,
    quoted,
    require_listed_frontmatter,
)
from skillwire.core.archive import unpack
from skillwire.core.archive_tree import (
    DEFAULT_BUDGET,
    DEFAULT_LIMITS,
    ArchiveLimits,
    UnpackBudget,
    UnpackedFile,
)
from skillwire.host.calls import ConnectionState
from skillwire.host.dialects.base import SkillConnection, require_valid
from skillwire.host.model import (
    Approval,
    ArchiveBudgetError,
    ArchivesOffError,
    DynamicFiles,
    FloodError,
    Grant,
    KnownSkill,
    MessageTooLargeError,
    Origin,
    UnknownReferenceError,
    UnsafePathsError,
)
from skillwire.host.registry.local import parse_leniently, read_local_file
from skillwire.host.state.audit import AuditLog
from skillwire.host.state.content import ArchiveKey, ContentCache, UnpackedArchives

# Skills that are served as one archive: whether this host unpacks them, and how their files are read.


Read: TypeAlias = Callable[[str, int], Awaitable[bytes]]
"""Reads a resource of at most the given number of bytes from a skill's server."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArchivePolicy:
    """The archives that a host unpacks. A host without a policy unpacks none (ARC-18).

    `formats` are the accepted formats, `limits` apply to one archive, `budget`
    to all archives of one server while the host runs, in bytes. With
    `servers`, only archives of the servers with these labels are unpacked.
    """

    formats: frozenset[ArchiveFormat] = frozenset(ArchiveFormat)
    limits: ArchiveLimits = DEFAULT_LIMITS
    budget: int = DEFAULT_BUDGET
    servers: frozenset[str] | None = None

    def formats_for(self, label: str) -> frozenset[ArchiveFormat]:
        """Return the formats in which the archives of one server are unpacked."""
        return self.formats if self.servers is None or label in self.servers else frozenset()


NO_ARCHIVES = ArchivePolicy(frozenset())
"""The default policy: no archive is unpacked."""


@dataclass(frozen=True, slots=True)
class UnpackedArchive:
    """The content of an archive: a manifest by path or by skill URI, and the files' bytes by digest."""

    manifest: Manifest
    contents: dict[str, bytes]

    @classmethod
    def of(cls, files: Iterable[UnpackedFile]) -> "UnpackedArchive":
        lines = [(ManifestFile.of(file.path, file.content), file.content) for file in files]
        return cls(Manifest.of(line for line, _ in lines), {line.digest: content for line, content in lines})

    def below(self, uri: SkillUri) -> "UnpackedArchive":
        """Return the same with the manifest's paths resolved to URIs below the skill at `uri`."""
        return replace(self, manifest=manifest_below(self.manifest, uri))


class Archives:
    """Unpacks the archives of all servers of one host, and reads the unpacked files."""

    def __init__(self, policy: ArchivePolicy, store: UnpackedArchives, audit: AuditLog) -> None:
        self._policy = policy
        self._store = store
        self._audit = audit
        self._budgets: dict[Origin, UnpackBudget] = {}
        self._locks: dict[Origin, anyio.Lock] = {}
        self._known: dict[ArchiveKey, Manifest] = {}
        # Trees that could not be stored on disk. The unpack budget bounds their size.
        self._in_memory: dict[ArchiveKey, dict[str, bytes]] = {}

    def require_allowed(self, skill: KnownSkill) -> None:
        """Check from the entry alone whether the skill's archive may be fetched and unpacked.

        Raises:
            ArchivesOffError: The policy does not allow it.
            LimitError: It exceeds the size limit of an archive.
        """
        line = _line_of(skill.entry)
        label, allowed = skill.id.origin.label, self._policy.formats_for(skill.id.origin.label)
        if not allowed:
            whose = f"of the server {label}" if self._policy.formats else "at all"
            raise ArchivesOffError(
                f"{skill.reference} is served as an archive, and this host unpacks none {whose}",
                reference=skill.reference,
            )
        # Approvals do not store the media type; the format is then detected from the bytes.
        format = archive_format(line)
        if (format is None and line.extra) or (format is not None and format not in allowed):
            raise ArchivesOffError(
                f"the archive format of {skill.reference} is not accepted by this host",
                reference=skill.reference,
            )
        if line.known_size is not None and line.size > self._policy.limits.max_stream_size:
            raise LimitError(
                f"the archive has {line.size} bytes, more than the limit of "
                f"{self._policy.limits.max_stream_size}"
            )

    async def opened(self, skill: KnownSkill, read: Read) -> KnownSkill:
        """Return the skill with the files of its archive, which is fetched and unpacked if necessary.

        Raises:
            VerificationError: The archive, or its `SKILL.md`, does not match the entry.
            InvalidArchiveError: It is unsafe to unpack.
            LimitError: It is too large, or the server's archives together exceed the budget.
            SkillError: It cannot be fetched, or the policy does not allow it.
        """
        self.require_allowed(skill)
        known = self._known.get(_key(skill))
        if known is None:
            known = (await self._unpacked(skill, read)).manifest
        _require_listed_skill_file(skill.entry, known)
        return replace(skill, entry=replace(skill.entry, unpacked=manifest_below(known, skill.entry.uri)))

    async def file(self, skill: KnownSkill, uri: str, read: Read) -> bytes:
        """Return a file of a skill that was `opened`, as it was unpacked from the archive.

        A tree that is missing or was modified is unpacked again from the
        archive.

        Raises:
            UnlistedFileError: The archive has no such file; no request was sent.
            SkillError: As for `opened`.
        """
        assert skill.entry.unpacked is not None, "files are read from unpacked archives only"
        line, key = skill.entry.unpacked.require(uri), _key(skill)
        held = self._in_memory.get(key)
        if held is not None:
            return held[line.digest]
        try:
            content = await anyio.to_thread.run_sync(self._store.read, key, line)
        except VerificationError as error:
            self._note_mismatch(skill, uri, error)
            content = None
        if content is None:
            content = (await self._unpacked(skill, read)).contents[line.digest]
        return content

    def cached(self, origin: Origin, manifest: Manifest, uri: SkillUri) -> "UnpackedArchive | None":
        """Return the content of the cached archive of the skill at `uri`. This blocks on disk access.

        No request is sent. None if it is not cached, does not match
        `manifest`, or the policy does not allow it to be unpacked.

        Raises:
            SkillError: The archive cannot be unpacked.
        """
        line = archive_line(manifest, uri.text)
        limits, key = self._policy.limits, ArchiveKey(origin, line.uri, line.digest)
        try:
            archive = self._store.archive(key, limits.max_stream_size)
        except VerificationError as error:
            logger.warning("a cached archive was modified outside skillwire and was removed: %s", error)
            return None
        format = None if archive is None else ArchiveFormat.of_content(archive)
        if archive is None or format is None or format not in self._policy.formats_for(origin.label):
            return None
        return UnpackedArchive.of(unpack(archive, format, limits=limits)).below(uri)

    async def _unpacked(self, skill: KnownSkill, read: Read) -> "UnpackedArchive":
        """Return the content of an archive, from the cache or the server, and store it."""
        key = _key(skill)
        async with self._locks.setdefault(key.origin, anyio.Lock()):
            archive = await self._cached_archive(skill)
            budget = None
            if archive is None:
                budget = self._budget(key.origin)
                budget.require(1)
                archive = await self._fetched(skill, read)
            found = await anyio.to_thread.run_sync(self._unpack, skill, archive, budget)
            if await anyio.to_thread.run_sync(self._store.put, key, archive, found.contents):
                self._in_memory.pop(key, None)
            else:
                self._in_memory[key] = found.contents
            self._known[key] = found.manifest
            return found

    async def _cached_archive(self, skill: KnownSkill) -> bytes | None:
        try:
            return await anyio.to_thread.run_sync(
                self._store.archive, _key(skill), self._policy.limits.max_stream_size
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

    def _unpack(self, skill: KnownSkill, archive: bytes, budget: UnpackBudget | None) -> "UnpackedArchive":
        """Unpack an archive whose digest was verified, and check its content against the listing."""
        format = archive_format(_line_of(skill.entry)) or ArchiveFormat.of_content(archive)
        if format is None or format not in self._policy.formats_for(skill.id.origin.label):
            raise ArchivesOffError(
                f"the archive format of {skill.reference} is not accepted by this host",
                reference=skill.reference,
            )
        found = UnpackedArchive.of(unpack(archive, format, limits=self._policy.limits, budget=budget))
        _require_listed_skill_file(skill.entry, found.manifest)
        content = found.contents[found.manifest.require(SKILL_FILE).digest]
        require_listed_frontmatter(skill.entry, parse_skill_md(content).frontmatter)
        manifest_below(found.manifest, skill.entry.uri)
        return found

    def _budget(self, origin: Origin) -> UnpackBudget:
        return self._budgets.setdefault(origin, _ServerBudget(origin.label, self._policy.budget))

    def _note_mismatch(self, skill: KnownSkill, uri: str, error: VerificationError) -> None:
        logger.warning("a cached archive was modified outside skillwire and is unpacked again: %s", error)
        self._audit.record("cache-mismatch", reference=skill.reference, uri=uri, code=error.refusal)


class _ServerBudget(UnpackBudget):
    """The unpack budget of one server; its errors name the server."""

    def __init__(self, label: str, total: int) -> None:
        super().__init__(total)
        self._label = label

    def require(self, size: int) -> None:
        if size > self.remaining:
            raise self._exceeded()

    def spend(self, size: int) -> None:
        try:
            super().spend(size)
        except LimitError as error:
            raise self._exceeded() from error

    def _exceeded(self) -> ArchiveBudgetError:
        return ArchiveBudgetError(
            f"the archives of the server {self._label} together exceed the unpack budget of this host"
        )


def _line_of(entry: SkillEntry) -> ManifestFile:
    assert entry.manifest is not None, "an archive has a digest"
    return archive_line(entry.manifest, entry.uri.text)


def _key(skill: KnownSkill) -> ArchiveKey:
    line = _line_of(skill.entry)
    return ArchiveKey(skill.id.origin, line.uri, line.digest)


def _require_listed_skill_file(entry: SkillEntry, manifest: Manifest) -> None:
    """Check the `SKILL.md` of an archive against the size and digest in the entry, if any (ARC-16).

    Raises:
        VerificationError: It does not match.
    """
    promised = None if entry.manifest is None else packed_skill_file(entry.manifest, entry.uri.text)
    found = manifest.require(SKILL_FILE)
    if promised is None:
        return
    if promised.known_size not in (None, found.size):
        raise SizeMismatchError(
            f"{SKILL_FILE} in the archive has {found.size} bytes instead of the listed {promised.size}",
            uri=entry.uri.text,
        )
    if promised.digest != found.digest:
        raise DigestMismatchError(
            f"{SKILL_FILE} in the archive does not match the listing's digest", uri=entry.uri.text
        )


def manifest_below(manifest: Manifest, uri: SkillUri) -> Manifest:
    """Return an archive's manifest with its paths resolved to URIs below the skill's (ARC-14).

    Raises:
        InvalidArchiveError: A path cannot be part of a URI there.
    """
    try:
        return Manifest.of(replace(line, uri=uri.join(line.uri)) for line in manifest.files)
    except InvalidUriError as error:
        message = f"a path in the archive is too long below {quoted(uri.root)}"
        raise InvalidArchiveError(message) from error


P = ParamSpec("P")
T = TypeVar("T")

STALE = (VerificationError, NotFoundError)
"""Errors of a read when a skill changed since it was listed, or its listing is wrong."""


def _with_server_label(
    fetch: Callable[Concatenate["Files", KnownSkill, P], Awaitable[T]],
) -> Callable[Concatenate["Files", KnownSkill, P], Coroutine[Any, Any, T]]:
    """Set the label of the server on errors that it caused."""

    @wraps(fetch)
    async def named(self: "Files", skill: KnownSkill, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await fetch(self, skill, *args, **kwargs)
        except SkillError as error:
            error.server = skill.id.origin.label if skill.is_remote else ""
            raise

    return named


class Files:
    """The files of all skills of one host, read from cache, archives, folders or servers and verified."""

    def __init__(
        self,
        connections: Mapping[str, SkillConnection],
        cache: ContentCache,
        archives: Archives,
        audit: AuditLog,
    ) -> None:
        self.archives = archives
        self._connections = connections
        self._cache = cache
        self._audit = audit

    def connection(self, label: str) -> SkillConnection:
        """Return the connection to the server with this label.

        Raises:
            UnknownReferenceError: No server has this label.
        """
        found = self._connections.get(label)
        if found is None:
            raise UnknownReferenceError(
                f"no server has the label {quoted(label)}",
                reference=label,
                candidates=sorted(self._connections),
            )
        return found

    def is_offline(self, skill: KnownSkill) -> bool:
        """Return whether the skill's server is not connected."""
        found = self._connections.get(skill.id.origin.label) if skill.is_remote else None
        return found is not None and found.state is not ConnectionState.READY

    @_with_server_label
    async def document(self, skill: KnownSkill, fetched: DynamicFiles) -> tuple[KnownSkill, SkillDocument]:
        """Return the skill with its manifest of files, and its `SKILL.md`.

        An archive is unpacked for it. Size, digest, encoding and frontmatter
        are checked, in this order.

        Raises:
            VerificationError: The bytes do not match the entry.
            NotFoundError: The server has no such file any more.
            SkillError: It cannot be fetched or read.
        """
        if skill.entry.coverage is Coverage.ARCHIVE:
            skill = await self.opened(skill)
        content = await self.file(skill, skill.id.uri, fetched)
        if not skill.is_remote:
            return skill, parse_leniently(content).document
        document = parse_skill_md(content)
        require_listed_frontmatter(skill.entry, document.frontmatter)
        if skill.entry.is_summary and not skill.is_listed:
            require_valid(skill, document)
        return skill, document

    @_with_server_label
    async def opened(self, skill: KnownSkill) -> KnownSkill:
        """Return the skill with its manifest of files; an archive is fetched and unpacked for it.

        Raises:
            VerificationError: The archive does not match the entry.
            SkillError: It cannot be fetched or unpacked, or the policy does not allow it.
        """
        if skill.entry.coverage is not Coverage.ARCHIVE or skill.entry.unpacked is not None:
            return skill
        return await self.archives.opened(skill, self._reader(skill))

    @_with_server_label
    async def file(self, skill: KnownSkill, uri: str, fetched: DynamicFiles) -> bytes:
        """Return the bytes of one file of a skill, verified against its entry.

        A file without a digest is returned as the server sends it; the caller
        has to check that this is allowed. `fetched` stores such files and
        counts them towards the limits.

        Raises:
            UnlistedFileError: The file is not part of the skill; no request was sent.
            VerificationError: The bytes do not match the entry.
            NotFoundError: The server has no such file any more.
            SkillError: It cannot be fetched.
        """
        if skill.entry.coverage is Coverage.ARCHIVE:
            return await self._packed_file(skill, uri)
        if skill.entry.manifest is None or not has_digest(skill.entry, uri):
            return await self._unpromised_file(skill, uri, fetched)
        line = skill.entry.manifest.require(uri)
        if not skill.is_remote:
            self._audit.record("read", reference=skill.reference, uri=uri, source="folder")
            return await anyio.to_thread.run_sync(read_local_file, skill, uri)
        try:
            content = await anyio.to_thread.run_sync(self._cache.get, skill.id.origin, line)
        except VerificationError as error:
            logger.warning("a cached file was modified outside skillwire and is fetched again: %s", error)
            self._audit.record("cache-mismatch", reference=skill.reference, uri=uri, code=error.refusal)
            content = None
        if content is not None:
            self._audit.record("read", reference=skill.reference, uri=uri, source="cache")
            return content
        has_size = line.size != UNKNOWN_SIZE
        if not has_size:
            fetched.require_capacity(uri)
        room = line.size if has_size else min(line.max_bytes, fetched.remaining_bytes)
        self._audit.record("read", reference=skill.reference, uri=uri, source="server")
        try:
            content = await self.connection(skill.id.origin.label).read_file(line.published, max_bytes=room)
        except LimitError as error:
            if not has_size or isinstance(error, MessageTooLargeError | FloodError):
                raise
            raise SizeMismatchError(
                f"{uri} has more than the {line.size} bytes in the listing", uri=uri
            ) from error
        line.verify(content)
        if not has_size:
            fetched.count(uri, len(content))
        await anyio.to_thread.run_sync(self._cache.put, skill.id.origin, line, content)
        return content

    def require_safe(self, skill: KnownSkill) -> None:
        """Check from the entry alone that the skill may be stored on this host.

        Raises:
            LimitError: It has too many files, or their total size is too large.
            UnsafePathsError: Two of its paths are the same file on some systems.
            ArchivesOffError: It is served as an archive, and the policy does not allow that.
        """
        if skill.entry.coverage is Coverage.ARCHIVE:
            self.archives.require_allowed(skill)
            return
        skill.entry.check_limits()
        if skill.entry.manifest is None or len(skill.entry.manifest.references) == 1:
            return
        paths = [skill.entry.uri.relative_path(uri) for uri in skill.entry.manifest.uris]
        twins = [finding for finding in path_findings(paths) if finding.code == "path-twins"]
        if twins and skill.is_remote:
            raise UnsafePathsError(f"{quoted(twins[0].file)}: {twins[0].message}", reference=skill.reference)

    async def _packed_file(self, skill: KnownSkill, uri: str) -> bytes:
        """Return a file from the skill's archive, which is fetched from the server if necessary."""
        opened = await self.opened(skill)
        content = await self.archives.file(opened, uri, self._reader(skill))
        self._audit.record("read", reference=skill.reference, uri=uri, source="archive")
        return content

    def _reader(self, skill: KnownSkill) -> Read:
        async def read(uri: str, most: int) -> bytes:
            return await self.connection(skill.id.origin.label).read_file(uri, max_bytes=most)

        return read

    async def _unpromised_file(self, skill: KnownSkill, uri: str, fetched: DynamicFiles) -> bytes:
        if not skill.entry.uri.contains(uri):
            raise UnlistedFileError(f"{quoted(uri)} is not inside the skill", uri=uri)
        content = fetched.get(uri)
        if content is None:
            fetched.require_capacity(uri)
            self._audit.record("read", reference=skill.reference, uri=uri, source="server")
            asked = skill.entry.uri.published if uri == skill.id.uri else uri
            content = await self.connection(skill.id.origin.label).read_file(
                asked, max_bytes=fetched.remaining_bytes, arguments=fetched.arguments
            )
            fetched.add(uri, content)
        return content


# Approved skills while their server is offline: those whose approved content is cached.


def cached_skills(approvals: Iterable[Approval], cache: ContentCache, archives: Archives) -> list[KnownSkill]:
    """Return the skills that may be loaded without their server, each with the date of its approval.

    The frontmatter is read from the cached file, whose digest is the approved
    one, so nothing else needs to be stored. They still count as remote skills.
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
        logger.warning("a cached skill cannot be used while its server is offline: %s", error)
        return None
    date = approval.granted_at.date().isoformat()
    # The registry assigns its final reference.
    return KnownSkill(approval.skill, approval.skill.uri, entry, is_listed=False, offline_since=date)


def _skill_file(approval: Approval, uri: SkillUri, cache: ContentCache, archives: Archives) -> bytes | None:
    origin, manifest = approval.skill.origin, approval.manifest
    if manifest.coverage is not Coverage.ARCHIVE:
        return cache.get(origin, manifest.require(uri.text))
    kept = archives.cached(origin, manifest, uri)
    return None if kept is None else kept.contents[kept.manifest.require(uri.text).digest]
