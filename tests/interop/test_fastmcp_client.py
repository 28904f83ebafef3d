"""FastMCP's client against our servers: with its skills extension, and as one that never heard of skills."""

from typing import Literal

import anyio
import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.skills import SkillsClientExtension

from interop.contents import bytes_of
from interop.serving import MOSTLY, Endpoint
from interop.truth import Truth, digest_of

DEADLINE = 60.0


def transport_to(endpoint: Endpoint, env: dict[str, str]) -> StdioTransport | StreamableHttpTransport:
    if endpoint.url:
        return StreamableHttpTransport(endpoint.url)
    command, *args = endpoint.command
    return StdioTransport(command, args, env=env, keep_alive=False)


@pytest.mark.requirement("LIST-03")
@pytest.mark.requirement("LIST-08")
@pytest.mark.requirement("LIST-17")
@pytest.mark.requirement("GET-01")
@pytest.mark.requirement("READ-01")
@pytest.mark.parametrize(("server", "transport"), MOSTLY)
async def test_fastmcp_lists_gets_and_reads_skills_whose_digests_hold(
    endpoint: Endpoint, truth: Truth, env: dict[str, str]
) -> None:
    digests: dict[str, str] = {}
    with anyio.fail_after(DEADLINE):
        async with Client(transport_to(endpoint, env), extensions=[SkillsClientExtension()]) as client:
            listed = await client.list_skills()
            got = [await client.get_skill(skill.uri) for skill in listed]
            for skill in got:
                assert skill.resources != "dynamic"
                for file in skill.resources:
                    [content] = await client.read_resource(file.uri)
                    digests[file.uri] = digest_of(bytes_of(content))
                    assert digests[file.uri] == file.digest

    assert [skill.model_dump(exclude_none=True) for skill in listed] == truth.entries
    assert [skill.model_dump(exclude_none=True) for skill in got] == truth.entries
    assert digests == {uri: digest_of(path.read_bytes()) for uri, path in truth.files.items()}


@pytest.mark.requirement("NEG-09")
@pytest.mark.requirement("READ-02")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize(("server", "transport"), MOSTLY)
async def test_fastmcp_without_the_extension_finds_skills_among_plain_resources(
    endpoint: Endpoint, mode: Literal["legacy", "auto"], truth: Truth, env: dict[str, str]
) -> None:
    with anyio.fail_after(DEADLINE):
        async with Client(transport_to(endpoint, env), mode=mode) as client:
            resources = await client.list_resources()
            skills = [resource for resource in resources if str(resource.uri).startswith("skill:")]
            read = {
                str(resource.uri): [bytes_of(content) for content in await client.read_resource(resource.uri)]
                for resource in skills
            }

    assert read == {uri: [truth.files[uri].read_bytes()] for uri in truth.uris}
