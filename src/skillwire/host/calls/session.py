"""The state of one connection attempt, shared by the transport and the connection."""

import math
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias, cast

import anyio
from mcp.client import Client
from mcp.client._transport import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCResponse

from skillwire.core import SkillError, TokenBucket, quoted
from skillwire.host.model import FloodError, TooSlowError, UnavailableError

# Limits for a connection: size and rate of messages, backoff and restarts.


DEFAULT_PAGES = 1000
DEFAULT_ENTRIES = 100_000
DEFAULT_BYTES = 128 * 1024 * 1024
DEFAULT_MESSAGE_BYTES: Final = 32 * 1024 * 1024

# JSON may encode one byte as `\u0000`, and the file is wrapped in a message.
_BYTES_PER_BYTE = 6
_ENVELOPE = 64 * 1024

Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True, slots=True)
class ListingLimits:
    """Limits for one listing, beyond which it counts as endless; `max_bytes` is its size as JSON."""

    max_pages: int = DEFAULT_PAGES
    max_entries: int = DEFAULT_ENTRIES
    max_bytes: int = DEFAULT_BYTES


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one connection, in bytes, messages, requests and attempts."""

    message_bytes: int = DEFAULT_MESSAGE_BYTES
    message_burst: int = 2000
    messages_per_second: float = 500.0
    max_pages: int = DEFAULT_PAGES
    max_entries: int = DEFAULT_ENTRIES
    max_listing_bytes: int = DEFAULT_BYTES
    in_flight: int = 8
    starts: int = 5
    start_window: float = 600.0
    backoff_base: float = 0.5
    backoff_most: float = 60.0
    change_gap: float = 1.0
    exit_grace: float = 2.0
    execute_seconds: float = 60.0


class MessageCap:
    """The largest message that is accepted, raised while a large file is being read."""

    def __init__(self, default: int = DEFAULT_MESSAGE_BYTES) -> None:
        self.current = default
        self._default = default
        self._allowed: list[int] = []

    @contextmanager
    def allowing(self, size: int) -> Generator[None]:
        """Allow messages with a file of `size` bytes during the block, in any JSON encoding."""
        allowed = size * _BYTES_PER_BYTE + _ENVELOPE
        self._allowed.append(allowed)
        self.current = max(self.current, allowed)
        try:
            yield
        finally:
            self._allowed.remove(allowed)
            self.current = max((self._default, *self._allowed))


class Backoff:
    """Exponential backoff with jitter, so that many hosts do not retry at the same time."""

    def __init__(
        self,
        base: float = 0.5,
        most: float = 60.0,
        *,
        jitter: Callable[[], float] = random.random,
        clock: Clock = time.monotonic,
    ) -> None:
        self._base = base
        self.max_delay = most
        self._jitter = jitter
        self._clock = clock
        self._failures = 0
        self._until = clock()

    @property
    def failures(self) -> int:
        """The number of consecutive failures."""
        return self._failures

    @property
    def remaining(self) -> float:
        """The seconds until the next attempt; 0 if it is allowed now."""
        return max(0.0, self._until - self._clock())

    def record_failure(self) -> float:
        """Record a failure, and return the seconds to wait."""
        # Larger exponents would overflow, and the limit is reached long before.
        limit = min(self.max_delay, self._base * 2.0 ** min(self._failures, 64))
        self._failures += 1
        delay = limit * self._jitter()
        self._until = self._clock() + delay
        return delay

    def reset(self) -> None:
        """Forget all failures."""
        self._failures = 0
        self._until = self._clock()


class RestartBudget:
    """Limits the number of starts in a period of time."""

    def __init__(self, starts: int = 5, seconds: float = 600.0, *, clock: Clock = time.monotonic) -> None:
        self._starts = starts
        self._seconds = seconds
        self._clock = clock
        self._times: deque[float] = deque(maxlen=starts)

    @property
    def remaining(self) -> float:
        """The seconds until another start is allowed; 0 if it is allowed now."""
        if len(self._times) < self._starts:
            return 0.0
        return max(0.0, self._times[0] + self._seconds - self._clock())

    def record(self) -> None:
        """Record a start."""
        self._times.append(self._clock())

    def reset(self) -> None:
        """Forget all starts, because a user asked for another."""
        self._times.clear()


Streams = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]
"""The streams of a transport for the MCP client."""

MAX_PENDING_WRITES: Final = 64

_MAX_STRAY_LENGTH = 200
# An answer in an event stream may come with an event that only has a resumption token.
_EVENTS_PER_ANSWER = 3


class ServerLink:
    """One connection attempt: its limits, its state and how it ended.

    `is_ready` is true once the server has sent its capabilities. A link ends
    once, with the first reason given, before pending requests fail.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        on_end: Callable[["ServerLink"], None] | None = None,
        on_notification: Callable[[str], None] | None = None,
    ) -> None:
        self.limits = limits
        self.cap = MessageCap(limits.message_bytes)
        self.ready = anyio.Event()
        self.over = anyio.Event()
        self.client: Client
        """The MCP client, once the link is ready."""
        self.is_ready = False
        self.is_over = False
        self.failure: SkillError | None = None
        self.ready_since: float | None = None
        self.capabilities: Mapping[str, Any] = {}
        """The server's capabilities, unparsed."""
        self.rejection: SkillError | None = None
        """The failure that the last HTTP response indicates; None if it was accepted."""
        self.has_json_body = False
        """Whether that response has a JSON body, which may hold a JSON-RPC error."""
        self._stray = ""
        self._on_end = on_end
        self._on_notification = on_notification
        self._connecting: anyio.CancelScope | None = None
        self._messages = TokenBucket(limits.message_burst, limits.messages_per_second)
        self._events = TokenBucket(limits.message_burst, limits.messages_per_second)

    def begin(self, connecting: anyio.CancelScope) -> None:
        """Set the scope to cancel if the link ends before it is ready."""
        self._connecting = connecting
        if self.is_over:
            connecting.cancel()

    def become_ready(self, client: Client) -> None:
        if self.is_over:
            return
        self._connecting = None
        self.client, self.is_ready = client, True
        self.ready_since = time.monotonic()
        self.ready.set()

    def end(self, failure: SkillError) -> None:
        """End the link, unless it has ended already."""
        if self.is_over:
            return
        self.failure = failure
        self.is_ready, self.is_over = False, True
        self.over.set()
        self.ready.set()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._on_end is not None:
            self._on_end(self)

    def end_with_timeout(self, seconds: float) -> None:
        """End the link because the server did not send its capabilities in time."""
        fix = "check that the command starts an MCP server with the stdio transport" if self._stray else ""
        self.end(
            TooSlowError(
                f"the server did not connect within {seconds:g} seconds{self.unexpected_output}", fix=fix
            )
        )

    def inspect(self, item: SessionMessage | Exception) -> None:
        """Read what the SDK would drop from a message: unknown capabilities and notifications."""
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCResponse) and not self.is_ready:
            capabilities = message.result.get("capabilities")
            if isinstance(capabilities, dict):
                self.capabilities = cast(dict[str, Any], capabilities)
        elif isinstance(message, JSONRPCResponse):
            # The protocol allows an item `text` or `blob`. Of both, the SDK would use the text and drop the
            # blob, which another client might use: without either, the answer is refused.
            contents = message.result.get("contents")
            for content in cast(list[object], contents) if isinstance(contents, list) else ():
                if isinstance(content, dict) and {"text", "blob"} <= cast(dict[str, Any], content).keys():
                    del content["text"], content["blob"]
        elif isinstance(message, JSONRPCNotification) and self._on_notification is not None:
            self._on_notification(message.method)

    def note_unexpected_line(self, line: bytes) -> None:
        """Remember the first line of output that is not a message, until the link is ready."""
        if not self._stray and not self.is_ready:
            self._stray = quoted(line[:_MAX_STRAY_LENGTH].decode("utf-8", "replace").strip())

    @property
    def unexpected_output(self) -> str:
        """The text to add to a failure to connect, if the server wrote a line that is not a message."""
        return f"; its output is not MCP: {self._stray}" if self._stray else ""

    def expect_answer(self) -> None:
        """Allow one more message, because a request was sent."""
        self._messages.add()
        self._events.add(_EVENTS_PER_ANSWER)

    def admit(self, *, events: int | None = None) -> bool:
        """Return whether one more message, or `events` more events of a stream, are allowed.

        Too many end the link.
        """
        if self.is_over:
            return False
        if not (self._messages.take() if events is None else self._events.take(events)):
            return True
        rate = f"{self.limits.message_burst} at once, or {self.limits.messages_per_second:g} a second"
        self.end(FloodError(f"the server sent too many messages: more than {rate}"))
        return False


