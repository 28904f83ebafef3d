# pyright: reportPrivateUsage=false
"""Which skills a caller may see, decided by FastMCP as for resources."""

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from fastmcp import FastMCP
from fastmcp.exceptions import AuthorizationError
from fastmcp.server.dependencies import get_context
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import Middleware
from fastmcp.server.providers import AggregateProvider, FastMCPProvider, Provider
from fastmcp.server.providers.wrapped_provider import _WrappedProvider
from fastmcp.server.transforms import Namespace, Transform
from fastmcp.server.transforms.visibility import get_visibility_rules
from fastmcp.utilities.versions import VersionSpec

from skillwire.core import (
    DIRECTORY_MEDIA_TYPE,
    JsonDict,
    NotFoundError,
    SkillEntry,
    SkillError,
    canonical_uri,
    quoted,
)
from skillwire.server.browse import skill_around, skills_below
from skillwire.server.dialects.base import Context
from skillwire.server.messages import wire_errors
from skillwire.server.methods import DirectoryRequestParams, GetRequestParams, SkillMethods
from skillwire.server.outputs import Caller
from skillwire.server.parameters import ListSkillsRequestParams
from skillwire.server.skills import Skills

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
        return skills_below(snapshot.entries, directory)


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
