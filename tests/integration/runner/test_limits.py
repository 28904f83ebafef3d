"""Every limit is enforced by a real sandbox, and the outcome says which it was, and how much was used."""

import json
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from folders import write_skill
from integration.runner.running import DEADLINE, needs_sandbox, ran, script_run
from skillwire.core.uri import SkillUri
from skillwire.runner import (
    Ending,
    LimitHit,
    Limits,
    Outcome,
    Policy,
    Runner,
    RunRecord,
    ScriptInterface,
    prepare,
)
from skillwire.runner.policy import MIB
from skillwire.sources import DirectorySource

pytestmark = [needs_sandbox, pytest.mark.requirement("EXEC-12")]


def policy(**limits: float) -> Policy:
    return Policy(limits=replace(Limits(), **limits), pool=0)


async def under(code: str, **limits: float) -> Outcome:
    return await ran(script_run(code), policy(**limits))


async def shell_under(code: str, **limits: float) -> Outcome:
    return await ran(script_run(code, name="a.sh"), policy(**limits))


# By limit: what is allowed, and code that wants more.
Cases: TypeAlias = Mapping[str, tuple[float, str]]

# Limits at which a run ends.
STOPPED: Cases = {
    "wall_seconds": (0.5, "import time\nprint('so far', flush=True)\ntime.sleep(60)"),
    "cpu_seconds": (1, "print('so far', flush=True)\nwhile True: pass"),
    "memory_bytes": (
        96 * MIB,
        "print('so far', flush=True)\nheld = []\nwhile True: held.append(b'x' * (1 << 20))",
    ),
    "flood_bytes": (2 * MIB, "print('so far')\nwhile True: print('x' * 10_000)"),
}
# Limits that a run comes up against and may survive.
REACHED: Cases = {
    "processes": (
        6,
        "import os, time\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(30)\n"
        "            os._exit(0)\n"
        "except BlockingIOError as error:\n"
        "    print(error)\n"
        "    time.sleep(0.2)\n",
    ),
    "disk_bytes": (
        4 * MIB,
        "try:\n"
        "    for number in range(8):\n"
        "        open(f'/tmp/{number}', 'wb').write(b'x' * (1 << 20))\n"
        "except OSError as error:\n"
        "    print(error)\n",
    ),
    "disk_files": (
        40,
        "try:\n"
        "    for number in range(80):\n"
        "        open(f'/tmp/{number}', 'w').close()\n"
        "except OSError as error:\n"
        "    print(error)\n",
    ),
    "stdout_bytes": (1000, "print('x' * 5000)"),
    "stderr_bytes": (1000, "import sys\nprint('x' * 5000, file=sys.stderr)"),
    "output_files": (3, "for number in range(5): open(f'/out/{number}', 'w').write('x')"),
    "output_bytes": (65536, "for number in range(5): open(f'/out/{number}', 'w').write('x' * 40960)"),
}
# A script that opens too many files is told so by an error; nobody outside sees it.
TOLD_INSIDE = {"open_files"}


def test_there_is_a_test_for_every_limit() -> None:
    assert {one.name for one in fields(Limits)} == {*STOPPED, *REACHED, *TOLD_INSIDE}


@pytest.mark.requirement("EXEC-16")
@pytest.mark.parametrize("name", STOPPED)
async def test_a_run_that_wants_too_much_is_stopped_and_the_limit_told(name: str) -> None:
    allowed, code = STOPPED[name]
    begun = time.monotonic()

    outcome = await under(code, **{name: allowed})

    assert outcome.ending is Ending.LIMIT
    assert outcome.limit is not None
    assert (outcome.limit.name, outcome.limit.allowed) == (name, allowed)
    assert allowed < outcome.limit.used < allowed * 4
    assert outcome.is_error and name in outcome.verdict
    assert outcome.exit_code is None
    assert outcome.stdout.startswith("so far\n")
    assert time.monotonic() - begun < 20


@pytest.mark.requirement("EXEC-16")
@pytest.mark.parametrize("name", REACHED)
async def test_a_run_that_comes_up_against_a_limit_goes_on_and_it_is_told(name: str) -> None:
    allowed, code = REACHED[name]

    outcome = await under(code, **{name: allowed})

    [hit] = outcome.reached
    assert (hit.name, hit.allowed) == (name, allowed)
    assert allowed - 4096 < hit.used < allowed * 6
    assert (outcome.ending, outcome.exit_code, outcome.limit) == (Ending.EXITED, 0, None)


