"""A tiny application behind our connections, as a process of its own: `python guarded_server.py LIMITS`.

LIMITS are the fields of `HttpConnectionLimits` that differ, as
JSON. It writes its port to standard output and serves until its input ends.
"""

import json
import logging
import resource
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import uvicorn

from skillwire.server.fast.requests import Receive, Scope, Send
from skillwire.server.http.guard import ConnectionTracker
from skillwire.server.http.server import http_protocol
from skillwire.server.limits import (
    CloseReason,
    ConnectionCounts,
    HttpConnectionLimits,
    limit_malloc_arenas,
    raise_open_file_limit,
)

BIG = 10 * 1024 * 1024
SILENCE = 1.5


class Tiny:
    """Tells how it is at `/counts`, loses patience at `/hurry`, sends much at `/big`, slowly at `/stream`
    and until somebody is refused at `/until-full`."""

    def __init__(self, tracker: ConnectionTracker) -> None:
        self._tracker = tracker
        self._counts = tracker.counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
        elif scope["path"] == "/stream":
            await self._stream(receive, send, partial(anyio.sleep, SILENCE))
        elif scope["path"] == "/until-full":
            await self._stream(receive, send, self._refusal)
        elif scope["path"] == "/early":
            await _answer(send, b"without looking at the body")
        elif scope["path"] == "/big":
            await _answer(send, b"x" * BIG + str(id(send)).encode())  # No two answers are the same bytes.
        elif scope["path"] == "/hurry":
            self._tracker.limits = replace(self._tracker.limits, silent_seconds=0.1, head_seconds=0.1)
            await _answer(send, b"{}")
        elif scope["path"] == "/counts":
            await _answer(send, json.dumps(self._state()).encode())
        else:
            await _answer(send, await _heard(scope, receive))

    async def _refusal(self) -> None:
        """Wait until somebody was refused because there are too many connections."""
        while not self._counts.by_reason[CloseReason.FULL]:  # noqa: ASYNC110 — the counts set no event
            await anyio.sleep(0.02)

    async def _stream(self, receive: Receive, send: Send, wait: Callable[[], Awaitable[None]]) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"event\n", "more_body": True})
        await wait()
        await send({"type": "http.response.body", "body": b"end\n"})

    def _state(self) -> dict[str, object]:
        pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
        return {
            "open": self._counts.open,
            "endings": dict(self._counts.by_reason),
            "resident": pages * resource.getpagesize(),
        }


async def _heard(scope: Scope, receive: Receive) -> bytes:
    size, names = 0, [name.decode("latin-1") for name, _ in scope["headers"]]
    while True:
        message = await receive()
        if message["type"] != "http.request":
            break
        size += len(message["body"])
        if not message["more_body"]:
            break
    return json.dumps({"path": scope["path"], "body": size, "headers": names}).encode()


async def _answer(send: Send, body: bytes) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


def main(changed: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    limit_malloc_arenas()
    given = HttpConnectionLimits(**json.loads(changed))
    tracker = ConnectionTracker(given, ConnectionCounts())
    raise_open_file_limit(given.connections)
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    config = uvicorn.Config(
        Tiny(tracker),
        http=http_protocol(tracker),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
    )
    server = uvicorn.Server(config)

    def follow() -> None:
        sys.stdin.read()
        server.should_exit = True
        server.force_exit = True

    threading.Thread(target=follow, daemon=True).start()
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()

    async def serve() -> None:
        await server.serve(sockets=[listener])

    anyio.run(serve, backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main(*sys.argv[1:])
