"""Skills for an agent that calls tools of MCP servers with FastMCP's client: all tools behind one guard.

    async with open_clients(servers) as clients:
        toolbox = await server_toolbox(Guard(host, kinds), clients, own)

The toolbox has the tools for skills, the agent's own, and those of the
servers, which the guard knows by the same labels as the host.
"""

import logging
import os
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import mcp_types as types
from mcp import MCPError

from skillwire.core.characters import quoted, visible
from skillwire.errors import SkillError
from skillwire.host.adapters.servertools import (
    ServerGuard,
    ServerTool,
    ToolFailedError,
    named_apart,
    text_of,
)
from skillwire.host.connections.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.connections.labels import label_of
from skillwire.host.failures import (
    ConfigError,
    EndlessListingError,
    PeerError,
    TooSlowError,
    UnavailableError,
)
from skillwire.host.guard import Guard
from skillwire.host.refusals import Refusal
from skillwire.host.toolbox import Toolbox
from skillwire.host.tools import Arguments, Tool

try:
    from fastmcp import Client
    from fastmcp.client.transports import ClientTransport, StdioTransport, StreamableHttpTransport
except ImportError as error:
    raise ImportError('this adapter needs fastmcp: pip install "skillwire[fastmcp]"') from error

DEFAULT_SECONDS: Final = 60.0
MOST_TOOLS: Final = 256
MOST_PAGES: Final = 64
LONGEST_OFFER: Final = 400_000
"""How many characters the tools of one server may take, of what a model reads with every turn."""

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_clients(
    servers: Iterable[ServerConfig], **options: Any
) -> AsyncGenerator[dict[str, Client[ClientTransport]]]:
    """Connect a client to each server that is enabled, and give them by the labels the host knows them by.

    `servers` are those the host is made of, and `options` go to every
    `fastmcp.Client`. A server that cannot be reached costs only itself: its
    client is among the others, not connected. One on stdio is started once
    more, beside the host's own. Web sites of skills have no tools, and no client.
    """
    enabled = [server for server in servers if server.is_enabled]
    clients = {
        server.label: Client(transport, **options)
        for server in enabled
        if (transport := _transport(server)) is not None
    }

    async def connect(server: ServerConfig) -> None:
        try:
            with anyio.fail_after(server.seconds):
                await stack.enter_async_context(clients[server.label])
        except Exception as error:  # One server's trouble, of whatever kind, is not the others'.
            logger.warning("no tools of %s: %s", server.label, quoted(str(error) or type(error).__name__))

    async with AsyncExitStack() as stack:
        async with anyio.create_task_group() as group:
            for server in enabled:
                if server.label not in clients:
                    continue
                group.start_soon(connect, server)
        yield clients


class ServerToolbox(Toolbox):
    """A toolbox with tools of servers in it. `problems` says which are missing, and why."""

    problems: tuple[Refusal, ...] = ()


async def server_toolbox(
    guard: Guard,
    clients: Mapping[str, Client[Any]],
    own: Iterable[Tool] = (),
    *,
    with_resources: bool = False,
    seconds: float = DEFAULT_SECONDS,
) -> ServerToolbox:
    """Put an agent's own tools and those of servers into one toolbox, behind one guard.

    `clients` are connected, one for each server, by the label that the host
    gives it; those of a `ClientGroup` will do. The model knows a server's
    tool as `mcp__label__tool`, so that none can pass for another's or for one
    of the skills'; a name that providers would not take is cut and marked.
    By these names the guard's `kinds` may say what a tool does. What its
    server says of that counts for nothing: it reaches the network.

    What the servers offer is asked once and stays. A call may take `seconds`,
    questions of the server to the user included. A tool that fails is an
    error for the model.

    Raises:
        ConfigError: A label cannot be one, or two of the agent's own tools have the same name.
    """
    for label in clients:
        if label_of(label) != label:
            raise ConfigError(f"{quoted(label)} is no label; {label_of(label)} is", reference=label[:200])
    mine = list(own)
    taken = {tool.name for tool in (*guard.conversation.tools(with_resources=True), *mine)}
    offers = [_Offer(label, client, seconds) for label, client in clients.items()]
    async with anyio.create_task_group() as group:
        for offer in offers:
            group.start_soon(offer.ask)
    tools = named_apart([tool for offer in offers for tool in offer.tools], taken)
    toolbox = ServerToolbox(ServerGuard(guard, tools), [*mine, *tools], with_resources=with_resources)
    toolbox.problems = tuple(problem for offer in offers for problem in offer.problems)
    return toolbox


