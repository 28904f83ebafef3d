"""The numbers of a server, as Prometheus's own parser reads them."""

import math
import os
import time
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from skillwire import __version__
from skillwire.core.errors import SourceError
from skillwire.server.limits import CloseReason, ConnectionCounts
from skillwire.server.ops import metrics
from skillwire.server.ops.metrics import METHOD_NUMBERS, OUTCOMES, Outcome, WorkerMetrics, exposition

LISTING = METHOD_NUMBERS["skills/list"]
READING = METHOD_NUMBERS["resources/read"]


def families(meter: WorkerMetrics) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(exposition(meter).decode())}


def value(meter: WorkerMetrics, name: str, **labels: str) -> float | None:
    """Return the one sample with a name and labels, or None."""
    found = [
        sample.value
        for family in families(meter).values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) <= 1
    return found[0] if found else None


def test_requests_are_counted_by_method_and_outcome() -> None:
    meter = WorkerMetrics()

    meter.count(LISTING, "ok", 0.002, 100)
    meter.count(LISTING, "ok", 0.002, 100)
    meter.count(READING, "refused", 0.001, 20)

    samples = {
        (sample.labels["method"], sample.labels["outcome"]): sample.value
        for sample in families(meter)["skillwire_requests"].samples
    }
    assert samples == {("skills/list", "ok"): 2, ("resources/read", "refused"): 1}
    assert value(meter, "skillwire_response_bytes_total") == 220


def test_latencies_are_a_histogram_with_rising_buckets() -> None:
    meter = WorkerMetrics()

    for seconds in (0.0001, 0.0005, 0.003, 60.0):
        meter.count(READING, "ok", seconds, 0)

    buckets = {
        sample.labels["le"]: sample.value
        for sample in families(meter)["skillwire_request_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert buckets["0.0005"] == 2
    assert buckets["0.0025"] == 2
    assert buckets["0.005"] == 3
    assert buckets["10"] == 3
    assert buckets["+Inf"] == 4
    assert value(meter, "skillwire_request_seconds_count", **{"class": "read"}) == 4
    total = value(meter, "skillwire_request_seconds_sum", **{"class": "read"})
    assert total is not None and math.isclose(total, 60.0036)


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(metrics.METHODS) - 1),
            st.sampled_from(OUTCOMES),
            st.floats(0, 1e6),
            st.integers(0, 2**40),
        ),
        max_size=20,
    )
)
def test_whatever_is_counted_the_sums_agree(requests: list[tuple[int, Outcome, float, int]]) -> None:
    meter = WorkerMetrics()

    for request in requests:
        meter.count(*request)

    found = families(meter)
    assert sum(sample.value for sample in found["skillwire_requests"].samples) == len(requests)
    counts = [
        sample.value
        for sample in found["skillwire_request_seconds"].samples
        if sample.name.endswith("_count")
    ]
    assert sum(counts) == len(requests)
    assert value(meter, "skillwire_response_bytes_total") == sum(size for _, _, _, size in requests)


def test_every_family_says_what_it_is() -> None:
    meter = WorkerMetrics()
    meter.count(LISTING, "ok", 0.1, 1)

    lines = exposition(meter).decode().splitlines()

    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    helped = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert names == helped
    assert len(names) == len(set(names))
    assert {family.type for family in families(meter).values()} == {"counter", "gauge", "histogram"}
    assert value(meter, "skillwire_build_info", version=__version__) == 1


def test_connections_that_had_to_be_ended_are_counted_by_reason() -> None:
    meter = WorkerMetrics()
    counts = ConnectionCounts(on_close=meter.ended)

    for ending in (CloseReason.UNREAD, CloseReason.IDLE, CloseReason.UNREAD):
        counts.note(ending)

    found = {
        ending: value(meter, "skillwire_connections_ended_total", reason=ending) for ending in CloseReason
    }
    assert found == {
        ending: {CloseReason.UNREAD: 2, CloseReason.IDLE: 1}.get(ending, 0) for ending in CloseReason
    }


def test_gauges_and_the_process_are_told_for_each_worker() -> None:
    before = time.time()
    meter = WorkerMetrics()

    meter.requests, meter.streams = 3, 2
    meter.refresh({"skills": 12, "quarantined": 1, "revision": 7, "watchers": 2, "views": 4, "sessions": 5})
    meter.set("connections", 9)

    expected = {
        "skillwire_skills": 12,
        "skillwire_quarantined": 1,
        "skillwire_snapshot_revision": 7,
        "skillwire_watchers": 2,
        "skillwire_views": 4,
        "skillwire_sessions": 5,
        "skillwire_connections": 9,
        "skillwire_streams": 2,
        "skillwire_requests_in_progress": 3,
        "skillwire_worker_up": 1,
    }
    assert {name: value(meter, name, worker="0") for name in expected} == expected
    cpu = value(meter, "process_cpu_seconds_total", worker="0")
    assert cpu is not None and 0 < cpu <= time.process_time()
    started = value(meter, "process_start_time_seconds", worker="0")
    assert started is not None and before <= started <= time.time()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only /proc tells what a process uses")
