"""Processing of requests before FastMCP, and of its results."""

import logging
from collections.abc import Container
from dataclasses import replace
from typing import Any, Final

import mcp_types as types
from fastmcp.exceptions import FastMCPError
from fastmcp.resources import Resource, ResourceContent, ResourceResult, ResourceTemplate
from fastmcp.server.context import Context as FastMCPContext
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from pydantic import Field

from skillwire.core import JsonDict, NotFoundError, SkillEntry, SourceError, canonical_uri
from skillwire.server.answers import FileContent, ResultSettings
from skillwire.server.dialects.base import Context, Handler, as_json, is_modern
from skillwire.server.fastmcp.visibility import (
    CALLER,
    CURRENT_VISIBILITY,
    AnyFastMCP,
    ResourceVisibility,
    mark_private,
)
from skillwire.server.messages import wire_errors
from skillwire.server.methods import HandshakeMiddleware
from skillwire.server.outputs import caller_of
from skillwire.server.skills import Skills
from skillwire.sources.snapshot import Snapshot
from skillwire.wire.core import GET_SKILL, LIST_RESOURCES, READ_DIRECTORY, READ_RESOURCE, CacheScope

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
                self._skills.answers.with_cache_fields(page, modern=is_modern(context))
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
        return not answers.is_listed(entry) and await self._visibility.can_see(uri)


async def _listed(context: Context, everything: Handler) -> set[str]:
    """Return the URIs of all resources that FastMCP lists to the caller."""
    result = as_json(await everything(context, types.PaginatedRequestParams()))
    found = {item["uri"] for item in result["resources"]}
    while result.get("nextCursor") is not None:
        params = types.PaginatedRequestParams(cursor=result["nextCursor"])
        result = as_json(await everything(context, params))
        found.update(item["uri"] for item in result["resources"])
    return found
