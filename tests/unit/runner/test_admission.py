"""How many runs are admitted at once, and how much memory they may hold together."""

import json
import sys
from contextlib import ExitStack

import pytest

from skillwire.core.errors import RunnerBusyError
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.interface import ScriptRun
from skillwire.runner.preparation import RunSlots, held_bytes


def admitted(admissions: RunSlots, *sizes: int) -> int:
    """Ask for a place for each size, keep those that are given, and return how many these were."""
    count = 0
    with ExitStack() as stack:
        for size in sizes:
            try:
                stack.enter_context(admissions.admit("a.py", size))
            except RunnerBusyError:
                continue
            count += 1
    return count


def test_there_are_only_so_many_places() -> None:
    assert admitted(RunSlots(3), 1, 1, 1, 1, 1) == 3


def test_runs_that_together_would_hold_too_much_are_refused_and_smaller_ones_are_not() -> None:
    assert admitted(RunSlots(9, max_bytes=100), 60, 60, 30, 20, 10) == 3


def test_a_run_is_admitted_whatever_its_size_when_there_is_no_other() -> None:
    admissions = RunSlots(9, max_bytes=100)

    assert admitted(admissions, 1000, 1) == 1


def test_a_place_and_its_memory_are_free_again_after_a_failure() -> None:
    admissions = RunSlots(1, max_bytes=100)
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"), admissions.admit("a.py", 90):
            raise ValueError("broken")

    assert admitted(admissions, 90) == 1


def test_a_refusal_names_the_script_without_repeating_a_long_one() -> None:
    with pytest.raises(RunnerBusyError) as caught, RunSlots(0).admit("x" * 5000, 1):
        pass

    assert caught.value.script == "x" * 256
    assert caught.value.fix


@pytest.mark.parametrize(
    "piece", ["{}", "[]", '{"a":0}', '{"a":{}}', "[[]]", '""', '"ab"', '"ü"', "1.5", "12345", "null"]
)
def test_arguments_count_with_at_least_the_memory_their_parsed_values_take(piece: str) -> None:
    arguments = json.loads('{"v": [' + ",".join([piece] * 1000) + "]}")
    run = ScriptRun("skill://a/SKILL.md", "scripts/a.py", {"scripts/a.py": b"12345"}, arguments)

    assert held_bytes(run) >= 5 + size_of(arguments)


def size_of(value: JsonValue) -> int:
    """Return the memory of a value and of all it holds; small values are shared, and count once."""
    seen: dict[int, int] = {}
    waiting: list[JsonValue] = [value]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen[id(one)] = sys.getsizeof(one)
            waiting += (
                [*one, *one.values()] if isinstance(one, dict) else one if isinstance(one, list) else []
            )
    return sum(seen.values())
