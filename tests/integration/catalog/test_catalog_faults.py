"""Faults: publishers that are killed, connections that are cut, and a server that is restarted."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest

from integration.catalog.catalog_world import (
    draft,
    given_server,
    new_database,
    publish,
    published,
    start_postgres,
)
from skillwire.catalog import Catalog, CatalogError, open_catalog

pytestmark = pytest.mark.anyio

POLL = 0.3
SCRIPT = Path(__file__).with_name("killed_publisher.py")


def test_a_publisher_killed_at_any_call_leaves_the_state_of_before_or_after(catalog_url: str) -> None:
    printed = subprocess.check_output(
        [sys.executable, str(SCRIPT), catalog_url],
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])},
        timeout=120,
    )

    outcome: dict[str, Any] = json.loads(printed)
    assert outcome["status"] == 0
    assert set(outcome["found"]) == {"before", "after"}
    assert sum(outcome["found"].values()) == outcome["kills"] > 30


@asynccontextmanager
async def waiting(catalog: Catalog, revision: int) -> AsyncGenerator[list[float]]:
    """Wait for a revision during the block, and until 15 seconds after it; add when it was noticed."""
    noticed: list[float] = []

    async def wait() -> None:
        with anyio.fail_after(25):
            while await catalog.wait_for_change(revision - 1, seconds=1) < revision:
                pass
        noticed.append(time.monotonic())

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.sleep(POLL)
        yield noticed


def listeners(url: str) -> list[int]:
    """Return the processes of the server that listen."""
    with psycopg.connect(url) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        return [pid for (pid,) in connection.execute(query)]


def another_listener(url: str, pid: int) -> bool:
    """Wait until another process of the server listens; False if none does in time."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if set(listeners(url)) - {pid}:
            return True
        time.sleep(0.05)
    return False


async def test_a_change_is_noticed_after_the_connection_that_listens_was_killed(postgres_url: str) -> None:
    async with (
        open_catalog(postgres_url, create=True, poll_seconds=POLL) as catalog,
        open_catalog(postgres_url) as other,
    ):
        async with waiting(catalog, 1):
            (pid,) = await anyio.to_thread.run_sync(listeners, postgres_url)
            async with other.database.transaction(write=True) as transaction:
                await transaction.fetch("SELECT pg_terminate_backend(?)", (pid,))
            await publish(other, draft("acme/refunds"))
            at = time.monotonic()
            async with waiting(catalog, 1) as noticed:
                pass
        assert noticed[0] - at < POLL + 2
        assert await anyio.to_thread.run_sync(another_listener, postgres_url, pid)


async def test_without_any_notice_a_change_is_noticed_by_polling(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillwire.catalog.postgres.CHANNEL", "nobody_listens_here")
    async with (
        open_catalog(postgres_url, create=True, poll_seconds=POLL) as catalog,
        open_catalog(postgres_url) as other,
    ):
        async with waiting(catalog, 1) as noticed:
            monkeypatch.setattr("skillwire.catalog.postgres.CHANNEL", "another")
            await publish(other, draft("acme/refunds"))
            at = time.monotonic()
        assert noticed[0] - at < POLL + 2


async def test_all_connections_killed_at_once_do_not_fail_the_next_reads(postgres_url: str) -> None:
    async with open_catalog(postgres_url, create=True) as catalog:
        await publish(catalog, draft("acme/refunds"))
        for _ in range(3):
            await anyio.to_thread.run_sync(kill_all, postgres_url)
            assert await catalog.revision() == 1
        await anyio.to_thread.run_sync(kill_all, postgres_url)
        assert (await publish(catalog, draft("acme/tea"))).revision == 2


async def test_a_read_on_a_broken_connection_is_tried_again_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_fine(connection: object) -> None:
        pass

    # Connections are checked before, but one may break after that.
    monkeypatch.setattr("skillwire.catalog.postgres._MOST_CONNECTIONS", 1)
    monkeypatch.setattr("skillwire.catalog.postgres.AsyncConnectionPool.check_connection", is_fine)
    async with open_catalog(postgres_url, create=True) as catalog:
        await publish(catalog, draft("acme/refunds"))
        await anyio.to_thread.run_sync(kill_all, postgres_url)
        assert await catalog.revision() == 1


def kill_all(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_a_connection_killed_in_a_publication_fails_it_and_publishing_again_succeeds(
    postgres_url: str,
) -> None:
    async with open_catalog(postgres_url, create=True) as catalog:
        with pytest.raises(CatalogError):
            async with catalog.database.transaction(write=True) as transaction:
                await transaction.execute("UPDATE state SET revision = 77")
                await anyio.to_thread.run_sync(kill_all, postgres_url)
                await transaction.fetch("SELECT 1")
        assert await catalog.revision() == 0
        assert (await publish(catalog, draft("acme/refunds"))).revision == 1


@pytest.fixture
def own_server() -> Generator[Any]:
    """Run a server that the test may restart."""
    if given_server():
        pytest.skip("the given server is not restarted")
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        server = start_postgres(Path(folder) / "data")
        yield server
        server.cleanup()


async def test_a_restart_of_the_server_is_survived(own_server: Any) -> None:
    url = new_database(own_server.get_uri())
    async with open_catalog(url, create=True, poll_seconds=POLL) as catalog:
        await publish(catalog, draft("acme/refunds"))
        async with waiting(catalog, 2) as noticed:
            await anyio.to_thread.run_sync(own_server.stop)
            with anyio.move_on_after(1.0):
                with pytest.raises(CatalogError):
                    await catalog.revision()
            await anyio.sleep(1.0)
            await anyio.to_thread.run_sync(own_server.ensure_postgres_running)
            async with open_catalog(url) as other:
                await publish(other, draft("acme/tea"))
            at = time.monotonic()
        assert noticed[0] - at < POLL + 3
        assert await published(catalog) == {"acme/refunds": 1, "acme/tea": 2}
        assert (await publish(catalog, draft("acme/more"))).revision == 3
