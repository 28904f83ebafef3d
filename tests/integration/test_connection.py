"""A connection to honest servers: both transports, both generations, and what is asked of them."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from folders import manifest_of, write_files, write_skill
from integration.peers import BRISK, DEADLINE, ERAS, TRANSPORTS, Peer, config, honest, hostile
from programs import http_server
from skillwire.core.errors import InvalidUriError, LimitError, NotFoundError
from skillwire.core.manifest import MAX_TOTAL_SIZE, digest_of
from skillwire.host.calls import ConnectionState
from skillwire.host.calls.exchange import Declaration, ResourceContent
from skillwire.host.connect.connection import MAX_INSTRUCTIONS, Connection
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig
from skillwire.host.model.errors import NotDeclaredError, UnavailableError
from skillwire.host.model.origin import Origin, OriginKind

pytestmark = pytest.mark.anyio

VERSIONS = {"modern": "2026-07-28", "legacy": "2025-11-25"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three skills, one of them with a file that is no text."""
    for name in ("one", "two"):
        write_skill(tmp_path / "skills" / name)
    write_skill(tmp_path / "skills" / "three", {"references/a.md": "# Grüße\r\n", "logo.png": b"\x89PNG\xff"})
    return tmp_path / "skills"


@asynccontextmanager
async def connection_to(peer: Peer) -> AsyncGenerator[Connection]:
    with anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=BRISK) as connection:
            yield connection


@pytest.mark.requirement("NEG-02")
@pytest.mark.parametrize("era", ERAS)
async def test_everything_can_be_asked_over_stdio_in_both_generations(
    tmp_path: Path, root: Path, env: dict[str, str], era: str
) -> None:
    peer = honest(tmp_path, root, era=era, env=env)

    async with connection_to(peer) as connection:
        await check_everything(connection, root, VERSIONS[era])


async def test_everything_can_be_asked_over_http(root: Path, env: dict[str, str]) -> None:
    with http_server(root, env=env) as server, anyio.fail_after(DEADLINE):
        async with Connection(config(HttpEndpoint(server.url)), limits=BRISK) as connection:
            await check_everything(connection, root, VERSIONS["modern"])


async def check_everything(connection: Connection, root: Path, version: str) -> None:
    assert connection.state is ConnectionState.IDLE
    assert connection.declaration is None

    listing = await connection.list_skills()

    assert [entry.uri.text for entry in listing.entries] == [
        f"skill://{name}/SKILL.md" for name in ("one", "three", "two")
    ]
    assert listing.problem is None
    assert connection.protocol_version == version
    assert connection.declaration == Declaration(True, {"directoryRead": True})
    assert (connection.state, connection.epoch) == (ConnectionState.READY, 1)
    entry = await connection.get_skill("skill://three/SKILL.md")
    assert entry.manifest == manifest_of(root / "three", "skill://three/SKILL.md")
    assert (
        await connection.read_file("skill://three/references/a.md", max_bytes=100) == "# Grüße\r\n".encode()
    )
    png = await connection.read_resource("skill://three/logo.png")
    assert png == ResourceContent("skill://three/logo.png", b"\x89PNG\xff", "image/png", False)
    assert [item.name for item in await connection.read_directory("skill://three")] == [
        "SKILL.md",
        "logo.png",
        "references",
    ]
    with pytest.raises(NotFoundError):
        await connection.read_file("skill://three/gone.md", max_bytes=100)
    with pytest.raises(LimitError):
        await connection.read_file("skill://three/references/a.md", max_bytes=3)
    with pytest.raises(InvalidUriError):
        await connection.read_resource("no uri\n")
    assert connection.epoch == 1


