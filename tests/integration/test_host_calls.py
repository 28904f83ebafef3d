"""The host's calls against real servers: ours in memory, over stdio and over HTTP, and hostile processes."""

import os
import re
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.lowlevel import Server

import skillwire
from configs import configured
from folders import manifest_of, write_files, write_skill
from programs import words_of
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import NotFoundError, SkillError
from skillwire.core.manifest import digest_of
from skillwire.core.uri import SkillUri
from skillwire.host import get_skill, list_skills
from skillwire.host.calls.exchange import Declaration, declared, read_skill_uri
from skillwire.host.calls.listing import read_directory
from skillwire.host.model.errors import InvalidAnswerError, PeerError, TooSlowError
from skillwire.server import add_skills
from unit.host.calls.strangers import MODES, Params, Stranger, entry

DEADLINE = 60.0
TRANSPORTS = ("memory", "stdio", "http")
SOURCE = Path(skillwire.__file__).parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven skills, one of them with files of every kind."""
    for number in range(6):
        write_skill(tmp_path / "skills" / f"skill-{number}")
    write_skill(
        tmp_path / "skills" / "acme" / "refunds",
        {
            "references/guide.md": "# Grüße\r\n",
            "references/deep/er.txt": "",
            "assets/logo.png": b"\x89PNG\r\n\x1a\n\xff\x00",
        },
    )
    return tmp_path / "skills"


@asynccontextmanager
async def connected(transport: str, mode: str, folder: Path, home: Path) -> AsyncGenerator[Client]:
    """Serve `folder` in pages of three, and connect to it."""
    command = words_of(folder, *configured(home, page_size=3))
    if transport == "memory":
        server: Server[Any] = Server("ours")
        add_skills(server, folder, page_size=3, watch=False)
        async with Client(server, mode=mode) as client:
            yield client
    elif transport == "stdio":
        parameters = StdioServerParameters(
            command=command[0], args=[*command[1:], "--stdio"], env=environment(home)
        )
        async with Client(parameters, mode=mode) as client:
            yield client
    else:
        async with (
            running([*command, "--http", "127.0.0.1:0"], home) as url,
            Client(url, mode=mode) as client,
        ):
            yield client


def environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "PYTHONPATH": str(SOURCE),
    }


@asynccontextmanager
async def running(command: list[str], home: Path) -> AsyncGenerator[str]:
    """Run a server until the block ends, and give the URL it names on standard error."""
    async with await anyio.open_process(command, env=environment(home), stdout=None) as process:
        try:
            with anyio.fail_after(DEADLINE):
                url = await named_url(process)
            yield url
        finally:
            process.terminate()


async def named_url(process: Process) -> str:
    assert process.stderr is not None
    words = ""
    async for text in TextReceiveStream(process.stderr, errors="replace"):
        words += text
        if found := re.search(r"(http://\S+)\s", words):
            return found[1]
    raise AssertionError(f"the server ended without naming a URL:\n{words}")


def everywhere(test: Any) -> Any:
    """Run a test over every transport, in both generations."""
    return pytest.mark.parametrize("transport", TRANSPORTS)(pytest.mark.parametrize("mode", MODES)(test))


@everywhere
@pytest.mark.requirement("SDK-03")
@pytest.mark.requirement("LIST-17")
@pytest.mark.requirement("NEG-02")
async def test_a_host_lists_gets_reads_and_browses_what_the_folder_holds(
    transport: str, mode: str, folder: Path, tmp_path: Path
) -> None:
    root = "skill://acme/refunds"
    with anyio.fail_after(DEADLINE):
        async with connected(transport, mode, folder, tmp_path) as client:
            assert declared(client) == Declaration(True, {"directoryRead": True})
            listing = await list_skills(client)
            refunds = await get_skill(client, f"{root}/SKILL.md")
            manifest = refunds.manifest
            assert manifest is not None
            contents = {file.uri: await read_skill_uri(client, file.published) for file in manifest.files}
            walked = await walk(client, root)

    names = ["refunds", *(f"skill-{number}" for number in range(6))]
    assert [skill.name for skill in listing.entries] == names
    assert listing.refused == ()
    assert (listing.ttl_ms, listing.cache_scope) == ((None, None) if mode == "legacy" else (60_000, "public"))
    assert refunds == listing.entries[0]
    assert manifest == manifest_of(folder / "acme" / "refunds", f"{root}/SKILL.md")
    for file in manifest.files:
        file.verify(contents[file.uri])
    assert walked == set(manifest.uris)


async def walk(client: Client, directory: str) -> set[str]:
    """Return every file in a directory and below it."""
    found: set[str] = set()
    for item in await read_directory(client, directory):
        found |= await walk(client, item.published) if item.is_directory else {item.uri}
    return found


@everywhere
@pytest.mark.requirement("READ-09")
async def test_what_is_not_served_is_not_found(
    transport: str, mode: str, folder: Path, tmp_path: Path
) -> None:
    failures: list[str] = []

    async def expect_nothing(call: Any) -> None:
        try:
            await call
        except NotFoundError as error:
            failures.append(error.uri)

    with anyio.fail_after(DEADLINE):
        async with connected(transport, mode, folder, tmp_path) as client:
            await expect_nothing(get_skill(client, "skill://gone/SKILL.md"))
            await expect_nothing(read_skill_uri(client, "skill://skill-1/gone.md"))
            await expect_nothing(read_directory(client, "skill://skill-1/gone"))
            await expect_nothing(read_directory(client, "skill://skill-1/SKILL.md"))

    assert failures == [
        "skill://gone/SKILL.md",
        "skill://skill-1/gone.md",
        "skill://skill-1/gone",
        "skill://skill-1/SKILL.md",
    ]


async def test_a_fresh_read_matches_a_fresh_entry_after_an_edit(folder: Path) -> None:
    server: Server[Any] = Server("ours")
    add_skills(server, folder)
    uri = SkillUri("skill://acme/refunds/SKILL.md")
    guide = "skill://acme/refunds/references/guide.md"

    with anyio.fail_after(DEADLINE):
        async with Client(server) as client:
            before = await read_skill_uri(client, guide)
            write_files(folder / "acme" / "refunds", {"references/guide.md": "changed"})
            entry_now = await get_skill(client, uri)
            while digest_of(b"changed") not in digests(entry_now):
                await anyio.sleep(0.05)
                entry_now = await get_skill(client, uri)
            kept, fresh = await read_skill_uri(client, guide), await read_skill_uri(client, guide, fresh=True)

    assert entry_now.manifest is not None
    assert (before, kept, fresh) == ("# Grüße\r\n".encode(), "# Grüße\r\n".encode(), b"changed")
    entry_now.manifest.require(guide).verify(fresh)


def digests(skill: SkillEntry) -> tuple[str, ...]:
    return skill.manifest.digests if skill.manifest is not None else ()


# What a process that speaks just enough MCP does after `initialize`, for each request it gets.
HOSTILE = """
import json, os, sys
def send(message):
    sys.stdout.write(message if isinstance(message, str) else json.dumps({"jsonrpc": "2.0", **message}))
    sys.stdout.write("\\n"); sys.stdout.flush()
