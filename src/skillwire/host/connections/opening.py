"""Which kind of connection goes with a server: MCP, or a web site's HTTP."""

from collections.abc import Callable
from typing import TypeAlias

from skillwire.core.archive import ArchiveFormat
from skillwire.host.connections.connection import Connection
from skillwire.host.connections.endpoints import ServerConfig, SiteEndpoint
from skillwire.host.connections.site import SiteConnection
from skillwire.host.connections.throttle import ConnectionLimits

AnyConnection: TypeAlias = Connection | SiteConnection


def connection_for(
    server: ServerConfig,
    *,
    limits: ConnectionLimits | None = None,
    formats: frozenset[ArchiveFormat] = frozenset(),
    on_change: Callable[[], None] | None = None,
) -> AnyConnection:
    """Return the connection to a server, not open yet. A web site never calls `on_change`."""
    if isinstance(server.endpoint, SiteEndpoint):
        return SiteConnection(server, limits=limits, formats=formats)
    return Connection(server, limits=limits, formats=formats, on_change=on_change)
