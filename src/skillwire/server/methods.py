"""The extension's methods on the SDK's lowlevel `Server`, and skills in the base protocol's methods."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import HandlerEntry
from mcp.server.subscriptions import ListenHandler, PromptsListChanged
from mcp.shared.exceptions import MCPError

from skillwire.core import INVALID_PARAMS, JsonDict, NotFoundError, SkillEntry, SkillError, SkillUri, quoted
from skillwire.server.changes import ChangeBus, connection_of
from skillwire.server.dialects.base import (
    Binding,
    Context,
    DialectServer,
    as_json,
    is_modern,
    merged_cache_fields,
)
from skillwire.server.messages import invalid_params, peer_error, wire_errors
from skillwire.server.meta import MetaAnnotator
from skillwire.server.outputs import caller_of
from skillwire.server.parameters import ListSkillsRequestParams, RequestCheck
from skillwire.server.skills import Skills
from skillwire.wire.core import (
    EXTENSION,
    GET_SKILL,
    LIST_RESOURCES,
    LIST_SKILLS,
    LIST_TEMPLATES,
    PROMPTS_CHANGED,
    READ_DIRECTORY,
    READ_RESOURCE,
    SETTINGS,
    is_cursor_of,
)

# Skills in the handshake: capabilities and instructions.


class HandshakeMiddleware:
    """Declares the extension in the legacy handshake, where the SDK omits it.

    The SDK's 2025-11-25 models have no `extensions` in the capabilities, so the
    declaration is added to the finished result. The capabilities of older
    dialects are in the SDK's models of neither revision.
    """

    def __init__(self, skills: Skills) -> None:
        self._skills = skills

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        await self._skills.catch_up()
        result = await call_next(ctx)
        for dialect in self._skills.dialect_servers:
            await dialect.after_message(ctx)
        if ctx.method == "initialize" and ctx.request_id is not None:
            return self._with_summary(self._with_capabilities(ctx, as_json(result)))
        if ctx.method == "server/discover" and ctx.request_id is not None:
            found = as_json(result)
            capabilities: JsonDict = found.get("capabilities") or {}
            found["capabilities"] = {**capabilities, **self._dialect_capabilities(notifies=False)}
            return self._with_summary(found)
        if ctx.method == "notifications/initialized":
            self._skills.announcer.register(connection_of(ctx))
        return result

    def names_skills(self) -> bool:
        """Return whether every client may see every skill, so that the instructions may name them."""
        return True

    def _with_summary(self, result: JsonDict) -> JsonDict:
        """Append the summary of the skills to the server's own instructions."""
        summary = self._skills.summary() if self.names_skills() else ""
        own = result.get("instructions")
        return {**result, "instructions": f"{own}\n\n{summary}" if own else summary} if summary else result

    def _with_capabilities(self, context: Context, result: JsonDict) -> JsonDict:
        capabilities = dict(result.get("capabilities") or {})
        capabilities["extensions"] = {**(capabilities.get("extensions") or {}), EXTENSION: dict(SETTINGS)}
        resources = dict(capabilities.get("resources") or {})
        notifies = connection_of(context).has_standalone_channel
        resources["listChanged"] = resources["subscribe"] = notifies
        capabilities["resources"] = resources
        if any(PROMPTS_CHANGED in dialect.notifications() for dialect in self._skills.dialect_servers):
            capabilities["prompts"] = {**(capabilities.get("prompts") or {}), "listChanged": notifies}
        return {**result, "capabilities": {**capabilities, **self._dialect_capabilities(notifies=notifies)}}

    def _dialect_capabilities(self, *, notifies: bool) -> JsonDict:
        """Return the capabilities of older dialects, merged by name.

        Their notifications are not sent on the streams of modern clients, so
        `listChanged` is true only where the connection has a channel.
        """
        found: JsonDict = {}
        for dialect in self._skills.dialect_servers:
            for name, members in dialect.capabilities().items():
                found[name] = {**found.get(name, {}), **members}
                if "listChanged" in found[name]:
                    found[name]["listChanged"] = notifies
        return found


# `_meta` on the results of methods about skills, added by the author's function.


NOTED = frozenset({LIST_SKILLS, GET_SKILL, LIST_RESOURCES, LIST_TEMPLATES, READ_DIRECTORY, READ_RESOURCE})


class MetaMiddleware:
    """The outermost middleware, so that results already have the protocol's own `_meta`."""

    def __init__(self, annotator: MetaAnnotator) -> None:
        self._annotator = annotator

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method not in NOTED or ctx.request_id is None:
            return result
        uri = (ctx.params or {}).get("uri")
        return self._annotator.result(as_json(result), ctx.method, uri if isinstance(uri, str) else "")


def annotate_results(server: Server[Any], annotator: MetaAnnotator) -> None:
    """Apply the author's function, if any, to every result of `server` about skills."""
    if annotator.annotate is not None:
        server.middleware.insert(0, MetaMiddleware(annotator))


class UriRequestParams(types.RequestParams):
    uri: Any = None


class GetRequestParams(UriRequestParams):
    name: Any = None
    arguments: Any = None


