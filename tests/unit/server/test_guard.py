"""`ResponseWriter`: the head of a response leaves with its body, and alone when nothing follows."""

import asyncio
from collections.abc import Iterable

import anyio
import anyio.lowlevel

from skillwire.server.http.guard import ResponseWriter


class WritesTransport(asyncio.Transport):
    """Keeps what each write has, and whether it was closed after that."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed_after: int | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.writes.append(b"".join(list_of_data))

    def close(self) -> None:
        self.closed_after = len(self.writes)

    def is_closing(self) -> bool:
        return self.closed_after is not None


def new_writer() -> tuple[ResponseWriter, WritesTransport]:
    transport = WritesTransport()
    return ResponseWriter(transport, asyncio.get_running_loop()), transport


async def test_what_is_written_at_once_is_one_write() -> None:
    writer, transport = new_writer()

    for data in (b"head ", b"body", b"next head ", b"next body"):
        writer.write(data)
    await anyio.lowlevel.checkpoint()

    assert transport.writes == [b"head body", b"next head next body"]


async def test_the_head_of_a_stream_does_not_wait_for_its_first_event() -> None:
    writer, transport = new_writer()

    writer.write(b"head")
    await anyio.lowlevel.checkpoint()

    assert transport.writes == [b"head"]


async def test_an_empty_body_adds_no_write_and_keeps_nothing_back() -> None:
    writer, transport = new_writer()

    writer.write(b"head")
    writer.write(b"")
    await anyio.lowlevel.checkpoint()

    assert transport.writes == [b"head"]


async def test_closing_writes_what_is_held_first() -> None:
    writer, transport = new_writer()

    writer.write(b"head")
    writer.close()
    await anyio.lowlevel.checkpoint()

    assert transport.writes == [b"head"] and transport.closed_after == 1
    assert writer.is_closing()
