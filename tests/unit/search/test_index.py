"""The ranking that server and host share: summaries and bodies, words and their spelling."""

from collections.abc import Mapping

import pytest

from skillwire.core import Frontmatter
from skillwire.search.index import MANY, MAX_BODY, Document, SearchIndex, is_one_edit, split_body
from skillwire.search.words import BODY, DESCRIPTION, NAME, find_evidence, query_words

LONG_QUESTION = (
    "our customers keep writing about orders that arrive late or broken and somebody has to decide for "
    "each of them what should happen next and who pays and then write a friendly answer in their tongue and "
    "record the decision in the ledger so that the accountants can follow it when they close the quarter"
)


def document(name: str, description: str, digest: str = "") -> Document:
    return Document(name, name, Frontmatter({"name": name, "description": description}), digest)


def index_of(
    descriptions: Mapping[str, str], bodies: Mapping[str, str] | None = None, *, ranks_all: bool = False
) -> SearchIndex:
    index = SearchIndex(ranks_all=ranks_all)
    documents = {name: document(name, text, "1") for name, text in descriptions.items()}
    if bodies is None:
        index.update(object(), lambda: documents)
    else:
        index.update(object(), lambda: documents, lambda name: bodies.get(name, ""))
    return index


def ranked(index: SearchIndex, query: str) -> list[str]:
    hits, _ = index.hits(query_words(query))
    return [hit.key for hit in sorted(hits)]


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


def test_only_skills_that_changed_are_read_again() -> None:
    index, read = SearchIndex(), list[str]()

    def body(name: str) -> str:
        read.append(name)
        return f"The body of {name}."

    first = {name: document(name, "Helps.", "1") for name in ("a", "b", "c")}
    index.update(object(), lambda: first, body)
    read.clear()
    index.update(object(), lambda: {**first, "b": document("b", "Helps.", "2")}, body)

    assert read == ["b"]


def test_what_a_filter_leaves_out_does_not_change_the_order_of_the_rest() -> None:
    texts = {f"skill-{number}": f"Brews tea{' and serves tea' * (number % 3)}." for number in range(12)}
    index = index_of(texts, {name: "Tea." for name in texts})
    kept = {name for name in texts if int(name.rpartition("-")[2]) % 2}

    hits, _ = index.hits(query_words("tea"), kept.__contains__)

    assert [hit.key for hit in sorted(hits)] == [name for name in ranked(index, "tea") if name in kept]


def test_only_the_beginning_of_a_body_is_searched() -> None:
    index = index_of({"long": "Helps."}, {"long": "word " * (MAX_BODY // 5) + " unreachable"})

    assert ranked(index, "unreachable") == []


def test_a_question_of_common_words_still_ranks_by_the_rarest() -> None:
    texts = {f"skill-{number:05}": "Reviews code and data of teams." for number in range(MANY + 10)}
    index = index_of({**texts, "audit": "Reviews code and data of auditors."})

    assert ranked(index, "reviews code data auditors")[0] == "audit"


def test_headings_and_the_first_paragraph_lead() -> None:
    lead, rest = split_body("# Title\n\nFirst line\nsecond line\n\nMore text.\n## Part\n- point")

    assert lead == "# Title\nFirst line\nsecond line\n## Part"
    assert rest == "More text.\n- point"


def test_evidence_names_the_fields_and_shows_the_words() -> None:
    words = query_words("annex refunds")
    texts = {NAME: "refunds", DESCRIPTION: "Helps with money.", BODY: "See annex four."}

    found = find_evidence(texts, words)

    assert found.fields == (NAME, BODY)
    assert found.snippet == "See annex four."
