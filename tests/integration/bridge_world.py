"""A bridge in this process, in front of real servers, and clients of it that answer as they are told."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import mcp_types as types
import pytest
from mcp.client import Client, ClientSession
from mcp.client.session import ElicitationFnT

from hostile.hosting import DEADLINE, storage_in
from skillwire.bridge.overview import Overview, StoredOverview
from skillwire.bridge.server import Bridge, BridgeOptions, open_bridge
from skillwire.host import Ask, Host, HostLimits, LocalRoot, SealedFolder, ServerConfig

NAME = "bridge-test"
LIMITS = HostLimits(wait_seconds=0)


class Person:
    """Answers questions as it was told, the last answer again and again, and remembers what was asked."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[types.ElicitRequestParams] = []

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer in ("decline", "cancel"):
            return types.ElicitResult(action=answer)
        return types.ElicitResult(action="accept", content=None if answer is None else {"answer": answer})


class PageReader:
    """Agrees to open each page, and answers on it at once or only when told to."""

    def __init__(self, answer: str | None) -> None:
        self._answer = answer
        self.urls: list[str] = []
        self.message = ""

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        self.urls.append(params.url)
        self.message = params.message
        if self._answer is not None:
            await self.answer(self._answer)
        return types.ElicitResult(action="accept")

    async def answer(self, answer: str, page: int = -1) -> int:
        """Press a button on a page, and return the status of the response."""
        async with httpx.AsyncClient() as browser:
            return (await browser.post(self.urls[page], content=f"answer={answer}")).status_code


def declare_urls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the SDK's clients declare that they open URLs and show no forms; by default they do both."""
    build = ClientSession._build_capabilities  # pyright: ignore[reportPrivateUsage]  # there is no option

    def only_urls(self: ClientSession, version: str) -> types.ClientCapabilities:
        elicitation = types.ElicitationCapability(url=types.UrlElicitationCapability())
        return build(self, version).model_copy(update={"elicitation": elicitation})

    monkeypatch.setattr(ClientSession, "_build_capabilities", only_urls)


@dataclass(frozen=True, slots=True)
class Bridged:
    """A running bridge, and the host behind it."""

    bridge: Bridge
    host: Host

    @asynccontextmanager
    async def client(
        self,
        name: str = "test",
        *,
        person: ElicitationFnT | None = None,
        mode: str = "legacy",
        **options: Any,
    ) -> AsyncGenerator[Client]:
        info = types.Implementation(name=name, version="1")
        async with Client(
            self.bridge.server, mode=mode, client_info=info, elicitation_callback=person, **options
        ) as client:
            yield client


@asynccontextmanager
async def bridging(
    folder: Path,
    *servers: ServerConfig,
    command_line: Callable[..., str] = lambda *words: f"skillwire {' '.join(words)}",
    note: str = "",
    roots: Sequence[LocalRoot] = (),
    **options: Any,
) -> AsyncGenerator[Bridged]:
    """Run a bridge whose state is in `folder`, and wait until its servers have answered."""
    storage = storage_in(folder)
    state = SealedFolder(storage.state)
    hosts: list[Host] = []

    def new_host(ask: Ask) -> Host:
        hosts.append(Host(servers, storage=storage, approve=ask, limits=LIMITS, roots=roots, **options))
        return hosts[-1]

    stored = StoredOverview(state, NAME, Overview.unknown(has_scripts=False))
    with anyio.fail_after(DEADLINE):
        async with open_bridge(BridgeOptions(new_host, command_line, stored, note)) as bridge:
            await hosts[0].refresh()
            yield Bridged(bridge, hosts[0])


async def call(client: Client, tool: str, **arguments: Any) -> types.CallToolResult:
    """Call a tool that answers with text alone."""
    result = await client.call_tool(tool, arguments)
    assert result.structured_content is None
    assert all(isinstance(content, types.TextContent) for content in result.content)
    return result


def text_of(result: types.CallToolResult) -> str:
    return "".join(content.text for content in result.content if isinstance(content, types.TextContent))


load = partial(call, tool="load_skill")
