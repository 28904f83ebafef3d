"""Skills on a FastMCP server: the provider of their files, and the extension with the methods."""

# FastMCP keeps its lowlevel server and its table of extensions to itself, and has no other place for what
# the extension needs beyond methods: the legacy handshake, subscriptions and completion.
# pyright: reportPrivateUsage=false

import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import mcp_types as types
from fastmcp.resources import Resource, ResourceTemplate
from fastmcp.server.dependencies import get_server
from fastmcp.server.extensions import MethodBinding, ServerExtension
from fastmcp.utilities.components import FastMCPComponent
from fastmcp.utilities.versions import VersionSpec
from mcp.server.context import HandlerResult

from skillwire.core.entry import SkillEntry
from skillwire.core.media import media_type_of
from skillwire.core.uri import DEFAULT_SCHEME, canonical_uri, segment_of
from skillwire.errors import NotFoundError, SkillError
from skillwire.server.answers import Answers, FileContent
from skillwire.server.browsing import skill_around
from skillwire.server.dialects.compat import Context, Handler
from skillwire.server.failures import wire_errors
from skillwire.server.fastmcp.files import MANY_TYPES, FileResource, FilesTemplate, located
from skillwire.server.fastmcp.middleware import SkillsMiddleware
from skillwire.server.fastmcp.prompts import PromptsProvider
from skillwire.server.fastmcp.scoped import ScopedListing
from skillwire.server.fastmcp.sight import AnyFastMCP, Sight, SkillsHolder, VisibleSkillMethods
from skillwire.server.fastmcp.tools import FindToolProvider
from skillwire.server.fastmcp.viewpoint import CALLER, Viewpoint
from skillwire.server.handlers import (
    ResourceMethods,
    add_listening,
    own_lifespan,
    refuse_second,
)
from skillwire.server.noting import note_results
from skillwire.server.outputs import OUTPUT_SCHEME
from skillwire.server.skills import Skills
from skillwire.server.wellknown.serving import add_site
from skillwire.sources import Snapshot
from skillwire.wire.core import (
    EXTENSION,
    LIST_RESOURCES,
    SETTINGS,
    JsonDict,
    skill_resource,
)
from skillwire.wire.dialect import Dialect

_COMPLETE = "completion/complete"
_NO_VALUES: JsonDict = {"values": []}


def attach(server: AnyFastMCP, skills: Skills) -> None:
    """Serve `skills` from `server`, and from every server it is mounted on.

    Raises:
        SkillError: The server serves skills already.
    """
    refuse_second(server._mcp_server)
    provider = SkillsProvider(skills, server)
    server.add_provider(provider)
    # The first provider wins: no resource of the server's own may stand in for a file with a digest.
    server.providers.remove(provider)
    server.providers.insert(0, provider)
    if Dialect.WELL_KNOWN in skills.dialects:
        add_site(server, skills)
    server.add_provider(PromptsProvider(skills, provider._viewpoint.may_see))
    if skills.find_tool is not None:
        skills.find_tool.viewpoint = provider._viewpoint
        server.add_provider(FindToolProvider(skills.find_tool))


