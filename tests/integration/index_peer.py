"""A server, to be run as a program, of whatever resources a file says: `python index_peer.py WORLD LOG ERA`.

It is built on the SDK and knows nothing of skills: no `skills/*`, only
resources, templates and completion. `WORLD` is JSON, read anew for each request:
`declares`, `resources` by URI (a text, `{"blob": …}` or `{"error": code}`),
`listed` URIs (an object: an error instead), `templates`, `completions`. `ERA` is `modern` or `legacy`, which
hides the newer generation. With `--http` it prints its URL.
"""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

EXTENSION = "io.modelcontextprotocol/skills"
NOT_KEPT = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

Json = dict[str, Any]
Context = ServerRequestContext[Any, Any]


class IndexPeer:
    """The server, and the files it shares with the test."""

    def __init__(self, world: Path, log: Path, era: str) -> None:
        self._world = world
        self._log = log
        self._era = era

    def world(self) -> Json:
        return json.loads(self._world.read_bytes())

    def server(self) -> Server[Any]:
        server: Server[Any] = Server("index-peer")
        if self.world().get("declares", True):
            server.extensions[EXTENSION] = {}
        server.middleware.append(self._middleware)
        server.add_request_handler("resources/list", types.PaginatedRequestParams, self._list)
        server.add_request_handler("resources/read", types.ReadResourceRequestParams, self._read)
        server.add_request_handler(
            "resources/templates/list", types.PaginatedRequestParams, self._list_templates
        )
        server.add_request_handler("completion/complete", types.CompleteRequestParams, self._complete)
        return server

    async def _middleware(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.method == "server/discover" and self._era == "legacy":
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
        if ctx.request_id is not None:
            uri = (ctx.params or {}).get("uri", "")
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"method": ctx.method, "uri": uri}) + "\n")
        result = await call_next(ctx)
        if ctx.method == "initialize" and self.world().get("declares", True) and isinstance(result, dict):
            # The SDK declares extensions at 2026-07-28 only.
            result["capabilities"]["extensions"] = {EXTENSION: {}}
        return result

    async def _list(self, ctx: Context, params: types.PaginatedRequestParams) -> Json:
        listed = self.world().get("listed", [])
        if isinstance(listed, dict):
            raise MCPError(types.INTERNAL_ERROR, "the listing is out of order")
        return {"resources": [{"uri": uri, "name": uri} for uri in listed], **NOT_KEPT}

    async def _read(self, ctx: Context, params: types.ReadResourceRequestParams) -> Json:
        told = self.world()["resources"].get(params.uri, {"error": types.INVALID_PARAMS})
        found: Json = {"text": told} if isinstance(told, str) else told
        if "error" in found:
            raise MCPError(found["error"], "there is no such resource")
        return {"contents": [{"uri": params.uri, "mimeType": "text/plain", **found}], **NOT_KEPT}

    async def _list_templates(self, ctx: Context, params: types.PaginatedRequestParams) -> Json:
        templates = self.world().get("templates", [])
        found = [{"uriTemplate": text, "name": text} for text in templates]
        return {"resourceTemplates": found, **NOT_KEPT}

    async def _complete(self, ctx: Context, params: types.CompleteRequestParams) -> Json:
        values = self.world().get("completions", {}).get(params.argument.name, [])
        found = [value for value in values if value.startswith(params.argument.value)]
        return {"completion": {"values": found}, "resultType": "complete"}


async def over_stdio(peer: IndexPeer, era: str) -> None:
    server = peer.server()
    async with stdio_server() as (read, write), anyio.create_task_group() as group:
        # The first request decides for the SDK which generation is spoken, so an old server must not see it.
        passed, seen = anyio.create_memory_object_stream[SessionMessage | Exception]()

        async def relay() -> None:
            async with passed:
                async for item in read:
                    message = item.message if isinstance(item, SessionMessage) else None
                    if era == "legacy" and isinstance(message, types.JSONRPCRequest):
                        if message.method == "server/discover":
                            await write.send(_no_such_method(message))
                            continue
                    await passed.send(item)

        group.start_soon(relay)
        await server.run(seen, write, server.create_initialization_options())
        group.cancel_scope.cancel()


def _no_such_method(request: types.JSONRPCRequest) -> SessionMessage:
    error = types.ErrorData(code=types.METHOD_NOT_FOUND, message="Method not found")
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error))


async def over_http(peer: IndexPeer, era: str) -> None:
    app = peer.server().streamable_http_app(json_response=True, stateless_http=True)
    http = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_level="warning"))

    async def tell() -> None:
        while not http.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await anyio.sleep(0.02)
        port = http.servers[0].sockets[0].getsockname()[1]
        print(f"http://127.0.0.1:{port}/mcp", flush=True)  # noqa: T201 - the test reads it

    async with anyio.create_task_group() as group:
        group.start_soon(tell)
        await http.serve()


def main(world: str, log: str, era: str, *options: str) -> None:
    peer = IndexPeer(Path(world), Path(log), era)
    anyio.run(over_http if "--http" in options else over_stdio, peer, era)


if __name__ == "__main__":
    main(*sys.argv[1:])
