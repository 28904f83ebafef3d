# pyright: reportPrivateUsage=false
"""Skills on a FastMCP server: the provider of their files, and the extension with the methods."""

import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import mcp_types as types
from fastmcp.prompts import Prompt, PromptResult
from fastmcp.resources import Resource, ResourceTemplate
from fastmcp.server.dependencies import get_server
from fastmcp.server.extensions import MethodBinding, ServerExtension
from fastmcp.server.providers import Provider
from fastmcp.tools import Tool, ToolResult
from fastmcp.utilities.components import FastMCPComponent
from fastmcp.utilities.versions import VersionSpec
from mcp.server.context import HandlerResult
from mcp.shared.exceptions import MCPError

from skillwire.core import (
    DEFAULT_SCHEME,
    Dialect,
    JsonDict,
    NotFoundError,
    SkillEntry,
    SkillError,
    canonical_uri,
    media_type_of,
    segment_of,
)
from skillwire.server.answers import Answers, FileContent
from skillwire.server.browse import skill_around
from skillwire.server.dialects.base import Context, Handler, MaySee
from skillwire.server.dialects.prompts import Prompts, SkillPrompt
from skillwire.server.fastmcp.methods import (
    CALLER,
    MANY_TYPES,
    AnyFastMCP,
    CallerVisibility,
    FileError,
    FileResource,
    FilesTemplate,
    ResourceVisibility,
    ScopedListing,
    SkillsMiddleware,
    SkillsProviderBase,
    VisibleSkillMethods,
    located,
)
from skillwire.server.find_tool import (
    ANNOTATIONS,
    DESCRIPTION,
    INPUT_SCHEMA,
    NAME,
    OUTPUT_SCHEMA,
    TITLE,
    FindTool,
)
from skillwire.server.messages import wire_errors
from skillwire.server.methods import (
    ResourceMethods,
    add_change_subscriptions,
    annotate_results,
    require_no_skills,
    wrap_lifespan,
)
from skillwire.server.outputs import OUTPUT_SCHEME
from skillwire.server.parameters import RequestCheck
from skillwire.server.skills import Skills
from skillwire.server.wellknown.app import add_site
from skillwire.sources.snapshot import Snapshot
from skillwire.wire.core import EXTENSION, LIST_RESOURCES, SETTINGS, skill_resource

# Skills as prompts of a FastMCP server, behind its middleware, transforms and visibility rules.


class SkillPromptComponent(Prompt):
    """A prompt with the full text of a skill."""

    _prompts: Prompts
    _prompt: SkillPrompt

    def __init__(self, prompts: Prompts, prompt: SkillPrompt) -> None:
        super().__init__(name=prompt.name, description=prompt.entry.frontmatter.description)
        self._prompts = prompts
        self._prompt = prompt

    async def render(self, arguments: dict[str, Any] | None = None) -> PromptResult:
        try:
            with wire_errors():
                entry, text = await self._prompts.text_of(self._prompt.entry)
                return PromptResult(text, description=entry.frontmatter.description)
        except MCPError as error:
            raise FileError(error) from error

    def to_mcp_prompt(self, **overrides: Any) -> types.Prompt:
        # Without the empty arguments and tags that FastMCP would send.
        return super().to_mcp_prompt(**overrides).model_copy(update={"arguments": None, "meta": None})


class PromptsProvider(Provider):
    """The prompts of a server's skills, if it serves skills as prompts.

    It comes after the server's own prompts, which take precedence.
    """

    def __init__(self, skills: Skills, may_see: MaySee) -> None:
        super().__init__()
        self._skills = skills
        self._may_see = may_see

    async def get_tasks(self) -> Sequence[FastMCPComponent]:
        return []

    async def _list_prompts(self) -> Sequence[Prompt]:
        prompts = self._skills.prompts
        if prompts is None:
            return []
        with wire_errors():
            return [
                SkillPromptComponent(prompts, prompt)
                for prompt in prompts.table.prompts
                if await self._may_see(prompt.entry.uri.published)
            ]

    async def _get_prompt(self, name: str, version: VersionSpec | None = None) -> Prompt | None:
        prompts = self._skills.prompts
        if prompts is None:
            return None
        with wire_errors():
            prompt = prompts.table.by_name.get(name)
            if prompt is None or not await self._may_see(prompt.entry.uri.published):
                return None
            return SkillPromptComponent(prompts, prompt)


# The tool that finds skills, on a FastMCP server, behind its middleware, transforms and visibility rules.


