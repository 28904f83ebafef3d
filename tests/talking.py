"""Talking to a server as a client that takes nothing for granted: raw results and raw errors."""

import hashlib
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import anyio
import anyio.lowlevel
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.session import IncomingMessage
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from skillwire.core.entry import SkillEntry
from skillwire.core.errors import NotFoundError
from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri

Json: TypeAlias = dict[str, Any]
AnyServer: TypeAlias = Server[Any] | MCPServer[Any]
Value = TypeVar("Value")

EXTENSION = "io.modelcontextprotocol/skills"
MODES = ("legacy", "auto")
"""How to connect: with the handshake of 2025-11-25, or as 2026-07-28 does."""

DEADLINE = 10.0
_MAX_PAGES = 20_000


class _Params(types.RequestParams):
    model_config = ConfigDict(extra="allow")


class _Result(types.Result):
    model_config = ConfigDict(extra="allow")


class _Request(types.Request[_Params, str]):
    method: str
    params: _Params


def connect(server: AnyServer, mode: str = "auto", **options: Any) -> Client:
    """Make a client that answers nothing from a cache of its own."""
    return Client(server, mode=mode, cache=None, **options)


async def ask(client: Client, method: str, **params: object) -> Json:
    """Send a request and return its result as it came: what the server left out is not there."""
    request = _Request(method=method, params=_Params(**cast(Any, params)))
    with anyio.fail_after(DEADLINE):
        # In memory, an answer that waits for nothing comes without letting anybody else run.
        await anyio.lowlevel.checkpoint()
        result = await client.session.send_request(cast(types.Request[Any, Any], request), _Result)
    return result.model_dump(by_alias=True, exclude_unset=True)


async def refused(client: Client, method: str, **params: object) -> types.ErrorData:
    """Send a request that must fail, and return the error."""
    with pytest.raises(MCPError) as caught:
        await ask(client, method, **params)
    return caught.value.error


async def pages(client: Client, method: str, **params: object) -> list[Json]:
    """Return every page of a listing, in order."""
    found = [await ask(client, method, **params)]
    while "nextCursor" in found[-1]:
        assert len(found) < _MAX_PAGES, "the listing does not end"
        found.append(await ask(client, method, **params, cursor=found[-1]["nextCursor"]))
    return found


async def listing(client: Client, method: str, key: str = "resources", **params: object) -> list[Json]:
    """Return everything a listing holds, from all its pages."""
    return [item for page in await pages(client, method, **params) for item in page[key]]


async def skills_of(client: Client) -> dict[str, Json]:
    """Return the entry of every listed skill by URI; none is listed twice."""
    entries = await listing(client, "skills/list", "skills")
    by_uri = {entry["uri"]: entry for entry in entries}
    assert len(by_uri) == len(entries), "a skill is listed twice"
    return by_uri


async def get(client: Client, uri: str) -> Json:
    return (await ask(client, "skills/get", uri=uri))["skill"]


async def read_item(client: Client, uri: str) -> Json:
    """Return the one item `resources/read` answers with for a file."""
    [item] = (await ask(client, "resources/read", uri=uri))["contents"]
    assert item["uri"] == uri
    return item


async def read(client: Client, uri: str) -> bytes:
    """Return a file's bytes."""
    return content_of(await read_item(client, uri))


def content_of(item: Json) -> bytes:
    assert ("text" in item) != ("blob" in item), "exactly one of them holds the bytes"
    return item["text"].encode() if "text" in item else b64decode(item["blob"], validate=True)


def is_as_promised(content: bytes, line: Json) -> bool:
    """Tell whether bytes are what a line of a manifest says, by a hash of our own."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return line["digest"] == digest and line["size"] == len(content)


async def directory(client: Client, uri: str) -> dict[str, str]:
    """Return the children of a directory: media type by URI."""
    children = await listing(client, "resources/directory/read", uri=uri)
    return {child["uri"]: child["mimeType"] for child in children}


async def eventually(
    look: Callable[[], Awaitable[Value]], wanted: Callable[[Value], object], *, seconds: float = DEADLINE
) -> Value:
    """Look again and again until what is seen is wanted, and return it."""
    seen: list[Value] = []
    try:
        with anyio.fail_after(seconds):
            while True:
                seen[:] = [await look()]
                if wanted(seen[0]):
                    return seen[0]
                await anyio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not seen within {seconds} seconds; last: {seen}") from None


class Inbox:
    """What a client of the handshake era was told without asking.

    `put` is its message handler; `stop_reading` lets it hang in the next message.
    """

    def __init__(self) -> None:
        self.messages: list[types.ServerNotification] = []
        self._reading = anyio.Event()
        self._reading.set()

    async def put(self, message: IncomingMessage) -> None:
        await self._reading.wait()
        if isinstance(message, types.ServerNotification):
            self.messages.append(message)

    def stop_reading(self) -> None:
        self._reading = anyio.Event()

    def go_on(self) -> None:
        self._reading.set()

    @property
    def list_changes(self) -> int:
        return sum(isinstance(message, types.ResourceListChangedNotification) for message in self.messages)

    @property
    def updated(self) -> list[str]:
        return [
            message.params.uri
            for message in self.messages
            if isinstance(message, types.ResourceUpdatedNotification)
        ]

    async def wait_for(self, wanted: Callable[["Inbox"], object], *, seconds: float = DEADLINE) -> None:
        async def look() -> "Inbox":
            return self

        await eventually(look, wanted, seconds=seconds)


def skill(path: str, *, body: str = "Do it.\n", scheme: str = "skill") -> Skill:
    """Build a skill that breaks no rule."""
    name = path.rpartition("/")[2]
    return Skill(name, path=path, description=f"Use when testing {name}.", body=body, scheme=scheme)


class PlainSource:
    """A source by a stranger, who read no further than the three methods.

    It lists nothing of `unlisted`, and serves it all the same.
    """

    def __init__(self, *skills: Skill, unlisted: Sequence[Skill] = ()) -> None:
        self.skills = list(skills)
        self.unlisted = list(unlisted)

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        for built in self.skills:
            yield built.entry()

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        for built in (*self.skills, *self.unlisted):
            if built.uri == uri:
                return built.entry()
        raise NotFoundError("no such skill", uri=uri.text)

    async def read_file(self, uri: str) -> bytes:
        for built in (*self.skills, *self.unlisted):
            if built.uri.contains(uri):
                try:
                    return built.read(built.uri.relative_path(uri))
                except KeyError:
                    break
        raise NotFoundError("no such file", uri=uri)


class EntriesOnly:
    """A source that lists any number of large skills, and has the bytes of none."""

    def __init__(self, entries: Sequence[SkillEntry]) -> None:
        self.entries = entries

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        for entry in self.entries:
            yield entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        raise NotFoundError("no such skill", uri=uri.text)

    async def read_file(self, uri: str) -> bytes:
        raise NotFoundError("no such file", uri=uri)


def entry_with_files(path: str, names: Sequence[str]) -> SkillEntry:
    """Make an entry whose manifest promises a byte in each file that `names` names."""
    built = skill(path)
    lines = [ManifestFile.of(built.uri.text, built.skill_md)]
    lines += [ManifestFile.of(built.uri.join(name), b"x") for name in names]
    return SkillEntry(built.uri, built.frontmatter, Manifest.of(lines))
