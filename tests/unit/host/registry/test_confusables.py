"""Labels that look alike: found, whatever script they are written in."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.host.model.lookalikes import confusable_labels, skeleton


@pytest.mark.requirement("NAME-06")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("acme", "аcmе"),  # Cyrillic
        ("acme", "ACME"),
        ("acme", "ＡＣＭＥ"),
        ("acme", "ac\u200bme"),
        ("acme", "a-c_m.e"),
        ("acme", "acrne"),
        ("acme", "ácmé"),
        ("acme", "АСМЕ"),  # Cyrillic capitals
        ("acme", "𝒶𝒸𝓂𝑒"),
        ("vault", "νault"),  # Greek
        ("web", "vveb"),
        ("tools", "t00ls"),
        ("billing", "bi1Iing"),
        ("billing", "bιllıng"),
        ("NAME", "ΝΑΜΕ"),  # Greek capitals
        ("paypal", "раура1"),
        ("team-1", "team-١"),  # Arabic digit
        ("refunds", "refund5"),
    ],
)
def test_labels_that_look_alike_have_one_skeleton(one: str, other: str) -> None:  # attack 33
    assert skeleton(one) == skeleton(other)
    assert confusable_labels([one, other, "unlike"]) == (tuple(sorted((one, other))),)


@pytest.mark.requirement("NAME-06")
def test_labels_that_differ_to_the_eye_are_left_alone() -> None:
    labels = [
        "acme",
        "acne",
        "github",
        "gitlab",
        "team-2",
        "team-3",
        "日本",
        "日木",
        "café-a",
        "café-b",
        "🦊",
        "🐙",
    ]

    assert confusable_labels(labels) == ()


@pytest.mark.requirement("NAME-06")
@pytest.mark.parametrize("label", ["Local", "1oca1", "lоcаl", "lo-cal", "LOCAL"])
def test_a_label_that_looks_like_the_word_for_this_machine_is_found(label: str) -> None:  # attack 33
    assert confusable_labels(["acme", label]) == (tuple(sorted((label, "local"))),)


def test_the_same_label_twice_is_no_pair_and_the_order_does_not_matter() -> None:
    assert confusable_labels(["acme", "acme"]) == ()
    assert confusable_labels(["b0b", "acme", "bob", "ACME"]) == (("ACME", "acme"), ("b0b", "bob"))
    assert confusable_labels(["ACME", "bob", "acme", "b0b"]) == (("ACME", "acme"), ("b0b", "bob"))


@settings(deadline=None)
@given(st.text(max_size=20))
def test_a_skeleton_is_its_own_skeleton(label: str) -> None:
    assert skeleton(skeleton(label)) == skeleton(label)


@settings(deadline=None)
@given(st.lists(st.text(max_size=8), max_size=8))
def test_groups_hold_different_labels_of_one_skeleton(labels: list[str]) -> None:
    for group in confusable_labels(labels):
        assert len(set(group)) == len(group) > 1
        assert set(group) <= {*labels, "local"}
        assert len({skeleton(label) for label in group}) == 1
