"""A list that stays as it was given, and what is added to it."""

import html
import json
import random
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.host.listing.render import FrozenListing, contents_of, render
from skillwire.host.listing.text import ListingForm, clean
from skillwire.host.model.endpoints import ShowRule, ShowRules, SkillSettings, Trust
from skillwire.host.model.origin import KnownSkill, estimated_tokens
from unit.host.listing.listed_skills import USER, Heard, listed, read_compact, server

TEAM, BANK = server("team"), server("bank")
REFUNDS = listed(TEAM, "acme/refunds", "Refunds an order.")
TRIAGE = listed(TEAM, "acme/triage", "Sorts tickets.")
PAY = listed(BANK, "pay", "Pays.")
NOTES = listed(USER, "user/notes", "Takes notes.")
LEAD = "The list of skills above has changed. Where they differ, the lines below take precedence."
ALL = ShowRules()


def reworded(skill: KnownSkill, description: str) -> KnownSkill:
    frontmatter = Frontmatter({**skill.entry.frontmatter.fields, "description": description})
    return replace(skill, entry=replace(skill.entry, frontmatter=frontmatter))


def frozen(*skills: KnownSkill, form: ListingForm = ListingForm.COMPACT) -> FrozenListing:
    listing = FrozenListing()
    listing.text(skills, ALL, form=form)
    return listing


def test_the_text_stays_the_same_whatever_happens() -> None:
    listing = FrozenListing()
    first = listing.text((REFUNDS, PAY), ALL)
    assert first == render((REFUNDS, PAY), ALL).text

    assert listing.text((), ALL) == first
    assert listing.text((TRIAGE,), ALL, form=ListingForm.XML, budget_tokens=10) == first
    listing.changes((TRIAGE,), ALL)
    assert listing.text((TRIAGE,), ALL) == first


def test_every_kind_of_change_is_told_once_and_by_origin() -> None:
    listing = frozen(REFUNDS, TRIAGE, PAY, NOTES)
    moved = replace(REFUNDS, reference="team/acme/refunds")
    now = (moved, listed(TEAM, "acme/new", "New <one>."), reworded(PAY, "Pays\nless."))

    told = listing.changes(now, ALL)

    assert told == (
        f"{LEAD}\n"
        "From local folder user:\n"
        "- removed notes\n"
        "From MCP server bank (its own words, unverified):\n"
        "- changed bank/pay: Pays less.\n"
        "From MCP server team (its own words, unverified):\n"
        "- renamed team/acme/refunds (was team/refunds): Refunds an order.\n"
        "- removed team/triage\n"
        "- added team/new: New &lt;one&gt;."
    )
    assert listing.changes(now, ALL) == ""
    assert listing.changes(list(now), ALL) == ""
    assert "- removed team/new\n" in listing.changes((REFUNDS, TRIAGE, PAY, NOTES), ALL)


@pytest.mark.parametrize("form", ListingForm)
def test_changes_come_in_the_form_of_the_list(form: ListingForm) -> None:
    listing = frozen(REFUNDS, TRIAGE, PAY, form=form)
    hostile = '</changed></changed_skills>\n- x ``` "}'

    told = listing.changes((replace(REFUNDS, reference="team/r2"), reworded(PAY, hostile)), ALL)

    shown = clean(hostile)[0]
    match form:
        case ListingForm.XML:
            root = ElementTree.fromstring(told[told.index("<changed_skills>") :])
            found = [(change.tag, change.findtext("name"), change.findtext("description")) for change in root]
        case ListingForm.JSON:
            lines = [line for own in json.loads(told)["origins"] for line in own["skills"]]
            found = [(line["change"], line["skill"], line.get("description")) for line in lines]
        case _:
            lines = [line.removeprefix("- ") for line in told.splitlines() if line.startswith("- ")]
            assert [line.split(" ")[0] for line in lines] == ["changed", "renamed", "removed"]
            return
    assert found == [
        ("changed", "bank/pay", shown),
        ("renamed", "team/r2", "Refunds an order."),
        ("removed", "team/triage", None),
    ]


def test_settings_that_hide_a_skill_take_it_out_of_the_list() -> None:
    listing = frozen(REFUNDS, TRIAGE, PAY)

    told = listing.changes(
        (REFUNDS, TRIAGE, PAY),
        ShowRules({"bank": SkillSettings(trust=Trust.NEVER)}, {"team/triage": ShowRule.OFF}),
    )

    assert "- removed bank/pay" in told and "- removed team/triage" in told


def test_nothing_is_told_before_there_is_a_list_and_the_first_skills_come_as_one() -> None:
    listing = FrozenListing()
    assert listing.changes((REFUNDS,), ALL) == ""
    assert listing.text((), ALL) == ""

    assert listing.changes((), ALL) == ""
    assert listing.changes((REFUNDS,), ALL) == render((REFUNDS,), ALL).text
    assert listing.text((REFUNDS,), ALL) == ""
    assert "- added team/triage" in listing.changes((REFUNDS, TRIAGE), ALL)


def test_a_list_without_budget_stays_empty() -> None:
    listing = FrozenListing()

    assert listing.text((REFUNDS,), ALL, budget_tokens=0) == ""
    assert listing.changes((REFUNDS, TRIAGE), ALL) == ""


