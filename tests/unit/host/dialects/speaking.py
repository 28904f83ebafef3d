"""A server of a test, as a voice sees it: real messages to one that answers what it is told to."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from skillwire.host.connections.link import Link
from skillwire.host.connections.throttle import ConnectionLimits
from skillwire.host.dialects.voice import Peer
from unit.host.calls.strangers import Stranger


@asynccontextmanager
async def speaking(
    stranger: Stranger, capabilities: Mapping[str, Any] | None = None, mode: str = "auto"
) -> AsyncGenerator[Peer]:
    """Connect to a server, and say what it declared beside what the SDK knows."""
    async with stranger.connected(mode) as client:
        link = Link(ConnectionLimits())
        link.become_ready(client)
        link.capabilities = capabilities or {}
        yield Peer(link)
