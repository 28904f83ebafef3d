"""The attacks themselves: enough of them, told apart, and most of them proven to work."""

from escape.catalog import ALL


def test_there_are_many_attacks() -> None:
    assert len(ALL) >= 90


def test_no_two_attacks_are_the_same() -> None:
    assert len({attack.name for attack in ALL}) == len(ALL)
    assert len({(attack.script, attack.name) for attack in ALL}) == len(ALL)


def test_most_attacks_have_a_control_and_the_others_say_why_not() -> None:
    controlled = [attack for attack in ALL if attack.control]

    assert len(controlled) >= len(ALL) * 3 // 4
    assert {attack.control for attack in controlled} == {"user", "root"}
    assert all(bool(attack.because) == (not attack.control) for attack in ALL)
