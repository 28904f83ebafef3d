"""The budgets of the runner: a small script in a sandbox, beside the same script in a bare interpreter."""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import anyio

from bench.messages import WrongAnswerError
from bench.rows import Row, console, median_ratio, show
from skillwire.core.yaml12 import JsonValue
from skillwire.runner import Interpreter, Policy, Runner, RunRecord, ScriptRun
from skillwire.runner.preparation import encode
from skillwire.runner.sandbox.command import PYTHON_SUFFIX, found_interpreters

ROUNDS = 40
WARM_UP = 3
COLD_BUDGET = 4.0
POOLED_BUDGET = 1.6
# A pool of one starts its next sandbox after each run; in this time it has.
_REFILL_SECONDS = 0.3
_MOST_TRIES = 5
_PATIENCE = 30.0
_SCRIPT = """\
import json
import sys

given = json.load(sys.stdin)
print(json.dumps({"count": len(given["words"]), "longest": max(given["words"], key=len)}))
"""
_WORDS = [f"word-{number}" * (number % 5 + 1) for number in range(200)]
_ARGUMENTS: dict[str, JsonValue] = {"words": [*_WORDS]}
_ANSWER = {"count": len(_WORDS), "longest": max(_WORDS, key=len)}
_PATH = "scripts/count.py"
_FLOOR = "bare interpreter"


@dataclass(slots=True)
class Spent:
    """Seconds on the clock and of the CPU, of our runs and of the floors between them."""

    wall: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])
    floor_wall: list[float] = field(default_factory=list[float])
    floor_cpu: list[float] = field(default_factory=list[float])

    def row(self, what: str, budget: float) -> Row:
        ratio = median_ratio(self.wall, self.floor_wall)
        return Row(
            what,
            milliseconds(self.wall),
            f"{_FLOOR} {milliseconds(self.floor_wall)}",
            ratio,
            f"{budget} x floor",
            ratio <= budget,
        )

    def words(self, what: str) -> str:
        slow = sorted(self.wall)[int(len(self.wall) * 0.9)]
        return (
            f"{what}: {milliseconds(self.wall)} on the clock (nine of ten within {slow * 1000:.1f} ms), "
            f"{median_ratio(self.wall, self.floor_wall):.2f} x floor; "
            f"CPU {milliseconds(self.cpu)}, floor {milliseconds(self.floor_cpu)}"
        )


def measure_runner() -> list[Row]:
    """Measure and print; without a sandbox there is nothing to measure, and the reason is printed."""
    return anyio.run(_measure)


async def _measure() -> list[Row]:
    async with Runner(Policy(pool=0), record=_forget) as runner:
        found = runner.availability
        if not found.is_available:
            print(f"the runner is not measured: {found.detail}; {found.fix}", file=sys.stderr)
            return []
        cold = await _in_turns(lambda: _checked(runner, None))
    pooled = await _pooled(Policy(pool=1, concurrent=1))
    refilling = await _while_refilling(Policy(pool=2, concurrent=2))
    idle = await _idle()
    rows = [cold.row("one small script, cold", COLD_BUDGET), pooled.row("the same, pooled", POOLED_BUDGET)]
    show(f"Budgets of the runner ({ROUNDS} runs each, in turns with the floor; medians, wall time)", rows)
    for line in (
        cold.words("cold"),
        pooled.words("pooled"),
        refilling.words("pooled, while another sandbox starts"),
        f"one sandbox that waits: {idle}",
        f"memory is {found.memory}",
    ):
        console().print(line, highlight=False, soft_wrap=True)
    return rows


async def _pooled(policy: Policy) -> Spent:
    records: list[RunRecord] = []
    async with Runner(policy, record=records.append) as runner:

        async def once() -> None:
            await _checked(runner, records)

        return await _in_turns(once, settle=_REFILL_SECONDS)


async def _while_refilling(policy: Policy) -> Spent:
    """Use one of two ready sandboxes, and at once the other, while the first is being replaced."""
    records: list[RunRecord] = []
    async with Runner(policy, record=records.append) as runner:

        async def first() -> None:
            await _checked(runner, None)

        async def once() -> None:
            await _checked(runner, records)

        return await _in_turns(once, before=first, settle=2 * _REFILL_SECONDS)


