"""The glossary: every word the project uses in a sense of its own is there, once, and is used.

Its tables of public classes come from the docstrings: `python tests/unit/test_glossary.py` writes them.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import documents

DOCS = documents.DOCS
PAGE = DOCS / "glossary.md"
TABLES_AT = "\n## Public classes\n"
TEXT, _, TABLES = PAGE.read_text("utf-8").partition(TABLES_AT)
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

PACKAGES = ("skillwire", "skillwire.host", "skillwire.server", "skillwire.sources", "skillwire.runner")
TABLES_INTRODUCTION = """
The classes and type aliases that each package offers, in the words of their docstrings.
`python tests/unit/test_glossary.py` writes these tables.
"""

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


def public_classes(package: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the first sentence of the docstring of each public class and type alias."""
    module = importlib.import_module(package)
    aliases = aliases_in(Path(str(module.__file__)).parent)
    for name in sorted(module.__all__, key=str.casefold):
        value = getattr(module, name)
        if name in aliases or inspect.isclass(value):
            text = aliases.get(name) or inspect.getdoc(value) or ""
            yield name, " ".join(re.split(r"(?<=\.)\s|\n\n", text)[0].split())
        else:
            assert isinstance(value, str) or inspect.isfunction(value), name


def aliases_in(folder: Path) -> dict[str, str]:
    """Return the text below each type alias of the modules in a folder."""
    found: dict[str, str] = {}
    for path in folder.rglob("*.py"):
        body = ast.parse(path.read_text("utf-8")).body
        for node, following in pairwise(body):
            match node, following:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript())
                    | ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = inspect.cleandoc(text)
                case _:
                    pass
    return found


def tables() -> str:
    """Return the part of the page that comes from the docstrings."""
    text = TABLES_INTRODUCTION
    for package in PACKAGES:
        rows = "".join(
            f"| `{name}` | {about.replace('|', '/')} |\n" for name, about in public_classes(package)
        )
        text += f"\n### {package}\n\n| Name | Meaning |\n| --- | --- |\n{rows}"
    return text


@pytest.mark.requirement("ASK-39")
@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_class_is_in_a_table_with_what_it_is(package: str) -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", TABLES, re.MULTILINE))

    for name, about in public_classes(package):
        assert documented.get(name), f"{name} is not in docs/glossary.md"
        assert re.fullmatch(r"[A-Z].{10,}[.]", about), (name, about)


@pytest.mark.requirement("ASK-39")
def test_the_tables_of_classes_are_those_that_the_docstrings_make() -> None:
    assert tables() == TABLES, f"python {Path(__file__).name} writes them"


if __name__ == "__main__":
    PAGE.write_text(TEXT + TABLES_AT + tables(), "utf-8")
