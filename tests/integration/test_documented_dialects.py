"""The page about dialects: its table is the dialects there are, and what it tells to type works."""

import json
import re
from pathlib import Path

import pytest

import documents
from folders import skill_md, write_files
from skillwire.core import AVAILABLE_DIALECTS, Dialect
from skillwire.host.connect.config import servers_of
from talking import connect, skills_of

ROOT = Path(__file__).parents[2]
PAGE = documents.text_of(
    "dialects/overview.md", "dialects/serving.md", "dialects/host.md", "dialects/gateway.md"
)
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
JSON = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
INVOICES = """
metadata:
  title: "Fill in invoices"
  version: "1.2"
  tags: "finance, documents"
  skillwire/arguments: |
    region! (Region): where the invoice goes
    currency: the currency, if it is not the region's own
  skillwire/tools: "open_doc, save_doc"
"""


@pytest.mark.requirement("SDK-09")
def test_the_table_names_every_dialect_and_each_has_a_schema() -> None:
    table = re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE, re.MULTILINE)
    schemas = {path.stem for path in (ROOT / "docs" / "schemas" / "wire").glob("*.json")}

    named = [name for name in table if name in set(Dialect)]
    assert named == [dialect for dialect in Dialect if dialect is not Dialect.LOCAL]
    assert schemas == set(named)


def test_every_dialect_a_server_offers_has_a_paragraph() -> None:
    described = set(re.findall(r"\*\*`([a-z-]+)`\*\*", PAGE))

    assert described == {str(dialect) for dialect in AVAILABLE_DIALECTS}


@pytest.mark.anyio
async def test_the_examples_make_a_server_that_answers_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = INVOICES.strip() + "\n"
    body = skill_md("invoice-fill", body="For REGION.\n", extra=extra)
    write_files(tmp_path / "skills", {"acme/billing/invoice-fill/SKILL.md": body})
    monkeypatch.chdir(tmp_path)
    assert INVOICES.strip() in PAGE
    names: dict[str, object] = {}
    for example in PYTHON:
        exec(compile(example, "docs/dialects", "exec"), names)

    async with connect(names["mcp"]) as client:  # pyright: ignore[reportArgumentType]
        listed = await skills_of(client)

    assert [*listed] == ["skill://acme/billing/invoice-fill/SKILL.md"]


def test_the_configurations_on_the_page_are_read_as_they_are() -> None:
    configurations = [document for document in JSON if "mcpServers" in document]

    found = [servers_of(document, base=Path("/"), environ={}) for document in configurations]

    assert [server.label for servers in found for server in servers.servers] == ["old", "site"]
    assert [servers.refused for servers in found] == [(), ()]
