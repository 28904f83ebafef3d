"""Attacks on the sandbox, each judged from outside of it."""

from collections.abc import Mapping

import pytest
from _pytest.mark import ParameterSet

from escape.attack import Attack
from escape.catalog import ALL, ARGUMENTS, CREDENTIALS, LIMITS, OUTPUTS, OUTSIDE, REPRESENTATIVES, TEXTS
from escape.conftest import ArenaOf
from escape.harness import ARENAS, IS_ROOT, MOST_RSS, USER, without_sandbox
from escape.machine import Machine
from escape.world import World
from skillwire.runner.policy import DEFAULT_UID


def tier(attack: Attack) -> tuple[pytest.MarkDecorator, ...]:
    return () if attack.name in REPRESENTATIVES else (pytest.mark.proof,)


def against(group: Mapping[str, tuple[Attack, ...]]) -> list[ParameterSet]:
    """Return each attack of a group for each kind of user."""
    attacks = [attack for attacks in group.values() for attack in attacks]
    return [
        pytest.param(who, attack, id=f"{who}-{attack.name}", marks=tier(attack))
        for who in ARENAS
        for attack in attacks
    ]


def hold_against(attack: Attack, who: str, arena_of: ArenaOf) -> None:
    """Run an attack in a sandbox, and see that it reaches nothing, leaves nothing and is told truly."""
    arena = arena_of(who)
    with World(arena.machine, arena.uid) as world:
        seen = arena.attack(attack, world)

        reached = attack.judge(world, seen)

        assert seen.error == ""
        assert reached == ""
        assert seen.left == ()
        assert seen.outcome is not None
        problem = attack.outcome_check(seen.outcome)
        assert problem == ""
        assert seen.watched.capabilities == 0
        assert seen.watched.uids <= {arena.uid}
    assert arena.most_memory() < MOST_RSS


@pytest.mark.requirement("EXEC-10")
@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(("who", "attack"), against(OUTSIDE))
def test_nothing_outside_is_reached_when_a_script(who: str, attack: Attack, arena_of: ArenaOf) -> None:
    hold_against(attack, who, arena_of)


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize(("who", "attack"), against(CREDENTIALS))
def test_no_credential_comes_out_when_a_script(who: str, attack: Attack, arena_of: ArenaOf) -> None:
    hold_against(attack, who, arena_of)


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(("who", "attack"), against(LIMITS))
def test_no_limit_gives_way_when_a_script(who: str, attack: Attack, arena_of: ArenaOf) -> None:
    hold_against(attack, who, arena_of)


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize(("who", "attack"), against(ARGUMENTS))
def test_values_stay_values_when_a_script(who: str, attack: Attack, arena_of: ArenaOf) -> None:
    hold_against(attack, who, arena_of)


@pytest.mark.requirement("EXEC-17")
@pytest.mark.parametrize(("who", "attack"), against(OUTPUTS))
def test_only_ordinary_files_come_out_when_a_script(who: str, attack: Attack, arena_of: ArenaOf) -> None:
    hold_against(attack, who, arena_of)


@pytest.mark.requirement("EXEC-10")
@pytest.mark.parametrize(("who", "attack"), against(TEXTS))
def test_text_is_only_text_when_a_script(who: str, attack: Attack, arena_of: ArenaOf) -> None:
    hold_against(attack, who, arena_of)


CONTROLLED = [one for one in ALL if one.control == "user" or (one.control == "root" and IS_ROOT)]


@pytest.mark.parametrize("attack", [pytest.param(one, id=one.name, marks=tier(one)) for one in CONTROLLED])
def test_without_a_sandbox_it_works_when_a_script(attack: Attack, machine: Machine) -> None:
    uid = DEFAULT_UID if IS_ROOT else USER
    with World(machine, uid) as world:
        seen = without_sandbox(attack, world)
        reached = attack.judge(world, seen)

    assert reached, seen.text[-2000:]
