"""Finding skills by words: what comes first, what is not found, and going on where an answer ended."""

from collections.abc import AsyncGenerator

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core import Frontmatter
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import InvalidCursorError, InvalidUriError, LimitError, SourceError
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.server import search as search_module
from skillwire.server.search import MAX_QUERY, NO_FILTERS, Filters, ServerSearch, SkillSearchPage
from skillwire.sources import Snapshot
from talking import entry_with_files


def entry(path: str, description: str = "Use when asked.", **fields: JsonValue) -> SkillEntry:
    uri = SkillUri.build(path)
    return SkillEntry(uri, Frontmatter({"name": uri.name, "description": description, **fields}), None)


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


@pytest.fixture
async def search() -> AsyncGenerator[ServerSearch]:
    made = ServerSearch()
    yield made
    made.close()


def paths(page: SkillSearchPage) -> list[str]:
    return [match.entry.uri.path for match in page.matches]


async def walked(
    search: ServerSearch, snapshot: Snapshot, query: str, limit: int, filters: Filters = NO_FILTERS
) -> list[str]:
    """Follow the cursors of a search to its end."""
    found: list[str] = []
    cursor = None
    while True:
        page = await search.find(snapshot, query, limit=limit, cursor=cursor, filters=filters)
        found += paths(page)
        assert page.total is not None and len(found) <= page.total
        if page.cursor is None:
            assert len(found) == page.total
            return found
        cursor = page.cursor


@pytest.mark.requirement("ASK-08")
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("refunds", "acme/refunds"),
        ("REFUND", "acme/refunds"),
        ("refunding", "acme/refunds"),
        ("order", "acme/order-status"),
        ("returned orders", "acme/refunds"),
        ("where is my delivery", "acme/order-status"),
        ("brewing", "brewing/tea"),
        ("cafe", "menu"),
        ("unicode", "menu"),
        ("日本語", "kanji"),
        ("csvinsights", "csv-insights"),
        ("csv insights", "csv-insights"),
        ("csv_insights", "csv-insights"),
        ("csvInsights", "csv-insights"),
        ("thirs", "brewing/tea"),
        ("use when thirsty", "brewing/tea"),
    ],
)
async def test_the_skill_that_fits_best_comes_first(search: ServerSearch, query: str, first: str) -> None:
    assert paths(await search.find(SHOP, query))[0] == first


@pytest.mark.requirement("ASK-08")
@pytest.mark.parametrize("query", ["", "   ", "!?%_-", "zebra", "ea", "x" * 1000])
async def test_what_fits_nothing_finds_nothing(search: ServerSearch, query: str) -> None:
    assert await search.find(SHOP, query) == SkillSearchPage((), 0, None)


@pytest.mark.requirement("ASK-08")
async def test_who_has_all_words_comes_before_who_has_the_rarer_one(search: ServerSearch) -> None:
    some = [entry(f"s{number}", "Sends letters.") for number in range(5)]
    both = entry("z", "It is about many things, and among them it sends parcels and, now and then, letters.")
    snapshot = Snapshot.of([*some, both, entry("a", "Parcels, parcels.")])

    assert paths(await search.find(snapshot, "parcels letters"))[0] == "z"


@pytest.mark.requirement("ASK-08")
async def test_equals_come_in_the_order_of_their_uris_also_after_changes(search: ServerSearch) -> None:
    reports = [entry(f"team-{letter}/report") for letter in "ceagdbf"]

    for count in (3, 5, 7):
        found = await search.find(Snapshot.of(reports[:count], revision=count), "report")

        assert paths(found) == sorted(report.uri.path for report in reports[:count])


@pytest.mark.parametrize(
    "query",
    [
        'tea" OR "refunds',
        "tea* AND NOT name:refunds",
        "NEAR(tea water, 5)",
        "{name description} : tea",
        "^tea",
        'tea") OR (name : "refunds',
        "tea'; DROP TABLE skills; --",
        "tea\x00refunds",
        "-tea +refunds",
    ],
)
async def test_a_query_is_words_and_never_a_language(search: ServerSearch, query: str) -> None:
    found = paths(await search.find(SHOP, query))

    assert "brewing/tea" in found
    assert ("acme/refunds" in found) == ("refunds" in query)
    assert paths(await search.find(SHOP, "tea")) == ["brewing/tea"]


@settings(max_examples=150, deadline=None)
@given(query=st.text(max_size=MAX_QUERY), below=st.sampled_from(["*", "acme", "acme/refunds"]))
def test_no_query_raises_or_finds_what_is_not_there(query: str, below: str) -> None:
    async def ask() -> SkillSearchPage:
        search = ServerSearch()
        try:
            return await search.find(SHOP, query, filters=Filters(below))
        finally:
            search.close()

    page = anyio.run(ask)

    assert page.total == len(page.matches) <= len(SHOP.entries)
    assert below == "*" or all(path.startswith("acme/") for path in paths(page))


