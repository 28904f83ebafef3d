"""Other people's clients at a server with tokens and rules: each sees what its token may see, and no more."""

import json
from collections.abc import Generator

import anyio
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.skills import SkillsClientExtension

from configs import configured
from folders import write_skill
from integration.access_world import token_line, token_of
from interop.serving import PAGE_SIZE, command_of, serving
from interop.tools import INSPECTOR, Node

DEADLINE = 60.0
RULES = """
[[rule]]
tokens = ["few"]
see = ["acme"]

[[rule]]
tokens = ["many"]
see = ["*"]
"""
SEEN = {
    "few": ["skill://acme/open/SKILL.md"],
    "many": ["skill://acme/open/SKILL.md", "skill://secret/plan/SKILL.md"],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, env: dict[str, str]) -> Generator[str]:
    folder = tmp_path_factory.mktemp("guarded")
    write_skill(folder / "skills" / "acme" / "open")
    write_skill(folder / "skills" / "secret" / "plan")
    tokens, rules = folder / "tokens", folder / "access.toml"
    tokens.write_text("".join(token_line(name, token_of(name)) for name in SEEN))
    tokens.chmod(0o600)
    rules.write_text(RULES)
    command = command_of("skillwire", folder / "skills", "http")
    config = configured(folder, access=rules, page_size=PAGE_SIZE)
    with serving((*command, "--token-file", str(tokens), *config), env) as found:
        yield found


def inspected(node: Node, url: str, era: str, *headers: str) -> tuple[int, str]:
    words = ["--protocol-era", era, "--method", "skills/list", "--verify", "--require-digests"]
    asked = [word for header in headers for word in ("--header", header)]
    done = node.run(INSPECTOR, url, "--", *words, *asked, "--format", "json", "-q")
    return done.returncode, done.stdout


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_the_inspector_verifies_what_its_token_may_see(node: Node, url: str, era: str) -> None:
    for name, expected in SEEN.items():
        code, words = inspected(node, url, era, f"Authorization: Bearer {token_of(name)}")

        reports = [json.loads(line) for line in words.splitlines()]
        assert (code, [report["uri"] for report in reports]) == (0, expected)
        assert {report["outcome"] for report in reports} == {"verified"}


@pytest.mark.requirement("SEC-14")
def test_the_inspector_is_sent_away_without_a_token(node: Node, url: str) -> None:
    code, words = inspected(node, url, "modern")

    assert code != 0
    assert "skill://" not in words


@pytest.mark.requirement("SEC-14")
@pytest.mark.parametrize("name", SEEN)
async def test_fastmcp_lists_and_reads_what_its_token_may_see(url: str, name: str) -> None:
    transport = StreamableHttpTransport(url, auth=token_of(name))
    with anyio.fail_after(DEADLINE):
        async with Client(transport, extensions=[SkillsClientExtension()]) as client:
            listed = [skill.uri for skill in await client.list_skills()]
            contents = [await client.read_resource(uri) for uri in listed]

    assert listed == SEEN[name]
    assert len(contents) == len(listed)
