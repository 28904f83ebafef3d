"""The engine that runs scripts: what it leaves behind, how it ends, and how many it runs at once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from escape.harness import ARENAS, IS_ROOT, USER
from escape.machine import Machine
from escape.watching import inhabitants, left_over, processes
from escape.worker import SKILL
from skillwire.core.errors import RunnerBusyError, RunnerError
from skillwire.core.yaml12 import JsonValue
from skillwire.runner import Policy, Runner
from skillwire.runner.interface import ScriptInterface, ScriptRun
from skillwire.runner.outcome import Ending, RunRecord

WAIT = 60.0
"""Far longer than anything takes, also on a busy machine."""


def script(source: str, **limits: float) -> ScriptRun:
    path = "scripts/a.py"
    return ScriptRun(SKILL, path, {path: source.encode()}, interface=ScriptInterface(limits=limits))


def marked(mark: str, source: str) -> ScriptRun:
    return script(f"import ctypes, time\nctypes.CDLL(None).prctl(15, b'{mark}', 0, 0, 0)\n{source}")


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so; fails when it is not after a long time."""
    with anyio.fail_after(WAIT):
        while not condition():  # noqa: ASYNC110 — other processes set no events of ours
            await anyio.sleep(0.01)


def sandboxes(owner: int) -> list[int]:
    """Return the processes that hold the sandboxes of a process: bubblewrap's own, outside."""
    return [pid for pid, one in processes().items() if one.parent == owner and one.name == "bwrap"]


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    async with Runner(Policy(pool=1, concurrent=2)) as runner:
        assert runner.availability.is_available, runner.availability.detail
        yield runner


@pytest.mark.requirement("EXEC-12")
async def test_a_cancelled_run_is_gone_when_its_caller_hears_of_it(runner: Runner) -> None:
    mark = f"c{os.getpid()}"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run, marked(mark, "time.sleep(60)"))
        await until(lambda: left_over(mark))
        tasks.cancel_scope.cancel()

    assert left_over(mark) == {}
    assert inhabitants(os.getpid()) == []
    assert (await runner.run(script("print(1)"))).stdout == "1\n"


@pytest.mark.requirement("EXEC-12")
async def test_a_caller_that_waits_no_longer_ends_the_run(runner: Runner) -> None:
    mark = f"d{os.getpid()}"

    with pytest.raises(TimeoutError), anyio.fail_after(1.5):
        await runner.run(marked(mark, "time.sleep(60)"))

    assert left_over(mark) == {}


@pytest.mark.requirement("EXEC-12")
async def test_closing_leaves_no_process() -> None:
    async with Runner(Policy(pool=2, concurrent=2)) as runner:
        await runner.run(script("print(1)"))
        await until(lambda: len(sandboxes(os.getpid())) >= 2)

    assert sandboxes(os.getpid()) == []


@pytest.mark.requirement("EXEC-12")
async def test_a_sandbox_that_waits_is_used_once() -> None:
    records: list[RunRecord] = []
    code = "import os\nprint(os.path.exists('/tmp/a'), os.stat('/proc/1').st_ctime_ns)\nopen('/tmp/a', 'w')\n"
    async with Runner(Policy(pool=1, concurrent=1), record=records.append) as runner:
        found: set[str] = set()
        for _ in range(4):
            assert await runner.wait_until_ready(WAIT)
            found.add((await runner.run(script(code))).stdout)

    assert all(record.is_pooled for record in records)
    assert len(found) == 4
    assert all(line.startswith("False ") for line in found)


@pytest.mark.proof
@pytest.mark.requirement("EXEC-12")
async def test_a_sandbox_that_waits_outlives_the_idle_thread_that_started_it() -> None:
    """Bubblewrap ends with the thread that started it, and idle threads of a pool of threads are ended."""
    records: list[RunRecord] = []
    async with Runner(Policy(pool=1, concurrent=1), record=records.append) as runner:
        await runner.run(script("print(1)"))
        assert await runner.wait_until_ready(WAIT)
        (waiting,) = sandboxes(os.getpid())
        await anyio.sleep(11)  # Threads that were idle for ten seconds end when others come.
        await anyio.to_thread.run_sync(time.sleep, 0.01)

        assert sandboxes(os.getpid()) == [waiting]
        outcome = await runner.run(script("print(2)"))

    assert outcome.stdout == "2\n"
    assert records[-1].is_pooled


async def test_a_sandbox_that_died_while_it_waited_is_not_used() -> None:
    records: list[RunRecord] = []
    async with Runner(Policy(pool=1, concurrent=1), record=records.append) as runner:
        assert await runner.wait_until_ready(WAIT)
        (waiting,) = sandboxes(os.getpid())
        os.kill(waiting, signal.SIGKILL)
        await anyio.to_thread.run_sync(os.waitid, os.P_PID, waiting, os.WEXITED | os.WNOWAIT)

        assert (await runner.run(script("print(3)"))).stdout == "3\n"

    assert not records[-1].is_pooled


@pytest.mark.requirement("EXEC-12")
async def test_no_more_than_so_many_run_at_once() -> None:
    spans: list[tuple[float, float]] = []
    code = "import time\na = time.monotonic()\ntime.sleep(0.4)\nprint(a, time.monotonic())"

    async def one(runner: Runner) -> None:
        start, end = (await runner.run(script(code))).stdout.split()
        spans.append((float(start), float(end)))

    async with Runner(Policy(pool=0, concurrent=2)) as runner, anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(one, runner)

    most = max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)
    assert len(spans) == 5
    assert most <= 2