async def test_no_more_files_are_open_at_once_than_allowed() -> None:
    code = (
        "import os\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError as error:\n"
        "    print(max(held), error)\n"
    )

    outcome = await under(code, open_files=32)

    assert outcome.stdout == "31 [Errno 24] Too many open files: '/dev/null'\n"


async def test_a_script_cannot_raise_its_own_limits() -> None:
    code = (
        "import resource\n"
        "for name in ('NOFILE', 'NPROC', 'AS', 'CPU', 'FSIZE', 'CORE', 'MEMLOCK'):\n"
        "    number = getattr(resource, 'RLIMIT_' + name)\n"
        "    soft, hard = resource.getrlimit(number)\n"
        "    try:\n"
        "        resource.setrlimit(number, (hard + 1, hard + 1))\n"
        "        print('raised', name)\n"
        "    except (ValueError, OSError):\n"
        "        pass\n"
        "print('done')\n"
    )

    assert (await under(code)).stdout == "done\n"


async def test_cpu_time_counts_for_all_processes_together() -> None:
    code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"

    outcome = await under(code, cpu_seconds=1, wall_seconds=20)

    assert outcome.limit is not None
    assert outcome.limit.name == "cpu_seconds"
    assert 1 < outcome.usage.cpu_seconds < 8


async def test_cpu_time_of_processes_that_ended_counts() -> None:
    code = "while :; do (i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done); done"

    outcome = await shell_under(code, cpu_seconds=1, wall_seconds=20)

    assert outcome.limit is not None
    assert outcome.limit.name == "cpu_seconds"


async def test_memory_counts_for_all_processes_together() -> None:
    code = (
        "import os, time\n"
        "for _ in range(6):\n"
        "    if os.fork() == 0:\n"
        "        held = b'x' * (30 << 20)\n"
        "        time.sleep(30)\n"
        "time.sleep(30)\n"
    )

    outcome = await under(code, memory_bytes=96 * MIB, wall_seconds=20)

    assert outcome.limit is not None
    assert outcome.limit.name == "memory_bytes"
    assert outcome.usage.memory_bytes > 96 * MIB


async def test_what_lies_in_private_folders_counts_as_memory() -> None:
    code = (
        "import time\n"
        "for place in ('/tmp', '/out', '/dev/shm'):\n"
        "    open(place + '/x', 'wb').write(b'x' * (16 << 20))\n"
        "time.sleep(30)\n"
    )

    outcome = await under(code, memory_bytes=48 * MIB, wall_seconds=20)

    assert outcome.limit is not None
    assert outcome.limit.name == "memory_bytes"


async def test_one_process_cannot_map_without_end() -> None:
    code = "import mmap\ntry:\n    mmap.mmap(-1, 1 << 40)\nexcept OSError as error:\n    print(error)\n"

    assert (await under(code)).stdout == "[Errno 12] Cannot allocate memory\n"


async def test_threads_count_as_processes() -> None:
    code = (
        "import threading, time\n"
        "count = 1\n"
        "try:\n"
        "    while True:\n"
        "        threading.Thread(target=time.sleep, args=(0.3,)).start()\n"
        "        count += 1\n"
        "except RuntimeError:\n"
        "    print(count)\n"
    )

    outcome = await under(code, processes=10)

    assert outcome.stdout == "10\n"
    assert outcome.reached == (LimitHit("processes", 10, 10),)


