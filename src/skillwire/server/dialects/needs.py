"""Whether a server offers the tools, prompts and resources that its skills declare to need."""

import logging
import re
from collections.abc import Mapping
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server

from skillwire.core.characters import quoted
from skillwire.core.uri import SkillUri
from skillwire.errors import NotFoundError
from skillwire.server.dialects.compat import Context
from skillwire.server.results import as_json
from skillwire.sources import Snapshot
from skillwire.wire.core import LIST_RESOURCES, LIST_TEMPLATES, READ_RESOURCE
from skillwire.wire.primitive import SkillDependencies

_SECONDS = 5.0
_MAX_PAGES = 50

logger = logging.getLogger(__name__)


async def missing_of(
    server: Server[Any], context: Context, snapshot: Snapshot, needs: Mapping[SkillUri, SkillDependencies]
) -> dict[SkillUri, list[str]] | None:
    """Say what each skill needs and the server has not, in words; skills with nothing missing are left out.

    The server's own list methods are asked, on behalf of whoever sent the
    request in `context`. When they fail or take too long, None: nothing is known.
    """
    if not needs:
        return {}
    try:
        with anyio.fail_after(_SECONDS):
            return await _compare(_Offers(server, context, snapshot), needs)
    except Exception:
        logger.warning("what skills need could not be compared with what the server offers", exc_info=True)
        return None


async def _compare(
    offers: "_Offers", needs: Mapping[SkillUri, SkillDependencies]
) -> dict[SkillUri, list[str]]:
    missing: dict[SkillUri, list[str]] = {}
    tools, prompts = set[str](), set[str]()
    if any(need.tools for need in needs.values()):
        tools = await offers.names("tools/list", "tools")
    if any(need.prompts for need in needs.values()):
        prompts = await offers.names("prompts/list", "prompts")
    for uri, need in needs.items():
        words = [f"the server has no tool {quoted(name)}" for name in need.tools if name not in tools]
        words += [f"the server has no prompt {quoted(name)}" for name in need.prompts if name not in prompts]
        for wanted in need.resources:
            if not await offers.has_resource(wanted):
                words.append(f"the server has no resource {quoted(wanted)}")
        if words:
            missing[uri] = words
    return missing


class _Offers:
    """What a server offers, asked for when it is needed."""

    def __init__(self, server: Server[Any], context: Context, snapshot: Snapshot) -> None:
        self._server = server
        self._context = context
        self._snapshot = snapshot
        self._uris: set[str] | None = None
        self._templates: set[str] = set()

    async def names(self, method: str, key: str, member: str = "name") -> set[str]:
        """Return the names, or another member, of everything that a list method lists."""
        entry = self._server.get_request_handler(method)
        found: set[str] = set()
        cursor: str | None = None
        for _ in range(_MAX_PAGES if entry is not None else 0):
            assert entry is not None
            page = as_json(await entry.handler(self._context, types.PaginatedRequestParams(cursor=cursor)))
            found.update(item[member] for item in page[key])
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return found

    async def has_resource(self, uri: str) -> bool:
        """Tell whether `uri` is a resource or a template; it is read only when no list has it."""
        try:
            self._snapshot.locate(uri)
            return True
        except NotFoundError:
            pass
        if self._uris is None:
            self._templates = await self.names(LIST_TEMPLATES, "resourceTemplates", "uriTemplate")
            self._uris = await self.names(LIST_RESOURCES, "resources", "uri")
        return uri in self._uris or uri in self._templates or await self._is_readable(uri)

    async def _is_readable(self, uri: str) -> bool:
        entry = self._server.get_request_handler(READ_RESOURCE)
        if entry is None or re.search(r"[{}]", uri):
            return False
        try:
            await entry.handler(self._context, types.ReadResourceRequestParams(uri=uri))
        except Exception:
            return False
        return True
