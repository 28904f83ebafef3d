"""`Shop`: a real server of ours in this process, over loopback HTTP, and a note of all that passed the wire.

It can be told to lie about a file and to go away, which happens in front of
the server: what it publishes is always what the server itself made of it.
"""

import hashlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import orjson
import uvicorn
from mcp.server.lowlevel import Server

from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.host.model.approval import Reply
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig
from skillwire.server import add_skills
from skillwire.server.fast.requests import Message, Receive, Scope, Send
from skillwire.sources import DynamicSkill

LABEL = "shop"
REFUNDS = "skill://acme/refunds/SKILL.md"
INNER = "skill://acme/refunds/inner/SKILL.md"
LIVE = "skill://acme/live/SKILL.md"
REFERENCES = {REFUNDS: f"{LABEL}/refunds", INNER: f"{LABEL}/inner", LIVE: f"{LABEL}/live"}

STARTED_WITHIN = 20.0
_NO_SUCH_METHOD = {"code": -32601, "message": "Method not found"}

Json: TypeAlias = dict[str, Any]
FileSet: TypeAlias = frozenset[tuple[str, str]]
"""Every file of a skill by URI and digest: what an approval is bound to."""
Catalogue: TypeAlias = Mapping[str, Mapping[str, bytes]]
"""The files of each skill, by the URI of its `SKILL.md` and the path inside the skill."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The host is told everything there is; the entries follow."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An entry went to the host; a dynamic skill's has no files."""

    uri: str
    files: FileSet | None


