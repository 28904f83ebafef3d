"""What a connection may cost: the limits, why connections were ended, and how often."""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

if sys.platform != "win32":
    import resource

# Descriptors that are no connections: skills being read, the index, pipes of scripts, the event loop.
_RESERVED_FILES: Final = 512
_FEWEST_CONNECTIONS: Final = 16
_QUIET_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)


class Ending(StrEnum):
    """Why the server ended a connection, or refused what it was asked on one."""

    MALFORMED = "malformed"
    LONG_URL = "long-url"
    LARGE_HEAD = "large-head"
    SLOW_HEAD = "slow-head"
    SILENT = "silent"
    IDLE = "idle"
    LARGE_BODY = "large-body"
    SLOW_BODY = "slow-body"
    PIPELINED = "pipelined"
    UNREAD = "unread"
    CROWDED = "crowded"
    FULL = "full"
    EVICTED = "evicted"


# What the client is told, where there is still a way to tell it.
ANSWERS: Final[Mapping[Ending, tuple[int, str]]] = {
    Ending.MALFORMED: (400, "This is not a valid HTTP request"),
    Ending.LONG_URL: (414, "The URL is too long"),
    Ending.LARGE_HEAD: (431, "The request has too many headers, or too large ones"),
    Ending.SLOW_HEAD: (408, "The headers of the request took too long"),
    Ending.LARGE_BODY: (413, "The body of the request is too large"),
    Ending.SLOW_BODY: (408, "The body of the request took too long"),
    Ending.PIPELINED: (429, "Too many requests were sent without waiting for answers"),
    Ending.FULL: (503, "There are too many connections"),
}

# What the operator is told.
_WORDS: Final[Mapping[Ending, str]] = {
    Ending.MALFORMED: "refused what is not valid HTTP",
    Ending.LONG_URL: "refused a URL that is too long",
    Ending.LARGE_HEAD: "refused headers that are too many or too large",
    Ending.SLOW_HEAD: "hung up on a client whose headers took too long",
    Ending.LARGE_BODY: "refused a request body that is too large",
    Ending.SLOW_BODY: "hung up on a client whose request body took too long",
    Ending.PIPELINED: "refused requests that did not wait for answers",
    Ending.UNREAD: "hung up on a client that does not read its answer",
    Ending.CROWDED: "hung up on slow readers, because too many bytes wait to be read",
    Ending.FULL: "refused a connection, because there are too many",
    Ending.EVICTED: "closed idle connections to make room for new ones",
}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may take, and all of them together in this process.

    `head_bytes` counts the request line and all headers. `body_bytes` is what
    may be declared; what comes in chunks may be twice as much on the wire, for
    the sake of its framing. A body has to be complete within `body_seconds`.

    A connection may be silent for `silent_seconds` before its first request and
    for `idle_seconds` after an answer. The latter is longer than common proxies
    and clients keep connections for use, so that it is they who close first: a
    request never meets a connection that is just being closed here.

    An answer of which nothing is taken for `unread_seconds` is given up. When
    more than `waiting_bytes` of answers wait to be read in all, the readers that
    have made the server wait longest are hung up on, once that was
    `crowded_seconds`; with twice as many bytes waiting, at once.
    """

    head_bytes: int = 64 * 1024
    header_count: int = 100
    url_bytes: int = 8 * 1024
    head_seconds: float = 15.0
    silent_seconds: float = 15.0
    idle_seconds: float = 75.0
    body_bytes: int = 4 * 1024 * 1024
    body_seconds: float = 60.0
    pipelined: int = 16
    unread_seconds: float = 60.0
    waiting_bytes: int = 256 * 1024 * 1024
    crowded_seconds: float = 1.0
    linger_seconds: float = 2.0
    connections: int = 10_000

    @property
    def look_seconds(self) -> float:
        """How often each connection is looked at: no limit in time is shorter."""
        shortest = min(self.head_seconds, self.silent_seconds, self.body_seconds, self.idle_seconds)
        return min(shortest, self.unread_seconds / 4)


@dataclass(slots=True)
class ConnectionCounts:
    """How many connections there were and are, and why those were ended that had to be."""

    opened: int = 0
    closed: int = 0
    endings: Counter[Ending] = field(default_factory=Counter[Ending])
    on_end: Callable[[Ending], None] = lambda ending: None
    clock: Callable[[], float] = time.monotonic
    _said: dict[Ending, float] = field(default_factory=dict[Ending, float])

    @property
    def open(self) -> int:
        """How many connections are open now."""
        return self.opened - self.closed

    def note(self, ending: Ending) -> None:
        """Count an ending; say so in the log, but of each kind no more than once a minute."""
        self.endings[ending] += 1
        self.on_end(ending)
        words = _WORDS.get(ending)
        now = self.clock()
        if words is None or now - self._said.get(ending, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return
        self._said[ending] = now
        logger.warning("%s (%s: %d so far)", words, ending, self.endings[ending])


def room_for(connections: int) -> int:
    """Return how many connections this process can hold, after asking for as many files as they need.

    The limit is raised to what is needed and no further: programs started from
    here inherit it, and some of them go through all descriptors there could be.
    """
    if sys.platform == "win32":
        return connections
    needed = connections + _RESERVED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _is_less(soft, needed):
        wanted = hard if _is_less(hard, needed) else needed
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError):
            pass  # Some systems promise more than they give; then what there is must do.
    if not _is_less(soft, needed):
        return connections
    # A process that may open very few files still shares them fairly between skills and clients.
    room = max(soft - _RESERVED_FILES, soft // 2, _FEWEST_CONNECTIONS)
    logger.warning("room for %d connections instead of %d: raise the limit of open files", room, connections)
    return room


def _is_less(limit: int, needed: int) -> bool:
    return sys.platform != "win32" and limit != resource.RLIM_INFINITY and limit < needed
