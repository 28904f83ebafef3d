"""Changes, from the disk to the clients: what they see, what they are told, and what is never torn."""

import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.subscriptions import Subscription
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent

from folders import delete, skill_md, write_files, write_skill
from skillwire.core.errors import INTERNAL_ERROR, INVALID_PARAMS
from skillwire.core.uri import SkillUri
from skillwire.server import Skills, add_skills, changes
from talking import (
    AnyServer,
    Inbox,
    Json,
    ask,
    connect,
    directory,
    eventually,
    get,
    is_as_promised,
    read,
    refused,
    skill,
    skills_of,
)

# Far more than a change takes, on a machine with much else to do.
SOON = 5.0
PAUSE = changes._PAUSE_SECONDS  # pyright: ignore[reportPrivateUsage]
HELLO = "skill://acme/hello/SKILL.md"
REFUNDS = "skill://refunds/SKILL.md"
POLICY = "skill://refunds/references/policy.md"


@pytest.fixture
def lowlevel() -> Server[Any]:
    return Server("demo")


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Announce changes soon after each other, so that tests of several need not wait."""
    monkeypatch.setattr(changes, "_PAUSE_SECONDS", 0.05)


@pytest.fixture
def usual_pause(haste: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_PAUSE_SECONDS", PAUSE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    write_skill(folder / "refunds", {"references/policy.md": "Thirty days.\n"})
    return folder


@asynccontextmanager
async def told(server: AnyServer) -> AsyncGenerator[tuple[Client, Inbox]]:
    """Connect with the handshake of 2025-11-25, and keep what arrives."""
    inbox = Inbox()
    async with connect(server, "legacy", message_handler=inbox.put) as client:
        yield client, inbox


async def next_event(stream: Subscription) -> ServerEvent:
    with anyio.fail_after(SOON):
        return await anext(stream)


# What clients see


async def test_an_edited_file_is_seen_in_list_get_and_read(mode: str, root: Path) -> None:
    server: Server[Any] = Server("demo")
    add_skills(server, root)

    async with connect(server, mode) as client:
        before = await get(client, REFUNDS)
        write_files(root / "refunds", {"references/policy.md": "Sixty days, at most.\n"})
        after = await eventually(lambda: get(client, REFUNDS), lambda entry: entry != before, seconds=SOON)
        listed = await skills_of(client)
        content = await read(client, POLICY)

    assert content == b"Sixty days, at most.\n"
    assert is_as_promised(content, after["resources"][1])
    assert listed == {REFUNDS: after}


@pytest.mark.requirement("GET-04")
async def test_getting_a_skill_again_gives_its_entry_as_it_is_now(mode: str, root: Path) -> None:
    server: Server[Any] = Server("demo")
    add_skills(server, root)

    async with connect(server, mode) as client:
        held = await get(client, REFUNDS)
        write_files(
            root / "refunds", {"SKILL.md": skill_md("refunds", extra="license: MIT\n"), "new.md": "n"}
        )
        entry = await eventually(
            lambda: get(client, REFUNDS), lambda entry: len(entry["resources"]) == 3, seconds=SOON
        )

    assert "license" not in held["frontmatter"]
    assert entry["frontmatter"]["license"] == "MIT"
    assert [line["uri"] for line in entry["resources"]] == [
        REFUNDS,
        "skill://refunds/new.md",
        "skill://refunds/references/policy.md",
    ]


async def test_skills_that_are_added_removed_and_moved_on_disk_are_followed(mode: str, root: Path) -> None:
    server: Server[Any] = Server("demo")
    add_skills(server, root)

    async def uris() -> list[str]:
        return list(await skills_of(client))

    async with connect(server, mode) as client:
        write_skill(root / "team-a/invoices", {"a.md": "a"})
        await eventually(uris, lambda seen: "skill://team-a/invoices/SKILL.md" in seen, seconds=SOON)
        assert await read(client, "skill://team-a/invoices/a.md") == b"a"

        (root / "team-a").rename(root / "team-b")
        await eventually(
            uris, lambda seen: seen == [REFUNDS, "skill://team-b/invoices/SKILL.md"], seconds=SOON
        )
        assert await read(client, "skill://team-b/invoices/a.md") == b"a"
        moved = await refused(client, "resources/read", uri="skill://team-a/invoices/a.md")
        gone = await refused(client, "resources/directory/read", uri="skill://team-a")

        delete(root / "team-b")
        await eventually(uris, lambda seen: seen == [REFUNDS], seconds=SOON)
        removed = await refused(client, "skills/get", uri="skill://team-b/invoices/SKILL.md")

    assert [moved.code, gone.code, removed.code] == [INVALID_PARAMS] * 3


async def test_a_skill_that_breaks_is_withdrawn_and_comes_back_when_it_is_mended(
    mode: str, root: Path
) -> None:
    server: Server[Any] = Server("demo")
    add_skills(server, root)

    async with connect(server, mode) as client:
        write_files(root, {"refunds/SKILL.md": "no frontmatter any more\n"})
        await eventually(lambda: skills_of(client), lambda seen: not seen, seconds=SOON)
        error = await refused(client, "skills/get", uri=REFUNDS)
        write_skill(root / "refunds")
        await eventually(lambda: skills_of(client), lambda seen: list(seen) == [REFUNDS], seconds=SOON)

    assert error.code == INVALID_PARAMS


@pytest.mark.requirement("DIR-02", "DIR-04")
async def test_a_directory_is_read_as_it_is_now(mode: str, root: Path) -> None:
    server: Server[Any] = Server("demo")
    add_skills(server, root)

    async with connect(server, mode) as client:
        first = await directory(client, "skill://refunds/references")
        write_files(root / "refunds", {"references/more.md": "m"})
        await eventually(
            lambda: directory(client, "skill://refunds/references"), lambda seen: len(seen) == 2, seconds=SOON
        )
        delete(root / "refunds/references/more.md")
        delete(root / "refunds/references/policy.md")
        last = await eventually(
            lambda: directory(client, "skill://refunds/references"), lambda seen: not seen, seconds=SOON
        )

    assert first == {POLICY: "text/markdown"}
    assert last == {}


# What clients of the handshake era are told


@pytest.mark.requirement("SDK-07")
async def test_a_change_on_disk_is_announced_once_it_is_served(server: AnyServer, root: Path) -> None:
    add_skills(server, root)

    async with told(server) as (client, inbox):
        write_skill(root / "invoices")
        await inbox.wait_for(lambda inbox: inbox.list_changes, seconds=SOON)
        listed = await skills_of(client)

    assert list(listed) == ["skill://invoices/SKILL.md", REFUNDS]


async def test_only_who_subscribed_is_told_of_an_update_and_only_of_that_uri(
    server: AnyServer, root: Path
) -> None:
    write_skill(root / "invoices")
    add_skills(server, root)

    async with told(server) as (client, inbox), told(server) as (other, other_inbox):
        assert await ask(client, "resources/subscribe", uri=POLICY) == {}
        await ask(other, "resources/subscribe", uri="skill://invoices/SKILL.md")
        write_files(root / "refunds", {"references/policy.md": "Sixty days.\n", "references/new.md": "n"})
        await inbox.wait_for(lambda inbox: POLICY in inbox.updated, seconds=SOON)
        write_skill(root / "third")
        # What is told of a change comes in one piece, so nothing of the first can still be under way.
        for each in (inbox, other_inbox):
            await each.wait_for(lambda each: each.list_changes >= 2, seconds=SOON)

    assert set(inbox.updated) == {POLICY}
    assert other_inbox.updated == []


async def test_who_unsubscribed_is_told_no_more(lowlevel: Server[Any], root: Path) -> None:
    add_skills(lowlevel, root)

    async with told(lowlevel) as (client, inbox):
        await ask(client, "resources/subscribe", uri=POLICY)
        await ask(client, "resources/subscribe", uri=REFUNDS)
        assert await ask(client, "resources/unsubscribe", uri=POLICY) == {}
        await ask(client, "resources/unsubscribe", uri="skill://never/subscribed")
        write_files(root / "refunds", {"references/policy.md": "Sixty days.\n"})
        await inbox.wait_for(lambda inbox: inbox.list_changes, seconds=SOON)
        write_files(root / "refunds", {"SKILL.md": skill_md("refunds", body="Other.\n")})
        await inbox.wait_for(lambda inbox: REFUNDS in inbox.updated, seconds=SOON)

    assert POLICY not in inbox.updated


async def test_the_removal_of_a_subscribed_file_is_told(lowlevel: Server[Any], root: Path) -> None:
    add_skills(lowlevel, root)

    async with told(lowlevel) as (client, inbox):
        await ask(client, "resources/subscribe", uri=POLICY)
        delete(root / "refunds")
        await inbox.wait_for(lambda inbox: POLICY in inbox.updated, seconds=SOON)
        error = await refused(client, "resources/read", uri=POLICY)

    assert error.code == INVALID_PARAMS


async def test_skills_added_in_code_are_announced_too(lowlevel: Server[Any]) -> None:
    skills = add_skills(lowlevel)

    async with told(lowlevel) as (client, inbox):
        await ask(client, "resources/subscribe", uri=HELLO)
        skills.add(skill("acme/hello"))
        await inbox.wait_for(lambda inbox: HELLO in inbox.updated, seconds=SOON)
        skills.remove(SkillUri(HELLO))
        await inbox.wait_for(lambda inbox: inbox.updated == [HELLO] * 2, seconds=SOON)

    assert inbox.list_changes == 2


async def test_a_file_written_again_with_the_same_bytes_is_no_change(root: Path) -> None:
    server: Server[Any] = Server("demo")
    add_skills(server, root)

    async with told(server) as (client, inbox):
        await ask(client, "resources/subscribe", uri=POLICY)
        write_files(root / "refunds", {"references/policy.md": "Thirty days.\n"})
        os.utime(root / "refunds/SKILL.md", (1_700_000_000, 1_700_000_000))
        write_skill(root / "marker")
        await inbox.wait_for(lambda inbox: inbox.list_changes, seconds=SOON)
        assert inbox.updated == []
        write_files(root / "refunds", {"references/policy.md": "Forty days.\n"})
        await inbox.wait_for(lambda inbox: inbox.updated, seconds=SOON)

    assert inbox.updated == [POLICY]


@pytest.mark.usefixtures("usual_pause")
async def test_many_changes_in_a_row_are_told_together(server: AnyServer) -> None:
    skills = add_skills(server)
    last = "skill://acme/s99/SKILL.md"

    async with told(server) as (client, inbox):
        await ask(client, "resources/subscribe", uri=last)
        started = time.monotonic()
        for number in range(100):
            skills.add(skill(f"acme/s{number}"))
            await anyio.sleep(0.002)
        pauses = (time.monotonic() - started) / PAUSE
        await inbox.wait_for(lambda inbox: last in inbox.updated, seconds=SOON)

    assert 1 <= inbox.list_changes <= min(3 + pauses, 50)
    assert inbox.updated == [last]


@pytest.mark.usefixtures("usual_pause")
async def test_many_edits_of_a_file_are_told_together(root: Path) -> None:
    server: Server[Any] = Server("demo")
    add_skills(server, root)

    async with told(server) as (client, inbox):
        await ask(client, "resources/subscribe", uri=POLICY)
        started = time.monotonic()
        for number in range(40):
            write_files(root / "refunds", {"references/policy.md": f"{number} days.\n"})
            await anyio.sleep(0.01)
        write_files(root / "refunds", {"references/policy.md": "Done.\n"})

        async def content() -> bytes:
            return await read(client, POLICY)

        await eventually(content, lambda seen: seen == b"Done.\n", seconds=SOON)
        pauses = (time.monotonic() - started) / PAUSE
        await inbox.wait_for(lambda inbox: inbox.updated, seconds=SOON)

    assert 1 <= len(inbox.updated) <= min(4 + pauses, 20)
    assert 1 <= inbox.list_changes <= min(4 + pauses, 20)


async def test_subscriptions_are_capped_for_each_connection(
    lowlevel: Server[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_SUBSCRIPTIONS", 3)
    add_skills(lowlevel, skill("acme/hello"))

    async with told(lowlevel) as (client, _), told(lowlevel) as (other, _):
        for number in range(3):
            await ask(client, "resources/subscribe", uri=f"skill://acme/{number}")
        error = await refused(client, "resources/subscribe", uri="skill://acme/3")
        again = await ask(client, "resources/subscribe", uri="skill://acme/2")
        of_another = await ask(other, "resources/subscribe", uri="skill://acme/3")
        await ask(client, "resources/unsubscribe", uri="skill://acme/0")
        after_one_less = await ask(client, "resources/subscribe", uri="skill://acme/3")

    assert error.code == INVALID_PARAMS
    assert again == of_another == after_one_less == {}


async def test_a_uri_too_long_to_be_a_skills_takes_no_memory(lowlevel: Server[Any]) -> None:
    skills = add_skills(lowlevel, skill("acme/hello"))

    async with told(lowlevel) as (client, _):
        await ask(client, "resources/subscribe", uri=f"skill://{'x' * 20_000}")
        [subscriber] = skills.announcer._subscribers.values()  # pyright: ignore[reportPrivateUsage]

    assert subscriber.uris == set()


async def test_connections_that_closed_are_forgotten(server: AnyServer) -> None:
    skills = add_skills(server, skill("acme/hello"))
    known = skills.announcer._subscribers  # pyright: ignore[reportPrivateUsage]

    async with told(server) as (client, inbox):
        for _ in range(3):
            async with told(server) as (passing, _), connect(server, "auto"):
                await ask(passing, "resources/subscribe", uri=HELLO)
                assert len(known) == 2
        await eventually(lambda: length_of(known), lambda seen: seen == 1, seconds=SOON)
        skills.add(skill("acme/later"))
        await inbox.wait_for(lambda inbox: inbox.list_changes == 1, seconds=SOON)
        await ask(client, "resources/subscribe", uri=HELLO)

    assert not known


async def length_of(values: "dict[Any, Any]") -> int:
    return len(values)


class SilentClient:
    """A client that shakes hands, subscribes, and then does not read what it is sent."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[SessionMessage | Exception]],
        send: Callable[[SessionMessage], Awaitable[None]],
    ) -> None:
        self._receive = receive
        self._send = send

    async def ask(self, number: int, method: str, params: Json) -> None:
        request = types.JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=params)
        await self._send(SessionMessage(request))
        with anyio.fail_after(SOON):
            answer = await self._receive()
        assert isinstance(answer, SessionMessage)
        assert isinstance(answer.message, types.JSONRPCResponse)

    async def shake_hands(self) -> None:
        info = {"name": "silent", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        await self.ask(1, "initialize", params)
        done = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized")
        await self._send(SessionMessage(done))
        await self.ask(2, "resources/subscribe", {"uri": HELLO})


@asynccontextmanager
async def silent(server: Server[Any]) -> AsyncGenerator[SilentClient]:
    async with create_client_server_memory_streams() as ((incoming, outgoing), (received, sent)):
        async with anyio.create_task_group() as group:
            group.start_soon(server.run, received, sent, server.create_initialization_options())
            client = SilentClient(incoming.receive, outgoing.send)
            await client.shake_hands()
            yield client
            group.cancel_scope.cancel()


async def test_a_client_that_does_not_read_delays_nobody() -> None:
    server: Server[Any] = Server("demo")
    skills = add_skills(server, skill("acme/hello"))

    async with told(server) as (client, inbox), silent(server), connect(server) as modern:
        await ask(client, "resources/subscribe", uri=HELLO)
        async with modern.listen(resources_list_changed=True) as stream:
            for number in range(1, 4):
                skills.remove(SkillUri(HELLO))
                skills.add(skill("acme/hello", body=f"{number}\n"))
                await inbox.wait_for(lambda inbox, number=number: len(inbox.updated) >= number, seconds=SOON)
                assert await next_event(stream) == ResourcesListChanged()
        content = await read(client, HELLO)

    assert content.endswith(b"\n3\n")


async def test_a_client_that_leaves_in_the_middle_of_being_told_harms_nobody() -> None:
    server: Server[Any] = Server("demo")
    skills = add_skills(server, skill("acme/hello"))

    async with told(server) as (client, inbox):
        async with silent(server):
            skills.add(skill("acme/one"))
            await inbox.wait_for(lambda inbox: inbox.list_changes, seconds=SOON)
        skills.add(skill("acme/two"))
        await inbox.wait_for(lambda inbox: inbox.list_changes >= 2, seconds=SOON)
        listed = await skills_of(client)

    assert len(listed) == 3


# What modern clients are told


async def test_a_modern_stream_tells_of_what_it_was_opened_for(server: AnyServer, root: Path) -> None:
    add_skills(server, root)

    async with connect(server) as client:
        async with client.listen(resource_subscriptions=[POLICY]) as stream:
            write_files(root / "refunds", {"new.md": "n"})
            await eventually(
                lambda: get(client, REFUNDS), lambda entry: len(entry["resources"]) == 3, seconds=SOON
            )
            write_files(root / "refunds", {"references/policy.md": "Sixty days.\n"})
            event = await next_event(stream)
            content = await read(client, POLICY)

    assert event == ResourceUpdated(uri=POLICY)
    assert content == b"Sixty days.\n"


async def test_a_modern_stream_tells_that_the_listing_changed(server: AnyServer) -> None:
    skills = add_skills(server)

    async with connect(server) as client:
        async with client.listen(resources_list_changed=True, resource_subscriptions=[HELLO]) as stream:
            skills.add(skill("acme/hello"))
            events = {await next_event(stream), await next_event(stream)}
            listed = await skills_of(client)

    assert events == {ResourcesListChanged(), ResourceUpdated(uri=HELLO)}
    assert list(listed) == [HELLO]


async def test_every_modern_stream_hears_for_itself_and_is_forgotten_when_it_ends(server: AnyServer) -> None:
    skills = add_skills(server)

    async with connect(server) as client, connect(server) as other:
        async with other.listen(resources_list_changed=True) as lasting:
            async with client.listen(resources_list_changed=True) as passing:
                skills.add(skill("acme/one"))
                assert await next_event(passing) == await next_event(lasting) == ResourcesListChanged()
            skills.add(skill("acme/two"))
            assert await next_event(lasting) == ResourcesListChanged()

    assert listeners_of(skills) == 0


def listeners_of(skills: Skills) -> int:
    buses: list[Any] = skills.announcer._buses  # pyright: ignore[reportPrivateUsage]
    return sum(len(bus._listeners) for bus in buses)


async def test_a_server_says_the_same_to_both_generations_at_once(lowlevel: Server[Any], root: Path) -> None:
    add_skills(lowlevel, root)

    async with told(lowlevel) as (old, inbox), connect(lowlevel) as new:
        await ask(old, "resources/subscribe", uri=POLICY)
        async with new.listen(resource_subscriptions=[POLICY]) as stream:
            write_files(root / "refunds", {"references/policy.md": "Sixty days.\n"})
            event = await next_event(stream)
            await inbox.wait_for(lambda inbox: inbox.updated, seconds=SOON)

    assert event == ResourceUpdated(uri=POLICY)
    assert set(inbox.updated) == {POLICY}


async def test_subscribing_one_by_one_is_not_offered_to_modern_clients(server: AnyServer) -> None:
    add_skills(server, skill("acme/hello"))

    async with connect(server) as client:
        errors = [
            await refused(client, method, uri=HELLO)
            for method in ("resources/subscribe", "resources/unsubscribe")
        ]

    assert [error.code for error in errors] == [types.METHOD_NOT_FOUND] * 2


# What is never torn


SEEN_WITHIN = 120.0
"""Long, since other programs may use the machine; a server sees these changes within a second."""


@asynccontextmanager
async def replacing(files: Callable[[int], dict[Path, bytes]]) -> AsyncGenerator[None]:
    """Replace files, each in one step, again and again from a thread of its own."""
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.wait(0.1):
            number += 1
            for path, content in files(number).items():
                beside = path.with_name(f".{path.name}.new")
                beside.write_bytes(content)
                beside.replace(path)

    writer = threading.Thread(target=work)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        await anyio.to_thread.run_sync(writer.join)


@pytest.mark.requirement("SDK-07", "GET-04")
async def test_while_files_are_replaced_every_read_is_what_an_entry_promises(mode: str, root: Path) -> None:
    server: Server[Any] = Server("demo")
    add_skills(server, root)

    def files(number: int) -> dict[Path, bytes]:
        text = f"version {number}\n".encode() * 300
        return {
            root / "refunds/references/policy.md": text,
            root / "refunds/SKILL.md": skill_md("refunds", extra=f'metadata: {{version: "{number}"}}\n'),
        }

    for path, content in files(0).items():
        path.write_bytes(content)
    versions: set[str] = set()
    verified = 0
    async with connect(server, mode) as client, replacing(files):
        with anyio.fail_after(SEEN_WITHIN):
            while len(versions) < 4 or verified < 40:
                held = (await skills_of(client))[REFUNDS]
                for position, uri in enumerate((REFUNDS, POLICY)):
                    held, content = await read_verified(client, held, position)
                    assert uri == held["resources"][position]["uri"]
                    assert uri == REFUNDS or content == content[: len(content) // 300] * 300
                    verified += 1
                versions.add(held["frontmatter"]["metadata"]["version"])


async def read_verified(client: Client, held: Json, position: int) -> tuple[Json, bytes]:
    """Read a file as a host does: against the entry it holds, or else against a new one.

    A file that changes too fast may be refused; what is answered is never anything else than promised.
    """
    uri = held["resources"][position]["uri"]
    for _ in range(20):
        try:
            content = await read(client, uri)
        except MCPError as error:
            assert error.error.code == INTERNAL_ERROR
            assert "changing" in error.error.message
        else:
            if is_as_promised(content, held["resources"][position]):
                return held, content
        held = await get(client, REFUNDS)
    raise AssertionError(f"{uri} never was what the entry promised")


@pytest.mark.requirement("SDK-07")
async def test_while_files_are_replaced_entry_and_frontmatter_are_of_one_moment(
    mode: str, root: Path
) -> None:
    """The version in the frontmatter and the length of `SKILL.md` change together, and never apart."""
    server: Server[Any] = Server("demo")
    add_skills(server, root)

    def document(number: int) -> bytes:
        return skill_md("refunds", extra=f'metadata: {{version: "{number}"}}\n', body="x" * number + "\n")

    def files(number: int) -> dict[Path, bytes]:
        return {root / "refunds/SKILL.md": document(number)}

    (root / "refunds/SKILL.md").write_bytes(document(0))
    seen: set[str] = set()
    async with connect(server, mode) as client, replacing(files):
        with anyio.fail_after(SEEN_WITHIN):
            while len(seen) < 4:
                entries = [await get(client, REFUNDS), *(await skills_of(client)).values()]
                for entry in entries:
                    version = entry["frontmatter"]["metadata"]["version"]
                    assert is_as_promised(document(int(version)), entry["resources"][0])
                    seen.add(version)
