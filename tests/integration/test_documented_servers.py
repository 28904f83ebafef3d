"""The servers that the pages in `docs/servers` show, run as they stand there."""

import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client

import documents
from skillwire.host import list_skills

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(
    r"```python\n(.*?)```", documents.text_of("servers/add-skills.md", "servers/options.md"), re.DOTALL
)
EXPECTED = [
    {"refunds", "hello-world"},
    {"refunds", "hello-world"},
    {"refunds", "hello-world"},
    {"refunds", "greeting", "open-invoices"},
    {"refunds", "hello-world"},
]


@pytest.mark.requirement("SDK-01", "SDK-02")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize(
    ("example", "names"), list(zip(EXAMPLES, EXPECTED, strict=True)), ids=range(len(EXAMPLES))
)
async def test_each_server_of_the_page_serves_its_skills(
    example: str, names: set[str], mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "docs/servers", "exec"), namespace)
    server = namespace["mcp"]

    with anyio.fail_after(30):
        async with Client(getattr(server, "_mcp_server", server), mode=mode) as client:
            listing = await list_skills(client)

    assert names <= {entry.name for entry in listing.entries}
    assert not listing.refused
