"""A loopback socket on a free port, announced as the measured servers announce theirs."""

import socket
import sys


def listen() -> socket.socket:
    """Bind and announce a socket; clients may connect from now on and wait to be accepted."""
    bound = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(f"serving at http://127.0.0.1:{bound.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
    return bound
