"""A host that knows only a URL signs in to `serve --oidc`: the SDK's client, and its authorization server."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
import uvicorn
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from configs import configured
from folders import write_skill
from integration.approvers import Approver, follow
from integration.issuers import EC, KEYS, signed_with
from integration.peers import BRISK, DEADLINE, config
from programs import http_server
from serving import environment
from skillwire.host.connect.connection import Connection
from skillwire.host.connect.oauth import HOST, FileTokenStorage, free_port, oauth_for
from skillwire.host.model.endpoints import HttpEndpoint

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SEC-14")]

RULES = """
[[rule]]
subjects = ["alice"]
see = ["acme"]
"""


@dataclass
class Issuer(Approver):
    """An authorization server whose access tokens are signed, and say for which server they are."""

    url: str = ""
    resources: tuple[str | None, ...] = ()

    def new_access(self, client_id: str, resource: str | None, expires: int) -> str:
        self.resources = (*self.resources, resource)
        claims = {"iss": self.url, "sub": "alice", "aud": resource, "client_id": client_id, "exp": expires}
        return signed_with(EC, "ES256", {"alg": "ES256", "kid": "ec", "typ": "at+jwt"}, claims)


@contextmanager
def running(issuer: Issuer, port: int) -> Generator[None]:
    """Run an issuer at a port: the SDK's pages for clients, and its keys for servers."""

    def describe(_request: Request) -> JSONResponse:
        return JSONResponse({"issuer": issuer.url, "jwks_uri": issuer.url.rstrip("/") + KEYS})

    def show_keys(_request: Request) -> JSONResponse:
        return JSONResponse({"keys": [{**EC.as_dict(private=False), "kid": "ec", "use": "sig"}]})

    registration = ClientRegistrationOptions(enabled=True)
    pages = create_auth_routes(issuer, AnyHttpUrl(issuer.url), client_registration_options=registration)
    keys = [Route("/.well-known/openid-configuration", describe), Route(KEYS, show_keys)]
    app = Starlette(routes=[*pages, *keys])
    program = uvicorn.Server(uvicorn.Config(app, host=HOST, port=port, log_level="error"))
    thread = threading.Thread(target=program.run)
    thread.start()
    try:
        until = time.monotonic() + DEADLINE
        while not program.started:
            assert time.monotonic() < until
            time.sleep(0.02)
        yield
    finally:
        program.should_exit = True
        thread.join(DEADLINE)


async def test_a_host_is_sent_to_the_issuer_signs_in_and_sees_what_the_rules_allow(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "acme" / "open")
    write_skill(tmp_path / "skills" / "secret" / "plan")
    (tmp_path / "access.toml").write_text(RULES)
    port, issuer_port = free_port(), free_port()
    url = f"http://{HOST}:{port}/mcp"
    issuer = Issuer(url=f"http://{HOST}:{issuer_port}/")  # With the slash, as the SDK's calls itself.
    options = ["--public-url", url, *configured(tmp_path, oidc=issuer.url, access="access.toml")]
    pages: list[str] = []

    async def browser(page: str) -> None:
        pages.append(page)
        await follow(page)

    with (
        running(issuer, issuer_port),
        http_server(
            tmp_path / "skills", *options, env=environment(tmp_path / "home"), bind=f"{HOST}:{port}"
        ) as server,
    ):
        plain = config(HttpEndpoint(url), seconds=20)
        storage = FileTokenStorage(tmp_path / "tokens", plain.origin)
        auth = oauth_for(plain, storage=storage, open_browser=browser, seconds=30)
        with anyio.fail_after(DEADLINE):
            async with Connection(
                config(HttpEndpoint(url), seconds=20, auth=auth), limits=BRISK
            ) as connection:
                found = [entry.uri.path for entry in (await connection.list_skills()).entries]
        assert "Traceback" not in server.words

    assert found == ["acme/open"]
    assert len(pages) == 1 and pages[0].startswith(f"{issuer.url}authorize?")
    assert issuer.resources == (url,)
