"""Attacks on whoever keeps a script: signals to its parent, and a scheduler that forgets it."""

import os
from collections.abc import Mapping

from escape.attack import Attack, Seen, exited, got_all, stopped_at
from escape.world import World
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.outcome import Outcome


def _victim(world: World) -> Mapping[str, JsonValue]:
    return {"pid": world.victim().pid}


def _hurt(world: World, _: Seen) -> str:
    return world.hurt()


def _keeper_changed(world: World, seen: Seen) -> str:
    before = (os.getpriority(os.PRIO_PROCESS, 0), 0, len(os.sched_getaffinity(0)))
    changed = [one for one in seen.watched.keepers if one != before]
    return world.hurt() or (f"its keeper runs as {changed[0]}, not as {before}" if changed else "")


def _all_there(outcome: Outcome) -> str:
    files = {file.path: file.content for file in outcome.files}
    if outcome.exit_code == 7 and files == {"mine": b"mine"} and outcome.stdout == "alive\n":
        return ""
    return f"the run did not go on as if nothing had happened: {outcome.verdict}, {outcome.stdout!r}, {files}"


_SURVIVES = """
time.sleep(0.1)
open(OUT + "/mine", "w").write("mine")
print("alive", flush=True)
os._exit(7)
"""

ATTACKS = (
    Attack(
        "sends every signal to whoever keeps it",
        """
for pid in (GIVEN["pid"], 1):
    for number in (*range(1, 9), *range(10, 65), 9):
        if pid != 1 or os.getppid() == 1:
            attempt(os.kill, pid, number)
"""
        + _SURVIVES,
        _hurt,
        _victim,
        outcome_check=_all_there,
    ),
    Attack(
        "interrupts whoever keeps it, in all the ways there are",
        """
for pid in (GIVEN["pid"], 1):
    if pid == 1 and os.getppid() != 1:
        continue
    attempt(call, "tgkill", pid, pid, signal.SIGINT)
    attempt(call, "tkill", pid, signal.SIGINT)
    words = ctypes.create_string_buffer(struct.pack("=iii", 2, 0, -1), 128)
    attempt(call, "rt_sigqueueinfo", pid, signal.SIGINT, words)
    reader, writer = os.pipe()
    attempt(fcntl.fcntl, reader, 10, signal.SIGINT)  # F_SETSIG
    attempt(fcntl.fcntl, reader, fcntl.F_SETOWN, pid)
    attempt(fcntl.fcntl, reader, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writer, b"x")
    handle = attempt(call, "pidfd_open", pid, 0)
    if handle is not None:
        attempt(call, "pidfd_send_signal", handle, signal.SIGINT, None, 0)
"""
        + _SURVIVES,
        _hurt,
        _victim,
        outcome_check=_all_there,
    ),
    Attack(
        "kills everything that it can",
        """
if os.getppid() == 1:
    attempt(os.kill, -1, signal.SIGKILL)
    attempt(os.killpg, attempt(os.getpgid, 1) or 1, signal.SIGKILL)
"""
        + _SURVIVES,
        _hurt,
        _victim,
        control="",
        because="it would kill whatever else runs as this user",
        outcome_check=_all_there,
    ),
    Attack(
        "kills its own process group",
        "os.killpg(0, signal.SIGKILL)",
        got_all,
        control="",
        because="a process may kill itself",
        outcome_check=lambda outcome: (
            "" if outcome.signal == 9 else f"it was not ended by SIGKILL: {outcome.verdict}"
        ),
    ),
    Attack(
        "stops whoever keeps it, and stays",
        """
for number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
    if os.getppid() == 1:
        attempt(os.kill, 1, number)
    attempt(os.kill, GIVEN["pid"], number)
time.sleep(GIVEN.get("seconds", 1000))
""",
        _hurt,
        _victim,
        control_plant=lambda world: {"pid": world.victim().pid, "seconds": 0},
        limits={"wall_seconds": 0.6},
        outcome_check=stopped_at("wall_seconds"),
    ),
    Attack(
        "makes whoever keeps it run last",
        """
for pid in (GIVEN["pid"], 1):
    if pid == 1 and os.getppid() != 1:
        continue
    attempt(os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt(os.setpriority, os.PRIO_PGRP, pid, 19)
    attempt(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
    attempt(os.sched_setscheduler, pid, os.SCHED_BATCH, os.sched_param(0))
    attempt(os.sched_setaffinity, pid, {min(os.sched_getaffinity(0))})
    attempt(call, "sched_setparam", pid, ctypes.create_string_buffer(struct.pack("=i", 0)))
    words = struct.pack("=IIQiIQQQ", 48, 5, 0, 19, 0, 0, 0, 0)
    attempt(call, "sched_setattr", pid, ctypes.create_string_buffer(words), 0)
if os.getppid() == 1:
    attempt(os.setpriority, os.PRIO_USER, os.getuid(), 19)
    attempt(os.setpriority, os.PRIO_USER, 0, 19)
hold()
""",
        _keeper_changed,
        _victim,
    ),
    Attack(
        "runs before everything else",
        """
for policy in (os.SCHED_FIFO, os.SCHED_RR):
    attempt(os.sched_setscheduler, 0, policy, os.sched_param(10))
attempt(os.setpriority, os.PRIO_PROCESS, 0, -20)
if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
    hold()
""",
        lambda _, seen: "it ran in real time" if seen.watched.policies & {1, 2} else "",
        control="root",
    ),
    Attack(
        "takes away the limits of whoever keeps it",
        """
for pid in (GIVEN["pid"], 1):
    if pid != 1 or os.getppid() == 1:
        attempt(resource.prlimit, pid, resource.RLIMIT_NOFILE, (0, 0))
        attempt(resource.prlimit, pid, resource.RLIMIT_CPU, (0, 0))
        attempt(resource.prlimit, pid, resource.RLIMIT_FSIZE, (0, 0))
time.sleep(0.3)
os._exit(4)
""",
        lambda world, seen: (
            world.hurt()
            or (
                "the victim's limits have changed"
                if "Max open files            0 " in _limits(world.victims[0].pid)
                else ""
            )
        ),
        _victim,
        outcome_check=exited(4),
    ),
)


def _limits(pid: int) -> str:
    with open(f"/proc/{pid}/limits") as file:  # noqa: PTH123
        return file.read()
