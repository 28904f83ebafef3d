"""What happens to a request before FastMCP sees it, and to an answer after."""

from dataclasses import replace

from mcp.server.context import CallNext, HandlerResult

from skillwire.core.uri import canonical_uri
from skillwire.errors import NotFoundError, SourceError
from skillwire.server.dialects.compat import Context
from skillwire.server.fastmcp.files import located
from skillwire.server.fastmcp.sight import Sight
from skillwire.server.fastmcp.viewpoint import ASKED, CALLER
from skillwire.server.handlers import (
    HandshakeMiddleware,
    as_json,
)
from skillwire.server.outputs import caller_of
from skillwire.server.skills import Skills
from skillwire.wire.core import (
    GET_SKILL,
    LIST_RESOURCES,
    READ_DIRECTORY,
    READ_RESOURCE,
    JsonDict,
)


class SkillsMiddleware(HandshakeMiddleware):
    """Around everything FastMCP does with a request, its own middleware included.

    A file has one URI and many spellings of it. FastMCP's middleware gets to
    see the published one, so that comparing URIs is enough to refuse one.
    """

    def __init__(self, skills: Skills, sight: Sight) -> None:
        super().__init__(skills)
        self._sight = sight

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        asked, caller = ASKED.set(self._sight), CALLER.set(caller_of(ctx))
        try:
            return await self._pass_on(ctx, call_next)
        finally:
            ASKED.reset(asked)
            CALLER.reset(caller)

    async def _pass_on(self, ctx: Context, call_next: CallNext) -> HandlerResult:
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
        """Return the spelling under which something of ours is published, else `uri` as it is."""
        try:
            answers = self._skills.answers
        except SourceError:
            return uri  # The skills are closed, and the server's own resources are not.
        try:
            return located(answers.catalog.snapshot, uri)[1]
        except NotFoundError:
            return canonical_uri(uri) if answers.is_directory(uri) else uri

    def _described(self, result: JsonDict) -> JsonDict:
        """Add the size, which FastMCP has no field for, and leave out its own remarks about a component."""
        own = self._own
        for resource in result["resources"]:
            try:
                entry, line = self._skills.catalog.snapshot.locate(resource["uri"])
            except (NotFoundError, SourceError):
                if resource["uri"] in own:
                    resource.pop("_meta", None)
                continue  # Not a skill's, or the skills are closed.
            resource.pop("_meta", None)
            if line is not None:
                resource["size"] = line.size
            if resource["uri"] == entry.uri.published:
                self._skills.notes.describe(resource, entry)
        return result

    @property
    def _own(self) -> set[str]:
        """The URIs of what older dialects add to the resources."""
        return {item["uri"] for compat in self._skills.compat for item in compat.resources()}
