"""How a run ended, in words and as a yes or no."""

import signal

import pytest

from skillwire.runner import Ending, LimitHit, Outcome

LIMIT = LimitHit("wall_seconds", 2.0, 2.0041)


@pytest.mark.requirement("EXEC-16")
@pytest.mark.parametrize(
    ("outcome", "is_error", "verdict"),
    [
        (Outcome("r", Ending.EXITED, exit_code=0), False, "exit status 0"),
        (Outcome("r", Ending.EXITED, exit_code=3), True, "exit status 3"),
        (Outcome("r", Ending.SIGNALLED, signal=signal.SIGSEGV), True, "ended by SIGSEGV"),
        (Outcome("r", Ending.SIGNALLED, signal=77), True, "ended by signal 77"),
        (
            Outcome("r", Ending.LIMIT, limit=LIMIT),
            True,
            "stopped at a limit: wall_seconds 2, used 2.004",
        ),
        (
            Outcome("r", Ending.LIMIT, signal=signal.SIGXCPU, limit=LimitHit("cpu_seconds", 1, 1.5)),
            True,
            "stopped at a limit: cpu_seconds 1, used 1.5",
        ),
    ],
    ids=["success", "failure", "crash", "real-time signal", "limit", "limit by signal"],
)
def test_only_an_exit_with_zero_is_a_success(outcome: Outcome, is_error: bool, verdict: str) -> None:
    assert (outcome.is_error, outcome.verdict) == (is_error, verdict)


def test_a_limit_that_was_met_and_survived_does_not_make_a_run_fail() -> None:
    outcome = Outcome("r", Ending.EXITED, exit_code=0, reached=(LimitHit("stdout_bytes", 10, 20),))

    assert (outcome.is_error, outcome.verdict) == (False, "exit status 0")


@pytest.mark.parametrize(
    ("hit", "words"),
    [
        (LimitHit("memory_bytes", 104857600, 124203008), "memory_bytes 104857600, used 124203008"),
        (LimitHit("wall_seconds", 0.5, 0.50037), "wall_seconds 0.5, used 0.5004"),
        (LimitHit("wall_seconds", 30.0, 30.01), "wall_seconds 30, used 30.01"),
        (LimitHit("processes", 8, 8), "processes 8, used 8"),
    ],
)
def test_a_limit_says_what_was_allowed_and_what_was_used(hit: LimitHit, words: str) -> None:
    assert str(hit) == words
