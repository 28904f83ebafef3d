"""Signing in to a server that wants it: the SDK's authorization server, and a program for a browser."""

import socket
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import orjson
import pytest
import uvicorn
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl

from folders import write_skill
from integration.approvers import Approver, follow
from integration.peers import BRISK, DEADLINE, config
from skillwire.host.connect.connection import Connection
from skillwire.host.connect.oauth import HOST, FileTokenStorage, free_port, oauth_for
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.model.errors import ConfigError, UnavailableError
from skillwire.server import add_skills

pytestmark = pytest.mark.anyio

Browser = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class Guarded:
    """A server that wants everyone to sign in."""

    url: str
    approver: Approver


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    write_skill(tmp_path / "skills" / "one")
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        base = f"http://{HOST}:{listener.getsockname()[1]}"
        approver = Approver()
        settings = AuthSettings(
            issuer_url=AnyHttpUrl(base),
            resource_server_url=AnyHttpUrl(f"{base}/mcp"),
            client_registration_options=ClientRegistrationOptions(enabled=True),
            validate_token_resource=False,
        )
        server: MCPServer[Any] = MCPServer("guarded", auth_server_provider=approver, auth=settings)
        add_skills(server, tmp_path / "skills", watch=False)
        app = server.streamable_http_app(stateless_http=True, json_response=True)
        program = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        thread = threading.Thread(target=program.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Guarded(f"{base}/mcp", approver)
        finally:
            program.should_exit = True
            thread.join(DEADLINE)


def signed(
    guarded: Guarded, folder: Path, browser: Browser, *, seconds: float = 30, server_seconds: float = 20
) -> ServerConfig:
    """Return the server with someone who signs in, as after a start of the program."""
    plain = config(HttpEndpoint(guarded.url), seconds=server_seconds)
    storage = FileTokenStorage(folder / "tokens", plain.origin)
    auth = oauth_for(plain, storage=storage, open_browser=browser, seconds=seconds)
    return config(HttpEndpoint(guarded.url), seconds=server_seconds, auth=auth)


async def never(page: str) -> None:
    raise AssertionError(f"nobody should be asked, but here is {page}")


async def listed(server: ServerConfig) -> int:
    with anyio.fail_after(DEADLINE):
        async with Connection(server, limits=BRISK) as connection:
            return len((await connection.list_skills()).entries)


async def test_signing_in_once_is_enough_even_for_the_next_start(tmp_path: Path, guarded: Guarded) -> None:
    pages: list[str] = []

    async def browser(page: str) -> None:
        pages.append(page)
        await follow(page)

    assert await listed(signed(guarded, tmp_path, browser)) == 1
    assert await listed(signed(guarded, tmp_path, never)) == 1

    assert len(pages) == 1
    assert "code_challenge_method=S256" in pages[0]
    assert len(guarded.approver.clients) == 1


async def test_tokens_are_for_this_user_alone_and_never_shown(tmp_path: Path, guarded: Guarded) -> None:
    server = signed(guarded, tmp_path, follow)
    await listed(server)

    (file,) = (tmp_path / "tokens").iterdir()
    assert file.name == f"{server.origin.fingerprint.removeprefix('sha256:')}.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "secret-access" in file.read_text()
    shown = f"{server!r} {server.auth!r} {FileTokenStorage(tmp_path / 'tokens', server.origin)!r}"
    assert "secret" not in shown


async def test_tokens_that_expired_meanwhile_are_renewed_without_asking(
    tmp_path: Path, guarded: Guarded
) -> None:
    await listed(signed(guarded, tmp_path, follow))
    (file,) = (tmp_path / "tokens").iterdir()
    kept = orjson.loads(file.read_bytes())
    file.write_bytes(orjson.dumps({**kept, "expires_at": time.time() - 10}))
    guarded.approver.tokens.clear()

    assert await listed(signed(guarded, tmp_path, never)) == 1

    assert guarded.approver.refreshed == 1


async def test_tokens_the_server_no_longer_takes_need_a_new_sign_in_but_no_new_registration(
    tmp_path: Path, guarded: Guarded
) -> None:
    await listed(signed(guarded, tmp_path, follow))
    guarded.approver.tokens.clear()
    guarded.approver.renewals.clear()

    assert await listed(signed(guarded, tmp_path, follow)) == 1

    assert len(guarded.approver.clients) == 1


async def test_the_servers_deadline_stands_still_while_a_person_signs_in(
    tmp_path: Path, guarded: Guarded
) -> None:
    async def slow(page: str) -> None:
        await anyio.sleep(3)
        await follow(page)

    assert await listed(signed(guarded, tmp_path, slow, server_seconds=1.5)) == 1


async def test_when_nobody_signs_in_the_server_is_unavailable(tmp_path: Path, guarded: Guarded) -> None:
    async def away(page: str) -> None:
        pass

    start = anyio.current_time()
    with pytest.raises(UnavailableError, match="did not sign in"):
        await listed(signed(guarded, tmp_path, away, seconds=0.5))

    assert anyio.current_time() - start < 10


async def test_a_refusal_is_told_as_one(tmp_path: Path, guarded: Guarded) -> None:
    guarded.approver.refuses = True

    with pytest.raises(UnavailableError, match="access_denied"):
        await listed(signed(guarded, tmp_path, follow))


async def test_a_browser_that_cannot_be_opened_is_told(tmp_path: Path, guarded: Guarded) -> None:
    async def broken(page: str) -> None:
        raise RuntimeError("no display")

    with pytest.raises(UnavailableError, match="could not be opened"):
        await listed(signed(guarded, tmp_path, broken))


async def test_a_page_that_guesses_cannot_end_a_sign_in(tmp_path: Path, guarded: Guarded) -> None:
    async def beset(page: str) -> None:
        redirect = httpx2.URL(page).params["redirect_uri"]
        async with httpx2.AsyncClient() as client:
            for query in ("code=mine&state=guess", "error=access_denied", ""):
                assert (await client.get(f"{redirect}?{query}")).status_code == 404
            assert (await client.post(redirect, content=b"state")).status_code == 404
        address = httpx2.URL(redirect)
        async with await anyio.connect_tcp(HOST, address.port or 0) as idle:
            await idle.send(b"GET ")
            await follow(page)

    assert await listed(signed(guarded, tmp_path, beset)) == 1


async def test_a_taken_port_needs_another_try_and_then_works(
    tmp_path: Path, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as squatter:
        squatter.bind((HOST, 0))
        squatter.listen()
        ports = iter([squatter.getsockname()[1]])
        name = "skillwire.host.connect.oauth.free_port"
        monkeypatch.setattr(name, lambda: next(ports, None) or free_port())
        server = signed(guarded, tmp_path, follow)
        with anyio.fail_after(DEADLINE):
            async with Connection(server, limits=BRISK) as connection:
                with pytest.raises(UnavailableError, match="in use"):
                    await connection.connect()

                await connection.connect(at_once=True)

                assert len((await connection.list_skills()).entries) == 1


async def test_a_server_cannot_open_browsers_without_end(tmp_path: Path, guarded: Guarded) -> None:
    opened: list[str] = []
    guarded.approver.refuses = True

    async def browser(page: str) -> None:
        opened.append(page)
        await follow(page)

    server = signed(guarded, tmp_path, browser)
    with anyio.fail_after(DEADLINE):
        async with Connection(server, limits=BRISK) as connection:
            for _ in range(8):
                with pytest.raises(UnavailableError):
                    await connection.connect(at_once=True)

    assert len(opened) == 3


async def test_a_page_that_is_not_protected_is_not_opened(tmp_path: Path) -> None:
    plain = config(HttpEndpoint("http://example.org/mcp"))
    storage = FileTokenStorage(tmp_path, plain.origin)
    auth: Any = oauth_for(plain, storage=storage, open_browser=never)

    await auth.context.redirect_handler("http://example.org/authorize?state=x")
    with pytest.raises(Exception, match="does not use https"):
        await auth.context.callback_handler()


def test_only_servers_at_a_url_are_signed_in_to(tmp_path: Path) -> None:
    server = config(StdioEndpoint("program"))

    with pytest.raises(ConfigError):
        oauth_for(server, storage=FileTokenStorage(tmp_path, server.origin), open_browser=never)