async def test_two_runs_at_once_do_not_use_up_each_others_processes() -> None:
    code = (
        "import os, time\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(1)\n"
        "        os._exit(0)\n"
        "time.sleep(0.5)\n"
        "print('all started')\n"
    )
    outcomes: list[Outcome] = []

    async def once(runner: Runner) -> None:
        outcomes.append(await runner.run(script_run(code)))

    with anyio.fail_after(DEADLINE):
        async with (
            Runner(replace(policy(processes=8), concurrent=3), record=forget) as runner,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(3):
                tasks.start_soon(once, runner)

    assert [outcome.stdout for outcome in outcomes] == ["all started\n"] * 3


def forget(record: RunRecord) -> None:
    """This is not about records."""


async def test_one_file_cannot_be_larger_than_the_disk() -> None:
    outcome = await shell_under("head -c 9000000 /dev/zero >/tmp/x\necho $?", disk_bytes=2 * MIB)

    assert outcome.stdout.strip() != "0"
    assert outcome.reached == (LimitHit("disk_bytes", 2 * MIB, 2 * MIB),)


async def test_all_places_that_can_be_written_share_one_disk() -> None:
    code = (
        "for place in ('/tmp', '/out', '/dev/shm'):\n"
        "    try:\n"
        "        open(place + '/x', 'wb').write(b'x' * (1 << 20))\n"
        "        print(place)\n"
        "    except OSError as error:\n"
        "        print(error)\n"
    )

    outcome = await under(code, disk_bytes=2 * MIB)

    assert outcome.stdout == "/tmp\n/out\n[Errno 28] No space left on device\n"


async def test_output_beyond_the_limit_is_cut_with_a_last_line_that_says_so() -> None:
    outcome = await under(
        "import sys\nprint('a' * 4999)\nprint('b' * 2999, file=sys.stderr)", stdout_bytes=100
    )

    assert outcome.stdout == "a" * 100 + "\n[truncated: 100 of 5000 bytes]"
    assert outcome.stderr == "b" * 2999 + "\n"
    assert (outcome.usage.stdout_bytes, outcome.usage.stderr_bytes) == (5000, 3000)


async def test_a_flood_of_errors_is_stopped_too() -> None:
    outcome = await shell_under("yes >&2", flood_bytes=MIB, stderr_bytes=50)

    assert outcome.limit is not None
    assert outcome.limit.name == "flood_bytes"
    assert outcome.stderr.startswith("y\ny\n") and len(outcome.stderr) < 200


@pytest.mark.requirement("EXEC-17")
async def test_files_beyond_the_limit_are_named_and_not_returned() -> None:
    many = await under("for n in range(4): open(f'/out/{n}', 'w').write('x')", output_files=2)
    large = await under("for n in 'ab': open(f'/out/{n}', 'w').write(n * 700)", output_bytes=1000)

    assert [file.path for file in many.files] == ["0", "1"]
    assert [(file.path, file.reason) for file in many.skipped] == [
        ("2", "there are more files than may be returned"),
        ("3", "there are more files than may be returned"),
    ]
    assert [(file.path, len(file.content)) for file in large.files] == [("a", 700)]
    assert [file.path for file in large.skipped] == ["b"]


@pytest.mark.requirement("EXEC-16", "EXEC-17")
async def test_a_run_that_was_stopped_returns_no_files() -> None:
    code = "import time\nopen('/out/half', 'w').write('x')\ntime.sleep(60)"

    outcome = await under(code, wall_seconds=0.5)

    assert outcome.limit is not None
    assert outcome.files == ()


async def test_a_request_is_granted_up_to_what_the_operator_allows() -> None:
    run = script_run(
        "import time\ntime.sleep(60)",
        interface=ScriptInterface(limits={"wall_seconds": 3600, "processes": 9}),
    )
    generous = Policy(most=replace(Limits(), wall_seconds=0.5), pool=0)

    outcome = await ran(run, generous)

    assert outcome.limit is not None
    assert (outcome.limit.name, outcome.limit.allowed) == ("wall_seconds", 0.5)
    assert (outcome.limits.wall_seconds, outcome.limits.processes) == (0.5, 9)


async def test_a_manifest_asks_and_the_sandbox_keeps_to_it(tmp_path: Path) -> None:
    manifest = {"scripts": {"a.py": {"limits": {"wall_seconds": 0.5, "memory_mib": 64, "disk_mib": 2}}}}
    write_skill(
        tmp_path / "skills" / "lab",
        {"scripts/a.py": "import time\ntime.sleep(60)\n", "scripts/manifest.json": json.dumps(manifest)},
    )

    async with DirectorySource(tmp_path / "skills") as source:
        entry = await source.get_skill(SkillUri.build("lab"))
        outcome = await ran(await prepare(entry, "a", {}, source.read_file))

    assert outcome.limit is not None
    assert outcome.limit.name == "wall_seconds"
    limits = outcome.limits
    assert (limits.wall_seconds, limits.memory_bytes, limits.disk_bytes) == (0.5, 64 * MIB, 2 * MIB)


async def test_usage_is_told_for_every_run() -> None:
    code = (
        "import time\n"
        "held = b'x' * (40 << 20)\n"
        "open('/out/x', 'wb').write(b'x' * (1 << 20))\n"
        "print('four')\n"
        "time.sleep(0.2)\n"
    )

    used = (await under(code)).usage

    assert 0.2 <= used.wall_seconds < 10
    assert 0 < used.cpu_seconds < 5
    assert 40 * MIB < used.memory_bytes < 120 * MIB
    assert used.processes == 1
    assert used.disk_bytes == MIB
    assert used.stdout_bytes == 5
