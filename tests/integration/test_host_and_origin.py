"""Under which names a server answers, and to pages of which web sites: `HttpApp` asked in raw headers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import orjson
import pytest

from folders import write_skill
from serving import MODERN, modern
from skillwire.server.access.settings import AccessSettings
from skillwire.server.fast.requests import Message, Scope
from skillwire.server.http.app import HttpApp
from skillwire.server.options import ServeOptions

pytestmark = pytest.mark.anyio

Headers = list[tuple[bytes, bytes]]
LOOPBACK = {"host": "127.0.0.1", "public_url": ""}
EXPOSED = {"host": "0.0.0.0", "public_url": ""}
NAMED = {"host": "0.0.0.0", "public_url": "https://skills.example/mcp"}
BEHIND = {"host": "127.0.0.1", "public_url": "https://skills.example/mcp"}


@asynccontextmanager
async def serving(folder: Path, *, host: str, public_url: str) -> AsyncGenerator[HttpApp]:
    write_skill(folder / "refunds")
    access = AccessSettings(public_url=public_url, allow_anonymous=True)
    async with HttpApp(ServeOptions((folder,), watch=False), host=host, access=access).open() as app:
        yield app


async def status_of(app: HttpApp, method: str, path: str, headers: Headers, body: bytes = b"") -> int:
    """Ask for something, and return with which status that was answered."""
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
    statuses: list[int] = []
    pieces = [body]

    async def receive() -> Message:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(), "more_body": False}
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    with anyio.fail_after(20):
        await app(scope, receive, send)
    assert len(statuses) == 1
    return statuses[0]


async def asked(app: HttpApp, headers: Headers) -> set[int]:
    """Ask for something that is answered at once, and for something the SDK answers."""
    found: set[int] = set()
    for name in ("skills/list", "resources/list"):
        ordinary = [
            (b"content-type", b"application/json"),
            (b"accept", b"application/json, text/event-stream"),
            (b"mcp-protocol-version", MODERN.encode()),
            (b"mcp-method", name.encode()),
        ]
        found.add(await status_of(app, "POST", "/mcp", ordinary + headers, orjson.dumps(modern(name))))
    return found


ASKED: list[tuple[dict[str, str], list[bytes], int]] = [
    (LOOPBACK, [b"host: 127.0.0.1:8000"], 200),
    (LOOPBACK, [b"host: localhost:8000"], 200),
    (LOOPBACK, [b"host: [::1]:8000"], 200),
    (LOOPBACK, [b"host: evil.example:8000"], 421),
    (LOOPBACK, [b"host: localhost.evil.example:8000"], 421),
    (LOOPBACK, [b"host: localhost.:8000"], 421),
    (LOOPBACK, [b"host: 127.0.0.1.evil.example:8000"], 421),
    (LOOPBACK, [b"host: skills.example"], 421),
    (LOOPBACK, [b"host: "], 421),
    (LOOPBACK, [], 421),
    (LOOPBACK, [b"host: localhost:8000", b"origin: http://localhost:3000"], 200),
    (LOOPBACK, [b"host: localhost:8000", b"origin: http://evil.example"], 403),
    (LOOPBACK, [b"host: localhost:8000", b"origin: http://localhost.evil.example:80"], 403),
    (LOOPBACK, [b"host: localhost:8000", b"origin: null"], 403),
    (LOOPBACK, [b"host: localhost:8000", b"origin: file://"], 403),
    (LOOPBACK, [b"host: evil.example:8000", b"origin: http://evil.example:8000"], 421),
    (BEHIND, [b"host: skills.example"], 200),
    (BEHIND, [b"host: localhost:8000"], 200),
    (BEHIND, [b"host: evil.example"], 421),
    (NAMED, [b"host: skills.example"], 200),
    (NAMED, [b"host: skills.example", b"origin: https://skills.example"], 200),
    (NAMED, [b"host: skills.example", b"origin: https://evil.example"], 403),
    (NAMED, [b"host: skills.example", b"origin: https://skills.example.evil.example"], 403),
    (NAMED, [b"host: skills.example", b"origin: https://skills.example:8443"], 403),
    (NAMED, [b"host: skills.example", b"origin: null"], 403),
    (NAMED, [b"host: evil.example", b"origin: https://evil.example"], 421),
    (NAMED, [b"host: evil.example"], 421),
    (NAMED, [b"host: skills.example:8000"], 421),
    (EXPOSED, [b"host: 192.0.2.7:8000"], 200),
    (EXPOSED, [b"host: 192.0.2.7:8000", b"origin: http://192.0.2.7:8000"], 200),
    (EXPOSED, [b"host: 192.0.2.7:8000", b"origin: http://192.0.2.7:3000"], 403),
    (EXPOSED, [b"host: 192.0.2.7:8000", b"origin: http://evil.example"], 403),
    (EXPOSED, [b"host: 192.0.2.7:8000", b"origin: null"], 403),
]


def parsed(lines: list[bytes]) -> Headers:
    pairs = (line.partition(b": ") for line in lines)
    return [(name, value) for name, _, value in pairs]


@pytest.mark.parametrize(
    "server", [LOOPBACK, BEHIND, NAMED, EXPOSED], ids=["loopback", "behind", "named", "exposed"]
)
async def test_a_server_answers_under_its_own_names_and_to_its_own_pages(
    server: dict[str, str], root: Path
) -> None:
    rows = [(lines, expected) for one, lines, expected in ASKED if one is server]
    async with serving(root, **server) as app:
        found = [(lines, await asked(app, parsed(lines))) for lines, _ in rows]

    assert found == [(lines, {expected}) for lines, expected in rows]


@pytest.mark.parametrize("path", ["/", "/mcp", "/metrics", "/no/such"])
@pytest.mark.parametrize("server", [LOOPBACK, NAMED], ids=["loopback", "named"])
async def test_a_page_whose_name_was_made_to_point_here_reads_nothing(
    server: dict[str, str], path: str, root: Path
) -> None:
    headers = [(b"host", b"evil.example:8000"), (b"accept", b"text/html, text/event-stream")]

    async with serving(root, **server) as app:
        statuses = {await status_of(app, method, path, headers) for method in ("GET", "HEAD", "DELETE")}

    assert statuses == {421}
