"""`LimitedConnection`: limits that uvicorn lacks; `ConnectionTracker`: state of all connections.

Uvicorn waits forever for a request that does not come, or for a client that does
not read. Each connection here checks itself periodically and closes when it has
waited too long. It has one timer, which is rescheduled when it fires and not on
every event, so that the cost per request is small.

The code that parses runs for every request, so the usual case is kept short:
sizes and times are checked only where a limit can be exceeded.
"""

import asyncio
import math
import socket
from contextlib import suppress
from enum import Enum
from heapq import nsmallest
from http import HTTPStatus
from typing import Any, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from skillwire.server.fast.asgi import HEADERS
from skillwire.server.fast.requests import Receive, Scope, Send
from skillwire.server.limits import RESPONSES, CloseReason, ConnectionCounts, HttpConnectionLimits

# The kernel's send buffer: the progress of a reader is visible in steps of this size.
_UNSENT_BYTES: Final = 128 * 1024
_DISCARDED_BYTES: Final = 1024 * 1024
# How many refused connections get a response at a time; others are closed without one.
_MAX_REFUSED: Final = 64
_EVICTED_PART: Final = 64
_UPGRADE: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})


class ReadState(Enum):
    """What is read next on a connection."""

    FIRST_REQUEST = 1
    HEAD = 2
    BODY = 3
    NOTHING = 4


class RejectedRequestError(Exception):
    """A request is refused; raised while it is parsed."""

    def __init__(self, reason: CloseReason) -> None:
        super().__init__(reason)
        self.reason = reason


