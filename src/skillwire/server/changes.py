"""Change notifications: which URIs changed, which clients are notified, and how often."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent, SubscriptionBus

from skillwire.core import MAX_URI_LENGTH, SkillEntry, differing
from skillwire.sources.combined import CombinedSource
from skillwire.sources.snapshot import Snapshot

MAX_SUBSCRIPTIONS = 4096
# Changes within this time of each other are announced together.
_PAUSE_SECONDS = 0.5
_DELIVERY_SECONDS = 10.0

logger = logging.getLogger(__name__)


def changed_files(before: Snapshot, now: Snapshot) -> frozenset[str]:
    """Return the URI of every file that was added, removed or changed."""
    changes = now.changes_since(before)
    changed: set[str] = set()
    for uri in (*changes.added, *changes.removed, *changes.changed):
        changed.update(*differing(_digests(before.by_uri.get(uri)), _digests(now.by_uri.get(uri))), (uri,))
    return frozenset(changed)


def _digests(entry: SkillEntry | None) -> dict[str, str]:
    return {} if entry is None or entry.manifest is None else entry.manifest.digests_by_uri


class ChangeBus:
    """The bus of `subscriptions/listen` streams; false when it has no listeners."""

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[[ServerEvent], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._listeners)

    async def publish(self, event: ServerEvent) -> None:
        for listener in tuple(self._listeners.values()):
            listener(event)
        await anyio.lowlevel.checkpoint()  # Streams must write before their buffers are full.

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        token = object()
        self._listeners[token] = listener

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe


@dataclass(slots=True, eq=False)
class _Subscriber:
    """A connection of the handshake era that has a channel for notifications."""

    connection: Connection
    uris: set[str] = field(default_factory=set[str])
    pending: set[str] | None = None
    is_busy: bool = False


class ChangeNotifier:
    """Watches a catalog and notifies clients of changes.

    Connections of the handshake era are notified on their own channel, modern
    clients on their `subscriptions/listen` streams, through a bus. With every
    change, `methods` are sent to the former and `events` to the latter, and
    `resources` are reported as updated.
    """

    def __init__(
        self,
        methods: Iterable[str] = (),
        resources: Iterable[str] = (),
        events: Iterable[ServerEvent] = (),
    ) -> None:
        self._methods = tuple(dict.fromkeys(methods))
        self._events = tuple(dict.fromkeys(events))
        self._resources = frozenset(resources)
        self._subscribers: dict[Connection, _Subscriber] = {}
        self._buses: list[SubscriptionBus] = []

    def add_notifications(self, methods: Iterable[str], events: Iterable[ServerEvent]) -> None:
        """Send more notifications and events with every change from now on."""
        self._methods = tuple(dict.fromkeys((*self._methods, *methods)))
        self._events = tuple(dict.fromkeys((*self._events, *events)))

    def add_bus(self, bus: SubscriptionBus) -> None:
        """Announce changes on `bus` too."""
        self._buses.append(bus)

    def register(self, connection: Connection) -> None:
        """Notify a connection that finished its handshake, until it closes."""
        if connection.has_standalone_channel and connection not in self._subscribers:
            self._subscribers[connection] = _Subscriber(connection)
            connection.exit_stack.callback(self._subscribers.pop, connection, None)

    def subscribe(self, connection: Connection, uri: str) -> bool:
        """Notify a connection when `uri` changes; return False when it has too many subscriptions."""
        self.register(connection)
        subscriber = self._subscribers.get(connection)
        if subscriber is None:
            return True  # It has no channel, and `subscribe` was not declared to it.
        if len(uri) > MAX_URI_LENGTH:
            return True  # No skill has such a URI.
        if len(subscriber.uris) >= MAX_SUBSCRIPTIONS and uri not in subscriber.uris:
            return False
        subscriber.uris.add(uri)
        return True

    def unsubscribe(self, connection: Connection, uri: str) -> None:
        subscriber = self._subscribers.get(connection)
        if subscriber is not None:
            subscriber.uris.discard(uri)

    async def follow(self, catalog: CombinedSource) -> None:
        """Announce every change of `catalog` until cancelled."""
        before = catalog.snapshot
        async with anyio.create_task_group() as group:
            while True:
                now = await catalog.wait_for_change(before.revision)
                try:
                    changed = changed_files(before, now)
                    if changed:
                        await self.announce(changed | self._resources, group)
                except Exception:
                    logger.exception("a change could not be announced")
                before = now
                await anyio.sleep(_PAUSE_SECONDS)

    async def announce(self, changed: frozenset[str], group: anyio.abc.TaskGroup) -> None:
        """Notify all clients of a change of the list, and of the resources that changed."""
        for subscriber in tuple(self._subscribers.values()):
            subscriber.pending = (subscriber.pending or set()) | (subscriber.uris & changed)
            if not subscriber.is_busy:
                subscriber.is_busy = True
                group.start_soon(self._deliver, subscriber)
        for bus in self._buses:
            if isinstance(bus, ChangeBus) and not bus:
                continue
            for event in (ResourcesListChanged(), *self._events):
                await bus.publish(event)
            for uri in sorted(changed):
                await bus.publish(ResourceUpdated(uri=uri))

    async def _deliver(self, subscriber: _Subscriber) -> None:
        """Notify one client. A client that does not read delays no other and may miss notifications."""
        try:
            while subscriber.pending is not None:
                uris, subscriber.pending = subscriber.pending, None
                with anyio.move_on_after(_DELIVERY_SECONDS):
                    for method in self._methods:
                        await subscriber.connection.outbound.notify(method, None)
                    for notification in _notifications(uris):
                        data = notification.model_dump(by_alias=True, mode="json", exclude_none=True)
                        await subscriber.connection.outbound.notify(data["method"], data.get("params"))
        except Exception:
            logger.info("a client could not be notified of a change", exc_info=True)
        finally:
            subscriber.is_busy = False


def connection_of(context: ServerRequestContext[Any, Any]) -> Connection:
    """Return the connection of a request."""
    # The SDK makes a session for each request, and the connection behind it is private.
    return context.session._connection  # pyright: ignore[reportPrivateUsage]


def _notifications(uris: set[str]) -> Iterator[types.ServerNotification]:
    yield types.ResourceListChangedNotification()
    for uri in sorted(uris):
        yield types.ResourceUpdatedNotification(params=types.ResourceUpdatedNotificationParams(uri=uri))
