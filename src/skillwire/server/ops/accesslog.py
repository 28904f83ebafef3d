"""`AccessLog`: a line of JSON for each request, written by a thread that may be kept waiting.

The event loop only puts a value into a queue of limited length. When nobody
takes the lines as fast as they come, the newest are dropped, counted, and the
log says so itself. A line is ASCII and short enough to be written at once, so
lines of several workers do not mix, and nothing a client sends can begin a new
one or command a terminal.
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

_MOST_WAITING = 10_000
_CLOSE_SECONDS = 2.0
_RETRY_SECONDS = 0.05
_LONGEST_PATH = 256
_LONGEST_WORD = 96
# What a pipe takes in one piece, also with other writers.
_AT_ONCE = getattr(select, "PIPE_BUF", 512)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Line:
    """What is told about one request; what is not known is empty."""

    ended: float
    """When it was over: POSIX time."""
    seconds: float
    id: str
    remote: str
    verb: str
    path: str
    method: str
    """The MCP method, or which of the other pages."""
    status: int
    """The HTTP status; 0 when there was no answer."""
    size: int
    outcome: str
    caller: str = ""
    agent: str = ""
    trace: str = ""

    def encode(self) -> bytes:
        """Return the line, with its end."""
        members: dict[str, Any] = {
            "time": _moment(self.ended),
            "id": self.id,
            "trace_id": self.trace,
            "remote": self.remote[:_LONGEST_WORD],
            "method": self.verb[:_LONGEST_WORD],
            "path": self.path[:_LONGEST_PATH],
            "mcp": self.method,
            "status": self.status or None,
            "outcome": self.outcome,
            "bytes": self.size,
            "seconds": round(self.seconds, 6),
            "caller": self.caller[:_LONGEST_WORD],
            "agent": self.agent[:_LONGEST_WORD],
        }
        return _encoded({name: value for name, value in members.items() if value not in ("", None)})


class AccessLog:
    """Takes lines from an event loop, and gives them to `write` in a thread of its own."""

    def __init__(self, write: Callable[[bytes], int], *, on_drop: Callable[[int], None]) -> None:
        """Write with `write`, which takes bytes and returns how many it took, as `os.write` does.

        `on_drop` hears how many lines were dropped each time some were.
        """
        self._write = write
        self._on_drop = on_drop
        self._waiting: deque[Line] = deque()
        # Each is written by one thread alone: this one by who puts lines, the other by who writes them.
        self._dropped = 0
        self._told = 0
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="access log", daemon=True)

    def put(self, line: Line) -> None:
        """Have a line written, soon; never waits."""
        if len(self._waiting) >= _MOST_WAITING:
            self._dropped += 1
            self._on_drop(1)
            return
        self._waiting.append(line)
        if not self._wake.is_set():
            self._wake.set()

    @contextmanager
    def open(self) -> Generator["AccessLog"]:
        """Write while the block lasts, and what is left for a moment longer."""
        self._thread.start()
        try:
            yield self
        finally:
            self._is_closing = True
            self._wake.set()
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():
                logger.warning("lines of the access log were lost: nobody took them in time")

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            for piece in self._pieces():
                self._write_all(piece)
            if self._is_closing and not self._waiting:
                return

    def _pieces(self) -> Iterator[bytes]:
        """Take everything that waits, as many lines at a time as can be written in one piece."""
        piece = b""
        while True:
            line = self._next()
            if piece and len(piece) + len(line) > _AT_ONCE:
                yield piece
                piece = b""
            if not line:
                break
            piece += line
        if piece:
            yield piece

    def _next(self) -> bytes:
        dropped = self._dropped - self._told
        if dropped and len(self._waiting) < _MOST_WAITING:
            self._told += dropped
            return _encoded({"time": _moment(time.time()), "dropped": dropped})
        return self._waiting.popleft().encode() if self._waiting else b""

    def _write_all(self, piece: bytes) -> None:
        while piece:
            try:
                piece = piece[self._write(piece) :]
            except BlockingIOError:
                # Someone made the stream one that does not wait.
                if self._is_closing:
                    return
                time.sleep(_RETRY_SECONDS)
            except OSError:
                return  # Nobody is at the other end any more.


def write_to_stderr(line: bytes) -> int:
    """Write to standard error, past the buffers that others lock."""
    return os.write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, line)


def _moment(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encoded(members: dict[str, Any]) -> bytes:
    text = json.dumps(members, separators=(",", ":")).replace("\x7f", "\\u007f")
    return text.encode("ascii") + b"\n"
