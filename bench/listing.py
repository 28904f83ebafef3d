"""Listing all skills of a server in a process of its own; prints the CPU time that took it, as JSON.

Run as `python -m bench.listing TASK TARGET`. Only this process counts, the
server is another one.
"""

import gc
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import orjson
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from bench.links import HttpLink, Link
from bench.messages import Call, WrongAnswerError, next_number
from bench.processes import opened, started
from skillwire.host.calls.listing import list_skills
from skillwire.host.connect.connection import Connection
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.registry.registry import Registry

TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Target:
    """The server to list: at `url`, or what `command` starts."""

    url: str = ""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Listed:
    """How many skills a process saw, and its CPU seconds for the first listing and for one more."""

    count: int
    first: float
    again: float


async def floor(target: Target) -> Listed:
    """Receive the same bytes with the least work, and parse every page once."""
    if target.url:
        address = urlsplit(target.url)
        return await _twice(partial(_read_all, HttpLink(address.port or 80, address.path)))
    with started(target.command, http=False, env=target.env) as server:
        opened(server, time.monotonic() + TIMEOUT)
        return await _twice(partial(_read_all, server.link))


async def listing(target: Target) -> Listed:
    """The thin function over the SDK's own client and transports."""
    async with _client(target) as client:

        async def count() -> int:
            return len((await list_skills(client)).entries)

        return await _twice(count)


async def registry(target: Target) -> Listed:
    """All of it: our connection, and a registry that gives every skill its name."""
    if target.url:
        endpoint = HttpEndpoint(target.url)
    else:
        endpoint = StdioEndpoint(target.command[0], target.command[1:], {**os.environ, **target.env})
    config = ServerConfig("bench", endpoint, seconds=TIMEOUT)
    async with Connection(config) as connection, Registry([connection]) as known:
        # A server that is started now reads its folder first; that waits, and costs its process alone.
        await connection.connect()

        async def count() -> int:
            view = await known.refresh(force=True)
            assert not view.hidden, view.hidden[0]
            return len(view.skills)

        return await _twice(count)


@asynccontextmanager
async def _client(target: Target) -> AsyncGenerator[Client]:
    if target.url:
        async with Client(target.url, read_timeout_seconds=TIMEOUT) as client:
            yield client
        return
    command, *arguments = target.command
    parameters = StdioServerParameters(command=command, args=arguments, env={**os.environ, **target.env})
    async with Client(stdio_client(parameters), read_timeout_seconds=TIMEOUT) as client:
        yield client


async def _twice(count: Callable[[], Awaitable[int]]) -> Listed:
    # A full collection walks all imported modules, 50 ms that one run or another would pay by chance.
    gc.collect()
    begun = time.process_time()
    seen = await count()
    between = time.process_time()
    if await count() != seen:
        raise WrongAnswerError("the second listing differs from the first")
    return Listed(seen, between - begun, time.process_time() - between)


async def _read_all(link: Link) -> int:
    until = time.monotonic() + TIMEOUT
    count, call = 0, Call("skills/list")
    while True:
        page: dict[str, Any] = orjson.loads(link.ask(call, next_number(), until))["result"]
        count += len(page["skills"])
        if not (cursor := page.get("nextCursor")):
            return count
        call = Call("skills/list", cursor=cursor)


TASKS: dict[str, Callable[[Target], Awaitable[Listed]]] = {
    task.__name__: task for task in (floor, listing, registry)
}

if __name__ == "__main__":
    target = Target(**json.loads(sys.argv[2]))
    print(json.dumps(asdict(anyio.run(TASKS[sys.argv[1]], target))))
