"""Bodies of requests, as they come in over a connection."""

from collections.abc import Sequence

from skillwire.server.fast.asgi import read_body
from skillwire.server.fast.requests import Message, Receive

MOST = 1024
GONE: Message = {"type": "http.disconnect"}


def piece(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def coming(messages: Sequence[Message]) -> Receive:
    left = list(reversed(messages))

    async def receive() -> Message:
        return left.pop()

    return receive


async def everything(receive: Receive, count: int) -> list[Message]:
    return [await receive() for _ in range(count)]


async def test_a_body_is_given_again_piece_by_piece_and_then_what_follows() -> None:
    messages = [piece(b"a", more=True), piece(b"", more=True), piece(b"b"), GONE]

    body = await read_body(coming(messages), MOST)

    assert body is not None
    assert await everything(body.again, 4) == messages


async def test_nobody_works_on_a_request_whose_client_left_in_the_middle_of_it() -> None:
    assert await read_body(coming([piece(b"a", more=True), GONE]), MOST) is None


async def test_a_body_that_is_too_long_is_not_waited_for() -> None:
    messages = [piece(b"x" * MOST, more=True), piece(b"y", more=True), piece(b"z"), GONE]
    incoming = coming(messages)

    body = await read_body(incoming, MOST)

    assert body is not None
    assert await incoming() == messages[2]
    assert await everything(body.again, 2) == messages[:2]
