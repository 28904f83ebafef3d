"""Ranking skills by words: what comes first, what is not found, and how much is looked at."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.entry import SkillEntry
from skillwire.core.skill import Skill
from skillwire.server.matching import MAX_QUERY, MAX_WORDS, Matcher, query_words
from skillwire.sources import Snapshot


def entry(path: str, description: str = "Use when asked.") -> SkillEntry:
    return Skill(path.rpartition("/")[2], path=path, description=description, body="Do it.\n").entry()


SHOP = Snapshot.of(
    [
        entry("acme/refunds", "Pays customers back. Use when an order is returned."),
        entry("acme/order-status", "Says where an order is. Use when asked about deliveries."),
        entry("brewing/tea", "Boils water. Use when thirsty."),
        entry("menu", "Ein Café für Ünïcode. Use when hungry."),
        entry("kanji", "日本語の書き方を教える。"),
        entry("csv-insights", "Looks into tables. Use when there are numbers."),
    ]
)


def names(query: str, snapshot: Snapshot = SHOP) -> list[str]:
    return [found.name for found in Matcher().ranked(snapshot, query)]


@pytest.mark.requirement("ASK-08")
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("refunds", "refunds"),
        ("REFUND", "refunds"),
        ("refunding", "refunds"),
        ("order", "order-status"),
        ("returned orders", "refunds"),
        ("where is my delivery", "order-status"),
        ("brewing", "tea"),
        ("cafe", "menu"),
        ("unicode", "menu"),
        ("日本語", "kanji"),
        ("csvinsights", "csv-insights"),
        ("csv insights", "csv-insights"),
        ("csv_insights", "csv-insights"),
    ],
)
def test_the_skill_that_fits_best_comes_first(query: str, first: str) -> None:
    assert names(query)[0] == first


@pytest.mark.requirement("ASK-08")
@pytest.mark.parametrize("query", ["", "   ", "!?%_-", "zebra", "ea", "x" * 1000])
def test_what_fits_nothing_finds_nothing(query: str) -> None:
    assert names(query) == []


@pytest.mark.requirement("ASK-08")
def test_a_rare_word_counts_for_more_than_one_that_every_skill_has() -> None:
    assert names("use when thirsty")[0] == "tea"


@pytest.mark.requirement("ASK-08")
def test_equals_come_in_the_order_of_their_uris() -> None:
    snapshot = Snapshot.of([entry(f"team-{letter}/report") for letter in "cab"])

    found = Matcher().ranked(snapshot, "report")

    assert [item.uri.text for item in found] == [f"skill://team-{letter}/report/SKILL.md" for letter in "abc"]


@pytest.mark.requirement("ASK-08")
def test_a_change_of_the_catalog_is_found_at_once() -> None:
    matcher, tea = Matcher(), entry("tea", "Boils water.")
    assert matcher.ranked(Snapshot.of([tea]), "coffee") == []

    coffee = entry("coffee", "Grinds beans.")

    assert matcher.ranked(Snapshot.of([tea, coffee], revision=2), "coffee") == [coffee]
    assert matcher.ranked(Snapshot.of([tea], revision=3), "coffee beans water") == [tea]


@given(st.text())
def test_no_query_raises_or_has_more_words_than_count(query: str) -> None:
    assert len(query_words(query)) <= MAX_WORDS
    assert len(names(query)) <= len(SHOP.entries)


def test_only_the_beginning_of_a_query_is_looked_at() -> None:
    assert query_words("x" * MAX_QUERY + " tea") == ["x" * MAX_QUERY]


@pytest.mark.requirement("ASK-08")
def test_ten_thousand_skills_are_looked_through_in_a_moment() -> None:
    words = [f"word{number}" for number in range(500)]
    entries = [
        entry(f"team/skill-{number}", " ".join(words[(number * step) % 500] for step in range(1, 25)))
        for number in range(10_000)
    ]
    matcher, snapshot = Matcher(), Snapshot.of(entries)
    matcher.ranked(snapshot, "x")

    started = time.process_time()
    found = matcher.ranked(snapshot, "skill-4711 word7")
    spent = time.process_time() - started

    assert found[0].name == "skill-4711"
    assert spent < 1.0  # It takes some 20 ms; this is for machines that are slow, and algorithms that are.
