"""The same skills served twice: with the fast path and by the SDK alone, to be asked the same things."""

import fcntl
import json
import os
import queue
import termios
import threading
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import orjson

from folders import skill_md, write_files
from integration.odd_requests import HttpRequest, Targets
from skillwire.core.skill import Skill
from skillwire.server.answers import Answers
from skillwire.server.fast.asgi import FastPath
from skillwire.server.fast.hot import HotAnswers
from skillwire.server.fast.requests import (
    App,
    CachedReply,
    FastRequest,
    Message,
    Parts,
    Receive,
    RequestReader,
    Scope,
    Send,
)
from skillwire.server.http.views import Endpoint
from skillwire.server.options import ServeOptions
from skillwire.server.standalone import SkillServer
from skillwire.server.stdio import StdioConnection
from skillwire.sources import DynamicSkill

DEADLINE = 30.0
PAGE_SIZE = 3


def write_catalog(folder: Path) -> None:
    """Write skills whose names, frontmatter and files are not only the easy ones."""
    rich = (
        'license: "Ünïcode\\u2028 ✓ 😀"\nmetadata: {control: "\\x07\\x7f", "é": "ü"}\nnothing: null\n'
        "numbers: [9007199254740991, -0.0, 1.0e+16, 2.5, 1.0]\ndeep: {a: [true, {é: [[]]}]}\n"
    )
    write_files(
        folder,
        {
            "tea/SKILL.md": skill_md("tea", extra=rich, body="Brüh Tee \u2028\u0085 😀.\r\n"),
            "tea/references/green tea.md": '# Sencha\r\n\ttabs \x00 and \x1b escapes \\ " /\n',
            "tea/references/100%.md": "per cent\n",
            "tea/references/naïve/é.txt": "é\n",
            "tea/assets/leaf.png": bytes(range(256)) * 20,
            "tea/assets/bom.txt": "\ufeffmarked\n",
            "tea/assets/empty.txt": "",
            "tea/assets/large.txt": "0123456789abcdef" * 17_000,
            "acme/billing/refunds/SKILL.md": skill_md("refunds"),
            "acme/billing/refunds/scripts/run.py": "pass\n",
            "acme/billing/refunds/inner/SKILL.md": skill_md("inner"),
            "acme/billing/refunds/inner/a~b;c=d@e.json": "{}",
            "acme/billing/invoices/SKILL.md": skill_md("invoices"),
            **{f"plain-{number}/SKILL.md": skill_md(f"plain-{number}") for number in range(6)},
            **{f"plain-0/many/{number}.md": f"# {number}\n" for number in range(10)},
        },
    )
    (folder / "tea" / "nothing" / "here").mkdir(parents=True)


class CountingAnswers(HotAnswers):
    """Ready answers that count how many they gave. One who asks at a time."""

    given = 0

    def result(self, request: FastRequest, *, modern: bool) -> Parts | None:
        return self._counted(super().result(request, modern=modern))

    async def fetch(self, request: FastRequest, *, modern: bool) -> Parts | None:
        return self._counted(await super().fetch(request, modern=modern))

    def new_reader(self) -> RequestReader:
        return CountingReader(self)

    def _counted(self, parts: Parts | None) -> Parts | None:
        self.given += parts is not None
        return parts


class CountingReader(RequestReader):
    """A reader that counts what it recalls among the answers given."""

    def __init__(self, hot: CountingAnswers) -> None:
        super().__init__(hot.is_valid_envelope)
        self._hot = hot

    def cached_reply(self, body: bytes, state: object) -> tuple[bytes, CachedReply] | None:
        known = super().cached_reply(body, state)
        self._hot.given += known is not None
        return known


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a request. `headers` are all but the length, which is that of the body.

    `body` is the text of what JSON means to a strict reader: keys in their
    order and as often as they came, integers to the digit.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: str
    raised: str = ""
    raw: bytes = field(default=b"", compare=False, repr=False)
    session: bytes | None = field(default=None, compare=False, repr=False)


