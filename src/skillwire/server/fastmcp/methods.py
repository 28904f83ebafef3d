# pyright: reportPrivateUsage=false
"""Which skills a caller of FastMCP may see; processing of requests before FastMCP, and of its results."""

import logging
from collections.abc import Container, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, TypeAlias

import mcp_types as types
from fastmcp import FastMCP
from fastmcp.exceptions import AuthorizationError, FastMCPError
from fastmcp.resources import Resource, ResourceContent, ResourceResult, ResourceTemplate
from fastmcp.server.context import Context as FastMCPContext
from fastmcp.server.dependencies import get_context
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import Middleware
from fastmcp.server.providers import AggregateProvider, FastMCPProvider, Provider
from fastmcp.server.providers.wrapped_provider import _WrappedProvider
from fastmcp.server.transforms import Namespace, Transform
from fastmcp.server.transforms.visibility import get_visibility_rules
from fastmcp.utilities.versions import VersionSpec
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from pydantic import Field

from skillwire.core import (
    DIRECTORY_MEDIA_TYPE,
    JsonDict,
    NotFoundError,
    SkillEntry,
    SkillError,
    SourceError,
    canonical_uri,
    quoted,
)
from skillwire.server.answers import FileContent, ResultSettings
from skillwire.server.browse import skill_around
from skillwire.server.dialects.base import Context, Handler, as_json, is_modern
from skillwire.server.messages import wire_errors
from skillwire.server.methods import (
    DirectoryRequestParams,
    GetRequestParams,
    HandshakeMiddleware,
    SkillMethods,
)
from skillwire.server.outputs import Caller, caller_of
from skillwire.server.parameters import ListSkillsRequestParams
from skillwire.server.skills import Skills
from skillwire.sources.snapshot import Snapshot, entries_below
from skillwire.wire.core import GET_SKILL, LIST_RESOURCES, READ_DIRECTORY, READ_RESOURCE, CacheScope

AnyFastMCP: TypeAlias = FastMCP[Any]
ProviderPath: TypeAlias = tuple[Provider, ...]
"""The providers between a server and its skills, the server first."""

# Without a version, FastMCP would search all resources for an older version of a hidden one.
_ANY_VERSION = VersionSpec()


class SkillsProviderBase(Provider):
    """Base class of the provider that has the skills, in a tree of servers."""

    def __init__(self, skills: Skills) -> None:
        super().__init__()
        self.skills = skills


class ResourceVisibility:
    """Which skills a caller of the server may see, decided by FastMCP as for resources."""

    def __init__(self, extension: ServerExtension, skills: Skills) -> None:
        self._extension = extension
        self._skills = skills
        self._paths: list[ProviderPath] | None = None

    def provider_paths(self) -> list[ProviderPath]:
        """Return the provider paths from the server to its skills without a namespace.

        The list is empty when an unknown type of provider is in between.

        Raises:
            SkillError: Every path has a namespace, which would rename the URIs of the skills.
        """
        if self._paths is None:
            server = self._extension.server
            paths = list(_find_paths(server, self._skills))
            unrenamed = [path for path in paths if not _is_renaming(path)]
            if paths and not unrenamed:
                raise SkillError(
                    f"a namespace on {server.name!r} would rename the resources of skills, "
                    "but not the URIs in the listing of skills",
                    fix="remove the namespace, and pass a prefix to add_skills instead",
                )
            self._paths = unrenamed
        return self._paths

    def reset(self) -> None:
        """Drop the cached paths: servers may have been mounted since."""
        self._paths = None

    async def is_limited(self) -> bool:
        """Return whether anything could be hidden from the caller; if not, single URIs need no check."""
        return self.can_hide() or bool(await get_visibility_rules(get_context()))

    def can_hide(self) -> bool:
        """Return whether the server could hide anything from any caller."""
        paths = self.provider_paths()
        return not paths or any(_can_hide(provider) for provider in paths[0])

    async def can_see(self, uri: str) -> bool:
        """Return whether the caller may see a file or, with a trailing slash, anything in a directory."""
        if uri.endswith("/"):
            for entry in self._skills_of(uri[:-1]):
                if await self.can_see(entry.uri.published):
                    return True
            return False
        server = self._extension.server
        if await server.get_resource(uri, _ANY_VERSION) is None:
            return False
        paths = self.provider_paths() or [(server,)]
        try:
            for provider in paths[0]:
                if isinstance(provider, FastMCP):
                    await provider._check_resource_access(uri)
        except AuthorizationError:
            return False
        return True

    def _skills_of(self, directory: str) -> Sequence[SkillEntry]:
        """Return the innermost skill that contains a directory, or else the skills below it."""
        snapshot = self._skills.source.snapshot
        skill = skill_around(snapshot, directory)
        if skill is not None:
            return [skill]
        return entries_below(snapshot.entries, directory)


