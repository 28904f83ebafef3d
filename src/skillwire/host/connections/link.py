"""One attempt at a connection, from the first byte to the last: what it may carry, and how it ended."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import anyio
from mcp.client import Client
from mcp.client._transport import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCResponse

from skillwire.errors import SkillError
from skillwire.host.connections.throttle import ConnectionLimits, MessageCap, TokenBucket
from skillwire.host.failures import FloodError

Streams = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]
"""What a transport gives the MCP client."""

WRITES_WAITING: Final = 64

# An answer in an event stream may come with an event that only names a place to resume from.
_EVENTS_PER_ANSWER = 3


class Link:
    """What the transport and the connection know about each other.

    `is_ready` once the server has said what it offers. However it ends, it
    ends once, with the first reason given, and before anyone who waits for an
    answer is told that none will come.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        on_end: Callable[["Link"], None] | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        self.limits = limits
        self.cap = MessageCap(limits.message_bytes)
        self.ready = anyio.Event()
        self.over = anyio.Event()
        self.failure: SkillError | None = None
        self.ready_since: float | None = None
        self.capabilities: Mapping[str, Any] = {}
        """What the server declared, as it came."""
        self.refused_status: int | None = None
        """The HTTP status with which the server last turned a request away: 401 or 403."""
        self._on_end = on_end
        self._on_notice = on_notice
        self._client: Client | None = None
        self._connecting: anyio.CancelScope | None = None
        self._messages = TokenBucket(limits.message_burst, limits.messages_per_second)
        self._events = TokenBucket(limits.message_burst, limits.messages_per_second)

    @property
    def is_ready(self) -> bool:
        return self._client is not None and not self.is_over

    @property
    def is_over(self) -> bool:
        return self.over.is_set()

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def begin(self, connecting: anyio.CancelScope) -> None:
        """Note the scope to cancel if the link ends before it is ready."""
        self._connecting = connecting
        if self.is_over:
            connecting.cancel()

    def become_ready(self, client: Client) -> None:
        if self.is_over:
            return
        self._connecting = None
        self._client = client
        self.ready_since = time.monotonic()
        self.ready.set()

    def end(self, failure: SkillError) -> None:
        """End the link, unless it has ended."""
        if self.is_over:
            return
        self.failure = failure
        self.over.set()
        self.ready.set()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._on_end is not None:
            self._on_end(self)

    def overhear(self, item: SessionMessage | Exception) -> None:
        """Note what the SDK would drop: capabilities and notifications that its own models do not know."""
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCResponse) and not self.is_ready:
            capabilities = message.result.get("capabilities")
            if isinstance(capabilities, dict):
                self.capabilities = cast(dict[str, Any], capabilities)
        elif isinstance(message, JSONRPCNotification) and self._on_notice is not None:
            self._on_notice(message.method)

    def expect(self) -> None:
        """Note that a request was sent: its answer is no part of a flood."""
        self._messages.give()
        self._events.give(_EVENTS_PER_ANSWER)

    def admit(self) -> bool:
        """Let one more message in, or end the link because there are too many."""
        return self._pass(self._messages, 1)

    def admit_events(self, count: int) -> bool:
        """Let some events of a stream in, whether or not there is a message in them."""
        return self._pass(self._events, count)

    def _pass(self, bucket: TokenBucket, count: int) -> bool:
        if self.is_over:
            return False
        if not bucket.take(count):
            rate = f"{self.limits.message_burst} at once, or {self.limits.messages_per_second:g} a second"
            self.end(FloodError(f"the server sent too many messages: more than {rate}"))
            return False
        return True