@pytest.mark.requirement("LIM-01")
@pytest.mark.parametrize("era", ERAS)
async def test_a_file_of_16_mib_arrives_whole_over_stdio(
    tmp_path: Path, root: Path, env: dict[str, str], era: str
) -> None:
    # Control characters take six bytes each in JSON, which is more than any message may have by default.
    content = os.urandom(MAX_TOTAL_SIZE - 4096)
    text = b"\x01" * (12 * 1024 * 1024)
    write_files(root / "one", {"big.bin": content})
    write_files(root / "two", {"big.txt": text})
    peer = honest(tmp_path, root, era=era, env=env)

    async with connection_to(peer) as connection:
        found = await connection.read_file("skill://one/big.bin", max_bytes=MAX_TOTAL_SIZE)
        spelled_out = await connection.read_file("skill://two/big.txt", max_bytes=len(text))

    assert digest_of(found) == digest_of(content)
    assert spelled_out == text


@pytest.mark.parametrize("era", ERAS)
async def test_a_file_of_16_mib_arrives_whole_over_http_as_one_event(tmp_path: Path, era: str) -> None:
    with hostile(tmp_path, "honest", era=era, transport="http", seconds=30) as peer:
        async with connection_to(peer) as connection:
            found = await connection.read_resource(f"big://x/{MAX_TOTAL_SIZE}")

    assert len(found.content) == MAX_TOTAL_SIZE


@pytest.mark.requirement("NAME-05")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_is_known_by_its_label_and_endpoint_whatever_it_calls_itself(
    tmp_path: Path, era: str, transport: str
) -> None:
    with hostile(tmp_path, "honest", era=era, transport=transport) as peer:
        async with connection_to(peer) as connection:
            await connection.connect()

            assert connection.origin == Origin(OriginKind.SERVER, "peer", peer.server.endpoint.fingerprint)
            assert str(connection.origin) == "MCP server peer"
            assert connection.protocol_version == VERSIONS[era]
            assert len(connection.instructions.encode()) == MAX_INSTRUCTIONS


@pytest.mark.requirement("NEG-05")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_that_declared_nothing_is_asked_for_no_skill(
    tmp_path: Path, era: str, transport: str
) -> None:
    with hostile(tmp_path, "undeclared", era=era, transport=transport) as peer:
        async with connection_to(peer) as connection:
            for call in (
                connection.list_skills(),
                connection.get_skill("skill://a/SKILL.md"),
                connection.read_directory("skill://a"),
            ):
                with pytest.raises(NotDeclaredError):
                    await call
            assert connection.declaration is None
            assert (await connection.read_resource("note://a")).is_text

        methods = {fact.get("method") for fact in peer.facts}
        assert not methods & {"skills/list", "skills/get", "resources/directory/read"}
        assert "resources/read" in methods


@pytest.mark.requirement("NEG-06")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_no_directory_is_read_unless_the_server_said_exactly_true(
    tmp_path: Path, transport: str
) -> None:
    with hostile(tmp_path, "directory-maybe", transport=transport) as peer:
        async with connection_to(peer) as connection:
            with pytest.raises(NotDeclaredError) as caught:
                await connection.read_directory("skill://refunds")

        assert caught.value.violates == "NEG-06"
        assert not peer.asked("resources/directory/read")


@pytest.mark.requirement("NEG-07")
async def test_the_client_says_who_it_is_and_that_it_knows_skills(tmp_path: Path) -> None:
    with hostile(tmp_path, "honest", era="legacy") as peer:
        async with connection_to(peer) as connection:
            await connection.connect()

        params = peer.asked("initialize")[0]["params"]
        assert params["clientInfo"]["name"] == "skillwire"
        assert params["capabilities"] == {"extensions": {"io.modelcontextprotocol/skills": {}}}


async def test_the_newer_generation_hears_that_with_every_request(tmp_path: Path) -> None:
    with hostile(tmp_path, "honest") as peer:
        async with connection_to(peer) as connection:
            await connection.get_skill("skill://a/SKILL.md")

        meta = peer.asked("skills/get")[0]["params"]["_meta"]
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "skillwire"
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {
            "extensions": {"io.modelcontextprotocol/skills": {}}
        }