class VisibleSkillMethods(SkillMethods):
    """The skill methods, without the skills that FastMCP hides from the caller."""

    def __init__(self, skills: Skills, visibility: "ResourceVisibility") -> None:
        super().__init__(skills)
        self._visibility = visibility

    async def list_skills(self, context: Context, params: ListSkillsRequestParams) -> JsonDict:
        result = await super().list_skills(context, params)
        with wire_errors():
            if await self._visibility.is_limited():
                result["skills"] = [
                    entry for entry in result["skills"] if await self._visibility.can_see(entry["uri"])
                ]
                mark_private(result)
            return result

    async def get_skill(self, context: Context, params: GetRequestParams) -> JsonDict:
        if self.is_by_name(params):
            return await self._get_named(context, params)
        result = await super().get_skill(context, params)
        with wire_errors():
            if await self._visibility.is_limited():
                uri = result["skill"]["uri"]
                if not await self._visibility.can_see(uri):
                    raise NotFoundError(f"nothing is served at {uri}", uri=uri)
                mark_private(result)
            return result

    async def _get_named(self, context: Context, params: GetRequestParams) -> JsonDict:
        with wire_errors():
            _, entry = self.named(params.name)
            is_limited = await self._visibility.is_limited()
            if is_limited and not await self._visibility.can_see(entry.uri.published):
                raise NotFoundError(f"no skill is called {quoted(params.name)}", uri="")
        result = await super().get_skill(context, params)
        if is_limited:
            mark_private(result)
        return result

    async def read_directory(self, context: Context, params: DirectoryRequestParams) -> JsonDict:
        result = await super().read_directory(context, params)
        with wire_errors():
            if await self._visibility.is_limited():
                directory = canonical_uri(params.uri)
                if not await self._visibility.can_see(directory + "/"):
                    raise NotFoundError(f"{directory} is not a directory", uri=params.uri)
                result["resources"] = [
                    child
                    for child in result["resources"]
                    if await self._visibility.can_see(_visibility_uri(child))
                ]
                mark_private(result)
            return result


def _find_paths(provider: Provider, skills: Skills) -> Iterator[ProviderPath]:
    """Yield all paths through a tree of providers to the one that has the skills."""
    inner: Sequence[Provider] = ()
    if isinstance(provider, SkillsProviderBase):
        if provider.skills is skills:
            yield (provider,)
    elif isinstance(provider, FastMCPProvider):
        inner = [provider.server]
    elif isinstance(provider, AggregateProvider):
        inner = provider.providers
    elif isinstance(provider, _WrappedProvider):
        inner = [provider._inner]
    for next_one in inner:
        for path in _find_paths(next_one, skills):
            yield (provider, *path)


def _is_renaming(path: ProviderPath) -> bool:
    return any(isinstance(transform, Namespace) for provider in path for transform in provider.transforms)


def _can_hide(provider: Provider) -> bool:
    if isinstance(provider, FastMCP) and any(
        type(middleware).check_resource_access is not Middleware.check_resource_access
        for middleware in provider.middleware
    ):
        return True
    return any(
        type(transform).get_resource is not Transform.get_resource for transform in provider.transforms
    )


def _visibility_uri(resource: JsonDict) -> str:
    is_directory = resource["mimeType"] == DIRECTORY_MEDIA_TYPE
    return f"{resource['uri']}/" if is_directory else resource["uri"]


def mark_private(result: JsonDict) -> JsonDict:
    """Set the cache scope of a result to private, if it has one."""
    if "cacheScope" in result:
        result["cacheScope"] = "private"
    return result


# `CallerVisibility`: which skills the current caller may see, on the server that received the request.


CURRENT_VISIBILITY: Final[ContextVar[ResourceVisibility | None]] = ContextVar("skillwire_asked", default=None)
"""The visibility on the server that received the request: the one with the skills, or a parent."""
CALLER: Final[ContextVar[Caller | None]] = ContextVar("skillwire_caller", default=None)
"""The caller of the current request; None outside of a request."""


