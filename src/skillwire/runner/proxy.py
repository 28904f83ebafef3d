"""`AllowListProxy`: the only network access of a sandbox, to the hosts an operator has allowed.

A script can reach only one port of its own loopback interface, where this
proxy accepts connections from outside the sandbox. It resolves names itself,
refuses a host if any of its addresses is not public, and connects to an
address it has checked.

Limits of this protection: a tunnel is opaque. The name that a script sends
inside it, in TLS or in HTTP, may be another one that the same server answers
to, and an allowed host sees whatever a script sends to it. A public address
of this machine is treated like any other public address.
"""

import logging
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final, TypeAlias

import anyio
from anyio.abc import SocketStream
from anyio.from_thread import BlockingPortal, start_blocking_portal

from skillwire.core import Address, AddressScope, quoted, scope_of
from skillwire.runner.proxy_requests import (
    HEAD_END,
    TUNNEL_OPEN,
    AllowList,
    ProxyRequest,
    RefusedRequestError,
    parse_request,
)

logger = logging.getLogger(__name__)

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host, as texts; raises OSError when there are none."""

IsRefused: TypeAlias = Callable[[Address], bool]

_CHUNK: Final = 64 * 1024
_MOST_ADDRESSES: Final = 4
_ACCEPT_PAUSE: Final = 0.1
# How long a script has to read the proxy's own response before the connection is closed.
_ENDING_SECONDS: Final = 1.0
# A name lookup cannot be cancelled, so some may continue after their connection has ended.
_MOST_LOOKUPS: Final = 32
# So many connections beyond the limit get a refusal; after that the listener is closed.
_MOST_REFUSED: Final = 64


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


_DEFAULT_LIMITS: Final = ProxyLimits()


@dataclass(frozen=True, slots=True)
class ProxyTraffic:
    """The network traffic of a run: each `host:port` it reached, and the bytes sent and received.

    `refusals` counts refused requests by reason: `not-allowed`,
    `address`, `unreachable`, `malformed`, `method`, `too-large`, `slow`, `limit`.
    """

    reached: tuple[str, ...]
    connections: int
    up_bytes: int
    down_bytes: int
    refusals: Mapping[str, int]

    def __str__(self) -> str:
        refused = (f"{why}={count}" for why, count in sorted(self.refusals.items()))
        return " ".join((*self.reached, f"up={self.up_bytes}", f"down={self.down_bytes}", *refused))


def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host from the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_refused_address(address: Address) -> bool:
    """Return whether scripts may not reach an address, because it is not public."""
    return scope_of(address) is not AddressScope.PUBLIC


class AllowListProxy:
    """A proxy for one run.

    `allowed` are hosts, as `host` (port 443) or `host:port`. `start` serves on a
    listening socket, which it takes over, in a thread of its own, and `close`
    ends it and every connection. `traffic` can be read at any time. `resolve`
    and `is_refused` are for tests.

    Raises:
        RunnerError: One of `allowed` is not a host.
    """

    def __init__(
        self,
        allowed: Sequence[str],
        *,
        resolve: Resolve = resolve_host,
        limits: ProxyLimits = _DEFAULT_LIMITS,
        is_refused: IsRefused = is_refused_address,
    ) -> None:
        self.limits = limits
        self._allowed = AllowList(allowed)
        self._resolve = resolve
        self._is_refused = is_refused
        self._lookups = threading.BoundedSemaphore(_MOST_LOOKUPS)
        self._connections = 0
        self._up = _ByteCount(limits.up_bytes)
        self._down = _ByteCount(limits.down_bytes)
        self._reached: dict[str, None] = {}
        self._refusals: Counter[str] = Counter()
        self._portal: BlockingPortal | None = None
        self._stack = ExitStack()

    @property
    def traffic(self) -> ProxyTraffic:
        reached, refusals = tuple(self._reached.copy()), dict(self._refusals.copy())
        return ProxyTraffic(reached, self._connections, self._up.total, self._down.total, refusals)

    def start(self, listener: socket.socket) -> None:
        """Serve a listening socket in a thread."""
        self._stack.callback(listener.close)
        self._portal = self._stack.enter_context(start_blocking_portal(name="skillwire-proxy"))
        self._portal.start_task_soon(self._serve, listener)

    def close(self) -> None:
        """End every connection, and wait for the thread to end."""
        if self._portal is not None:
            with suppress(RuntimeError):  # It was closed before.
                self._portal.call(self._portal.stop, True)
        self._stack.close()

    async def _serve(self, listening: socket.socket) -> None:
        room = anyio.Semaphore(self.limits.connections)

        async def use(client: SocketStream) -> None:
            try:
                async with client:
                    await self._use(client)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass  # The script hung up.
            except Exception:
                logger.exception("a proxy connection of a script failed")
            finally:
                room.release()

        listening.setblocking(False)
        async with anyio.create_task_group() as group:
            while self._connections < self.limits.total_connections + _MOST_REFUSED:
                await room.acquire()
                await anyio.wait_readable(listening)
                try:
                    accepted, _ = listening.accept()
                except OSError:
                    # The process may be out of descriptors; try again a little later.
                    room.release()
                    await anyio.sleep(_ACCEPT_PAUSE)
                    continue
                self._connections += 1
                client = await _stream(accepted)
                if client is None:
                    room.release()
                else:
                    group.start_soon(use, client)
            listening.close()

    async def _use(self, client: SocketStream) -> None:
        """Serve one connection of the script: one request, and its response or tunnel."""
        try:
            request, rest = await self._read_request(client)
            server = await self._connect(request, await self._addresses(request))
        except RefusedRequestError as refusal:
            self._refusals[refusal.why] += 1
            await _finish(client, refusal.answer)
            return
        self._reached[request.authority] = None
        async with server:
            is_answered = await self._relay(client, server, request, rest)
        if is_answered:
            await _finish(client)

    async def _read_request(self, client: SocketStream) -> tuple[ProxyRequest, bytes]:
        """Return an allowed request, and what was received after its head."""
        most = self.limits.head_bytes
        received = bytearray()
        with anyio.move_on_after(self.limits.head_seconds):
            while (end := received.find(HEAD_END)) < 0 and b"\n\n" not in received and len(received) < most:
                received += await client.receive(_CHUNK)
            if (len(received) + 1 if end < 0 else end + len(HEAD_END)) > most:
                raise RefusedRequestError(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    "too-large",
                    f"the head of a request has at most {most} bytes",
                )
            request = parse_request(bytes(received[:end] if end >= 0 else received))
            self._allowed.require(request)
            self._require_within_limits()
            return request, bytes(received[end + len(HEAD_END) :])
        if not received:
            raise anyio.EndOfStream
        raise RefusedRequestError(HTTPStatus.REQUEST_TIMEOUT, "slow", "the request did not arrive in time")

    def _require_within_limits(self) -> None:
        limits = self.limits
        if self._connections > limits.total_connections:
            problem = f"this script has reached its limit of {limits.total_connections} connections"
        elif self._up.is_full or self._down.is_full:
            problem = "this script has reached its limit of bytes to send or receive"
        else:
            return
        raise RefusedRequestError(HTTPStatus.TOO_MANY_REQUESTS, "limit", problem)

    async def _addresses(self, request: ProxyRequest) -> Sequence[Address]:
        """Return the addresses of the host, each of them checked."""
        found = await self._look_up(request)
        if found is None:
            raise _unreachable(request, HTTPStatus.GATEWAY_TIMEOUT, "could not be resolved in time")
        try:
            addresses = [ip_address(text) for text in found]
        except ValueError:
            addresses = []
        if not addresses:
            raise _unreachable(request, HTTPStatus.BAD_GATEWAY, "has no address")
        if any(self._is_refused(address) for address in addresses):
            # The address itself is not revealed to the script.
            problem = "is at an address that no script may reach"
            raise _unreachable(request, HTTPStatus.BAD_GATEWAY, problem, why="address")
        return addresses[:_MOST_ADDRESSES]

    async def _look_up(self, request: ProxyRequest) -> Sequence[str] | None:
        """Return what the resolver finds; None when it takes too long."""
        if not self._lookups.acquire(blocking=False):
            raise RefusedRequestError(
                HTTPStatus.TOO_MANY_REQUESTS, "limit", "too many host names are being resolved"
            )
        found: list[str] = []
        is_done = anyio.Event()

        def look_up() -> None:
            try:
                found.extend(self._resolve(request.host, request.port))
            except (OSError, ValueError):
                logger.debug("a host could not be resolved", exc_info=True)
            finally:
                self._lookups.release()
            with suppress(RuntimeError):  # The proxy was closed.
                if self._portal is not None:
                    self._portal.start_task_soon(is_done.set)

        # The system's resolver may hang, and must delay neither `close` nor the end of the program.
        threading.Thread(target=look_up, name="skillwire-lookup", daemon=True).start()
        with anyio.move_on_after(self.limits.resolve_seconds):
            await is_done.wait()
        return found if is_done.is_set() else None

    async def _connect(self, request: ProxyRequest, addresses: Sequence[Address]) -> SocketStream:
        """Connect to one of the addresses; the time is shared among those not tried yet."""
        deadline = anyio.current_time() + self.limits.connect_seconds
        status, problem = HTTPStatus.BAD_GATEWAY, ""
        for number, address in enumerate(addresses):
            status, problem = HTTPStatus.GATEWAY_TIMEOUT, "did not answer in time"
            with anyio.move_on_after((deadline - anyio.current_time()) / (len(addresses) - number)):
                try:
                    return await anyio.connect_tcp(str(address), request.port)
                except OSError:
                    status, problem = HTTPStatus.BAD_GATEWAY, "cannot be connected to"
        raise _unreachable(request, status, problem)

    async def _relay(
        self, client: SocketStream, server: SocketStream, request: ProxyRequest, rest: bytes
    ) -> bool:
        """Pass bytes in both directions until both sides have ended, a limit is reached, or nothing happens.

        Return whether a plain request got its whole response.
        """
        is_answered = False

        async def send_up() -> None:
            """Send the request, and of what follows no more than its body."""
            chunk, left = rest, request.body_bytes
            await server.send(request.head)
            while True:
                chunk = chunk if left is None else chunk[:left]
                left = None if left is None else left - len(chunk)
                self._up.add(chunk)
                await server.send(chunk)
                activity.deadline = anyio.current_time() + self.limits.idle_seconds
                if left == 0:
                    return
                try:
                    chunk = await client.receive(self._up.next_read)
                except anyio.EndOfStream:
                    break
            if left:
                group.cancel_scope.cancel()  # The body is incomplete.
            await server.send_eof()

        async def send_down() -> None:
            nonlocal is_answered
            await client.send(TUNNEL_OPEN if request.is_tunnel else b"")
            while True:
                try:
                    chunk = await server.receive(self._down.next_read)
                except anyio.EndOfStream:
                    break
                self._down.add(chunk)
                await client.send(chunk)
                activity.deadline = anyio.current_time() + self.limits.idle_seconds
            await client.send_eof()
            if not request.is_tunnel:
                is_answered = True
                group.cancel_scope.cancel()

        async def until_failure(direction: Callable[[], Awaitable[None]]) -> None:
            try:
                await direction()
            except anyio.BrokenResourceError:
                group.cancel_scope.cancel()
            except _QuotaError:
                # Within a response it cannot be reported to the script.
                self._refusals["limit"] += 1
                group.cancel_scope.cancel()

        with anyio.move_on_after(self.limits.idle_seconds) as activity:
            async with anyio.create_task_group() as group:
                group.start_soon(until_failure, send_up)
                group.start_soon(until_failure, send_down)
        return is_answered


class _QuotaError(Exception):
    """The run has reached its limit of bytes."""


class _ByteCount:
    """The bytes of a run in one direction, and their limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.total = 0

    @property
    def is_full(self) -> bool:
        return self.total >= self._most

    @property
    def next_read(self) -> int:
        """How much to read next: one byte more than allowed shows that there is more."""
        return min(_CHUNK, self._most - self.total + 1)

    def add(self, chunk: bytes) -> None:
        """Count a chunk before it is passed on.

        Raises:
            _QuotaError: It is beyond the limit.
        """
        self.total += len(chunk)
        if self.total > self._most:
            self.total = self._most
            raise _QuotaError


async def _stream(accepted: socket.socket) -> SocketStream | None:
    """Return the stream of a connection; None when it has ended already.

    Being cancelled meanwhile does not leave the connection open.
    """
    try:
        with anyio.CancelScope(shield=True):
            return await SocketStream.from_socket(accepted)
    except (OSError, ValueError):
        accepted.close()
        return None


async def _finish(client: SocketStream, answer: bytes = b"") -> None:
    """Write the rest, then read until the script closes: closing earlier could discard the response."""
    with anyio.move_on_after(_ENDING_SECONDS), suppress(anyio.EndOfStream):
        if answer:
            await client.send(answer)
            await client.send_eof()
        while True:
            await client.receive(_CHUNK)


def _unreachable(
    request: ProxyRequest, status: HTTPStatus, problem: str, *, why: str = "unreachable"
) -> RefusedRequestError:
    return RefusedRequestError(status, why, f"{quoted(request.authority)} {problem}")
