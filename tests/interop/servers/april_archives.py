"""A server of the official Python SDK whose April index leads to archives.

`python april_archives.py FOLDER [--http]`: over HTTP it takes a free port and writes its URL to standard
error.
"""

import sys

from listening import listen_and_run
from mcp.server.mcpserver import MCPServer

from skillwire.server import add_skills
from skillwire.server.dialects.index import IndexApril

if __name__ == "__main__":
    mcp = MCPServer("interop", version="1.0.0")
    skills = add_skills(mcp, sys.argv[1], dialects=["index-april"])
    (april,) = skills.dialect_servers
    assert isinstance(april, IndexApril)
    april.as_archive = lambda entry: True
    if "--http" in sys.argv:
        listen_and_run(mcp.streamable_http_app())
    else:
        mcp.run()
