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
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Final, TypeAlias

from skillwire.core import Address, AddressScope, scope_of
from skillwire.runner.proxy_relay import READ, IsRefused, Phase, ProxyConnection, ProxyLimits, TrafficMeter
from skillwire.runner.proxy_requests import AllowList, RefusedRequestError

__all__ = ["AllowListProxy", "ProxyLimits", "ProxyTraffic", "Resolve"]

logger = logging.getLogger(__name__)

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host, as texts; raises OSError when there are none."""

_CLOSING_SECONDS: Final = 2.0
_LONGEST_WAIT: Final = 1.0
_ACCEPT_PAUSE: Final = 0.1
_DEFAULT_LIMITS: Final = ProxyLimits()
# A name lookup cannot be cancelled, so some may continue after their connection has ended.
_MOST_LOOKUPS: Final = 32
# So many connections beyond the limit get a refusal; after that the listener is closed.
_MOST_REFUSED: Final = 64


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


def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host from the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_refused_address(address: Address) -> bool:
    """Return whether scripts may not reach an address, because it is not public."""
    return scope_of(address) is not AddressScope.PUBLIC


class AllowListProxy:
    """A proxy for one run, on a listening socket that it takes over.

    `allowed` are hosts, as `host` (port 443) or `host:port`. `start` serves in
    a thread of its own, and `close` ends it and every connection. `traffic`
    can be read at any time. `resolve` and `is_refused` are for tests.

    Raises:
        RunnerError: One of `allowed` is not a host.
    """

    def __init__(
        self,
        listener: socket.socket,
        allowed: Sequence[str],
        *,
        resolve: Resolve = resolve_host,
        limits: ProxyLimits = _DEFAULT_LIMITS,
        is_refused: IsRefused = is_refused_address,
    ) -> None:
        self._allowed = AllowList(allowed)
        self._listener = listener
        self._resolve = resolve
        self._is_refused = is_refused
        self._meter = TrafficMeter(limits)
        self._connections: set[ProxyConnection] = set()
        self._watched: dict[socket.socket, int] = {}
        self._owners: dict[socket.socket, ProxyConnection] = {}
        self._resolved: queue.SimpleQueue[tuple[ProxyConnection, Sequence[str]]] = queue.SimpleQueue()
        self._lookups = threading.BoundedSemaphore(_MOST_LOOKUPS)
        self._accept_again = 0.0
        self._is_closing = False
        self._wake_lock = threading.Lock()
        self._wake: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "AllowListProxy":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def traffic(self) -> ProxyTraffic:
        meter = self._meter
        return ProxyTraffic(
            reached=tuple(meter.reached.copy()),
            connections=meter.connections,
            up_bytes=meter.up,
            down_bytes=meter.down,
            refusals=dict(meter.refusals.copy()),
        )

    def start(self) -> None:
        """Start serving in a thread."""
        woken, self._wake = socket.socketpair()
        for one in (woken, self._wake, self._listener):
            one.setblocking(False)
        self._thread = threading.Thread(target=self._serve, args=(woken,), name="skillwire-proxy")
        self._thread.start()

    def close(self) -> None:
        """End every connection, and wait for the thread to end."""
        self._is_closing = True
        if self._thread is None:
            self._listener.close()
            return
        self._wake_up()
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():
            logger.error("the proxy of a run did not stop in time")

    def _serve(self, woken: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(woken, READ)
            try:
                while not self._is_closing:
                    self._watch(selector)
                    self._step(selector, woken)
            except Exception:
                logger.exception("the proxy of a run failed")
            finally:
                for link in self._connections:
                    link.abandon()
                    _close_all(link.discarded)
                self._listener.close()
                with self._wake_lock:
                    woken.close()
                    if self._wake is not None:
                        self._wake.close()

    def _watch(self, selector: selectors.BaseSelector) -> None:
        """Update the sockets that the selector watches, and close those that are no longer needed."""
        over = {link for link in self._connections if link.phase is Phase.OVER}
        self._connections -= over
        self._owners = {one: link for link in self._connections for one in link.interest()}
        wanted = {one: events for link in self._connections for one, events in link.interest().items()}
        if self._may_accept(time.monotonic()):
            wanted[self._listener] = READ
        for one in self._watched.keys() - wanted.keys():
            selector.unregister(one)
        for one, events in wanted.items():
            if one not in self._watched:
                selector.register(one, events)
            elif self._watched[one] != events:
                selector.modify(one, events)
        self._watched = wanted
        for link in self._connections | over:
            _close_all(link.discarded)
        if self._is_exhausted:
            self._listener.close()

    def _may_accept(self, now: float) -> bool:
        has_room = len(self._connections) < self._meter.limits.connections
        return has_room and not self._is_exhausted and now >= self._accept_again

    @property
    def _is_exhausted(self) -> bool:
        return self._meter.connections >= self._meter.limits.total_connections + _MOST_REFUSED

    def _step(self, selector: selectors.BaseSelector, woken: socket.socket) -> None:
        begun = time.monotonic()
        first = min((link.deadline for link in self._connections), default=begun + _LONGEST_WAIT)
        ready = selector.select(min(_LONGEST_WAIT, max(0.0, first - begun)))
        now = time.monotonic()
        for key, events in ready:
            one = key.fileobj
            if one is self._listener:
                self._accept(now)
            elif one is woken:
                _drain(woken)
            elif isinstance(one, socket.socket):
                self._ready(self._owners[one], one, events, now)
        while not self._resolved.empty():
            link, addresses = self._resolved.get()
            link.on_resolved(addresses, now)
        for link in self._connections:
            if link.phase is not Phase.OVER and link.deadline <= now:
                link.on_deadline(now)

    def _accept(self, now: float) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            # The process may be out of descriptors; try again a little later.
            self._accept_again = now + _ACCEPT_PAUSE
            return
        self._meter.connections += 1
        self._connections.add(ProxyConnection(client, self._allowed, self._meter, self._is_refused, now))

    def _ready(self, link: ProxyConnection, one: socket.socket, events: int, now: float) -> None:
        if one in link.discarded:
            return
        was_asking = link.phase is Phase.HEAD
        try:
            link.on_ready(one, events, now)
            if was_asking and link.phase is Phase.RESOLVING:
                self._start_lookup(link, now)
        except Exception:
            logger.exception("a proxy connection of a script failed")
            link.abandon()

    def _start_lookup(self, link: ProxyConnection, now: float) -> None:
        if not self._lookups.acquire(blocking=False):
            link.refuse(
                RefusedRequestError(
                    HTTPStatus.TOO_MANY_REQUESTS, "limit", "too many host names are being resolved"
                ),
                now,
            )
            return
        # The system's resolver may hang, and must delay neither `close` nor the end of the program.
        threading.Thread(target=self._lookup, args=(link,), name="skillwire-lookup", daemon=True).start()

    def _lookup(self, link: ProxyConnection) -> None:
        assert link.request is not None
        addresses: Sequence[str] = ()
        try:
            addresses = self._resolve(link.request.host, link.request.port)
        except (OSError, ValueError):
            logger.debug("a host could not be resolved", exc_info=True)
        finally:
            self._lookups.release()
        self._resolved.put((link, addresses))
        self._wake_up()

    def _wake_up(self) -> None:
        with self._wake_lock:
            try:
                if self._wake is not None:
                    self._wake.send(b"\0")
            except OSError:
                pass


def _close_all(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()
    sockets.clear()


def _drain(woken: socket.socket) -> None:
    try:
        woken.recv(4096)
    except OSError:
        pass
