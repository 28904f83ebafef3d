"""The official Python SDK's client against our servers, in both generations of the protocol."""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from folders import write_skill
from interop.contents import bytes_of
from interop.python_client import Mode, ask, connected, pages_of
from interop.serving import (
    EVERYWHERE,
    MOSTLY,
    PAGE_SIZE,
    SERVERS,
    Endpoint,
    Transport,
    command_of,
    serving,
)
from interop.truth import Json, Truth

MODES: tuple[Mode, ...] = ("legacy", "auto")

REVISION: dict[Mode, str] = {"legacy": "2025-11-25", "auto": "2026-07-28"}
TERMS: dict[Mode, dict[str, Json]] = {
    "legacy": {},
    "auto": {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"},
}
EXTENSION = "io.modelcontextprotocol/skills"

REFUSED: Sequence[tuple[str, dict[str, Any]]] = (
    ("skills/get", {"uri": "skill://gone/SKILL.md"}),
    ("skills/get", {"uri": "skill://hello-world"}),
    ("skills/get", {"uri": 7}),
    ("skills/get", {}),
    ("resources/read", {"uri": "skill://hello-world/gone.md"}),
    ("resources/read", {"uri": "skill://hello-world/../../../../etc/passwd"}),
    ("resources/read", {"uri": "skill://hello-world"}),
    ("resources/directory/read", {"uri": "skill://hello-world/"}),
    ("resources/directory/read", {"uri": "skill://hello-world/SKILL.md"}),
    ("resources/directory/read", {"uri": "skill://gone"}),
    ("skills/list", {"cursor": "nonsense"}),
    ("skills/list", {"cursor": 7}),
)


@pytest.mark.requirement("NEG-01")
@pytest.mark.requirement("NEG-02")
@pytest.mark.requirement("NEG-03")
@pytest.mark.requirement("NEG-10")
@pytest.mark.requirement("NEG-17")
@pytest.mark.requirement("NEG-20")
@pytest.mark.requirement("LIST-12")
@pytest.mark.requirement("LIST-14")
@pytest.mark.requirement("LIST-17")
@pytest.mark.requirement("GET-01")
@pytest.mark.requirement("GET-07")
@pytest.mark.requirement("DIR-02")
@pytest.mark.requirement("DIR-06")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("server", "transport"), EVERYWHERE)
async def test_the_three_methods_answer_the_python_client_field_by_field(
    endpoint: Endpoint, mode: Mode, truth: Truth, env: dict[str, str]
) -> None:
    terms = TERMS[mode]
    async with connected(endpoint, mode, env) as client:
        assert client.protocol_version == REVISION[mode]
        assert client.server_capabilities.resources is not None
        assert client.server_capabilities.extensions is not None
        assert client.server_capabilities.extensions[EXTENSION] == {"directoryRead": True}

        pages = await pages_of(client, "skills/list")
        got = [await ask(client, "skills/get", uri=uri) for uri in truth.uris]
        [prefix] = await pages_of(client, "resources/directory/read", uri="skill://acme")
        listed = {
            uri: await pages_of(client, "resources/directory/read", uri=uri) for uri in truth.directories
        }

    starts = range(0, len(truth.entries), PAGE_SIZE)
    assert pages == [{"skills": truth.entries[start : start + PAGE_SIZE], **terms} for start in starts]
    assert got == [{"skill": entry, **terms} for entry in truth.entries]
    assert [(child["uri"], child["mimeType"]) for child in prefix["resources"]] == [
        ("skill://acme/billing", "inode/directory"),
        ("skill://acme/support", "inode/directory"),
    ]
    for uri, answers in listed.items():
        children = [child["uri"] for answer in answers for child in answer.pop("resources")]
        assert children == sorted(truth.directories[uri])
        assert answers == [terms] * len(answers)


@pytest.mark.requirement("NEG-09")
@pytest.mark.requirement("READ-01")
@pytest.mark.requirement("READ-08")
@pytest.mark.requirement("URI-01")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("server", "transport"), MOSTLY)
async def test_the_python_client_reads_every_file_as_a_plain_resource(
    endpoint: Endpoint, mode: Mode, truth: Truth, env: dict[str, str]
) -> None:
    read: dict[str, bytes] = {}
    async with connected(endpoint, mode, env) as client:
        for uri in truth.files:
            [content] = (await client.read_resource(uri)).contents
            assert content.uri == uri
            assert isinstance(content, types.TextResourceContents) == truth.is_text(uri)
            read[uri] = bytes_of(content)

    assert read == {uri: path.read_bytes() for uri, path in truth.files.items()}


