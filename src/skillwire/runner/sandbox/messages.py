"""Messages to and from the init of a sandbox: a length, that much JSON, and the bytes it announces."""

import socket
from typing import Any, cast

import orjson

from skillwire.errors import RunnerError

MAX_MESSAGE = 1024 * 1024


def message(content: dict[str, Any]) -> bytes:
    """Write a message as it is sent."""
    text = orjson.dumps(content)
    return len(text).to_bytes(4, "big") + text


def receive_message(connection: socket.socket) -> dict[str, Any] | None:
    """Wait for a message; None when the other side is gone.

    Raises:
        RunnerError: It is no message.
        TimeoutError: It does not come.
    """
    head = receive(connection, 4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "big")
    if size > MAX_MESSAGE:
        raise RunnerError("the sandbox said more than it may")
    text = receive(connection, size)
    return parse_message(text) if len(text) == size else None


def parse_message(text: bytes) -> dict[str, Any]:
    """Read a message's JSON.

    Raises:
        RunnerError: It is none.
    """
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RunnerError("the sandbox said something that is no message") from error
    if not isinstance(content, dict):
        raise RunnerError("the sandbox said something that is no message")
    return cast("dict[str, Any]", content)


def receive(connection: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or fewer when the other side is gone."""
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            break
        parts += part
    return bytes(parts)
