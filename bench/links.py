"""The load client: prepared bytes over raw sockets or pipes, every answer compared with what it must be."""

import os
import select
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from bench.messages import Call, Expected, WrongAnswerError, next_number

CONNECTIONS = 8
# A page of skills/list stays below 1 MiB; other servers' pages may be larger.
ANSWER_LIMIT = 64 * 2**20
_CHUNK = 2**18
_IDLE_SECONDS = 3


class Link(Protocol):
    """A way to send requests to one server. Every wait ends at a deadline of `time.monotonic`."""

    def ask(self, call: Call, number: int, until: float) -> bytes:
        """Send one request and return the body of its answer."""
        ...

    def repeat(self, call: Call, times: int, expected: Expected, until: float) -> None:
        """Send one request many times, and check every answer."""
        ...

    def close(self) -> None: ...


class HttpLink:
    """Several connections that stay open; each carries one request at a time."""

    def __init__(self, port: int, path: str) -> None:
        self._path = path
        self._port = port
        self._host = f"127.0.0.1:{port}"
        self._sockets: list[socket.socket] = []
        self._used = 0.0

    @property
    def url(self) -> str:
        return f"http://{self._host}{self._path}"

    def ask(self, call: Call, number: int, until: float) -> bytes:
        with self._connected() as sockets:
            self._send(sockets[0], call, number)
            return _http_answer(sockets[0], until)

    def repeat(self, call: Call, times: int, expected: Expected, until: float) -> None:
        with self._connected() as sockets:
            while times:
                batch = sockets[:times]
                times -= len(batch)
                asked = [(connection, next_number()) for connection in batch]
                for connection, number in asked:
                    self._send(connection, call, number)
                # The last one first, so that this process mostly sleeps through the others' answers.
                for connection, number in reversed(asked):
                    _check(_http_answer(connection, until), expected(number))

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()

    @contextmanager
    def _connected(self) -> Generator[list[socket.socket]]:
        # Servers hang up on connections that nobody used for a while, uvicorn after five seconds.
        if time.monotonic() - self._used > _IDLE_SECONDS:
            self.close()
            self._sockets = [
                socket.create_connection(("127.0.0.1", self._port), 10) for _ in range(CONNECTIONS)
            ]
            for connection in self._sockets:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield self._sockets
        self._used = time.monotonic()

    def _send(self, connection: socket.socket, call: Call, number: int) -> None:
        # A request is far smaller than a socket's buffer, and the buffer is empty now.
        request = call.http(self._host, self._path, number)
        if connection.send(request) != len(request):
            raise WrongAnswerError("the server does not read its connections")


class PipeLink:
    """A server's standard input and output; one request at a time."""

    def __init__(self, to_server: int, from_server: int) -> None:
        self._to, self._from = to_server, from_server
        self._ready = select.poll()
        self._ready.register(from_server, select.POLLIN)
        self._rest = b""

    def ask(self, call: Call, number: int, until: float) -> bytes:
        self._send(call.line(number))
        while True:
            line = self._line(until)
            if b'"id"' in line:  # Anything else is a notification.
                return line

    def repeat(self, call: Call, times: int, expected: Expected, until: float) -> None:
        for _ in range(times):
            number = next_number()
            self._send(call.line(number))
            _check(self._line(until), expected(number))

    def close(self) -> None:
        os.close(self._to)
        os.close(self._from)

    def _send(self, line: bytes) -> None:
        # A request is far smaller than a pipe's buffer, and the buffer is empty now.
        if os.write(self._to, line) != len(line):
            raise WrongAnswerError("the server does not read its standard input")

    def _line(self, until: float) -> bytes:
        parts = [self._rest]
        size = len(self._rest)
        while b"\n" not in parts[-1]:
            if not self._ready.poll(_left(until) * 1000):
                raise TimeoutError
            part = os.read(self._from, _CHUNK)
            size += len(part)
            if not part or size > ANSWER_LIMIT:
                raise WrongAnswerError(
                    "the server closed its standard output" if not part else "endless line"
                )
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line


def _http_answer(connection: socket.socket, until: float) -> bytes:
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0:
        received += _receive(connection, until)
    head = received[:end].lower()
    mark = head.find(b"\r\ncontent-length:")
    if not head.startswith(b"http/1.1 200") or mark < 0:
        raise WrongAnswerError(received[:1000].decode(errors="replace"))
    size = int(head[mark + 17 :].split(b"\r\n", 1)[0])
    if size > ANSWER_LIMIT:
        raise WrongAnswerError(f"an answer of {size} bytes")
    parts = [received[end + 4 :]]
    size -= len(parts[0])
    while size > 0:
        parts.append(_receive(connection, until))
        size -= len(parts[-1])
    return b"".join(parts)


def _receive(connection: socket.socket, until: float) -> bytes:
    connection.settimeout(_left(until))
    part = connection.recv(_CHUNK)
    if not part:
        raise WrongAnswerError("the server closed the connection")
    return part


def _check(answer: bytes, expected: bytes) -> None:
    if answer != expected:
        raise WrongAnswerError(f"expected {expected[:300]!r}, received {answer[:300]!r}")


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