async def _in_turns(
    once: Callable[[], Awaitable[None]],
    *,
    before: Callable[[], Awaitable[None]] | None = None,
    settle: float = 0.0,
) -> Spent:
    """Run the floor and ours in turns. A run that found no sandbox ready is repeated."""
    spent = Spent()
    with _written_script() as script:
        for number in range(WARM_UP + ROUNDS):
            await anyio.sleep(settle)
            floor_wall, floor_cpu = _floor(script)
            wall, cpu = await _timed(once, before, settle)
            if number >= WARM_UP:
                spent.wall.append(wall)
                spent.cpu.append(cpu)
                spent.floor_wall.append(floor_wall)
                spent.floor_cpu.append(floor_cpu)
    return spent


@contextmanager
def _written_script() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="skillwire-bench-") as folder:
        script = Path(folder, "count.py")
        script.write_text(_SCRIPT, "utf-8")
        yield script


async def _timed(
    once: Callable[[], Awaitable[None]], before: Callable[[], Awaitable[None]] | None, settle: float
) -> tuple[float, float]:
    for _ in range(_MOST_TRIES):
        if before is not None:
            await before()
        begun, used = time.perf_counter(), _cpu()
        try:
            await once()
        except _NotReadyError:
            await anyio.sleep(settle)
            continue
        return time.perf_counter() - begun, _cpu() - used
    raise WrongAnswerError("the pool is never ready in time")


class _NotReadyError(Exception):
    """A run that should have found a sandbox ready did not."""


async def _checked(runner: Runner, pooled: list[RunRecord] | None) -> None:
    """Run the script once; where `pooled` is given, it has to come out of the pool."""
    run = ScriptRun("skill://bench/SKILL.md", _PATH, {_PATH: _SCRIPT.encode()}, _ARGUMENTS)
    outcome = await runner.run(run)
    if outcome.structured != _ANSWER:
        raise WrongAnswerError(f"the script said {outcome.stdout!r}, {outcome.stderr!r}")
    if pooled is not None and not pooled[-1].is_pooled:
        raise _NotReadyError


def _floor(script: Path) -> tuple[float, float]:
    """Run the same script with the same bytes in the interpreter that sandboxes use, with nothing more."""
    command = [str(_python().path), "-I", str(script)]
    begun, used = time.perf_counter(), _cpu()
    done = subprocess.run(
        command, input=encode(_ARGUMENTS), capture_output=True, timeout=_PATIENCE, check=True
    )
    spent = time.perf_counter() - begun, _cpu() - used
    if json.loads(done.stdout) != _ANSWER:
        raise WrongAnswerError(f"the floor said {done.stdout!r}")
    return spent


def _python() -> Interpreter:
    return found_interpreters(Policy().uid if os.geteuid() == 0 else None)[PYTHON_SUFFIX]


def _cpu() -> float:
    """Return the CPU seconds of this process and of all its descendants that have ended."""
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + gone.ru_utime + gone.ru_stime


async def _idle() -> str:
    """Say how much memory the processes of one sandbox hold that waits for a run."""
    async with Runner(Policy(pool=1, concurrent=1), record=_forget):
        await anyio.sleep(4 * _REFILL_SECONDS)
        return _held(_descendants(os.getpid()))


def _held(members: list[int]) -> str:
    parts = [f"{Path(f'/proc/{pid}/comm').read_text().strip()} {_resident(pid):.1f}" for pid in members]
    total = sum(map(_resident, members))
    shared = sum(map(_proportional, members))
    return f"{total:.1f} MiB resident ({', '.join(parts)}), {shared:.1f} MiB with what is shared counted once"


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text("ascii").split():
            found += [int(child), *_descendants(int(child))]
    return found


def _resident(pid: int) -> float:
    return _mib(Path(f"/proc/{pid}/status"), "VmRSS")


def _proportional(pid: int) -> float:
    try:
        return _mib(Path(f"/proc/{pid}/smaps_rollup"), "Pss")
    except PermissionError:  # Only root may look into an init.
        return _resident(pid)


def _mib(file: Path, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB", file.read_text("ascii"), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def milliseconds(seconds: list[float]) -> str:
    return f"{median(seconds) * 1000:.1f} ms"


def _forget(record: RunRecord) -> None:
    """Nobody asks about runs that are only measured."""
