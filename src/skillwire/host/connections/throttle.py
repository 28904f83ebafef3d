"""How much a server may send, how fast, and how soon it is tried again.

Nothing here waits: these are counters, and whoever asks them decides.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from skillwire.host.calls.paging import DEFAULT_BYTES, DEFAULT_ENTRIES, DEFAULT_PAGES

DEFAULT_MESSAGE_BYTES: Final = 32 * 1024 * 1024

# JSON may spell one byte as `\u0000`, and puts the file into an envelope.
_BYTES_PER_BYTE = 6
_ENVELOPE = 64 * 1024

Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may cost, in bytes, messages, requests and attempts."""

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
    """The largest message that is looked at, raised while a large file is being read."""

    def __init__(self, default: int = DEFAULT_MESSAGE_BYTES) -> None:
        self._default = default
        self._allowed: list[int] = []

    @property
    def current(self) -> int:
        return max((self._default, *self._allowed))

    @contextmanager
    def allowing(self, size: int) -> Generator[None]:
        """Let a message hold a file of `size` bytes, however JSON spells them."""
        allowed = size * _BYTES_PER_BYTE + _ENVELOPE
        self._allowed.append(allowed)
        try:
            yield
        finally:
            self._allowed.remove(allowed)


class TokenBucket:
    """Lets `burst` things pass at once and `per_second` in the long run."""

    def __init__(self, burst: int, per_second: float, *, clock: Clock = time.monotonic) -> None:
        self._burst = burst
        self._per_second = per_second
        self._clock = clock
        self._tokens = float(burst)
        self._filled = clock()

    def take(self, count: int = 1) -> bool:
        """Let `count` things pass, or say that they are too many."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._per_second)
        self._filled = now
        if count > self._tokens:
            return False
        self._tokens -= count
        return True

    def give(self, count: int = 1) -> None:
        """Let `count` more things pass than otherwise: they were asked for."""
        self._tokens = min(self._burst, self._tokens + count)


class Backoff:
    """How long to leave a server alone: longer after each failure.

    Chance has its part in it, so that many hosts do not come back all at once.
    """

    def __init__(
        self,
        base: float = 0.5,
        most: float = 60.0,
        *,
        chance: Callable[[], float] = random.random,
        clock: Clock = time.monotonic,
    ) -> None:
        self._base = base
        self.most = most
        self._chance = chance
        self._clock = clock
        self._failures = 0
        self._until = clock()

    @property
    def failures(self) -> int:
        """How many failures there were in a row."""
        return self._failures

    @property
    def remaining(self) -> float:
        """The seconds until the next attempt; 0 when it may be made now."""
        return max(0.0, self._until - self._clock())

    def failed(self) -> float:
        """Note a failure, and return the seconds to wait."""
        # Beyond this exponent the limit has long been reached, and floats end.
        limit = min(self.most, self._base * 2.0 ** min(self._failures, 64))
        self._failures += 1
        delay = limit * self._chance()
        self._until = self._clock() + delay
        return delay

    def reset(self) -> None:
        """Forget all failures."""
        self._failures = 0
        self._until = self._clock()


class RestartBudget:
    """How often something may be started in a stretch of time, unless a user asks for it."""

    def __init__(self, starts: int = 5, seconds: float = 600.0, *, clock: Clock = time.monotonic) -> None:
        self._starts = starts
        self._seconds = seconds
        self._clock = clock
        self._times: deque[float] = deque(maxlen=starts)

    @property
    def remaining(self) -> float:
        """The seconds until another start is allowed; 0 when it is now."""
        if len(self._times) < self._starts:
            return 0.0
        return max(0.0, self._times[0] + self._seconds - self._clock())

    def take(self) -> None:
        """Note a start."""
        self._times.append(self._clock())

    def forget(self) -> None:
        """Begin anew: someone asked."""
        self._times.clear()
