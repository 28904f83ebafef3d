"""Names that are easily taken for another origin's: found, however many names there are."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.host.model.lookalikes import (
    MAX_PAIRS,
    Lookalikes,
    Origins,
    are_alike,
    skeleton,
    skeleton_of_name,
)
from skillwire.host.model.naming import view_of
from unit.host.registry.remotes import record

CPU_SECONDS = 3.0

NAMES = st.text(alphabet="abmrnwvil015-", min_size=4, max_size=9)


def named(**origins: str) -> dict[str, Origins]:
    """Return names, written with _ for -, and the labels of those who have them."""
    return {name.replace("_", "-"): frozenset(labels.split()) for name, labels in origins.items()}


def is_one_slip(one: str, other: str) -> bool:
    """Say the same as `are_alike` about letters, by trying everything."""
    if one == other:
        return False
    shorter = {one[:i] + one[i + 1 :] for i in range(len(one))}
    replaced = {one[:i] + letter + one[i + 1 :] for i in range(len(one)) for letter in set(other)}
    swapped = {one[:i] + one[i + 1] + one[i] + one[i + 2 :] for i in range(len(one) - 1)}
    longer = {other[:i] + other[i + 1 :] for i in range(len(other))}
    return other in shorter | replaced | swapped or one in longer


@pytest.mark.requirement("ASK-07")
@pytest.mark.parametrize(
    "other",
    ["refund5", "refund", "refundss", "refudns", "refvnds", "re-funds", "xefunds", "refunds-", "erfunds"],
)
def test_a_name_one_slip_away_from_another_servers_is_told(other: str) -> None:
    found = Lookalikes().among({"refunds": frozenset({"shop"}), other: frozenset({"evil"})})

    assert found == (tuple(sorted(("refunds", other))),)


@pytest.mark.requirement("ASK-07")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("refunds", "returns"),
        ("report-1", "report-2"),
        ("report-1", "report-11"),
        ("abc", "abd"),
        ("refunds", "refunds-eu"),
        ("deploy", "deplyo-x"),
    ],
)
def test_other_names_and_numbers_are_left_alone(one: str, other: str) -> None:
    assert Lookalikes().among({one: frozenset({"a"}), other: frozenset({"b"})}) == ()


@pytest.mark.requirement("ASK-07")
def test_an_origin_that_has_both_names_means_both() -> None:
    lookalikes = Lookalikes()

    assert lookalikes.among(named(refund="a", refunds="a")) == ()
    assert lookalikes.among(named(refund="a b", refunds="a b")) == ()
    assert lookalikes.among(named(refund="a", refunds="a b")) == ()
    assert lookalikes.among(named(refund="a c", refunds="a b")) == (("refund", "refunds"),)


@pytest.mark.requirement("ASK-07")
@given(st.lists(NAMES, min_size=2, max_size=12, unique=True), st.randoms())
@settings(max_examples=150, deadline=None)
def test_every_pair_that_is_alike_is_found_in_whatever_order(names: list[str], random: object) -> None:
    origins = {name: frozenset({name}) for name in names}
    expected = {(one, other) for one in names for other in names if one < other and are_alike(one, other)}

    assert set(Lookalikes().among(origins)) == expected
    assert Lookalikes().among(dict(reversed(origins.items()))) == tuple(sorted(expected))


@given(NAMES, NAMES)
@settings(max_examples=300, deadline=None)
def test_a_slip_is_one_letter_more_less_other_or_swapped(one: str, other: str) -> None:
    if is_one_slip(one, other) and not (any(map(str.isdigit, one)) or any(map(str.isdigit, other))):
        assert are_alike(one, other)
    if are_alike(one, other):
        assert is_one_slip(one, other) or skeleton(one) == skeleton(other)


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789-", max_size=20))
def test_the_quick_outline_is_the_skeleton(name: str) -> None:
    assert skeleton_of_name(name) == (skeleton(name) or ("" if not name.strip("-") else name))


@pytest.mark.requirement("ASK-07")
def test_a_notice_names_all_skills_that_have_either_name() -> None:
    skills = [
        record("shop", "skill://refunds", "shop/refunds"),
        record("mall", "skill://refunds", "mall/refunds"),
        record("evil", "skill://refund5", "evil/refund5"),
    ]

    view = view_of(1, skills, (), ())

    [notice] = [notice for notice in view.notices if notice.code == "similar-name"]
    assert (notice.subject, notice.requirement) == ("refund5, refunds", "ASK-07")
    assert notice.candidates == ("evil/refund5", "mall/refunds", "shop/refunds")


@pytest.mark.requirement("ASK-07")
def test_ten_thousand_names_that_are_all_alike_cost_little_and_are_not_all_told() -> None:
    letters = "abcdefghijklmnopqrstuv"
    names = {
        f"{'x' * 56}{a}{b}{c}": frozenset({"one" if a < "k" else "other"})
        for a in letters
        for b in letters
        for c in letters
    }
    assert len(names) > 10_000
    before = time.process_time()

    found = Lookalikes().among(names)

    assert time.process_time() - before < CPU_SECONDS
    assert len(found) == MAX_PAIRS


def test_the_same_names_are_not_compared_twice() -> None:
    lookalikes = Lookalikes()
    names = named(refunds="a", refund5="b")

    assert lookalikes.among(names) is lookalikes.among(dict(names))
