"""Error messages for connections that fail: each cause with a remedy.

Addresses are shown without user name, password and query. Text from a server
is quoted: short, escaped and on one line.
"""

import errno
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast
from urllib.parse import urljoin, urlsplit

import httpx2

from skillwire.core import SkillError, quoted
from skillwire.host.model import (
    HttpEndpoint,
    InvalidAnswerError,
    NotSignedInError,
    StdioEndpoint,
    UnavailableError,
)

MCP_PATH: Final = "/mcp"
"""The usual path of MCP servers, suggested for addresses without it."""

_TOKEN_FIX = (
    'put "headers": {"Authorization": "Bearer ${TOKEN}"} into the server\'s entry in .mcp.json, '
    "and set TOKEN to a token that its operator gives you"
)
_LOG_FIX = "try again later; the server's log says why"
_MESSAGES = ("application/json", "text/event-stream")
_MAX_DEPTH = 20
# OpenSSL's reasons for an answer that is not a TLS record.
_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}
)


def rejection_of(response: httpx2.Response, endpoint: HttpEndpoint) -> SkillError | None:
    """Return the failure that an HTTP response indicates; None if it may hold a message."""
    status = response.status_code
    if response.has_redirect_location:
        return _redirect(response, endpoint)
    if status >= 400:
        return _error_status(status, endpoint)
    content_type = response.headers.get("content-type", "").strip().lower()
    if status in (202, 204) or content_type.startswith(_MESSAGES):
        return None
    if "html" in content_type:
        return UnavailableError(
            f"{endpoint.shown} is a web page, not an MCP server", fix=_address_fix(endpoint)
        )
    kind = quoted(content_type[:100]) if content_type else "no content type"
    return UnavailableError(
        f"{endpoint.shown} does not answer as an MCP server does: it sends {kind}", fix=_address_fix(endpoint)
    )


def sign_in_fix(endpoint: HttpEndpoint) -> str:
    """Return how to pass a token to a server that has no entry in the configuration yet."""
    return f"run `skillwire add LABEL {endpoint.shown}`, then {_TOKEN_FIX}"


def not_mcp(endpoint: HttpEndpoint) -> SkillError:
    """Return the failure for an answer that is JSON but not an MCP message."""
    return InvalidAnswerError(
        f"{endpoint.shown} does not answer as an MCP server does: its JSON is not a JSON-RPC message",
        fix=_address_fix(endpoint),
    )


def network_failure(error: httpx2.HTTPError, endpoint: HttpEndpoint, connect_seconds: float) -> SkillError:
    """Return the failure for a request that could not be sent, or whose answer was not received."""
    address = _host_and_port(endpoint)
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _bad_certificate(cause, endpoint)
        if isinstance(cause, ssl.SSLError):
            return _failed_handshake(cause, endpoint)
        if isinstance(cause, socket.gaierror):
            return UnavailableError(
                f"the server cannot be reached: the host name {_host(endpoint)} cannot be resolved",
                fix="correct the host in the address, or check the network",
            )
        if isinstance(cause, ConnectionRefusedError):
            return UnavailableError(
                f"the server cannot be reached: the connection to {address} was refused",
                fix="start the server, or correct the port in its address",
            )
    if isinstance(error, httpx2.ConnectTimeout):
        return UnavailableError(
            f"the server cannot be reached: no connection to {address} within {connect_seconds:g} seconds",
            fix="check the address, the network, and whether a firewall is in between",
        )
    if isinstance(error, httpx2.RemoteProtocolError):
        other = "https" if urlsplit(endpoint.url).scheme == "http" else "http"
        return UnavailableError(
            f"the server cannot be reached: {address} closed the connection without an HTTP answer",
            fix=f"correct the port, or use {other}:// in the address if that is what the server speaks",
        )
    return UnavailableError(
        f"the server cannot be reached: {_error_name(error)}: {quoted(str(error))}",
        fix="check the address and the network",
    )


def not_started(error: OSError, endpoint: StdioEndpoint) -> SkillError:
    """Return the failure for a command that cannot be started; without paths, because a model may read it."""
    reason, fix = error.strerror or type(error).__name__, "check the command and its folder"
    if endpoint.cwd is not None and not Path(endpoint.cwd).is_dir():
        reason, fix = "the folder to start it in does not exist", "correct `cwd` in the configuration"
    elif error.errno == errno.ENOENT:
        reason, fix = "there is no such program", "install it, correct its name, or use its full path"
    elif error.errno == errno.EACCES:
        reason = "it is not executable"
        fix = "make it executable with chmod +x, or put its interpreter before it in the command"
    elif error.errno == errno.ENOEXEC:
        reason = "it is not a program for this system"
        fix = "start the file with #! and its interpreter, or put the interpreter before it in the command"
    return UnavailableError(f"the server's command cannot be started: {reason}", fix=fix)


