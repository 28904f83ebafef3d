"""Sandboxes that are started ahead of their runs: each has the limits of its run, and is used once."""

import anyio
import pytest

from integration.runner.running import DEADLINE, needs_sandbox, script_run
from skillwire.runner import Policy, Runner, RunRecord, ScriptInterface
from skillwire.runner.policy import MIB

pytestmark = [needs_sandbox, pytest.mark.requirement("EXEC-12")]


async def test_a_sandbox_that_was_started_ahead_has_the_limits_of_its_run() -> None:
    records: list[RunRecord] = []
    run = script_run("import time\ntime.sleep(60)", interface=ScriptInterface(limits={"wall_seconds": 0.5}))

    with anyio.fail_after(DEADLINE):
        async with Runner(Policy(pool=1, concurrent=1), record=records.append) as runner:
            assert await runner.wait_until_ready(DEADLINE)
            outcome = await runner.run(run)

    assert records[-1].is_pooled
    assert outcome.limit is not None
    assert (outcome.limit.name, outcome.limit.allowed) == ("wall_seconds", 0.5)


async def test_a_run_that_needs_another_disk_gets_a_sandbox_of_its_own() -> None:
    records: list[RunRecord] = []
    code = "import os\nfound = os.statvfs('/tmp')\nprint(found.f_blocks * found.f_frsize)"
    run = script_run(code, interface=ScriptInterface(limits={"disk_bytes": 8 * MIB}))

    with anyio.fail_after(DEADLINE):
        async with Runner(Policy(pool=1, concurrent=1), record=records.append) as runner:
            assert await runner.wait_until_ready(DEADLINE)
            outcome = await runner.run(run)

    assert outcome.stdout == f"{8 * MIB}\n"
    assert [record.is_pooled for record in records] == [False]


async def test_what_one_run_leaves_behind_no_other_finds() -> None:
    records: list[RunRecord] = []
    code = (
        "import os\n"
        "places = ('/tmp', '/out', '/dev/shm', '/run/secrets', '/skill')\n"
        "print([os.listdir(place) for place in places])\n"
        "for place in places:\n"
        "    open(place + '/left', 'w').write('x')\n"
    )

    with anyio.fail_after(DEADLINE):
        async with Runner(Policy(pool=2, concurrent=2), record=records.append) as runner:
            said: set[str] = set()
            for _ in range(4):
                assert await runner.wait_until_ready(DEADLINE)
                said.add((await runner.run(script_run(code))).stdout)

    assert all(record.is_pooled for record in records)
    assert said == {"[[], [], [], [], ['scripts']]\n"}
