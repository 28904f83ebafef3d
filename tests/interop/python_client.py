"""The official Python SDK's client, asking for methods it does not know."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import anyio
import mcp_types as types
from mcp.client import Client
from mcp.client.session import MessageHandlerFnT
from mcp.client.stdio import StdioServerParameters
from pydantic import ConfigDict

from interop.serving import Endpoint
from interop.truth import Json

DEADLINE = 60.0

Mode: TypeAlias = Literal["legacy", "auto"]
"""The handshake of 2025-11-25, or whatever is newest."""


class Params(types.RequestParams):
    model_config = ConfigDict(extra="allow")


class Answer(types.Result):
    """A result with every field as it came."""

    model_config = ConfigDict(extra="allow")


@asynccontextmanager
async def connected(
    endpoint: Endpoint, mode: Mode, env: dict[str, str], *, message_handler: MessageHandlerFnT | None = None
) -> AsyncGenerator[Client]:
    """Connect to a server, and give up on all of it after a while."""
    if endpoint.url:
        target: str | StdioServerParameters = endpoint.url
    else:
        command, *args = endpoint.command
        target = StdioServerParameters(command=command, args=args, env=env)
    with anyio.fail_after(DEADLINE):
        async with Client(target, mode=mode, cache=None, message_handler=message_handler) as client:
            yield client


async def ask(client: Client, method: str, **params: Any) -> dict[str, Json]:
    """Send a request as it is, and return the result without what the SDK itself adds to one."""
    request = types.Request[Params, str](method=method, params=Params(**params))
    answer = await client.session.send_request(request, Answer)
    told: dict[str, Json] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
    told.pop("_meta", None)
    return told


async def pages_of(client: Client, method: str, **params: Any) -> list[dict[str, Json]]:
    pages = [await ask(client, method, **params)]
    while "nextCursor" in pages[-1]:
        assert len(pages) < 100, "a listing without an end"
        pages.append(await ask(client, method, **params, cursor=pages[-1].pop("nextCursor")))
    return pages
