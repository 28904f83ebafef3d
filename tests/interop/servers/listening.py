"""Running an ASGI application on a free port, for the servers in this folder."""

import socket
import sys
from typing import Any

import uvicorn


def listen_and_run(app: Any) -> None:
    """Serve `app` until told to stop. The URL of its MCP endpoint goes to standard error."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # From here on a client may connect; it is answered once the application runs.
        print(f"serving at http://127.0.0.1:{listener.getsockname()[1]}/mcp", file=sys.stderr, flush=True)  # noqa: T201
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        server.run(sockets=[listener])
