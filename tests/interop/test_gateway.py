"""Other people's servers behind our gateway, judged by other people's tools."""

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from configs import configured
from interop.conformance import SKILLS, conformance, objections
from interop.serving import HERE, PAGE_SIZE, environment, serving
from interop.tools import Node
from programs import script_command, words_of

REVISIONS = ("2025-11-25", "2026-07-28")


@pytest.fixture
def gateway(folder: Path, tmp_path: Path) -> Generator[str]:
    """A FastMCP server as it comes, which speaks of no extension, behind `skillwire serve --upstream`."""
    env = environment(tmp_path)
    script = HERE / "servers" / "fastmcp_default.py"
    program, *args = script_command(script, folder, tmp_path / "requests.log", "--reload")
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"fast": {"command": program, "args": args, "env": env}}}))
    options = ["--http", "127.0.0.1:0", *configured(tmp_path, page_size=PAGE_SIZE)]
    command = tuple(words_of("--upstream", config, *options))
    with serving(command, env) as url:
        yield url


@pytest.mark.requirement("SDK-08")
@pytest.mark.parametrize("scenario", SKILLS)
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_plain_fastmcp_server_behind_the_gateway_passes_the_conformance_suite(
    node: Node, gateway: str, revision: str, scenario: str, tmp_path: Path
) -> None:
    asked = ["--scenario", scenario, "--spec-version", revision, "--force"]

    [(_, checks)] = conformance(node, gateway, asked, tmp_path / "results")

    assert objections(checks) == []
    assert len([check for check in checks if check["status"] == "SUCCESS"]) >= SKILLS[scenario][revision]
