"""Two servers that differ in what a caller may not see: whoever cannot tell them apart was told nothing."""

import hashlib
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import orjson

from folders import skill_md, write_files
from integration.both_paths import Outcome, exchange
from integration.odd_requests import HttpRequest
from serving import MODERN, handshake, modern
from skillwire.server.access.settings import AccessSettings
from skillwire.server.fast.requests import Message
from skillwire.server.http.app import HttpApp
from skillwire.server.options import ServeOptions

RULES = """
[[rule]]
tokens = ["few"]
see = ["acme"]
run = ["acme/tools"]

[[rule]]
tokens = ["many"]
see = ["*"]
run = ["*"]
operate = true
"""

OPEN: Mapping[str, str | bytes] = {
    "acme/open/SKILL.md": skill_md("open"),
    "acme/open/references/guide.md": "Read this.\n",
    "acme/tools/SKILL.md": skill_md("tools"),
    "acme/tools/scripts/hello.py": "print('{}')\n",
    "acme/group/one/SKILL.md": skill_md("one"),
    "acme/group/two/SKILL.md": skill_md("two", extra="metadata: {skillwire/related: plan}\n"),
}
SECRET: Mapping[str, str | bytes] = {
    "secret/plan/SKILL.md": skill_md("plan", body="The vault is below the fountain.\n"),
    "secret/plan/references/map.md": "Turn left.\n",
    "secret/plan/scripts/open.py": "print('{}')\n",
    # Beside what may be seen, by name and in the order of URIs.
    "acme-vault/open/SKILL.md": skill_md("open", body="Another vault.\n"),
    "acm/group/SKILL.md": skill_md("group"),
    "zebra/SKILL.md": skill_md("zebra"),
}
SECRET_PATHS = ("secret/plan", "acme-vault/open", "acm/group", "zebra")
NOWHERE = ("nowhere/at-all", "acme/missing", "acme-vault", "secret")


@dataclass(frozen=True, slots=True)
class Asker:
    """One caller of one server, in the process of the test."""

    app: HttpApp
    token: str

    @property
    def credentials(self) -> tuple[tuple[bytes, bytes], ...]:
        return ((b"authorization", f"Bearer {self.token}".encode()),) if self.token else ()

    async def get(self, path: str, method: str = "GET", *more: tuple[bytes, bytes]) -> Outcome:
        headers = ((b"host", b"127.0.0.1:8000"), (b"accept", b"*/*"), *self.credentials, *more)
        path, _, query = path.partition("?")
        request = HttpRequest(headers, (b"",), method=method, path=path, query=query.encode())
        return await exchange(self.app, request)

    async def post(self, message: Mapping[str, Any], *more: tuple[bytes, bytes]) -> Outcome:
        body = orjson.dumps(message)
        headers = (
            (b"host", b"127.0.0.1:8000"),
            (b"content-type", b"application/json"),
            (b"accept", b"application/json, text/event-stream"),
            (b"content-length", b"%d" % len(body)),
            *self.credentials,
            *more,
        )
        return await exchange(self.app, HttpRequest(headers, (body,)))

    async def ask(self, method: str, **params: Any) -> Outcome:
        """Ask as revision 2026-07-28 does."""
        headers = [(b"mcp-protocol-version", MODERN.encode()), (b"mcp-method", method.encode())]
        name = params.get("uri") if method == "resources/read" else params.get("name")
        if isinstance(name, str) and method in ("resources/read", "tools/call", "prompts/get"):
            headers.append((b"mcp-name", name.encode()))
        return await self.post(modern(method, **params), *headers)

    async def shake_hands(self) -> bytes:
        """Begin a session as older revisions do, and return its id."""
        begun = await self.post(handshake())
        assert begun.status == 200 and begun.session, begun
        session = ((b"mcp-session-id", begun.session), (b"mcp-protocol-version", b"2025-11-25"))
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, *session)
        return begun.session


def write_world(folder: Path, *, with_secrets: bool) -> Path:
    """Write the skills of a server, all of the same age."""
    write_files(folder, {**OPEN, **(SECRET if with_secrets else {})})
    for path in folder.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return folder


def token_line(name: str, token: str) -> str:
    return f"{name} sha256:{hashlib.sha256(token.encode()).hexdigest()}\n"


def token_of(name: str) -> str:
    return f"skw_{name}_{hashlib.sha256(name.encode()).hexdigest()}"


def write_access(folder: Path, rules: str = RULES) -> AccessSettings:
    """Write a token file and rules, and return what uses them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = folder / "tokens"
    tokens.write_text("".join(token_line(name, token_of(name)) for name in ("few", "many")))
    tokens.chmod(0o600)
    (folder / "access.toml").write_text(rules)
    return AccessSettings(tokens=tokens, rules=folder / "access.toml")


@asynccontextmanager
async def serving(folder: Path, access: AccessSettings, **options: Any) -> AsyncGenerator[HttpApp]:
    app = HttpApp(ServeOptions((folder,), page_size=2, find=True, **options), host="127.0.0.1", access=access)
    async with app.open():
        yield app


class Heard:
    """What a server told without being asked, and whether it has ended the stream."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.is_over = False
        self._more = anyio.Event()

    def put(self, event: bytes) -> None:
        self.events.append(event)
        self._tell()

    def end(self) -> None:
        self.is_over = True
        self._tell()

    async def wait_for_more(self, than: int) -> None:
        """Wait until there are more events, or there will be none."""
        with anyio.fail_after(20):
            while len(self.events) <= than and not self.is_over:
                await self._more.wait()

    async def wait_for_end(self) -> None:
        with anyio.fail_after(20):
            while not self.is_over:
                await self._more.wait()

    def _tell(self) -> None:
        self._more.set()
        self._more = anyio.Event()


@asynccontextmanager
async def listening(caller: Asker, era: str) -> AsyncGenerator[Heard]:
    """Open a stream of changes, and hear what comes on it."""
    heard = Heard()
    headers = [(b"host", b"127.0.0.1:8000"), *caller.credentials]
    if era == "modern":
        message = modern("subscriptions/listen", notifications={"resourcesListChanged": True})
        body, method = orjson.dumps(message), "POST"
        headers += [
            (b"content-type", b"application/json"),
            (b"accept", b"application/json, text/event-stream"),
            (b"mcp-protocol-version", MODERN.encode()),
            (b"mcp-method", b"subscriptions/listen"),
        ]
    else:
        session = await caller.shake_hands()
        body, method = b"", "GET"
        headers += [
            (b"accept", b"text/event-stream"),
            (b"mcp-session-id", session),
            (b"mcp-protocol-version", b"2025-11-25"),
        ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
    }
    begun, left = anyio.Event(), anyio.Event()
    bodies = [body]

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
            begun.set()
        elif b"list_changed" in message.get("body", b"") or b"updated" in message.get("body", b""):
            heard.put(message["body"])
        if message["type"] == "http.response.body" and not message.get("more_body"):
            heard.end()

    async with anyio.create_task_group() as group:
        group.start_soon(caller.app, scope, receive, send)
        with anyio.fail_after(10):
            await begun.wait()
        yield heard
        left.set()
