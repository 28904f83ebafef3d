"""`ProxyConnection`: one connection of a script to the proxy.

It is a state machine without a loop of its own: the proxy asks it which
sockets to watch, and calls it when one is ready. No call on a socket blocks.
"""

import errno
import selectors
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from ipaddress import IPv4Address, ip_address
from typing import Final, TypeAlias

from skillwire.core import Address, quoted
from skillwire.runner.proxy_requests import (
    HEAD_END,
    TUNNEL_OPEN,
    AllowList,
    ProxyRequest,
    RefusedRequestError,
    parse_request,
)

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE

_CHUNK: Final = 64 * 1024
_MOST_ADDRESSES: Final = 4
# How long a script has to read the proxy's own response before the connection is closed.
_ENDING_SECONDS: Final = 1.0
_IN_PROGRESS: Final = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})
_NOT_NOW: Final = (BlockingIOError, InterruptedError)

IsRefused: TypeAlias = Callable[[Address], bool]


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """How much of the network one run may use. Bytes are counted over all its connections."""

    connections: int = 16
    total_connections: int = 256
    head_bytes: int = 16 * 1024
    up_bytes: int = 64 * 1024 * 1024
    down_bytes: int = 64 * 1024 * 1024
    head_seconds: float = 10
    resolve_seconds: float = 10
    connect_seconds: float = 10
    idle_seconds: float = 30


class TrafficMeter:
    """Counts the connections, bytes and refusals of a run."""

    def __init__(self, limits: ProxyLimits) -> None:
        self.limits = limits
        self.connections = 0
        self.up = 0
        self.down = 0
        self.reached: dict[str, None] = {}
        self.refusals: Counter[str] = Counter()

    @property
    def refusal(self) -> RefusedRequestError | None:
        """The refusal of further requests; None while the limits are not reached."""
        if self.connections > self.limits.total_connections:
            return _limit(f"this script has reached its limit of {self.limits.total_connections} connections")
        if self.up >= self.limits.up_bytes or self.down >= self.limits.down_bytes:
            return _limit("this script has reached its limit of bytes to send or receive")
        return None


class Phase(Enum):
    HEAD = auto()
    RESOLVING = auto()
    CONNECTING = auto()
    RELAYING = auto()
    ENDING = auto()
    OVER = auto()


class _Flow:
    """One direction: what one side has sent and the other has not received yet."""

    def __init__(self) -> None:
        self.waiting = bytearray()
        self.is_ended = False
        self.is_end_forwarded = False

    @property
    def has_room(self) -> bool:
        return not self.is_ended and len(self.waiting) < _CHUNK


