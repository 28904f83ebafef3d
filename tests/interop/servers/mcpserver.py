"""A server of the official Python SDK with things of its own, and skills beside them.

`python mcpserver.py FOLDER [--http]`: over HTTP it takes a free port and writes its URL to standard error.
The names of its things are those the conformance suite asks for.
"""

import sys

from listening import listen_and_run
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)

from skillwire.server import add_skills

PIXEL = bytes.fromhex("89504e470d0a1a0a")

mcp = MCPServer("interop", version="1.0.0", instructions="A server with a few things of its own.")


@mcp.tool()
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


@mcp.prompt()
def test_simple_prompt() -> list[UserMessage]:
    """Say one thing."""
    return [UserMessage("This is a simple prompt for testing.")]


@mcp.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference,
    argument: CompletionArgument,
    context: CompletionContext | None,
) -> Completion | None:
    if isinstance(ref, PromptReference):
        return Completion(values=[argument.value + "ing"])
    return None


if __name__ == "__main__":
    add_skills(mcp, sys.argv[1], page_size=5)
    if "--http" in sys.argv:
        listen_and_run(mcp.streamable_http_app())
    else:
        mcp.run()