class DirectoryRequestParams(UriRequestParams):
    cursor: Any = None


class SkillMethods:
    """The three methods of the extension, as handlers of the SDK."""

    def __init__(self, skills: Skills) -> None:
        self._skills = skills

    async def list_skills(self, context: Context, params: ListSkillsRequestParams) -> JsonDict:
        with wire_errors():
            cursor = _cursor(params, params.cursor)
            result = self._skills.answers.list_skills(cursor, modern=is_modern(context))
            if self._skills.has_by_name_dialect and not declares_extension(context):
                result["skills"] = await self._with_legacy_fields(context, result["skills"])
            return result

    async def get_skill(self, context: Context, params: GetRequestParams) -> JsonDict:
        with wire_errors():
            answers, modern = self._skills.answers, is_modern(context)
            if not self.is_by_name(params):
                return await answers.get_skill(_uri(params), modern=modern)
            if "uri" in params.model_fields_set:
                raise invalid_params("`uri` and `name` exclude each other")
            dialect, entry = self.named(params.name)
            result = answers.with_cache_fields(
                await dialect.get_named(context, entry, params.arguments), modern=modern
            )
            return {**result, "ttlMs": 0} if modern and entry.is_dynamic else result

    def is_by_name(self, params: GetRequestParams) -> bool:
        """Return whether a `skills/get` request is by name and the server supports that."""
        return self._skills.has_by_name_dialect and "name" in params.model_fields_set

    def named(self, name: object) -> tuple[DialectServer, SkillEntry]:
        """Return the skill with a name, and the dialect that knows it by this name.

        Raises:
            MCPError: No skill has this name (-32602).
        """
        if not isinstance(name, str):
            raise invalid_params("`name` must be a string")
        for dialect in self._skills.dialect_servers:
            entry = dialect.entry_named(name)
            if entry is not None:
                return dialect, entry
        raise peer_error(INVALID_PARAMS, f"no skill is called {quoted(name)}", name=name)

    async def _with_legacy_fields(self, context: Context, items: list[JsonDict]) -> list[JsonDict]:
        """Add the members of older dialects to entries, and remove none (NEG-15)."""
        snapshot = self._skills.source.snapshot
        entries = [snapshot.get(SkillUri.parse(item["uri"])) for item in items]
        for dialect in self._skills.dialect_servers:
            added = await dialect.legacy_fields(context, entries)
            items = [_merged(fields, item) for fields, item in zip(added, items, strict=True)]
        return items

    async def read_directory(self, context: Context, params: DirectoryRequestParams) -> JsonDict:
        with wire_errors():
            uri, cursor = _uri(params), _cursor(params, params.cursor)
            answers, modern = self._skills.answers, is_modern(context)
            try:
                return answers.read_directory(uri, cursor, modern=modern)
            except NotFoundError:
                for dialect in self._skills.dialect_servers:
                    children = await dialect.children(uri)
                    if children is not None:
                        return answers.directory_page(children, cursor, modern=modern)
                if not self._skills.has_unlisted:
                    raise
                return await answers.read_unlisted_directory(uri, cursor, modern=modern)

    def bindings(self) -> list[Binding]:
        return [
            (LIST_SKILLS, ListSkillsRequestParams, self.list_skills),
            (GET_SKILL, GetRequestParams, self.get_skill),
            (READ_DIRECTORY, DirectoryRequestParams, self.read_directory),
        ]