class CallerVisibility:
    """Which skills the current caller may see, for resources and prompts of older dialects.

    `default` applies outside of a request, as when a program calls its own server.
    """

    def __init__(self, default: ResourceVisibility) -> None:
        self._default = default

    async def is_limited(self) -> bool:
        """Return whether anything could be hidden from the caller."""
        visibility = CURRENT_VISIBILITY.get() or self._default
        try:
            return await visibility.is_limited()
        except RuntimeError:
            return (
                visibility.can_hide()
            )  # Outside of a request there is no session, whose rules could hide more.

    async def may_see(self, uri: str) -> bool:
        """Return whether the caller may see the skill or file at `uri`."""
        return not await self.is_limited() or await (CURRENT_VISIBILITY.get() or self._default).can_see(uri)


# Processing of requests before FastMCP, and of its results.


# Files of skills as FastMCP resources, and the results of reading them.


MANY_TYPES: Final = "application/octet-stream"


class FileResource(Resource):
    """A file of a skill, named like the skill so that rules about names apply to the whole skill."""

    # As a URL type, FastMCP would treat the first segment as a host name and normalize it.
    uri: str = Field(default=...)  # pyright: ignore[reportIncompatibleVariableOverride]
    _skills: Skills
    _file: FileContent | None

    def __init__(self, skills: Skills, *, file: FileContent | None = None, **fields: Any) -> None:
        super().__init__(**fields)
        self._skills = skills
        self._file = file

    async def read(self) -> ResourceResult:
        try:
            with wire_errors():
                return await self._read_file()
        except MCPError as error:
            raise FileError(error) from error

    async def _read_file(self) -> ResourceResult:
        answers = self._skills.answers
        try:
            return FileResult(self._file or await answers.read(self.uri), answers.settings)
        except NotFoundError as error:
            if answers.is_directory(self.uri):
                message = f"{self.uri} is a directory; use {READ_DIRECTORY}"
                raise NotFoundError(message, uri=self.uri) from error
            raise


class FileError(MCPError, FastMCPError):
    """An error of reading a file. FastMCP sends it unchanged, and does not log a traceback."""

    def __init__(self, error: MCPError) -> None:
        super().__init__(error.code, error.message, error.data)
        self.log_level = logging.DEBUG


class FileResult(ResourceResult):
    """The content of a file, with its cache lifetime and scope."""

    ttl_ms: int = 0
    cache_scope: CacheScope = "private"

    def __init__(self, file: FileContent, settings: ResultSettings) -> None:
        content: str | bytes = file.content
        try:
            content = file.content.decode("utf-8")
        except UnicodeDecodeError:
            pass  # Sent as base64.
        super().__init__([ResourceContent(content, mime_type=file.media_type)])
        self.ttl_ms = settings.ttl_ms if file.digest else 0
        self.cache_scope = "private" if file.is_private else settings.cache_scope

    def to_mcp_result(self, uri: Any) -> types.ReadResourceResult:
        terms = {"ttl_ms": self.ttl_ms, "cache_scope": self.cache_scope}
        return super().to_mcp_result(uri).model_copy(update=terms)


class FilesTemplate(ResourceTemplate):
    """A template that documents the URIs of skill files. It is not used for lookups."""

    def to_mcp_template(self, **overrides: Any) -> types.ResourceTemplate:
        made = super().to_mcp_template(**overrides)
        # FastMCP requires a media type, and the files of a skill have no common one.
        return made.model_copy(update={"mime_type": None}) if self.mime_type == MANY_TYPES else made


def located(snapshot: Snapshot, uri: str) -> tuple[SkillEntry, str]:
    """Return the skill that has a file, and the published form of the file's URI.

    Raises:
        NotFoundError: No listed skill has such a file.
    """
    entry, line = snapshot.locate(uri)
    canonical = canonical_uri(uri)
    if canonical == entry.uri.text:
        return entry, entry.uri.published
    return entry, canonical if line is None else line.published


