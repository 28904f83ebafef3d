"""`WorkerMetrics`: the metrics of a server, in memory that all its workers share.

Each worker writes only to its own slot, in one event loop, so no lock is
needed. All workers can read all slots. The counts of a worker that dies stay,
and its replacement continues from them.
"""

import mmap
import os
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

import anyio
from starlette.requests import Request
from starlette.responses import Response

from skillwire.core import SourceError, __version__
from skillwire.server.limits import CloseReason
from skillwire.server.listener import ALIVE_PATH, HEALTH_HEADERS, PLAIN_TEXT, READY_PATH

# The metrics: every series with its labels, and its offset in the slot of a worker.


Outcome: TypeAlias = Literal["ok", "error", "refused", "invalid", "failed", "aborted"]
"""How a request ended.

`error` is a JSON-RPC error with status 200, `refused` is about authorization or
rate limits, `invalid` is any other client error, `failed` is a server error, and
`aborted` means that the client disconnected before the end.
"""

Gauge: TypeAlias = Literal[
    "revision",
    "skills",
    "quarantined",
    "watchers",
    "catalog_lag",
    "catalog_silence",
    "views",
    "sessions",
    "connections",
    "streams",
    "requests",
]
ProcessGauge: TypeAlias = Literal["cpu", "memory", "descriptors", "started"]

OTHER: Final = "other"
STREAM: Final = "stream"

# Each MCP method with a label of its own, and the class of its latency.
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
# Other HTTP routes: pages, and sessions of older clients.
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
ENDINGS: Final = tuple(CloseReason)
ENDING_NUMBERS: Final[Mapping[CloseReason, int]] = {ending: number for number, ending in enumerate(ENDINGS)}

# Upper bounds in seconds, without +Inf.
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, type and help text."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str


REQUESTS: Final = Family(
    "skillwire_requests_total",
    "counter",
    "Requests answered, by MCP method or HTTP route, and outcome.",
)
SECONDS: Final = Family(
    "skillwire_request_seconds", "histogram", "Seconds from the first to the last byte of an answer."
)
BYTES: Final = Family("skillwire_response_bytes_total", "counter", "Bytes of response bodies.")
RELOADED: Final = Family("skillwire_reloads_total", "counter", "Reloads of the configuration, by outcome.")
LIMITED: Final = Family("skillwire_rate_limited_total", "counter", "Requests refused by a rate limit.")
UNLOGGED: Final = Family(
    "skillwire_access_log_dropped_total",
    "counter",
    "Access log lines that were dropped because the output was too slow.",
)
ENDED: Final = Family(
    "skillwire_connections_ended_total",
    "counter",
    "Connections the server closed or refused, by reason.",
)
UP: Final = Family("skillwire_worker_up", "gauge", "Whether the heartbeat of a worker is recent.")
GAUGES: Final[Mapping[Gauge, Family]] = {
    "revision": Family(
        "skillwire_snapshot_revision",
        "gauge",
        "Revision of the snapshot a worker serves; grows with changes.",
    ),
    "skills": Family("skillwire_skills", "gauge", "Skills that are published."),
    "quarantined": Family(
        "skillwire_quarantined", "gauge", "Folders whose skill is invalid and not published."
    ),
    "watchers": Family("skillwire_watchers", "gauge", "Folders that are watched for changes."),
    "catalog_lag": Family(
        "skillwire_catalog_lag_revisions",
        "gauge",
        "Revisions of the catalog that a worker knows of and does not serve yet.",
    ),
    "catalog_silence": Family(
        "skillwire_catalog_silence_seconds",
        "gauge",
        "Seconds since the catalog answered a worker; 0 without a catalog.",
    ),
    "views": Family("skillwire_views", "gauge", "Views in memory: distinct sets of visible skills."),
    "sessions": Family("skillwire_sessions", "gauge", "Sessions of older clients."),
    "connections": Family("skillwire_connections", "gauge", "Open connections."),
    "streams": Family("skillwire_streams", "gauge", "Open event streams."),
    "requests": Family("skillwire_requests_in_progress", "gauge", "Requests in progress."),
}
PROCESS: Final[Mapping[ProcessGauge, Family]] = {
    "cpu": Family("process_cpu_seconds_total", "counter", "Seconds of processor time a worker has used."),
    "memory": Family("process_resident_memory_bytes", "gauge", "Memory a worker holds."),
    "descriptors": Family("process_open_fds", "gauge", "File descriptors a worker has open."),
    "started": Family(
        "process_start_time_seconds", "gauge", "Start time of a worker, in seconds since 1970."
    ),
}

