"""The ranking that server and host share: summaries and bodies, words and their spelling."""

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core import ByteCache, Frontmatter
from skillwire.search import index as index_module
from skillwire.search import scores as scores_module
from skillwire.search.index import SearchIndex, index_file
from skillwire.search.lookup import EVERYWHERE, TermLookup
from skillwire.search.scores import MAX_BODY, RERANKED, Candidate, Document, lead_of
from skillwire.search.words import BODY, DESCRIPTION, NAME, PATH, TAGS, TERMS, is_one_edit

LONG_QUESTION = (
    "our customers keep writing about orders that arrive late or broken and somebody has to decide for "
    "each of them what should happen next and who pays and then write a friendly answer in their tongue and "
    "record the decision in the ledger so that the accountants can follow it when they close the quarter"
)


def document(name: str, description: str, digest: str = "") -> Document:
    return Document(name, name, Frontmatter({"name": name, "description": description}), digest)


def index_of(descriptions: Mapping[str, str], bodies: Mapping[str, str] | None = None) -> SearchIndex:
    index = SearchIndex()
    update(index, descriptions, bodies or {})
    return index


def update(index: SearchIndex, descriptions: Mapping[str, str], bodies: Mapping[str, str]) -> list[str]:
    """Update an index, and return whose bodies it read."""
    read: list[str] = []

    def body(name: str) -> str:
        read.append(name)
        return bodies.get(name, "")

    documents = {name: document(name, text, bodies.get(name, "")) for name, text in descriptions.items()}
    index.update(object(), lambda: documents, body)
    return read


def ranked(index: SearchIndex, query: str) -> list[str]:
    return [key for key, _ in index.rank(query)]


def test_a_skill_is_found_by_words_of_its_body_alone() -> None:
    index = index_of(
        {"taxes": "Files the yearly return.", "tea": "Brews a cup."},
        {"taxes": "# Taxes\n\nDepreciation of machines goes into annex four."},
    )

    assert ranked(index, "depreciation") == ["taxes"]


def test_a_fitting_description_comes_before_a_long_body_that_mentions_everything() -> None:
    index = index_of(
        {
            "refunds": "Decides about refunds of broken orders.",
            "handbook": "Answers questions of new colleagues.",
        },
        {
            "refunds": "Ask for a photo.",
            "handbook": "We sell, ship, make refunds, replace broken orders. " * 40,
        },
    )

    assert ranked(index, "refunds for broken orders")[0] == "refunds"


def test_headings_count_more_than_the_rest_of_a_body() -> None:
    filler = "Nothing of interest stands in this line. " * 4
    index = index_of(
        {"first": "Helps.", "second": "Helps."},
        {
            "first": f"Opening words.\n\n{filler} rollback {filler}\n\n## Notes",
            "second": f"Opening words.\n\n{filler} notes {filler}\n\n## Rollback",
        },
    )

    assert ranked(index, "rollback") == ["second", "first"]


def test_skills_without_a_body_are_ranked_with_those_that_have_one() -> None:
    index = index_of(
        {"invoices": "Writes invoices for customers.", "tea": "Brews tea."}, {"tea": "Send no invoices."}
    )

    assert ranked(index, "invoices") == ["invoices", "tea"]


def test_the_last_word_counts_once() -> None:
    index = index_of(
        {
            "sql-review": "Checks statements.",
            "review-notes": "Checks notes.",
            "sqlite": "Explains a database.",
        }
    )

    assert ranked(index, "review sql")[0] == "sql-review"
    assert ranked(index, "sql review")[0] == "sql-review"


def test_a_word_that_nobody_has_matches_as_a_beginning() -> None:
    index = index_of({"incident": "Leads an incident response.", "tea": "Brews."})

    assert ranked(index, "incid") == ["incident"]


def test_the_last_words_of_a_long_question_are_searched_too() -> None:
    index = index_of({"closing": "Closes the quarter for accountants.", "tea": "Brews a cup of tea."})

    assert ranked(index, LONG_QUESTION)[0] == "closing"