class SkillsProvider(SkillsHolder):
    """The files of skills, as resources of FastMCP."""

    def __init__(self, skills: Skills, home: AnyFastMCP) -> None:
        super().__init__(skills)
        self._extension = SkillsExtension(skills, weakref.ref(home))
        self._viewpoint = Viewpoint(self._extension.sight)
        for compat in skills.compat:
            compat.may_see = self._viewpoint.may_see
        self._listed: tuple[Snapshot | None, list[Resource]] = (None, [])

    def required_extensions(self) -> Sequence[ServerExtension]:
        return [self._extension]

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Open the skills while the server runs, or the one that it is mounted on.

        Raises:
            SkillError: The running server would not answer for these skills.
        """
        root = get_server()
        serving = root._extensions.get(EXTENSION)
        if not isinstance(serving, SkillsExtension) or serving.skills is not self.skills:
            raise _second_skills(root)
        async with self.skills.open():
            yield

    async def get_tasks(self) -> Sequence[FastMCPComponent]:
        return []  # A file is never a background task, so there is no need to list them all.

    async def _list_resources(self) -> Sequence[Resource]:
        with wire_errors():
            answers = self.skills.answers
            snapshot = answers.catalog.snapshot
            if self._listed[0] is not snapshot:
                self._listed = (
                    snapshot,
                    [self._skill_file(answers, entry) for entry in answers.listed_of(snapshot)],
                )
            own = [item for compat in self.skills.compat for item in compat.resources()]
            if not own or await self._viewpoint.is_limited():
                return self._listed[1]
            return [*(self._own_file(item) for item in own), *self._listed[1]]

    async def _get_resource(self, uri: str, version: VersionSpec | None = None) -> Resource | None:
        with wire_errors():
            answers = self.skills.answers
            output = self._output(uri)
            if output is not None:
                return output
            try:
                entry, published = located(answers.catalog.snapshot, uri)
            except NotFoundError:
                return await self._unlisted(answers, uri)
            if published == entry.uri.published:
                return self._skill_file(answers, entry)
            return self._file(published, entry.frontmatter.name)

    def _output(self, uri: str) -> Resource | None:
        """Return what a script left, for who ran it: it is no skill's, so nothing about skills hides it."""
        scripts, caller = self.skills.scripts, CALLER.get()
        file = None if scripts is None or caller is None else scripts.outputs.read(uri, caller)
        if file is None:
            return None
        return FileResource(self.skills, file=file, uri=uri, name=segment_of(uri), mime_type=file.media_type)

    async def _unlisted(self, answers: Answers, uri: str) -> Resource | None:
        """Return what is at a URI that no listed skill has, which may still be something."""
        if answers.is_directory(uri):
            directory = canonical_uri(uri)
            skill = skill_around(answers.catalog.snapshot, directory)
            return self._file(directory, directory if skill is None else skill.frontmatter.name)
        scheme = uri.partition(":")[0]
        try:
            file = await answers.read(uri)
        except NotFoundError:
            return await self._own(uri)
        except Exception:
            # FastMCP takes a failed lookup for nothing, so it is for reading to say that it failed; unless
            # this may well be a resource of someone else.
            return self._file(uri, uri) if scheme in self._extension.live_schemes else None
        self._extension.live_schemes.add(scheme)
        return self._file(uri, uri, file)

    async def _own(self, uri: str) -> Resource | None:
        """Return a resource of an older dialect, as an index: it tells of all skills, or is not there."""
        if not self.skills.compat or await self._viewpoint.is_limited():
            return None
        for compat in self.skills.compat:
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
                    *(item for compat in self.skills.compat for item in compat.templates()),
                ]
            ]

    async def _get_resource_template(
        self, uri: str, version: VersionSpec | None = None
    ) -> ResourceTemplate | None:
        return None  # All that can be read is a resource.

    def _skill_file(self, answers: Answers, entry: SkillEntry) -> FileResource:
        described = skill_resource(entry, modified=answers.catalog.modified_at(entry.uri))
        return FileResource(
            self.skills,
            uri=described["uri"],
            name=described["name"],
            description=described["description"],
            mime_type=described["mimeType"],
            annotations=types.Annotations.model_validate(described["annotations"]),
        )

    def _own_file(self, item: JsonDict) -> FileResource:
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
    """The extension on one server: its methods, and what must be added to the server around them.

    FastMCP gives each server that a server with skills is mounted on a clone.
    """

    identifier = EXTENSION
    auto_register = True

    def __init__(self, skills: Skills, home: "weakref.ref[AnyFastMCP]") -> None:
        self.skills = skills
        self.live_schemes = {DEFAULT_SCHEME, OUTPUT_SCHEME}
        self._home = home
        self.sight = Sight(self, skills)
        self._resources = ResourceMethods(skills)
        self._scoped = ScopedListing(skills, self.sight)

    def clone(self) -> "SkillsExtension":
        clone = SkillsExtension(self.skills, self._home)
        clone.live_schemes = self.live_schemes
        return clone

    def settings(self) -> dict[str, Any]:
        return dict(SETTINGS)

    def methods(self) -> Sequence[MethodBinding]:
        bindings = VisibleSkillMethods(self.skills, self.sight).bindings()
        for compat in self.skills.compat:
            # FastMCP has its own ways to prompts, so what skills add to those is a provider's.
            bindings += [binding for binding in compat.bindings() if binding[0].startswith("skills/")]
        return [MethodBinding(method, params_type, handler) for method, params_type, handler in bindings]

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Check, when this is the server that runs, that it can serve the skills as they are.

        Raises:
            SkillError: Their URIs would be renamed on the way, or a web site would show what it hides.
        """
        self.sight.forget()
        self.sight.look()
        if Dialect.WELL_KNOWN in self.skills.dialects and (
            self.server.auth is not None or self.sight.can_hide()
        ):
            raise SkillError(
                f"well-known shows skills to everyone, and {self.server.name!r} does not",
                fix="leave it out, or serve what is public from a server of its own",
            )
        self._take_over(self.server)  # Anew: the server's own handlers came later, if it has any.
        yield

    def _bind(self, server: AnyFastMCP) -> None:
        # FastMCP binds a clone to the receiving server before it drops it as superfluous. If it is not, two
        # servers with skills meet here.
        serving = server._extensions.get(EXTENSION)
        if serving is None:
            refuse_second(server._mcp_server)
        elif not isinstance(serving, SkillsExtension) or serving.skills is not self.skills:
            raise _second_skills(server)
        super()._bind(server)
        if not any(isinstance(known, SkillsMiddleware) for known in server._mcp_server.middleware):
            self._equip(server)

    def _equip(self, server: AnyFastMCP) -> None:
        if server.auth is not None and server is not self._home():
            self.skills.terms = replace(self.skills.terms, cache_scope="private")
        lowlevel = server._mcp_server
        lowlevel.middleware.insert(0, SkillsMiddleware(self.skills, self.sight))
        note_results(lowlevel, self.skills.notes)
        lowlevel.add_request_handler(
            "resources/subscribe", types.SubscribeRequestParams, self._resources.subscribe
        )
        lowlevel.add_request_handler(
            "resources/unsubscribe", types.UnsubscribeRequestParams, self._resources.unsubscribe
        )
        self._take_over(server)
        add_listening(lowlevel, self.skills)
        # FastMCP closes its providers with the first of several connections, so each holds the skills open.
        own_lifespan(lowlevel, self.skills)

    def _take_over(self, server: AnyFastMCP) -> None:
        """Complete paths and, for older dialects, list one place at a time; the server does the rest."""
        self._answer(server, _COMPLETE, types.CompleteRequestParams, self._complete)
        for compat in self.skills.compat:
            compat.server = server._mcp_server
        if self.skills.compat:
            self._answer(server, LIST_RESOURCES, types.PaginatedRequestParams, self._list_resources)

    def _answer(
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
        return await self._scoped.shown(self.server, context, page, everything)

    async def _complete(self, context: Context, params: types.CompleteRequestParams) -> HandlerResult:
        if isinstance(params.ref, types.ResourceTemplateReference):
            with wire_errors():
                argument, template = params.argument, params.ref.uri
                found = self.skills.answers.complete(template, argument.name, argument.value)
                is_limited = await self.sight.is_limited()
                if found is not None and is_limited:
                    start = template.partition("://")[0] + "://"
                    values = [path for path in found["values"] if await self.sight.sees(start + path)]
                    found = {"values": values, "hasMore": found["hasMore"]}
                if found is None and is_limited and self._is_of_a_dialect(template):
                    found = _NO_VALUES
                if found is not None:
                    return {"completion": found, "resultType": "complete"}
        return await self._resources.complete(context, params)

    def _is_of_a_dialect(self, template: str) -> bool:
        own = (item["uriTemplate"] for compat in self.skills.compat for item in compat.templates())
        return template in own

    def _requires_live_resource(self, uri: str) -> bool:
        """Keep FastMCP's response cache away from skills: it knows nothing of changes."""
        if uri.partition(":")[0] in self.live_schemes:
            return True
        try:
            self.skills.catalog.snapshot.locate(uri)
        except SkillError:
            return False
        return True


def _second_skills(server: AnyFastMCP) -> SkillError:
    return SkillError(
        f"{server.name!r} would have skills from more than one place",
        fix="add all of them to one server with a single add_skills, or mount only one server with skills",
    )
