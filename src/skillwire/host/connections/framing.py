"""Where one message ends and the next begins, before anything of it is parsed.

Both count bytes and keep no more of them than the cap allows.
"""

from collections.abc import Iterator

from skillwire.host.connections.throttle import MessageCap
from skillwire.host.failures import MessageTooLargeError


class LineBuffer:
    """Cuts a stream of bytes into lines, one message each."""

    def __init__(self, cap: MessageCap) -> None:
        self._cap = cap
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take some bytes, and give the lines that are complete, without their ends.

        Raises:
            MessageTooLargeError: A line is longer than the cap, complete or not.
        """
        *complete, rest = data.split(b"\n")
        for piece in complete:
            self._keep(piece)
            line = b"".join(self._pieces)
            self._pieces.clear()
            self._size = 0
            yield line
        if rest:
            self._keep(rest)

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._cap.current:
            self._pieces.clear()
            raise too_large(self._cap.current)
        self._pieces.append(piece)


class EventMeter:
    """Measures the events of an event stream while someone else reads them.

    Such a stream may go on for days, so only one event's size counts. An
    event ends with an empty line, and lines may end in three ways.
    """

    _ENDS = (b"\n\n", b"\n\r", b"\r\r")

    def __init__(self, cap: MessageCap) -> None:
        self._cap = cap
        self._last = b""
        self._size = 0

    def feed(self, data: bytes) -> int:
        """Take some bytes, and return how many events and comments ended in them, roughly.

        Raises:
            MessageTooLargeError: An event has grown beyond the cap.
        """
        seen = self._last + data
        end = max(map(seen.rfind, self._ENDS))
        self._size = len(seen) - end - 2 if end >= 0 else self._size + len(data)
        self._last = data[-1:] or self._last
        if self._size > self._cap.current:
            raise too_large(self._cap.current)
        return sum(map(seen.count, self._ENDS)) + seen.count(b"\n:")


def too_large(cap: int) -> MessageTooLargeError:
    return MessageTooLargeError(f"the server sent a message of more than {cap} bytes")
