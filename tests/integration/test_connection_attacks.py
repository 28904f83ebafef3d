"""A connection to servers that try to exhaust, mislead or stall a host, over real transports."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from integration.peers import BRISK, DEADLINE, ERAS, TRANSPORTS, Peer, gone, hostile, resident_bytes
from skillwire.core.errors import SkillError
from skillwire.host.calls import ConnectionState
from skillwire.host.calls.listing import Listing
from skillwire.host.calls.session import ConnectionLimits
from skillwire.host.connect.connection import Connection
from skillwire.host.model.endpoints import HttpEndpoint, SiteEndpoint
from skillwire.host.model.errors import (
    EndlessListingError,
    FloodError,
    InvalidAnswerError,
    MessageTooLargeError,
    PeerError,
    TooSlowError,
    UnavailableError,
)

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
# A rest that is not over before the test is.
RESTFUL = ConnectionLimits(backoff_base=1e6, backoff_most=1e6)


async def listed(peer: Peer, limits: ConnectionLimits = BRISK) -> Listing:
    with anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=limits) as connection:
            return await connection.list_skills()


async def failure_of(peer: Peer, limits: ConnectionLimits = BRISK) -> SkillError:
    """Return why a server's listing cannot be had."""
    with pytest.raises(SkillError) as caught:
        await listed(peer, limits)
    return caught.value


def names(listing: Listing) -> list[str]:
    return [entry.name for entry in listing.entries]


# Listings without an end (53)


@pytest.mark.requirement("LIST-18")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("behaviour", "kept"),
    [
        ("endless", [f"skill-{number}" for number in range(20)]),
        ("repeated", ["skill-1", "skill-2"]),
        ("cycle", ["skill-a", "skill-b", "skill-c", "skill-d"]),
        ("empty", ["first"]),
    ],
)
async def test_of_a_listing_without_end_the_pages_that_came_are_kept(
    tmp_path: Path, transport: str, behaviour: str, kept: list[str]
) -> None:
    limits = ConnectionLimits(max_pages=20)
    with hostile(tmp_path, behaviour, transport=transport) as peer:
        listing = await listed(peer, limits)

        assert names(listing) == kept
        assert isinstance(listing.problem, EndlessListingError)
        assert len(peer.asked("skills/list")) <= 20


@pytest.mark.requirement("LIST-18")
@pytest.mark.parametrize(
    "limits",
    [ConnectionLimits(max_entries=5), ConnectionLimits(max_listing_bytes=1200)],
    ids=["entries", "bytes"],
)
async def test_entries_and_bytes_of_a_listing_are_capped_too(
    tmp_path: Path, limits: ConnectionLimits
) -> None:
    with hostile(tmp_path, "endless", era="legacy") as peer:
        listing = await listed(peer, limits)

        assert 3 <= len(listing.entries) <= 5
        assert isinstance(listing.problem, EndlessListingError)


@pytest.mark.requirement("LIST-18")
async def test_of_a_listing_that_becomes_slow_the_pages_that_came_are_kept(tmp_path: Path) -> None:
    with hostile(tmp_path, "slow-pages", seconds=3) as peer:
        listing = await listed(peer)

        assert names(listing) == ["skill-0", "skill-1", "skill-2"]
        assert isinstance(listing.problem, TooSlowError)


# Messages too large to look at (54)


@pytest.mark.requirement("LIM-06")
@pytest.mark.parametrize(
    ("behaviour", "transport"), [("huge-line", "stdio"), ("huge-body", "http"), ("huge-event", "http")]
)
async def test_a_message_of_200_mb_is_given_up_before_it_is_whole(
    tmp_path: Path, behaviour: str, transport: str
) -> None:
    limits = ConnectionLimits(message_bytes=4 * MIB)
    with hostile(tmp_path, behaviour, transport=transport) as peer:
        await listed_once_elsewhere(tmp_path, transport)
        before = resident_bytes()
        highest = await watched(lambda: failure_of(peer, limits), MessageTooLargeError)

        # The cap, a copy of it, and what the allocator keeps; far from the whole.
        assert highest - before < 40 * MIB


@pytest.mark.requirement("LIM-06")
async def test_a_compressed_answer_is_refused_unread(tmp_path: Path) -> None:
    with hostile(tmp_path, "bomb", transport="http") as peer:
        await listed_once_elsewhere(tmp_path, "http")
        before = resident_bytes()
        highest = await watched(lambda: failure_of(peer), InvalidAnswerError)

        assert highest - before < 40 * MIB
        assert {fact["encoding"] for fact in peer.facts if "encoding" in fact} == {"identity"}


async def listed_once_elsewhere(folder: Path, transport: str) -> None:
    """Let everything be imported and warm before memory is measured."""
    with hostile(folder, "honest", transport=transport) as peer:
        await listed(peer)
    gc.collect()