class ResourceMethods:
    """The base protocol's resource methods: skills, and the server's own resources.

    `others` are the server's own handlers; they answer for all resources that do
    not belong to a skill.
    """

    def __init__(self, skills: Skills) -> None:
        self.others: dict[str, HandlerEntry[Any]] = {}
        self._skills = skills

    async def read(self, context: Context, params: types.ReadResourceRequestParams) -> HandlerResult:
        """Read a skill's file, or else a resource of the server, even if the URI is a skill directory."""
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
                for dialect in self._skills.dialect_servers:
                    own = await dialect.read(params.uri)
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
                raise peer_error(INVALID_PARAMS, hint, uri=params.uri) from error
            raise

    async def list_resources(self, context: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        """List the server's own resources, page by page, then the skills."""
        scoped = self._scoped(context, params.cursor)
        if scoped is not None:
            return scoped
        other = self.others.get(LIST_RESOURCES)
        is_ours = params.cursor is not None and is_cursor_of(LIST_RESOURCES, params.cursor)
        before: JsonDict = {"resources": []}
        if other is not None and not is_ours:
            before = as_json(await other.handler(context, params))
            if before.get("nextCursor") is not None:
                return before
        with wire_errors():
            answers = self._skills.answers
            page = answers.list_resources(params.cursor if is_ours or other is None else None)
            own = (
                []
                if is_ours
                else [item for dialect in self._skills.dialect_servers for item in dialect.resources()]
            )
            page["resources"] = [*before["resources"], *own, *page["resources"]]
            result = {**before, **page}
            return (
                {**result, **merged_cache_fields(answers.with_cache_fields({}), before)}
                if is_modern(context)
                else result
            )

    def _scoped(self, context: Context, cursor: str | None) -> JsonDict | None:
        scope = (context.params or {}).get("uri")
        if not isinstance(scope, str):
            return None
        with wire_errors():
            for dialect in self._skills.dialect_servers:
                page = dialect.list_scoped(scope, cursor)
                if page is not None:
                    return self._skills.answers.with_cache_fields(page, modern=is_modern(context))
        return None

    async def list_templates(self, context: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        other = self.others.get(LIST_TEMPLATES)
        before: JsonDict = {"resourceTemplates": []}
        if other is not None:
            before = as_json(await other.handler(context, params))
            if params.cursor is not None:  # The templates of skills were on the first page.
                return before
        with wire_errors():
            answers = self._skills.answers
            if other is None and params.cursor is not None:
                raise invalid_params("the cursor is not one of this listing")
            own = [item for dialect in self._skills.dialect_servers for item in dialect.templates()]
            templates = [*answers.templates(), *own, *before["resourceTemplates"]]
            fields = merged_cache_fields(answers.with_cache_fields({}), before) if is_modern(context) else {}
            return {**before, **fields, "resourceTemplates": templates}

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> HandlerResult:
        with wire_errors():
            if isinstance(params.ref, types.ResourceTemplateReference):
                argument = params.argument
                found = self._skills.answers.complete(params.ref.uri, argument.name, argument.value)
                for dialect in self._skills.dialect_servers if found is None else ():
                    found = found or await dialect.complete(params.ref.uri, argument.name, argument.value)
                if found is not None:
                    return {"completion": found, "resultType": "complete"}
            other = self.others.get("completion/complete")
            if other is None:
                raise invalid_params("only the path of a skill's file can be completed")
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

    def wrap_handlers(self, server: Server[Any]) -> None:
        """Answer these methods on `server`; keep its own handlers for other resources."""
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
    """Serve `skills` from `server`, in addition to its own methods.

    Raises:
        SkillError: The server serves skills already.
    """
    require_no_skills(server)
    server.extensions[EXTENSION] = dict(SETTINGS)
    for method, params_type, handler in SkillMethods(skills).bindings():
        server.add_request_handler(method, params_type, handler)
    resources = ResourceMethods(skills)

    def wrap_handlers() -> None:
        for methods in (resources, *skills.dialect_servers, *filter(None, [skills.find_tool])):
            methods.wrap_handlers(server)

    wrap_handlers()
    server.middleware[:0] = [RequestCheck(server), HandshakeMiddleware(skills)]
    annotate_results(server, skills.annotator)
    # Again at startup: handlers may have been added to the server since.
    wrap_lifespan(server, skills, at_start=wrap_handlers)


def require_no_skills(server: Server[Any]) -> None:
    """Check that `server` does not serve skills yet.

    Raises:
        SkillError: It does.
    """
    if EXTENSION in server.extensions or server.get_request_handler(LIST_SKILLS) is not None:
        raise SkillError(
            "this server serves skills already", fix="pass all folders to one call, or use the handle's add()"
        )


def add_change_subscriptions(server: Server[Any], skills: Skills) -> ListenHandler | None:
    """Serve `subscriptions/listen` if the server does not, for change notifications to modern clients."""
    if server.get_request_handler("subscriptions/listen") is not None:
        return None
    bus = ChangeBus()
    skills.announcer.add_bus(bus)
    listen = ListenHandler(bus)

    async def listen_to_resources(
        context: Context, params: types.SubscriptionsListenRequestParams
    ) -> HandlerResult:
        """Acknowledge only the notifications that this bus sends."""
        sent = {type(event) for dialect in skills.dialect_servers for event in dialect.events()}
        unsupported = {"tools_list_changed": None}
        if PromptsListChanged not in sent:
            unsupported["prompts_list_changed"] = None
        wanted = params.notifications.model_copy(update=unsupported)
        return await listen(context, params.model_copy(update={"notifications": wanted}))

    params_type = types.SubscriptionsListenRequestParams
    server.add_request_handler("subscriptions/listen", params_type, listen_to_resources)
    return listen


def wrap_lifespan(
    server: Server[Any], skills: Skills, *, at_start: Callable[[], None] = lambda: None
) -> None:
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
    """Return whether the client declared the extension."""
    capabilities = context.session.client_capabilities
    return capabilities is not None and EXTENSION in (capabilities.extensions or {})


def _uri(params: UriRequestParams) -> str:
    if not isinstance(params.uri, str):
        raise invalid_params(
            "`uri` must be a string" if "uri" in params.model_fields_set else "`uri` is missing"
        )
    return params.uri


def _merged(fields: JsonDict, item: JsonDict) -> JsonDict:
    """Add fields to an entry; its own take precedence, and `_meta` is merged."""
    merged = {**fields, **item}
    if "_meta" in fields and "_meta" in item:
        merged["_meta"] = {**fields["_meta"], **item["_meta"]}
    return merged


def _cursor(params: types.RequestParams, cursor: object) -> str | None:
    if "cursor" not in params.model_fields_set:
        return None
    if not isinstance(cursor, str):
        raise invalid_params("`cursor` must be a string")
    return cursor
