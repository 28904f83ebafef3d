"""`Bridge`: the skills of a host as tools, prompts and resources of an MCP server.

Any MCP client can use it. Loading is the host's: what the host refuses is
refused here. The results of tools are text alone, since clients differ in what
else they show a model, and errors can be recognized in the text.
"""

import logging
import re
import socket
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count, islice
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import mcp_types as types
import uvicorn
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import ListenHandler, PromptsListChanged, ToolsListChanged

from skillwire.bridge.consent import ClientConsent, Context, http_config
from skillwire.bridge.overview import (
    ANY_CLIENT,
    CAPABILITIES,
    CLIENTS,
    SERVER_NAME,
    ClientTexts,
    Overview,
    StoredOverview,
    client_texts,
    known_client,
    words_of,
)
from skillwire.core import SKILL_FILE, JsonDict, NotFoundError, SkillError, __version__, digest_of
from skillwire.host import (
    Ask,
    Conversation,
    Host,
    KnownSkill,
    Tool,
    clean,
    cut,
    declared_arguments,
    tools_for,
)
from skillwire.server.changes import ChangeBus, ChangeNotifier, connection_of
from skillwire.server.dialects.base import as_json
from skillwire.server.early import take_opening
from skillwire.server.limits import limit_malloc_arenas
from skillwire.server.messages import invalid_params, wire_errors
from skillwire.server.stdio import StdioConnection, run_until_signal, standard_streams
from skillwire.wire.core import LIST_PROMPTS, read_cursor, write_cursor

FIRST_SECONDS: Final = 0.5
"""How often the overview is looked after until every server has answered."""
REFRESH_SECONDS: Final = 10.0
"""How often servers are asked afterwards whose listing is no longer fresh."""
PROMPT_SECONDS: Final = 20.0
"""How long a prompt, or a page of prompts after the first, waits for servers that have not answered yet."""
PROMPTS_PER_PAGE = 500

_POLL_SECONDS = 0.1
_FIRST_ATTEMPTS = 60
_UNSETTLED_ATTEMPTS = 5
_PROMPT_BYTES = 240
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_MOST_RESOURCES = 1_000

