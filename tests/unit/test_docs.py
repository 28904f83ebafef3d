"""The documents must be true of the code."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import documents
from skillwire.core.finding import RULES
from skillwire.core.validation import links_in

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *documents.pages(),
]
TITLES = [str(page.relative_to(ROOT)) for page in PAGES]
REFERENCES = {
    "cli.md",
    "glossary.md",
    "host/refusals.md",
    "publishing/findings.md",
    "requirements.md",
    "security/attacks.md",
    "security/guarantees.md",
}
"""Pages to look something up: they may be long."""
MOST_WORDS = 1500


def test_the_table_of_findings_lists_every_rule_as_the_code_has_it() -> None:
    documented = re.findall(
        r"^\| `([a-z0-9-]+)` \| ([A-Z0-9]+-\d+) \| (error|warning|info) \| (.+) \|$",
        documents.text_of(documents.FINDINGS),
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


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_every_relative_link_of_a_page_leads_to_a_file(page: Path) -> None:
    targets = [link.target.partition("#")[0] for link in links_in(page.read_text("utf-8"))]

    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]

    assert missing == []


@pytest.mark.parametrize("page", documents.pages(), ids=lambda page: str(page.relative_to(documents.DOCS)))
def test_a_page_is_short_and_a_page_with_three_sections_begins_with_a_list_of_them(page: Path) -> None:
    text = page.read_text("utf-8")
    name = str(page.relative_to(documents.DOCS))

    assert text.startswith("# ")
    assert name in REFERENCES or len(text.split()) <= MOST_WORDS
    if len(documents.headings(text)) >= 3 and name not in ("cli.md", "requirements.md"):
        assert f"\nOn this page:\n\n{documents.contents(text)}\n" in text.partition("\n## ")[0] + "\n"


PUBLISHING = documents.text_of("publishing/folder.md", "publishing/serve-options.md")


def test_the_page_for_publishers_lists_every_option_of_serve() -> None:
    documented = set(re.findall(r"^\| `(--[a-z-]+)", PUBLISHING, re.MULTILINE))

    command = [sys.executable, "-m", "skillwire", "serve", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    offered = set(re.findall(r"--[a-z][a-z-]+", result.stdout))
    assert documented == offered - {"--help", "--verbose"}


def test_what_the_page_tells_to_paste_into_a_client_starts_a_server(empty_home: Path) -> None:
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PUBLISHING, re.DOTALL)]
    [http, started] = [server for block in blocks for server in block["mcpServers"].values()]

    arguments = [argument.replace("/path/to/skills", "examples/skills") for argument in started["args"]]
    prefix = "io.modelcontextprotocol"
    meta: dict[str, object] = {f"{prefix}/protocolVersion": "2026-07-28", f"{prefix}/clientCapabilities": {}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}
    command = [sys.executable, "-m", started["command"], *arguments]
    result = subprocess.run(
        command, cwd=ROOT, input=json.dumps(request) + "\n", capture_output=True, text=True, timeout=60
    )

    assert http == {"type": "http", "url": "http://127.0.0.1:8000/mcp"}
    assert f"--http {http['url'].removeprefix('http://').removesuffix('/mcp')}" in PUBLISHING
    assert json.loads(result.stdout)["result"]["capabilities"]["extensions"] == {
        "io.modelcontextprotocol/skills": {"directoryRead": True}
    }


SOURCES = ROOT / "src" / "skillwire"
ARCHITECTURE = documents.text_of("architecture.md")


def test_the_page_on_architecture_names_files_that_exist_and_names_that_they_define() -> None:
    files = set(re.findall(r"`((?:\w+/)+\w+\.py)`", ARCHITECTURE))
    named = re.findall(r"`(\w+)` (?:\w+ )?(?:in|\() ?`((?:\w+/)+\w+\.py)`", ARCHITECTURE)

    assert len(files) >= 25
    assert [name for name in files if not (SOURCES / name).is_file()] == []
    assert len(named) >= 10
    for name, file in named:
        assert re.search(rf"\b(?:class|def) {name}\b", (SOURCES / file).read_text("utf-8")), (name, file)
