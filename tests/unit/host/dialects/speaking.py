"""A server of a test, as a dialect client sees it: real messages to one that answers what it is told to."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from skillwire.host.calls import Session
from skillwire.host.calls.session import ConnectionLimits, ServerLink
from unit.host.calls.strangers import Stranger


@asynccontextmanager
async def speaking(
    stranger: Stranger, capabilities: Mapping[str, Any] | None = None, mode: str = "auto"
) -> AsyncGenerator[Session]:
    """Connect to a server, and say what it declared beside what the SDK knows."""
    async with stranger.connected(mode) as client:
        link = ServerLink(ConnectionLimits())
        link.become_ready(client)
        link.capabilities = capabilities or {}
        yield Session(link)
