"""`Gateway`: the sources of all upstreams of one configuration."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from skillwire.errors import SkillError
from skillwire.gateway.unlisted import Unlisted
from skillwire.gateway.upstream import Upstream
from skillwire.host.connections.config import read_servers
from skillwire.host.connections.endpoints import ServerConfig
from skillwire.host.state.cache import ContentCache
from skillwire.sources.source import Source

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gateway:
    """The servers of a configuration file such as `mcp.json`, to be served as one.

    It can be sent to another process; `sources` opens nothing yet. With
    `archives`, skills that come only as archives are unpacked and served.
    `cache` is where copies are kept.
    """

    config: Path
    archives: bool = False
    cache: Path | None = None

    def servers(self) -> tuple[ServerConfig, ...]:
        """Return the upstreams that can be used; what is wrong with the others is logged.

        Raises:
            ConfigError: The file cannot be read, or is no such file.
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
        """Return the sources to be served, two for each upstream: what it lists, and what it does not.

        Raises:
            SkillError: There is nothing to be served.
        """
        place = self.cache or Path(platformdirs.user_cache_dir("skillwire")) / "gateway"
        cache = ContentCache(place)
        found: list[Source] = []
        for server in self.servers():
            upstream = Upstream(server, cache, archives=self.archives)
            found += [upstream, Unlisted(upstream)]
        return found
