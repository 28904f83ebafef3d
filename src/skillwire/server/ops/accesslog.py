"""`AccessLog`: a line of JSON for each request, written by a thread.

The event loop only puts a value into a bounded queue. When the output is too
slow, the newest lines are dropped and counted, and the log reports how many. A
line is ASCII and short enough for an atomic write, so lines of several workers
do not mix, and input of clients can neither start a new line nor contain
terminal control sequences.
"""

import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_MAX_QUEUED = 10_000
_CLOSE_SECONDS = 2.0
_RETRY_SECONDS = 0.05
_MAX_PATH = 256
_MAX_FIELD = 96
# The number of bytes that a pipe accepts atomically.
_ATOMIC_BYTES = getattr(select, "PIPE_BUF", 512)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AccessRecord:
    """The access log record of one request; unknown values are empty."""

    ended: float
    """POSIX time of the end of the request."""
    seconds: float
    id: str
    remote: str
    verb: str
    path: str
    method: str
    """The MCP method, or the HTTP route."""
    status: int
    """The HTTP status; 0 when there was no response."""
    size: int
    outcome: str
    caller: str = ""
    agent: str = ""
    trace: str = ""

    def encode(self) -> bytes:
        """Return the record as a JSON line with a newline."""
        members: dict[str, Any] = {
            "time": _format_time(self.ended),
            "id": self.id,
            "trace_id": self.trace,
            "remote": _cut(self.remote, _MAX_FIELD),
            "method": _cut(self.verb, _MAX_FIELD),
            "path": _cut(self.path, _MAX_PATH),
            "mcp": self.method,
            "status": self.status or None,
            "outcome": self.outcome,
            "bytes": self.size,
            "seconds": round(self.seconds, 6),
            "caller": _cut(self.caller, _MAX_FIELD),
            "agent": _cut(self.agent, _MAX_FIELD),
        }
        return _encoded({name: value for name, value in members.items() if value not in ("", None)})


class AccessLog:
    """A queue of records, which a thread writes with `write`."""

    def __init__(self, write: Callable[[bytes], int], *, on_drop: Callable[[int], None]) -> None:
        """Write with `write`, which returns the number of bytes written, like `os.write`.

        `on_drop` is called with the number of lines whenever some are dropped.
        """
        self._write = write
        self._on_drop = on_drop
        self._queue: deque[AccessRecord] = deque()
        # Each has one writer: `_dropped` the event loop, `_reported` the thread.
        self._dropped = 0
        self._reported = 0
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)

    def put(self, line: AccessRecord) -> None:
        """Queue a line; never blocks."""
        if len(self._queue) >= _MAX_QUEUED:
            self._dropped += 1
            self._on_drop(1)
            return
        self._queue.append(line)
        if not self._wake.is_set():
            self._wake.set()

    @contextmanager
    def open(self) -> Generator["AccessLog"]:
        """Run the thread during the block, and afterwards write what is queued, within two seconds."""
        self._thread.start()
        try:
            yield self
        finally:
            self._is_closing = True
            self._wake.set()
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():
                logger.warning("access log lines were lost: the output did not accept them in time")

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            for piece in self._chunks():
                self._write_all(piece)
            if self._is_closing and not self._queue:
                return

    def _chunks(self) -> Iterator[bytes]:
        """Yield the queued lines, in chunks that can be written atomically."""
        piece = b""
        while True:
            line = self._next()
            if piece and len(piece) + len(line) > _ATOMIC_BYTES:
                yield piece
                piece = b""
            if not line:
                break
            piece += line
        if piece:
            yield piece

    def _next(self) -> bytes:
        dropped = self._dropped - self._reported
        if dropped and len(self._queue) < _MAX_QUEUED:
            self._reported += dropped
            return _encoded({"time": _format_time(time.time()), "dropped": dropped})
        return self._queue.popleft().encode() if self._queue else b""

    def _write_all(self, piece: bytes) -> None:
        while piece:
            try:
                piece = piece[self._write(piece) :]
            except BlockingIOError:
                # The stream is in non-blocking mode.
                if self._is_closing:
                    return
                time.sleep(_RETRY_SECONDS)
            except OSError:
                return  # The reader has closed the pipe.


def write_to_stderr(line: bytes) -> int:
    """Write to standard error, unbuffered."""
    return os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, line)


def _format_time(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cut(text: str, most: int) -> str:
    """Return the start of a text, whose JSON is as short as that of `most` characters of six bytes."""
    text = text[:most]
    # Characters outside the basic plane take twelve.
    return text if len(json.dumps(text)) <= 6 * most else text[: most // 2]


def _encoded(members: dict[str, Any]) -> bytes:
    text = json.dumps(members, separators=(",", ":")).replace("\x7f", "\\u007f")
    return text.encode("ascii") + b"\n"
