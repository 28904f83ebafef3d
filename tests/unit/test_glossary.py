"""The glossary: every word the project uses in a sense of its own is there, once, and is used."""

import re

import pytest

import documents

DOCS = documents.DOCS
TEXT = (DOCS / "glossary.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### (.+)\n\n((?:(?!###).+\n|\n)*)", TEXT, re.MULTILINE))
PAGES = {
    str(page.relative_to(DOCS.parent)): page.read_text("utf-8")
    for page in (DOCS.parent / "README.md", *documents.pages())
    if page.name not in ("glossary.md", "requirements.md")
}

NEEDED = (
    "approval,client,dialect,directory,entry,folder,gate,gateway,host,loading,manifest,origin,"
    "progressive disclosure,reading,server,skill,window"
).split(",")

# Words that mean two things, and what to write instead.
UNCLEAR = {
    r"\bclient[ -]hosts?\b": "host",
    r"\bhost[ -]clients?\b": "host, or client",
    r"\bskills?[ -]director(?:y|ies)\b": "folder of a skill, or directory",
    r"\bprogressive loading\b": "progressive disclosure",
    r"\bactivat(?:e|es|ed|ing) (?:a|the|this|that) skill\b": "load",
    r"\btrust(?:ed)? digests?\b": "digest",
    r"\bverified skills?\b": "a skill that matches the server's listing",
}


def anchor(term: str) -> str:
    return documents.anchor(term)


@pytest.mark.requirement("ASK-39")
def test_every_word_with_a_sense_of_its_own_is_explained_once_in_order() -> None:
    headings = re.findall(r"^### (.+)$", TEXT, re.MULTILINE)

    assert set(NEEDED) <= set(headings)
    assert headings == sorted(set(headings), key=str.casefold) == list(SECTIONS)
    assert re.findall(r"\]\(#([^)]+)\)", TEXT.partition("\n### ")[0]) == [*map(anchor, headings)]


@pytest.mark.requirement("ASK-39")
@pytest.mark.parametrize("term", SECTIONS)
def test_an_explanation_is_a_few_plain_sentences(term: str) -> None:
    text = " ".join(SECTIONS[term].split())

    assert re.fullmatch(r"[A-Z\"`].*[.`]", text), text
    assert 5 <= len(text.split()) <= 60
    assert len(re.findall(r"[.:] ", text)) <= 5


@pytest.mark.requirement("ASK-39")
def test_every_word_that_points_to_another_points_to_one_that_is_there() -> None:
    anchors = {anchor(term) for term in SECTIONS}

    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors


@pytest.mark.requirement("ASK-39")
@pytest.mark.parametrize("term", [term for term in SECTIONS if term not in ("progressive disclosure",)])
def test_every_word_is_used_on_the_other_pages(term: str) -> None:
    stem = term.removesuffix("ing")

    assert any(re.search(rf"\b{stem}", text, re.IGNORECASE) for text in PAGES.values())


@pytest.mark.requirement("ASK-39")
@pytest.mark.parametrize("page", PAGES)
def test_no_page_uses_a_word_that_means_two_things(page: str) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", PAGES[page], flags=re.DOTALL)

    found = {
        word[0]: better for unclear, better in UNCLEAR.items() if (word := re.search(unclear, prose, re.I))
    }

    assert found == {}
