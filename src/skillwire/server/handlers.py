"""The extension's methods on the SDK's lowlevel `Server`, and what its own methods say about skills."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import HandlerEntry
from mcp.server.subscriptions import ListenHandler, PromptsListChanged
from mcp.shared.exceptions import MCPError

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.errors import INVALID_PARAMS, NotFoundError, SkillError
from skillwire.server.changes import ChangeBus, connection_of
from skillwire.server.dialects.compat import Binding, Compat, Context
from skillwire.server.failures import invalid_params, wire_errors
from skillwire.server.handshake import HandshakeMiddleware
from skillwire.server.noting import note_results
from skillwire.server.outputs import caller_of
from skillwire.server.results import as_json, is_modern, shared_terms
from skillwire.server.skills import Skills
from skillwire.wire.core import (
    EXTENSION,
    GET_SKILL,
    LIST_RESOURCES,
    LIST_SKILLS,
    LIST_TEMPLATES,
    READ_DIRECTORY,
    READ_RESOURCE,
    SETTINGS,
    JsonDict,
)
from skillwire.wire.cursor import is_cursor_of


class ListSkillsParams(types.RequestParams):
    """Anything goes here, so that our own words can say what is wrong with it."""

    cursor: Any = None


class UriParams(types.RequestParams):
    uri: Any = None


class GetParams(UriParams):
    name: Any = None
    arguments: Any = None


class DirectoryParams(UriParams):
    cursor: Any = None


class SkillMethods:
    """The three methods of the extension, as handlers of the SDK."""

    def __init__(self, skills: Skills) -> None:
        self._skills = skills

    async def list_skills(self, context: Context, params: ListSkillsParams) -> JsonDict:
        with wire_errors():
            cursor = _cursor(params, params.cursor)
            result = self._skills.answers.list_skills(cursor, modern=is_modern(context))
            if self._skills.is_known_by_name and not declares_extension(context):
                result["skills"] = [self._with_legacy_fields(entry) for entry in result["skills"]]
            return result

    async def get_skill(self, context: Context, params: GetParams) -> JsonDict:
        with wire_errors():
            answers, modern = self._skills.answers, is_modern(context)
            if not self.is_by_name(params):
                return await answers.get_skill(_uri(params), modern=modern)
            if "uri" in params.model_fields_set:
                raise invalid_params("`uri` and `name` exclude each other")
            compat, entry = self.named(params.name)
            result = answers.on_terms(await compat.get_named(entry, params.arguments), modern=modern)
            return {**result, "ttlMs": 0} if modern and entry.is_dynamic else result

    def is_by_name(self, params: GetParams) -> bool:
        """Tell whether `skills/get` was asked by name, on a server where it may be."""
        return self._skills.is_known_by_name and "name" in params.model_fields_set

    def named(self, name: object) -> tuple[Compat, SkillEntry]:
        """Return the skill that has a name in a dialect that gets skills by name.

        Raises:
            MCPError: None has it (-32602).
        """
        if not isinstance(name, str):
            raise invalid_params("`name` must be a string")
        for compat in self._skills.compat:
            entry = compat.entry_named(name)
            if entry is not None:
                return compat, entry
        raise MCPError(INVALID_PARAMS, f"no skill is called {quoted(name)}", {"name": name[:256]})

    def _with_legacy_fields(self, item: JsonDict) -> JsonDict:
        """Add to an entry what clients of older dialects look for; nothing of it is taken away (NEG-15)."""
        entry = self._skills.catalog.snapshot.get(SkillUri.parse(item["uri"]))
        for compat in self._skills.compat:
            item = {**compat.legacy_fields(entry), **item}
        return item

    async def read_directory(self, context: Context, params: DirectoryParams) -> JsonDict:
        with wire_errors():
            uri, cursor = _uri(params), _cursor(params, params.cursor)
            answers, modern = self._skills.answers, is_modern(context)
            try:
                return answers.read_directory(uri, cursor, modern=modern)
            except NotFoundError:
                for compat in self._skills.compat:
                    children = await compat.children(uri)
                    if children is not None:
                        return answers.directory_page(children, cursor, modern=modern)
                if not self._skills.has_unlisted:
                    raise
                return await answers.read_unlisted_directory(uri, cursor, modern=modern)

    def bindings(self) -> list[Binding]:
        return [
            (LIST_SKILLS, ListSkillsParams, self.list_skills),
            (GET_SKILL, GetParams, self.get_skill),
            (READ_DIRECTORY, DirectoryParams, self.read_directory),
        ]


class ResourceMethods:
    """The base protocol's resource methods, with skills among what the server serves anyway.

    `others` are the handlers the server had before; they answer for everything
    that is no skill's.
    """

    def __init__(self, skills: Skills) -> None:
        self.others: dict[str, HandlerEntry[Any]] = {}
        self._skills = skills

    async def read(self, context: Context, params: types.ReadResourceRequestParams) -> HandlerResult:
        """Read a skill's file, or else what the server had before, even where we see a directory."""
        with wire_errors():
            answers = self._skills.answers
            scripts = self._skills.scripts
            output = None if scripts is None else scripts.outputs.read(params.uri, caller_of(context))
            if output is not None:
                return answers.read_result(output, modern=is_modern(context))
            try:
                file = await answers.read(params.uri)
                return answers.read_result(file, modern=is_modern(context))
            except NotFoundError as error:
                for compat in self._skills.compat:
                    own = await compat.read(params.uri)
                    if own is not None:
                        return answers.read_result(own, modern=is_modern(context))
                is_directory = answers.is_directory(params.uri)
                hint = f"{quoted(params.uri)} is a directory; use {READ_DIRECTORY}" if is_directory else ""
                other = self.others.get(READ_RESOURCE)
                if other is None:
                    raise NotFoundError(hint or str(error), uri=params.uri) from error
        try:
            return await other.handler(context, params)
        except Exception as error:
            if hint:
                raise MCPError(INVALID_PARAMS, hint, {"uri": params.uri}) from error
            raise

    async def list_resources(self, context: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        """List what the server had before, page by page, and the skills after that."""
        scoped = self._scoped(context, params.cursor)
        if scoped is not None:
            return scoped
        other = self.others.get(LIST_RESOURCES)
        ours = params.cursor is not None and is_cursor_of(LIST_RESOURCES, params.cursor)
        before: JsonDict = {"resources": []}
        if other is not None and not ours:
            before = as_json(await other.handler(context, params))
            if before.get("nextCursor") is not None:
                return before
        with wire_errors():
            answers = self._skills.answers
            page = answers.list_resources(params.cursor if ours or other is None else None)
            own = [] if ours else [item for compat in self._skills.compat for item in compat.resources()]
            page["resources"] = [*before["resources"], *own, *page["resources"]]
            result = {**before, **page}
            return {**result, **shared_terms(answers.on_terms({}), before)} if is_modern(context) else result

    def _scoped(self, context: Context, cursor: str | None) -> JsonDict | None:
        scope = (context.params or {}).get("uri")
        if not isinstance(scope, str):
            return None
        with wire_errors():
            for compat in self._skills.compat:
                page = compat.list_scoped(scope, cursor)
                if page is not None:
                    return self._skills.answers.on_terms(page, modern=is_modern(context))
        return None

    async def list_templates(self, context: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        other = self.others.get(LIST_TEMPLATES)
        before: JsonDict = {"resourceTemplates": []}
        if other is not None:
            before = as_json(await other.handler(context, params))
            if params.cursor is not None:  # Ours were on the first page.
                return before
        with wire_errors():
            answers = self._skills.answers
            if other is None and params.cursor is not None:
                raise invalid_params("the cursor is not one of this listing")
            own = [item for compat in self._skills.compat for item in compat.templates()]
            templates = [*answers.templates(), *own, *before["resourceTemplates"]]
            terms = shared_terms(answers.on_terms({}), before) if is_modern(context) else {}
            return {**before, **terms, "resourceTemplates": templates}

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> HandlerResult:
        with wire_errors():
            if isinstance(params.ref, types.ResourceTemplateReference):
                argument = params.argument
                found = self._skills.answers.complete(params.ref.uri, argument.name, argument.value)
                for compat in self._skills.compat if found is None else ():
                    found = found or await compat.complete(params.ref.uri, argument.name, argument.value)
                if found is not None:
                    return {"completion": found, "resultType": "complete"}
            other = self.others.get("completion/complete")
            if other is None:
                raise invalid_params("nothing here can be completed but the path of a skill's file")
        return await other.handler(context, params)

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> HandlerResult:
        return await self._subscription(context, params, "resources/subscribe", start=True)

    async def unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> HandlerResult:
        return await self._subscription(context, params, "resources/unsubscribe", start=False)

    async def _subscription(
        self,
        context: Context,
        params: types.SubscribeRequestParams | types.UnsubscribeRequestParams,
        method: str,
        *,
        start: bool,
    ) -> HandlerResult:
        connection, announcer = connection_of(context), self._skills.announcer
        if not connection.has_standalone_channel:
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found", method)
        if not start:
            announcer.unsubscribe(connection, params.uri)
        elif not announcer.subscribe(connection, params.uri):
            raise invalid_params("too many subscriptions on this connection")
        other = self.others.get(method)
        return types.EmptyResult() if other is None else await other.handler(context, params)

    def take_over(self, server: Server[Any]) -> None:
        """Answer these methods on `server`, and keep its own handlers for what is no skill's."""
        for method, params_type, handler in self.bindings():
            current = server.get_request_handler(method)
            if current is None or current.handler != handler:
                if current is not None:
                    self.others[method] = current
                server.add_request_handler(method, params_type, handler)

    def bindings(self) -> list[Binding]:
        return [
            (READ_RESOURCE, types.ReadResourceRequestParams, self.read),
            (LIST_RESOURCES, types.PaginatedRequestParams, self.list_resources),
            (LIST_TEMPLATES, types.PaginatedRequestParams, self.list_templates),
            ("completion/complete", types.CompleteRequestParams, self.complete),
            ("resources/subscribe", types.SubscribeRequestParams, self.subscribe),
            ("resources/unsubscribe", types.UnsubscribeRequestParams, self.unsubscribe),
        ]


def install(server: Server[Any], skills: Skills) -> None:
    """Serve `skills` from `server`, beside everything it serves already.

    Raises:
        SkillError: The server serves skills already.
    """
    refuse_second(server)
    server.extensions[EXTENSION] = dict(SETTINGS)
    for method, params_type, handler in SkillMethods(skills).bindings():
        server.add_request_handler(method, params_type, handler)
    resources = ResourceMethods(skills)

    def take_over() -> None:
        for methods in (resources, *skills.compat, *filter(None, [skills.find_tool])):
            methods.take_over(server)

    take_over()
    server.middleware.insert(0, HandshakeMiddleware(skills))
    note_results(server, skills.notes)
    # Once more at the start: the server may have got handlers of its own since.
    own_lifespan(server, skills, at_start=take_over)


def refuse_second(server: Server[Any]) -> None:
    """Check that `server` serves no skills yet.

    Raises:
        SkillError: It does.
    """
    if EXTENSION in server.extensions or server.get_request_handler(LIST_SKILLS) is not None:
        raise SkillError(
            "this server serves skills already", fix="pass all folders to one call, or use the handle's add()"
        )


def add_listening(server: Server[Any], skills: Skills) -> ListenHandler | None:
    """Serve `subscriptions/listen` if the server does not, so that modern clients hear of changes."""
    if server.get_request_handler("subscriptions/listen") is not None:
        return None
    bus = ChangeBus()
    skills.announcer.add_bus(bus)
    listen = ListenHandler(bus)

    async def listen_to_resources(
        context: Context, params: types.SubscriptionsListenRequestParams
    ) -> HandlerResult:
        """Acknowledge what this bus can tell of, and nothing else."""
        told = {type(event) for compat in skills.compat for event in compat.events()}
        nothing = {"tools_list_changed": None}
        if PromptsListChanged not in told:
            nothing["prompts_list_changed"] = None
        wanted = params.notifications.model_copy(update=nothing)
        return await listen(context, params.model_copy(update={"notifications": wanted}))

    params_type = types.SubscriptionsListenRequestParams
    server.add_request_handler("subscriptions/listen", params_type, listen_to_resources)
    return listen


def own_lifespan(server: Server[Any], skills: Skills, *, at_start: Callable[[], None] = lambda: None) -> None:
    """Open the skills while the server runs, around its own lifespan."""
    inner: Callable[[Server[Any]], AbstractAsyncContextManager[Any]] = server.lifespan

    @asynccontextmanager
    async def lifespan(running: Server[Any]) -> AsyncGenerator[Any]:
        async with AsyncExitStack() as stack:
            at_start()
            await stack.enter_async_context(skills.open())
            yield await stack.enter_async_context(inner(running))

    server.lifespan = lifespan


def declares_extension(context: Context) -> bool:
    """Tell whether the client said that it knows the extension."""
    capabilities = context.session.client_capabilities
    return capabilities is not None and EXTENSION in (capabilities.extensions or {})


def _uri(params: UriParams) -> str:
    if not isinstance(params.uri, str):
        raise invalid_params(
            "`uri` must be a string" if "uri" in params.model_fields_set else "`uri` is missing"
        )
    return params.uri


def _cursor(params: types.RequestParams, cursor: object) -> str | None:
    if "cursor" not in params.model_fields_set:
        return None
    if not isinstance(cursor, str):
        raise invalid_params("`cursor` must be a string")
    return cursor