class BothPaths:
    """Two servers of the same skills, `fast` with the ready answers and `plain` without."""

    def __init__(self, offer: Callable[[bool], SkillServer], *, is_stateless: bool) -> None:
        self.fast, self.plain = offer(True), offer(False)
        self.hot = self.fast.hot = CountingAnswers(self.fast.skills, self.fast.server)
        self.fast_app = Endpoint(self.fast, is_stateless=is_stateless)
        self.plain_app = Endpoint(self.plain, is_stateless=is_stateless)
        fast_path = self.fast_app.asgi
        assert isinstance(fast_path, FastPath)
        self._passed_on = 0
        self._sdk = fast_path.inner
        fast_path.inner = self._pass_on

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["BothPaths"]:
        async with self.fast_app.open(), self.plain_app.open():
            yield self

    async def ask(self, request: HttpRequest) -> tuple[Outcome, Outcome, bool]:
        """Return both answers, and whether the fast path gave the first."""
        before = self._passed_on
        fast = await exchange(self.fast_app, request)
        return fast, await exchange(self.plain_app, request), self._passed_on == before

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._passed_on += 1
        await self._sdk(scope, receive, send)

    @property
    def targets(self) -> Targets:
        return targets_of(self.plain.skills.answers)


def standalone(folder: Path, *, is_fast: bool, **options: Any) -> SkillServer:
    """Serve `folder`, a skill built in code, and one whose content is made on each read."""
    offer = ServeOptions(folders=(folder,), page_size=PAGE_SIZE, watch=False, is_fast=is_fast, **options)
    served = SkillServer(offer)
    built = Skill("built", description="Use when testing.", body="Do it.\n")
    built = built.with_reference("query.gql", "{ me }", media_type="application/graphql")
    live = DynamicSkill("live", description="Use when testing.", body=lambda: "Always the same.\n")
    served.skills.add(built, live)
    return served


def targets_of(answers: Answers) -> Targets:
    """Return everything that can be asked for, and every cursor of every listing."""
    snapshot = answers.source.snapshot
    skills = [entry.uri.text for entry in snapshot.entries]
    manifests = [entry.manifest for entry in snapshot.entries]
    files = sorted({uri for manifest in manifests if manifest for uri in manifest.uris})
    directories = {parent for file in files for parent in _parents(file)} | snapshot.folders
    directory_cursors = [
        (directory, cursor)
        for directory in sorted(directories)
        for cursor in cursors_of(lambda cursor: answers.read_directory(directory, cursor, modern=True))  # noqa: B023 - used at once
    ]
    cursors = cursors_of(lambda cursor: answers.list_skills(cursor, modern=True))
    return Targets(
        tuple(skills), tuple(files), tuple(sorted(directories)), tuple(cursors), tuple(directory_cursors)
    )


def cursors_of(page: Callable[[str | None], dict[str, Any]]) -> list[str]:
    cursors: list[str] = []
    cursor = page(None).get("nextCursor")
    while cursor is not None:
        cursors.append(cursor)
        cursor = page(cursor).get("nextCursor")
    return cursors


def _parents(uri: str) -> list[str]:
    scheme, _, path = uri.partition("://")
    segments = path.split("/")
    return [f"{scheme}://{'/'.join(segments[:length])}" for length in range(1, len(segments))]


def meaning(body: bytes) -> str:
    """Return what a JSON text says; two texts that differ in escapes or in spelling a float mean the same."""
    try:
        return repr(
            json.loads(
                body,
                object_pairs_hook=lambda pairs: ("object", *pairs),
                parse_int=lambda digits: ("integer", digits),
                parse_float=lambda digits: ("float", float(digits)),
            )
        )
    except ValueError:
        return repr(body)


