"""Servers that cannot be connected to: each cause has its own words and its own remedy, and no others."""

import socket
import sys
from collections.abc import Generator
from pathlib import Path

import anyio
import anyio.abc
import pytest

from integration.cli_world import World
from integration.web_sites import Certificate, Page, WebSite, web_site
from skillwire.core.errors import SkillError
from skillwire.host import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.connect.connection import Connection

DEADLINE = 60

PAGES = {
    "/": Page(b"<html>", 200, {"Content-Type": "text/html; charset=utf-8"}),
    "/page": Page(b"<html>", 200, {"Content-Type": "text/html"}),
    "/gone": Page(b"", 404),
    "/framework": Page(b'{"detail":"Not Found"}', 404, {"Content-Type": "application/json"}),
    "/get-only": Page(b"", 405),
    "/failing": Page(b"oops", 500, {"Content-Type": "text/plain"}),
    "/away": Page(b"<html>", 503, {"Content-Type": "text/html"}),
    "/members": Page(b"", 401, {"WWW-Authenticate": "Bearer"}),
    "/members-json": Page(b'{"error": "no token"}', 401, {"Content-Type": "application/json"}),
    "/forbidden": Page(b"", 403),
    "/busy": Page(b"", 429),
    "/json": Page(b'{"hello": 1}', 200, {"Content-Type": "application/json"}),
    "/broken-json": Page(b"hello", 200, {"Content-Type": "application/json"}),
    "/text": Page(b"hello", 200, {"Content-Type": "text/plain"}),
    "/elsewhere": Page(b"", 307, {"Location": "https://other.example/mcp"}),
    "/moved": Page(b"", 302, {"Location": "/page"}),
    "/misdirected": Page(b"", 307, {"Location": "http://[nowhere"}),
    "/refusing": Page(
        b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "come tomorrow"}}',
        400,
        {"Content-Type": "application/json"},
    ),
}
ANSWERS = [
    ("/", "server-unavailable", "is a web page", "did you mean {url}/mcp?"),
    ("/page", "server-unavailable", "is a web page", "did you mean {url}/mcp?"),
    ("/gone", "server-unavailable", "HTTP status 404", "did you mean {url}/mcp?"),
    ("/framework", "server-unavailable", "HTTP status 404", "did you mean {url}/mcp?"),
    ("/get-only", "server-unavailable", "HTTP status 405", "did you mean {url}/mcp?"),
    ("/mcp", "server-unavailable", "HTTP status 404", "check the host and the port"),
    ("/mcp/", "server-unavailable", "HTTP status 404", "did you mean {url}/mcp?"),
    ("/failing", "server-unavailable", "HTTP status 500", "try again later"),
    ("/away", "server-unavailable", "HTTP status 503", "try again later"),
    ("/members", "not-signed-in", "requires an access token (HTTP status 401)", "Authorization"),
    ("/members-json", "not-signed-in", "requires an access token (HTTP status 401)", "Authorization"),
    ("/forbidden", "not-signed-in", "HTTP status 403", "may use this server"),
    ("/busy", "server-unavailable", "HTTP status 429", "wait"),
    ("/json", "invalid-answer", "not a JSON-RPC message", "did you mean {url}/mcp?"),
    ("/broken-json", "invalid-answer", "not a JSON-RPC message", "did you mean {url}/mcp?"),
    ("/text", "server-unavailable", "it sends 'text/plain'", "did you mean {url}/mcp?"),
    ("/elsewhere", "server-unavailable", "redirects to 'https://other.example/mcp'", "use that address"),
    (
        "/moved",
        "server-unavailable",
        "{url}/page', and redirects with HTTP status 302 are",
        "use that address",
    ),
    ("/misdirected", "server-unavailable", "redirects to 'http://[nowhere'", "use that address"),
    ("/refusing", "server-unavailable", "'come tomorrow'", "log"),
]


@pytest.fixture(scope="module")
def site() -> Generator[WebSite]:
    with web_site() as site:
        site.pages.update(PAGES)
        yield site


async def failure_of(endpoint: HttpEndpoint | StdioEndpoint, *, seconds: float = 30) -> SkillError:
    with anyio.fail_after(DEADLINE):
        async with Connection(ServerConfig("team", endpoint, seconds=seconds)) as connection:
            with pytest.raises(SkillError) as caught:
                await connection.connect()
            return caught.value


@pytest.mark.parametrize(("path", "code", "words", "fix"), ANSWERS, ids=[row[0] for row in ANSWERS])
async def test_an_answer_that_is_not_mcp_is_told_by_what_it_is(
    site: WebSite, path: str, code: str, words: str, fix: str
) -> None:
    failure = await failure_of(HttpEndpoint(f"{site.url}{path}"))

    assert failure.refusal == code
    assert words.format(url=site.url) in str(failure)
    assert fix.format(url=site.url) in failure.fix


async def test_an_address_with_secrets_is_named_without_them(site: WebSite) -> None:
    address = site.url.replace("://", "://me:hunter2@")

    failure = await failure_of(HttpEndpoint(f"{address}/page?key=hunter3"))

    assert f"{site.url}/page (HTTP status 404)" in str(failure)
    assert "hunter" not in f"{failure} {failure.fix}"


async def test_a_refused_connection_an_unknown_host_and_a_lack_of_tls_are_told_apart(site: WebSite) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        refused = await failure_of(HttpEndpoint(f"http://127.0.0.1:{port}/mcp"))
    unknown = await failure_of(HttpEndpoint("http://nowhere.invalid/mcp"))
    plain = await failure_of(HttpEndpoint(f"https://127.0.0.1:{site.port}/mcp"))

    assert (
        f"the connection to 127.0.0.1:{port} was refused" in str(refused)
        and "start the server" in refused.fix
    )
    assert (
        "the host name nowhere.invalid cannot be resolved" in str(unknown)
        and "correct the host" in unknown.fix
    )
    assert "does not support TLS" in str(plain) and "use http://" in plain.fix


