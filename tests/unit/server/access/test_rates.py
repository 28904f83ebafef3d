"""Rates: bursts, refilling, and memory that stays bounded."""

import pytest

from skillwire.server.access.rates import Rates
from skillwire.server.access.settings import Rate


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_answered_and_then_only_as_fast_as_the_bucket_fills() -> None:
    clock = Clock()
    rates = Rates(Rate(2, 3), ticks=clock)

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
    rates = Rates(Rate(0.3, 1), ticks=clock)
    rates.take("a")
    clock.now += 1

    clock.now += rates.take("a") + 1e-6

    assert rates.take("a") == 0


def test_one_caller_takes_nothing_from_another() -> None:
    rates = Rates(Rate(1, 1), ticks=Clock())

    assert [rates.take(name) for name in ("a", "b", "a")] == [0, 0, 1]


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    clock = Clock()
    rates = Rates(Rate(1, 1), ticks=clock)
    rates.take("a")
    clock.now -= 50

    assert rates.take("a") == pytest.approx(1)


def test_many_callers_do_not_fill_the_memory_and_busy_ones_are_kept() -> None:
    rates = Rates(Rate(1, 1), most=10, ticks=Clock())
    for number in range(1000):
        rates.take("busy")
        rates.take(f"stranger {number}")

    assert len(rates) == 10
    assert rates.take("busy") == 1