@pytest.mark.parametrize("query", ["kuberntes", "kubrenetes", "kubbernetes", "kubernates"])
def test_a_misspelled_word_finds_what_was_meant(query: str) -> None:
    index = index_of({"cluster": "Operates Kubernetes clusters.", "tea": "Brews a cup of tea."})

    assert ranked(index, query) == ["cluster"]


def test_a_word_that_some_skill_has_is_never_corrected() -> None:
    index = index_of({"bass": "Plays the basses.", "basis": "Explains the bases of a space."})

    assert ranked(index, "basses") == ["bass"]


ALIKE = st.text(st.sampled_from("kqx"), min_size=3, max_size=7).map(lambda text: f"zv{text}")


@settings(max_examples=100, deadline=None)
@given(words=st.sets(ALIKE, min_size=1, max_size=30), asked=ALIKE)
def test_a_word_is_corrected_to_one_that_is_one_edit_away(words: set[str], asked: str) -> None:
    with closing(index_of({"it": " ".join(words)})) as index:
        lookup = TermLookup(index.open(), EVERYWHERE, None, ByteCache(0))

        found = lookup._similar(asked)  # pyright: ignore[reportPrivateUsage]

        assert found == min((TERMS[word] for word in words if is_one_edit(asked, TERMS[word])), default=None)


@pytest.mark.parametrize(
    ("word", "other", "expected"),
    [
        ("tables", "table", True),
        ("table", "tabel", True),
        ("table", "cable", True),
        ("table", "stable", True),
        ("table", "tlabe", False),
        ("table", "tab", False),
    ],
)
def test_one_edit_is_a_letter_or_a_swap(word: str, other: str, *, expected: bool) -> None:
    assert is_one_edit(word, other) is expected
    assert is_one_edit(other, word) is expected


def test_a_filter_does_not_change_the_order_of_the_rest() -> None:
    texts = {f"skill-{number}": f"Brews tea{' and serves tea' * (number % 3)}." for number in range(12)}
    index = index_of(texts, {name: "Tea." for name in texts})
    kept = {name for name in texts if int(name.rpartition("-")[2]) % 2}

    filtered = index.rank("tea", kept.__contains__)

    assert [key for key, _ in filtered] == [name for name in ranked(index, "tea") if name in kept]
    assert filtered.total == len(kept)