def test_memory_and_descriptors_are_those_of_this_process() -> None:
    meter = WorkerMetrics()
    descriptors = value(meter, "process_open_fds", worker="0")

    opened = [os.dup(0) for _ in range(10)]
    try:
        meter.refresh({})
        more = value(meter, "process_open_fds", worker="0")
    finally:
        for descriptor in opened:
            os.close(descriptor)

    assert descriptors is not None
    assert more == descriptors + 10
    memory = value(meter, "process_resident_memory_bytes", worker="0")
    assert memory is not None and memory > 5_000_000


def test_reloads_limits_and_lost_lines_are_counted() -> None:
    meter = WorkerMetrics()

    meter.reloaded(is_good=True)
    meter.reloaded(is_good=False)
    meter.reloaded(is_good=False)
    meter.limited()
    meter.unlogged(3)

    assert value(meter, "skillwire_reloads_total", outcome="ok") == 1
    assert value(meter, "skillwire_reloads_total", outcome="failed") == 2
    assert value(meter, "skillwire_rate_limited_total") == 1
    assert value(meter, "skillwire_access_log_dropped_total") == 3


def test_every_worker_answers_for_all_of_them() -> None:
    with WorkerMetrics.create(3) as path:
        first, second = WorkerMetrics.open(path, 0), WorkerMetrics.open(path, 1)

        first.count(LISTING, "ok", 0.1, 10)
        second.count(LISTING, "ok", 0.1, 10)
        second.refresh({"skills": 5})

        assert exposition(first) == exposition(second)
        assert value(first, "skillwire_requests_total", method="skills/list", outcome="ok") == 2
        ups = [value(first, "skillwire_worker_up", worker=str(slot)) for slot in range(3)]
        assert ups == [1, 1, 0]
        skills = [value(first, "skillwire_skills", worker=str(slot)) for slot in range(3)]
        assert skills == [0, 5, None]


def test_a_successor_goes_on_with_the_counts_and_forgets_what_was_open() -> None:
    with WorkerMetrics.create(2) as path:
        watcher, dead = WorkerMetrics.open(path, 0), WorkerMetrics.open(path, 1)
        dead.streams = 9
        dead.refresh({"sessions": 4})
        dead.count(LISTING, "ok", 0.1, 10)

        successor = WorkerMetrics.open(path, 1)
        successor.count(LISTING, "ok", 0.1, 10)

        assert value(watcher, "skillwire_requests_total", method="skills/list", outcome="ok") == 2
        assert value(watcher, "skillwire_sessions", worker="1") == 0
        assert value(watcher, "skillwire_streams", worker="1") == 0


def test_a_worker_that_left_is_down_and_its_counts_stay() -> None:
    with WorkerMetrics.create(2) as path:
        watcher, leaving = WorkerMetrics.open(path, 0), WorkerMetrics.open(path, 1)
        leaving.count(LISTING, "ok", 0.1, 10)

        leaving.mark_stopped()

        assert value(watcher, "skillwire_worker_up", worker="1") == 0
        assert value(watcher, "skillwire_skills", worker="1") is None
        assert value(watcher, "skillwire_requests_total", method="skills/list", outcome="ok") == 1


def test_a_worker_that_shows_no_life_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = WorkerMetrics()
    now = time.monotonic()

    monkeypatch.setattr(time, "monotonic", lambda: now + 60)

    assert value(meter, "skillwire_worker_up", worker="0") == 0
    assert value(meter, "skillwire_skills", worker="0") is None


async def test_numbers_are_kept_fresh_while_the_server_runs() -> None:
    meter = WorkerMetrics()
    asked = anyio.Event()

    def read() -> dict[metrics.Gauge, float]:
        asked.set()
        return {"skills": 3}

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(meter.keep_fresh, read)
            await asked.wait()
            group.cancel_scope.cancel()

    assert value(meter, "skillwire_skills", worker="0") == 3


def test_the_file_is_private_and_gone_at_the_end() -> None:
    with WorkerMetrics.create(4) as path:
        assert path.stat().st_mode & 0o077 == 0
        assert WorkerMetrics.open(path, 3).slots == 4

    assert not path.exists()


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_that_is_not_there_cannot_be_had(slot: int) -> None:
    with WorkerMetrics.create(2) as path, pytest.raises(SourceError):
        WorkerMetrics.open(path, slot)


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_another_file_is_not_taken_for_one_of_ours(tmp_path: Path, size: int) -> None:
    path = tmp_path / "other"
    path.write_bytes(bytes(size))

    with pytest.raises(SourceError):
        WorkerMetrics.open(path, 0)
