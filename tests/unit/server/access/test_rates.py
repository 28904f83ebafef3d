"""Rates: bursts, refilling, and memory that stays bounded."""

import time

import pytest

from skillwire.server.access.admission import RateLimiter
from skillwire.server.access.settings import Rate


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_answered_and_then_only_as_fast_as_the_bucket_fills() -> None:
    clock = Clock()
    rates = RateLimiter(Rate(2, 3), ticks=clock)

    first = [rates.take("a") for _ in range(4)]
    clock.now += 0.5
    second = [rates.take("a") for _ in range(2)]
    clock.now += 1000
    third = [rates.take("a") for _ in range(4)]

    assert first == [0, 0, 0, 0.5]
    assert second == [0, 0.5]
    assert third == [0, 0, 0, 0.5]


def test_whoever_waits_as_long_as_told_is_answered() -> None:
    clock = Clock()
    rates = RateLimiter(Rate(0.3, 1), ticks=clock)
    rates.take("a")
    clock.now += 1

    clock.now += rates.take("a") + 1e-6

    assert rates.take("a") == 0


def test_one_caller_takes_nothing_from_another() -> None:
    rates = RateLimiter(Rate(1, 1), ticks=Clock())

    assert [rates.take(name) for name in ("a", "b", "a")] == [0, 0, 1]


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    clock = Clock()
    rates = RateLimiter(Rate(1, 1), ticks=clock)
    rates.take("a")
    clock.now -= 50

    assert rates.take("a") == pytest.approx(1)


def test_many_callers_do_not_fill_the_memory_and_busy_ones_are_kept() -> None:
    rates = RateLimiter(Rate(1, 1), most=10, ticks=Clock())
    for number in range(1000):
        rates.take("busy")
        rates.take(f"stranger {number}")

    assert len(rates) == 10
    assert rates.take("busy") == 1


def test_a_flood_of_others_does_not_refill_a_bucket() -> None:
    clock = Clock()
    rates = RateLimiter(Rate(1, 5), most=10, ticks=clock)
    drained = [rates.take("busy") for _ in range(6)]

    for number in range(10_000):
        rates.take(f"stranger {number}")

    assert drained == [0, 0, 0, 0, 0, 1]
    assert rates.take("busy") == 1
    assert len(rates) == 10


def test_who_comes_during_a_flood_does_not_get_a_second_bucket_after_it() -> None:
    clock = Clock()
    rates = RateLimiter(Rate(1, 5), most=10, ticks=clock)
    for number in range(10):
        for _ in range(5):
            rates.take(f"stranger {number}")

    during = [rates.take("late") for _ in range(6)]
    clock.now += 5.5
    for number in range(9):
        rates.take(f"other {number}")
    after = [rates.take("late") for _ in range(6)]

    assert during == [0, 0, 0, 0, 0, 1]
    assert after == [0, 0, 0, 0, 0, 1]


def test_buckets_that_are_full_again_make_room_for_newcomers() -> None:
    clock = Clock()
    rates = RateLimiter(Rate(1, 1), most=10, ticks=clock)
    for number in range(10):
        rates.take(f"early {number}")
    clock.now += 2

    assert [rates.take(f"late {number}") for number in range(10)] == [0] * 10
    assert len(rates) == 10


def test_a_flood_costs_no_more_than_ordinary_requests() -> None:
    clock = Clock()
    rates = RateLimiter(Rate(1, 1), ticks=clock)
    started = time.process_time()
    for number in range(200_000):
        clock.now += 0.0001
        rates.take(f"stranger {number}")

    assert time.process_time() - started < 20
