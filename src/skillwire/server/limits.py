"""Limits of messages, pages, HTTP connections and memory, and counts of closed connections by reason."""

import gc
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from skillwire.sources.background import QUIET_SECONDS, LogFilter

if sys.platform != "win32":
    import resource

MAX_MESSAGE_BYTES: Final = 256 * 1024
"""The maximum size of a message, to which a server that runs scripts adds the size of their arguments."""
DEFAULT_PAGE_SIZE: Final = 250
"""Skills per page: far below the limit in bytes, and enough for few requests per catalog."""

# Other file descriptors: skill files, the search index, pipes of scripts, the event loop.
_RESERVED_FILES: Final = 512
_FEWEST_CONNECTIONS: Final = 16

logger = logging.getLogger(__name__)


class CloseReason(StrEnum):
    """Why the server closed a connection or refused a request."""

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


# Responses to the client, if one can be sent.
RESPONSES: Final[Mapping[CloseReason, tuple[int, str]]] = {
    CloseReason.MALFORMED: (400, "This is not a valid HTTP request"),
    CloseReason.LONG_URL: (414, "The URL is too long"),
    CloseReason.LARGE_HEAD: (431, "The request has too many headers, or too large ones"),
    CloseReason.SLOW_HEAD: (408, "The headers of the request took too long"),
    CloseReason.LARGE_BODY: (413, "The body of the request is too large"),
    CloseReason.SLOW_BODY: (408, "The body of the request took too long"),
    CloseReason.PIPELINED: (429, "Too many requests were sent without waiting for answers"),
    CloseReason.FULL: (503, "There are too many connections"),
}

# Texts for the log.
_LOG_TEXTS: Final[Mapping[CloseReason, str]] = {
    CloseReason.MALFORMED: "refused a request that is not valid HTTP",
    CloseReason.LONG_URL: "refused a URL that is too long",
    CloseReason.LARGE_HEAD: "refused headers that are too many or too large",
    CloseReason.SLOW_HEAD: "closed a connection whose headers took too long",
    CloseReason.LARGE_BODY: "refused a request body that is too large",
    CloseReason.SLOW_BODY: "closed a connection whose request body took too long",
    CloseReason.PIPELINED: "refused too many pipelined requests",
    CloseReason.UNREAD: "closed a connection whose client does not read the response",
    CloseReason.CROWDED: "closed connections of slow readers, because too many bytes are unsent",
    CloseReason.FULL: "refused a connection, because there are too many",
    CloseReason.EVICTED: "closed idle connections to make room for new ones",
}


@dataclass(frozen=True, slots=True)
class HttpConnectionLimits:
    """Limits of one connection, and of all connections of this process together.

    `head_bytes` counts the request line and all headers. `body_bytes` limits the
    declared length; a chunked body may take twice as much on the wire, because of
    its framing. A body has to be complete within `body_seconds`.

    A connection may be silent for `silent_seconds` before its first request and
    for `idle_seconds` after a response. The latter is longer than the keep-alive
    time of common proxies and clients, so that they close first and no request
    arrives on a connection that is being closed here.

    A response of which nothing is read for `unread_seconds` is dropped. When more
    than `waiting_bytes` of all responses are unsent, the connections that have
    waited longest are closed, after at least `crowded_seconds`; with twice as many
    bytes, at once.
    """

    head_bytes: int = 64 * 1024
    header_count: int = 100
    url_bytes: int = 8 * 1024
    head_seconds: float = 15.0
    silent_seconds: float = 15.0
    idle_seconds: float = 75.0
    body_bytes: int = MAX_MESSAGE_BYTES
    body_seconds: float = 60.0
    pipelined: int = 16
    unread_seconds: float = 60.0
    waiting_bytes: int = 256 * 1024 * 1024
    crowded_seconds: float = 1.0
    linger_seconds: float = 2.0
    connections: int = 10_000

    @property
    def check_seconds(self) -> float:
        """The interval between checks of a connection: no longer than any time limit."""
        shortest = min(self.head_seconds, self.silent_seconds, self.body_seconds, self.idle_seconds)
        return min(shortest, self.unread_seconds / 4)


@dataclass(slots=True)
class ConnectionCounts:
    """Counts of opened and closed connections, and of those closed by the server, by reason."""

    opened: int = 0
    closed: int = 0
    by_reason: Counter[CloseReason] = field(default_factory=Counter[CloseReason])
    on_close: Callable[[CloseReason], None] = lambda reason: None
    warnings: LogFilter = field(default_factory=lambda: LogFilter(QUIET_SECONDS))

    @property
    def open(self) -> int:
        """The number of open connections."""
        return self.opened - self.closed

    def note(self, reason: CloseReason) -> None:
        """Count a reason, and log it at most once a minute."""
        self.by_reason[reason] += 1
        self.on_close(reason)
        text = _LOG_TEXTS.get(reason)
        if text is not None and self.warnings.admits(reason):
            logger.warning("%s (%s: %d so far)", text, reason, self.by_reason[reason])


def raise_open_file_limit(connections: int) -> int:
    """Raise the limit of open files for `connections`, and return how many connections it allows.

    The limit is raised no further than needed: child processes inherit it, and
    some programs iterate over all possible descriptors.
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
            pass  # Some systems refuse their own hard limit; then the current limit stays.
    if not _is_less(soft, needed):
        return connections
    # With very few files, at most half of them are reserved.
    room = max(soft - _RESERVED_FILES, soft // 2, _FEWEST_CONNECTIONS)
    logger.warning("only %d connections instead of %d: raise the limit of open files", room, connections)
    return room


def _is_less(limit: int, needed: int) -> bool:
    return sys.platform != "win32" and limit != resource.RLIM_INFINITY and limit < needed


# Memory settings of a serving process: malloc arenas and the garbage collector.


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_ANSWER_BYTES = 4 * 1024 * 1024


def limit_malloc_arenas() -> None:
    """Limit glibc to one malloc arena, and keep the memory of large answers.

    By default glibc gives each thread its own arena, so memory that a scan in a
    worker thread frees cannot be reused by other threads. Serving allocates too
    little for contention. Freed memory of large answers is not returned to the
    system: allocating it again would cost more than writing the answer.
    """
    if sys.platform == "linux":
        # Imported here because it takes 2 ms, and the first answer over stdio must not wait for it.
        import ctypes

        # Other C libraries have no `mallopt`.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 1)
            mallopt(_M_MMAP_THRESHOLD, _LARGE_ANSWER_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _LARGE_ANSWER_BYTES)


def freeze_gc() -> None:
    """Exclude all current objects from garbage collection; called once the skills are open.

    A large catalog has many objects and no cycles. A full collection would
    traverse all of them and delay a request.
    """
    gc.collect()
    gc.freeze()
