"""Checking the size of messages before they are parsed, and splitting event streams into events.

No more bytes are buffered than the cap allows.
"""

import re
import secrets
from typing import Any, Final, cast

import orjson
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCResponse

from skillwire.core import StrictJsonError, gc_paused, require_little_memory
from skillwire.host.calls import MessageCap
from skillwire.host.model import InvalidAnswerError, MessageTooLargeError

EVENT_ENDS: Final = (b"\n\n", b"\n\r", b"\r\r")


class EventMeter:
    """Measures the size of the events of an event stream.

    Such a stream may last for days, so only the size of one event counts. An
    event ends with an empty line, and there are three kinds of line ends.
    """

    def __init__(self, cap: MessageCap) -> None:
        self._cap = cap
        self._last = b""
        self._size = 0

    def feed(self, data: bytes) -> int:
        """Add bytes, and return roughly how many events and comments ended in them.

        Raises:
            MessageTooLargeError: An event is larger than the cap.
        """
        seen = self._last + data
        end = max(map(seen.rfind, EVENT_ENDS))
        self._size = len(seen) - end - 2 if end >= 0 else self._size + len(data)
        self._last = data[-1:] or self._last
        if self._size > self._cap.current:
            raise too_large(self._cap.current)
        return sum(map(seen.count, EVENT_ENDS)) + seen.count(b"\n:")


def too_large(cap: int) -> MessageTooLargeError:
    return MessageTooLargeError(f"the server sent a message of more than {cap} bytes")


def require_bounded(body: bytes) -> None:
    """Check, before a message is parsed, that its values need at most a few times its size in memory.

    Raises:
        MessageTooLargeError: They would need more.
    """
    try:
        require_little_memory(body)
    except StrictJsonError as error:
        raise MessageTooLargeError(f"the server sent a message of {len(body)} bytes that {error}") from error


# Fast parsing of large answers before they reach the SDK.


MIN_LARGE_BYTES = 16 * 1024
"""The minimum size of a large answer."""

MAX_SDK_BYTES = 4 * 1024 * 1024
"""The maximum size of a message that the SDK parses, which needs many times as much memory."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r){2,}")
_RESPONSE = frozenset({"jsonrpc", "id", "result"})


class LargeResults:
    """The results that bypass the SDK, by placeholders that no server can guess."""

    def __init__(self) -> None:
        self._key = secrets.token_hex(16)
        self._results: dict[str, dict[str, Any]] = {}

    def extract(self, body: bytes) -> bytes:
        """Return the body for the SDK: with a placeholder for a large result, or unchanged.

        Raises:
            MessageTooLargeError: Parsing it would need many times its size in memory.
            InvalidAnswerError: It is large, and not a plain JSON-RPC response.
        """
        if len(body) < MIN_LARGE_BYTES:
            return body
        require_bounded(body)
        try:
            with gc_paused():
                value: Any = orjson.loads(body)
        except ValueError:
            return _left_to_sdk(body)
        if not isinstance(value, dict) or value.keys() != _RESPONSE or value["jsonrpc"] != "2.0":
            return _left_to_sdk(body)
        message = cast(dict[str, Any], value)
        identifier, result = message["id"], message["result"]
        if (
            isinstance(identifier, bool)
            or not isinstance(identifier, int | str)
            or not isinstance(result, dict)
        ):
            return _left_to_sdk(body)
        placeholder = str(len(self._results)) + secrets.token_hex(8)
        self._results[placeholder] = cast(dict[str, Any], result)
        return orjson.dumps({"jsonrpc": "2.0", "id": identifier, "result": {self._key: placeholder}})

    def restore(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        """Replace a placeholder by its result."""
        if not isinstance(item, SessionMessage) or not isinstance(item.message, JSONRPCResponse):
            return item
        result = self._results.pop(str(item.message.result.get(self._key)), None)
        if result is not None:
            item.message = item.message.model_copy(update={"result": result})
        return item


class EventBuffer:
    """Buffers the events of a stream until they are complete, and extracts large results.

    A parser that got a final CR waits for the LF that may follow. So the LF is
    returned with the CR, or as soon as it arrives, and not with the next event.
    """

    def __init__(self, large_results: LargeResults) -> None:
        self._large_results = large_results
        self._buffer = bytearray()
        self._is_after_cr = False

    @property
    def rest(self) -> bytes:
        """The bytes of an event that is not complete."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> bytes:
        """Add bytes, and return those of all complete events.

        Raises:
            SkillError: An event must not be parsed; see `LargeResults.extract`.
        """
        line_feed = b"\n" if self._is_after_cr and data[:1] == b"\n" else b""
        searched = max(0, len(self._buffer) - 1)
        self._buffer += data[len(line_feed) :]
        self._is_after_cr = self._is_after_cr and not data
        end = max(self._buffer.rfind(ending, searched) for ending in EVENT_ENDS)
        if end < 0:
            return line_feed
        end += 3 if self._buffer.startswith(b"\r\n", end + 1) else 2
        ready = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._is_after_cr = ready[-1:] == b"\r"
        if len(ready) < MIN_LARGE_BYTES:
            return line_feed + ready
        events = (self._extracted(event) + b"\n\n" for event in _EVENT_END.split(ready) if event)
        return line_feed + b"".join(events)

    def _extracted(self, event: bytes) -> bytes:
        if len(event) < MIN_LARGE_BYTES:
            return event
        lines = _LINE_END.split(event)
        values = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        body = b"\n".join(values)
        extracted = self._large_results.extract(body)
        if extracted is body:
            return event
        return b"\n".join([*(line for line in lines if not line.startswith(b"data:")), b"data: " + extracted])


def _left_to_sdk(body: bytes) -> bytes:
    require_small(body)
    return body


def require_small(body: bytes) -> None:
    """Check that a message for the SDK is not too large.

    Raises:
        InvalidAnswerError: It is larger than `MAX_SDK_BYTES`.
    """
    if len(body) > MAX_SDK_BYTES:
        raise InvalidAnswerError(
            f"the server sent a message of {len(body)} bytes that is not a plain JSON-RPC response"
        )