class FindSkillsTool(Tool):
    """`find_skills` as a tool of FastMCP."""

    _tool: FindTool

    def __init__(self, tool: FindTool) -> None:
        super().__init__(
            name=NAME,
            title=TITLE,
            description=DESCRIPTION,
            parameters=dict(INPUT_SCHEMA),
            output_schema=dict(OUTPUT_SCHEMA),
            annotations=types.ToolAnnotations.model_validate(dict(ANNOTATIONS)),
        )
        self._tool = tool

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        try:
            with wire_errors():
                result = await self._tool.run(arguments)
        except MCPError as error:
            raise FileError(error) from error
        return ToolResult.from_mcp_result(types.CallToolResult.model_validate(result))

    def to_mcp_tool(self, **overrides: Any) -> types.Tool:
        # Without the empty tags that FastMCP would send.
        return super().to_mcp_tool(**overrides).model_copy(update={"meta": None})


class FindToolProvider(Provider):
    """The provider of the tool. It comes after the server's own tools, which take precedence."""

    def __init__(self, tool: FindTool) -> None:
        super().__init__()
        self._tool = FindSkillsTool(tool)

    async def get_tasks(self) -> Sequence[FastMCPComponent]:
        return []

    async def _list_tools(self) -> Sequence[Tool]:
        return [self._tool]

    async def _get_tool(self, name: str, version: VersionSpec | None = None) -> Tool | None:
        return self._tool if name == NAME else None


_COMPLETE = "completion/complete"
_NO_VALUES: JsonDict = {"values": []}


def attach(server: AnyFastMCP, skills: Skills) -> None:
    """Serve `skills` from `server`, and from every server it is mounted on.

    Raises:
        SkillError: The server already serves skills.
    """
    require_no_skills(server._mcp_server)
    provider = SkillsProvider(skills, server)
    server.add_provider(provider)
    # The first provider wins: no resource of the server may replace a file with a digest.
    server.providers.remove(provider)
    server.providers.insert(0, provider)
    if Dialect.WELL_KNOWN in skills.dialects:
        add_site(server, skills)
    server.add_provider(PromptsProvider(skills, provider._visibility.may_see))
    if skills.find_tool is not None:
        skills.find_tool.visibility = provider._visibility
        server.add_provider(FindToolProvider(skills.find_tool))