for line in sys.stdin:
    request = json.loads(line)
    number, method = request.get("id"), request.get("method")
    if method == "initialize":
        send({"id": number, "result": {
            "protocolVersion": "2025-11-25", "serverInfo": {"name": "x", "version": "1"},
            "capabilities": {"resources": {}, "extensions": {"io.modelcontextprotocol/skills": {}}}}})
    elif number is not None:
        %s
"""


async def outcome(behaviour: str, home: Path, *, seconds: float) -> SkillError:
    """Return how `list_skills` fails with a process that behaves so."""
    parameters = StdioServerParameters(
        command=sys.executable, args=["-c", HOSTILE % behaviour], env=environment(home)
    )
    with anyio.fail_after(DEADLINE):
        async with Client(parameters, mode="legacy") as client:
            try:
                await list_skills(client, max_seconds=seconds)
            except SkillError as error:
                return error
    raise AssertionError("nothing failed")


@pytest.mark.requirement("LIST-18")
@pytest.mark.parametrize(
    "behaviour",
    [
        "pass",
        'send({"id": number, "result": []})',
        'send({"id": number, "result": "skills"})',
        'send("{" * 100_000)',
        'send({"id": number + 1, "result": {"skills": []}})',
        """send('{"jsonrpc":"2.0","id":%d,"result":{"skills":' % number + "[" * 5000 + "]" * 5000 + "}}")""",
    ],
    ids=["silence", "a list", "a text", "no JSON", "an answer to another question", "a very deep answer"],
)
async def test_a_process_that_does_not_answer_the_question_is_given_up_in_time(
    behaviour: str, tmp_path: Path
) -> None:
    assert type(await outcome(behaviour, tmp_path, seconds=0.5)) is TooSlowError


async def test_a_process_that_ends_instead_of_answering_is_an_error_of_the_connection(tmp_path: Path) -> None:
    error = await outcome("os._exit(3)", tmp_path, seconds=30)

    assert isinstance(error, PeerError)
    assert error.method == "skills/list"


@pytest.mark.requirement("NEG-18")
async def test_a_process_that_asks_for_input_lists_nothing(tmp_path: Path) -> None:
    behaviour = 'send({"id": number, "result": {"resultType": "input_required", "skills": []}})'

    assert isinstance(await outcome(behaviour, tmp_path, seconds=30), InvalidAnswerError)


async def test_a_request_for_a_skill_names_it_in_the_header_that_gateways_route_by() -> None:
    uri = "skill://acme/refunds/SKILL.md"
    stranger = Stranger({"skills/get": lambda params: {"skill": entry(), "resultType": "complete"}})
    seen: list[Params] = []

    with anyio.fail_after(DEADLINE):
        async with over_http(stranger.server(), seen) as url, Client(url) as client:
            await get_skill(client, uri)

    [headers] = [headers for headers in seen if headers.get("mcp-method") == "skills/get"]
    assert headers["mcp-name"] == uri


@asynccontextmanager
async def over_http(server: Server[Any], seen: list[Params]) -> AsyncGenerator[str]:
    """Serve over HTTP on the loopback, and note the headers of every request."""
    app: Any = server.streamable_http_app(stateless_http=True, json_response=True)

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await app(scope, receive, send)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(noting, log_level="critical", lifespan="on")
        http = uvicorn.Server(config)
        async with anyio.create_task_group() as group:
            group.start_soon(http.serve, [listener])
            try:
                while not http.started:  # noqa: ASYNC110 - uvicorn sets a flag and no event
                    await anyio.sleep(0.01)
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
            finally:
                http.should_exit = True