async def watched(call: Callable[[], Any], expected: type[SkillError]) -> int:
    """Make a call that must fail so, and return the most memory there was meanwhile."""
    highest = 0
    failure: SkillError | None = None

    async def watch() -> None:
        nonlocal highest
        while True:
            highest = max(highest, resident_bytes())
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        failure = await call()
        tasks.cancel_scope.cancel()
    assert isinstance(failure, expected), failure
    return highest


# Floods


@pytest.mark.requirement("LIST-18")
@pytest.mark.parametrize(
    ("behaviour", "transport", "era"),
    [
        ("flood", "stdio", "modern"),
        ("flood", "stdio", "legacy"),
        ("comment-flood", "http", "modern"),
    ],
)
async def test_a_server_that_floods_is_disconnected(
    tmp_path: Path, behaviour: str, transport: str, era: str
) -> None:
    with hostile(tmp_path, behaviour, transport=transport, era=era) as peer:
        failure = await failure_of(peer)

        assert isinstance(failure, FloodError)
        if transport == "stdio":
            await gone(peer.pids)


@pytest.mark.requirement("LIST-18")
async def test_a_flood_on_the_stream_for_notifications_ends_the_connection(tmp_path: Path) -> None:
    with (
        hostile(tmp_path, "comment-flood", transport="http", era="legacy") as peer,
        anyio.fail_after(DEADLINE),
    ):
        async with Connection(peer.server, limits=BRISK) as connection:
            with pytest.raises(FloodError):
                while True:
                    await connection.get_skill("skill://a/SKILL.md")


async def test_a_stream_that_asks_to_be_opened_at_once_again_is_not(tmp_path: Path) -> None:
    with (
        hostile(tmp_path, "eager-stream", transport="http", era="legacy") as peer,
        anyio.fail_after(DEADLINE),
    ):
        async with Connection(peer.server) as connection:
            await connection.connect()
            await anyio.sleep(2.0)

            assert (await connection.get_skill("skill://a/SKILL.md")).name == "a"
        assert 1 <= len(peer.asked("GET")) <= 12


async def test_whatever_a_server_writes_to_standard_error_neither_blocks_it_nor_is_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with hostile(tmp_path, "chatty") as peer:
        assert names(await listed(peer)) == ["refunds"]

    assert capfd.readouterr() == ("", "")


# Answers that are none


@pytest.mark.parametrize("era", ERAS)
async def test_whatever_else_is_on_standard_output_is_passed_over(tmp_path: Path, era: str) -> None:
    with hostile(tmp_path, "garbage", era=era) as peer:
        assert names(await listed(peer)) == ["refunds"]


async def test_an_answer_to_nobody_answers_nobody(tmp_path: Path) -> None:
    with hostile(tmp_path, "wrong-ids", seconds=1) as peer:
        assert isinstance(await failure_of(peer), TooSlowError | PeerError)


async def test_a_result_that_is_no_object_is_an_error_at_once(tmp_path: Path) -> None:
    with hostile(tmp_path, "array-result") as peer:
        start = anyio.current_time()

        assert isinstance(await failure_of(peer), PeerError)
        assert anyio.current_time() - start < 15


@pytest.mark.parametrize("behaviour", ["cut-short", "not-utf8", "without-id", "pretty"])
async def test_an_answer_that_is_no_json_is_an_error_at_once(tmp_path: Path, behaviour: str) -> None:
    with hostile(tmp_path, behaviour, seconds=60) as peer, anyio.fail_after(DEADLINE - 10):
        error = await failure_of(peer)

    assert isinstance(error, PeerError | InvalidAnswerError)
    assert "not valid JSON" in str(error)


@pytest.mark.parametrize("era", ERAS)
async def test_logs_on_standard_output_that_quote_messages_do_no_harm(tmp_path: Path, era: str) -> None:
    with hostile(tmp_path, "echoes", era=era) as peer:
        assert names(await listed(peer)) == ["refunds"]


# Messages that grow when they are parsed

MEASURED = """
import resource, sys
import anyio
from skillwire.core import SkillError
from skillwire.host.connect.connection import Connection
from skillwire.host.model import HttpEndpoint, ServerConfig, StdioEndpoint

async def main():
    where = sys.argv[1:]
    endpoint = HttpEndpoint(where[0]) if len(where) == 1 else StdioEndpoint(where[0], tuple(where[1:]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with Connection(ServerConfig("peer", endpoint, seconds=120)) as connection:
        try:
            found = str(len((await connection.list_skills()).entries))
        except SkillError as error:
            found = error.refusal
    print(found, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)

anyio.run(main)
"""


