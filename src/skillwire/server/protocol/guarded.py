"""`Guarded`: the limits in time and size that connections of uvicorn lack; `Turnstile`: what they share.

Uvicorn waits forever for a request that does not come, or for a client that does
not read. Each connection here looks at itself from time to time and ends when it
has waited too long: one timer for each, armed anew when it is due and not when
something happens, so that requests hardly pay for it.

`fast` and `plain` have a class for each of the parsers uvicorn may have.
"""

import asyncio
import math
import socket
from collections import deque
from contextlib import suppress
from enum import Enum
from heapq import nsmallest
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from skillwire.server.asgi import Receive, Scope, Send
from skillwire.server.protocol.limits import ANSWERS, ConnectionCounts, ConnectionLimits, Ending

# What the kernel takes of an answer before the network does: a reader's progress is seen in steps of this.
_UNSENT_BYTES: Final = 128 * 1024
_DISCARDED_BYTES: Final = 1024 * 1024
# How many may be told that there is no room, at a time; others just find the connection closed.
_TURNED_AWAY: Final = 64
_EVICTED_PART: Final = 64


class Reading(Enum):
    """What the server expects to read next on a connection."""

    FIRST = 1
    HEAD = 2
    BODY = 3
    NOTHING = 4


class Refusal(Exception):
    """A request cannot be taken; raised while it is parsed."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


class Turnstile:
    """The limits of all connections of a server, the counts, and who waits for whom."""

    def __init__(self, limits: ConnectionLimits, counts: ConnectionCounts) -> None:
        self.limits = limits
        self.counts = counts
        self._slow: dict[Guarded, tuple[float, int]] = {}
        self._waiting_bytes = 0
        self._evicted: set[Guarded] = set()

    def make_room(self, newest: "Guarded") -> bool:
        """Tell whether there is room for the newest connection; hang up on others if need be.

        Those go first that have kept the server waiting longest; several at once,
        because finding them means to look at all.
        """
        connections = newest.connections
        if len(connections) - len(self._evicted) <= self.limits.connections:
            return True
        others = [one for one in connections if one is not newest and one.awaits_client]
        share = max(1, self.limits.connections // _EVICTED_PART)
        for connection in nsmallest(share, others, key=lambda one: one.since):
            self._evicted.add(connection)
            connection.abort(Ending.EVICTED)
        return len(connections) - len(self._evicted) <= self.limits.connections

    def leave(self, connection: "Guarded") -> None:
        """Note that a connection is gone."""
        self.counts.closed += 1
        self.forget_slow(connection)
        self._evicted.discard(connection)

    def add_slow(self, connection: "Guarded", now: float, waiting: int) -> None:
        """Note that an answer waits for its reader; when too much does, hang up on the slowest readers."""
        self.forget_slow(connection)
        self._slow[connection] = (now, waiting)
        self._waiting_bytes += waiting
        limits = self.limits
        while self._waiting_bytes > limits.waiting_bytes:
            slowest, (since, _) = next(iter(self._slow.items()))
            is_young = now - since < limits.crowded_seconds
            if slowest is connection or (is_young and self._waiting_bytes < 2 * limits.waiting_bytes):
                break
            slowest.abort(Ending.CROWDED)

    def forget_slow(self, connection: "Guarded") -> None:
        """Note that an answer was read, or given up."""
        _, waiting = self._slow.pop(connection, (0.0, 0))
        self._waiting_bytes -= waiting


class Guarded(asyncio.Protocol):
    """The part of a connection that is the same for both parsers; stands before uvicorn's class."""

    turnstile: Turnstile

    # What uvicorn's classes have.
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    flow: FlowControl
    cycle: Any
    connections: "set[Guarded]"
    timeout_keep_alive_task: asyncio.TimerHandle | None
    server_state: ServerState
    pipeline: "deque[tuple[Any, Any]]"

    reading = Reading.FIRST
    since = 0.0
    is_over = False
    _is_lingering = False
    _discarded = 0
    _waiting = 0
    _moved = 0.0
    _timer: asyncio.TimerHandle

    @property
    def awaits_client(self) -> bool:
        """Whether no answer is due: it is the client's turn to ask, or to complete what it asks."""
        if self.is_over or self.pipeline:
            return False
        return self.cycle is None or self.cycle.response_complete or self.reading is Reading.BODY

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.turnstile.counts.opened += 1
        self.since = self.loop.time()
        self._timer = self.loop.call_later(self.turnstile.limits.look_seconds, self._look)
        with suppress(OSError, AttributeError):  # No such option there, or the client is gone already.
            plain: socket.socket = transport.get_extra_info("socket")
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        if not self.turnstile.make_room(self):
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        self.turnstile.leave(self)
        self._timer.cancel()
        if self.timeout_keep_alive_task is not None:
            # Uvicorn leaves it when a connection was reset, and with it all that was kept for the client.
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.turnstile.add_slow(self, self.loop.time(), self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.turnstile.forget_slow(self)
        self._moved = self.loop.time()

    def refuse(self, ending: Ending) -> None:
        """Take nothing more on this connection; answer what was asked before, then say why, and close."""
        if self.is_over:
            return
        self.is_over = True
        self.turnstile.counts.note(ending)
        cycle = self.cycle
        is_own = self.reading is Reading.BODY  # The request that is refused is the one that is `cycle`.
        if self.pipeline:
            newest, _ = self.pipeline[0]
            if newest.more_body:
                self.pipeline[0] = (newest, _refusing(ending))
            newest.keep_alive = False
        elif is_own and cycle.response_started:
            self.transport.close()
        elif is_own or cycle is None or cycle.response_complete:
            self._say(ending)
        else:
            cycle.keep_alive = False

    def abort(self, ending: Ending) -> None:
        """Hang up at once, whatever waits to be sent."""
        self.is_over = True
        self.turnstile.counts.note(ending)
        self.turnstile.forget_slow(self)
        self.transport.abort()

    def discard(self, data: bytes) -> None:
        """Ignore what comes after a refusal; the client may need to write it before it reads."""
        self._discarded += len(data)
        if self._discarded > _DISCARDED_BYTES:
            self.transport.abort()

    def _turn_away(self) -> None:
        """Refuse this connection; many at a time can not even be told."""
        if len(self.connections) <= self.turnstile.limits.connections + _TURNED_AWAY:
            return self.refuse(Ending.FULL)
        self.abort(Ending.FULL)

    def _say(self, ending: Ending) -> None:
        """Write a refusal, then wait a moment for the client to read it: closing now could destroy it."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if ending not in ANSWERS:
            return self.transport.close()
        self.transport.write(_response(ending, self.server_state.default_headers))
        if not self.transport.can_write_eof():
            return self.transport.close()
        self.transport.write_eof()
        self._is_lingering = True
        self.since = self.loop.time()
        self._timer.cancel()
        self._timer = self.loop.call_later(self.turnstile.limits.linger_seconds, self._look)

    def _look(self) -> None:
        """See whether this connection has waited too long for its client, and when to look again."""
        now = self.loop.time()
        if self._is_unread(now):
            return self.abort(Ending.UNREAD)
        ending, due = self._due(now)
        if due <= now:
            if self._is_lingering:
                return self.transport.abort()
            self.refuse(ending)
            if self._is_lingering:
                return
            due = math.inf
        self._timer = self.loop.call_at(min(due, now + self.turnstile.limits.look_seconds), self._look)

    def _is_unread(self, now: float) -> bool:
        """Tell whether the client has taken nothing of what waits for it, for too long.

        An application that goes on writing makes what waits grow; but it has to
        stop soon, and then each byte that is taken shows.
        """
        waiting = self.transport.get_write_buffer_size()
        if waiting < self._waiting or not self._waiting:
            self._moved = now
        self._waiting = waiting
        return now - self._moved >= self.turnstile.limits.unread_seconds

    def _due(self, now: float) -> tuple[Ending, float]:
        limits = self.turnstile.limits
        if self._is_lingering:
            return Ending.SILENT, self.since + limits.linger_seconds
        if self.is_over:
            return Ending.SILENT, math.inf
        if self.reading is Reading.NOTHING:
            is_idle = self.cycle.response_complete and not self.pipeline
            return Ending.IDLE, self.since + limits.idle_seconds if is_idle else math.inf
        if self.flow.read_paused:
            self.since = now  # It is the client who waits.
        if self.reading is Reading.FIRST:
            return Ending.SILENT, self.since + limits.silent_seconds
        if self.reading is Reading.HEAD:
            return Ending.SLOW_HEAD, self.since + limits.head_seconds
        return Ending.SLOW_BODY, self.since + limits.body_seconds


def head_bytes(target: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    """Return how large the request line and the headers are, at least."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers)


def check_head(
    limits: ConnectionLimits, version: str, target: bytes, headers: list[tuple[bytes, bytes]]
) -> dict[bytes, bytes] | None:
    """Check what the parsers let pass although it is too much, or could be read in two ways.

    Return the headers by name, when each is there once.

    Raises:
        Refusal: The request cannot be taken.
    """
    found = dict(headers)
    is_plain = len(found) == len(headers)
    if (
        not is_plain
        or b"host" not in found
        or b"transfer-encoding" in found
        or version != "1.1"
        or target[:1] != b"/"
    ):
        _check_unusual(version, target, headers)
    if len(target) > limits.url_bytes:
        raise Refusal(Ending.LONG_URL)
    if len(headers) > limits.header_count:
        raise Refusal(Ending.LARGE_HEAD)
    if b"content-length" in found and int(found[b"content-length"]) > limits.body_bytes:
        raise Refusal(Ending.LARGE_BODY)
    return found if is_plain else None


def _check_unusual(version: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    hosts = [value for name, value in headers if name == b"host"]
    encodings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    lengths = [value for name, value in headers if name == b"content-length"]
    if version not in ("1.0", "1.1") or len(hosts) > 1 or (version == "1.1" and not hosts):
        raise Refusal(Ending.MALFORMED)
    if encodings and (encodings != [b"chunked"] or version == "1.0" or lengths):
        raise Refusal(Ending.MALFORMED)
    if len(lengths) > 1 or (target[:1] != b"/" and not _names_host(target, hosts)):
        raise Refusal(Ending.MALFORMED)


def _names_host(target: bytes, hosts: list[bytes]) -> bool:
    """Tell whether a target in absolute form names the same host as the header, which gets checked."""
    scheme, _, rest = target.partition(b"://")
    authority = rest.partition(b"/")[0].partition(b"?")[0]
    return scheme.lower() in (b"http", b"https") and [authority.lower()] == [host.lower() for host in hosts]


def _response(ending: Ending, headers: list[tuple[bytes, bytes]]) -> bytes:
    status, words = ANSWERS[ending]
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [name + b": " + value for name, value in headers]
    lines += [name + b": " + value for name, value in _headers(words)]
    return b"\r\n".join([*lines, b"", words.encode()])


def _refusing(ending: Ending) -> Any:
    """Return an application that gives the answer to a request that was refused while others waited."""
    status, words = ANSWERS[ending]

    async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": _headers(words)})
        await send({"type": "http.response.body", "body": words.encode()})

    return refuse


def _headers(words: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(words)),
        (b"connection", b"close"),
    ]
