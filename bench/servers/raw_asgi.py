"""The floor over HTTP: reads the body, answers with prepared bytes, does nothing else.

Run as `python -m bench.servers.raw_asgi FILE`, the file holding the answer.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, TypeAlias

import uvicorn

from bench.servers.listening import listen

Message: TypeAlias = MutableMapping[str, Any]


def answering(body: bytes) -> Callable[..., Awaitable[None]]:
    start: Message = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
    }
    rest: Message = {"type": "http.response.body", "body": body}

    async def app(
        _scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        received = b""
        more = True
        while more:
            message = await receive()
            received += message.get("body", b"")
            more = message.get("more_body", False)
        await send(start)
        await send(rest)

    return app


def main() -> None:
    app = answering(Path(sys.argv[1]).read_bytes())
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
