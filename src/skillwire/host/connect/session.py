"""The MCP client of one link: its capabilities and transport, and the translation of its errors."""

import logging
from contextlib import AbstractAsyncContextManager
from typing import Final, cast

from mcp.client import Client
from mcp.client.extension import advertise
from mcp.client.session import MessageHandlerFnT
from mcp.shared.exceptions import MCPError
from mcp.types import Implementation

from skillwire.core import Dialect, SkillError, __version__, quoted, visible
from skillwire.host.calls import ServerLink, Streams
from skillwire.host.connect.diagnosis import not_mcp, sign_in_fix
from skillwire.host.connect.http import http_transport
from skillwire.host.connect.stdio import stdio_transport
from skillwire.host.model import (
    HttpEndpoint,
    NotSignedInError,
    PeerError,
    ServerConfig,
    StdioEndpoint,
    UnavailableError,
)
from skillwire.wire.core import EXTENSION

_MAX_MESSAGE_LENGTH = 500
_LOG_FIX = "check the server's log"
# Messages of the SDK for responses with only an HTTP status, or a body that is not a message.
_FAILED = "Server returned an error response"
_SDK_MESSAGES = frozenset({"Not Found", "Session terminated", _FAILED})
_NO_CONTENT = "Unexpected content type"
_NO_MESSAGE = "Failed to parse JSON response"
# A server that supports both families uses the one that the client declared for `skills/list` (NEG-15).
_BY_NAME = (Dialect.PRIMITIVE, Dialect.EXEC)

logger = logging.getLogger(__name__)


def client_for(server: ServerConfig, link: ServerLink, on_message: MessageHandlerFnT) -> Client:
    """Return a client for both protocol generations, without a cache and without sampling.

    Entering it connects; the caller sets the deadline for that.
    """
    return Client(
        _transport(server, link),
        mode="auto",
        cache=None,
        read_timeout_seconds=2 * server.seconds,
        client_info=Implementation(name="skillwire", version=__version__),
        extensions=[] if server.skills.dialect in _BY_NAME else [advertise(EXTENSION, {})],
        message_handler=on_message,
    )


def _transport(server: ServerConfig, link: ServerLink) -> AbstractAsyncContextManager[Streams]:
    endpoint = server.endpoint
    if isinstance(endpoint, StdioEndpoint):
        return stdio_transport(endpoint, link, write_seconds=server.seconds)
    assert isinstance(endpoint, HttpEndpoint), "web sites are not MCP servers"
    return http_transport(endpoint, link, seconds=server.seconds, auth=server.auth)


def connection_failure(error: Exception, link: ServerLink, server: ServerConfig) -> SkillError:
    """Return the failure for an exception that ended a connection."""
    cause = _innermost(error)
    if isinstance(cause, SkillError):
        return cause
    if isinstance(cause, MCPError):
        return _refused(cause, link, server)
    logger.debug("a connection ended unexpectedly", exc_info=error)
    return UnavailableError(f"the connection failed: {describe_error(cause)}", fix=_LOG_FIX)


def _refused(error: MCPError, link: ServerLink, server: ServerConfig) -> SkillError:
    """Return why a server did not accept a connection, preferably with its own message."""
    if link.rejection is not None:
        has_own_message = link.has_json_body and error.message not in _SDK_MESSAGES
        if isinstance(link.rejection, NotSignedInError) and not server.is_label_given:
            assert isinstance(server.endpoint, HttpEndpoint), "only HTTP answers are rejected"
            link.rejection.fix = sign_in_fix(server.endpoint)
        if isinstance(link.rejection, NotSignedInError) or not has_own_message:
            return link.rejection
    if isinstance(server.endpoint, HttpEndpoint) and error.message.startswith(_NO_MESSAGE):
        return not_mcp(server.endpoint)
    text = quoted(error.message[:_MAX_MESSAGE_LENGTH])
    return UnavailableError(
        f"the server refused the connection with error {error.code}: {text}", fix=_LOG_FIX
    )


def request_failure(error: PeerError, link: ServerLink) -> SkillError:
    """Return why a request failed: how the link ended, the HTTP status, or the server's error."""
    if link.failure is not None:
        return link.failure
    message = error.__cause__.message if isinstance(error.__cause__, MCPError) else ""
    is_stand_in = message == _FAILED or message.startswith(_NO_CONTENT)
    return link.rejection if is_stand_in and link.rejection is not None else error


def describe_error(error: Exception) -> str:
    """Return the type and message of an unexpected error, escaped."""
    return quoted(f"{type(error).__name__}: {str(error)[:_MAX_MESSAGE_LENGTH]}")


def _innermost(error: Exception) -> Exception:
    """Return the first error in nested exception groups."""
    while isinstance(error, ExceptionGroup):
        error = cast(ExceptionGroup[Exception], error).exceptions[0]
    return error


# Escaping of text from servers in the log records of the MCP SDK.


LOGGERS: Final = (
    "mcp.client.auth.oauth2",
    "mcp.client.client",
    "mcp.client.session",
    "mcp.client.stdio",
    "mcp.client.streamable_http",
    "mcp.client.subscriptions",
    "mcp.shared.jsonrpc_dispatcher",
)

_MAX_LINE_LENGTH = 500
_MAX_LINES = 50


class _EscapingFilter(logging.Filter):
    """Escapes control and invisible characters in log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _escaped(record.getMessage()), ()
        if record.exc_info:
            lines = logging.Formatter().formatException(record.exc_info).splitlines()
            record.exc_text = "\n".join(map(_escaped, lines[-_MAX_LINES:]))
            record.exc_info = None
        return True


_FILTER = _EscapingFilter()


def escape_sdk_logs() -> None:
    """Add the escaping filter to the SDK's loggers; calling it twice has no effect."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)


def _escaped(text: str) -> str:
    return visible(text, most=_MAX_LINE_LENGTH)