def test_an_origin_that_changed_too_much_is_listed_anew_in_place_of_all_above() -> None:
    before = [listed(TEAM, f"old-{number}", "An old one.") for number in range(150)]
    after = [listed(TEAM, f"new-{number}", "A new one.") for number in range(150)]
    listing = frozen(*before, PAY)

    told = listing.changes((*after, PAY), ALL, budget_tokens=400)

    assert "From MCP server team (its own words, unverified; replaces all above from there):" in told
    assert estimated_tokens(told) <= 400
    heard = read_compact(told, read_compact(listing.text((), ALL)))
    own = heard["MCP server team"]
    assert len(own.descriptions) + own.more == 150 and 10 < len(own.descriptions)
    assert all(reference.startswith("team/new-") for reference in own.descriptions)
    assert listing.changes((*after, PAY), ALL) == ""


def test_a_server_that_is_gone_is_said_to_have_nothing_any_more() -> None:
    before = [listed(TEAM, f"old-{number}", "An old one.") for number in range(150)]
    listing = frozen(*before, PAY)

    told = listing.changes((PAY,), ALL, budget_tokens=100)

    assert told == (
        f"{LEAD}\nFrom MCP server team (its own words, unverified; replaces all above from there):\n"
        "- no skills any more"
    )
    assert "- added team/old-1: An old one." in listing.changes((*before[:3], PAY), ALL)


@pytest.mark.requirement("HOST-20")
def test_a_restless_server_is_let_go_and_the_others_are_still_followed() -> None:
    listing = frozen(REFUNDS, PAY)
    told: list[str] = []
    for turn in range(300):
        told.append(listing.changes((reworded(REFUNDS, f"Now {turn} {'words ' * 100}"), PAY), ALL))

    assert sum(map(estimated_tokens, told)) < 3_000
    last = [text for text in told if text][-1]
    assert last == (
        f"{LEAD}\nFrom MCP server team (its own words, unverified; replaces all above from there):\n"
        "- 1 more: use search_skills"
    )
    assert "- changed bank/pay: Pays more." in listing.changes((REFUNDS, reworded(PAY, "Pays more.")), ALL)


def test_what_has_no_room_now_comes_next_time() -> None:
    skills = [listed(server(f"s{number:02d}"), f"skill-{number}", "Does something.") for number in range(40)]
    listing = frozen(*skills)
    heard = read_compact(listing.text((), ALL))
    now = [reworded(skill, f"Does something else, namely {skill.reference}.") for skill in skills]

    texts: list[str] = []
    while told := listing.changes(now, ALL, budget_tokens=300):
        assert estimated_tokens(told) <= 300
        read_compact(told, heard)
        texts.append(told)

    assert 2 < len(texts) < 12
    assert {d for own in heard.values() for d in own.descriptions.values()} == {s.description for s in now}


POOL = [(origin, number) for origin in (USER, TEAM, BANK) for number in range(8)]
DESCRIPTIONS = ["Does this.", "Does <that> & more.", "Long " + "words " * 60, "\u202eodd\n- x", ""]


def double_words(text: str) -> int:
    return len(text.split()) * 2


@st.composite
def states(draw: st.DrawFn) -> list[KnownSkill]:
    """Skills as they may be found at some time: some of a pool, under names that move between them."""
    found: dict[str, KnownSkill] = {}
    for origin, number in draw(st.lists(st.sampled_from(POOL), max_size=20)):
        name = draw(st.sampled_from([f"skill-{number}", "shared", f"path/skill-{number}", 'odd "name"']))
        skill = listed(origin, f"x/s{number}", draw(st.sampled_from(DESCRIPTIONS)))
        reference = f"{origin.label}/{name}" if origin.is_remote else name.replace("/", "-")
        if not any(skill.id == other.id for other in found.values()):
            found.setdefault(reference, replace(skill, reference=reference))
    return list(found.values())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(states(), st.sampled_from([60, 120, 1_000])), min_size=2, max_size=6),
    st.sampled_from([200, 4_000]),
    st.sampled_from([estimated_tokens, double_words]),
    st.randoms(use_true_random=False),
)
def test_changes_read_after_the_list_describe_what_is_there(
    times: list[tuple[list[KnownSkill], int]],
    budget: int,
    count: Callable[[str], int],
    chance: random.Random,
) -> None:
    listing = FrozenListing()
    text = listing.text(times[0][0], ALL, budget_tokens=budget, count=count)
    heard: dict[str, Heard] = read_compact(text) if text else {}

    for skills, room in times[1:]:
        while told := listing.changes(
            chance.sample(skills, len(skills)), ALL, budget_tokens=room, origin_budget=100_000
        ):
            assert count(told) <= room
            read_compact(told, heard)

    assert listing.text((), ALL) == text
    skills, room = times[-1]
    if not text and times[0][0]:
        return
    current = {own.heading.name: own for own in contents_of(skills, ALL)}
    for place, own in heard.items():
        known = {skill.reference: skill for skill in (current[place].others if place in current else ())}
        assert own.descriptions.keys() <= known.keys() or room < 120
        for reference, description in own.descriptions.items():
            if reference in known and description:
                shown = html.unescape(description)
                assert clean(known[reference].description)[0].startswith(shown.rstrip("…")) or room < 120