async def exchange(app: App, request: HttpRequest) -> Outcome:
    """Send one request to an ASGI application, and wait for all of the answer."""
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": list(request.headers),
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
    }
    pieces = request.pieces[: -1 if request.leaves else None]
    incoming: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": request.leaves or position + 1 < len(pieces)}
        for position, piece in enumerate(pieces)
    ]
    answered = anyio.Event()
    sent: list[Message] = []

    async def receive() -> Message:
        if incoming:
            return incoming.pop(0)
        if not request.leaves:
            await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            answered.set()

    raised = ""
    with anyio.fail_after(DEADLINE):
        try:
            await app(scope, receive, send)
        except Exception as error:
            raised = repr(error)
    return _outcome(sent, raised, is_head=request.method == "HEAD")


def _outcome(sent: Sequence[Message], raised: str, *, is_head: bool) -> Outcome:
    if not sent:
        return Outcome(0, (), "", raised)
    start, *rest = sent
    body = b"".join(message.get("body", b"") for message in rest)
    headers = dict[bytes, bytes](start["headers"])
    assert len(headers) == len(start["headers"]), "no header comes twice"
    length = headers.pop(b"content-length", None)
    assert length is None or is_head or length == b"%d" % len(body), "the length is that of the body"
    session = headers.get(b"mcp-session-id")
    if session is not None:
        headers[b"mcp-session-id"] = b"chosen by chance"
    return Outcome(start["status"], tuple(sorted(headers.items())), meaning(body), raised, body, session)


class StdioClient:
    """The other end of a `StdioConnection`: writes what it is told to, and collects every line it gets.

    `incoming` is the server's end, to see what it has taken.
    """

    def __init__(self, to_server: int, from_server: int, *, incoming: int) -> None:
        self._to_server = to_server
        self._incoming = incoming
        self._from_server = from_server
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._collected: list[bytes] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def send(self, *chunks: bytes) -> None:
        """Send bytes; the server takes each chunk before the next is sent."""
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                view = view[os.write(self._to_server, view) :]
            self._wait_until_taken()

    def _wait_until_taken(self) -> None:
        deadline = time.monotonic() + DEADLINE
        waiting = array("i", [1])
        while waiting[0]:
            assert time.monotonic() < deadline, "the server does not read"
            fcntl.ioctl(self._incoming, termios.FIONREAD, waiting)
            time.sleep(0.0001)

    def close(self) -> None:
        os.close(self._to_server)

    def wait_for(self, identifier: object) -> dict[str, Any]:
        """Return the answer with that id; what comes before is kept."""
        while True:
            line = self._lines.get(timeout=DEADLINE)
            assert line is not None, "the server went away"
            self._collected.append(line)
            answer = orjson.loads(line)
            if answer.get("id") == identifier:
                return answer

    def rest(self) -> list[bytes]:
        """Return all lines there were, once the server has closed its end."""
        while (line := self._lines.get(timeout=DEADLINE)) is not None:
            self._collected.append(line)
        return self._collected

    def _collect(self) -> None:
        with os.fdopen(self._from_server, "rb") as stream:
            for line in stream:
                self._lines.put(line)
        self._lines.put(None)


Talk = Callable[[StdioClient], None]
"""What a client says; returning means closing its end."""


def converse(
    portal: anyio.from_thread.BlockingPortal, served: SkillServer, hot: HotAnswers | None, talk: Talk
) -> list[bytes]:
    """Let a client talk to a new connection over pipes; return every line it got until the end."""
    incoming, to_server = os.pipe()
    from_server, outgoing = os.pipe()
    client = StdioClient(to_server, from_server, incoming=incoming)
    connection = StdioConnection(served.server, hot, incoming=incoming, outgoing=outgoing)
    finished = portal.start_task_soon(connection.run)
    try:
        talk(client)
    finally:
        client.close()
        finished.result(timeout=DEADLINE)
        os.close(outgoing)
        os.close(incoming)
    return client.rest()
