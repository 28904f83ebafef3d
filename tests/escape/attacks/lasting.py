"""Attacks on time: computing without end, and waiting for ever."""

from collections.abc import Mapping

from escape.attack import Attack, got_all, stopped_at
from escape.world import World
from skillwire.core.yaml12 import JsonValue

_BURN = """
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

"""


def _long(_: World) -> Mapping[str, JsonValue]:
    return {"seconds": 20}


def _short(_: World) -> Mapping[str, JsonValue]:
    return {"seconds": 1.3}


_ONE_SECOND = {"cpu_seconds": 1, "wall_seconds": 15}
TIME = (
    Attack(
        "computes without end",
        _BURN + "burn(GIVEN['seconds'])",
        got_all,
        _long,
        control_plant=_short,
        limits=_ONE_SECOND,
        outcome_check=stopped_at("cpu_seconds"),
    ),
    Attack(
        "computes in many processes",
        _BURN
        + """
for _ in range(6):
    if os.fork() == 0:
        burn(GIVEN["seconds"] / 6)
        os._exit(0)
for _ in range(6):
    os.wait()
""",
        got_all,
        _long,
        control_plant=_short,
        limits=_ONE_SECOND,
        outcome_check=stopped_at("cpu_seconds"),
    ),
    Attack(
        "computes in processes that nobody waits for",
        _BURN
        + """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(int(GIVEN["seconds"] / 0.25)):
    if os.fork() == 0:
        burn(0.25)
        os._exit(0)
    attempt(os.wait)
""",
        got_all,
        lambda _: {"seconds": 2},
        limits=_ONE_SECOND,
        outcome_check=stopped_at("cpu_seconds"),
    ),
    Attack(
        "sleeps for ever",
        "time.sleep(1000)",
        got_all,
        control="",
        because="there is nothing to see in a process that sleeps",
        limits={"wall_seconds": 0.5},
        outcome_check=stopped_at("wall_seconds"),
    ),
    Attack(
        "stops itself",
        "os.kill(os.getpid(), signal.SIGSTOP)\nos.kill(0, signal.SIGSTOP)",
        got_all,
        control="",
        because="there is nothing to see in a process that is stopped",
        limits={"wall_seconds": 0.5},
        outcome_check=stopped_at("wall_seconds"),
    ),
    Attack(
        "ignores every signal and goes on for ever",
        """
for number in range(1, 65):
    attempt(signal.signal, number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    time.sleep(0.1)
""",
        got_all,
        control="",
        because="there is nothing to see in a process that goes on",
        limits={"wall_seconds": 0.5},
        outcome_check=stopped_at("wall_seconds"),
    ),
)
