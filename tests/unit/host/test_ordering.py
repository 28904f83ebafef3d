"""The order of a list, and who may see it: settings of the user, and hints of servers about their own."""

from dataclasses import replace

import pytest

from skillwire.core.yaml12 import JsonValue
from skillwire.host.listing.render import FrozenListing, render
from skillwire.host.model.endpoints import ShowRules, priority_of
from skillwire.host.model.errors import UnknownReferenceError
from skillwire.host.model.origin import KnownSkill
from unit.host.registry.remotes import record


def skill(label: str, name: str, priority: JsonValue = None) -> KnownSkill:
    found = record(label, f"skill://{name}", f"{label}/{name}")
    extra = {} if priority is None else {"annotations": {"priority": priority}}
    return replace(found, entry=replace(found.entry, extra=extra))


SKILLS = (skill("b", "alpha", 0.1), skill("b", "beta", 1), skill("b", "gamma"), skill("a", "zeta", 0))


def order_of(text: str) -> list[str]:
    names = [found.reference for found in SKILLS]
    return sorted((name for name in names if name in text), key=text.index)


@pytest.mark.requirement("ASK-35")
def test_skills_come_by_name_unless_the_servers_word_is_wanted() -> None:
    plain = render(SKILLS, ShowRules())
    wanted = render(tuple(reversed(SKILLS)), ShowRules(by_priority=True))

    assert order_of(plain.text) == ["a/zeta", "b/alpha", "b/beta", "b/gamma"]
    assert order_of(wanted.text) == ["a/zeta", "b/beta", "b/gamma", "b/alpha"]


@pytest.mark.requirement("ASK-35")
def test_where_room_is_short_what_matters_more_is_named() -> None:
    many = [skill("b", f"skill{number:03}", 0.9 if number == 77 else 0.2) for number in range(100)]

    short = render(many, ShowRules(by_priority=True), budget_tokens=150)

    assert "b/skill077" in short.text
    assert "b/skill099" not in short.text


@pytest.mark.requirement("ASK-35")
@pytest.mark.parametrize("odd", [True, "1", -1, 2, [], float("nan")])
def test_what_is_no_priority_counts_as_none(odd: JsonValue) -> None:
    assert priority_of(skill("a", "x", odd)) == priority_of(skill("a", "x"))


@pytest.mark.requirement("ASK-27")
def test_what_nobody_has_approved_is_in_no_list_and_cannot_be_loaded_by_a_model() -> None:
    show_rules = ShowRules()
    show_rules.show_only(lambda found: found.reference == "b/beta")

    text = render(SKILLS, show_rules).text

    assert order_of(text) == ["b/beta"]
    assert [found.reference for found in SKILLS if show_rules.may_model_load(found)] == ["b/beta"]
    with pytest.raises(UnknownReferenceError) as caught:
        show_rules.require_allowed(SKILLS[0], by_user=False)
    assert caught.value.candidates == ()
    show_rules.require_allowed(SKILLS[0], by_user=True)
    show_rules.require_allowed(SKILLS[1], by_user=False)


@pytest.mark.requirement("ASK-27")
def test_a_skill_that_is_approved_later_comes_as_a_change_and_goes_as_one() -> None:
    approved = {"b/beta"}
    show_rules = ShowRules()
    show_rules.show_only(lambda found: found.reference in approved)
    listing = FrozenListing()

    before = listing.text(SKILLS, show_rules)
    nothing = listing.changes(SKILLS, show_rules)
    approved.add("b/gamma")
    added = listing.changes(SKILLS, show_rules)
    approved.clear()
    removed = listing.changes(SKILLS, show_rules)

    assert order_of(before) == ["b/beta"]
    assert nothing == ""
    assert order_of(added) == ["b/gamma"]
    assert order_of(removed) == ["b/beta", "b/gamma"]
