"""Load in its short form: many clients of both generations while the folder changes and processes die."""

import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from load import soak
from load.corpus import write_corpus
from load.driver import Load, Tally
from load.peers import LostError, Peer
from serving import HttpServer, environment, http_server

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="only /proc tells what a server takes"
)

CLIENTS = 64
SECONDS = 6.0


@pytest.mark.requirement("SDK-07")
@pytest.mark.requirement("LIST-12")
def test_under_load_and_change_nothing_is_wrong_nothing_fails_and_nothing_grows(tmp_path: Path) -> None:
    outcome = soak.run(tmp_path, seconds=SECONDS, clients=CLIENTS, workers=1)

    assert outcome.failures() == [], outcome.as_json()
    assert outcome.tally.outcomes["read as promised"] > CLIENTS
    assert outcome.tally.outcomes["rounds of SDK clients"] > 1
    assert sum(outcome.mutations.values()) > 20
    # A connection for each client, and what the threads that read files hold open for a moment.
    last = outcome.vitals.third(2)
    assert max(sample.descriptors for sample in last) <= CLIENTS + 60
    assert max(sample.threads for sample in last) <= 60


@asynccontextmanager
async def loaded(server: HttpServer, steady: dict[str, bytes], clients: int) -> AsyncGenerator[Load]:
    """Load a server while the block runs."""
    load = Load(server.port, steady)
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await load.run(clients=clients, seconds=30, sdk_clients=0)

        group.start_soon(run)
        try:
            yield load
        finally:
            load.stop()


async def at_full_speed(load: Load, clients: int) -> None:
    """Wait until every client has had answers."""
    with anyio.fail_after(30):
        while load.tally.total < clients * 5:  # noqa: ASYNC110
            await anyio.sleep(0.05)


def wrongs(tally: Tally) -> list[object]:
    """Return everything that may not be, except for connections that were lost."""
    return [*tally.complaints, *(status for status in tally.statuses if status >= 500)]


async def test_a_worker_that_is_killed_costs_only_what_it_was_asked_and_a_stop_costs_nothing(
    tmp_path: Path,
) -> None:
    steady = write_corpus(tmp_path / "skills", steady=60, restless=5)
    env = environment(tmp_path / "home")
    with http_server(tmp_path / "skills", "--workers", "2", env=env) as server:
        async with loaded(server, steady, CLIENTS) as load:
            await at_full_speed(load, CLIENTS)
            before = soak.workers_of(server)
            os.kill(before[0], signal.SIGKILL)
            killed = time.monotonic()
            with anyio.fail_after(60):
                while len(set(soak.workers_of(server)) - {before[0]}) < 2:  # noqa: ASYNC110
                    await anyio.sleep(0.05)
                asked = load.tally.total
                await at_full_speed_again(load, asked)
            lost = load.tally.outcomes["lost"] + load.tally.outcomes["lost inside an answer"]
            last = max(load.tally.lost_at, default=killed) - killed

        assert wrongs(load.tally) == []
        # Each connection of the dead worker carried one request at most; nobody was lost later.
        assert lost <= CLIENTS
        assert last < 5
        assert server.words.count("a worker exited with code -9") == 1

        async with loaded(server, steady, CLIENTS) as load:
            await at_full_speed(load, CLIENTS)
            server.send_signal(signal.SIGTERM)
            code = await anyio.to_thread.run_sync(server.wait)

        assert code == 0
        assert wrongs(load.tally) == []
        # An answer that began was finished. Who was about to ask again found the door closed.
        assert load.tally.outcomes["lost inside an answer"] == 0
        assert "Traceback" not in server.words


async def at_full_speed_again(load: Load, asked: int) -> None:
    while load.tally.total < asked + CLIENTS:  # noqa: ASYNC110
        await anyio.sleep(0.05)


async def test_what_a_server_was_asked_before_it_is_told_to_stop_it_answers(tmp_path: Path) -> None:
    """One large answer to each of many clients is under way when the signal comes."""
    steady = write_corpus(tmp_path / "skills", steady=1, restless=0)
    large = tmp_path / "skills" / "steady" / "s-0000" / "large.bin"
    large.write_bytes(os.urandom(4_000_000))
    answers: list[int] = []
    assert steady
    with http_server(tmp_path / "skills", env=environment(tmp_path / "home")) as server:
        peers = [Peer(server.port, is_modern=number % 2 == 0) for number in range(8)]
        under_way, is_stopping = anyio.Semaphore(0), anyio.Event()

        async def wait_for_the_signal() -> None:
            under_way.release()
            await is_stopping.wait()

        async def read(peer: Peer) -> None:
            peer.before_body = wait_for_the_signal
            reply = await peer.ask("resources/read", uri="skill://steady/s-0000/large.bin")
            answers.append(len(reply.message["result"]["contents"][0]["blob"]))
            with pytest.raises(LostError):
                await peer.ask("skills/list")

        try:
            with anyio.fail_after(60):
                for peer in peers:
                    await peer.ask("skills/list")
                async with anyio.create_task_group() as group:
                    for peer in peers:
                        group.start_soon(read, peer)
                    for _ in peers:
                        await under_way.acquire()
                    server.send_signal(signal.SIGTERM)
                    await refuses_connections(server.port)
                    is_stopping.set()
                    assert await anyio.to_thread.run_sync(server.wait) == 0
        finally:
            for peer in peers:
                await peer.close()

    assert answers == [4 * ((4_000_000 + 2) // 3)] * len(peers)


async def refuses_connections(port: int) -> None:
    """Wait until a server has acted on the signal to stop, and no longer listens."""
    while True:
        try:
            stream = await anyio.connect_tcp("127.0.0.1", port)
        except OSError:
            return
        await stream.aclose()
