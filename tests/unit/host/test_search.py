"""Search: which skills are found, in which order, and how a walk through them ends."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core.characters import visible
from skillwire.core.errors import InvalidCursorError
from skillwire.host.model.endpoints import ShowRule, ShowRules
from skillwire.host.model.naming import RegistryView
from skillwire.host.model.origin import KnownSkill
from skillwire.host.use.search import MAX_LIMIT, SearchPage, SkillSearch
from unit.host.described import described, view

REFUNDS = described("refunds", "Gives money back. Use when a customer wants a refund.", label="team")
INVOICES = described("invoices", "Writes invoices for orders.", label="team")
CHARTS = described("charts", "Draws charts from tables.", label="lab")
SHOP = view(REFUNDS, INVOICES, CHARTS)


def found(view: RegistryView, query: str) -> list[str]:
    return references(SkillSearch().find(view, query, limit=MAX_LIMIT))


def references(page: SearchPage) -> list[str]:
    return [match.skill.reference for match in page.matches]


def walk(search: SkillSearch, view: RegistryView, query: str, limits: Iterator[int]) -> list[str]:
    """Follow the cursors to the end."""
    page = search.find(view, query, limit=next(limits))
    walked = references(page)
    while page.cursor is not None:
        page = search.find(view, query, limit=next(limits), cursor=page.cursor)
        assert page.matches, "a cursor led to an empty page"
        walked += references(page)
    assert len(walked) == page.total
    return walked


@pytest.mark.requirement("HOST-20")
@pytest.mark.requirement("ASK-17")
@pytest.mark.parametrize("query", ["how do I refund a customer", "refunding customers", "REFUND", "refun"])
def test_a_question_in_plain_words_finds_the_skill(query: str) -> None:
    assert found(SHOP, query)[0] == "team/refunds"


@pytest.mark.parametrize("name", ["csv-insights", "csvInsights", "csv_insights", "CSVInsights"])
@pytest.mark.parametrize(
    "query", ["csv insights", "csvInsights", "csv-insights", "csv_insights", "csvinsights"]
)
def test_an_identifier_is_found_however_either_side_spells_it(name: str, query: str) -> None:
    by_name = described(name, "Looks at tables.", label="", path=f"shop/{name}")
    by_text = described("tables", f"Explains {name}.", label="other")
    spelled_whole = query != "csvinsights" or name[3] in "iI"

    results = found(view(by_name, by_text, REFUNDS), query)

    assert results[0] == name
    assert results == [name, "other/tables"] if spelled_whole else results == [name]


def test_a_name_with_a_capital_inside_is_found_in_small_letters() -> None:
    assert found(view(described("issues", "Opens GitHub issues over HTTPServer.")), "github") == [
        "acme/issues"
    ]


@pytest.mark.parametrize(
    ("description", "query"),
    [
        ("Résumé für die Größe", "resume"),
        ("Résumé für die Größe", "GRÖSSE"),
        ("Re\u0301sume\u0301", "résumé"),
        ("Podróż do Łodzi", "lodzi"),
        ("ＦＵＬＬＷＩＤＴＨ", "fullwidth"),
        ("re\u200bfu\u00adnd", "refund"),
        ("数据分析和报告生成", "分析"),
        ("数据分析和报告生成", "成"),
        ("数据分析和报告生成", "和"),
        ("处理客户的退款请求", "如何给客户退款"),
        ("データ分析を行う", "分析"),
        ("ﾃﾞｰﾀ", "データ"),
        ("환불을 처리합니다", "환불"),
        ("วิเคราะห์ข้อมูลการขาย", "ข้อมูล"),
        ("हिन्दी में अनुवाद", "हिन्दी"),
        ("ترجمة الكِتَاب", "الكتاب"),
        ("Перевод документов", "ПЕРЕВОД"),
    ],
)
def test_text_of_any_script_is_found(description: str, query: str) -> None:
    assert found(view(described("one", description), CHARTS), query) == ["acme/one"]


def test_of_the_last_word_a_beginning_is_enough_and_of_others_it_is_not() -> None:
    assert found(SHOP, "invo") == ["team/invoices"]
    assert found(SHOP, "invo unheard") == []


def test_skills_that_have_all_words_come_before_better_matches_of_some() -> None:
    both = described(
        "notes", "Long notes on many things, among them a ledger, and somewhere a budget.", label="b"
    )
    one = described("ledger", "ledger", label="a")

    assert found(view(both, one), "ledger budget") == ["b/notes", "a/ledger"]


def test_a_word_counts_most_in_the_name_then_in_tags_then_in_the_description() -> None:
    padding = "and other things that people ask about every day"
    named = described("ledger", f"Keeps books {padding}.", label="c")
    tagged = described("books", f"Keeps books {padding}.", label="b", metadata={"tags": "ledger"})
    told = described("accounts", f"Keeps a ledger {padding}.", label="a")

    assert found(view(named, tagged, told), "ledger") == ["c/ledger", "b/books", "a/accounts"]


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"tags": "ledger, money"}},
        {"metadata": {"keywords": ["money", "ledger", 3, None]}},
        {"tags": ["ledger"]},
        {"compatibility": "Needs a ledger."},
    ],
)
def test_tags_keywords_and_compatibility_are_searched(fields: dict[str, object]) -> None:
    assert found(view(described("one", "Counts.", **fields)), "ledger") == ["acme/one"]  # pyright: ignore[reportArgumentType]


def test_other_frontmatter_is_not_searched_whatever_it_holds() -> None:
    odd = described(
        "one",
        "Counts.",
        metadata={"owner": "ledger", "tags": {"deep": "ledger"}, "keywords": 7},
        license="ledger",
        compatibility=["ledger"],
    )
    none = described("two", "Counts.", metadata="ledger")

    assert found(view(odd, none), "ledger") == []


def test_label_and_folders_are_searched() -> None:
    skill = described("refunds", "Money.", label="acme", path="finance/europe/refunds")

    assert found(view(skill, CHARTS), "acme") == ["acme/refunds"]
    assert found(view(skill, CHARTS), "europe") == ["acme/refunds"]


@pytest.mark.requirement("SEC-17")
def test_only_so_much_of_a_description_is_looked_at() -> None:
    endless = described("one", "word " * 200_000 + "ledger", label="")

    assert found(view(endless), "ledger") == []
    assert found(view(endless), "word") == ["one"]


@pytest.mark.parametrize("query", ["", "   ", "?!", '"', "*", "\x00", "\ud800", "-- ;"])
def test_a_query_without_words_means_all_skills_by_reference(query: str) -> None:
    assert found(SHOP, query) == ["lab/charts", "team/invoices", "team/refunds"]


@pytest.mark.parametrize(
    "query",
    [
        'refunds"',
        '"refunds" NOT "team"',
        "refunds NOT refunds",
        "name: refunds",
        "-refunds",
        "{name} : refunds",
        "^refunds",
        "refunds*",
        "NEAR(refunds money, 1)",
        ") OR (refunds",
        "refunds') --",
        "refunds\x00",
        "AND refunds OR",
    ],
)
def test_a_query_language_has_no_meaning_in_a_query(query: str) -> None:
    assert found(SHOP, query)[0] == "team/refunds"


@given(query=st.text() | st.text(alphabet="\"'*():^+-{}\\ \x00aN退\ud800\u0301", max_size=40))
def test_any_text_may_be_looked_for(query: str) -> None:
    search = SkillSearch()

    page = search.find(SHOP, query)

    assert page.total == len(page.matches)
    assert page == search.find(SHOP, query)
    assert visible(page.query) == page.query


def test_a_query_of_any_length_is_cut_short() -> None:
    page = SkillSearch().find(SHOP, "refunds " + "x1 y2 \x1b[2J" * 100_000)

    assert references(page) == ["team/refunds"]
    assert len(page.query) < 5_000
    assert "\x1b" not in page.query


@pytest.mark.parametrize("limit", [-5, 0, 1])
def test_a_page_has_at_least_one_skill(limit: int) -> None:
    assert len(SkillSearch().find(SHOP, "", limit=limit).matches) == 1


def test_a_page_has_a_bounded_number_of_skills() -> None:
    many = view(more=(described(f"s{number}", "Counts.") for number in range(MAX_LIMIT + 1)))

    page = SkillSearch().find(many, "counts", limit=10**9)

    assert (len(page.matches), page.total) == (MAX_LIMIT, MAX_LIMIT + 1)


def test_a_walk_through_123_matches_ends_with_every_one_of_them() -> None:
    many = [
        described(f"report-{number}", "Writes a report.", label=f"s{number % 4}") for number in range(123)
    ]

    walked = walk(SkillSearch(), view(*many, CHARTS), "report", iter([10] * 20))

    assert sorted(walked) == sorted(skill.reference for skill in many)


WORDS = st.sampled_from(["refund", "refunds", "order", "ledger", "budget", "退款", "csvInsights", "übung"])
CORPORA = st.lists(
    st.tuples(st.lists(WORDS, max_size=6).map(" ".join), st.sampled_from(["", "a", "b", "c"])), max_size=25
).map(lambda rows: [described(f"s{n}", text, label=label) for n, (text, label) in enumerate(rows)])
QUERIES = st.lists(WORDS, max_size=3).map(" ".join)


@pytest.mark.requirement("NAME-07")
@given(skills=CORPORA, query=QUERIES, limits=st.lists(st.integers(1, 12), min_size=1))
def test_pages_of_any_size_add_up_to_every_match_once(
    skills: list[KnownSkill], query: str, limits: list[int]
) -> None:
    search, shown = SkillSearch(), view(*skills)

    walked = walk(search, shown, query, iter(limits * 41))

    assert walked == found(shown, query)
    assert len(set(walked)) == len(walked)
    if not query:
        assert walked == [skill.reference for skill in shown.skills]
    by_words = {
        skill.reference for skill in skills if any(one in skill.description.split() for one in query.split())
    }
    assert by_words <= set(walked) or not query


@settings(max_examples=60)
@given(skills=CORPORA, others=CORPORA, query=QUERIES)
def test_results_do_not_depend_on_the_order_of_listings_or_on_what_was_searched_before(
    skills: list[KnownSkill], others: list[KnownSkill], query: str
) -> None:
    used = SkillSearch()
    used.find(view(*others), query)
    used.find(view(*skills), "order")

    page = used.find(view(*reversed(skills), revision=9), query)

    assert page == SkillSearch().find(view(*skills), query)


@settings(max_examples=60)
@given(skills=CORPORA, keep=st.lists(st.booleans(), max_size=3), new=CORPORA, query=QUERIES)
def test_a_cursor_goes_on_where_nothing_is_lost_or_is_refused(
    skills: list[KnownSkill], keep: list[bool], new: list[KnownSkill], query: str
) -> None:
    search = SkillSearch()
    first = search.find(view(*skills), query, limit=1)
    kept = [skill for number, skill in enumerate(skills) if number >= len(keep) or keep[number]]
    added = [replace(skill, reference=f"new-{skill.reference}") for skill in new[:1]]
    changed = view(*kept, *added, revision=2)

    if first.cursor is not None:
        try:
            second = search.find(changed, query, limit=MAX_LIMIT, cursor=first.cursor)
        except InvalidCursorError:
            assert found(changed, query) != found(view(*skills), query)
        else:
            assert references(first) + references(second) == found(changed, query)


def test_a_server_that_lists_the_same_again_spoils_no_cursor() -> None:
    def listing(revision: int) -> RegistryView:
        many = (described(f"report-{number}", "Writes a report.") for number in range(30))
        return view(described("other", f"Changes {revision}."), revision=revision, more=many)

    search = SkillSearch()
    first = search.find(listing(1), "report", limit=20)

    second = search.find(listing(2), "report", limit=20, cursor=first.cursor)

    assert len(set(references(first) + references(second))) == 30


def test_a_cursor_is_refused_when_the_results_changed() -> None:
    search = SkillSearch()
    many = [described(f"report-{number}", "Writes a report.") for number in range(30)]
    first = search.find(view(*many), "report")

    with pytest.raises(InvalidCursorError):
        search.find(view(*many[1:], revision=2), "report", cursor=first.cursor)
    with pytest.raises(InvalidCursorError):
        search.find(view(*many), "report", cursor=first.cursor, include=lambda skill: skill is not many[1])


@pytest.mark.parametrize("forge", ["{}x", "x{}", "0{}", "-{}", " {}", "{}\n", "٣{}"])
def test_a_cursor_that_was_tampered_with_is_refused(forge: str) -> None:
    cursor = SkillSearch().find(SHOP, "", limit=1).cursor
    assert cursor is not None
    assert len(cursor) < 30
    if forge.format(cursor) == f"0{cursor}":  # The same position, written in another way.
        cursor = cursor.replace("1-", "3-", 1)

    with pytest.raises(InvalidCursorError):
        SkillSearch().find(SHOP, "", cursor=forge.format(cursor))


FORGED = st.builds("{}-{:016x}".format, st.integers(0, 10**9), st.integers(0, 2**64 - 1))


@given(cursor=st.text(min_size=1) | FORGED)
def test_a_cursor_of_anyones_making_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidCursorError):
        SkillSearch().find(SHOP, "", cursor=cursor)


def test_a_cursor_belongs_to_its_query_and_an_empty_one_is_none() -> None:
    search = SkillSearch()
    twins = view(described("one", "refund order", label="a"), described("two", "refund order", label="b"))
    cursor = search.find(twins, "refund", limit=1).cursor

    with pytest.raises(InvalidCursorError):
        search.find(twins, "order", cursor=cursor)
    assert search.find(twins, "refund", cursor="") == search.find(twins, "refund")


def test_one_server_cannot_own_the_results_by_stuffing_words() -> None:
    stuffed = [
        described(
            f"refund-{number}", "refund customer " * 60, label="evil", metadata={"tags": "refund customer"}
        )
        for number in range(50)
    ]
    honest = [described(f"money-{number}", "Helps with a refund.", label="team") for number in range(5)]

    results = found(view(*stuffed, *honest), "refund customer")

    assert [reference.partition("/")[0] for reference in results[:12]] == ["evil", "evil", "team"] * 4
    assert len(results) == 55


@settings(max_examples=60)
@given(skills=CORPORA, query=WORDS)
def test_three_of_one_server_in_a_row_mean_that_no_other_has_a_match_left(
    skills: list[KnownSkill], query: str
) -> None:
    labels = ["/" in reference and reference[0] for reference in found(view(*skills), query)]

    for start in range(len(labels) - 2):
        if len(set(labels[start : start + 3])) == 1:
            assert len(set(labels[start:])) == 1


def test_equal_matches_take_turns_by_server() -> None:
    same = [described(f"s{number}", "Counts.", label=label, path="x") for label in "aab" for number in (1, 2)]
    distinct = list({skill.reference: skill for skill in same}.values())

    assert found(view(*distinct), "counts") == ["a/s1", "b/s1", "a/s2", "b/s2"]


def test_what_is_left_out_is_neither_found_nor_counted() -> None:
    show_rules = ShowRules(show={"team/refunds": ShowRule.OFF, "lab/*": ShowRule.MANUAL})

    def is_offered(skill: KnownSkill) -> bool:
        return show_rules.of(skill) not in (ShowRule.OFF, ShowRule.MANUAL)

    for query in ("", "refunds charts orders"):
        page = SkillSearch().find(SHOP, query, include=is_offered)
        assert (references(page), page.total) == (["team/invoices"], 1)


def test_one_server_or_the_local_folders_can_be_searched_alone() -> None:
    search, local = SkillSearch(), described("refunds", "Refunds.", label="")
    both = view(REFUNDS, CHARTS, local)

    assert references(search.find(both, "refunds", label="team")) == ["team/refunds"]
    assert references(search.find(both, "refunds", label="local")) == ["refunds"]
    assert references(search.find(both, "", label="lab")) == ["lab/charts"]
    assert search.find(both, "refunds", label="tea").total == 0


def test_a_new_listing_is_searched_and_the_old_one_forgotten() -> None:
    search = SkillSearch()

    assert references(search.find(SHOP, "refunds")) == ["team/refunds"]
    assert references(search.find(view(CHARTS, revision=2), "refunds")) == []
    assert references(search.find(view(CHARTS, INVOICES, revision=3), "invoices")) == ["team/invoices"]


def test_threads_may_share_a_search() -> None:
    search = SkillSearch()
    views = [view(REFUNDS, revision=1), view(REFUNDS, INVOICES, revision=2), SHOP]

    def look(number: int) -> SearchPage:
        return search.find(views[number % 3], "refunds orders")

    with ThreadPoolExecutor(4) as pool:
        pages = list(pool.map(look, range(60)))

    for number, page in enumerate(pages):
        assert page == SkillSearch().find(views[number % 3], "refunds orders")


LONG = "Opens the book. " * 20


def test_a_snippet_shows_where_the_words_are() -> None:
    skill = described("one", f"{LONG}Then it counts the Müller ledgers of every budget. {LONG}")

    (match,) = SkillSearch().find(view(skill), "muller ledger budget").matches

    assert "counts the Müller ledgers of every budget" in match.snippet
    assert match.snippet.startswith("…")
    assert match.snippet.endswith("…")
    assert len(match.snippet) <= 240


def test_a_snippet_of_a_script_without_spaces_shows_where_the_words_are() -> None:
    skill = described("one", "生成报告和图表" * 60 + "处理客户的退款请求" + "生成报告和图表" * 60)

    (match,) = SkillSearch().find(view(skill), "客户退款").matches

    assert "客户的退款" in match.snippet
    assert len(match.snippet) <= 240


def test_a_short_description_is_its_own_snippet_and_a_hit_elsewhere_shows_the_beginning() -> None:
    short = described("one", "Counts\nthings.")
    long = described("ledger", LONG)

    search = SkillSearch()

    assert search.find(view(short), "things").matches[0].snippet == "Counts things."
    assert search.find(view(long), "ledger").matches[0].snippet.startswith("Opens the book. Opens")


@pytest.mark.requirement("SEC-17")
@given(
    description=st.text(alphabet="ab <>&;\n\x1b\u202e\u200b\U000e0041退ü`[](#", max_size=1500),
    query=st.sampled_from(["ab", "lt", "amp", "退", "u", ""]),
)
def test_a_snippet_is_one_short_harmless_line(description: str, query: str) -> None:
    page = SkillSearch().find(view(described("ab-lt-amp-u-one", f"退{description}")), query)

    for match in page.matches:
        assert len(match.snippet) <= 240
        assert match.snippet.isprintable()
        assert not re.search("[<>\u202e\u200b\U000e0041]", match.snippet)
        assert re.sub("&(amp|lt|gt);", "", match.snippet).count("&") == 0


@pytest.mark.parametrize("before", range(6))
def test_a_snippet_does_not_end_within_an_escaped_character(before: int) -> None:
    skill = described("ledger", "x" * before + "&" * 500 + " ledger " + "<" * 400)

    for query in ("", "ledger"):
        (match,) = SkillSearch().find(view(skill), query).matches
        assert re.fullmatch("(?:[x… ]|ledger|&amp;|&lt;)+", match.snippet)
        assert 200 < len(match.snippet) <= 240
