"""Where a browser comes back to after its user signed in: one request on the loopback address."""

import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.abc

CALLBACK: Final = "/callback"
HOST: Final = "127.0.0.1"

_LARGEST_HEAD = 16 * 1024
_HEAD_SECONDS = 10.0
_MOST_VISITORS = 16
_PAGE = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>skillwire</title>"
    "<p>{words} You can close this window.</p></html>"
)


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def redirect_uri(port: int) -> str:
    return f"http://{HOST}:{port}{CALLBACK}"


class RedirectListener:
    """Waits on `port` for the one request that carries `state`, and answers everything else with a no.

    Without that check, any page in the browser could end a sign-in by asking first.
    """

    def __init__(self, port: int, state: str) -> None:
        self._port = port
        self._state = state
        self._arrived = anyio.Event()
        self._visitors = anyio.CapacityLimiter(_MOST_VISITORS)
        self.parameters: Mapping[str, str] = {}

    async def listen(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        Raises:
            OSError: The port is taken.
        """
        async with await anyio.create_tcp_listener(local_host=HOST, local_port=self._port) as listener:
            task_status.started()
            await listener.serve(self._visit)

    async def wait(self) -> Mapping[str, str]:
        """Return the parameters of the request, when it has come."""
        await self._arrived.wait()
        return self.parameters

    async def _visit(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                with anyio.move_on_after(_HEAD_SECONDS):
                    async with self._visitors:
                        await self._serve(stream)
            except (anyio.BrokenResourceError, anyio.EndOfStream, OSError):
                pass  # A browser opens connections it may not use.

    async def _serve(self, stream: anyio.abc.SocketStream) -> None:
        parameters = self._parameters(await _head(stream))
        if parameters is None or self.parameters:
            await stream.send(_page("404 Not Found", "There is nothing here."))
            return
        self.parameters = parameters
        try:
            words = "You are signed in." if "code" in parameters else "Signing in was refused."
            await stream.send(_page("200 OK", words))
        finally:
            # Whoever waits for this ends the listener, and the page should be out by then.
            self._arrived.set()

    def _parameters(self, head: bytes) -> dict[str, str] | None:
        """Take the parameters from a request, if it is the one we wait for."""
        method, _, rest = head.partition(b" ")
        target = urlsplit(rest.partition(b" ")[0].decode("ascii", "replace"))
        if method != b"GET" or target.path != CALLBACK:
            return None
        found = {name: values[0] for name, values in parse_qs(target.query, max_num_fields=32).items()}
        return found if found.get("state") == self._state else None


async def _head(stream: anyio.abc.SocketStream) -> bytes:
    """Read a request up to the end of its head, and no more than a browser would send."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) <= _LARGEST_HEAD:
        head += await stream.receive(4096)
    return head


def _page(status: str, words: str) -> bytes:
    body = _PAGE.format(words=words).encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Content-Security-Policy: default-src 'none'\r\nCache-Control: no-store\r\n"
        "Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    ).encode() + body
