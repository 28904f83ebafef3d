"""`AllowListProxy`: the only way out of a sandbox, to the hosts an operator has listed.

A script has no network but a port of its own loopback, behind which this
proxy listens from outside. It resolves names itself, refuses a host if any of
its addresses is not a public one, and connects to an address it has checked.

What it does not see: a tunnel is opaque. The name that a script gives inside
it, in TLS or in HTTP, may be another one that the same server answers to, and
what a script sends to an allowed host is for that host to see. A public
address of this very machine is a public address like any other.
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

from skillwire.core.addresses import Address, Reach, reach_of
from skillwire.runner.proxy_links import READ, IsRefused, Link, Meter, Phase, ProxyLimits
from skillwire.runner.proxy_requests import AllowList, RefusedRequestError

__all__ = ["AllowListProxy", "ProxyLimits", "ProxyTraffic", "Resolve"]

logger = logging.getLogger(__name__)

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host, as texts; raises OSError when there are none."""

_CLOSING_SECONDS: Final = 2.0
_LONGEST_WAIT: Final = 1.0
_ACCEPT_PAUSE: Final = 0.1
_DEFAULT_LIMITS: Final = ProxyLimits()
# The system cannot be told to stop looking a name up, so some may go on that nobody waits for any more.
_MOST_LOOKUPS: Final = 32
# Connections beyond the limit are told so; then nobody listens any more.
_MOST_TOLD: Final = 64


@dataclass(frozen=True, slots=True)
class ProxyTraffic:
    """What a run did with its way out: which `host:port` it reached, how many bytes went up and down.

    `refusals` counts requests that got nothing, by why: `not-allowed`,
    `address`, `unreachable`, `malformed`, `method`, `too-large`, `slow`, `limit`.
    """

    reached: tuple[str, ...]
    connections: int
    up_bytes: int
    down_bytes: int
    refusals: Mapping[str, int]


def resolve_host(host: str, port: int) -> Sequence[str]:
    """Ask the system for the addresses of a host."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_refused_address(address: Address) -> bool:
    """Tell whether no script may reach an address: all that are not known to be public."""
    return reach_of(address) is not Reach.PUBLIC


class AllowListProxy:
    """Serves one run, on a listening socket that it owns from now on.

    `allowed` are hosts, as `host` (port 443) or `host:port`. `start` begins in
    a thread of its own, and `close` ends that and every connection. `traffic`
    can be looked at any time. `resolve` and `is_refused` are for tests.

    Raises:
        RunnerError: One of `allowed` is no host.
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
        self._meter = Meter(limits)
        self._links: set[Link] = set()
        self._watched: dict[socket.socket, int] = {}
        self._owners: dict[socket.socket, Link] = {}
        self._found: queue.SimpleQueue[tuple[Link, Sequence[str]]] = queue.SimpleQueue()
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
        """Begin to serve."""
        woken, self._wake = socket.socketpair()
        for one in (woken, self._wake, self._listener):
            one.setblocking(False)
        self._thread = threading.Thread(target=self._serve, args=(woken,), name="skillwire-proxy")
        self._thread.start()

    def close(self) -> None:
        """End every connection, and return once the thread is gone."""
        self._is_closing = True
        if self._thread is None:
            self._listener.close()
            return
        self._wake_up()
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():
            logger.error("the proxy of a run did not end in time")

    def _serve(self, woken: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(woken, READ)
            try:
                while not self._is_closing:
                    self._watch(selector)
                    self._step(selector, woken)
            except Exception:
                logger.exception("the proxy of a run ends early")
            finally:
                for link in self._links:
                    link.abandon()
                    _close_all(link.discarded)
                self._listener.close()
                with self._wake_lock:
                    woken.close()
                    if self._wake is not None:
                        self._wake.close()

    def _watch(self, selector: selectors.BaseSelector) -> None:
        """Bring what the selector waits for up to date, and close what nobody waits for any more."""
        over = {link for link in self._links if link.phase is Phase.OVER}
        self._links -= over
        self._owners = {one: link for link in self._links for one in link.interest()}
        wanted = {one: events for link in self._links for one, events in link.interest().items()}
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
        for link in self._links | over:
            _close_all(link.discarded)
        if self._is_exhausted:
            self._listener.close()

    def _may_accept(self, now: float) -> bool:
        has_room = len(self._links) < self._meter.limits.connections
        return has_room and not self._is_exhausted and now >= self._accept_again

    @property
    def _is_exhausted(self) -> bool:
        return self._meter.connections >= self._meter.limits.total_connections + _MOST_TOLD

    def _step(self, selector: selectors.BaseSelector, woken: socket.socket) -> None:
        begun = time.monotonic()
        first = min((link.deadline for link in self._links), default=begun + _LONGEST_WAIT)
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
        while not self._found.empty():
            link, addresses = self._found.get()
            link.resolved(addresses, now)
        for link in self._links:
            if link.phase is not Phase.OVER and link.deadline <= now:
                link.late(now)

    def _accept(self, now: float) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            # This process may have run out of descriptors. Others may give some back.
            self._accept_again = now + _ACCEPT_PAUSE
            return
        self._meter.connections += 1
        self._links.add(Link(client, self._allowed, self._meter, self._is_refused, now))

    def _ready(self, link: Link, one: socket.socket, events: int, now: float) -> None:
        if one in link.discarded:
            return
        was_asking = link.phase is Phase.HEAD
        try:
            link.ready(one, events, now)
            if was_asking and link.phase is Phase.RESOLVING:
                self._look_up(link, now)
        except Exception:
            logger.exception("a connection of a script ends early")
            link.abandon()

    def _look_up(self, link: Link, now: float) -> None:
        if not self._lookups.acquire(blocking=False):
            link.refuse(
                RefusedRequestError(
                    HTTPStatus.TOO_MANY_REQUESTS, "limit", "too many names are being looked up"
                ),
                now,
            )
            return
        # The system's resolver may hang, and must hold up neither `close` nor the end of the program.
        threading.Thread(target=self._find, args=(link,), name="skillwire-lookup", daemon=True).start()

    def _find(self, link: Link) -> None:
        assert link.request is not None
        addresses: Sequence[str] = ()
        try:
            addresses = self._resolve(link.request.host, link.request.port)
        except (OSError, ValueError):
            logger.debug("a host could not be resolved", exc_info=True)
        finally:
            self._lookups.release()
        self._found.put((link, addresses))
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
