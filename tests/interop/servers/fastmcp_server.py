"""A FastMCP server with things of its own, and skills beside them.

`python fastmcp_server.py FOLDER [--http]`: over HTTP it takes a free port and writes its URL to standard
error. The names of its things are those the conformance suite asks for.
"""

import sys

from fastmcp import FastMCP
from listening import listen_and_run

from skillwire.server import add_skills

PIXEL = bytes.fromhex("89504e470d0a1a0a")

mcp = FastMCP("interop", version="1.0.0", instructions="A server with a few things of its own.")


@mcp.tool
def test_simple_text() -> str:
    """Answer with a simple text."""
    return "This is a simple text response for testing."


@mcp.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    return "This is the content of the static text resource."


@mcp.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    return PIXEL


@mcp.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    return f'{{"id": "{id}", "templateTest": true}}'


@mcp.prompt
def test_simple_prompt() -> str:
    """Say one thing."""
    return "This is a simple prompt for testing."


if __name__ == "__main__":
    add_skills(mcp, sys.argv[1], page_size=5)
    if "--http" in sys.argv:
        listen_and_run(mcp.http_app(host_origin_protection=True))
    else:
        mcp.run(show_banner=False)