# Deadlines that are paused while the user signs in.


class Deadlines:
    """The deadlines of a server's requests, which can be paused together.

    A server has a few seconds to answer; a user who signs in has minutes, which
    do not count as the server's time.
    """

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()
        self._paused_until = -math.inf

    @contextmanager
    def limit(self, seconds: float = math.inf) -> Generator[anyio.CancelScope]:
        """Limit the block to `seconds`; `cancelled_caught` of the scope is true if they ran out."""
        with anyio.CancelScope(deadline=self.after(seconds)) as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    def after(self, seconds: float) -> float:
        """Return the time at which `seconds` from now have passed, without those of a pause."""
        return max(anyio.current_time(), self._paused_until) + seconds

    @contextmanager
    def pause(self, seconds: float) -> Generator[None]:
        """Pause all deadlines during the block, for at most `seconds`."""
        self._shift(seconds)
        self._paused_until = anyio.current_time() + seconds
        try:
            yield
        finally:
            unused = self._paused_until - anyio.current_time()
            self._paused_until = -math.inf
            self._shift(-max(0.0, unused))

    def _shift(self, seconds: float) -> None:
        for scope in self._scopes:
            scope.deadline += seconds


class ConnectionState(StrEnum):
    """The state of a connection. `failed` lasts until attempts are allowed again."""

    IDLE = "idle"
    CONNECTING = "connecting"
    READY = "ready"
    BACKING_OFF = "backing-off"
    FAILED = "failed"
    CLOSED = "closed"