@dataclass(frozen=True, slots=True)
class Read:
    """A file was asked for."""

    uri: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The user answered a question about loading exactly these files."""

    uri: str
    files: FileSet | None
    reply: Reply


Event: TypeAlias = Listed | Sent | Read | Asked


class Shop:
    """The server, what it publishes, and everything that happened, in order."""

    def __init__(self) -> None:
        self.trace: list[Event] = []
        self.blobs: dict[str, bytes] = {}
        """Every file that was ever published, by digest."""
        self.lies: set[str] = set()
        """The URIs of files that are served with other bytes than are listed."""
        self.unlisted: set[str] = set()
        """The URIs of skills that are served and not listed."""
        self.media_type = ""
        """What every file is said to be; each is what it is when this is empty."""
        self.is_offline = False
        self._server: Server[Any] = Server("shop")
        self._skills = add_skills(self._server, watch=False, ttl=3600)
        self._skills.add(
            DynamicSkill("live", path="acme/live", description="Use when asked.", body=self._make_live)
        )
        self._app = self._server.streamable_http_app(json_response=True, stateless_http=True)
        self._http = uvicorn.Server(
            uvicorn.Config(
                self._answer,
                host="127.0.0.1",
                port=0,
                interface="asgi3",
                ws="none",
                lifespan="on",
                log_level="critical",
                timeout_graceful_shutdown=2,
            )
        )
        self._ended = anyio.Event()
        self._published: set[str] = set()
        self._made = 0

    @property
    def config(self) -> ServerConfig:
        port = self._http.servers[0].sockets[0].getsockname()[1]
        return ServerConfig(LABEL, HttpEndpoint(f"http://127.0.0.1:{port}/mcp"), seconds=10)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Shop"]:
        async with anyio.create_task_group() as group:
            group.start_soon(self._serve)
            with anyio.fail_after(STARTED_WITHIN):
                while not self._http.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await anyio.sleep(0.01)
            try:
                yield self
            finally:
                self._http.should_exit = True
                with anyio.move_on_after(STARTED_WITHIN, shield=True):
                    await self._ended.wait()

    async def _serve(self) -> None:
        try:
            await self._http.serve()
        finally:
            self._ended.set()

    def reads(self) -> list[str]:
        """Return the URIs of every file that was asked for."""
        return [event.uri for event in self.trace if isinstance(event, Read)]

    async def publish(self, catalogue: Catalogue) -> None:
        """Publish exactly these skills, beside the dynamic one, and wait until they are."""
        skills = [_skill(uri, files) for uri, files in catalogue.items()]
        for files in catalogue.values():
            self.blobs |= {digest(content): content for content in files.values()}
        for uri in self._published:
            self._skills.remove(SkillUri(uri))
        self._skills.add(*skills)
        self._published = set(catalogue)
        expected = {uri: files_of(uri, catalogue) for uri in catalogue}
        with anyio.fail_after(STARTED_WITHIN):
            while self._served() != expected:
                await anyio.lowlevel.checkpoint()

    def _served(self) -> dict[str, FileSet]:
        return {
            entry.uri.text: frozenset((file.uri, file.digest) for file in entry.manifest.files)
            for entry in self._skills.source.snapshot.entries
            if entry.manifest is not None
        }

    def _make_live(self) -> str:
        self._made += 1
        return f"Live {self._made}.\n"

    # In front of the server

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if self.is_offline:
            for connection in tuple(self._http.server_state.connections):
                connection.transport.abort()  # pyright: ignore[reportOptionalMemberAccess]
            return await anyio.sleep(0.01)
        body = await _whole(receive)
        request: Json = orjson.loads(body) if body else {}
        if request.get("method") == "subscriptions/listen":
            # Signals come when they like; the tests that are about them use another server.
            answer = {"jsonrpc": "2.0", "id": request["id"], "error": _NO_SUCH_METHOD}
            return await _respond(send, orjson.dumps(answer))
        sent: list[Message] = []

        async def keep(message: Message) -> None:
            sent.append(message)

        await self._app(scope, _again(body, receive), keep)
        await self._pass_on(request, sent, send)

    async def _pass_on(self, request: Json, sent: list[Message], send: Send) -> None:
        body = b"".join(message.get("body", b"") for message in sent[1:])
        answer: Json = orjson.loads(body) if body else {}
        result: Json = answer.get("result", {})
        match request.get("method"):
            case "skills/list" if "skills" in result:
                result["skills"] = [skill for skill in result["skills"] if skill["uri"] not in self.unlisted]
                self.trace += [Listed(), *map(_sent, result["skills"])]
            case "skills/get" if "skill" in result:
                self.trace.append(_sent(result["skill"]))
            case "resources/read":
                self.trace.append(Read(request["params"]["uri"]))
                for content in result.get("contents", ()):
                    self._disguise(content)
            case _:
                pass
        if "result" in answer:
            return await _respond(send, orjson.dumps(answer))
        for message in sent:
            await send(message)

    def _disguise(self, content: Json) -> None:
        if content["uri"] in self.lies:
            content["text"] = _swapped(content["text"])
        if self.media_type:
            content["mimeType"] = self.media_type


def files_of(uri: str, catalogue: Catalogue) -> FileSet:
    """Say, by hashes of our own, what the entry of a skill must list: skills inside it belong to it."""
    root = uri.removesuffix("SKILL.md")
    return frozenset((file, digest(content)) for file, content in _files(catalogue) if file.startswith(root))


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def skill_md(uri: str, number: int, *, extra: str = "") -> bytes:
    """Return a `SKILL.md` that no other number gives, and whose length is always the same."""
    name = uri.split("/")[-2]
    return f"---\nname: {name}\ndescription: Use when asked.\n{extra}---\nStep {number:06}.\n".encode()


def _files(catalogue: Catalogue) -> Iterator[tuple[str, bytes]]:
    for uri, files in catalogue.items():
        root = uri.removesuffix("SKILL.md")
        yield from ((root + path, content) for path, content in files.items())


def _skill(uri: str, files: Mapping[str, bytes]) -> Skill:
    path = uri.removeprefix("skill://").removesuffix("/SKILL.md")
    skill = Skill(path.rpartition("/")[2], body=files["SKILL.md"], path=path)
    for name, content in files.items():
        if name != "SKILL.md":
            skill = skill.with_reference(name, content)
    return skill


def _sent(entry: Json) -> Sent:
    resources = entry["resources"]
    if resources == "dynamic":
        return Sent(entry["uri"], None)
    return Sent(entry["uri"], frozenset((item["uri"], item["digest"]) for item in resources))


def _swapped(text: str) -> str:
    """Return another text of the same length."""
    return text[:-2] + ("!" if text[-2] != "!" else "?") + text[-1]


async def _whole(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


def _again(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def first_then_the_rest() -> Message:
        return waiting.pop() if waiting else await receive()

    return first_then_the_rest


async def _respond(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