async def test_a_failed_tls_handshake_is_told_apart_from_a_lack_of_tls() -> None:
    failure = await failure_with(b"\x15\x03\x03\x00\x02\x02\x28", scheme="https")  # a fatal alert

    assert "the TLS handshake with 127.0.0.1:" in str(failure) and "alert handshake failure'" in str(failure)
    assert "http://" not in failure.fix


async def test_a_certificate_that_is_not_accepted_is_named_as_the_cause(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path, "other.example")
    with web_site(certificate.server) as site:
        failure = await failure_of(HttpEndpoint(f"{site.url}/mcp"))

    assert "the certificate of 127.0.0.1 is not accepted" in str(failure)
    assert "SSL_CERT_FILE" in failure.fix


def test_a_certificate_is_accepted_after_what_the_message_says_was_done(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path, "127.0.0.1")
    with web_site(certificate.server) as site:
        world = World(tmp_path)
        before = world.run("list", f"{site.url}/mcp", "--wait", "60")
        after = world.run("list", f"{site.url}/mcp", "--wait", "60", SSL_CERT_FILE=str(certificate.file))

    assert "is not accepted" in before.err
    assert "HTTP status 404" in after.err


async def failure_with(answer: bytes, *, scheme: str) -> SkillError:
    """Return the failure to connect to a server that sends these bytes and hangs up."""

    async def hang_up(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        if answer:
            await stream.send(answer)
        await stream.aclose()

    failures: list[SkillError] = []
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        failures.append(await failure_of(HttpEndpoint(f"{scheme}://127.0.0.1:{port}/mcp")))
        tasks.cancel_scope.cancel()
    return failures[0]


async def test_who_hangs_up_without_an_answer_may_speak_another_protocol() -> None:
    failure = await failure_with(b"", scheme="http")

    assert "without an HTTP answer" in str(failure)
    assert "https://" in failure.fix


def program(folder: Path, text: str, mode: int = 0o755) -> str:
    path = folder / "server"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


async def test_a_command_that_cannot_be_started_says_what_is_missing(tmp_path: Path) -> None:
    absent = await failure_of(StdioEndpoint("no-such-program-here"))
    homeless = await failure_of(StdioEndpoint(sys.executable, cwd=str(tmp_path / "nowhere")))
    locked = await failure_of(StdioEndpoint(program(tmp_path, "#!/bin/sh\n", 0o644)))

    assert "there is no such program" in str(absent) and "install it" in absent.fix
    assert "folder to start it in does not exist" in str(homeless) and "`cwd`" in homeless.fix
    assert "not executable" in str(locked) and "chmod +x" in locked.fix


async def test_a_command_that_ends_at_once_is_quoted_and_cannot_act_on_a_terminal() -> None:
    code = "import sys; sys.stderr.write('first\\nboom \\x1b[31m\\u202ered\\n'); sys.exit(3)"

    failure = await failure_of(StdioEndpoint(sys.executable, ("-c", code)))

    assert "ended with exit code 3" in str(failure) and "boom" in str(failure)
    assert "\x1b" not in str(failure) and "\u202e" not in str(failure)
    assert "in a terminal" in failure.fix


async def test_output_that_is_not_mcp_is_shown_when_the_server_ends_or_stays_silent() -> None:
    ends = StdioEndpoint(sys.executable, ("-c", "print('usage: \\x1b[1m server [options]')"))
    waits = StdioEndpoint(
        sys.executable, ("-c", "import sys; print('ready to serve', flush=True); sys.stdin.read()")
    )

    ended, silent = await failure_of(ends), await failure_of(waits, seconds=3)

    assert "its output is not MCP: 'usage: " in str(ended) and "\x1b" not in str(ended)
    assert silent.refusal == "too-slow"
    assert "its output is not MCP: 'ready to serve'" in str(silent) and "stdio" in silent.fix


def test_a_token_for_a_typed_address_needs_an_entry_in_the_configuration_first(
    tmp_path: Path, site: WebSite
) -> None:
    world = World(tmp_path)

    typed = world.run("list", f"{site.url}/members")
    world.configure(team={"url": f"{site.url}/members"})
    configured = world.run("list")

    assert f"fix: run `skillwire add LABEL {site.url}/members`, then put" in typed.err
    assert "fix: put" in configured.err and "skillwire add" not in configured.err


@pytest.mark.parametrize("path", ["/", "/json", "/gone", "/elsewhere", "/failing"])
def test_a_command_line_has_one_line_about_it_and_none_of_the_sdk(
    tmp_path: Path, site: WebSite, path: str
) -> None:
    world = World(tmp_path)

    ended = world.run("list", f"{site.url}{path}", "--wait", "60")

    about, summary = ended.err.splitlines()
    assert (ended.code, ended.out, summary) == (1, "", "nothing could be listed")
    assert about.startswith(f"127.0.0.1-{site.port}  MCP server, {site.url}") and "; fix: " in about
    assert "Traceback" not in ended.err and "ERROR" not in ended.err


@pytest.mark.parametrize(
    ("target", "meant"),
    [("localhost:9/mcp", "http://localhost:9/mcp"), ("mcp.example.com", "https://mcp.example.com")],
)
def test_an_address_without_a_scheme_is_asked_about(tmp_path: Path, target: str, meant: str) -> None:
    ended = World(tmp_path).run("list", target)

    assert (ended.code, f"did you mean {meant}?" in ended.err) == (2, True)
