"""A server, to be run as a program, whose resources are listed as a file says: see `index_peer.py`.

More in its `WORLD`: `listed` holds whole items, `page` is how many make a page,
`scope` is what it makes of `uri` in `resources/list` ("knows", "ignores" or
"refuses"), `endless` lets the listing never end, and `entries` are what
`skills/list` and `skills/get` answer with; without them there is no such method.
"""

import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from integration.index_peer import NOT_KEPT, Context, IndexPeer, Json, over_http, over_stdio


class _ScopeParams(types.PaginatedRequestParams):
    uri: str | None = None


class _UriParams(types.RequestParams):
    uri: str


class ResourcePeer(IndexPeer):
    def server(self) -> Server[Any]:
        server = super().server()
        server.add_request_handler("resources/list", _ScopeParams, self._list_scoped)
        server.add_request_handler("skills/list", types.PaginatedRequestParams, self._list_skills)
        server.add_request_handler("skills/get", _UriParams, self._get_skill)
        return server

    async def _list_scoped(self, ctx: Context, params: _ScopeParams) -> Json:
        world = self.world()
        listed: list[Any] = world.get("listed", [])
        known = world.get("scope", "ignores")
        if params.uri is not None and known == "refuses":
            raise MCPError(types.INVALID_PARAMS, "what is a uri")
        if params.uri is not None and known == "knows":
            listed = [item for item in listed if _is_in(item["uri"], params.uri)]
        start, size = int(params.cursor or 0), world.get("page", len(listed) or 1)
        more = {"nextCursor": str(start + size)} if world.get("endless") or start + size < len(listed) else {}
        return {"resources": listed[start : start + size], **more, **NOT_KEPT}

    async def _list_skills(self, ctx: Context, params: types.PaginatedRequestParams) -> Json:
        return {"skills": self._entries()}

    async def _get_skill(self, ctx: Context, params: _UriParams) -> Json:
        found = [entry for entry in self._entries() if entry["uri"] == params.uri]
        if not found:
            raise MCPError(types.INVALID_PARAMS, "there is no such skill")
        return {"skill": found[0]}

    def _entries(self) -> list[Json]:
        entries: list[Json] | None = self.world().get("entries")
        if entries is None:
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
        return entries


def _is_in(uri: str, scope: str) -> bool:
    """Tell what the drafts put into a scope: every `SKILL.md`, or the files of one skill."""
    return uri.endswith("/SKILL.md") if scope == "skill://" else uri.startswith(f"{scope}/")


def main(world: str, log: str, era: str, *options: str) -> None:
    peer = ResourcePeer(Path(world), Path(log), era)
    anyio.run(over_http if "--http" in options else over_stdio, peer, era)


if __name__ == "__main__":
    main(*sys.argv[1:])
