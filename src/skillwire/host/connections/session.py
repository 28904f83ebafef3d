"""The MCP client of one link: what it says of itself, over which transport, and what its errors mean."""

import logging
from contextlib import AbstractAsyncContextManager
from typing import cast

from mcp.client import Client
from mcp.client.extension import advertise
from mcp.client.session import MessageHandlerFnT
from mcp.shared.exceptions import MCPError
from mcp.types import Implementation

import skillwire
from skillwire.core.characters import quoted
from skillwire.errors import SkillError
from skillwire.host.connections.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.connections.http import http_transport
from skillwire.host.connections.link import Link, Streams
from skillwire.host.connections.stdio import stdio_transport
from skillwire.host.failures import NotSignedInError, UnavailableError
from skillwire.wire.core import EXTENSION
from skillwire.wire.dialect import Dialect

_LONGEST_WORDS = 500
# A server that speaks both families answers `skills/list` in the one that the client declared (NEG-15).
_BY_NAME = (Dialect.PRIMITIVE, Dialect.EXEC)

logger = logging.getLogger(__name__)


def client_for(server: ServerConfig, link: Link, on_message: MessageHandlerFnT) -> Client:
    """Make a client that speaks both generations, keeps no answers, and lets no server use this host's model.

    Entering it connects, which the caller gives a deadline: its own is longer.
    """
    return Client(
        _transport(server, link),
        mode="auto",
        cache=None,
        read_timeout_seconds=2 * server.seconds,
        client_info=Implementation(name="skillwire", version=skillwire.__version__),
        extensions=[] if server.skills.dialect in _BY_NAME else [advertise(EXTENSION, {})],
        message_handler=on_message,
    )


def _transport(server: ServerConfig, link: Link) -> AbstractAsyncContextManager[Streams]:
    endpoint = server.endpoint
    if isinstance(endpoint, StdioEndpoint):
        return stdio_transport(endpoint, link, write_seconds=server.seconds)
    assert isinstance(endpoint, HttpEndpoint), "no MCP is spoken with a web site"
    return http_transport(endpoint, link, seconds=server.seconds, auth=server.auth)


def meaning_of(error: Exception, link: Link) -> SkillError:
    """Say in our words why there is no connection."""
    cause = _innermost(error)
    if isinstance(cause, SkillError):
        return cause
    if isinstance(cause, MCPError) and link.refused_status is not None:
        return NotSignedInError(f"the server turns requests away with HTTP status {link.refused_status}")
    if isinstance(cause, MCPError):
        words = quoted(cause.message[:_LONGEST_WORDS])
        return UnavailableError(f"the server refused the connection with error {cause.code}: {words}")
    logger.debug("a connection ended unexpectedly", exc_info=error)
    return UnavailableError(f"the connection failed: {named(cause)}")


def named(error: Exception) -> str:
    """Name an error we do not know, harmlessly."""
    return quoted(f"{type(error).__name__}: {str(error)[:_LONGEST_WORDS]}")


def _innermost(error: Exception) -> Exception:
    """Return the first real error in a group of groups."""
    while isinstance(error, ExceptionGroup):
        error = cast(ExceptionGroup[Exception], error).exceptions[0]
    return error