@pytest.mark.requirement("ASK-08")
async def test_tags_and_what_a_skill_runs_with_are_found_too(search: ServerSearch) -> None:
    books = entry("books", metadata={"tags": "finance, ledger"}, compatibility="Needs ghostscript.")
    snapshot = Snapshot.of([*SHOP.entries, books])

    for query in ("ledger", "finance", "ghostscript"):
        assert paths(await search.find(snapshot, query)) == ["books"]


# Changes


@pytest.mark.requirement("ASK-08")
async def test_a_change_of_the_catalog_is_found_at_once(search: ServerSearch) -> None:
    tea, coffee = entry("tea", "Boils water."), entry("coffee", "Grinds beans.")

    assert paths(await search.find(Snapshot.of([tea]), "coffee")) == []
    assert paths(await search.find(Snapshot.of([tea, coffee], revision=2), "coffee")) == ["coffee"]
    assert paths(await search.find(Snapshot.of([tea], revision=3), "coffee beans water")) == ["tea"]


names = st.sampled_from(["tea", "coffee", "cocoa", "water-tea", "milk"])
texts = st.sampled_from(["Boils water.", "Boils milk and water.", "Grinds beans.", "日本のお茶"])


@settings(max_examples=60, deadline=None)
@given(histories=st.lists(st.dictionaries(names, texts, max_size=5), min_size=1, max_size=5))
def test_an_index_that_follows_changes_answers_as_one_that_is_new(histories: list[dict[str, str]]) -> None:
    async def compare() -> None:
        following = ServerSearch()
        kept: dict[tuple[str, str], SkillEntry] = {}
        for revision, chosen in enumerate(histories, 1):
            entries = [kept.setdefault(item, entry(*item)) for item in chosen.items()]
            snapshot = Snapshot.of(entries, revision=revision)
            fresh = ServerSearch()
            for query in ("tea water", "boil", "milk beans", "お茶"):
                assert await following.find(snapshot, query) == await fresh.find(snapshot, query)
            fresh.close()
        following.close()

    anyio.run(compare)


# Going on


@pytest.mark.requirement("ASK-08")
@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_pages_of_any_size_add_up_to_every_match_once(search: ServerSearch, limit: int) -> None:
    snapshot = Snapshot.of(
        [
            entry(f"team/s{number}", "Tea. " * (1 + number % 4) + "Water." * (number % 3))
            for number in range(20)
        ]
    )

    whole = paths(await search.find(snapshot, "tea water", limit=50))

    assert await walked(search, snapshot, "tea water", limit) == whole
    assert len(whole) == 20


@pytest.mark.requirement("ASK-08")
async def test_another_replica_goes_on_where_the_first_one_ended(search: ServerSearch) -> None:
    entries = [entry(f"s{number}", f"Tea number {number % 3}.") for number in range(9)]
    other = ServerSearch()
    # The other one came to the same skills by other ways.
    await other.find(Snapshot.of([entry("gone", "Tea and more tea."), *entries[4:]]), "tea")
    later = Snapshot.of(entries, revision=2)
    first = await search.find(later, "tea 1", limit=4)

    second = await other.find(later, "tea 1", limit=50, cursor=first.cursor)
    other.close()

    whole = await search.find(later, "tea 1", limit=50)
    assert paths(first) + paths(second) == paths(whole)


@pytest.mark.requirement("ASK-08")
async def test_when_skills_come_and_go_nothing_that_stays_is_lost_or_told_twice(search: ServerSearch) -> None:
    entries = [entry(f"s{number}", "Tea.") for number in range(8)]
    first = await search.find(Snapshot.of(entries), "tea", limit=3)
    assert paths(first) == ["s0", "s1", "s2"]
    new = [entry(f"n{number}", "Tea" + " and milk, water and cocoa" * 5) for number in range(50)]

    after_more = await search.find(
        Snapshot.of([*entries, *new], revision=2), "tea", limit=5, cursor=first.cursor
    )
    after_less = await search.find(
        Snapshot.of([*entries[:2], *entries[3:], *new], revision=3), "tea", limit=100, cursor=first.cursor
    )

    # The shorter text is the better match, so what is new comes after all of these.
    assert paths(after_more) == ["s3", "s4", "s5", "s6", "s7"]
    assert paths(after_less)[:5] == ["s3", "s4", "s5", "s6", "s7"]
    assert len({*paths(after_less)}) == len(after_less.matches) == 55


