"""Signing in to an HTTP server: the SDK's OAuth client, with a browser, a redirect and token storage."""

import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.abc
import anyio.to_thread
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, BaseModel, ValidationError

from skillwire.core import quoted
from skillwire.host.calls import Deadlines, RestartBudget
from skillwire.host.model import ConfigError, HttpEndpoint, Origin, ServerConfig
from skillwire.host.state.vault import make_folder, read_private, replace

# The local HTTP listener for the OAuth redirect, which serves one request.


CALLBACK: Final = "/callback"
HOST: Final = "127.0.0.1"

_MAX_HEAD_BYTES = 16 * 1024
_HEAD_SECONDS = 10.0
_MAX_CONNECTIONS = 16
_PAGE = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>skillwire</title>"
    "<p>{text} You can close this window.</p></html>"
)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def redirect_uri(port: int) -> str:
    return f"http://{HOST}:{port}{CALLBACK}"


class RedirectListener:
    """Waits on `port` for the request with `state`, and answers all others with 404.

    Without that check, any page in the browser could end the sign-in with its own request.
    """

    def __init__(self, port: int, state: str) -> None:
        self._port = port
        self._state = state
        self._received = anyio.Event()
        self._limiter = anyio.CapacityLimiter(_MAX_CONNECTIONS)
        self.parameters: Mapping[str, str] = {}

    async def listen(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        Raises:
            OSError: The port is in use.
        """
        async with await anyio.create_tcp_listener(local_host=HOST, local_port=self._port) as listener:
            task_status.started()
            await listener.serve(self._handle)

    async def wait(self) -> Mapping[str, str]:
        """Wait for the request, and return its parameters."""
        await self._received.wait()
        return self.parameters

    async def _handle(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                with anyio.move_on_after(_HEAD_SECONDS):
                    async with self._limiter:
                        await self._serve(stream)
            except (anyio.BrokenResourceError, anyio.EndOfStream, OSError):
                pass  # Browsers open connections that they may not use.

    async def _serve(self, stream: anyio.abc.SocketStream) -> None:
        parameters = self._parameters(await _head(stream))
        if parameters is None or self.parameters:
            await stream.send(_page("404 Not Found", "Not found."))
            return
        self.parameters = parameters
        try:
            text = "You are signed in." if "code" in parameters else "Signing in was refused."
            await stream.send(_page("200 OK", text))
        finally:
            # Set after the page is sent, because it ends the listener.
            self._received.set()

    def _parameters(self, head: bytes) -> dict[str, str] | None:
        """Return the parameters of a request if it is the expected one."""
        method, _, rest = head.partition(b" ")
        target = urlsplit(rest.partition(b" ")[0].decode("ascii", "replace"))
        if method != b"GET" or target.path != CALLBACK:
            return None
        found = {name: values[0] for name, values in parse_qs(target.query, max_num_fields=32).items()}
        return found if found.get("state") == self._state else None


async def _head(stream: anyio.abc.SocketStream) -> bytes:
    """Read a request up to the end of its head, within a limit."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) <= _MAX_HEAD_BYTES:
        head += await stream.receive(4096)
    return head


def _page(status: str, text: str) -> bytes:
    body = _PAGE.format(text=text).encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Content-Security-Policy: default-src 'none'\r\nCache-Control: no-store\r\n"
        "Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    ).encode() + body


# Storage for OAuth tokens: one file per origin, readable only by this user.


FORMAT = 1
MAX_TOKEN_BYTES = 256 * 1024

logger = logging.getLogger(__name__)


class StoredTokens(BaseModel):
    """The content of a token file.

    The time of expiry and the server's metadata are needed to refresh tokens
    after a restart, and the port for a redirect that the server accepts.
    """

    format: int = FORMAT
    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    expires_at: float | None = None
    metadata: OAuthMetadata | None = None
    port: int | None = None


class FileTokenStorage:
    """The tokens for one origin, with the storage interface of the SDK's OAuth client.

    The name of the file is the origin's fingerprint, so a label that is moved to
    another endpoint finds no tokens. The content is never shown.
    """

    def __init__(self, directory: Path, origin: Origin) -> None:
        self._path = directory / f"{origin.fingerprint.removeprefix('sha256:')}.json"
        self._lock = anyio.Lock()

    def __repr__(self) -> str:
        return "FileTokenStorage(…)"

    async def load(self) -> StoredTokens:
        """Return the content of the file; empty if it is missing, not owned by this user, or not readable."""
        return await anyio.to_thread.run_sync(self._read)

    async def get_tokens(self) -> OAuthToken | None:
        return (await self.load()).tokens

    async def set_tokens(self, tokens: OAuthToken, *, metadata: OAuthMetadata | None = None) -> None:
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await self._update(tokens=tokens, expires_at=expires_at, metadata=metadata)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return (await self.load()).client

    async def set_client_info(
        self, client_info: OAuthClientInformationFull, *, port: int | None = None
    ) -> None:
        await self._update(client=client_info, port=port)

    async def forget(self) -> None:
        """Delete the file, as when the user removes the server."""
        async with self._lock:
            await anyio.to_thread.run_sync(lambda: self._path.unlink(missing_ok=True))

    async def _update(self, **changes: Any) -> None:
        """Update some members of the file.

        Raises:
            OSError: It cannot be written; its content is unchanged.
        """
        async with self._lock:
            stored = await self.load()
            await anyio.to_thread.run_sync(self._write, stored.model_copy(update=changes))

    def _read(self) -> StoredTokens:
        try:
            data = read_private(self._path, most=MAX_TOKEN_BYTES, secret=True)
            stored = StoredTokens() if data is None else StoredTokens.model_validate_json(data)
            return stored if stored.format == FORMAT else StoredTokens()
        except ValidationError:
            # The error would show the content.
            logger.warning("a server's token file is invalid; signing in is required")
            return StoredTokens()
        except (OSError, ValueError) as error:
            logger.warning("a server's token file is not used: %s", error)
            return StoredTokens()

    def _write(self, stored: StoredTokens) -> None:
        make_folder(self._path.parent)
        replace(self._path, stored.model_dump_json(exclude_none=True).encode())


SIGN_IN_SECONDS: Final = 300.0

OpenBrowser = Callable[[str], Awaitable[None]]
"""Opens a web page for the user."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_MAX_SIGN_INS = 3
_SIGN_IN_WINDOW = 600.0


def oauth_for(
    server: ServerConfig,
    *,
    storage: FileTokenStorage,
    open_browser: OpenBrowser,
    seconds: float = SIGN_IN_SECONDS,
    scope: str | None = None,
) -> httpx2.Auth:
    """Return the authorization for requests to `server`, which signs the user in when needed.

    The user has `seconds` for it, during which all deadlines of the server are
    paused. The browser is opened only a few times in ten minutes.

    Raises:
        ConfigError: The server has no URL.
    """
    endpoint = server.endpoint
    if not isinstance(endpoint, HttpEndpoint):
        raise ConfigError("signing in is possible only for servers with a URL", reference=server.label)
    return OAuth(endpoint, storage, open_browser, seconds, scope)


class OAuth(OAuthClientProvider):
    """The SDK's client with our storage and redirect. `deadlines` are paused while the user signs in."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        storage: FileTokenStorage,
        open_browser: OpenBrowser,
        seconds: float,
        scope: str | None,
    ) -> None:
        metadata = OAuthClientMetadata(
            client_name="skillwire",
            # The port is set later, when it is needed.
            redirect_uris=[AnyUrl(redirect_uri(1))],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            token_endpoint_auth_method="none",
            scope=scope,
        )
        memory = _ContextStorage(storage)
        super().__init__(
            endpoint.url,
            metadata,
            memory,
            redirect_handler=self._set_page,
            callback_handler=self._sign_in,
        )
        memory.context = self.context
        self.deadlines = Deadlines()
        self._storage = storage
        self._open_browser = open_browser
        self._seconds = seconds
        self._budget = RestartBudget(_MAX_SIGN_INS, _SIGN_IN_WINDOW)
        self._page = ""

    def __repr__(self) -> str:
        return "OAuth(…)"

    async def _set_page(self, page: str) -> None:
        """Store the address of the page; it is opened when the listener for the redirect runs."""
        self._page = page

    async def _sign_in(self) -> AuthorizationCodeResult:
        """Open the page, and wait for the redirect.

        Raises:
            OAuthFlowError: The user did not sign in, was refused, or was asked too often.
        """
        page = urlsplit(self._page)
        if page.scheme != "https" and page.hostname not in _LOOPBACK:
            raise OAuthFlowError("the sign-in page does not use https")
        if self._budget.remaining:
            raise OAuthFlowError("the server asked the user to sign in too often")
        self._budget.record()
        state = parse_qs(page.query).get("state", [""])[0]
        port = (self.context.client_metadata.redirect_uris or [AnyUrl(redirect_uri(1))])[0].port or 1
        parameters: Mapping[str, str] = {}
        with self.deadlines.pause(self._seconds), anyio.move_on_after(self._seconds):
            parameters = await self._await_redirect(RedirectListener(port, state))
        if not parameters:
            raise OAuthFlowError(f"the user did not sign in within {self._seconds:g} seconds")
        if "code" not in parameters:
            raise OAuthFlowError(f"signing in was refused: {quoted(parameters.get('error', 'no reason'))}")
        return AuthorizationCodeResult(
            code=parameters["code"], state=parameters["state"], iss=parameters.get("iss")
        )

    async def _await_redirect(self, listener: RedirectListener) -> Mapping[str, str]:
        """Open the page while the listener runs, and return the parameters of the redirect."""
        failure: OAuthFlowError | None = None
        async with anyio.create_task_group() as tasks:
            try:
                await tasks.start(listener.listen)
                await self._open_page(self._page)
                await listener.wait()
            except OAuthFlowError as error:
                failure = error
            except OSError:
                failure = OAuthFlowError(f"the port for the redirect to {HOST} is in use; try again")
                # Another port needs another registration.
                self.context.client_info = None
                await self._storage.forget()
                await _use_port(self.context, None)
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return listener.parameters

    async def _open_page(self, page: str) -> None:
        try:
            await self._open_browser(page)
        except Exception as error:
            raise OAuthFlowError("the sign-in page could not be opened") from error


class _ContextStorage:
    """Token storage that also stores the parts of the OAuth context that the SDK loses on a restart.

    These are the expiry time and the server's metadata, so that tokens can be
    refreshed without signing in again, and the port of the registered redirect.
    """

    def __init__(self, storage: FileTokenStorage) -> None:
        self._storage = storage
        self.context: OAuthContext | None = None

    async def get_tokens(self) -> OAuthToken | None:
        stored = await self._storage.load()
        if self.context is not None:
            await _use_port(self.context, stored.port if stored.client is not None else None)
            self.context.token_expiry_time = stored.expires_at
            self.context.oauth_metadata = stored.metadata
        return stored.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        metadata = self.context.oauth_metadata if self.context is not None else None
        await self._storage.set_tokens(tokens, metadata=metadata)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return await self._storage.get_client_info()

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        uris = self.context.client_metadata.redirect_uris if self.context is not None else None
        await self._storage.set_client_info(client_info, port=uris[0].port if uris else None)


async def _use_port(context: OAuthContext, port: int | None) -> None:
    """Set the port of the redirect to `port`, or to a free one."""
    if port is None:
        port = await anyio.to_thread.run_sync(free_port)
    context.client_metadata.redirect_uris = [AnyUrl(redirect_uri(port))]