# Sharing of concurrent identical calls: one task, one deadline, one outcome.


@dataclass(eq=False, slots=True)
class SharedCall:
    """One call in progress: its outcome, and the deadline of those who wait for it."""

    _calls: dict[Hashable, "SharedCall"]
    _key: Hashable
    _deadlines: Deadlines
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    waiting: set[anyio.CancelScope] = field(default_factory=set[anyio.CancelScope])
    values: list[Any] = field(default_factory=list[Any])
    failure: SkillError | None = None
    timeout: str = ""

    @contextmanager
    def running(self) -> Generator[list[Any]]:
        """Make the call in the block, which appends the answer to the list that it gets, or raises.

        Whatever is raised besides a `SkillError` also ends the task.
        """
        try:
            with self.scope:
                yield self.values
        except SkillError as error:
            self.failure = error
        finally:
            self.forget()
            self.done.set()

    def limit(self, seconds: float, what: str = "") -> None:
        """Let all callers wait for `seconds` from now; then `what` took too long."""
        self.timeout = f"the server took more than {seconds:g} seconds to answer {what}"
        deadline = self._deadlines.after(seconds)
        for scope in self.waiting:
            scope.deadline = deadline

    def forget(self) -> None:
        """Let the next call with the same key be made anew."""
        if self._calls.get(self._key) is self:
            del self._calls[self._key]


class SharedCalls:
    """The calls in progress, by their keys, each in a task of its own.

    The cancellation of one caller does not affect the others; when the last one
    is gone, the call is cancelled. A caller whose time is over does not wait
    for that, because a server that hangs may delay it.
    """

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        self._deadlines = deadlines or Deadlines()
        self._calls: dict[Hashable, SharedCall] = {}

    def get(self, key: Hashable) -> SharedCall | None:
        """Return the call in progress with this key."""
        return self._calls.get(key)

    def start(
        self,
        tasks: anyio.abc.TaskGroup,
        key: Hashable,
        run: Callable[[SharedCall], Coroutine[Any, Any, None]],
    ) -> SharedCall:
        """Return the call with this key; unless it is in progress, a new task makes it with `run`."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = SharedCall(self._calls, key, self._deadlines)
            tasks.start_soon(run, call)
        return call

    async def share(
        self,
        tasks: anyio.abc.TaskGroup,
        key: Hashable,
        run: Callable[[SharedCall], Coroutine[Any, Any, None]],
    ) -> Any:
        """Return the answer of the call with this key, which is started unless it is in progress.

        Raises:
            TooSlowError: It took too long.
            SkillError: The call failed; all callers get the same error.
        """
        call = self.start(tasks, key, run)
        deadline = next((scope.deadline for scope in call.waiting), math.inf)
        with self._deadlines.limit() as clock:
            clock.deadline = deadline
            call.waiting.add(clock)
            try:
                await call.done.wait()
            finally:
                call.waiting.discard(clock)
                if not call.waiting and not call.done.is_set():
                    call.forget()
                    call.scope.cancel()
        if clock.cancelled_caught:
            raise TooSlowError(call.timeout)
        if call.failure is not None:
            # All callers share the exception, so the traceback of another caller is removed.
            raise call.failure.with_traceback(None)
        if not call.values:
            raise UnavailableError("the connection was closed")
        return call.values[0]
