"""A server's older self: the same answers, except to requests in the manner of 2026-07-28."""

import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

SECONDS = 20.0
MODERN = "io.modelcontextprotocol/protocolVersion"
UNKNOWN = {"code": -32601, "message": "Method not found"}
PASSED_ON = ("accept", "content-type", "mcp-protocol-version", "mcp-session-id")
PASSED_BACK = ("content-type", "mcp-session-id")


@asynccontextmanager
async def older_server(url: str) -> AsyncGenerator[str]:
    """Pass requests on to the server at `url` until the block ends, and give the address to use instead."""
    async with httpx2.AsyncClient(timeout=SECONDS) as client:

        async def answer(request: Request) -> Response:
            body = await request.body()
            asked = json.loads(body)
            if MODERN in asked.get("params", {}).get("_meta", {}):
                return JSONResponse({"jsonrpc": "2.0", "id": asked.get("id"), "error": UNKNOWN})
            headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
            found = await client.post(url, content=body, headers=headers)
            kept = {name: found.headers[name] for name in PASSED_BACK if name in found.headers}
            return Response(found.content, found.status_code, kept)

        app = Starlette(routes=[Route("/mcp", answer, methods=["POST"])])
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve, [listener])
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
                server.should_exit = True
