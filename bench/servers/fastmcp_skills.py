"""FastMCP's own skills server: `python -m bench.servers.fastmcp_skills ROOT default|sep http|stdio`.

By default it offers skills as plain resources, one folder deep, so every team's
folder is a root; with its experimental switch it speaks the extension.
"""

import logging
import sys
from pathlib import Path

import anyio
from fastmcp import FastMCP
from fastmcp.server.providers.skills import SkillsDirectoryProvider
from fastmcp.skills.extension import SkillsExtension

from bench.servers.listening import listen

PAGE = 100


def server(root: Path, mode: str) -> FastMCP:
    mcp = FastMCP("bench", list_page_size=PAGE)
    if mode == "default":
        mcp.add_provider(SkillsDirectoryProvider(sorted(root.iterdir())))
    else:
        provider = SkillsDirectoryProvider(root, experimental_skills=True)
        mcp.add_provider(provider)
        mcp.add_extension(SkillsExtension(providers=[provider]))
    return mcp


async def serve(mcp: FastMCP, transport: str) -> None:
    if transport == "stdio":
        await mcp.run_stdio_async(show_banner=False, log_level="error")
        return
    config = {"loop": "uvloop", "http": "httptools", "ws": "none", "access_log": False}
    await mcp.run_http_async(
        show_banner=False, log_level="error", uvicorn_config=config, sockets=[listen()], path="/mcp"
    )


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    anyio.run(
        serve, server(Path(sys.argv[1]), sys.argv[2]), sys.argv[3], backend_options={"use_uvloop": True}
    )