def test_only_the_beginning_of_a_body_is_searched() -> None:
    index = index_of({"long": "Helps."}, {"long": "word " * (MAX_BODY // 5) + " unreachable"})

    assert ranked(index, "unreachable") == []


def test_the_lead_of_a_body_are_its_headings_and_its_first_paragraph() -> None:
    lead = lead_of("# Title\n\nFirst line\nsecond line\n\nMore text.\n## Part\n- point")

    assert lead == "# Title\n## Part\nFirst line\nsecond line"


def test_a_match_names_the_fields_that_have_words_of_the_query() -> None:
    frontmatter = Frontmatter({"description": "Helps with money.", "tags": ["ledger"]})
    refunds = Document("refunds", "acme/billing/refunds", frontmatter)
    index = SearchIndex()
    index.update(object(), lambda: {"it": refunds}, lambda _: "See annex four.")

    for query, expected in {
        "refunds": (NAME, PATH),
        "money ledgers": (TAGS, DESCRIPTION),
        "billing": (PATH,),
        "annex": (BODY,),
    }.items():
        assert index.fields_of("it", index.rank(query)) == expected


# Words that very many skills have


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch)


def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the limits of frequent words so low that few skills reach them."""
    for module in (scores_module, index_module):
        monkeypatch.setattr(module, "MOST_RANKED", 4)
        monkeypatch.setattr(module, "SMALL_SET", 2)
    monkeypatch.setattr(index_module, "MOST_STORED", 6)
    monkeypatch.setattr(scores_module, "MOST_SCORED", 8)


@pytest.mark.usefixtures("small_limits")
def test_every_skill_with_a_frequent_word_is_found_once_the_best_ones_first() -> None:
    texts = {f"tea-{number:02}": "Brews tea" + " and many other things" * number for number in range(30)}
    index = index_of({**texts, "coffee": "Grinds beans."})

    found = index.rank("tea")

    assert [key for key, _ in found][:3] == ["tea-00", "tea-01", "tea-02"]
    assert sorted(key for key, _ in found) == sorted(texts)
    assert found.total == 30


@pytest.mark.usefixtures("small_limits")
def test_a_question_of_frequent_words_ranks_by_the_rarest() -> None:
    texts = {f"skill-{number:03}": "Reviews code and data of teams." for number in range(40)}
    index = index_of({**texts, "audit": "Reviews code and data of auditors."})

    found = ranked(index, "reviews code data auditors")

    assert found[0] == "audit"
    assert found[1:] == sorted(texts)


NAMES = st.sampled_from(["tea", "coffee", "cocoa", "water-tea", "milk", "beans", "cups"])
TEXTS = st.sampled_from(["Boils water.", "Boils milk and water.", "Grinds beans.", "日本のお茶", "Tea, tea."])


@settings(max_examples=80, deadline=None)
@given(histories=st.lists(st.dictionaries(NAMES, st.tuples(TEXTS, TEXTS)), min_size=1, max_size=6))
def test_an_updated_index_equals_a_new_one(histories: Sequence[dict[str, tuple[str, str]]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        limit(monkeypatch)
        with closing(SearchIndex()) as updated:
            for chosen in histories:
                parts = [{name: pair[part] for name, pair in chosen.items()} for part in (0, 1)]
                update(updated, *parts)
                with closing(index_of(*parts)) as new:
                    for query in ("tea water", "boil", "milk beans", "お茶", "waetr", "te"):
                        assert list(updated.rank(query)) == list(new.rank(query))


def test_an_index_that_is_updated_often_does_not_grow() -> None:
    index = SearchIndex()
    sizes: list[int] = []
    terms: list[str] = []

    for number in range(60):
        update(index, {"tea": f"Boils water {number}.", "milk": "Comes from cows."}, {})
        database = index._database  # pyright: ignore[reportPrivateUsage]
        assert database is not None
        sizes += [rows for (rows,) in database.execute("SELECT max(row) FROM documents")]
        terms = [term for (term,) in database.execute("SELECT term FROM terms")]

    assert max(sizes) <= 2
    assert "58" not in terms and "59" in terms


# The file


TEA_AND_COFFEE = {"tea": "Boils water.", "coffee": "Grinds beans."}
BODIES = {"tea": "Use a kettle.", "coffee": "Use a mill."}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = index_file("https://skills.example.com", tmp_path)
    assert path is not None
    return path


def test_the_next_process_reads_only_what_changed(file: Path) -> None:
    with closing(SearchIndex(file)) as first:
        assert update(first, TEA_AND_COFFEE, BODIES) == ["tea", "coffee"]

    with closing(SearchIndex(file)) as second:
        assert update(second, {**TEA_AND_COFFEE, "milk": "From cows."}, BODIES) == ["milk"]
        assert ranked(second, "kettle") == ["tea"]
        assert update(second, {"tea": "Boils water."}, {"tea": "Use a pot."}) == ["tea"]
        assert (ranked(second, "kettle"), ranked(second, "mill")) == ([], [])


def test_a_body_that_cannot_be_read_now_is_read_by_the_next_process(file: Path) -> None:
    documents = {"tea": document("tea", "Boils water.", "1")}
    with closing(SearchIndex(file)) as first:
        first.update(object(), lambda: documents, lambda _: None)
        assert ranked(first, "water") == ["tea"]

    with closing(SearchIndex(file)) as second:
        second.update(object(), lambda: documents, lambda _: "Use a kettle.")
        assert ranked(second, "kettle") == ["tea"]


def test_a_second_process_has_an_index_of_its_own(file: Path) -> None:
    with closing(SearchIndex(file)) as first, closing(SearchIndex(file)) as second:
        update(first, {"tea": "Boils water."}, {})
        update(second, {"coffee": "Grinds beans."}, {})

        assert (ranked(first, "water"), ranked(second, "beans")) == (["tea"], ["coffee"])
    assert len([*file.parent.glob("*.sqlite")]) == 2


@pytest.mark.parametrize("damage", [b"", b"this is no database" * 500, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_replaced(file: Path, damage: bytes) -> None:
    with closing(SearchIndex(file)) as first:
        update(first, TEA_AND_COFFEE, BODIES)
    [path] = file.parent.glob("*.sqlite")
    path.write_bytes(damage)

    with closing(SearchIndex(file)) as second:
        assert update(second, TEA_AND_COFFEE, BODIES) == ["tea", "coffee"]
        assert ranked(second, "kettle") == ["tea"]
    assert [*file.parent.glob("*.sqlite")] == [path]


def test_a_process_that_is_killed_leaves_an_index_that_is_used_or_replaced(file: Path) -> None:
    pid = os.fork()
    if pid == 0:
        update(SearchIndex(file), TEA_AND_COFFEE, BODIES)
        os._exit(0)  # Nothing is closed.
    os.waitpid(pid, 0)

    with closing(SearchIndex(file)) as second:
        update(second, TEA_AND_COFFEE, BODIES)
        assert ranked(second, "kettle") == ["tea"]


def test_a_file_that_others_may_write_is_not_used(file: Path) -> None:
    with closing(SearchIndex(file)) as first:
        update(first, {"tea": "Boils water."}, {})
    [path] = file.parent.glob("*.sqlite")
    path.chmod(0o666)

    with closing(SearchIndex(file)) as second:
        assert update(second, TEA_AND_COFFEE, BODIES) == ["tea", "coffee"]
    assert path.stat().st_mode & 0o777 == 0o666


def test_a_link_is_not_followed(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("not an index")
    file.parent.mkdir(exist_ok=True)
    file.with_name(f"{file.name}-0.sqlite").symlink_to(target)

    with closing(SearchIndex(file)) as index:
        update(index, TEA_AND_COFFEE, BODIES)
        assert ranked(index, "kettle") == ["tea"]
    assert target.read_text() == "not an index"


def test_without_a_key_there_is_no_file() -> None:
    assert index_file("") is None


def test_a_stopped_update_ends_with_an_error_and_changes_nothing(file: Path) -> None:
    with closing(SearchIndex(file)) as first:
        update(first, {"tea": "Boils water."}, {})
        first.stop()
        with pytest.raises(sqlite3.OperationalError):
            update(first, TEA_AND_COFFEE, {})

    with closing(SearchIndex(file)) as second:
        assert update(second, {"tea": "Boils water."}, {}) == []
        assert ranked(second, "water") == ["tea"]


# A ranker of the user's own


def test_a_ranker_reorders_the_first_matches_and_the_rest_stays_behind_them() -> None:
    asked: list[tuple[str, Sequence[Candidate]]] = []

    def last_first(query: str, candidates: Sequence[Candidate]) -> Iterator[float]:
        asked.append((query, candidates))
        return iter(range(len(candidates)))

    texts = {f"tea-{number:03}": "Brews tea." for number in range(RERANKED + 10)}
    index = SearchIndex(ranker=lambda query, candidates: [*last_first(query, candidates)])
    update(index, texts, {})

    found = ranked(index, "tea please")

    [(query, candidates)] = asked
    assert query == "tea please"
    assert [candidate.document.name for candidate in candidates] == sorted(texts)[:RERANKED]
    assert found == sorted(texts)[:RERANKED][::-1] + sorted(texts)[RERANKED:]
