"""Signing in to an HTTP server: the SDK's OAuth client, with a browser, a redirect and a file."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl

from skillwire.core.characters import quoted
from skillwire.host.connections.endpoints import HttpEndpoint, ServerConfig
from skillwire.host.connections.patience import Patience
from skillwire.host.connections.redirect import HOST, RedirectListener, free_port, redirect_uri
from skillwire.host.connections.throttle import RestartBudget
from skillwire.host.connections.tokens import FileTokenStorage
from skillwire.host.failures import ConfigError

PERSON_SECONDS: Final = 300.0

OpenBrowser = Callable[[str], Awaitable[None]]
"""Shows a web page to the user."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SIGN_INS = 3
_SIGN_IN_WINDOW = 600.0


def oauth_for(
    server: ServerConfig,
    *,
    storage: FileTokenStorage,
    open_browser: OpenBrowser,
    seconds: float = PERSON_SECONDS,
    scope: str | None = None,
) -> httpx2.Auth:
    """Make what signs requests to `server`, and signs the user in when that is needed.

    The user has `seconds` for it, during which no deadline of the server runs.
    However often a server asks, a browser opens only a few times in ten minutes.

    Raises:
        ConfigError: The server is not at a URL.
    """
    endpoint = server.endpoint
    if not isinstance(endpoint, HttpEndpoint):
        raise ConfigError("only servers at a URL can be signed in to", reference=server.label)
    return OAuth(endpoint, storage, open_browser, seconds, scope)


class OAuth(OAuthClientProvider):
    """The SDK's client with our storage and redirect. `patience` holds the deadlines it stops."""

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
            # The port is chosen, or remembered, when it is needed.
            redirect_uris=[AnyUrl(redirect_uri(1))],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            token_endpoint_auth_method="none",
            scope=scope,
        )
        memory = _Memory(storage)
        super().__init__(
            endpoint.url,
            metadata,
            memory,
            redirect_handler=self._note_page,
            callback_handler=self._sign_in,
        )
        memory.context = self.context
        self.patience = Patience()
        self._storage = storage
        self._open_browser = open_browser
        self._seconds = seconds
        self._budget = RestartBudget(_SIGN_INS, _SIGN_IN_WINDOW)
        self._page = ""

    def __repr__(self) -> str:
        return "OAuth(…)"

    async def _note_page(self, page: str) -> None:
        """Keep the address of the page; it is opened when someone listens for what comes back."""
        self._page = page

    async def _sign_in(self) -> AuthorizationCodeResult:
        """Show the page to the user, and wait for the browser to come back.

        Raises:
            OAuthFlowError: Nobody signed in, it was refused, or it has been asked too often.
        """
        page = urlsplit(self._page)
        if page.scheme != "https" and page.hostname not in _LOOPBACK:
            raise OAuthFlowError("the page to sign in on is not protected (https)")
        if self._budget.remaining:
            raise OAuthFlowError("the server asks the user to sign in again and again")
        self._budget.take()
        state = parse_qs(page.query).get("state", [""])[0]
        port = (self.context.client_metadata.redirect_uris or [AnyUrl(redirect_uri(1))])[0].port or 1
        parameters: Mapping[str, str] = {}
        with self.patience.person(self._seconds), anyio.move_on_after(self._seconds):
            parameters = await self._ask(RedirectListener(port, state))
        if not parameters:
            raise OAuthFlowError(f"nobody signed in within {self._seconds:g} seconds")
        if "code" not in parameters:
            raise OAuthFlowError(f"signing in was refused: {quoted(parameters.get('error', 'no reason'))}")
        return AuthorizationCodeResult(
            code=parameters["code"], state=parameters["state"], iss=parameters.get("iss")
        )

    async def _ask(self, listener: RedirectListener) -> Mapping[str, str]:
        """Open the page while someone listens, and return what the browser brings back."""
        failure: OAuthFlowError | None = None
        async with anyio.create_task_group() as tasks:
            try:
                await tasks.start(listener.listen)
                await self._open(self._page)
                await listener.wait()
            except OAuthFlowError as error:
                failure = error
            except OSError:
                failure = OAuthFlowError(f"the port for the redirect to {HOST} is taken; try again")
                # Another port needs another registration.
                self.context.client_info = None
                await self._storage.forget()
                await _use_port(self.context, None)
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return listener.parameters

    async def _open(self, page: str) -> None:
        try:
            await self._open_browser(page)
        except Exception as error:
            raise OAuthFlowError("the page to sign in on could not be opened") from error


class _Memory:
    """Remembers for the SDK's client also what it does not ask for, and forgets over a restart.

    That is when the tokens expire and where they are renewed, so that they are
    renewed instead of the user being asked again, and the port of the redirect
    under which this client is registered.
    """

    def __init__(self, storage: FileTokenStorage) -> None:
        self._storage = storage
        self.context: OAuthContext | None = None

    async def get_tokens(self) -> OAuthToken | None:
        kept = await self._storage.kept()
        if self.context is not None:
            await _use_port(self.context, kept.port if kept.client is not None else None)
            self.context.token_expiry_time = kept.expires_at
            self.context.oauth_metadata = kept.metadata
        return kept.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        metadata = self.context.oauth_metadata if self.context is not None else None
        await self._storage.set_tokens(tokens, metadata=metadata)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return await self._storage.get_client_info()

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        uris = self.context.client_metadata.redirect_uris if self.context is not None else None
        await self._storage.set_client_info(client_info, port=uris[0].port if uris else None)


async def _use_port(context: OAuthContext, port: int | None) -> None:
    """Let the browser come back to `port`, or to one that nobody uses."""
    if port is None:
        port = await anyio.to_thread.run_sync(free_port)
    context.client_metadata.redirect_uris = [AnyUrl(redirect_uri(port))]