@pytest.mark.requirement("READ-01")
@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_file_beyond_the_python_clients_limit_for_events_is_read_whole(
    transport: Transport, tmp_path: Path, env: dict[str, str]
) -> None:
    content = random.Random(2640).randbytes(3 * 1024 * 1024)
    write_skill(tmp_path / "skills" / "large", {"assets/all.bin": content})
    command = command_of("skillwire", tmp_path / "skills", transport)
    read: list[bytes] = []

    with ExitStack() as running:
        url = running.enter_context(serving(command, env)) if transport == "http" else ""
        endpoint = Endpoint(url=url) if url else Endpoint(command=command)
        for mode in MODES:
            async with connected(endpoint, mode, env) as client:
                [whole] = (await client.read_resource("skill://large/assets/all.bin")).contents
                read.append(bytes_of(whole))

    assert [len(part) for part in read] == [len(content)] * 2
    assert all(part == content for part in read)


@pytest.mark.requirement("META-01")
@pytest.mark.requirement("NEG-09")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("server", "transport"), MOSTLY)
async def test_the_python_client_pages_through_resources_and_completes_a_path(
    endpoint: Endpoint, server: str, mode: Mode, truth: Truth, env: dict[str, str]
) -> None:
    found: list[str] = []
    cursor: str | None = None
    async with connected(endpoint, mode, env) as client:
        for _ in range(100):
            page = await client.list_resources(cursor=cursor)
            found += [resource.uri for resource in page.resources]
            cursor = page.next_cursor
            if cursor is None:
                break
        templates = (await client.list_resource_templates()).resource_templates
        reference = types.ResourceTemplateReference(uri="skill://{+path}")
        completed = [
            (await client.complete(reference, {"name": "path", "value": typed})).completion.values
            for typed in ("hel", "release-notes/", "nothing")
        ]

    own = [] if server == "skillwire" else ["test://static-binary", "test://static-text"]
    assert sorted(found) == [*truth.uris, *own]
    assert "skill://{+path}" in [template.uri_template for template in templates]
    assert completed == [["hello-world/"], ["release-notes/SKILL.md", "release-notes/templates/"], []]


@pytest.mark.requirement("NEG-09")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("server", ["mcpserver.py", "fastmcp_server.py"])
async def test_what_a_server_had_before_still_works_beside_skills(
    url: str, mode: Mode, env: dict[str, str]
) -> None:
    async with connected(Endpoint(url=url), mode, env) as client:
        tools = (await client.list_tools()).tools
        called = await client.call_tool("test_simple_text", {})
        text = (await client.read_resource("test://static-text")).contents
        data = (await client.read_resource("test://template/7/data")).contents
        with pytest.raises(MCPError) as caught:
            await client.read_resource("test://gone")

    assert [tool.name for tool in tools] == ["test_simple_text"]
    assert isinstance(called, types.CallToolResult)
    assert not called.is_error
    assert bytes_of(text[0]) == b"This is the content of the static text resource."
    assert bytes_of(data[0]) == b'{"id": "7", "templateTest": true}'
    assert caught.value.error.code == types.INVALID_PARAMS


@pytest.mark.requirement("GET-02")
@pytest.mark.requirement("READ-09")
@pytest.mark.requirement("DIR-03")
@pytest.mark.requirement("DIR-14")
@pytest.mark.requirement("LIST-13")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("server", SERVERS)
async def test_the_python_client_is_told_what_is_not_there(url: str, mode: Mode, env: dict[str, str]) -> None:
    answers: list[Json] = []
    async with connected(Endpoint(url=url), mode, env) as client:
        for method, params in REFUSED:
            with pytest.raises(MCPError) as caught:
                await ask(client, method, **params)
            answers.append(caught.value.error)

    for (method, params), error in zip(REFUSED, answers, strict=True):
        assert (method, params, error.code) == (method, params, types.INVALID_PARAMS)
        assert error.message
        if isinstance(params.get("uri"), str):
            assert error.data["uri"] == params["uri"]
