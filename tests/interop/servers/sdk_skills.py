"""Servers of the official Python SDK with `add_skills`, over HTTP only, which write down what they are asked.

`python sdk_skills.py FOLDER LOG [--lowlevel] [--stateless] [--older]`: as an
`MCPServer` or as the SDK's lowlevel server, with sessions for older clients or
without, and with `--older` for nobody else. It takes a free port and writes its
URL to standard error.
"""

import sys
from pathlib import Path
from typing import Any

from listening import listen_and_run
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from watching import watch

from skillwire.server import add_skills

FOLDER, LOG, *FLAGS = sys.argv[1:]


def application() -> Any:
    stateless, older = "--stateless" in FLAGS, "--older" in FLAGS
    if "--lowlevel" in FLAGS:
        server: Server[Any] = Server("lowlevel", version="1.0.0")
        add_skills(server, FOLDER, page_size=2)
        watch(server, Path(LOG), older=older)
        return server.streamable_http_app(stateless_http=stateless)
    mcp = MCPServer("mcpserver", version="1.0.0")
    add_skills(mcp, FOLDER, page_size=2)
    # There is no public way to the server inside once it is made.
    watch(mcp._lowlevel_server, Path(LOG), older=older)  # pyright: ignore[reportPrivateUsage]
    return mcp.streamable_http_app(stateless_http=stateless)


if __name__ == "__main__":
    listen_and_run(application())
