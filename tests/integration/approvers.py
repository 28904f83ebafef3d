"""The SDK's authorization server, which says yes to everyone, and a browser that follows its pages."""

import time
from dataclasses import dataclass, field
from typing import Any

import httpx2
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken


@dataclass
class Approver(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """An authorization server that says yes to everyone, or no."""

    refuses: bool = False
    lifetime: int = 3600
    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict[str, Any])
    codes: dict[str, AuthorizationCode] = field(default_factory=dict[str, Any])
    tokens: dict[str, AccessToken] = field(default_factory=dict[str, Any])
    renewals: dict[str, RefreshToken] = field(default_factory=dict[str, Any])
    refreshed: int = 0

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id or ""] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        redirect = str(params.redirect_uri)
        if self.refuses:
            return construct_redirect_uri(redirect, error="access_denied", state=params.state)
        code = f"code-{len(self.codes)}-{time.monotonic_ns()}"
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id or "",
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(redirect, code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.renewals.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.refreshed += 1
        return self._issue(client, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.tokens.pop(token.token, None)

    def new_access(self, client_id: str, resource: str | None, expires: int) -> str:
        """Make an access token."""
        return f"secret-access-{len(self.tokens)}-{time.monotonic_ns()}"

    def _issue(
        self, client: OAuthClientInformationFull, scopes: list[str], resource: str | None
    ) -> OAuthToken:
        client_id, expires = client.client_id or "", int(time.time()) + self.lifetime
        access = self.new_access(client_id, resource, expires)
        renewal = f"secret-refresh-{len(self.tokens)}-{time.monotonic_ns()}"
        self.tokens[access] = AccessToken(
            token=access, client_id=client_id, scopes=scopes, expires_at=expires
        )
        self.renewals[renewal] = RefreshToken(
            token=renewal, client_id=client_id, scopes=scopes, resource=resource
        )
        return OAuthToken(
            access_token=access,
            expires_in=self.lifetime,
            refresh_token=renewal,
            scope=" ".join(scopes) or None,
        )


async def follow(page: str) -> None:
    """Do what a browser does whose user always says yes."""
    async with httpx2.AsyncClient(follow_redirects=True) as client:
        response = await client.get(page)
        assert response.status_code == 200
