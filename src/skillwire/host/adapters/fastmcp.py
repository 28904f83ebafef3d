"""Skills for an agent that calls tools of MCP servers with FastMCP's client: one guard for all tools.

    async with open_clients(servers) as clients:
        toolbox = await server_toolbox(Guard(host, kinds), clients, own)

The toolbox has the tools for skills, the agent's own, and those of the
servers, under the same labels as in the host.
"""

import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import anyio
import mcp_types as types
from mcp import MCPError

from skillwire.core import LimitError, SkillError, quoted, revealed, visible
from skillwire.host.adapters.tools import Guard, Toolbox
from skillwire.host.connect.config_file import label_of
from skillwire.host.model import (
    ConfigError,
    EndlessListingError,
    HttpEndpoint,
    InvalidAnswerError,
    PeerError,
    Refusal,
    ServerConfig,
    StdioEndpoint,
    TooSlowError,
    UnavailableError,
)
from skillwire.host.use.gate import ToolCall, ToolKind
from skillwire.host.use.tools import Arguments, Handler, Tool, ToolResult

# Tools of MCP servers for an agent: with unique names and without hidden characters.


MAX_DESCRIPTION: Final = 4_000
MAX_SCHEMA: Final = 32_000
MAX_RESULT: Final = 100_000

_MAX_DEPTH = 32
# Tool names that every provider accepts.
_NAME = re.compile("[A-Za-z0-9_-]{1,64}")


class ToolFailedError(SkillError):
    """A server's tool reported a failure; the message is the server's text."""

    refusal = "server-error"


@dataclass(frozen=True)
class ServerTool(Tool):
    """A tool of a server, which checks the arguments itself. `title` is its name on the server."""

    label: str
    title: str

    @classmethod
    def of(cls, tool: types.Tool, label: str, handler: Handler) -> "ServerTool":
        """Build a tool from its server's description, with the name `mcp__label__tool`.

        Raises:
            InvalidAnswerError: Its input schema is not an object schema.
            LimitError: Its input schema is too long or too deep.
        """
        text = revealed(tool.description or tool.title or "")
        cut = text if len(text) <= MAX_DESCRIPTION else f"{text[:MAX_DESCRIPTION]}…"
        about = f"A tool of the MCP server {label}, as that server describes it: {cut}"
        return cls(f"mcp__{label}__{tool.name}", about, _schema_of(tool), handler, label, tool.name)

    async def __call__(self, arguments: Arguments | None = None) -> ToolResult:
        try:
            return ToolResult(await self.handler(arguments or {}))
        except ToolFailedError as error:
            return ToolResult(str(error), Refusal(error.refusal, self.name))
        except SkillError as error:
            return ToolResult.refused(Refusal.of(error, self.name))

    @property
    def length(self) -> int:
        """The number of characters of its description and schema."""
        return len(self.description) + len(json.dumps(self.parameters))


class ServerGuard(Guard):
    """A guard that handles the tools of servers, and passes all others to the wrapped guard."""

    def __init__(self, guard: Guard, tools: Iterable[ServerTool]) -> None:
        super().__init__(guard.conversation)
        self._guard = guard
        self._tools = {tool.name: tool for tool in tools}

    def call(self, name: str, arguments: Mapping[str, object]) -> ToolCall:
        call = self._guard.call(name, arguments)
        tool = self._tools.get(name)
        return replace(call, kind=call.kind or ToolKind.NETWORK, server=tool.label) if tool else call

    def nudge(self, name: str) -> str:
        tool = self._tools.get(name)
        return self.conversation.nudge(tool.title, tool.label) if tool else self._guard.nudge(name)