@pytest.mark.requirement("ASK-08", "LIST-13")
async def test_a_cursor_belongs_to_its_question(search: ServerSearch) -> None:
    snapshot = Snapshot.of([entry(f"acme/s{number}", "Tea and water.") for number in range(5)])
    cursor = (await search.find(snapshot, "tea", limit=2)).cursor
    assert cursor is not None

    assert len((await search.find(snapshot, " TEA ", limit=2, cursor=cursor)).matches) == 2
    for question in (
        {"query": "water"},
        {"query": "tea", "filters": Filters("acme")},
        {"query": "tea", "filters": Filters(has_scripts=False)},
        {"query": "tea", "cursor": cursor[:-2]},
        {"query": "tea", "cursor": "zz"},
        {"query": "tea", "cursor": ""},
        {"query": "tea", "cursor": "x" * 100_000},
    ):
        with pytest.raises(InvalidCursorError):
            await search.find(snapshot, **{"cursor": cursor, **question})  # pyright: ignore[reportArgumentType]


# Filters


@pytest.mark.requirement("ASK-08")
async def test_only_what_lies_below_a_place_is_found(search: ServerSearch) -> None:
    snapshot = Snapshot.of([entry(path) for path in ("a/report", "a/b/report", "a-b/report", "c/a/report")])

    for place, expected in (
        ("a", {"a/report", "a/b/report"}),
        ("/a/b/", {"a/b/report"}),
        ("skill://a/report", {"a/report"}),
        ("a/rep", set[str]()),
        ("nowhere", set[str]()),
    ):
        assert {*await walked(search, snapshot, "report", 1, Filters(place))} == expected


@pytest.mark.parametrize("place", ["a/../b", "a b://c", "a//b", "\x00"])
def test_what_can_be_no_place_is_refused(place: str) -> None:
    with pytest.raises(InvalidUriError):
        Filters(place)


@pytest.mark.requirement("ASK-08")
async def test_skills_with_scripts_or_without_are_found(search: ServerSearch) -> None:
    running, plain = entry_with_files("a/tea", ["scripts/boil.py"]), entry_with_files("b/tea", ["boil.py"])
    snapshot = Snapshot.of([running, plain])

    assert paths(await search.find(snapshot, "tea", filters=Filters(has_scripts=True))) == ["a/tea"]
    assert paths(await search.find(snapshot, "tea", filters=Filters(has_scripts=False))) == ["b/tea"]


# Words that very many skills have


async def test_a_word_that_very_many_have_does_not_drown_a_rarer_one(search: ServerSearch) -> None:
    crowd = [entry(f"crowd/s{number}", "Sends a report.") for number in range(60)]
    zebra, feeding = entry("x/zebra", "Feeds animals."), entry("y/feeding", "A report on zebras.")
    snapshot = Snapshot.of([*crowd, zebra, feeding])

    found = await search.find(snapshot, "zebra report")
    alone = await search.find(snapshot, "report", limit=100)
    below = await search.find(snapshot, "zebra report", limit=100, filters=Filters("crowd"))

    assert paths(found)[:2] == ["y/feeding", "x/zebra"]
    assert alone.total == len(alone.matches) == 61
    assert below.total == 60


# Failures


async def test_a_broken_index_is_made_again_and_the_answer_is_right(
    search: ServerSearch, caplog: pytest.LogCaptureFixture
) -> None:
    await search.find(SHOP, "tea")
    database = search._index._database  # pyright: ignore[reportPrivateUsage]
    assert database is not None
    database.execute("DROP TABLE terms")

    found = await search.find(SHOP, "tea")

    assert paths(found) == ["brewing/tea"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_without_room_for_an_index_the_answer_is_a_word_and_soon_is_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = Snapshot.of([entry(f"s{number}", f"Tea {number} " * 50) for number in range(200)])
    search = ServerSearch(most_bytes=40_000)
    for _ in range(3):
        with pytest.raises(SourceError) as caught:
            await search.find(crowd, "tea")
        assert "path" not in str(caught.value)
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]

    monkeypatch.setattr(search, "_retry_at", 0.0)
    assert paths(await search.find(SHOP, "tea")) == ["brewing/tea"]
    search.close()


async def test_a_search_that_is_stopped_ends_and_one_after_closing_starts_anew() -> None:
    crowd = Snapshot.of([entry(f"s{number}", f"Tea number {number}.") for number in range(10)])
    search = ServerSearch()
    await search.find(crowd, "tea")
    search._index.stop()  # pyright: ignore[reportPrivateUsage]

    with pytest.raises(SourceError):
        await search.find(SHOP, "tea")
    search.close()

    assert paths(await search.find(SHOP, "tea")) == ["brewing/tea"]
    search.close()


async def test_only_so_many_wait_for_their_turn(
    search: ServerSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "MAX_WAITING", 2)
    outcomes: list[str] = []

    async def look() -> None:
        try:
            outcomes.append(paths(await search.find(SHOP, "tea"))[0])
        except LimitError:
            outcomes.append("full")

    async with anyio.create_task_group() as group:
        async with search._limiter:  # pyright: ignore[reportPrivateUsage]
            for _ in range(5):
                group.start_soon(look)
            await anyio.wait_all_tasks_blocked()
            assert outcomes == ["full"] * 2

    assert outcomes == ["full"] * 2 + ["brewing/tea"] * 3
