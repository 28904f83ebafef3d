"""Bodies of requests, as they come in over a connection."""

from collections.abc import Sequence

from skillwire.server.asgi import Message, Receive
from skillwire.server.bodies import MOST_TAKEN, taken

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

    receive = await taken(coming(messages))

    assert receive is not None
    assert await everything(receive, 4) == messages


async def test_nobody_works_on_a_request_whose_client_left_in_the_middle_of_it() -> None:
    assert await taken(coming([piece(b"a", more=True), GONE])) is None


async def test_a_body_that_is_too_long_is_not_waited_for() -> None:
    messages = [piece(b"x" * MOST_TAKEN, more=True), piece(b"y", more=True), piece(b"z"), GONE]
    incoming = coming(messages)

    receive = await taken(incoming)

    assert receive is not None
    assert await incoming() == messages[2]
    assert await everything(receive, 2) == messages[:2]
