"""`TokenBucket`: limits a rate, of the messages of a server or of the requests of a caller."""

import math
import time
from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]


class TokenBucket:
    """A bucket that allows `burst` items at once and `per_second` in the long run."""

    __slots__ = ("_burst", "_clock", "_filled", "_per_second", "_tokens")

    def __init__(self, burst: float, per_second: float, *, clock: Clock = time.monotonic) -> None:
        self._burst = burst
        self._per_second = per_second
        self._clock = clock
        self._tokens = float(burst)
        self._filled = clock()

    @property
    def is_full(self) -> bool:
        """Whether the bucket equals a new one."""
        return self._refill() >= self._burst

    def take(self, count: float = 1) -> float:
        """Take `count` tokens; return 0 when there were enough, else the seconds until there are.

        A call that is refused takes nothing.
        """
        missing = count - self._refill()
        if missing > 0:
            return missing / self._per_second if self._per_second else math.inf
        self._tokens -= count
        return 0.0

    def add(self, count: float = 1) -> None:
        """Add `count` tokens, for items that were requested."""
        self._tokens = min(self._burst, self._tokens + count)

    def _refill(self) -> float:
        now = self._clock()
        passed = max(now - self._filled, 0.0)  # A clock may go back.
        self._tokens = min(self._burst, self._tokens + passed * self._per_second)
        self._filled = now
        return self._tokens