async def test_a_server_that_asks_for_a_model_or_for_folders_is_told_no(tmp_path: Path) -> None:
    with hostile(tmp_path, "asks", era="legacy") as peer:
        async with connection_to(peer) as connection:
            await connection.list_skills()
            with anyio.fail_after(DEADLINE):
                while len(answers(peer)) < 2:  # noqa: ASYNC110 - another process notes it in a file
                    await anyio.sleep(0.02)

        assert sorted(answers(peer)) == ["q1", "q2"]


def answers(peer: Peer) -> list[str]:
    return [fact["id"] for fact in peer.facts if fact.get("error") and fact.get("method") is None]


async def test_nothing_is_answered_from_a_cache(tmp_path: Path) -> None:
    with hostile(tmp_path, "honest") as peer:
        async with connection_to(peer) as connection:
            for _ in range(3):
                await connection.read_file("skill://refunds/SKILL.md", max_bytes=1000)

        assert len(peer.asked("resources/read")) == 3


@pytest.mark.requirement("APPR-03")
async def test_entering_asks_nothing_and_starts_nothing(tmp_path: Path) -> None:
    with hostile(tmp_path, "honest") as peer:
        async with connection_to(peer) as connection:
            await anyio.sleep(0.5)

            assert connection.state is ConnectionState.IDLE
        assert peer.facts == []


@pytest.mark.requirement("APPR-03")
async def test_an_idle_connection_sends_nothing(tmp_path: Path) -> None:
    with hostile(tmp_path, "honest", era="legacy") as peer:
        async with connection_to(peer) as connection:
            await connection.connect()
            await peer.wait_for("notifications/initialized")
            before = len(peer.facts)
            await anyio.sleep(1.0)

            assert len(peer.facts) == before


# Sharing


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_identical_calls_at_one_time_are_one_request(tmp_path: Path, transport: str) -> None:
    with hostile(tmp_path, "slow-reads", transport=transport) as peer:
        async with connection_to(peer) as connection:
            found: list[bytes] = []

            async def read() -> None:
                found.append(await connection.read_file("skill://refunds/SKILL.md", max_bytes=1000))

            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(read)

        assert len(found) == 20
        assert len(peer.asked("resources/read")) == 1
        assert peer.starts == 1


async def test_a_caller_that_gives_up_takes_nothing_from_the_others(tmp_path: Path) -> None:
    with hostile(tmp_path, "slow-reads") as peer:
        async with connection_to(peer) as connection:
            await connection.connect()
            found: list[bytes] = []

            async def read(seconds: float) -> None:
                with anyio.move_on_after(seconds):
                    found.append(await connection.read_file("skill://refunds/SKILL.md", max_bytes=1000))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, 0.05)
                tasks.start_soon(read, DEADLINE)

        assert len(found) == 1
        assert len(peer.asked("resources/read")) == 1


async def test_when_the_last_caller_gives_up_the_server_is_told(tmp_path: Path) -> None:
    with hostile(tmp_path, "hangs") as peer:
        async with connection_to(peer) as connection:
            await connection.connect()
            with anyio.move_on_after(0.3):
                await connection.list_skills()
            with anyio.fail_after(peer.server.seconds / 2):
                await peer.wait_for("notifications/cancelled")

            assert (await connection.get_skill("skill://a/SKILL.md")).name == "a"


async def test_no_more_than_eight_requests_are_in_flight(tmp_path: Path) -> None:
    with hostile(tmp_path, "slow-reads", transport="http") as peer:
        async with connection_to(peer) as connection:
            await connection.connect()
            async with anyio.create_task_group() as tasks:
                for number in range(24):
                    tasks.start_soon(connection.read_resource, f"note://{number}")

        times = sorted(fact["at"] for fact in peer.asked("resources/read"))
        assert len(times) == 24
        # The server takes 0.3 seconds for each, so the ninth comes after the first was answered.
        assert all(later - earlier > 0.25 for earlier, later in zip(times, times[8:], strict=False))


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_answers_that_were_asked_for_are_no_flood(tmp_path: Path, transport: str, era: str) -> None:
    limits = replace(BRISK, message_burst=10, messages_per_second=0.001)
    with hostile(tmp_path, "honest", transport=transport, era=era) as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=limits) as connection:
            for number in range(100):
                await connection.read_resource(f"note://{number}")

            assert connection.epoch == 1


