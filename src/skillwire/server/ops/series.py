"""What is counted: every series with its labels, and where its number stands in a worker's slot.

A slot is a row of eight-byte words. The tables here decide which word means
what, so all processes of one server must have the same tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal, TypeAlias, get_args

from skillwire.server.protocol.limits import Ending

Outcome: TypeAlias = Literal["ok", "error", "refused", "invalid", "failed", "aborted"]
"""How a request ended.

`error` is an error of the protocol in an answer that HTTP calls good, `refused`
a matter of who asks or how often, `invalid` any other fault of the client,
`failed` one of ours, and `aborted` was left by the client before its end.
"""

Gauge: TypeAlias = Literal[
    "revision",
    "skills",
    "quarantined",
    "watchers",
    "views",
    "sessions",
    "connections",
    "streams",
    "requests",
]
ProcessGauge: TypeAlias = Literal["cpu", "memory", "descriptors", "started"]

OTHER: Final = "other"
STREAM: Final = "stream"

# Each MCP method that is told apart, and the class its latency is counted in.
_MCP: Final[Mapping[str, str]] = {
    "initialize": "session",
    "notifications/initialized": "session",
    "notifications/cancelled": "session",
    "ping": "session",
    "server/discover": "session",
    "logging/setLevel": "session",
    "skills/list": "list",
    "resources/list": "list",
    "resources/templates/list": "list",
    "prompts/list": "list",
    "tools/list": "list",
    "skills/get": "read",
    "skills/read": "read",
    "skills/read_reference": "read",
    "resources/read": "read",
    "resources/directory/read": "read",
    "prompts/get": "read",
    "completion/complete": "read",
    "tools/call": "call",
    "skills/execute": "call",
    "resources/subscribe": "session",
    "resources/unsubscribe": "session",
    "subscriptions/listen": STREAM,
}
# What else there is to ask for over HTTP: pages, and what older clients do with their sessions.
_ROUTES: Final[Mapping[str, str]] = {
    OTHER: OTHER,
    STREAM: STREAM,
    "end-session": "session",
    "page": "page",
    "health": "health",
    "metrics": "health",
    "well-known": "page",
}
MCP_METHODS: Final = tuple(_MCP)
METHODS: Final = (*_MCP, *_ROUTES)
METHOD_NUMBERS: Final[Mapping[str, int]] = {method: number for number, method in enumerate(METHODS)}
CLASSES: Final = tuple(dict.fromkeys((*_MCP.values(), *_ROUTES.values())))
CLASS_NUMBERS: Final = tuple(CLASSES.index(one) for one in (*_MCP.values(), *_ROUTES.values()))
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
OUTCOME_NUMBERS: Final[Mapping[str, int]] = {outcome: number for number, outcome in enumerate(OUTCOMES)}
RELOADS: Final = ("ok", "failed")
ENDINGS: Final = tuple(Ending)
ENDING_NUMBERS: Final[Mapping[Ending, int]] = {ending: number for number, ending in enumerate(ENDINGS)}

# Seconds. The last class of all, for everything longer, needs no number.
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, what it counts, and how a reader should take it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str


REQUESTS: Final = Family(
    "skillwire_requests_total",
    "counter",
    "Requests answered, by MCP method or HTTP route, and how they ended.",
)
SECONDS: Final = Family(
    "skillwire_request_seconds", "histogram", "Seconds from the first to the last byte of an answer."
)
BYTES: Final = Family("skillwire_response_bytes_total", "counter", "Bytes of response bodies.")
RELOADED: Final = Family(
    "skillwire_reloads_total", "counter", "Times the configuration was read again, and how that ended."
)
LIMITED: Final = Family(
    "skillwire_rate_limited_total", "counter", "Requests refused because their caller sent too many."
)
UNLOGGED: Final = Family(
    "skillwire_access_log_dropped_total", "counter", "Lines of the access log that nobody took in time."
)
ENDED: Final = Family(
    "skillwire_connections_ended_total",
    "counter",
    "Connections the server ended itself, or refused something on, and why.",
)
UP: Final = Family("skillwire_worker_up", "gauge", "Whether a worker has lately shown that it is alive.")
GAUGES: Final[Mapping[Gauge, Family]] = {
    "revision": Family(
        "skillwire_snapshot_revision", "gauge", "Number of the snapshot a worker serves; grows with changes."
    ),
    "skills": Family("skillwire_skills", "gauge", "Skills that are published."),
    "quarantined": Family("skillwire_quarantined", "gauge", "Places that should hold a skill and do not."),
    "watchers": Family("skillwire_watchers", "gauge", "Folders that are watched for changes."),
    "views": Family("skillwire_views", "gauge", "Different sets of skills that callers may see, in memory."),
    "sessions": Family("skillwire_sessions", "gauge", "Sessions of older clients."),
    "connections": Family("skillwire_connections", "gauge", "Connections that are open."),
    "streams": Family("skillwire_streams", "gauge", "Event streams that are open."),
    "requests": Family("skillwire_requests_in_progress", "gauge", "Requests that are being answered."),
}
PROCESS: Final[Mapping[ProcessGauge, Family]] = {
    "cpu": Family("process_cpu_seconds_total", "counter", "Seconds of processor time a worker has used."),
    "memory": Family("process_resident_memory_bytes", "gauge", "Memory a worker holds."),
    "descriptors": Family("process_open_fds", "gauge", "File descriptors a worker has open."),
    "started": Family("process_start_time_seconds", "gauge", "When a worker began, in seconds since 1970."),
}

# The words of a slot, in order. Those before the first gauge are counts, which outlive the worker.
(
    REQUESTS_AT,
    BUCKETS_AT,
    SUMS_AT,
    BYTES_AT,
    RELOADED_AT,
    LIMITED_AT,
    UNLOGGED_AT,
    ENDED_AT,
    GAUGES_AT,
    PROCESS_AT,
    BEAT_AT,
    PID_AT,
    WORDS,
) = accumulate(
    (
        len(METHODS) * len(OUTCOMES),
        len(CLASSES) * (len(BUCKETS) + 1),
        len(CLASSES),
        1,
        len(RELOADS),
        1,
        1,
        len(ENDINGS),
        len(GAUGES),
        len(PROCESS),
        1,
        1,
    ),
    initial=0,
)
GAUGE_NUMBERS: Final[Mapping[Gauge, int]] = {gauge: GAUGES_AT + n for n, gauge in enumerate(GAUGES)}
PROCESS_NUMBERS: Final[Mapping[ProcessGauge, int]] = {one: PROCESS_AT + n for n, one in enumerate(PROCESS)}
