"""Servers of the official Python SDK that write down what they are asked, for the servers in this folder."""

import json
from pathlib import Path
from typing import Any

from mcp.server.context import CallNext, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND
from mcp_types.version import MODERN_PROTOCOL_VERSIONS


def watch(server: Server[Any], log: Path, *, older: bool) -> None:
    """Add a line to `log` for every request; when `older`, know nothing of revision 2026-07-28.

    The latter works over HTTP only: on a pipe, the SDK settles the generation
    before anyone is asked. There, `older_stdio.py` does the same.
    """

    async def note(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> Any:
        line = {"method": ctx.method, "params": dict(ctx.params or {})}
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if older and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found")
        return await call_next(ctx)

    server.middleware.insert(0, note)
