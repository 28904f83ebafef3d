"""A process whose children start sandboxes and are killed, each at another moment; prints what is left.

    python -m escape.owners UID COUNT

It adopts whatever its children leave behind, so that nothing can hide from it. Started by root it becomes
the user `UID` first, unless that is 0.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from escape.worker import SKILL, become
from skillwire.runner import Policy
from skillwire.runner.interface import ScriptRun
from skillwire.runner.runner import assemble
from skillwire.runner.sandbox.conversation import Job, StopSignal
from skillwire.runner.sandbox.sandbox import Sandbox, SandboxConfig, probe_sandbox

SETTLE_SECONDS = 20.0
_PR_SET_CHILD_SUBREAPER = 36
_SCRIPT = "scripts/a.py"
_THREADS = 2


def one_run(recipe: SandboxConfig, job: Job) -> None:
    stop = StopSignal()
    try:
        Sandbox.start(recipe, job.limits).run(job, stop)
    finally:
        stop.close()


def run_forever(recipe: SandboxConfig, job: Job) -> None:
    while True:
        one_run(recipe, job)


def killed_owner(recipe: SandboxConfig, job: Job, seconds: float) -> None:
    """Fork a process that runs scripts, and kill it after so long."""
    pid = os.fork()
    if pid == 0:
        for _ in range(_THREADS):
            threading.Thread(target=run_forever, args=(recipe, job), daemon=True).start()
        time.sleep(SETTLE_SECONDS)
        os._exit(1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def left_behind() -> list[str]:
    """Wait until there are no children any more, and return what is still there after a long time."""
    deadline = time.monotonic() + SETTLE_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            found.append(f"{Path('/proc', pid, 'comm').read_text().strip()} ({pid})")
            os.kill(int(pid), signal.SIGKILL)
    return found


def main() -> None:
    uid, count = map(int, sys.argv[1:])
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    policy = Policy(pool=0)
    run = ScriptRun(SKILL, _SCRIPT, {_SCRIPT: b"print(1)", "assets/a": bytes(1 << 20)})
    if uid:
        probe_sandbox(policy)  # Loads what another user may not be able to read.
        become(uid)
    equipment = probe_sandbox(policy)
    assert equipment.recipe is not None, equipment.availability.detail
    job = assemble(run, policy, dict(equipment.interpreters)).job
    one_run(equipment.recipe, job)
    before = time.monotonic()
    one_run(equipment.recipe, job)
    seconds = time.monotonic() - before
    for number in range(count):
        killed_owner(equipment.recipe, job, 1.5 * seconds * number / count)
    sys.stdout.write(json.dumps(left_behind()))


if __name__ == "__main__":
    main()
