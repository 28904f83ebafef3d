"""A file changes while clients of both generations are connected: each hears of it and gets the new one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPDeprecationWarning

from folders import write_skill
from interop.contents import bytes_of
from interop.python_client import ask, connected
from interop.serving import EVERYWHERE, Endpoint, Transport, command_of, serving
from interop.truth import digest_of

HEARD_WITHIN = 20.0
ROOT = "skill://changing"


@pytest.fixture
def changing(
    server: str, transport: Transport, tmp_path: Path, env: dict[str, str]
) -> Iterator[tuple[Endpoint, Path]]:
    """A server of its own for a test, and a file that it serves."""
    file = write_skill(tmp_path / "skills" / "changing", {"references/a.md": "Before.\n"}) / "references/a.md"
    command = command_of(server, tmp_path / "skills", transport)
    if transport == "stdio":
        yield Endpoint(command=command), file
        return
    with serving(command, env) as url:
        yield Endpoint(url=url), file


@pytest.mark.requirement("GET-04")
@pytest.mark.requirement("SDK-07")
@pytest.mark.parametrize(("server", "transport"), EVERYWHERE)
async def test_clients_of_both_generations_hear_of_a_change_and_get_it(
    changing: tuple[Endpoint, Path], env: dict[str, str]
) -> None:
    endpoint, file = changing
    uri = f"{ROOT}/references/a.md"
    told = Notifications()
    wanted = {ResourcesListChanged(), ResourceUpdated(uri=uri)}
    heard: set[Any] = set()

    async with (
        connected(endpoint, "auto", env) as modern,
        connected(endpoint, "legacy", env, message_handler=told.take) as legacy,
        modern.listen(resources_list_changed=True, resource_subscriptions=[uri]) as changes,
    ):
        with pytest.warns(MCPDeprecationWarning):
            await legacy.subscribe_resource(uri)  # pyright: ignore[reportDeprecated] - what older clients do
        await anyio.to_thread.run_sync(file.write_bytes, b"After.\n")
        with anyio.fail_after(HEARD_WITHIN):
            async for event in changes:
                heard.add(event)
                if heard >= wanted:
                    break
            await told.wait_for(f"updated {uri}", "list_changed")
        seen = [await file_at(client, uri) for client in (modern, legacy)]

    assert seen == [(b"After.\n", digest_of(b"After.\n"))] * 2


async def file_at(client: Client, uri: str) -> tuple[bytes, str]:
    """Return a file's bytes, and the digest that the skill's entry promises for it."""
    [content] = (await client.read_resource(uri)).contents
    answer = await ask(client, "skills/get", uri=f"{ROOT}/SKILL.md")
    [digest] = [line["digest"] for line in answer["skill"]["resources"] if line["uri"] == uri]
    return bytes_of(content), digest


class Notifications:
    """What a client of the older generation is told, unasked."""

    def __init__(self) -> None:
        self._heard: set[str] = set()
        self._more = anyio.Event()

    async def take(self, message: object) -> None:
        if isinstance(message, types.ResourceListChangedNotification):
            self._heard.add("list_changed")
        if isinstance(message, types.ResourceUpdatedNotification):
            self._heard.add(f"updated {message.params.uri}")
        self._more.set()

    async def wait_for(self, *wanted: str) -> None:
        while not self._heard.issuperset(wanted):
            await self._more.wait()
            self._more = anyio.Event()
