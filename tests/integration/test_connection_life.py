"""How a connection is lost, torn down and made again: no zombie, no hot loop, nothing left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from integration.peers import BRISK, DEADLINE, TRANSPORTS, Peer, config, gone, hostile, is_alive
from skillwire.core.errors import SkillError
from skillwire.host.calls import ConnectionState
from skillwire.host.calls.session import ConnectionLimits
from skillwire.host.connect.connection import Connection
from skillwire.host.connect.oauth import free_port
from skillwire.host.model.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.model.errors import UnavailableError

pytestmark = pytest.mark.anyio


async def failure_of(connection: Connection) -> SkillError:
    with pytest.raises(SkillError) as caught:
        await connection.list_skills()
    return caught.value


async def rested(connection: Connection) -> None:
    while connection.state is ConnectionState.BACKING_OFF:  # noqa: ASYNC110 - time does it
        await anyio.sleep(0.01)


@pytest.mark.requirement("HOST-01")
async def test_a_server_that_ends_at_once_is_reaped_and_quoted(tmp_path: Path) -> None:
    with hostile(tmp_path, "exits-at-once") as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server) as connection:
            failure = await failure_of(connection)

            assert isinstance(failure, UnavailableError)
            assert "exit code 3" in str(failure)
            assert "'no config'" in str(failure)
            assert connection.last_failure is failure
            await gone(peer.pids)


@pytest.mark.parametrize("command", ["no-such-program-anywhere", "/"])
async def test_a_command_that_cannot_be_started_is_an_error_without_a_path(command: str) -> None:
    with anyio.fail_after(DEADLINE):
        async with Connection(config(StdioEndpoint(command))) as connection:
            failure = await failure_of(connection)

    assert isinstance(failure, UnavailableError)
    assert command not in str(failure)


@pytest.mark.requirement("HOST-01")
async def test_a_server_that_ends_during_a_call_is_started_again_by_the_next(tmp_path: Path) -> None:
    with hostile(tmp_path, "exits-mid-call") as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=BRISK) as connection:
            failure = await failure_of(connection)
            assert isinstance(failure, UnavailableError)
            assert "exit code 7" in str(failure)
            assert "\x1b" not in str(failure) and "cheese" in str(failure)
            first = peer.pids
            await gone(first)
            await rested(connection)

            assert (await connection.get_skill("skill://a/SKILL.md")).name == "a"
            assert (connection.epoch, peer.starts) == (2, 2)
            assert connection.last_failure is None


async def test_everyone_who_waits_learns_why_the_connection_ended(tmp_path: Path) -> None:
    with hostile(tmp_path, "exits-mid-read") as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=BRISK) as connection:
            await connection.connect()
            failures: list[SkillError] = []

            async def read(uri: str) -> None:
                with pytest.raises(SkillError) as caught:
                    await connection.read_resource(uri)
                failures.append(caught.value)

            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(read, f"note://{number}")

    assert len(failures) == 6
    assert {str(failure) for failure in failures} == {"the server's process ended with exit code 7"}


@pytest.mark.requirement("HOST-01")
async def test_a_flapping_server_is_started_a_few_times_and_then_left_alone(tmp_path: Path) -> None:
    limits = ConnectionLimits(starts=3, start_window=600, backoff_base=0.01, backoff_most=0.02)
    with hostile(tmp_path, "exits-at-once") as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=limits) as connection:
            calls = 0
            with anyio.move_on_after(3):
                while True:
                    assert isinstance(await failure_of(connection), UnavailableError)
                    calls += 1
                    await anyio.sleep(0.001)

            assert calls > 100
            assert peer.starts == 3
            assert connection.state is ConnectionState.FAILED
            with pytest.raises(UnavailableError) as caught:
                await connection.connect()
            assert caught.value.retry_in is not None and caught.value.retry_in > 500
            with pytest.raises(UnavailableError):
                await connection.connect(at_once=True)
            assert peer.starts == 4
        await gone(peer.pids)


async def test_while_a_server_rests_calls_fail_at_once_and_start_nothing(tmp_path: Path) -> None:
    limits = ConnectionLimits(backoff_base=1e6, backoff_most=1e6)
    with hostile(tmp_path, "exits-at-once") as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=limits) as connection:
            await failure_of(connection)
            for _ in range(200):
                await failure_of(connection)

            assert peer.starts == 1
            assert connection.state is ConnectionState.BACKING_OFF


async def test_a_user_who_asks_does_not_wait_for_the_rest_to_be_over(tmp_path: Path) -> None:
    limits = ConnectionLimits(backoff_base=1e6, backoff_most=1e6)
    with hostile(tmp_path, "exits-mid-call") as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=limits) as connection:
            await failure_of(connection)

            await connection.connect(at_once=True)

            assert connection.state is ConnectionState.READY
            assert connection.epoch == 2


async def test_a_server_that_is_killed_is_noticed_without_a_call(tmp_path: Path) -> None:
    with hostile(tmp_path, "honest") as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=BRISK) as connection:
            await connection.connect()
            (pid,) = peer.pids
            os.kill(pid, signal.SIGKILL)
            while connection.state is ConnectionState.READY:  # noqa: ASYNC110 - the connection notices it
                await anyio.sleep(0.01)

            assert "signal 9" in str(connection.last_failure)
            await gone({pid})
            await rested(connection)
            assert len((await connection.list_skills()).entries) == 1


async def test_a_child_that_ignores_the_signal_goes_with_its_own_child(tmp_path: Path) -> None:
    with hostile(tmp_path, "stubborn") as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=BRISK) as connection:
            await connection.list_skills()
            pids = peer.pids
            assert len(pids) == 2 and all(map(is_alive, pids))
            start = anyio.current_time()

        assert anyio.current_time() - start < 10
        await gone(pids)


async def test_a_server_whose_child_keeps_the_pipes_open_is_seen_to_have_ended(tmp_path: Path) -> None:
    with hostile(tmp_path, "orphan") as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=BRISK) as connection:
            await connection.list_skills()
            while connection.state is ConnectionState.READY:  # noqa: ASYNC110 - the connection notices it
                await anyio.sleep(0.01)

            assert "exit code 0" in str(connection.last_failure)
            await gone(peer.pids)


@pytest.mark.parametrize("behaviour", ["silent", "stubborn", "honest"])
async def test_a_cancelled_block_leaves_no_process(tmp_path: Path, behaviour: str) -> None:
    with hostile(tmp_path, behaviour) as peer, anyio.fail_after(DEADLINE):
        with anyio.move_on_after(1):
            async with Connection(peer.server, limits=BRISK) as connection:
                if behaviour != "silent":
                    await connection.connect()
                await connection.connect()
                await anyio.sleep_forever()

        assert peer.starts == 1
        await gone(peer.pids)


async def test_leaving_while_connecting_leaves_no_process(tmp_path: Path) -> None:
    with hostile(tmp_path, "silent") as peer, anyio.fail_after(DEADLINE):
        connection = Connection(peer.server, limits=BRISK)

        async def connect() -> None:
            with pytest.raises(UnavailableError):
                await connection.connect()

        async with anyio.create_task_group() as tasks, connection:
            tasks.start_soon(connect)
            await peer.wait_for("server/discover")

        assert connection.state is ConnectionState.CLOSED
        await gone(peer.pids)
        with pytest.raises(UnavailableError):
            await connection.list_skills()


async def test_an_error_in_the_block_comes_out_as_it_is(tmp_path: Path) -> None:
    with hostile(tmp_path, "honest") as peer, anyio.fail_after(DEADLINE):
        with pytest.raises(KeyError):
            async with Connection(peer.server, limits=BRISK) as connection:
                await connection.connect()
                raise KeyError("mine")
        await gone(peer.pids)


# HTTP


async def test_nobody_at_the_url_is_unavailable(tmp_path: Path) -> None:
    with anyio.fail_after(DEADLINE):
        async with Connection(config(HttpEndpoint(f"http://127.0.0.1:{free_port()}/mcp"))) as connection:
            assert isinstance(await failure_of(connection), UnavailableError)
            assert connection.state is ConnectionState.BACKING_OFF


# A server that forgets every session is asked once more at once, and then not again.
@pytest.mark.parametrize(("behaviour", "connections"), [("forgets", 3), ("breaks-off", 2)])
async def test_a_session_or_answer_that_is_lost_over_http_is_made_again(
    tmp_path: Path, behaviour: str, connections: int
) -> None:
    with hostile(tmp_path, behaviour, transport="http", era="legacy") as peer, anyio.fail_after(DEADLINE):
        async with Connection(peer.server, limits=BRISK) as connection:
            assert isinstance(await failure_of(connection), UnavailableError)
            await rested(connection)

            assert (await connection.get_skill("skill://a/SKILL.md")).name == "a"
            assert connection.epoch == connections


async def refuses(server: ServerConfig) -> None:
    """Wait until nobody listens any more where a server was."""
    assert isinstance(server.endpoint, HttpEndpoint)
    address = urlsplit(server.endpoint.url)
    while True:
        try:
            await (await anyio.connect_tcp(str(address.hostname), address.port or 80)).aclose()
        except OSError:
            return


async def test_a_server_that_goes_away_over_http_is_noticed_by_the_next_call(tmp_path: Path) -> None:
    with anyio.fail_after(DEADLINE):
        with hostile(tmp_path, "honest", transport="http") as peer:
            server = peer.server
            connection = Connection(server, limits=BRISK)
            async with connection:
                await connection.list_skills()
                os.kill(next(iter(peer.pids)), signal.SIGKILL)
                await refuses(server)

                assert isinstance(await failure_of(connection), UnavailableError)


# The whole process


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_program_that_used_a_connection_ends_quietly(tmp_path: Path, transport: str) -> None:
    with hostile(tmp_path, "honest", transport=transport) as peer:
        endpoint = peer.server.endpoint
        code = f"""
import anyio
from skillwire.host.connect.connection import Connection
from skillwire.host.model import HttpEndpoint, ServerConfig, StdioEndpoint
async def main():
    endpoint = {words_for(peer)}
    async with Connection(ServerConfig("a", endpoint)) as connection:
        print(len((await connection.list_skills()).entries))
anyio.run(main)
"""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        result = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", code],
            capture_output=True,
            text=True,
            env=environment,
            timeout=DEADLINE,
        )

        assert (result.stdout, result.returncode) == ("1\n", 0), result.stderr
        warnings = [line for line in result.stderr.splitlines() if "took" not in line]
        assert warnings == []
        assert endpoint.fingerprint.startswith("sha256:")


def words_for(peer: Peer) -> str:
    endpoint = peer.server.endpoint
    if isinstance(endpoint, HttpEndpoint):
        return f"HttpEndpoint({endpoint.url!r})"
    assert isinstance(endpoint, StdioEndpoint)
    return f"StdioEndpoint({endpoint.command!r}, {endpoint.args!r})"