async def measured(peer: Peer) -> tuple[str, int]:
    """List a server's skills in a process of its own; return how many, and the mebibytes that took."""
    endpoint = peer.server.endpoint
    assert not isinstance(endpoint, SiteEndpoint)
    where = [endpoint.url] if isinstance(endpoint, HttpEndpoint) else [endpoint.command, *endpoint.args]
    done = await anyio.run_process([sys.executable, "-c", MEASURED, *where])
    found, mebibytes = done.stdout.decode().split()
    return found, int(mebibytes)


@pytest.mark.requirement("LIM-06")
@pytest.mark.parametrize(
    ("behaviour", "transport", "era"),
    [
        ("large-page", "stdio", "modern"),
        ("large-page", "http", "legacy"),
        ("dense-page", "stdio", "modern"),
        ("dense-page", "http", "modern"),
    ],
)
async def test_a_page_takes_a_few_times_its_size_in_memory_or_is_not_parsed(
    tmp_path: Path, behaviour: str, transport: str, era: str
) -> None:
    with hostile(tmp_path, behaviour, era=era, transport=transport) as peer, anyio.fail_after(4 * DEADLINE):
        found, mebibytes = await measured(peer)

    refused = behaviour == "dense-page"
    assert found == "message-too-large" if refused else int(found) > 0
    assert mebibytes < 12 * 31


# Silence (56)


@pytest.mark.requirement("LIST-18")
@pytest.mark.parametrize(
    ("behaviour", "transport"),
    [("silent", "stdio"), ("deaf", "stdio"), ("silent", "http"), ("half-silent", "http")],
)
async def test_a_server_that_says_nothing_costs_its_own_deadline_only(
    tmp_path: Path, behaviour: str, transport: str
) -> None:
    with hostile(tmp_path, behaviour, transport=transport, seconds=1) as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=RESTFUL) as connection:
            start = anyio.current_time()
            with pytest.raises(TooSlowError):
                await connection.list_skills()
            assert 0.9 < anyio.current_time() - start < 2.5

            start = anyio.current_time()
            for _ in range(100):
                with pytest.raises(UnavailableError) as caught:
                    await connection.list_skills()
                assert caught.value.retry_in is not None
            assert anyio.current_time() - start < 0.5
        if transport == "stdio":
            await gone(peer.pids)


@pytest.mark.requirement("LIST-18")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_one_call_without_an_answer_leaves_the_connection_as_it_was(
    tmp_path: Path, transport: str, era: str
) -> None:
    with (
        hostile(tmp_path, "hangs", transport=transport, era=era, seconds=2) as peer,
        anyio.fail_after(DEADLINE),
    ):
        async with Connection(peer.server) as connection:
            with pytest.raises(TooSlowError):
                await connection.list_skills()

            assert (await connection.get_skill("skill://a/SKILL.md")).name == "a"
            assert connection.epoch == 1


@pytest.mark.requirement("HOST-01")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_slow_server_does_not_delay_a_quick_one(tmp_path: Path, transport: str) -> None:
    with (
        hostile(tmp_path, "silent", transport=transport, seconds=8) as slow_peer,
        hostile(tmp_path, "honest", transport=transport) as quick_peer,
        anyio.fail_after(DEADLINE),
    ):
        async with Connection(slow_peer.server) as slow, Connection(quick_peer.server) as quick:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(slow.connect)
                while not any("method" in fact for fact in slow_peer.facts):  # noqa: ASYNC110 - read from a file
                    await anyio.sleep(0.02)
                for _ in range(20):
                    assert names(await quick.list_skills()) == ["refunds"]
                assert slow.state is ConnectionState.CONNECTING
                tasks.cancel_scope.cancel()


# HTTP only


async def test_a_redirect_to_another_origin_is_not_followed(tmp_path: Path) -> None:
    with hostile(tmp_path, "redirects", transport="http", headers={"X-Secret": "s3cret"}) as peer:
        failure = await failure_of(peer)

        assert isinstance(failure, UnavailableError)
        # Two attempts to say hello, one for each generation, and nothing sent elsewhere.
        assert [fact["secret"] for fact in peer.facts if "secret" in fact] == ["s3cret"] * 2


async def test_a_server_that_wants_authorization_says_so(tmp_path: Path) -> None:
    with hostile(tmp_path, "unauthorized", transport="http") as peer:
        failure = await failure_of(peer)

        assert isinstance(failure, UnavailableError)
        assert "401" in str(failure)


async def test_a_server_that_does_not_take_the_goodbye_does_not_hold_anyone_up(tmp_path: Path) -> None:
    with hostile(tmp_path, "silent-goodbye", transport="http", era="legacy") as peer:
        with anyio.fail_after(DEADLINE):
            async with Connection(peer.server) as connection:
                await connection.connect()
                start = anyio.current_time()
            assert anyio.current_time() - start < 5

        assert peer.asked("DELETE")[0]["session"] == "session-1"
