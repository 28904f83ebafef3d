"""Runs beside and after each other: none sees anything of another."""

import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from escape.attack import Attack
from escape.attacks.arguments import careless
from escape.attacks.sharing import AFTER, BEFORE
from escape.conftest import ArenaOf
from escape.harness import ARENAS, IS_ROOT, USER, run_of, text_of, without_sandbox
from escape.machine import Machine
from escape.watching import inhabitants
from escape.world import World
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.outcome import Outcome
from skillwire.runner.policy import DEFAULT_UID

UID = DEFAULT_UID if IS_ROOT else USER
both_users = pytest.mark.parametrize("who", ARENAS)


def meeting(world: World, seconds: float) -> Mapping[str, JsonValue]:
    """Return where two runs would meet."""
    return {
        "name": world.mark,
        "token": world.token,
        "key": secrets.randbelow(2**30) + 1,
        "seconds": seconds,
    }


def outcome_of(outcome: Outcome | str) -> Outcome:
    assert isinstance(outcome, Outcome), outcome
    return outcome


@pytest.mark.requirement("EXEC-12")
@both_users
def test_a_run_finds_nothing_of_the_run_before(who: str, arena_of: ArenaOf, machine: Machine) -> None:
    arena = arena_of(who)
    with World(machine, arena.uid) as world:
        place = meeting(world, 0)

        for _ in range(3):  # The last of these is a sandbox that was started ahead.
            (before,) = arena.run([run_of(BEFORE, world.mark, place)], seconds=20)
            (after,) = arena.run([run_of(AFTER, world.mark, place)], seconds=20)

            assert outcome_of(before).exit_code == 0, outcome_of(before).stderr
            assert world.token in text_of(outcome_of(before))  # It is in its own output.
            assert outcome_of(after).exit_code == 0, outcome_of(after).stderr
            assert world.token not in text_of(outcome_of(after))


@pytest.mark.requirement("EXEC-12")
@both_users
def test_two_runs_at_the_same_time_do_not_see_each_other(
    who: str, arena_of: ArenaOf, machine: Machine
) -> None:
    arena = arena_of(who)
    with World(machine, arena.uid) as world:
        place = meeting(world, 1.0)
        runs = [run_of(BEFORE, world.mark, place), run_of(AFTER, world.mark, place)]

        before, after = arena.run(runs, seconds=30)

    assert outcome_of(before).exit_code == 0, outcome_of(before).stderr
    assert outcome_of(after).exit_code == 0, outcome_of(after).stderr
    assert world.token not in text_of(outcome_of(after))
    assert inhabitants(arena.pid) == []


def test_without_a_sandbox_a_run_finds_what_was_left(machine: Machine) -> None:
    with World(machine, UID) as world:
        place = meeting(world, 0)
        before = Attack(BEFORE.name, BEFORE.script, BEFORE.judge, lambda _: place)
        after = Attack(AFTER.name, AFTER.script, AFTER.judge, lambda _: place)

        without_sandbox(before, world)
        Path(world.folder, "out", f"left-{world.mark}").unlink()
        found = without_sandbox(after, world)

    Path("/tmp", f"left-{world.mark}").unlink(missing_ok=True)
    Path("/dev/shm", f"left-{world.mark}").unlink(missing_ok=True)
    Path("/var/tmp", f"left-{world.mark}").unlink(missing_ok=True)
    assert world.token in found.text


def test_a_careless_server_runs_values_as_commands(machine: Machine, tmp_path: Path) -> None:
    """The control of all attacks with arguments: a command line that is put together from values."""
    script = tmp_path / "script.py"
    script.write_text("pass")
    touched = tmp_path / "touched"

    subprocess.run(careless(f"x; touch {touched}", script), shell=True, check=True, timeout=20)

    assert touched.exists()


@pytest.mark.proof
@pytest.mark.requirement("EXEC-12")
@both_users
def test_after_each_run_nothing_of_it_is_left(who: str, arena_of: ArenaOf, machine: Machine) -> None:
    arena = arena_of(who)
    script = "for _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(60)\n"
    stays = Attack("leaves five processes", script, BEFORE.judge)

    for _ in range(20):
        with World(machine, arena.uid) as world:
            (outcome,) = arena.run([run_of(stays, world.mark, {})], seconds=20)

            assert inhabitants(arena.pid) == []
            assert outcome_of(outcome).exit_code == 0


@pytest.mark.requirement("EXEC-12")
@both_users
def test_a_script_is_what_it_should_be_when_seen_from_outside(
    who: str, arena_of: ArenaOf, machine: Machine
) -> None:
    arena = arena_of(who)
    still = Attack("holds still", "hold(0.6)", BEFORE.judge)
    with World(machine, arena.uid) as world:
        seen = arena.attack(still, world)
    here = {name: Path(f"/proc/self/ns/{name}").readlink().name for name in seen.watched.worlds}

    assert seen.watched.statuses, "it was not seen at all"
    for status in seen.watched.statuses:
        assert set(status["Uid"].split()) == {str(arena.uid)}
        assert set(status["Gid"].split()) == {str(arena.uid)}
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert {int(status[name], 16) for name in status if name.startswith("Cap")} == {0}
        assert set(status["Groups"].split()) <= {str(arena.uid)}
    assert {"user", "net", "mnt", "pid", "ipc", "uts"} <= {
        name for name, own in seen.watched.worlds.items() if own != here[name]
    }
    limits = {line[:26].strip(): line[26:].split()[:2] for line in seen.watched.limits.splitlines()}
    assert limits["Max core file size"] == ["0", "0"]
    assert limits["Max realtime priority"] == ["0", "0"]
    assert limits["Max locked memory"] == ["0", "0"]
    assert limits["Max open files"] == ["256", "256"]
    assert seen.watched.families == set()
    assert {one.split(":")[0] for one in seen.watched.descriptors if not one.startswith("/")} == {"pipe"}


@pytest.mark.requirement("EXEC-12")
@both_users
def test_a_long_run_does_not_hold_up_a_short_one(who: str, arena_of: ArenaOf, machine: Machine) -> None:
    arena = arena_of(who)
    says_when = Attack("says when it ran", "print(time.monotonic())", BEFORE.judge)
    slow = Attack("sleeps", f"time.sleep(1.5)\n{says_when.script}", BEFORE.judge)
    with World(machine, arena.uid) as world:
        runs = [run_of(slow, world.mark, {}), run_of(says_when, world.mark + "q", {})]
        long, short = (float(outcome_of(answer).stdout) for answer in arena.run(runs, seconds=60))

    assert short < long