class ConnectionTracker:
    """The limits and counts of all connections of a server, and its slow readers."""

    def __init__(self, limits: HttpConnectionLimits, counts: ConnectionCounts) -> None:
        self.limits = limits
        self.counts = counts
        self._slow: dict[LimitedConnection, tuple[float, int]] = {}
        self._unsent_bytes = 0
        self._evicted: set[LimitedConnection] = set()

    def admit(self, newest: "LimitedConnection") -> bool:
        """Return whether the newest connection may stay; close others if needed.

        Those that the server has waited for longest are closed first; several at
        once, because finding them takes a scan of all connections.
        """
        connections = cast("set[LimitedConnection]", newest.connections)  # All are of this class.
        if len(connections) - len(self._evicted) <= self.limits.connections:
            return True
        others = [one for one in connections if one is not newest and one.awaits_client]
        share = max(1, self.limits.connections // _EVICTED_PART)
        for connection in nsmallest(share, others, key=lambda one: one.since):
            self._evicted.add(connection)
            connection.abort(CloseReason.EVICTED)
        return len(connections) - len(self._evicted) <= self.limits.connections

    def remove(self, connection: "LimitedConnection") -> None:
        """Note that a connection was closed."""
        self.counts.closed += 1
        self.remove_slow(connection)
        self._evicted.discard(connection)

    def add_slow(self, connection: "LimitedConnection", now: float, waiting: int) -> None:
        """Note that a response waits to be read; when too many bytes wait, close the slowest readers."""
        self.remove_slow(connection)
        self._slow[connection] = (now, waiting)
        self._unsent_bytes += waiting
        limits = self.limits
        while self._unsent_bytes > limits.waiting_bytes:
            slowest, (since, _) = next(iter(self._slow.items()))
            is_young = now - since < limits.crowded_seconds
            if slowest is connection or (is_young and self._unsent_bytes < 2 * limits.waiting_bytes):
                break
            slowest.abort(CloseReason.CROWDED)

    def remove_slow(self, connection: "LimitedConnection") -> None:
        """Note that a response was read or dropped."""
        _, waiting = self._slow.pop(connection, (0.0, 0))
        self._unsent_bytes -= waiting


class ResponseWriter:
    """Writes to a transport; what is written next, before the event loop goes on, is one write with it.

    Uvicorn writes the head of a response and its body one after the other. A
    proxy passes the head on when it arrives, and then cannot ask another server
    any more: should this one be killed between the two, the client's request fails.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        self._flushing: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        """Write with what is held; hold it for a moment if nothing is."""
        if self._flushing is not None and data:
            self._flushing.cancel()
            self._held += data
            self._flush()
        elif data:
            self._held = data
            self._flushing = self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Write what is held, and close the transport."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Return whether the transport is closing."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        self._flushing = None
        data, self._held = self._held, b""
        # The client may have disconnected meanwhile.
        if not self._transport.is_closing():
            self._transport.write(data)


class LimitedConnection(HttpToolsProtocol):
    """A connection that is parsed by httptools, with limits."""

    tracker: ConnectionTracker
    # Uvicorn declares neither that it is None before the first request, nor what it contains.
    cycle: Any

    read_state = ReadState.FIRST_REQUEST
    since = 0.0
    is_over = False
    _is_lingering = False
    _discarded = 0
    _unsent = 0
    _progress_at = 0.0
    _timer: asyncio.TimerHandle
    _chunk = 0
    _taken = 0
    _is_upgrade = False
    _writer: ResponseWriter

    @property
    def awaits_client(self) -> bool:
        """Whether the server waits for a request, or for the rest of one."""
        if self.is_over or self.pipeline:
            return False
        return self.cycle is None or self.cycle.response_complete or self.read_state is ReadState.BODY

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._writer = ResponseWriter(transport, self.loop)
        self.tracker.counts.opened += 1
        self.since = self.loop.time()
        self._timer = self.loop.call_later(self.tracker.limits.check_seconds, self._check_timeouts)
        with suppress(OSError, AttributeError):  # The option is unknown, or the client disconnected.
            plain: socket.socket = transport.get_extra_info("socket")
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        if not self.tracker.admit(self):
            self._refuse_connection()

    def connection_lost(self, exc: Exception | None) -> None:
        self.tracker.remove(self)
        self._timer.cancel()
        if self.timeout_keep_alive_task is not None:
            # Uvicorn does not cancel it when a connection was reset, which keeps the connection in memory.
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.tracker.add_slow(self, self.loop.time(), self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.tracker.remove_slow(self)
        self._progress_at = self.loop.time()

    def refuse(self, reason: CloseReason) -> None:
        """Read no more requests; answer earlier ones, then send the reason, and close."""
        if self.is_over:
            return
        self.is_over = True
        self.tracker.counts.note(reason)
        cycle = self.cycle
        is_own = self.read_state is ReadState.BODY  # `cycle` is the refused request.
        if self.pipeline:
            newest, _ = self.pipeline[0]
            if newest.more_body:
                self.pipeline[0] = (newest, _refusal_app(reason))
            newest.keep_alive = False
        elif is_own and cycle.response_started:
            self.transport.close()
        elif is_own or cycle is None or cycle.response_complete:
            self._write_refusal(reason)
        else:
            cycle.keep_alive = False

    def abort(self, reason: CloseReason) -> None:
        """Close at once and drop unsent data."""
        self.is_over = True
        self.tracker.counts.note(reason)
        self.tracker.remove_slow(self)
        self.transport.abort()

    def discard(self, data: bytes) -> None:
        """Ignore data after a refusal; the client may write it before it reads."""
        self._discarded += len(data)
        if self._discarded > _DISCARDED_BYTES:
            self.transport.abort()

    def _refuse_connection(self) -> None:
        """Refuse this connection; without a response if too many are refused at a time."""
        if len(self.connections) <= self.tracker.limits.connections + _MAX_REFUSED:
            return self.refuse(CloseReason.FULL)
        self.abort(CloseReason.FULL)

    def _write_refusal(self, reason: CloseReason) -> None:
        """Write a refusal, then linger: closing at once could discard it before the client reads it."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if reason not in RESPONSES:
            return self.transport.close()
        self.transport.write(_response(reason, self.server_state.default_headers))
        if not self.transport.can_write_eof():
            return self.transport.close()
        self.transport.write_eof()
        self._is_lingering = True
        self.since = self.loop.time()
        self._timer.cancel()
        self._timer = self.loop.call_later(self.tracker.limits.linger_seconds, self._check_timeouts)

    def _check_timeouts(self) -> None:
        """Close this connection if a time limit has passed; else schedule the next check."""
        now = self.loop.time()
        if self._is_unread(now):
            return self.abort(CloseReason.UNREAD)
        reason, due = self._due(now)
        if due <= now:
            if self._is_lingering:
                return self.transport.abort()
            self.refuse(reason)
            if self._is_lingering:
                return
            due = math.inf
        self._timer = self.loop.call_at(
            min(due, now + self.tracker.limits.check_seconds), self._check_timeouts
        )

    def _is_unread(self, now: float) -> bool:
        """Return whether the client has read nothing of its response for too long.

        While the application writes, the buffer may grow; but flow control stops
        it soon, and then every read is visible.
        """
        waiting = self.transport.get_write_buffer_size()
        if waiting < self._unsent or not self._unsent:
            self._progress_at = now
        self._unsent = waiting
        return now - self._progress_at >= self.tracker.limits.unread_seconds

    def _due(self, now: float) -> tuple[CloseReason, float]:
        limits = self.tracker.limits
        if self._is_lingering:
            return CloseReason.SILENT, self.since + limits.linger_seconds
        if self.is_over:
            return CloseReason.SILENT, math.inf
        if self.read_state is ReadState.NOTHING:
            is_idle = self.cycle.response_complete and not self.pipeline
            return CloseReason.IDLE, self.since + limits.idle_seconds if is_idle else math.inf
        if self.flow.read_paused:
            self.since = now  # The client waits for the server.
        if self.read_state is ReadState.FIRST_REQUEST:
            return CloseReason.SILENT, self.since + limits.silent_seconds
        if self.read_state is ReadState.HEAD:
            return CloseReason.SLOW_HEAD, self.since + limits.head_seconds
        return CloseReason.SLOW_BODY, self.since + limits.body_seconds

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return self.discard(data)
        if self.read_state is ReadState.NOTHING:
            # Line ends, which the parser ignores, start the time limit as well.
            self._expect_head()
        self._feed(data)
        if self.read_state is not ReadState.NOTHING or self.cycle.scope is not self.scope:
            self._check_unfinished()

    def _feed(self, data: bytes) -> None:
        self._chunk = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            offset: int = upgrade.args[0]
            self._ignore_upgrade(data[offset:])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self.refuse(cause.reason if isinstance(cause, RejectedRequestError) else CloseReason.MALFORMED)

    def on_headers_complete(self) -> None:
        limits = self.tracker.limits
        most = self._taken + self._chunk
        if most > limits.head_bytes and head_bytes(self.url, self.headers) > limits.head_bytes:
            raise RejectedRequestError(CloseReason.LARGE_HEAD)
        by_name = check_head(limits, self.parser.get_http_version(), self.url, self.headers)
        if self.parser.should_upgrade():
            self._is_upgrade = True
            return
        if len(self.pipeline) >= limits.pipelined:
            raise RejectedRequestError(CloseReason.PIPELINED)
        self.read_state = ReadState.BODY
        self._taken = 0
        if by_name is not None:
            self.scope[HEADERS] = by_name  # pyright: ignore[reportGeneralTypeIssues] -- ASGI allows more keys
        super().on_headers_complete()
        self.cycle.transport = self._writer
        # Trailers must not be added to the headers of a request that is being answered.
        self.headers = []

    def on_message_complete(self) -> None:
        """Do what uvicorn does, and note that the request is complete."""
        if self._is_upgrade:
            return
        self.read_state = ReadState.NOTHING
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Do what uvicorn does, but without its keep-alive timer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def _expect_head(self) -> None:
        self.read_state = ReadState.HEAD
        self._taken = 0
        self.since = self.loop.time()

    def _check_unfinished(self) -> None:
        """Check the size of a request that is not complete yet."""
        if self.is_over:
            return
        if self.read_state is ReadState.NOTHING:
            # It began after another one in the same chunk, and is counted from the next chunk on.
            return self._expect_head()
        if self.read_state is ReadState.FIRST_REQUEST and self.scope is not None:  # pyright: ignore[reportUnnecessaryComparison] -- uvicorn declares it as never None
            self._expect_head()
        limits = self.tracker.limits
        self._taken += self._chunk
        if self.read_state is ReadState.BODY:
            if self._taken > 2 * limits.body_bytes or len(self.headers) > limits.header_count:
                self.refuse(CloseReason.LARGE_BODY)
        elif self._taken > limits.head_bytes or len(self.headers or ()) > limits.header_count:
            self.refuse(CloseReason.LARGE_HEAD)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse a request as if it had no upgrade headers.

        The parser stops after the headers of such a request, so a new parser
        gets the headers without the upgrade, and then the rest.
        """
        self._is_upgrade = False
        method = self.parser.get_method()
        if method == b"CONNECT":
            return self.refuse(CloseReason.MALFORMED)
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [name + b": " + value for name, value in self.headers if name not in _UPGRADE]
        if not self.parser.should_keep_alive():
            lines.append(b"connection: close")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"\r\n".join([*lines, b"", rest]))


def head_bytes(target: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    """Return the minimum size of the request target and the headers."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers)


def check_head(
    limits: HttpConnectionLimits, version: str, target: bytes, headers: list[tuple[bytes, bytes]]
) -> dict[bytes, bytes] | None:
    """Check what the parser accepts although it is too large or ambiguous.

    Return the headers by name, if none is repeated.

    Raises:
        RejectedRequestError: The request is refused.
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
        raise RejectedRequestError(CloseReason.LONG_URL)
    if len(headers) > limits.header_count:
        raise RejectedRequestError(CloseReason.LARGE_HEAD)
    if b"content-length" in found and int(found[b"content-length"]) > limits.body_bytes:
        raise RejectedRequestError(CloseReason.LARGE_BODY)
    return found if is_plain else None


def _check_unusual(version: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    hosts = [value for name, value in headers if name == b"host"]
    encodings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    lengths = [value for name, value in headers if name == b"content-length"]
    if version not in ("1.0", "1.1") or len(hosts) > 1 or (version == "1.1" and not hosts):
        raise RejectedRequestError(CloseReason.MALFORMED)
    if encodings and (encodings != [b"chunked"] or version == "1.0" or lengths):
        raise RejectedRequestError(CloseReason.MALFORMED)
    if len(lengths) > 1 or (target[:1] != b"/" and not _names_host(target, hosts)):
        raise RejectedRequestError(CloseReason.MALFORMED)


def _names_host(target: bytes, hosts: list[bytes]) -> bool:
    """Return whether a target in absolute form has the same host as the `Host` header."""
    scheme, _, rest = target.partition(b"://")
    authority = rest.partition(b"/")[0].partition(b"?")[0]
    return scheme.lower() in (b"http", b"https") and [authority.lower()] == [host.lower() for host in hosts]


def _response(reason: CloseReason, headers: list[tuple[bytes, bytes]]) -> bytes:
    status, text = RESPONSES[reason]
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [name + b": " + value for name, value in headers]
    lines += [name + b": " + value for name, value in _headers(text)]
    return b"\r\n".join([*lines, b"", text.encode()])


def _refusal_app(reason: CloseReason) -> Any:
    """Return an application that sends the response to a refused pipelined request."""
    status, text = RESPONSES[reason]

    async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": _headers(text)})
        await send({"type": "http.response.body", "body": text.encode()})

    return refuse


def _headers(text: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(text)),
        (b"connection", b"close"),
    ]
