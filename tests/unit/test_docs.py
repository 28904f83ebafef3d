"""The documents must be true of the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from skillwire.core.finding import RULES
from skillwire.core.links import links_in

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def test_the_table_of_findings_lists_every_rule_as_the_code_has_it() -> None:
    documented = re.findall(
        r"^\| `([a-z0-9-]+)` \| ([A-Z0-9]+-\d+) \| (error|warning|info) \| (.+) \|$",
        (ROOT / "docs" / "format.md").read_text("utf-8"),
        re.MULTILINE,
    )

    assert documented == [
        (code, rule.requirement, rule.severity.value, rule.summary) for code, rule in RULES.items()
    ]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_each_python_example_of_the_readme_runs(example: str, empty_home: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_of_a_page_leads_to_a_file(page: Path) -> None:
    targets = [link.target.partition("#")[0] for link in links_in(page.read_text("utf-8"))]

    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]

    assert missing == []
