"""The pages in `docs/`: how tests read them, and the tables on them that are written from the code.

`python tests/documents.py` writes these tables again.
"""

import re
from pathlib import Path
from typing import Final

from skillwire.core.finding import RULES
from skillwire.core.refusals import REFUSALS

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
FINDINGS: Final = "publishing/findings.md"
REFUSALS_PAGE: Final = "host/refusals.md"


def pages() -> list[Path]:
    """Return the paths of all pages."""
    return sorted(DOCS.rglob("*.md"))


def text_of(*names: str) -> str:
    """Return pages one after another, each under its title as a heading of the second level."""
    return "\n".join("#" + (DOCS / name).read_text("utf-8") for name in names)


def headings(text: str) -> list[str]:
    """Return the headings of the second level of a page, without those in examples."""
    return re.findall(r"^## (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.M)


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site generator make it."""
    return re.sub(r"[^\w -]", "", heading.casefold()).replace(" ", "-")


def contents(text: str) -> str:
    """Return the list of sections that belongs at the top of a page."""
    return "".join(f"- [{heading}](#{anchor(heading)})\n" for heading in headings(text))


def rows_of_findings() -> list[str]:
    return [
        f"| `{code}` | {rule.requirement} | {rule.severity.value} | {rule.summary} |"
        for code, rule in RULES.items()
    ]


def rows_of_refusals() -> list[str]:
    return [
        f"| `{code}` | {kind.requirement} | {kind.sentence} | {kind.remedy} |"
        for code, kind in REFUSALS.items()
    ]


def with_rows(text: str, rows: list[str]) -> str:
    """Return a page with other rows in its last table."""
    before, rule, _ = text.rpartition("| --- |\n")
    return before + rule + "\n".join(rows) + "\n"


if __name__ == "__main__":
    for name, rows in ((FINDINGS, rows_of_findings()), (REFUSALS_PAGE, rows_of_refusals())):
        page = DOCS / name
        page.write_text(with_rows(page.read_text("utf-8"), rows), "utf-8")