def with_unique_names(tools: Sequence[ServerTool], taken: Collection[str]) -> list[ServerTool]:
    """Return the tools with unique names that providers accept; other names get cut and a hash appended."""
    counts = Counter(tool.name for tool in tools)
    found: dict[str, ServerTool] = {}
    for tool in tools:
        name = tool.name
        if counts[name] > 1 or name in taken or not _NAME.fullmatch(name):
            mark = hashlib.sha256(f"{tool.label}/{tool.title}".encode(errors="replace")).hexdigest()[:8]
            name = f"{re.sub('[^A-Za-z0-9_-]', '_', name)[:55]}_{mark}"
        if name not in found and name not in taken:
            found[name] = replace(tool, name=name)
    return list(found.values())


def text_of(result: types.CallToolResult) -> str:
    """Return a result as text without hidden characters; content other than text is only named."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False, default=str)]
    text = "\n".join(parts)
    rest = len(text) - MAX_RESULT
    return revealed(text) if rest <= 0 else f"{revealed(text[:MAX_RESULT])}\n[{rest:,} characters more]"


def _part(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.ResourceLink):
        return f"[a link to {block.uri}]"
    if isinstance(block, types.EmbeddedResource):
        content = block.resource
        if isinstance(content, types.TextResourceContents):
            return content.text
        return f"[{content.uri}, which is not text]"
    return f"[{block.mime_type}, which is not text]"


def _schema_of(tool: types.Tool) -> dict[str, Any]:
    schema = cast("dict[str, Any]", _cleaned(tool.input_schema, _MAX_DEPTH))
    if schema.get("type") != "object" or not isinstance(schema.get("properties", {}), dict):
        raise InvalidAnswerError("the input schema of the tool is not an object schema")
    if len(json.dumps(schema)) > MAX_SCHEMA:
        raise LimitError("the input schema of the tool is too long")
    return schema


def _cleaned(value: object, depth: int) -> object:
    if depth == 0:
        raise LimitError("the input schema of the tool is nested too deeply")
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {visible(key): _cleaned(item, depth - 1) for key, item in items}
    if isinstance(value, list):
        return [_cleaned(item, depth - 1) for item in cast("list[object]", value)]
    return revealed(value) if isinstance(value, str) else value


try:
    from fastmcp import Client
    from fastmcp.client.transports import ClientTransport, StdioTransport, StreamableHttpTransport
except ImportError as error:
    raise ImportError('this adapter needs fastmcp: pip install "skillwire[fastmcp]"') from error

DEFAULT_SECONDS: Final = 60.0
MAX_TOOLS: Final = 256
MAX_PAGES: Final = 64
MAX_TOOL_CHARACTERS: Final = 400_000
"""The maximum number of characters of one server's tools, which a model reads in every turn."""

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_clients(
    servers: Iterable[ServerConfig], **options: Any
) -> AsyncGenerator[dict[str, Client[ClientTransport]]]:
    """Connect a client to each enabled server, and yield the clients by the host's labels.

    `servers` are those of the host, and `options` are passed to every
    `fastmcp.Client`. If a server cannot be reached, its client is returned
    without a connection. A stdio server is started a second time, in addition
    to the host's own. Web sites of skills have no tools, and no client.
    """
    enabled = [server for server in servers if server.is_enabled]
    clients = {
        server.label: Client(transport, **options)
        for server in enabled
        if (transport := _transport(server)) is not None
    }

    async def connect(server: ServerConfig) -> None:
        try:
            with anyio.fail_after(server.connect_seconds):
                await stack.enter_async_context(clients[server.label])
        except Exception as error:  # Any failure of one server must not affect the others.
            message = quoted(str(error) or type(error).__name__)
            logger.warning("could not connect to %s for its tools: %s", server.label, message)

    async with AsyncExitStack() as stack:
        async with anyio.create_task_group() as group:
            for server in enabled:
                if server.label not in clients:
                    continue
                group.start_soon(connect, server)
        yield clients


class ServerToolbox(Toolbox):
    """A toolbox that includes tools of servers. `problems` lists those that are missing, with reasons."""

    problems: tuple[Refusal, ...] = ()