class ProxyConnection:
    """One connection. `now` is always the time of `time.monotonic`."""

    def __init__(
        self,
        client: socket.socket,
        allowed: AllowList,
        meter: TrafficMeter,
        is_refused: IsRefused,
        now: float,
    ) -> None:
        client.setblocking(False)
        self.phase = Phase.HEAD
        self.deadline = now + meter.limits.head_seconds
        self.request: ProxyRequest | None = None
        self.discarded: list[socket.socket] = []
        """Sockets that are no longer needed; the proxy closes them."""
        self._allowed = allowed
        self._meter = meter
        self._limits = meter.limits
        self._is_refused = is_refused
        self._client = client
        self._server: socket.socket | None = None
        self._addresses: list[Address] = []
        self._connect_deadline = 0.0
        self._up = _Flow()
        self._down = _Flow()
        self._body_left: int | None = None

    def interest(self) -> dict[socket.socket, int]:
        """Return the sockets that this connection waits for, with their events."""
        wanted: dict[socket.socket, int] = {}
        if self.phase in (Phase.HEAD, Phase.ENDING):
            is_answering = self.phase is Phase.ENDING and self._down.waiting
            wanted[self._client] = WRITE if is_answering else READ
        elif self._server is not None and self.phase is Phase.CONNECTING:
            wanted[self._server] = WRITE
        elif self._server is not None and self.phase is Phase.RELAYING:
            reads_body = self._up.has_room and self._body_left != 0
            wanted[self._client] = (READ if reads_body else 0) | (WRITE if self._down.waiting else 0)
            wanted[self._server] = (READ if self._down.has_room else 0) | (WRITE if self._up.waiting else 0)
        return {one: events for one, events in wanted.items() if events}

    def on_ready(self, one: socket.socket, events: int, now: float) -> None:
        """Continue after a socket became readable or writable."""
        try:
            if self.phase is Phase.HEAD:
                self._read_head(now)
            elif self.phase is Phase.CONNECTING:
                self._finish_connecting(now)
            elif self.phase is Phase.RELAYING:
                self._relay(one, events, now)
            elif self.phase is Phase.ENDING:
                self._end(now)
        except RefusedRequestError as refusal:
            self.refuse(refusal, now)
        except _NOT_NOW:
            pass
        except OSError:
            self.abandon()

    def on_deadline(self, now: float) -> None:
        """Handle a missed deadline."""
        if self.phase is Phase.HEAD and self._up.waiting:
            self.refuse(
                _refused(HTTPStatus.REQUEST_TIMEOUT, "slow", "the request did not arrive in time"), now
            )
        elif self.phase is Phase.RESOLVING:
            self.refuse(self._unreachable(HTTPStatus.GATEWAY_TIMEOUT, "could not be resolved in time"), now)
        elif self.phase is Phase.CONNECTING:
            self._connect_next(now, HTTPStatus.GATEWAY_TIMEOUT)
        else:
            self.abandon()

    def on_resolved(self, found: Sequence[str], now: float) -> None:
        """Check every address of the host, and connect to one of exactly these."""
        if self.phase is not Phase.RESOLVING:
            return
        try:
            addresses = [ip_address(text) for text in found]
        except ValueError:
            addresses = []
        if not addresses:
            self.refuse(self._unreachable(HTTPStatus.BAD_GATEWAY, "has no address"), now)
        elif any(self._is_refused(address) for address in addresses):
            # The address itself is not revealed to the script.
            self.refuse(
                self._unreachable(
                    HTTPStatus.BAD_GATEWAY, "is at an address that no script may reach", why="address"
                ),
                now,
            )
        else:
            self._addresses = addresses[:_MOST_ADDRESSES]
            self._connect_deadline = now + self._limits.connect_seconds
            self.phase = Phase.CONNECTING
            self._connect_next(now, HTTPStatus.BAD_GATEWAY)

    def refuse(self, refusal: RefusedRequestError, now: float) -> None:
        """Respond with a refusal of the proxy, and end."""
        self._meter.refusals[refusal.why] += 1
        self._discard_server()
        self._down.waiting = bytearray(refusal.answer)
        self._begin_ending(now)

    def abandon(self) -> None:
        """End at once."""
        self._discard_server()
        self.discarded.append(self._client)
        self.phase = Phase.OVER

    def _read_head(self, now: float) -> None:
        received = self._client.recv(self._limits.head_bytes)
        if not received:
            self.abandon()
            return
        waiting = self._up.waiting
        waiting += received
        end = waiting.find(HEAD_END, max(0, len(waiting) - len(received) - len(HEAD_END)))
        size = len(waiting) + 1 if end < 0 else end + len(HEAD_END)
        if size > self._limits.head_bytes:
            raise _refused(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "too-large",
                f"the head of a request has at most {self._limits.head_bytes} bytes",
            )
        if end < 0 and b"\n\n" not in waiting:
            return
        request = parse_request(bytes(waiting[:end] if end >= 0 else waiting))
        self._allowed.require(request)
        if self._meter.refusal is not None:
            raise self._meter.refusal
        rest = bytes(waiting[end + len(HEAD_END) :])
        self.request = request
        self._body_left = request.body_bytes
        self._up.waiting = bytearray(request.head)
        self._read_from_script(rest)
        self.phase = Phase.RESOLVING
        self.deadline = now + self._limits.resolve_seconds

    def _connect_next(self, now: float, status: HTTPStatus) -> None:
        self._discard_server()
        while self._addresses:
            address = self._addresses.pop(0)
            left = max(0.0, self._connect_deadline - now)
            if not left:
                break
            if self._connect(address):
                self.deadline = now + left / (len(self._addresses) + 1)
                return
            status = HTTPStatus.BAD_GATEWAY
        words = "did not answer in time" if status is HTTPStatus.GATEWAY_TIMEOUT else "cannot be connected to"
        self.refuse(self._unreachable(status, words), now)

    def _connect(self, address: Address) -> bool:
        assert self.request is not None
        family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
        try:
            self._server = socket.socket(family, socket.SOCK_STREAM)
            self._server.setblocking(False)
            code = self._server.connect_ex((str(address), self.request.port))
        except OSError:
            code = -1
        if code not in _IN_PROGRESS:
            self._discard_server()
        return self._server is not None

    def _finish_connecting(self, now: float) -> None:
        assert self._server is not None and self.request is not None
        if self._server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._connect_next(now, HTTPStatus.BAD_GATEWAY)
            return
        self._server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._meter.reached[self.request.authority] = None
        if self.request.is_tunnel:
            self._down.waiting += TUNNEL_OPEN
        self.phase = Phase.RELAYING
        self.deadline = now + self._limits.idle_seconds

    def _relay(self, one: socket.socket, events: int, now: float) -> None:
        server = self._server
        assert server is not None
        self.deadline = now + self._limits.idle_seconds
        if events & WRITE:
            flow = self._down if one is self._client else self._up
            del flow.waiting[: one.send(flow.waiting)]
        if events & READ:
            if one is self._client:
                received = one.recv(min(_CHUNK, self._limits.up_bytes - self._meter.up + 1))
                self._read_from_script(received)
                self._up.is_ended = not received
            else:
                received = one.recv(min(_CHUNK, self._limits.down_bytes - self._meter.down + 1))
                self._read_from_server(received)
                self._down.is_ended = not received
        self._forward_ends(server, now)

    def _read_from_script(self, received: bytes) -> None:
        """Queue what the script sends, up to the end of its one request."""
        if self._body_left is not None:
            received = received[: self._body_left]
            self._body_left -= len(received)
        if self._meter.up + len(received) > self._limits.up_bytes:
            self._meter.up = self._limits.up_bytes
            raise self._limit_error()
        self._meter.up += len(received)
        self._up.waiting += received

    def _read_from_server(self, received: bytes) -> None:
        if self._meter.down + len(received) > self._limits.down_bytes:
            self._meter.down = self._limits.down_bytes
            raise self._limit_error()
        self._meter.down += len(received)
        self._down.waiting += received

    def _limit_error(self) -> OSError:
        """Return the error that ends the connection; within a response it cannot be reported."""
        self._meter.refusals["limit"] += 1
        return OSError(errno.EDQUOT, "the run has reached its limit of bytes")

    def _forward_ends(self, server: socket.socket, now: float) -> None:
        for flow, target in ((self._up, server), (self._down, self._client)):
            if flow.is_ended and not flow.waiting and not flow.is_end_forwarded:
                flow.is_end_forwarded = True
                target.shutdown(socket.SHUT_WR)
        is_answered = self._down.is_end_forwarded and not (self.request and self.request.is_tunnel)
        if self._up.is_end_forwarded and self._down.is_end_forwarded:
            self.abandon()
        elif is_answered or (self._up.is_ended and self._body_left):
            self._discard_server()
            self._begin_ending(now)

    def _begin_ending(self, now: float) -> None:
        self.phase = Phase.ENDING
        self.deadline = now + _ENDING_SECONDS

    def _end(self, now: float) -> None:
        """Write the rest, then read until the script closes: closing earlier could discard the response."""
        if self._down.waiting:
            del self._down.waiting[: self._client.send(self._down.waiting)]
            if not self._down.waiting and not self._down.is_end_forwarded:
                self._down.is_end_forwarded = True
                self._client.shutdown(socket.SHUT_WR)
        elif not self._client.recv(_CHUNK):
            self.abandon()

    def _discard_server(self) -> None:
        if self._server is not None:
            self.discarded.append(self._server)
            self._server = None

    def _unreachable(
        self, status: HTTPStatus, words: str, *, why: str = "unreachable"
    ) -> RefusedRequestError:
        place = self.request.authority if self.request else ""
        return _refused(status, why, f"{quoted(place)} {words}")


def _refused(status: HTTPStatus, why: str, line: str) -> RefusedRequestError:
    return RefusedRequestError(status, why, line)


def _limit(line: str) -> RefusedRequestError:
    return RefusedRequestError(HTTPStatus.TOO_MANY_REQUESTS, "limit", line)
