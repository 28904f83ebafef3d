"""A request's body, taken whole before anyone works on it."""

from typing import Final

from skillwire.server.asgi import Message, Receive

MOST_TAKEN: Final = 4 * 1024 * 1024
"""How much of a body is waited for here. The SDK refuses what is longer."""


async def taken(receive: Receive) -> Receive | None:
    """Wait for a body, and return a `receive` that gives it again; None when the client left before its end.

    To the SDK, a client that leaves in the middle of its request is a failure
    of the server: an answer with status 500 for nobody, and a long complaint
    in the log. So it never hears of one. A body that is too long is not waited
    for: what came of it is given again, and then the rest as it comes.
    """
    messages: list[Message] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        messages.append(message)
        size += len(message.get("body", b""))
        if not message.get("more_body") or size > MOST_TAKEN:
            break
    messages.reverse()

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again