# Offsets in a slot. The words before the first gauge are counters, which outlive the worker.
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
    HEARTBEAT_AT,
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


# Resource usage of this process: processor time, memory, file descriptors.


_STATUS: Final = Path("/proc/self/statm")
_DESCRIPTORS: Final = (Path("/proc/self/fd"), Path("/dev/fd"))
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def process_gauges() -> Mapping[ProcessGauge, float]:
    """Return the current resource usage; values that the system does not provide are left out."""
    found: dict[ProcessGauge, float] = {"cpu": time.process_time()}
    memory = _resident_bytes()
    if memory:
        found["memory"] = memory
    descriptors = _open_descriptors()
    if descriptors:
        found["descriptors"] = descriptors
    return found


def _resident_bytes() -> int:
    try:
        return int(_STATUS.read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def _open_descriptors() -> int:
    for folder in _DESCRIPTORS:
        try:
            return len(os.listdir(folder)) - 1  # Without the descriptor of the listing itself.  # noqa: PTH208
        except OSError:
            continue
    return 0


_SLOT_BYTES: Final = WORDS * 8
_HEARTBEAT_SECONDS = 5.0
_ALIVE_SECONDS = 4 * _HEARTBEAT_SECONDS
# Copied into this module, because lookups here are faster and happen for every request.
_OUTCOMES = len(OUTCOME_NUMBERS)
_CELLS = len(BUCKETS) + 1
_OFFSETS = tuple(
    (REQUESTS_AT + method * _OUTCOMES, BUCKETS_AT + kind * _CELLS, SUMS_AT + kind)
    for method, kind in enumerate(CLASS_NUMBERS)
)


class WorkerMetrics:
    """The slot of one worker, with read access to all slots.

    Without `memory` the process counts for itself alone. `requests` and `streams`
    count what is in progress; other workers see them after a `refresh`.
    """

    def __init__(self, memory: mmap.mmap | None = None, slot: int = 0) -> None:
        self._memory = memory if memory is not None else mmap.mmap(-1, _SLOT_BYTES)
        self.slots = len(self._memory) // _SLOT_BYTES
        self.slot = slot
        self.requests = 0
        self.streams = 0
        mine = memoryview(self._memory)[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES]
        self._counts = mine.cast("Q")
        self._numbers = mine.cast("d")
        for word in range(GAUGES_AT, WORDS):
            self._counts[word] = 0  # The gauges of a previous worker no longer apply.
        self._numbers[PROCESS_NUMBERS["started"]] = time.time()
        self._counts[PID_AT] = os.getpid()
        self.refresh({})

    @staticmethod
    @contextmanager
    def create(slots: int) -> Generator[Path]:
        """Create a file for `slots` workers, with all counts zero; it is deleted when the block ends.

        Raises:
            OSError: No temporary file can be created.
        """
        descriptor, name = tempfile.mkstemp(prefix="skillwire-", suffix=".metrics")
        try:
            with os.fdopen(descriptor, "wb") as file:
                # Not a sparse file: on a full disk, access to a mapped hole kills the process.
                file.write(bytes(slots * _SLOT_BYTES))
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    @classmethod
    def open(cls, path: Path, slot: int) -> "WorkerMetrics":
        """Open a slot of a file that `create` made.

        Raises:
            SourceError: It is not such a file, or has no such slot.
            OSError: It cannot be opened.
        """
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0 or size % _SLOT_BYTES or not 0 <= slot < size // _SLOT_BYTES:
                raise SourceError(f"the metrics file has {size} bytes and no slot {slot}")
            memory = mmap.mmap(file.fileno(), size)
        return cls(memory, slot)

    def count(self, method: int, outcome: Outcome, seconds: float, size: int) -> None:
        """Count a request; `method` is one of `METHOD_NUMBERS`."""
        counts = self._counts
        requests, buckets, sums = _OFFSETS[method]
        counts[requests + OUTCOME_NUMBERS[outcome]] += 1
        counts[buckets + bisect_left(BUCKETS, seconds)] += 1
        counts[BYTES_AT] += size
        self._numbers[sums] += seconds

    def reloaded(self, *, is_good: bool) -> None:
        """Count a reload of the configuration."""
        self._counts[RELOADED_AT + (not is_good)] += 1

    def limited(self) -> None:
        """Count a request that was refused by a rate limit."""
        self._counts[LIMITED_AT] += 1

    def unlogged(self, lines: int) -> None:
        """Count dropped lines of the access log."""
        self._counts[UNLOGGED_AT] += lines

    def ended(self, ending: CloseReason) -> None:
        """Count a connection that the server closed."""
        self._counts[ENDED_AT + ENDING_NUMBERS[ending]] += 1

    def set(self, gauge: Gauge, value: float) -> None:
        """Set the current value of a gauge."""
        self._numbers[GAUGE_NUMBERS[gauge]] = value

    def refresh(self, gauges: Mapping[Gauge, float]) -> None:
        """Update the heartbeat and the gauges of this worker."""
        for gauge, value in gauges.items():
            self.set(gauge, value)
        self.set("requests", self.requests)
        self.set("streams", self.streams)
        for name, value in process_gauges().items():
            self._numbers[PROCESS_NUMBERS[name]] = value
        self._numbers[HEARTBEAT_AT] = time.monotonic()

    async def keep_fresh(self, read: Callable[[], Mapping[Gauge, float]]) -> None:
        """Refresh periodically, so that other workers can read the state of this one; never returns."""
        while True:
            self.refresh(read())
            await anyio.sleep(_HEARTBEAT_SECONDS)

    def mark_stopped(self) -> None:
        """Mark the worker as stopped; its counts stay."""
        self._counts[PID_AT] = 0

    def rows(self) -> list["SlotSnapshot"]:
        """Return a copy of every slot."""
        whole = bytes(self._memory[: self.slots * _SLOT_BYTES])
        return [SlotSnapshot(whole[at : at + _SLOT_BYTES]) for at in range(0, len(whole), _SLOT_BYTES)]


class SlotSnapshot:
    """A copy of a slot: integers in `counts`, floats in `numbers`."""

    def __init__(self, words: bytes) -> None:
        self.counts = memoryview(words).cast("Q")
        self.numbers = memoryview(words).cast("d")

    @property
    def is_taken(self) -> bool:
        """Whether the slot belongs to a worker, alive or not."""
        return self.counts[PID_AT] != 0

    @property
    def is_alive(self) -> bool:
        """Whether the heartbeat of the worker is recent."""
        return self.is_taken and time.monotonic() - self.numbers[HEARTBEAT_AT] < _ALIVE_SECONDS


# The metrics of all workers in the Prometheus text format 0.0.4.


MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_BUILD = Family("skillwire_build_info", "gauge", "Always 1; the label is the running version.")
_CELL_TEXTS = len(BUCKETS) + 1


def exposition(meter: WorkerMetrics) -> bytes:
    """Return every series: counters summed over all workers, and gauges for each worker."""
    rows = meter.rows()
    lines = [
        *_family(_BUILD, [_sample(_BUILD.name, 1, version=__version__)]),
        *_family(REQUESTS, _requests(rows)),
        *_family(SECONDS, _seconds(rows)),
        *_family(BYTES, [_sample(BYTES.name, _total(rows, BYTES_AT))]),
        *_family(RELOADED, _reloads(rows)),
        *_family(LIMITED, [_sample(LIMITED.name, _total(rows, LIMITED_AT))]),
        *_family(UNLOGGED, [_sample(UNLOGGED.name, _total(rows, UNLOGGED_AT))]),
        *_family(ENDED, _ended(rows)),
        *_family(UP, _alive(rows)),
    ]
    for gauge, family in GAUGES.items():
        lines += _family(family, _of_each(family, rows, GAUGE_NUMBERS[gauge]))
    for part, family in PROCESS.items():
        known = [row if row.numbers[PROCESS_NUMBERS[part]] else None for row in rows]
        lines += _family(family, _of_each(family, known, PROCESS_NUMBERS[part]))
    return ("\n".join(lines) + "\n").encode()


def _family(family: Family, samples: Iterable[str]) -> list[str]:
    return [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *samples]


def _sample(name: str, value: float, **labels: str) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {_number(value)}" if pairs else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _total(rows: Sequence[SlotSnapshot], word: int) -> int:
    return sum(row.counts[word] for row in rows)


def _requests(rows: Sequence[SlotSnapshot]) -> Iterator[str]:
    """Yield the samples that are not zero: most methods have few of the outcomes."""
    word = REQUESTS_AT
    for method in METHODS:
        for outcome in OUTCOMES:
            count = _total(rows, word)
            if count:
                yield _sample(REQUESTS.name, count, method=method, outcome=outcome)
            word += 1


def _seconds(rows: Sequence[SlotSnapshot]) -> Iterator[str]:
    name = SECONDS.name
    for number, kind in enumerate(CLASSES):
        first = BUCKETS_AT + number * _CELL_TEXTS
        upto = list(accumulate(_total(rows, first + cell) for cell in range(_CELL_TEXTS)))
        if not upto[-1]:
            continue
        labels: Mapping[str, str] = {"class": kind}
        for bound, count in zip((*map(_number, BUCKETS), "+Inf"), upto, strict=True):
            yield _sample(f"{name}_bucket", count, **labels, le=bound)
        total = sum(row.numbers[SUMS_AT + number] for row in rows)
        yield _sample(f"{name}_sum", total, **labels)
        yield _sample(f"{name}_count", upto[-1], **labels)


def _reloads(rows: Sequence[SlotSnapshot]) -> Iterator[str]:
    for number, outcome in enumerate(RELOADS):
        yield _sample(RELOADED.name, _total(rows, RELOADED_AT + number), outcome=outcome)


def _ended(rows: Sequence[SlotSnapshot]) -> Iterator[str]:
    for number, ending in enumerate(ENDINGS):
        yield _sample(ENDED.name, _total(rows, ENDED_AT + number), reason=ending)


def _alive(rows: Sequence[SlotSnapshot]) -> Iterator[str]:
    for slot, row in enumerate(rows):
        yield _sample(UP.name, int(row.is_alive), worker=str(slot))


def _of_each(family: Family, rows: Sequence[SlotSnapshot | None], word: int) -> Iterator[str]:
    for slot, row in enumerate(rows):
        if row is not None and row.is_alive:
            yield _sample(family.name, row.numbers[word], worker=str(slot))


# Endpoints for supervisors: liveness, readiness and metrics.


METRICS_PATH: Final = "/metrics"
HEALTH_PATHS: Final = frozenset({ALIVE_PATH, READY_PATH})
OPS_PATHS: Final = HEALTH_PATHS | {METRICS_PATH}

_METHODS: Final = ("GET", "HEAD")


class Health:
    """Responses at `OPS_PATHS`. The caller checks who may read `/metrics` (`can_operate`)."""

    def __init__(
        self,
        meter: WorkerMetrics,
        not_ready_reason: Callable[[], str],
        refresh: Callable[[], None],
        catalog_state: Callable[[], str],
    ) -> None:
        """Create the endpoints of one worker.

        `not_ready_reason` returns why the server is not ready, empty when it is ready.
        `refresh` updates the gauges of this worker. `catalog_state` returns which
        revision of a catalog is served, empty without one.
        """
        self._meter = meter
        self._not_ready_reason = not_ready_reason
        self._refresh = refresh
        self._catalog_state = catalog_state

    def respond(self, request: Request) -> Response:
        """Answer a request for one of `OPS_PATHS`."""
        if request.method not in _METHODS:
            return _text_response(405, "method not allowed; use GET or HEAD", allow=", ".join(_METHODS))
        path = request.scope["path"]
        if path == ALIVE_PATH:
            return _text_response(200, "ok")
        if path == READY_PATH:
            reason = self._not_ready_reason()
            if reason:
                return _text_response(503, reason)
            return _text_response(200, "\n".join(filter(None, ("ok", self._catalog_state()))))
        if path == METRICS_PATH:
            self._refresh()
            return Response(exposition(self._meter), headers=HEALTH_HEADERS, media_type=MEDIA_TYPE)
        return _text_response(404, "not found")


def _text_response(status: int, words: str, **headers: str) -> Response:
    return Response(f"{words}\n", status, {**HEALTH_HEADERS, **headers}, media_type=PLAIN_TEXT)
