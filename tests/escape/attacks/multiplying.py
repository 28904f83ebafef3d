"""Attacks with processes: more of them than there may be, and such as outlive their run."""

from collections.abc import Mapping

from escape.attack import Attack, Seen, exited, reached, stays
from escape.world import World
from skillwire.core.yaml12 import JsonValue

_PROCESSES = 16


def _fewer(_: World) -> Mapping[str, JsonValue]:
    return {"most": 60}


def _many(_: World) -> Mapping[str, JsonValue]:
    return {"most": 5000}


def _too_many(_: World, seen: Seen) -> str:
    most = max(seen.watched.count, seen.watched.threads)
    return f"there were {most} processes and threads" if most > _PROCESSES else ""


_FEW = {"processes": _PROCESSES, "wall_seconds": 2}
PROCESSES = (
    Attack(
        "forks without end",
        """
made = 0
while made < GIVEN["most"]:
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        time.sleep(0.5)
        os._exit(0)
    made += 1
time.sleep(0.3)
""",
        _too_many,
        _many,
        control_plant=_fewer,
        limits=_FEW,
        outcome_check=reached("processes"),
    ),
    Attack(
        "forks in every child, too",
        """
deadline = time.monotonic() + 0.5
while time.monotonic() < deadline:
    if GIVEN["most"] < 100 and len(os.listdir("/proc")) > 5000:
        break
    attempt(os.fork)
    time.sleep(0.01)
time.sleep(0.2)
""",
        _too_many,
        _many,
        control="",
        because="nothing would bound it; the attack before this one has a control",
        limits=_FEW,
        outcome_check=reached("processes"),
    ),
    Attack(
        "starts threads without end",
        """
threading.stack_size(64 * 1024)
for _ in range(GIVEN["most"]):
    try:
        threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()
    except RuntimeError:
        break
time.sleep(0.3)
os._exit(0)
""",
        _too_many,
        _many,
        control_plant=_fewer,
        limits=_FEW,
        outcome_check=reached("processes"),
    ),
    Attack(
        "leaves zombies without end",
        """
for _ in range(GIVEN["most"]):
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        break
time.sleep(0.3)
""",
        _too_many,
        _many,
        control_plant=_fewer,
        limits=_FEW,
        outcome_check=reached("processes"),
    ),
)

_DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in range(1, 65):
        attempt(signal.signal, number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    libc.prctl(1, 0, 0, 0, 0)
    os.chdir("/")
    os.closerange(0, 64)
    time.sleep(30)
    os._exit(0)
os.wait()
time.sleep(0.05)
"""
DAEMONS = (
    Attack("leaves a daemon that ignores all signals", _DAEMON, stays, outcome_check=exited(0)),
    Attack(
        "leaves a daemon that holds its output open",
        """
if os.fork() == 0:
    os.setsid()
    time.sleep(30)
print("done")
time.sleep(0.05)
sys.stdout.flush()
os._exit(0)
""",
        stays,
        outcome_check=exited(0),
    ),
    Attack(
        "leaves a program of another name",
        """
import subprocess
subprocess.Popen(["/usr/bin/sleep", "30"], start_new_session=True, stdout=subprocess.DEVNULL)
os._exit(0)
""",
        stays,
        outcome_check=exited(0),
    ),
    Attack(
        "leaves a process that is stopped",
        """
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(30)
os.waitpid(child, os.WUNTRACED)
os._exit(0)
""",
        stays,
        outcome_check=exited(0),
    ),
    Attack(
        "leaves a process that is its parent's child",
        """
child = call("clone", 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)  # CLONE_PARENT
if child == 0:
    os.setsid()
    time.sleep(30)
time.sleep(0.05)
os._exit(0)
""",
        stays,
        outcome_check=exited(0),
    ),
    Attack(
        "leaves a family that adopts its own orphans",
        """
libc.prctl(36, 1, 0, 0, 0)
for _ in range(3):
    if os.fork() == 0:
        libc.prctl(36, 1, 0, 0, 0)
        if os.fork() == 0:
            os.setsid()
        time.sleep(30)
time.sleep(0.05)
os._exit(0)
""",
        stays,
        outcome_check=exited(0),
    ),
)