async def test_when_enough_wait_the_next_is_told_to_come_later() -> None:
    busy: list[RunnerBusyError] = []
    done: list[str] = []

    async def one(runner: Runner) -> None:
        try:
            done.append((await runner.run(script("import time; time.sleep(0.5); print(1)"))).stdout)
        except RunnerBusyError as error:
            busy.append(error)

    async with Runner(Policy(pool=0, concurrent=1, queue=2)) as runner, anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(one, runner)

    assert len(done) == 3
    assert len(busy) == 3
    assert {error.code for error in busy} == {-32003}


async def test_without_a_queue_as_many_as_may_run_still_do() -> None:
    async with Runner(Policy(pool=0, concurrent=1, queue=0)) as runner:
        assert (await runner.run(script("print(1)"))).stdout == "1\n"


async def test_who_waits_too_long_for_a_turn_is_told_so() -> None:
    mark = f"w{os.getpid()}"
    async with Runner(Policy(pool=0, concurrent=1, queue=2, queue_seconds=0.3)) as runner:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.run, marked(mark, "time.sleep(60)"))
            await until(lambda: left_over(mark))
            with pytest.raises(RunnerBusyError):
                await runner.run(script("print(1)"))
            tasks.cancel_scope.cancel()


async def test_nothing_is_run_by_a_runner_that_is_not_open() -> None:
    runner = Runner()

    with pytest.raises(RunnerError):
        await runner.run(script("print(1)"))


OWNER = """
import anyio, sys
from skillwire.runner import Policy, Runner, ScriptRun

async def main():
    async with Runner(Policy(pool=1)) as runner:
        source = b"import ctypes, os, time\\n" \\
            b"ctypes.CDLL(None).prctl(15, b'MARK', 0, 0, 0)\\nos.fork()\\ntime.sleep(60)\\n"
        await runner.run(ScriptRun("skill://a/SKILL.md", "scripts/a.py", {"scripts/a.py": source}))

anyio.run(main)
"""


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
async def test_sandboxes_end_with_the_process_that_owns_them(number: signal.Signals) -> None:
    mark = f"o{os.getpid()}{number:d}"
    owner = subprocess.Popen(  # noqa: ASYNC220 — it is not waited for here
        [sys.executable, "-c", OWNER.replace("MARK", mark)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        await until(lambda: len(left_over(mark)) == 2)
        below = descendants(owner.pid)

        owner.send_signal(number)

        await until(lambda: not left_over(mark))
        await until(lambda: not any(is_running(pid) for pid in below))
    finally:
        owner.kill()
        owner.wait()


@pytest.mark.proof
@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize("who", ARENAS)
def test_an_owner_that_is_killed_at_any_moment_of_a_run_leaves_no_process(who: str, machine: Machine) -> None:
    """Bubblewrap must not die between making the first process of a sandbox and letting it go on."""
    uid = USER if IS_ROOT and who == "user" else 0

    found = subprocess.run(
        [sys.executable, "-m", "escape.owners", str(uid), "80"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=machine.folder,
        stdout=subprocess.PIPE,
        check=True,
        timeout=240,
    )

    assert json.loads(found.stdout) == []


def descendants(pid: int) -> set[int]:
    everyone = processes()
    found = {pid}
    while more := {one.pid for one in everyone.values() if one.parent in found} - found:
        found |= more
    return found - {pid}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_server_keeps_no_descriptor_of_a_run(runner: Runner) -> None:
    await runner.run(script("print(1)"))
    assert await runner.wait_until_ready(WAIT)
    before = open_descriptors()

    for _ in range(5):
        await runner.run(script("print(1)"))
    assert await runner.wait_until_ready(WAIT)

    assert open_descriptors() <= before


@pytest.mark.requirement("EXEC-12")
async def test_every_limit_that_ends_a_run_is_named_with_what_was_used(runner: Runner) -> None:
    attempts: dict[str, tuple[str, dict[str, float]]] = {
        "wall_seconds": ("import time; time.sleep(9)", {"wall_seconds": 0.3}),
        "cpu_seconds": ("while True: pass", {"cpu_seconds": 0.3}),
        "memory_bytes": ("import time; x = bytearray(90 << 20); time.sleep(9)", {"memory_bytes": 40 << 20}),
        "flood_bytes": ("while True: print('x' * 10000)", {"flood_bytes": 100_000}),
    }
    for name, (source, limits) in attempts.items():
        outcome = await runner.run(script(source, **limits))

        assert outcome.ending is Ending.LIMIT, name
        assert outcome.limit is not None
        assert (outcome.limit.name, outcome.limit.allowed) == (name, limits[name])
        assert outcome.limit.used > limits[name]
        assert outcome.files == ()


async def test_a_script_asks_for_less_but_not_for_more_than_may_be_had() -> None:
    asked = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])"
    async with Runner(Policy(pool=0)) as runner:
        few = await runner.run(script(asked, open_files=32))
        many = await runner.run(script(asked, open_files=100_000))

    assert few.stdout == "32\n"
    assert int(many.stdout) == many.limits.open_files < 100_000


@pytest.mark.requirement("EXEC-15")
async def test_arguments_arrive_as_they_were_sent(runner: Runner) -> None:
    given: dict[str, JsonValue] = {"a": [1, 2.5, None, True, "ü\n\u0000"], "b": {"": "x" * 200_000}}
    source = b"import json, sys; print(ascii(json.load(sys.stdin)), sys.argv, sys.stdin.read() == '')"

    outcome = await runner.run(ScriptRun(SKILL, "scripts/a.py", {"scripts/a.py": source}, given))

    assert outcome.stdout == f"{given!a} ['/skill/scripts/a.py'] True\n"
