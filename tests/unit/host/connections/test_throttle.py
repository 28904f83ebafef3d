"""Caps, buckets, rests and budgets, by a clock that stands still unless it is moved."""

import math

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import TokenBucket
from skillwire.host.calls.session import (
    DEFAULT_MESSAGE_BYTES,
    Backoff,
    ConnectionLimits,
    Deadlines,
    MessageCap,
    RestartBudget,
    ServerLink,
)
from skillwire.host.model.errors import FloodError, UnavailableError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# The cap on messages


@pytest.mark.requirement("LIM-06")
def test_the_cap_is_raised_while_a_large_file_is_read() -> None:
    cap = MessageCap()
    size = 16 * 1024 * 1024

    with cap.allowing(size), cap.allowing(100):
        raised = cap.current

    assert raised >= 6 * size
    assert cap.current == DEFAULT_MESSAGE_BYTES


def test_a_small_file_does_not_lower_the_cap() -> None:
    cap = MessageCap(1000)

    with cap.allowing(0):
        assert cap.current >= 1000


def test_two_reads_that_end_in_any_order_leave_the_cap_as_it_was() -> None:
    cap = MessageCap(10)
    first, second = cap.allowing(1_000_000), cap.allowing(1_000_000)

    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)

    assert cap.current > 6_000_000
    second.__exit__(None, None, None)
    assert cap.current == 10


# The bucket


def test_a_bucket_lets_a_burst_pass_and_then_a_trickle() -> None:
    clock = Clock()
    bucket = TokenBucket(10, 2.0, clock=clock)

    assert [bucket.take() for _ in range(11)] == [0.0] * 10 + [0.5]
    clock.now += 0.5
    assert [bucket.take(), bucket.take()] == [0.0, 0.5]
    clock.now += 1000
    assert [bucket.take(10), bucket.take()] == [0.0, 0.5]


def test_what_was_asked_for_passes_on_top() -> None:
    bucket = TokenBucket(3, 0.0, clock=Clock())

    assert [bucket.take() for _ in range(3)] == [0.0] * 3
    for _ in range(1000):
        bucket.add()
        assert not bucket.take()
    assert bucket.take() == math.inf


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 20)), max_size=50))
def test_a_bucket_never_lets_more_pass_than_it_should(moves: list[tuple[float, int]]) -> None:
    clock = Clock()
    bucket = TokenBucket(10, 3.0, clock=clock)
    passed = 0
    for seconds, count in moves:
        clock.now += seconds
        passed += 0 if bucket.take(count) else count

    assert passed <= 10 + 3.0 * (clock.now - 1000) + 1e-6


# The rest


def test_rests_grow_to_a_limit_and_chance_shortens_them() -> None:
    clock = Clock()
    longest = Backoff(0.5, 60, jitter=lambda: 1.0, clock=clock)
    shorter = Backoff(0.5, 60, jitter=lambda: 0.25, clock=clock)

    assert [longest.record_failure() for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert [shorter.record_failure() for _ in range(3)] == [0.125, 0.25, 0.5]


def test_a_rest_is_over_when_its_time_has_passed() -> None:
    clock = Clock()
    backoff = Backoff(0.5, 60, jitter=lambda: 1.0, clock=clock)
    assert backoff.remaining == 0

    backoff.record_failure()

    assert backoff.remaining == 0.5
    clock.now += 0.4
    assert 0 < backoff.remaining < 0.2
    clock.now += 1
    assert backoff.remaining == 0


def test_forgotten_failures_do_not_lengthen_the_next_rest() -> None:
    backoff = Backoff(0.5, 60, jitter=lambda: 1.0, clock=Clock())
    for _ in range(5):
        backoff.record_failure()

    backoff.reset()

    assert (backoff.remaining, backoff.failures, backoff.record_failure()) == (0, 0, 0.5)


def test_any_number_of_failures_can_be_counted() -> None:
    backoff = Backoff(0.5, 60, jitter=lambda: 1.0, clock=Clock())

    assert [backoff.record_failure() for _ in range(5000)][-1] == 60


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 100))
def test_a_rest_is_never_longer_than_the_limit(jitter: float, failures: int) -> None:
    backoff = Backoff(0.5, 60, jitter=lambda: jitter, clock=Clock())

    assert all(0 <= backoff.record_failure() <= 60 for _ in range(failures))


# The budget


def test_a_budget_allows_a_few_starts_in_a_window_that_moves() -> None:
    clock = Clock()
    budget = RestartBudget(3, 600, clock=clock)
    for seconds in (0, 100, 100):
        clock.now += seconds
        assert budget.remaining == 0
        budget.record()

    assert budget.remaining == 400
    clock.now += 400
    assert budget.remaining == 0
    budget.record()
    assert budget.remaining == 100


def test_a_user_who_asks_gets_a_new_budget() -> None:
    budget = RestartBudget(1, 600, clock=Clock())
    budget.record()
    assert budget.remaining == 600

    budget.reset()

    assert budget.remaining == 0


# The link that uses them


@pytest.mark.anyio
async def test_a_link_ends_once_with_the_first_reason() -> None:
    ended: list[ServerLink] = []
    link = ServerLink(ConnectionLimits(message_burst=2, messages_per_second=0), ended.append)

    assert [link.admit(), link.admit(), link.admit(), link.admit()] == [True, True, False, False]
    link.end(UnavailableError("later"))

    assert isinstance(link.failure, FloodError)
    assert ended == [link]
    assert link.is_over and not link.is_ready


# Clocks that stand still


@pytest.mark.anyio
async def test_a_clock_runs_out() -> None:
    with Deadlines().limit(0.05) as clock:
        await anyio.sleep(5)

    assert clock.cancelled_caught


@pytest.mark.anyio
async def test_a_clock_stands_still_while_a_person_is_asked_and_runs_on_afterwards() -> None:
    patience = Deadlines()
    start = anyio.current_time()

    with patience.limit(0.2) as before:
        with patience.pause(60), patience.limit(0.2) as during:
            await anyio.sleep(0.3)
        await anyio.sleep(5)

    assert not during.cancelled_caught
    assert before.cancelled_caught
    assert 0.45 < anyio.current_time() - start < 3