async def server_toolbox(
    guard: Guard,
    clients: Mapping[str, Client[Any]],
    own: Iterable[Tool] = (),
    *,
    with_resources: bool = False,
    seconds: float = DEFAULT_SECONDS,
) -> ServerToolbox:
    """Build one toolbox with an agent's own tools and those of servers, checked by one guard.

    `clients` are connected clients by the host's label of their server; those
    of a `ClientGroup` work too. The model sees a server's tool as
    `mcp__label__tool`, so that it cannot be mistaken for another server's tool
    or one of the skill tools; a name that providers do not accept is cut and
    gets a hash. The guard's `kinds` may set the kind of a tool by this name;
    the server's own annotations are ignored, and the default is network
    access.

    The tools are listed once. A call may take `seconds`, including questions
    of the server to the user. A tool that fails is an error for the model.

    Raises:
        ConfigError: A label is invalid, or two of the agent's own tools have the same name.
    """
    for label in clients:
        if label_of(label) != label:
            raise ConfigError(
                f"{quoted(label)} is not a valid label; use {label_of(label)}", reference=label[:200]
            )
    mine = list(own)
    taken = {tool.name for tool in (*guard.conversation.tools(with_resources=True), *mine)}
    offers = [_ToolListing(label, client, seconds) for label, client in clients.items()]
    async with anyio.create_task_group() as group:
        for offer in offers:
            group.start_soon(offer.fetch)
    tools = with_unique_names([tool for offer in offers for tool in offer.tools], taken)
    toolbox = ServerToolbox(ServerGuard(guard, tools), [*mine, *tools], with_resources=with_resources)
    toolbox.problems = tuple(problem for offer in offers for problem in offer.problems)
    return toolbox


class _ToolListing:
    """The tools of one server that can be used, and the problems with the rest."""

    def __init__(self, label: str, client: Client[Any], seconds: float) -> None:
        self._label = label
        self._client = client
        self._seconds = seconds
        self._characters_left = MAX_TOOL_CHARACTERS
        self._seen: set[str] = set()
        self.tools: list[ServerTool] = []
        self.problems: list[Refusal] = []

    async def fetch(self) -> None:
        """List the tools, page by page; a failure becomes a problem of this server only."""
        cursor: str | None = None
        try:
            for _ in range(MAX_PAGES):
                with _translated_errors(self._client, self._seconds):
                    page = await self._client.list_tools_mcp(cursor=cursor)
                for tool in page.tools:
                    self._add(tool)
                cursor = page.next_cursor
                if cursor is None:
                    return
            raise EndlessListingError("the server's list of tools does not end")
        except SkillError as error:
            self.problems.append(Refusal.of(error, self._label))

    def _add(self, tool: types.Tool) -> None:
        if tool.name in self._seen:
            return
        if len(self._seen) == MAX_TOOLS or self._characters_left <= 0:
            raise EndlessListingError("the server has too many tools for a model")
        self._seen.add(tool.name)

        async def handler(arguments: Arguments) -> str:
            with _translated_errors(self._client, self._seconds):
                result = await self._client.call_tool_mcp(tool.name, dict(arguments))
            if result.is_error:
                raise ToolFailedError(text_of(result) or "the tool failed without a message")
            return text_of(result)

        try:
            taken = ServerTool.of(tool, self._label, handler)
        except SkillError as error:
            self.problems.append(Refusal.of(error, f"{self._label}/{visible(tool.name, most=200)}"))
        else:
            self._characters_left -= taken.length
            self.tools.append(taken)


@contextmanager
def _translated_errors(client: Client[Any], seconds: float) -> Generator[None]:
    """Set a deadline for a request, and translate the client's exceptions.

    Raises:
        UnavailableError: The client is not connected, or the connection broke.
        TooSlowError: The deadline passed.
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
    except Exception as error:  # The client has no exception class for a broken connection.
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
            log_file=Path(os.devnull),  # The host's own process logs the same.
        )
    if not isinstance(endpoint, HttpEndpoint):
        return None
    return StreamableHttpTransport(endpoint.url, headers=dict(endpoint.headers), auth=server.auth)
