"""Where one message on a pipe ends and the next begins, however the bytes arrive, on both sides of it."""

import socket
from collections.abc import Iterator, Sequence

from mcp.server.lowlevel import Server

from skillwire.host.calls.session import MessageCap
from skillwire.host.connect.messages import EventMeter
from skillwire.host.connect.stdio import LineBuffer
from skillwire.host.model.errors import MessageTooLargeError
from skillwire.server.stdio import StdioConnection

_MOST_CHUNKS = 100
_CAP = 64
_SERVER = Server[object]("fuzz")


def check(data: bytes) -> None:
    """A byte tells how long the next chunk is."""
    chunks = list(_chunks(data))
    whole = b"".join(chunks)
    lines = whole.split(b"\n")
    assert _lines_of_server(chunks) == (lines if lines[-1] else lines[:-1])
    _check_host_lines(chunks, lines)
    _check_host_events(chunks)


def _chunks(data: bytes) -> Iterator[bytes]:
    for _ in range(_MOST_CHUNKS):
        if not data:
            return
        size = data[0] + 1
        if chunk := data[1 : size + 1]:
            yield chunk
        data = data[size + 1 :]


def _lines_of_server(chunks: Sequence[bytes]) -> list[bytes]:
    # Packets keep their ends, as a pipe does not: each read gets one chunk.
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        for chunk in chunks:
            near.send(chunk)
        near.shutdown(socket.SHUT_WR)
        connection = StdioConnection(_SERVER, None, incoming=far.fileno(), outgoing=-1)
        return list(connection.lines())


def _check_host_lines(chunks: Sequence[bytes], lines: Sequence[bytes]) -> None:
    buffer = LineBuffer(MessageCap(_CAP))
    found: list[bytes] = []
    try:
        for chunk in chunks:
            found += buffer.feed(chunk)
    except MessageTooLargeError:
        assert max(map(len, lines)) > _CAP
    else:
        assert max(map(len, lines), default=0) <= _CAP
        assert found == list(lines[:-1])
    assert found == list(lines[: len(found)])


def _check_host_events(chunks: Sequence[bytes]) -> None:
    meter = EventMeter(MessageCap(_CAP))
    seen = b""
    try:
        for chunk in chunks:
            seen += chunk
            assert meter.feed(chunk) >= 0
            # What follows the last empty line is the event that still grows.
            ends = [seen.rfind(end) for end in (b"\n\n", b"\n\r", b"\r\r")]
            assert len(seen) - max(ends) - 2 <= _CAP or max(ends) < 0
    except MessageTooLargeError:
        assert len(seen) > _CAP