def _error_status(status: int, endpoint: HttpEndpoint) -> SkillError:
    if status == 401:
        return NotSignedInError("the server requires an access token (HTTP status 401)", fix=_TOKEN_FIX)
    if status == 403:
        return NotSignedInError(
            "the server does not allow this access (HTTP status 403)",
            fix="check that the token in the server's `headers` is valid and may use this server",
        )
    if status == 405:
        message = f"{endpoint.shown} does not accept MCP requests (HTTP status 405)"
        return UnavailableError(message, fix=_address_fix(endpoint))
    if status in (404, 410):
        message = f"the server has nothing at {endpoint.shown} (HTTP status {status})"
        return UnavailableError(message, fix=_address_fix(endpoint))
    if status == 429:
        return UnavailableError(
            "the server received too many requests (HTTP status 429)", fix="wait a while, then try again"
        )
    if status >= 500:
        return UnavailableError(f"the server failed (HTTP status {status})", fix=_LOG_FIX)
    return UnavailableError(f"the server rejects requests (HTTP status {status})", fix=_address_fix(endpoint))


def _redirect(response: httpx2.Response, endpoint: HttpEndpoint) -> SkillError:
    """Return the failure for a redirect that is not followed: to another server, or without the message."""
    location = response.headers.get("location", "")
    try:
        target = urljoin(endpoint.shown, location)
        is_same_server = urlsplit(target)[:2] == urlsplit(endpoint.shown)[:2]
    except ValueError:
        target, is_same_server = location, False
    words = f"{endpoint.shown} redirects to {quoted(target[:200])}, and redirects"
    if is_same_server:
        return UnavailableError(
            f"{words} with HTTP status {response.status_code} are not followed",
            fix="use that address instead, if an MCP server is there",
        )
    return UnavailableError(
        f"{words} to other servers are not followed",
        fix="use that address instead, if you know that it belongs to the same server",
    )


def _failed_handshake(error: ssl.SSLError, endpoint: HttpEndpoint) -> SkillError:
    address = _host_and_port(endpoint)
    if error.reason in _NOT_TLS:
        return UnavailableError(
            f"the server cannot be reached: {address} does not support TLS, which https needs",
            fix="use http:// in the address if the server is not encrypted, or correct the port",
        )
    reason = quoted((error.reason or str(error)).replace("_", " ").lower())
    return UnavailableError(
        f"the server cannot be reached: the TLS handshake with {address} failed: {reason}",
        fix="ask the server's operator which TLS versions and client certificates it accepts",
    )


def _bad_certificate(error: ssl.SSLCertVerificationError, endpoint: HttpEndpoint) -> SkillError:
    reason = quoted(error.verify_message or "it cannot be verified")
    return UnavailableError(
        f"the server cannot be reached: the certificate of {_host(endpoint)} is not accepted: {reason}",
        fix="correct the host in the address; to trust an authority of your own, add its certificate to "
        "those of the system, or set SSL_CERT_FILE to its file on Linux",
    )


def _address_fix(endpoint: HttpEndpoint) -> str:
    parts = urlsplit(endpoint.shown)
    root = f"{parts.scheme}://{parts.netloc}{MCP_PATH}"
    if parts.path in ("", "/"):
        return f"did you mean {root}?"
    if parts.path == MCP_PATH:
        return (
            "check the host and the port of the address, and that an MCP server with streamable HTTP is there"
        )
    return f"check the path of the address; did you mean {root}?"


def _host_and_port(endpoint: HttpEndpoint) -> str:
    return urlsplit(endpoint.shown).netloc


def _host(endpoint: HttpEndpoint) -> str:
    return urlsplit(endpoint.shown).hostname or ""


def _causes(error: BaseException, depth: int = 0) -> Iterator[BaseException]:
    """Yield an error, its causes, and the members of exception groups."""
    yield error
    if depth == _MAX_DEPTH:
        return
    if isinstance(error, BaseExceptionGroup):
        for member in cast(BaseExceptionGroup[BaseException], error).exceptions:
            yield from _causes(member, depth + 1)
    below = error.__cause__ or error.__context__
    if below is not None:
        yield from _causes(below, depth + 1)


def _error_name(error: httpx2.HTTPError) -> str:
    """Return the name of an error as words: `ConnectTimeout` becomes `connect timeout`."""
    name = type(error).__name__.removesuffix("Error")
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
