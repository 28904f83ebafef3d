"""Which skills are listed of all that are served."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import InvalidUriError
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.server.listed import ListedSkills
from skillwire.server.visibility import EVERYTHING_LISTED, ListingRules, pointer_to
from skillwire.sources import Snapshot


def entry(path: str, **metadata: JsonValue) -> SkillEntry:
    uri = SkillUri.build(path)
    said = {key.replace("_", "/"): value for key, value in metadata.items()}
    fields: dict[str, JsonValue] = {"name": uri.name, "description": "Use when testing.", "metadata": said}
    return SkillEntry(uri, Frontmatter(fields), None)


ENTRIES = tuple(
    [
        entry("acme/billing/ledger"),
        entry("acme/billing/refunds", skillwire_pinned="true"),
        entry("acme/old", skillwire_listed="false"),
        entry("acme/secret", skillwire_listed="false", skillwire_pinned="true"),
        entry("menu", skillwire_listed="perhaps"),
    ]
)


def listed(listing: ListingRules, *unlisted: str) -> list[str]:
    return [entry.uri.path for entry in listing.of(ENTRIES, unlisted)]


@pytest.mark.requirement("LIST-01")
@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        (ListingRules(), ["acme/billing/ledger", "acme/billing/refunds", "menu"]),
        (ListingRules(most=3), ["acme/billing/ledger", "acme/billing/refunds", "menu"]),
        (ListingRules(most=2), ["acme/billing/refunds"]),
        (ListingRules(most=0), ["acme/billing/refunds"]),
        (ListingRules(pins=("menu",), most=2), ["acme/billing/refunds", "menu"]),
        (ListingRules(pins=("acme",), most=2), ["acme/billing/ledger", "acme/billing/refunds"]),
        (ListingRules(pins=("*",), most=2), ["acme/billing/ledger", "acme/billing/refunds", "menu"]),
        (ListingRules(pins=("menu",)), ["acme/billing/ledger", "acme/billing/refunds", "menu"]),
        (ListingRules(unlisted=("acme/billing",)), ["menu"]),
        (
            ListingRules(unlisted=("acme/billing/ref",)),
            ["acme/billing/ledger", "acme/billing/refunds", "menu"],
        ),
        (ListingRules(unlisted=("acme",), pins=("acme",), most=0), []),
        (ListingRules(unlisted=("*",)), []),
    ],
)
def test_what_is_listed_is_what_the_operator_and_the_authors_say(
    listing: ListingRules, expected: list[str]
) -> None:
    assert listed(listing) == expected


def test_what_code_adds_unlisted_is_not_listed_whatever_else_is_said() -> None:
    assert listed(ListingRules(), "skill://menu/SKILL.md") == ["acme/billing/ledger", "acme/billing/refunds"]


@pytest.mark.parametrize(
    ("said", "is_listed"), [("false", False), (" False ", False), (False, False), ("no", True), (0, True)]
)
def test_an_author_keeps_a_skill_out_with_a_plain_false(said: JsonValue, is_listed: bool) -> None:
    assert bool(EVERYTHING_LISTED.of((entry("tea", skillwire_listed=said),))) == is_listed


@pytest.mark.parametrize("metadata", ["text", None, ["skillwire/listed"], 7])
def test_other_metadata_is_left_alone(metadata: JsonValue) -> None:
    tea = entry("tea")
    odd = replace(tea, frontmatter=Frontmatter({**tea.frontmatter.fields, "metadata": metadata}))

    assert EVERYTHING_LISTED.of((odd,)) == (odd,)


def test_when_all_are_listed_nothing_is_copied() -> None:
    entries = (entry("coffee"), entry("tea"))

    assert EVERYTHING_LISTED.of(entries) is entries


def test_a_listing_can_be_sent_to_another_process_and_compared() -> None:
    listing = ListingRules(pins=("/acme/billing/", "acme"), unlisted=("skill://docs",), most=10)

    assert pickle.loads(pickle.dumps(listing)) == listing == ListingRules(("acme",), ("docs",), 10)


@pytest.mark.parametrize("place", ["", "a/../b", "a//b", "a b://c"])
def test_what_can_be_no_place_is_refused(place: str) -> None:
    with pytest.raises(InvalidUriError):
        ListingRules(pins=(place,))
    with pytest.raises(InvalidUriError):
        ListingRules(unlisted=(place,))


def test_fewer_than_none_cannot_be_listed() -> None:
    with pytest.raises(ValueError, match="negative"):
        ListingRules(most=-1)


def test_a_pointer_tells_of_listed_skills_only() -> None:
    text = pointer_to(ENTRIES, listing=ListingRules(unlisted=("menu",)))

    assert "2 Agent Skills" in text
    assert "acme/old" not in text and "menu" not in text and "acme/billing/refunds" in text


def said(one: SkillEntry) -> dict[str, JsonValue]:
    metadata = one.frontmatter.fields["metadata"]
    assert isinstance(metadata, dict)
    return metadata


def is_in(one: SkillEntry, places: tuple[str, ...]) -> bool:
    return any(f"{one.uri.root}/".startswith(f"{place}/") for place in places)


SOME = [
    entry(path, **metadata)
    for path in ("a/one", "a/two", "b", "c/d")
    for metadata in ({}, {"skillwire_listed": "false"}, {"skillwire_pinned": "true"})
]
LISTINGS = [
    ListingRules(),
    ListingRules(most=1),
    ListingRules(unlisted=("a",)),
    ListingRules(pins=("a",), unlisted=("b",), most=0),
]


@pytest.mark.requirement("LIST-01")
@given(
    listing=st.sampled_from(LISTINGS),
    histories=st.lists(st.lists(st.sampled_from(SOME), unique_by=lambda one: one.uri.text), max_size=8),
    unlisted=st.sets(st.sampled_from(["skill://a/one/SKILL.md", "skill://b/SKILL.md"])),
)
def test_a_listing_that_follows_changes_is_what_one_from_the_beginning_is(
    listing: ListingRules, histories: list[list[SkillEntry]], unlisted: set[str]
) -> None:
    followed = ListedSkills(listing, unlisted)

    for chosen in histories:
        entries = tuple(sorted(chosen, key=lambda one: one.uri.text))
        expected = [
            one
            for one in entries
            if said(one).get("skillwire/listed") != "false"
            and not is_in(one, listing.unlisted)
            and one.uri.text not in unlisted
        ]
        if listing.most is not None and len(expected) > listing.most:
            expected = [
                one for one in expected if "skillwire/pinned" in said(one) or is_in(one, listing.pins)
            ]

        followed = followed.update(Snapshot.of(entries))
        assert followed.entries == listing.of(entries, unlisted) == tuple(expected)


def test_of_many_entries_only_those_are_judged_that_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    plain = ListingRules.is_hidden

    def noting(self: ListingRules, one: SkillEntry) -> bool:
        judged.append(one.uri.path)
        return plain(self, one)

    monkeypatch.setattr(ListingRules, "is_hidden", noting)
    many = [entry(f"skill-{number:03}") for number in range(100)]
    listing = ListedSkills().update(Snapshot.of(many))
    judged.clear()

    many[40] = entry("skill-040", skillwire_listed="false")
    many.append(entry("skill-100"))
    del many[7]
    listed = listing.update(Snapshot.of(many)).entries

    assert judged == ["skill-040", "skill-100"]
    assert len(listed) == 99
