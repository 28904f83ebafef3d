"""`Rates`: how fast each caller may ask."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from skillwire.server.access.settings import Rate

MOST_CALLERS: Final = 10_000


class Rates:
    """A bucket for each caller, which holds `rate.burst` requests and fills up by `rate.per_second`.

    At most `most` buckets are kept; the one not used for longest goes first,
    which is a full one unless that many callers are busy at once.
    """

    def __init__(
        self, rate: Rate, *, most: int = MOST_CALLERS, ticks: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._most = most
        self._ticks = ticks
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str) -> float:
        """Count one request of a caller: 0 when it may be answered, else the seconds until one may.

        A request that is refused takes nothing out of the bucket.
        """
        now = self._ticks()
        held, since = self._buckets.get(name, (float(self._rate.burst), now))
        held = min(self._rate.burst, held + max(0.0, now - since) * self._rate.per_second)
        wait = 0.0 if held >= 1 else (1 - held) / self._rate.per_second
        self._buckets[name] = (held if wait else held - 1, now)
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return wait