class _Offer:
    """What one server offers: tools that can be used, and problems with the rest."""

    def __init__(self, label: str, client: Client[Any], seconds: float) -> None:
        self._label = label
        self._client = client
        self._seconds = seconds
        self._room = LONGEST_OFFER
        self._seen: set[str] = set()
        self.tools: list[ServerTool] = []
        self.problems: list[Refusal] = []

    async def ask(self) -> None:
        """Ask for the tools, page by page; whatever goes wrong is a problem of this server alone."""
        cursor: str | None = None
        try:
            for _ in range(MOST_PAGES):
                with _waiting_for(self._client, self._seconds):
                    page = await self._client.list_tools_mcp(cursor=cursor)
                for tool in page.tools:
                    self._take(tool)
                cursor = page.next_cursor
                if cursor is None:
                    return
            raise EndlessListingError("the server's list of tools does not end")
        except SkillError as error:
            self.problems.append(Refusal.of(error, self._label))

    def _take(self, tool: types.Tool) -> None:
        if tool.name in self._seen:
            return
        if len(self._seen) == MOST_TOOLS or self._room <= 0:
            raise EndlessListingError("the server has more tools than a model could make use of")
        self._seen.add(tool.name)

        async def handler(arguments: Arguments) -> str:
            with _waiting_for(self._client, self._seconds):
                result = await self._client.call_tool_mcp(tool.name, dict(arguments))
            if result.is_error:
                raise ToolFailedError(text_of(result) or "the tool failed, and said nothing")
            return text_of(result)

        try:
            taken = ServerTool.of(tool, self._label, handler)
        except SkillError as error:
            self.problems.append(Refusal.of(error, f"{self._label}/{visible(tool.name)[:200]}"))
        else:
            self._room -= taken.length
            self.tools.append(taken)


@contextmanager
def _waiting_for(client: Client[Any], seconds: float) -> Generator[None]:
    """Wait for a server's answer.

    Raises:
        UnavailableError: It is not connected, or the connection broke.
        TooSlowError: It takes too long.
        PeerError: The answer is an error.
    """
    if not client.is_connected():
        raise UnavailableError("the client is not connected to the server")
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        raise TooSlowError(f"there was no answer within {seconds:g} s") from error
    except MCPError as error:
        message, code = quoted(error.error.message), error.error.code
        raise PeerError(f"the server answered {message}", method="tools", peer_code=code) from error
    except Exception as error:  # The client has no class of its own for a connection that broke.
        logger.info("a call to a server failed", exc_info=True)
        raise UnavailableError(f"the call failed: {quoted(str(error) or type(error).__name__)}") from error


def _transport(server: ServerConfig) -> ClientTransport | None:
    endpoint = server.endpoint
    if isinstance(endpoint, StdioEndpoint):
        return StdioTransport(
            endpoint.command,
            list(endpoint.args),
            env=dict(endpoint.env),
            cwd=endpoint.cwd,
            keep_alive=False,
            log_file=Path(os.devnull),  # What it says there, it also says to the host.
        )
    if not isinstance(endpoint, HttpEndpoint):
        return None
    return StreamableHttpTransport(endpoint.url, headers=dict(endpoint.headers), auth=server.auth)
