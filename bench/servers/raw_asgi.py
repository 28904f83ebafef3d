"""The floor over HTTP: reads the body, answers with prepared bytes, does nothing else.

Run as `python -m bench.servers.raw_asgi FILE`, the file holding the answer, or
with a folder: then it opens and hashes the file that each body asks for.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, TypeAlias

import uvicorn

from bench.floors import read_hash_answer
from bench.servers.listening import listen

Message: TypeAlias = MutableMapping[str, Any]


def answering(body: bytes) -> Callable[..., Awaitable[None]]:
    start, rest = _response(body)

    async def app(
        _scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        await _received(receive)
        await send(start)
        await send(rest)

    return app


def reading(root: str) -> Callable[..., Awaitable[None]]:
    async def app(
        _scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        start, rest = _response(read_hash_answer(root, await _received(receive)))
        await send(start)
        await send(rest)

    return app


async def _received(receive: Callable[[], Awaitable[Message]]) -> bytes:
    received = b""
    more = True
    while more:
        message = await receive()
        received += message.get("body", b"")
        more = message.get("more_body", False)
    return received


def _response(body: bytes) -> tuple[Message, Message]:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    start = {"type": "http.response.start", "status": 200, "headers": headers}
    return start, {"type": "http.response.body", "body": body}


def main() -> None:
    place = Path(sys.argv[1])
    app = reading(sys.argv[1]) if place.is_dir() else answering(place.read_bytes())
    # As `skillwire serve` configures it, the event loop and the parser named so that nothing else is taken.
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    uvicorn.Server(config).run(sockets=[listen()])


if __name__ == "__main__":
    main()