async def test_whoever_waits_when_a_connection_is_closed_is_told(tmp_path: Path) -> None:
    with hostile(tmp_path, "hangs") as peer, anyio.fail_after(DEADLINE):
        connection = Connection(peer.server, limits=BRISK)

        async def wait() -> None:
            with pytest.raises(UnavailableError):
                await connection.list_skills()

        async with anyio.create_task_group() as tasks, connection:
            tasks.start_soon(wait)
            await peer.wait_for("skills/list")


# Changes


@pytest.mark.requirement("HOST-19")
@pytest.mark.parametrize("era", ERAS)
async def test_a_change_is_told_once_over_stdio(
    tmp_path: Path, root: Path, env: dict[str, str], era: str
) -> None:
    await check_change_is_told(honest(tmp_path, root, era=era, env=env).server, root)


@pytest.mark.requirement("HOST-19")
async def test_a_change_is_told_once_over_http(root: Path, env: dict[str, str]) -> None:
    with http_server(root, env=env) as server:
        await check_change_is_told(config(HttpEndpoint(server.url)), root)


async def check_change_is_told(server: ServerConfig, root: Path) -> None:
    told: list[float] = []
    with anyio.fail_after(DEADLINE):
        async with Connection(
            server, limits=BRISK, on_change=lambda: told.append(anyio.current_time())
        ) as connection:
            await connection.list_skills()
            await anyio.sleep(0.5)
            assert told == []

            write_skill(root / "four")

            while not told:  # noqa: ASYNC110 - a callback fills it
                await anyio.sleep(0.02)
            await anyio.sleep(0.8)
            assert len(told) == 1
            assert len((await connection.list_skills()).entries) == 4


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_many_changes_at_once_are_told_at_most_once_in_a_while(tmp_path: Path, transport: str) -> None:
    told: list[float] = []
    with hostile(tmp_path, "changes", era="legacy", transport=transport) as peer, anyio.fail_after(DEADLINE):
        async with Connection(
            peer.server, limits=BRISK, on_change=lambda: told.append(anyio.current_time())
        ) as connection:
            await connection.list_skills()
            await anyio.sleep(1.2)

    assert 1 <= len(told) <= 3
    assert all(later - earlier > 0.29 for earlier, later in pairwise(told))


async def test_a_callback_that_fails_costs_only_that_call(tmp_path: Path) -> None:
    told: list[int] = []

    def complain() -> None:
        told.append(1)
        raise ValueError("no")

    with hostile(tmp_path, "changes", era="legacy") as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=BRISK, on_change=complain) as connection:
            await connection.list_skills()
            while not told:  # noqa: ASYNC110 - a callback fills it
                await anyio.sleep(0.02)

            assert len((await connection.list_skills()).entries) == 1


@pytest.mark.parametrize(
    ("behaviour", "transport"),
    [("listen-refused", "stdio"), ("listen-refused", "http"), ("listen-lost", "http")],
)
async def test_a_stream_of_changes_that_fails_costs_nothing_else(
    tmp_path: Path, behaviour: str, transport: str
) -> None:
    with hostile(tmp_path, behaviour, transport=transport) as peer:
        async with connection_to(peer) as connection:
            await connection.connect()
            await peer.wait_for("subscriptions/listen", 2)  # It is tried again, with pauses.

            assert len((await connection.list_skills()).entries) == 1
            assert connection.epoch == 1
        assert len(peer.asked("subscriptions/listen")) <= 10
