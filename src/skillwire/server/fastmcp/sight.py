"""What of the skills a caller may see, decided by FastMCP as for resources."""

# pyright: reportPrivateUsage=false

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

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

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.media import DIRECTORY_MEDIA_TYPE
from skillwire.core.uri import canonical_uri
from skillwire.errors import NotFoundError, SkillError
from skillwire.server.browsing import skill_around, skills_below
from skillwire.server.dialects.compat import Context
from skillwire.server.failures import wire_errors
from skillwire.server.handlers import (
    DirectoryParams,
    GetParams,
    ListSkillsParams,
    SkillMethods,
)
from skillwire.server.skills import Skills
from skillwire.wire.core import (
    JsonDict,
)

AnyFastMCP: TypeAlias = FastMCP[Any]
Way: TypeAlias = tuple[Provider, ...]
"""The providers between a server and its skills, the server first."""

# Without a version FastMCP would look through all resources for an older one of what is hidden.
_ANY_VERSION = VersionSpec()


class SkillsHolder(Provider):
    """The provider that has the skills, somewhere in a tree of servers."""

    def __init__(self, skills: Skills) -> None:
        super().__init__()
        self.skills = skills


class Sight:
    """What of the skills a caller of the server may see, decided by FastMCP as for resources."""

    def __init__(self, extension: ServerExtension, skills: Skills) -> None:
        self._extension = extension
        self._skills = skills
        self._ways: list[Way] | None = None

    def look(self) -> list[Way]:
        """Return the ways from the server to its skills on which nothing is renamed.

        None at all means that a provider lies in between which we do not know.

        Raises:
            SkillError: The skills' URIs would be renamed on every way.
        """
        if self._ways is None:
            server = self._extension.server
            ways = list(_ways(server, self._skills))
            straight = [way for way in ways if not _is_renaming(way)]
            if ways and not straight:
                raise SkillError(
                    f"a namespace on {server.name!r} would rename the resources of skills, "
                    "and the listing of skills would still have their old URIs",
                    fix="do without the namespace there, and pass a prefix to add_skills instead",
                )
            self._ways = straight
        return self._ways

    def forget(self) -> None:
        """Look again when asked: servers may have been mounted meanwhile."""
        self._ways = None

    async def is_limited(self) -> bool:
        """Tell whether anything could be hidden from the caller; mostly nothing can, and no more is asked."""
        return self.can_hide() or bool(await get_visibility_rules(get_context()))

    def can_hide(self) -> bool:
        """Tell whether the server itself could hide anything, from whomever."""
        ways = self.look()
        return not ways or any(_can_hide(provider) for provider in ways[0])

    async def sees(self, uri: str) -> bool:
        """Tell whether the caller may see a file; or, with a slash at the end, anything of a directory."""
        if uri.endswith("/"):
            for entry in self._skills_of(uri[:-1]):
                if await self.sees(entry.uri.published):
                    return True
            return False
        server = self._extension.server
        if await server.get_resource(uri, _ANY_VERSION) is None:
            return False
        ways = self.look() or [(server,)]
        try:
            for provider in ways[0]:
                if isinstance(provider, FastMCP):
                    await provider._check_resource_access(uri)
        except AuthorizationError:
            return False
        return True

    def _skills_of(self, directory: str) -> Sequence[SkillEntry]:
        """Return the innermost skill around a directory, or those below it if it lies in none."""
        snapshot = self._skills.catalog.snapshot
        skill = skill_around(snapshot, directory)
        if skill is not None:
            return [skill]
        return skills_below(snapshot.entries, directory)


class VisibleSkillMethods(SkillMethods):
    """The three methods, without the skills that FastMCP hides from the caller."""

    def __init__(self, skills: Skills, sight: "Sight") -> None:
        super().__init__(skills)
        self._sight = sight

    async def list_skills(self, context: Context, params: ListSkillsParams) -> JsonDict:
        result = await super().list_skills(context, params)
        with wire_errors():
            if await self._sight.is_limited():
                result["skills"] = [
                    entry for entry in result["skills"] if await self._sight.sees(entry["uri"])
                ]
                keep_private(result)
            return result

    async def get_skill(self, context: Context, params: GetParams) -> JsonDict:
        if self.is_by_name(params):
            return await self._get_named(context, params)
        result = await super().get_skill(context, params)
        with wire_errors():
            if await self._sight.is_limited():
                uri = result["skill"]["uri"]
                if not await self._sight.sees(uri):
                    raise NotFoundError(f"nothing is served at {uri}", uri=uri)
                keep_private(result)
            return result

    async def _get_named(self, context: Context, params: GetParams) -> JsonDict:
        with wire_errors():
            _, entry = self.named(params.name)
            is_limited = await self._sight.is_limited()
            if is_limited and not await self._sight.sees(entry.uri.published):
                raise NotFoundError(f"no skill is called {quoted(params.name)}", uri="")
        result = await super().get_skill(context, params)
        if is_limited:
            keep_private(result)
        return result

    async def read_directory(self, context: Context, params: DirectoryParams) -> JsonDict:
        result = await super().read_directory(context, params)
        with wire_errors():
            if await self._sight.is_limited():
                directory = canonical_uri(params.uri)
                if not await self._sight.sees(directory + "/"):
                    raise NotFoundError(f"{directory} is not a directory", uri=params.uri)
                result["resources"] = [
                    child for child in result["resources"] if await self._sight.sees(_place_of(child))
                ]
                keep_private(result)
            return result


def _ways(provider: Provider, skills: Skills) -> Iterator[Way]:
    """Find all ways through a tree of providers to the one that has the skills."""
    inner: Sequence[Provider] = ()
    if isinstance(provider, SkillsHolder):
        if provider.skills is skills:
            yield (provider,)
    elif isinstance(provider, FastMCPProvider):
        inner = [provider.server]
    elif isinstance(provider, AggregateProvider):
        inner = provider.providers
    elif isinstance(provider, _WrappedProvider):
        inner = [provider._inner]
    for next_one in inner:
        for way in _ways(next_one, skills):
            yield (provider, *way)


def _is_renaming(way: Way) -> bool:
    return any(isinstance(transform, Namespace) for provider in way for transform in provider.transforms)


def _can_hide(provider: Provider) -> bool:
    if isinstance(provider, FastMCP) and any(
        type(middleware).check_resource_access is not Middleware.check_resource_access
        for middleware in provider.middleware
    ):
        return True
    return any(
        type(transform).get_resource is not Transform.get_resource for transform in provider.transforms
    )


def _place_of(resource: JsonDict) -> str:
    is_directory = resource["mimeType"] == DIRECTORY_MEDIA_TYPE
    return f"{resource['uri']}/" if is_directory else resource["uri"]


def keep_private(result: JsonDict) -> JsonDict:
    """Mark a result as meant for its caller alone, where results say for whom they are."""
    if "cacheScope" in result:
        result["cacheScope"] = "private"
    return result