class SkillsProvider(SkillsProviderBase):
    """The files of skills, as resources of FastMCP."""

    def __init__(self, skills: Skills, home: AnyFastMCP) -> None:
        super().__init__(skills)
        self._extension = SkillsExtension(skills, weakref.ref(home))
        self._visibility = CallerVisibility(self._extension.visibility)
        for compat in skills.dialect_servers:
            compat.may_see = self._visibility.may_see
        self._listed: tuple[Snapshot | None, list[Resource]] = (None, [])

    def required_extensions(self) -> Sequence[ServerExtension]:
        return [self._extension]

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Open the skills while the server runs, or the one that it is mounted on.

        Raises:
            SkillError: The running server has other skills.
        """
        root = get_server()
        serving = root._extensions.get(EXTENSION)
        if not isinstance(serving, SkillsExtension) or serving.skills is not self.skills:
            raise _duplicate_skills_error(root)
        async with self.skills.open():
            yield

    async def get_tasks(self) -> Sequence[FastMCPComponent]:
        return []  # Files are never background tasks.

    async def _list_resources(self) -> Sequence[Resource]:
        with wire_errors():
            answers = self.skills.answers
            snapshot = answers.source.snapshot
            if self._listed[0] is not snapshot:
                self._listed = (
                    snapshot,
                    [self._skill_file(answers, entry) for entry in answers.listed_of(snapshot)],
                )
            own = [item for compat in self.skills.dialect_servers for item in compat.resources()]
            if not own or await self._visibility.is_limited():
                return self._listed[1]
            return [*(self._dialect_file(item) for item in own), *self._listed[1]]

    async def _get_resource(self, uri: str, version: VersionSpec | None = None) -> Resource | None:
        with wire_errors():
            answers = self.skills.answers
            output = self._output(uri)
            if output is not None:
                return output
            try:
                entry, published = located(answers.source.snapshot, uri)
            except NotFoundError:
                return await self._unlisted(answers, uri)
            if published == entry.uri.published:
                return self._skill_file(answers, entry)
            return self._file(published, entry.frontmatter.name)

    def _output(self, uri: str) -> Resource | None:
        """Return an output of a script for the caller that ran it; rules about skills do not apply to it."""
        scripts, caller = self.skills.scripts, CALLER.get()
        file = None if scripts is None or caller is None else scripts.outputs.read(uri, caller)
        if file is None:
            return None
        return FileResource(self.skills, file=file, uri=uri, name=segment_of(uri), mime_type=file.media_type)

    async def _unlisted(self, answers: Answers, uri: str) -> Resource | None:
        """Return a directory, a file of an unlisted skill, or a resource of a dialect."""
        if answers.is_directory(uri):
            directory = canonical_uri(uri)
            skill = skill_around(answers.source.snapshot, directory)
            return self._file(directory, directory if skill is None else skill.frontmatter.name)
        scheme = uri.partition(":")[0]
        try:
            file = await answers.read(uri)
        except NotFoundError:
            return await self._dialect_resource(uri)
        except Exception:
            # FastMCP treats a failed lookup as not found, so return a resource whose `read` reports the
            # error, unless the URI may belong to another provider.
            return self._file(uri, uri) if scheme in self._extension.live_schemes else None
        self._extension.live_schemes.add(scheme)
        return self._file(uri, uri, file)

    async def _dialect_resource(self, uri: str) -> Resource | None:
        """Return a resource of an older dialect, if the caller may see all skills, which it may list."""
        if not self.skills.dialect_servers or await self._visibility.is_limited():
            return None
        for compat in self.skills.dialect_servers:
            file = await compat.read(uri)
            if file is not None:
                return FileResource(
                    self.skills, file=file, uri=uri, name=segment_of(uri), mime_type=file.media_type
                )
        return None

    async def _list_resource_templates(self) -> Sequence[ResourceTemplate]:
        with wire_errors():
            return [
                FilesTemplate(
                    name=template["name"],
                    title=template.get("title"),
                    uri_template=template["uriTemplate"],
                    description=template["description"],
                    mime_type=template.get("mimeType", MANY_TYPES),
                    parameters={},
                )
                for template in [
                    *self.skills.answers.templates(),
                    *(item for compat in self.skills.dialect_servers for item in compat.templates()),
                ]
            ]

    async def _get_resource_template(
        self, uri: str, version: VersionSpec | None = None
    ) -> ResourceTemplate | None:
        return None  # Everything readable is a resource.

    def _skill_file(self, answers: Answers, entry: SkillEntry) -> FileResource:
        described = skill_resource(entry, modified=answers.source.modified_at(entry.uri))
        return FileResource(
            self.skills,
            uri=described["uri"],
            name=described["name"],
            description=described["description"],
            mime_type=described["mimeType"],
            annotations=types.Annotations.model_validate(described["annotations"]),
        )

    def _dialect_file(self, item: JsonDict) -> FileResource:
        return FileResource(
            self.skills,
            uri=item["uri"],
            name=item["name"],
            title=item["title"],
            description=item["description"],
            mime_type=item["mimeType"],
        )

    def _file(self, uri: str, name: str, file: FileContent | None = None) -> FileResource:
        return FileResource(self.skills, file=file, uri=uri, name=name, mime_type=media_type_of(uri))


class SkillsExtension(ServerExtension):
    """The extension on one server: its methods, middleware and handlers.

    FastMCP gives a clone to each server that a server with skills is mounted on.
    """

    identifier = EXTENSION
    auto_register = True

    def __init__(self, skills: Skills, home: "weakref.ref[AnyFastMCP]") -> None:
        self.skills = skills
        self.live_schemes = {DEFAULT_SCHEME, OUTPUT_SCHEME}
        self._home = home
        self.visibility = ResourceVisibility(self, skills)
        self._resources = ResourceMethods(skills)
        self._scoped = ScopedListing(skills, self.visibility)

    def clone(self) -> "SkillsExtension":
        clone = SkillsExtension(self.skills, self._home)
        clone.live_schemes = self.live_schemes
        return clone

    def settings(self) -> dict[str, Any]:
        return dict(SETTINGS)

    def methods(self) -> Sequence[MethodBinding]:
        bindings = VisibleSkillMethods(self.skills, self.visibility).bindings()
        for compat in self.skills.dialect_servers:
            # Prompts are added by a provider, so that they pass through FastMCP.
            bindings += [binding for binding in compat.bindings() if binding[0].startswith("skills/")]
        return [MethodBinding(method, params_type, handler) for method, params_type, handler in bindings]

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Check, if this is the running server, that it can serve the skills.

        Raises:
            SkillError: A namespace would rename their URIs, or the site would publish hidden skills.
        """
        self.visibility.reset()
        self.visibility.provider_paths()
        if Dialect.WELL_KNOWN in self.skills.dialects and (
            self.server.auth is not None or self.visibility.can_hide()
        ):
            raise SkillError(
                f"the well-known dialect publishes all skills, and {self.server.name!r} restricts access",
                fix="leave out the dialect, or serve the public skills from another server",
            )
        self._install_handlers(self.server)  # Again: the server's own handlers may have been added since.
        yield

    def _bind(self, server: AnyFastMCP) -> None:
        # FastMCP binds a clone before it drops it as a duplicate. Other skills here mean that two servers
        # with skills are combined.
        serving = server._extensions.get(EXTENSION)
        if serving is None:
            require_no_skills(server._mcp_server)
        elif not isinstance(serving, SkillsExtension) or serving.skills is not self.skills:
            raise _duplicate_skills_error(server)
        super()._bind(server)
        if not any(isinstance(known, SkillsMiddleware) for known in server._mcp_server.middleware):
            self._install(server)

    def _install(self, server: AnyFastMCP) -> None:
        if server.auth is not None and server is not self._home():
            self.skills.result_settings = replace(self.skills.result_settings, cache_scope="private")
        lowlevel = server._mcp_server
        lowlevel.middleware[:0] = [RequestCheck(lowlevel), SkillsMiddleware(self.skills, self.visibility)]
        annotate_results(lowlevel, self.skills.annotator)
        lowlevel.add_request_handler(
            "resources/subscribe", types.SubscribeRequestParams, self._resources.subscribe
        )
        lowlevel.add_request_handler(
            "resources/unsubscribe", types.UnsubscribeRequestParams, self._resources.unsubscribe
        )
        self._install_handlers(server)
        add_change_subscriptions(lowlevel, self.skills)
        # FastMCP closes its providers with the first of several connections, so each keeps the skills open.
        wrap_lifespan(lowlevel, self.skills)

    def _install_handlers(self, server: AnyFastMCP) -> None:
        """Install the handlers for completion and, for older dialects, for listing one directory."""
        self._override_handler(server, _COMPLETE, types.CompleteRequestParams, self._complete)
        for compat in self.skills.dialect_servers:
            compat.server = server._mcp_server
        if self.skills.dialect_servers:
            self._override_handler(server, LIST_RESOURCES, types.PaginatedRequestParams, self._list_resources)

    def _override_handler(
        self, server: AnyFastMCP, method: str, params_type: type[types.RequestParams], handler: Handler
    ) -> None:
        current = server._mcp_server.get_request_handler(method)
        if current is None or current.handler != handler:
            if current is not None:
                self._resources.others[method] = current
            server._mcp_server.add_request_handler(method, params_type, handler)

    async def _list_resources(self, context: Context, params: types.PaginatedRequestParams) -> HandlerResult:
        everything = self._resources.others[LIST_RESOURCES].handler
        page = self._scoped.page(context, params.cursor)
        if page is None:
            return await everything(context, params)
        return await self._scoped.visible_page(self.server, context, page, everything)

    async def _complete(self, context: Context, params: types.CompleteRequestParams) -> HandlerResult:
        if isinstance(params.ref, types.ResourceTemplateReference):
            with wire_errors():
                argument, template = params.argument, params.ref.uri
                found = self.skills.answers.complete(template, argument.name, argument.value)
                is_limited = await self.visibility.is_limited()
                if found is not None and is_limited:
                    start = template.partition("://")[0] + "://"
                    values = [path for path in found["values"] if await self.visibility.can_see(start + path)]
                    found = {"values": values, "hasMore": found["hasMore"]}
                if found is None and is_limited and self._is_dialect_template(template):
                    found = _NO_VALUES
                if found is not None:
                    return {"completion": found, "resultType": "complete"}
        return await self._resources.complete(context, params)

    def _is_dialect_template(self, template: str) -> bool:
        own = (item["uriTemplate"] for compat in self.skills.dialect_servers for item in compat.templates())
        return template in own

    def _requires_live_resource(self, uri: str) -> bool:
        """Exclude skills from FastMCP's response cache, which is not invalidated by changes."""
        if uri.partition(":")[0] in self.live_schemes:
            return True
        try:
            self.skills.source.snapshot.locate(uri)
        except SkillError:
            return False
        return True


def _duplicate_skills_error(server: AnyFastMCP) -> SkillError:
    return SkillError(
        f"{server.name!r} would serve skills from more than one `add_skills`",
        fix="add all skills with a single add_skills, or mount only one server with skills",
    )
