"""`resources/list` for one place at a time, on a FastMCP server."""

from collections.abc import Container

import mcp_types as types
from fastmcp.server.context import Context as FastMCPContext
from mcp.server.context import HandlerResult

from skillwire.server.dialects.compat import Context, Handler
from skillwire.server.failures import wire_errors
from skillwire.server.fastmcp.files import located
from skillwire.server.fastmcp.sight import AnyFastMCP, Sight, keep_private
from skillwire.server.handlers import as_json, is_modern
from skillwire.server.skills import Skills
from skillwire.wire.core import JsonDict


class ScopedListing:
    """Lists one place as an older dialect does, with nothing in it that FastMCP would not list.

    `everything` is FastMCP's own handler. Whoever asks passes all of the
    server's middleware, which may refuse, and gets files only of skills that
    are listed to them.
    """

    def __init__(self, skills: Skills, sight: Sight) -> None:
        self._skills = skills
        self._sight = sight

    def page(self, context: Context, cursor: str | None) -> JsonDict | None:
        """Return a page of what there is in the place that was asked for; None when none was."""
        scope = (context.params or {}).get("uri")
        with wire_errors():
            for compat in self._skills.compat if isinstance(scope, str) else ():
                page = compat.list_scoped(str(scope), cursor)
                if page is not None:
                    return page
        return None

    async def shown(
        self, server: AnyFastMCP, context: Context, page: JsonDict, everything: Handler
    ) -> HandlerResult:
        """Answer with what of a page the caller may see."""
        skills = await _listed(context, everything)
        with wire_errors():
            async with FastMCPContext(fastmcp=server, session=context.session):
                found = page["resources"]
                page["resources"] = [item for item in found if await self._is_shown(item["uri"], skills)]
                self._skills.answers.on_terms(page, modern=is_modern(context))
                return keep_private(page) if await self._sight.is_limited() else page

    async def _is_shown(self, uri: str, skills: Container[str]) -> bool:
        answers = self._skills.answers
        entry = located(answers.catalog.snapshot, uri)[0]
        skill = entry.uri.published
        if skill in skills:
            return uri == skill or not await self._sight.is_limited() or await self._sight.sees(uri)
        # One that nobody lists may be looked into all the same.
        return not answers.is_listed(entry) and await self._sight.sees(uri)


async def _listed(context: Context, everything: Handler) -> set[str]:
    """Return the URIs of all that FastMCP lists to the caller."""
    result = as_json(await everything(context, types.PaginatedRequestParams()))
    found = {item["uri"] for item in result["resources"]}
    while result.get("nextCursor") is not None:
        params = types.PaginatedRequestParams(cursor=result["nextCursor"])
        result = as_json(await everything(context, params))
        found.update(item["uri"] for item in result["resources"])
    return found