class SkillsMiddleware(HandshakeMiddleware):
    """Middleware around all of FastMCP, including its own middleware.

    The URI of a file has many equivalent forms. FastMCP's middleware receives
    the published form, so that it can compare URIs as strings.
    """

    def __init__(self, skills: Skills, visibility: ResourceVisibility) -> None:
        super().__init__(skills)
        self._visibility = visibility

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        asked, caller = CURRENT_VISIBILITY.set(self._visibility), CALLER.set(caller_of(ctx))
        try:
            return await self._handle(ctx, call_next)
        finally:
            CURRENT_VISIBILITY.reset(asked)
            CALLER.reset(caller)

    def names_skills(self) -> bool:
        return not self._visibility.can_hide()

    async def _handle(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.request_id is None:
            return await HandshakeMiddleware.__call__(self, ctx, call_next)
        if ctx.method == LIST_RESOURCES:
            return self._described(as_json(await call_next(ctx)))
        if ctx.method not in (READ_RESOURCE, GET_SKILL, READ_DIRECTORY):
            return await HandshakeMiddleware.__call__(self, ctx, call_next)
        params = dict(ctx.params or {})
        asked = params.get("uri")
        published = self._published(asked) if isinstance(asked, str) else asked
        if published == asked:
            return await call_next(ctx)
        result = as_json(await call_next(replace(ctx, params={**params, "uri": published})))
        if ctx.method == READ_RESOURCE and "contents" in result:
            result["contents"] = [{**content, "uri": asked} for content in result["contents"]]
        return result

    def _published(self, uri: str) -> str:
        """Return the published form of the URI of a file or directory, else `uri` unchanged."""
        try:
            answers = self._skills.answers
        except SourceError:
            return uri  # The skills are closed; resources of the server itself still work.
        try:
            return located(answers.source.snapshot, uri)[1]
        except NotFoundError:
            return canonical_uri(uri) if answers.is_directory(uri) else uri

    def _described(self, result: JsonDict) -> JsonDict:
        """Add the size, which FastMCP has no field for, and remove the metadata that FastMCP adds."""
        own = self._dialect_uris
        for resource in result["resources"]:
            try:
                entry, line = self._skills.source.snapshot.locate(resource["uri"])
            except (NotFoundError, SourceError):
                if resource["uri"] in own:
                    resource.pop("_meta", None)
                continue  # Not a file of a skill, or the skills are closed.
            resource.pop("_meta", None)
            if line is not None:
                resource["size"] = line.size
            if resource["uri"] == entry.uri.published:
                self._skills.annotator.describe(resource, entry)
        return result

    @property
    def _dialect_uris(self) -> set[str]:
        """The URIs of the resources that older dialects add."""
        return {item["uri"] for compat in self._skills.dialect_servers for item in compat.resources()}


# `resources/list` of a single directory, on a FastMCP server.


class ScopedListing:
    """Listing of one directory for older dialects, without what FastMCP would not list.

    `everything` is FastMCP's own handler. The request passes all middleware of
    the server, which may refuse it, and returns only files of skills that are
    listed to the caller.
    """

    def __init__(self, skills: Skills, visibility: ResourceVisibility) -> None:
        self._skills = skills
        self._visibility = visibility

    def page(self, context: Context, cursor: str | None) -> JsonDict | None:
        """Return a page of the requested directory; None when the request has no `uri`."""
        scope = (context.params or {}).get("uri")
        with wire_errors():
            for compat in self._skills.dialect_servers if isinstance(scope, str) else ():
                page = compat.list_scoped(str(scope), cursor)
                if page is not None:
                    return page
        return None

    async def visible_page(
        self, server: AnyFastMCP, context: Context, page: JsonDict, everything: Handler
    ) -> HandlerResult:
        """Return the part of a page that the caller may see."""
        skills = await _listed(context, everything)
        with wire_errors():
            async with FastMCPContext(fastmcp=server, session=context.session):
                found = page["resources"]
                page["resources"] = [item for item in found if await self._is_shown(item["uri"], skills)]
                page = self._skills.answers.with_cache_fields(page, modern=is_modern(context))
                return mark_private(page) if await self._visibility.is_limited() else page

    async def _is_shown(self, uri: str, skills: Container[str]) -> bool:
        answers = self._skills.answers
        entry = located(answers.source.snapshot, uri)[0]
        skill = entry.uri.published
        if skill in skills:
            return (
                uri == skill or not await self._visibility.is_limited() or await self._visibility.can_see(uri)
            )
        # The files of an unlisted skill can still be listed by its URI.
        return not answers.listing.includes(entry) and await self._visibility.can_see(uri)


async def _listed(context: Context, everything: Handler) -> set[str]:
    """Return the URIs of all resources that FastMCP lists to the caller."""
    result = as_json(await everything(context, types.PaginatedRequestParams()))
    found = {item["uri"] for item in result["resources"]}
    while result.get("nextCursor") is not None:
        params = types.PaginatedRequestParams(cursor=result["nextCursor"])
        result = as_json(await everything(context, params))
        found.update(item["uri"] for item in result["resources"])
    return found
