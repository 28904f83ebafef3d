"""`Gateway`: the sources of all upstreams of one configuration."""

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from skillwire.core import (
    MAX_TOTAL_SIZE,
    Dialect,
    InvalidUriError,
    NotFoundError,
    SkillEntry,
    SkillError,
    SkillUri,
    canonical_uri,
)
from skillwire.gateway.upstream import Upstream, upstream_errors
from skillwire.host.connect.config import read_servers
from skillwire.host.model import NotDeclaredError, ServerConfig
from skillwire.host.state.content import ContentCache
from skillwire.sources import Source
from skillwire.sources.snapshot import possible_skills

# Skills that an upstream serves but does not list: requested one by one, and passed on.


class UnlistedSource:
    """The unlisted skills of an upstream, in the released extension."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        """Yield nothing: listed skills come from `Upstream`."""
        for entry in ():
            yield entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        upstream = self._upstream
        wanted = upstream.prefix.upstream(uri.text)
        if upstream.connection.dialect not in (None, Dialect.CORE):
            raise NotFoundError(f"no skill is served at {uri}", uri=uri.text)
        with upstream_errors(upstream.label, uri.text):
            try:
                entry = await upstream.connection.get_skill(SkillUri.parse(wanted))
            except (InvalidUriError, NotDeclaredError) as error:
                raise NotFoundError(f"no skill is served at {uri}", uri=uri.text) from error
        upstream.require_visible(entry)
        provenance = upstream.provenance(entry.uri.text, Dialect.CORE, "upstream")
        return upstream.prefix.entry(entry, provenance)

    async def read_file(self, uri: str) -> bytes:
        wanted = self._upstream.prefix.upstream(canonical_uri(uri))
        for skill in possible_skills(wanted.rpartition("/")[0]):
            try:
                entry = await self.get_skill(SkillUri(self._upstream.prefix.served(skill.text)))
            except NotFoundError:
                continue
            served = self._upstream.prefix.served(wanted)
            line = None if entry.manifest is None else entry.manifest.require(served)
            most = MAX_TOTAL_SIZE if line is None else line.max_bytes
            with upstream_errors(self._upstream.label, served):
                content = await self._upstream.connection.read_file(wanted, max_bytes=most)
                if line is not None:
                    line.verify(content)
            return content
        raise NotFoundError(f"nothing is served at {uri}", uri=uri)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gateway:
    """The servers of a configuration file such as `mcp.json`, served as one.

    It can be pickled; `sources` does not open anything. With
    `archives`, skills that come only as archives are unpacked and served.
    `cache` is where copies are kept.
    """

    config: Path
    archives: bool = False
    cache: Path | None = None

    def servers(self) -> tuple[ServerConfig, ...]:
        """Return the upstreams that can be used; problems with the others are logged.

        Raises:
            ConfigError: The file cannot be read, or is not such a file.
            SkillError: None of its servers can be used.
        """
        found = read_servers(self.config)
        for refusal in found.refused:
            logger.warning("%s is not served: %s", refusal.subject, refusal.detail or refusal.sentence)
        servers = tuple(server for server in found.servers if server.is_enabled and server.skills.is_on)
        if not servers:
            raise SkillError(
                f"{self.config.name} has no upstream server that can be used",
                fix="add one to its `mcpServers`, or serve folders instead",
            )
        return servers

    def sources(self) -> Sequence[Source]:
        """Return the sources to serve, two for each upstream: listed skills and unlisted ones.

        Raises:
            SkillError: There is nothing to serve.
        """
        place = self.cache or Path(platformdirs.user_cache_dir("skillwire")) / "gateway"
        cache = ContentCache(place)
        found: list[Source] = []
        for server in self.servers():
            upstream = Upstream(server, cache, archives=self.archives)
            found += [upstream, UnlistedSource(upstream)]
        return found