PageParams: TypeAlias = types.PaginatedRequestParams | None
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Bridge:
    """An MCP server in front of an open host."""

    def __init__(self, host: Host, consent: ClientConsent, options: "BridgeOptions") -> None:
        self._host = host
        self._consent = consent
        self._options = options
        stored = self._stored = options.stored
        self._overview = stored.overview
        self._prompts = PromptList()
        self._shown: object = None
        self.settled = anyio.Event()
        """Set once the overview of this run is stored, or will not be."""
        self._clients: dict[str, _Client] = {}
        self._notifier = ChangeNotifier(
            ["notifications/tools/list_changed", "notifications/prompts/list_changed"],
            events=[ToolsListChanged(), PromptsListChanged()],
        )
        bus = ChangeBus()
        self._notifier.add_bus(bus)
        self.listen = ListenHandler(bus)
        self.server: Server[Any] = Server(
            SERVER_NAME,
            version=__version__,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
            on_subscriptions_listen=self.listen,
        )
        self.server.middleware.insert(0, self._introduce)

    async def follow(self) -> None:
        """Keep the overview up to date, store it and announce its changes, until cancelled."""
        async with anyio.create_task_group() as group:
            seconds = FIRST_SECONDS
            for attempt in count():
                await self._refresh(group, seconds, attempt)
                if attempt >= _FIRST_ATTEMPTS or not self._host.unanswered_servers():
                    seconds = REFRESH_SECONDS
                await anyio.sleep(seconds)

    async def _refresh(self, group: anyio.abc.TaskGroup, wait_seconds: float, attempt: int) -> None:
        """Ask servers that are due; show what changed, but an earlier start's list for some seconds."""
        try:
            view = await self._host.refresh(wait_seconds=wait_seconds)
            unanswered = self._host.unanswered_servers()
            is_settled = not unanswered or attempt >= _UNSETTLED_ATTEMPTS
            shown = (view.skills, unanswered, is_settled)
            if shown == self._shown or not (is_settled or self._stored.overview.is_unknown):
                return
            self._shown = shown
            overview = await self._current()
            # What a server listed before is worth more at the next start than that it was away now.
            if not unanswered or (is_settled and self._stored.overview.is_unknown):
                await self._save(overview)
            if is_settled:
                self.settled.set()
            if overview != self._overview:
                self._overview = overview
                await self._notifier.announce(frozenset(), group)
        except SkillError as error:
            logger.warning("the list of skills is not up to date: %s", error)

    async def _save(self, overview: Overview) -> None:
        try:
            await anyio.to_thread.run_sync(self._stored.save, overview)
        except SkillError as error:
            logger.warning("the list of skills is not stored for the next start: %s", error)

    async def _current(self) -> Overview:
        """Return the overview of the skills as they are known now."""
        described = [(skill.name, skill.description) for skill in self._host.offered_skills()]
        words = await anyio.to_thread.run_sync(words_of, described)
        listings = self._host.child()

        @cache
        def listing(room: int) -> str:
            return listings.listing(budget_tokens=max(room, 1), count=lambda text: len(text.encode()))

        texts: dict[str, ClientTexts] = {}
        for name, limits in CLIENTS.items():
            texts[name] = client_texts(limits, listing, words, self._options.note)
            await anyio.lowlevel.checkpoint()  # With many skills, each takes a while.
        self._prompts = PromptList.of(self._host)
        return Overview(texts, self._prompts.page(), self._prompts.digest(), self._options.has_scripts)

    # Requests

    async def _introduce(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Give each client its own instructions, and announce changes to it."""
        result = await call_next(ctx)
        if ctx.method == "notifications/initialized":
            self._notifier.register(connection_of(ctx))
        if ctx.method not in ("initialize", "server/discover") or ctx.request_id is None:
            return result
        found = as_json(result)
        if ctx.method == "initialize":
            found["capabilities"] = CAPABILITIES
        return {**found, "instructions": self._overview.instructions(_client_name(ctx))}

    async def _list_tools(self, ctx: Context, params: PageParams) -> types.ListToolsResult:
        return types.ListToolsResult.model_validate({"tools": self._overview.tools(_client_name(ctx))})

    async def _call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        client = self._client(ctx)
        tool = client.tools.get(params.name)
        if tool is None:
            raise invalid_params(f"there is no tool {params.name}")

        async def call() -> types.CallToolResult:
            before = client.loaded
            result = await tool(params.arguments or {})
            if client.loaded != before:
                await ctx.session.send_notification(types.ResourceListChangedNotification())
            # A model that sees no more than the text must recognize a refusal in it.
            text = f"REFUSED: {result.text}" if result.is_error else result.text
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=result.is_error)

        return await self._asking(ctx, params, call)

    async def _asking(
        self, ctx: Context, params: types.InputResponseRequestParams, work: Callable[[], Awaitable[T]]
    ) -> T | types.InputRequiredResult:
        """Return the result of a request, or what its client must ask the user before there is one."""
        with wire_errors(), self._consent.asking(ctx, params.input_responses) as asking:
            try:
                result = await work()
            except SkillError as error:
                if asking.needed is None:
                    raise invalid_params(f"{error}. {error.fix}" if error.fix else str(error)) from error
                return asking.needed
        return asking.needed or result

    async def _list_prompts(self, ctx: Context, params: PageParams) -> types.ListPromptsResult:
        page = self._overview.prompts
        if params is not None and params.cursor is not None:
            with wire_errors():
                after = read_cursor(LIST_PROMPTS, params.cursor)
            with anyio.move_on_after(PROMPT_SECONDS):  # The page before may be of an earlier start.
                await self.settled.wait()
            page = self._prompts.page(after)
        return types.ListPromptsResult.model_validate(page)

    async def _get_prompt(
        self, ctx: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        """Load the skill of a prompt, for a person who asked for exactly this one."""
        skill = await self._skill_of_prompt(params.name)
        conversation = self._client(ctx).conversation

        async def load() -> types.GetPromptResult:
            loaded = await conversation.load(skill.reference, arguments=params.arguments, actor="user")
            message = types.PromptMessage(role="user", content=types.TextContent(text=loaded.text))
            return types.GetPromptResult(messages=[message])

        return await self._asking(ctx, params, load)

    async def _skill_of_prompt(self, name: str) -> KnownSkill:
        """Return the skill of a prompt, which is listed from the start, before its server has answered."""
        prompts = self._prompts
        with anyio.move_on_after(PROMPT_SECONDS):
            while name not in prompts.skills:
                prompts = PromptList.of(self._host)
                if name in prompts.skills or not self._host.unanswered_servers():
                    break
                await anyio.sleep(_POLL_SECONDS)
        skill = prompts.skills.get(name)
        if skill is None:
            raise invalid_params(f"there is no prompt {name}")
        return skill

    async def _list_resources(self, ctx: Context, params: PageParams) -> types.ListResourcesResult:
        files = self._client(ctx).files()
        resources = [
            types.Resource(uri=uri, name=f"{reference}/{path}", mime_type="text/plain")
            for uri, (reference, path) in files.items()
        ]
        return types.ListResourcesResult(resources=resources)

    async def _read_resource(
        self, ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult | types.InputRequiredResult:
        client = self._client(ctx)

        async def read() -> types.ReadResourceResult:
            if (file := client.files().get(params.uri)) is None:
                raise NotFoundError("no file of a loaded skill has this URI", uri=params.uri)
            text = await client.text_of(*file)
            content = types.TextResourceContents(uri=params.uri, mime_type="text/plain", text=text)
            return types.ReadResourceResult(contents=[content])

        return await self._asking(ctx, params, read)

    def _client(self, ctx: Context) -> "_Client":
        name = _client_name(ctx)
        if name not in self._clients:
            conversation = self._host.child(page_length=CLIENTS[name].page)
            tools = tools_for(conversation, with_scripts=self._options.has_scripts)
            self._clients[name] = _Client(conversation, {tool.name: tool for tool in tools})
        return self._clients[name]


@dataclass(frozen=True, slots=True)
class _Client:
    """The conversation of all clients with the same limits, and its tools."""

    conversation: Conversation
    tools: Mapping[str, Tool]

    @property
    def loaded(self) -> tuple[str, ...]:
        return tuple(window.boundary for window in self.conversation.loaded)

    def files(self) -> dict[str, tuple[str, str]]:
        """Return the reference and the path of each file of the loaded skills, by URI."""
        found: dict[str, tuple[str, str]] = {}
        for window in self.conversation.loaded:
            reference = window.skill.reference
            paths = [SKILL_FILE, *(file.path for file in self.conversation.list_skill_files(reference))]
            for path in paths[: _MOST_RESOURCES - len(found)]:
                found[f"skillwire://{quote(reference)}/{quote(path)}"] = reference, path
        return found

    async def text_of(self, reference: str, path: str) -> str:
        if path == SKILL_FILE:
            return (await self.conversation.load(reference)).text
        return (await self.conversation.read_skill_file(reference, path)).text


@dataclass(frozen=True, slots=True)
class PromptList:
    """The skills that people may load, by prompt name: approved and local ones first.

    `keys` are what they are sorted by. A cursor has the key of the last prompt
    before it, so it stays valid when the list changes.
    """

    skills: Mapping[str, KnownSkill] = field(default_factory=dict[str, KnownSkill])
    keys: Sequence[str] = ()

    @classmethod
    def of(cls, host: Host) -> "PromptList":
        """Return the prompts for the skills of a host as they are known now."""
        approved = {approval.skill for approval in host.approvals}
        offered = host.offered_skills(to_user=True)
        keys = (f"{one.is_remote and one.id not in approved:d}{one.reference}" for one in offered)
        rows = sorted(zip(keys, offered, strict=True), key=itemgetter(0))
        names = [_NOT_IN_A_NAME.sub("-", skill.reference.replace("/", "--")) for _, skill in rows]
        uses = Counter(names)
        found = {
            name if uses[name] == 1 else f"{name}-{digest_of(skill.reference.encode())[-8:]}": skill
            for name, (_, skill) in zip(names, rows, strict=True)
        }
        return cls(found, [key for key, _ in rows])

    def page(self, after: str = "") -> JsonDict:
        """Return a page of prompts, which follow a key."""
        start = bisect_right(self.keys, after)
        stop = start + PROMPTS_PER_PAGE
        page: JsonDict = {"prompts": [_prompt_item(*one) for one in islice(self.skills.items(), start, stop)]}
        if self.keys[stop:]:
            page["nextCursor"] = write_cursor(LIST_PROMPTS, self.keys[stop - 1])
        return page

    def digest(self) -> str:
        """Return a digest of all prompts, which shows changes beyond the first page."""
        shown = ((name, one.description, declared_arguments(one)) for name, one in self.skills.items())
        return digest_of(repr([*shown]).encode())


def _prompt_item(name: str, skill: KnownSkill) -> JsonDict:
    arguments = [
        {"name": each.name, "description": _short(each.description or ""), "required": each.required}
        for each in declared_arguments(skill)
    ]
    about = {"title": _short(skill.reference), "description": _short(skill.description)}
    return {"name": name, **about, **({"arguments": arguments} if arguments else {})}


def _short(text: str) -> str:
    return cut(clean(text)[0], _PROMPT_BYTES)


def _client_name(ctx: Context) -> str:
    """Return which of the known clients sent a request."""
    params = ctx.session.client_params
    return ANY_CLIENT if params is None else known_client(params.client_info.name)


# Running a bridge: for the client that started this process, or over HTTP for clients on this machine.


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """What a bridge is made of: its host, the commands that it names to users, and what it knew before.

    `note` is added to the instructions.
    """

    new_host: Callable[[Ask], Host]
    command_line: Callable[..., str]
    stored: StoredOverview
    note: str = ""
    has_scripts: bool = False


@asynccontextmanager
async def open_bridge(options: BridgeOptions) -> AsyncGenerator[Bridge]:
    """Open the host of a bridge, and keep its list of skills up to date.

    Raises:
        SkillError: The host cannot be opened.
    """
    async with anyio.create_task_group() as pages:
        consent = ClientConsent(options.command_line, pages)
        async with options.new_host(consent.ask) as host, anyio.create_task_group() as group:
            bridge = Bridge(host, consent, options)
            group.start_soon(bridge.follow)
            yield bridge
            group.cancel_scope.cancel()
        pages.cancel_scope.cancel()


async def store_overview(options: BridgeOptions, *, seconds: float) -> None:
    """Ask the servers of a bridge for their skills, and store these for its first start.

    Raises:
        SkillError: The host cannot be opened.
    """
    async with open_bridge(options) as bridge:
        with anyio.move_on_after(seconds):
            await bridge.settled.wait()


async def run_stdio(options: BridgeOptions) -> None:
    """Serve the client that started this process, until it disconnects or SIGTERM or SIGINT arrives.

    Raises:
        SkillError: The host cannot be opened.
    """
    limit_malloc_arenas()
    with standard_streams() as (incoming, outgoing):
        async with open_bridge(options) as bridge:
            ends = {"incoming": incoming, "outgoing": outgoing}
            await run_until_signal(
                StdioConnection(bridge.server, None, **ends, listen=bridge.listen, opening=take_opening())
            )


async def run_http(options: BridgeOptions, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve clients on this machine over HTTP, until SIGTERM or SIGINT arrives.

    The Host header must be one of the loopback interface, as for every server
    of the SDK there, so no web page can use it.

    Raises:
        SkillError: The host cannot be opened.
    """
    async with open_bridge(options) as bridge:
        on_ready()
        await uvicorn.Server(http_config(bridge.server.streamable_http_app())).serve([listener])
