"""How bytes leave the peer: a line on standard output, or the body of an HTTP answer.

Both ways let a scenario send a whole message, a part of one, something that is
none, or nothing, and cut the connection at any point.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol

LONGEST_WAIT = 300.0


class Gone(Exception):
    """The host has left, so there is nobody to answer."""


class Wire(Protocol):
    """Where an answer goes."""

    def send(self, message: bytes) -> None:
        """Send one whole message."""
        ...

    def pour(self, parts: Iterable[bytes], *, pause: float = 0.0) -> None:
        """Send parts of one message as they come, with pauses between them."""
        ...

    def hang(self) -> None:
        """Begin an answer where the transport can, and never go on."""
        ...

    def cut(self) -> None:
        """End the connection without a word."""
        ...


class PipeWire:
    """Standard output. One message is one line."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def send(self, message: bytes) -> None:
        self.pour([message])

    def pour(self, parts: Iterable[bytes], *, pause: float = 0.0) -> None:
        with self._lock:
            for part in parts:
                self._write(part)
                time.sleep(pause)
            self._write(b"\n")

    def hang(self) -> None:
        time.sleep(LONGEST_WAIT)

    def cut(self) -> None:
        os._exit(3)

    def _write(self, data: bytes) -> None:
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except (OSError, ValueError):
            raise Gone from None


class BodyWire:
    """The answer to one POST."""

    def __init__(self, handler: BaseHTTPRequestHandler, *, headers: dict[str, str], as_events: bool) -> None:
        self._handler = handler
        self._headers = headers
        self._as_events = as_events

    def send(self, message: bytes, status: int = 200) -> None:
        body = b"event: message\ndata: " + message + b"\n\n" if self._as_events else message
        self._start(status, {"Content-Length": str(len(body))})
        self._write(body)

    def pour(self, parts: Iterable[bytes], *, pause: float = 0.0) -> None:
        self._start(200, {"Connection": "close"})
        if self._as_events:
            self._write(b"event: message\ndata: ")
        for part in parts:
            self._write(part)
            time.sleep(pause)
        self._write(b"\n\n" if self._as_events else b"")
        self._handler.close_connection = True

    def hang(self) -> None:
        self._start(200, {"Content-Length": "1000000"})
        self._write(b" ")
        time.sleep(LONGEST_WAIT)

    def cut(self) -> None:
        self._handler.close_connection = True
        try:
            self._handler.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            raise Gone from None

    def redirect(self, target: str) -> None:
        """Send the host elsewhere."""
        self._start(307, {"Location": target, "Content-Length": "0"})

    def _start(self, status: int, more: dict[str, str]) -> None:
        kind = "text/event-stream" if self._as_events else "application/json"
        try:
            self._handler.send_response(status)
            for name, value in {"Content-Type": kind, **self._headers, **more}.items():
                self._handler.send_header(name, value)
            self._handler.end_headers()
        except (OSError, ValueError):
            raise Gone from None

    def _write(self, data: bytes) -> None:
        try:
            self._handler.wfile.write(data)
            self._handler.wfile.flush()
        except (OSError, ValueError):
            raise Gone from None


def encoded(message: Any) -> bytes:
    """Return JSON on one line; half a character stays the escape it can only be."""
    return json.dumps(message, separators=(",", ":")).encode()
