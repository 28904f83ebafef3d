"""The example of one skill on two surfaces, run as its page says."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from mcp.client import Client

from serving import environment
from skillwire.core.skill import Skill

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.requirement("TOOL-06", "DUAL-03")
def test_the_client_walks_both_surfaces_of_the_example_server(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "surfaces" / "client.py"],
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    skill = Skill("code-mode", body=(EXAMPLES / "skills/code-mode/SKILL.md").read_bytes())
    for name in ("examples.md", "policies.md", "schema.graphql"):
        path = f"references/{name}"
        skill = skill.with_reference(path, (EXAMPLES / "skills/code-mode" / path).read_bytes())

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        "resources/list:",
        "  skill://index.json",
        "  skill://acme/billing/refunds/SKILL.md",
        "  skill://code-mode/SKILL.md",
        "  skill://hello-world/SKILL.md",
        "index: refunds, code-mode, hello-world",
        f"Both surfaces gave the same {len(skill.prompt_text().encode())} bytes.",
    ]


@pytest.mark.requirement("TOOL-06")
async def test_the_prompt_of_the_example_server_has_the_bytes_of_its_resources() -> None:
    server = runpy.run_path(str(EXAMPLES / "surfaces" / "server.py"))["server"]
    program = runpy.run_path(str(EXAMPLES / "surfaces" / "client.py"))

    async with Client(server) as client:
        resources = await program["walk_resources"](client)
        prompt = await program["get_prompt"](client)

    assert resources == prompt
    assert "--- references/policies.md ---" in prompt
