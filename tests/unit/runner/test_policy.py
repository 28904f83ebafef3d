"""What an operator lets scripts have: requests are capped, and grants fit one script exactly."""

from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.runner import Limits, Policy, ScriptRule
from skillwire.runner.policy import DEFAULT_UID, MIB, MOST

SKILL = "skill://lab/SKILL.md"
SCRIPT = "scripts/a.py"
DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
NAMES = [one.name for one in fields(Limits)]


def test_a_script_that_asks_for_nothing_gets_the_default() -> None:
    limits = Limits()

    assert limits.with_requested({}, MOST) is limits


@pytest.mark.requirement("EXEC-12")
def test_a_request_is_granted_as_far_as_the_policy_goes() -> None:
    wanted = {"wall_seconds": 60.0, "memory_bytes": 10_000 * MIB, "processes": 4}

    granted = Limits().with_requested(wanted, MOST)

    assert (granted.wall_seconds, granted.memory_bytes, granted.processes) == (60, MOST.memory_bytes, 4)
    unasked = {name: value for name, value in asdict(granted).items() if name not in wanted}
    assert unasked == {name: value for name, value in asdict(Limits()).items() if name not in wanted}


@pytest.mark.requirement("EXEC-12")
@given(st.dictionaries(st.sampled_from([*NAMES, "secrets", "__class__"]), st.integers(1, 2**40)))
def test_no_request_gets_past_what_the_operator_allows(wanted: dict[str, float]) -> None:
    granted = asdict(Limits().with_requested(wanted, MOST))

    for name in NAMES:
        assert granted[name] == min(wanted.get(name, getattr(Limits(), name)), getattr(MOST, name))


def test_what_a_script_gets_unasked_it_may_ask_for() -> None:
    assert all(getattr(Limits(), name) <= getattr(MOST, name) for name in NAMES)


def test_scripts_never_run_as_root_by_default() -> None:
    assert Policy().uid == DEFAULT_UID != 0


def rule(*, origin: str = "", digest: str = "") -> ScriptRule:
    return ScriptRule(SKILL, SCRIPT, origin, digest)


def found(
    *rules: ScriptRule, origin: str = "", skill: str = SKILL, script: str = SCRIPT, digest: str = DIGEST
) -> ScriptRule | None:
    return Policy(rules=rules).rule_for(origin=origin, skill=skill, script=script, digest=digest)


@pytest.mark.requirement("EXEC-11")
def test_a_rule_is_for_one_script_of_one_skill_of_one_server() -> None:
    granted = rule(origin="team")

    assert found(granted, origin="team") is granted
    assert found(granted, origin="other") is None
    assert found(granted, origin="") is None
    assert found(granted, origin="team", skill="skill://lab2/SKILL.md") is None
    assert found(granted, origin="team", script="scripts/b.py") is None


@pytest.mark.requirement("EXEC-11")
def test_a_rule_for_our_own_skills_is_not_for_those_of_servers() -> None:
    assert found(rule(), origin="team") is None


@pytest.mark.requirement("EXEC-11")
def test_a_rule_with_a_digest_is_for_exactly_these_bytes() -> None:
    granted = rule(digest=DIGEST)

    assert found(granted) is granted
    assert found(granted, digest=OTHER) is None
    assert found(granted, digest="") is None


def test_the_first_rule_that_fits_counts() -> None:
    first, second = rule(digest=OTHER), rule()

    assert found(first, second) is second
    assert found(first, second, digest=OTHER) is first
