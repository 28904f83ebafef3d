"""A server of a folder in one generation: `python dialect_server.py FOLDER ERA DIALECT… [--http]`.

`ERA` is `modern` or `legacy`, which hides the newer generation. With `--http` it prints its URL.
"""

import sys
from pathlib import Path

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError

from skillwire.server.dialects.base import Context
from skillwire.server.http.server import url_of
from skillwire.server.http.views import Endpoint
from skillwire.server.listener import listen_on
from skillwire.server.options import HttpOptions, ServeOptions
from skillwire.server.standalone import SkillServer
from skillwire.server.stdio import serve_stdio


async def hide_the_newer_generation(ctx: Context, call_next: CallNext) -> HandlerResult:
    if ctx.method == "server/discover":
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
    return await call_next(ctx)


def main(folder: str, era: str, *words: str) -> None:
    dialects = tuple(word for word in words if not word.startswith("--"))
    offer = ServeOptions((Path(folder),), watch=False, dialect=dialects)

    def hide(standalone: SkillServer) -> None:
        if era == "legacy":
            standalone.server.middleware.insert(0, hide_the_newer_generation)

    async def over_http() -> None:
        standalone = SkillServer(offer)
        hide(standalone)
        endpoint = Endpoint(standalone, is_stateless=False)
        config = uvicorn.Config(endpoint, lifespan="off", log_level="warning", timeout_graceful_shutdown=1)
        async with endpoint.open():
            with listen_on("127.0.0.1", 0) as listener:
                print(url_of(listener, HttpOptions("127.0.0.1:0")), flush=True)  # noqa: T201 - the test reads it
                await uvicorn.Server(config).serve(sockets=[listener])

    async def over_stdio() -> None:
        await serve_stdio(offer, on_ready=hide)

    anyio.run(over_http if "--http" in words else over_stdio)


if __name__ == "__main__":
    main(*sys.argv[1:])
