"""Fetching a skill's files: from the cache or from the skill's own server, checked either way.

Files come one at a time, when someone needs them; only an archive comes whole.
Bytes that do not match the entry are dropped here; a reader outside never sees
them.
"""

import logging
from collections.abc import Mapping

import anyio.to_thread

from skillwire.core.characters import quoted
from skillwire.core.frontmatter import SkillDocument, parse_skill_md
from skillwire.core.manifest import Coverage, ManifestFile
from skillwire.core.paths import path_findings
from skillwire.errors import (
    LimitError,
    NotFoundError,
    SizeMismatchError,
    UnlistedFileError,
    VerificationError,
)
from skillwire.host.activation import DynamicFiles
from skillwire.host.archives import Archives, Read
from skillwire.host.connections.connection import ConnectionState
from skillwire.host.connections.opening import AnyConnection
from skillwire.host.failures import FloodError, MessageTooLargeError, UnknownReferenceError, UnsafePathsError
from skillwire.host.promises import is_promised, require_told
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.lenient import parse_leniently
from skillwire.host.registry.local import read_local_file
from skillwire.host.state.audit import AuditLog
from skillwire.host.state.cache import ContentCache

logger = logging.getLogger(__name__)

STALE = (VerificationError, NotFoundError)
"""What a file answers with when the server has moved on since its listing, or lies."""


class Fetcher:
    """Where the bytes of all skills of one host come from."""

    def __init__(
        self,
        connections: Mapping[str, AnyConnection],
        cache: ContentCache,
        archives: Archives,
        audit: AuditLog,
    ) -> None:
        self.archives = archives
        self._connections = connections
        self._cache = cache
        self._audit = audit

    def connection(self, label: str) -> AnyConnection:
        """Return the server the user calls `label`.

        Raises:
            UnknownReferenceError: There is none.
        """
        found = self._connections.get(label)
        if found is None:
            raise UnknownReferenceError(
                f"no server is called {quoted(label)}", reference=label, candidates=sorted(self._connections)
            )
        return found

    def is_away(self, skill: KnownSkill) -> bool:
        """Tell whether the skill's server cannot be asked right now."""
        found = self._connections.get(skill.id.origin.label) if skill.is_remote else None
        return found is not None and found.state is not ConnectionState.READY

    async def document(self, skill: KnownSkill, fetched: DynamicFiles) -> SkillDocument:
        """Return the skill's `SKILL.md`: its size, digest, encoding and frontmatter checked, in this order.

        Raises:
            VerificationError: The bytes are not those the entry promises.
            NotFoundError: The server has no such file any more.
            SkillError: It cannot be fetched or read.
        """
        content = await self.file(skill, skill.id.uri, fetched)
        if not skill.is_remote:
            return parse_leniently(content).document
        document = parse_skill_md(content)
        require_told(skill.entry, document.frontmatter)
        return document

    async def opened(self, skill: KnownSkill) -> KnownSkill:
        """Return the skill with all files that have digests known: what comes as an archive is unpacked.

        Raises:
            VerificationError: The archive is not the one the entry promises.
            SkillError: It cannot be had, or must not be unpacked.
        """
        if skill.entry.coverage is not Coverage.ARCHIVE or skill.entry.unpacked is not None:
            return skill
        return await self.archives.opened(skill, self._reader(skill))

    async def file(self, skill: KnownSkill, uri: str, fetched: DynamicFiles) -> bytes:
        """Return the bytes of one file of a skill, as its entry promises them.

        What has no digest comes as the server sends it; whether that is
        wanted is the caller's to know. `fetched` counts what such files cost,
        and keeps them meanwhile.

        Raises:
            UnlistedFileError: The file is no part of the skill; nothing was sent.
            VerificationError: The bytes are not those the entry promises.
            NotFoundError: The server has no such file any more.
            SkillError: It cannot be fetched.
        """
        if skill.entry.coverage is Coverage.ARCHIVE:
            return await self._packed_file(skill, uri)
        if skill.entry.manifest is None or not is_promised(skill.entry, uri):
            return await self._unpromised_file(skill, uri, fetched)
        line = skill.entry.manifest.require(uri)
        if not skill.is_remote:
            self._audit.record("read", reference=skill.reference, uri=uri, source="folder")
            return await anyio.to_thread.run_sync(read_local_file, skill, uri)
        content = await self._cached(skill, line)
        if content is not None:
            self._audit.record("read", reference=skill.reference, uri=uri, source="cache")
        else:
            content = await self._from_server(skill, line, fetched)
            await anyio.to_thread.run_sync(self._cache.put, skill.id.origin, line, content)
        return content

    def require_safe(self, skill: KnownSkill) -> None:
        """Check from the entry alone whether the skill can be held here.

        Raises:
            LimitError: It has too many files, or they are too large together.
            UnsafePathsError: Two of its files are one on some systems.
            ArchivesOffError: It comes as an archive, and policy does not want that.
        """
        if skill.entry.coverage is Coverage.ARCHIVE:
            self.archives.require_allowed(skill)
            return
        skill.entry.check_limits()
        if skill.entry.manifest is None:
            return
        paths = [skill.entry.uri.relative_path(uri) for uri in skill.entry.manifest.uris]
        twins = [finding for finding in path_findings(paths) if finding.code == "path-twins"]
        if twins and skill.is_remote:
            raise UnsafePathsError(f"{quoted(twins[0].file)}: {twins[0].message}", reference=skill.reference)

    async def _cached(self, skill: KnownSkill, line: ManifestFile) -> bytes | None:
        try:
            return await anyio.to_thread.run_sync(self._cache.get, skill.id.origin, line)
        except VerificationError as error:
            logger.warning("a cached file was changed by something else and is fetched anew: %s", error)
            self._audit.record("cache-mismatch", reference=skill.reference, uri=line.uri, code=error.refusal)
            return None

    async def _from_server(self, skill: KnownSkill, line: ManifestFile, fetched: DynamicFiles) -> bytes:
        connection = self.connection(skill.id.origin.label)
        room = line.size
        if line.known_size is None:
            fetched.require_room(line.uri)
            room = min(line.most_bytes, fetched.left)
        self._audit.record("read", reference=skill.reference, uri=line.uri, source="server")
        try:
            content = await connection.read_file(line.published, max_bytes=room)
        except (MessageTooLargeError, FloodError):
            raise
        except LimitError as error:
            if line.known_size is None:
                raise
            raise SizeMismatchError(
                f"{line.uri} has more bytes than the {line.size} the listing says", uri=line.uri
            ) from error
        line.verify(content)
        if line.known_size is None:
            fetched.count(line.uri, len(content))
        return content

    async def _packed_file(self, skill: KnownSkill, uri: str) -> bytes:
        """Return a file out of the skill's archive; the server is asked for the archive at most."""
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
            fetched.require_room(uri)
            self._audit.record("read", reference=skill.reference, uri=uri, source="server")
            asked = skill.entry.uri.published if uri == skill.id.uri else uri
            content = await self.connection(skill.id.origin.label).read_file(asked, max_bytes=fetched.left)
            fetched.add(uri, content)
        return content
