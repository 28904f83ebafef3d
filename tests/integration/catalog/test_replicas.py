"""Several servers of one catalog on PostgreSQL, behind a balancer that asks each in turn."""

import base64
import http.client
import os
import random
import re
import signal
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import anyio
import psycopg

from folders import skill_md, write_files
from integration.catalog.catalog_world import draft, drop_database, new_database, start_postgres
from serving import (
    Connection,
    HttpServer,
    Json,
    environment,
    handshake,
    http_server,
    legacy,
    modern,
    next_event,
    wait_until,
)
from skillwire.catalog import Draft, Publication, open_catalog
from skillwire.catalog.fetch import ManagedKind
from skillwire.catalog.sync import ManagedSource, add_source
from skillwire.core import SkillUri, digest_of

REPLICAS = 3
SECONDS = 60.0 if os.environ.get("SKILLWIRE_EXAMPLES") == "proof" else 12.0
POLL_SECONDS = 2.0
# The poll interval, and what a busy machine takes.
CONVERGED_WITHIN = POLL_SECONDS + 8.0
STABLE = tuple(f"stable/skill-{number:02}" for number in range(25))
"""Skills that are never removed; their files change."""
PASSING = tuple(f"passing/skill-{number:02}" for number in range(10))
"""Skills that come and go."""


def files_of(number: int) -> dict[str, bytes]:
    return {"SKILL.md": b"Do it.\n", "notes/state.md": b"State %d.\n" % number}


def publish(url: str, *drafts: Draft) -> Publication:
    """Publish in this process, and return when the revision is written."""

    async def write() -> Publication:
        async with open_catalog(url, create=True) as catalog:
            return await catalog.publish(await catalog.plan(drafts), actor="tests")

    return anyio.run(write)


def unpublish(url: str, path: str) -> Publication:
    async def write() -> Publication:
        async with open_catalog(url) as catalog:
            return await catalog.unpublish([SkillUri.build(path)], actor="tests")

    return anyio.run(write)


@contextmanager
def replicas(url: str, folder: Path, number: int = REPLICAS) -> Generator[list[HttpServer]]:
    """Run servers of a catalog, each with a home of its own, as on machines of their own."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(http_server("--catalog", url, env=environment(folder / str(one))))
            for one in range(number)
        ]


def get(connection: Connection, path: str) -> dict[str, str] | None:
    """Return the digests that an entry lists, by URI; None when there is no such skill."""
    answer = connection.call(modern("skills/get", uri=SkillUri.build(path).text))
    if "error" in answer:
        assert answer["error"]["code"] in (-32602, -32002), answer
        return None
    return {file["uri"]: file["digest"] for file in answer["result"]["skill"]["resources"]}


def read(connection: Connection, uri: str) -> bytes | None:
    answer = connection.call(modern("resources/read", uri=uri))
    if "error" in answer:
        return None
    [content] = answer["result"]["contents"]
    return content["text"].encode() if "text" in content else base64.b64decode(content["blob"])


def listed(connections: Iterator[Connection]) -> list[str]:
    """Walk all pages of the listing, each asked of the next server."""
    found: list[str] = []
    cursor: Json = {}
    while True:
        page = next(connections).call(modern("skills/list", **cursor))["result"]
        found += [skill["uri"] for skill in page["skills"]]
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}


@dataclass
class Client:
    """Asks one server after the other, and notes what no sequence of revisions explains."""

    servers: Sequence[HttpServer]
    seed: int
    faults: list[str] = field(default_factory=list[str])
    answers: int = 0
    changes: int = 0

    def run(self, until: float) -> None:
        chance = random.Random(self.seed)
        connections = [server.connect() for server in self.servers]
        turns = (connections[(self.seed + turn) % len(connections)] for turn in count())
        try:
            while time.monotonic() < until and not self.faults:
                if chance.random() < 0.1:
                    self.walk(turns)
                else:
                    self.load(turns, chance.choice(STABLE + PASSING))
        except Exception as error:
            self.faults.append(repr(error))
        finally:
            for connection in connections:
                connection.close()

    def load(self, turns: Iterator[Connection], path: str) -> None:
        """Get an entry and read a file of it, as a host does; a mismatch needs a change in between."""
        before = get(next(turns), path)
        uri = f"{SkillUri.build(path).root}/notes/state.md"
        content = read(next(turns), uri)
        after = get(next(turns), path)
        self.answers += 3
        if before != after:
            self.changes += 1
            return
        if before is None and content is not None:
            self.faults.append(f"{uri} is read and its skill is not there")
        if before is not None and (content is None or digest_of(content) != before[uri]):
            self.faults.append(f"{uri} is {content!r}, and the entry before and after lists another digest")

    def walk(self, turns: Iterator[Connection]) -> None:
        found = listed(turns)
        self.answers += 1
        if len(set(found)) != len(found):
            self.faults.append("a skill is listed twice")
        if found != sorted(found):
            self.faults.append("the listing is not in order")
        missing = {SkillUri.build(path).text for path in STABLE} - set(found)
        if missing:
            self.faults.append(f"not listed: {missing}")


def publish_changes(url: str, until: float, faults: list[str], revisions: list[int]) -> None:
    """Publish changes of one skill or several, one after the other, and remove some."""
    chance = random.Random(7)

    async def change() -> None:
        present: set[str] = set()
        async with open_catalog(url) as catalog:
            for number in count(1):
                if time.monotonic() > until:
                    return
                if present and chance.random() < 0.3:
                    gone = present.pop()
                    done = await catalog.unpublish([SkillUri.build(gone)], actor="tests")
                else:
                    paths = chance.sample(STABLE, chance.randint(1, 5)) + chance.sample(PASSING, 1)
                    present.add(paths[-1])
                    plan = await catalog.plan([draft(path, files_of(number)) for path in paths])
                    done = await catalog.publish(plan, actor="tests")
                revisions.append(done.revision)
                await anyio.sleep(0.02)

    try:
        anyio.run(change)
    except Exception as error:
        faults.append(repr(error))


def test_clients_of_three_replicas_see_no_mismatch_that_no_change_explains(
    postgres_url: str, tmp_path: Path
) -> None:
    publish(postgres_url, *(draft(path, files_of(0)) for path in STABLE))
    faults: list[str] = []
    revisions: list[int] = []
    with replicas(postgres_url, tmp_path) as servers:
        until = time.monotonic() + SECONDS
        clients = [Client(servers, seed) for seed in range(4)]
        threads = [threading.Thread(target=client.run, args=(until,)) for client in clients]
        threads.append(
            threading.Thread(target=publish_changes, args=(postgres_url, until, faults, revisions))
        )
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS + 60)

    assert faults == [] and [client.faults for client in clients] == [[]] * len(clients)
    # The test saw what it is about: changes, while answers were given.
    assert revisions[-1] > 20
    assert min(client.answers for client in clients) > 50 and sum(client.changes for client in clients) > 0


def revision_of(server: HttpServer) -> int:
    """Return the revision that a server says it serves, without asking it for skills."""
    found = re.search(rb"catalog revision (\d+)", body_of(server, "/readyz"))
    assert found is not None
    return int(found[1])


def body_of(server: HttpServer, path: str) -> bytes:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def all_serve(servers: Sequence[HttpServer], revision: int) -> bool:
    return all(revision_of(server) == revision for server in servers)


def test_streams_on_every_replica_hear_of_a_change_made_elsewhere(postgres_url: str, tmp_path: Path) -> None:
    publish(postgres_url, draft("acme/refunds", files_of(0)))
    uri = f"{SkillUri.build('acme/refunds').root}/notes/state.md"
    listen = modern(
        "subscriptions/listen",
        "ear",
        notifications={"resourcesListChanged": True, "resourceSubscriptions": [uri]},
    )
    with replicas(postgres_url, tmp_path) as servers, ExitStack() as stack:
        streams: list[http.client.HTTPResponse] = []
        for server in servers:
            connection = stack.enter_context(server.connection())
            streams.append(connection.post(listen))
        for stream in streams:
            acknowledged = next_event(stream)
            assert acknowledged is not None

        publish(postgres_url, draft("acme/refunds", files_of(1)))

        for stream in streams:
            methods: set[str] = set()
            while methods < {"notifications/resources/list_changed", "notifications/resources/updated"}:
                event = next_event(stream)
                assert event is not None
                methods.add(event["method"])


def test_an_older_client_needs_no_session_so_each_of_its_requests_may_reach_another_replica(
    postgres_url: str, tmp_path: Path
) -> None:
    publish(postgres_url, draft("acme/refunds", files_of(0)))
    with replicas(postgres_url, tmp_path, 2) as [one, other]:
        with one.connection() as connection:
            opened = connection.post(handshake())
            assert opened.status == 200 and "mcp-session-id" not in opened.headers
        answer = other.call(legacy("skills/list"), mcp_protocol_version="2025-11-25")

    assert [skill["uri"] for skill in answer["result"]["skills"]] == ["skill://acme/refunds/SKILL.md"]


def kill_listeners(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND query ILIKE 'LISTEN%'"
        ).fetchall()
    return len(rows)


def test_a_lost_listen_connection_delays_a_change_by_the_poll_interval_at_most(
    postgres_url: str, tmp_path: Path
) -> None:
    publish(postgres_url, draft("acme/refunds", files_of(0)))
    with replicas(postgres_url, tmp_path) as servers:
        wait_until(lambda: all_serve(servers, 1), CONVERGED_WITHIN, "all replicas are up to date")
        assert kill_listeners(postgres_url) == len(servers)

        revision = publish(postgres_url, draft("acme/refunds", files_of(1))).revision

        wait_until(lambda: all_serve(servers, revision), CONVERGED_WITHIN, "all replicas follow")


def test_a_replica_that_was_paused_answers_from_the_newest_revision_at_once(
    postgres_url: str, tmp_path: Path
) -> None:
    publish(postgres_url, draft("acme/refunds", files_of(0)))
    uri = f"{SkillUri.build('acme/refunds').root}/notes/state.md"
    with replicas(postgres_url, tmp_path, 1) as [server], server.connection() as connection:
        assert read(connection, uri) == b"State 0.\n"
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for number in range(1, 6):
                publish(postgres_url, draft("acme/refunds", files_of(number)))
        finally:
            os.kill(server.pid, signal.SIGCONT)

        assert read(connection, uri) == b"State 5.\n"


def test_while_postgresql_restarts_the_last_known_state_is_served_and_then_the_new_one(
    tmp_path: Path,
) -> None:
    uri = f"{SkillUri.build('acme/refunds').root}/notes/state.md"
    with tempfile.TemporaryDirectory(prefix="pg") as short:
        database = start_postgres(Path(short) / "data")
        url = new_database(database.get_uri())
        publish(url, draft("acme/refunds", files_of(0)), draft("acme/other", files_of(0)))
        with replicas(url, tmp_path, 2) as servers, ExitStack() as stack:
            connections = [stack.enter_context(server.connection()) for server in servers]
            assert [read(connection, uri) for connection in connections] == [b"State 0.\n"] * 2
            database.cleanup()

            for connection in connections:
                assert read(connection, uri) == b"State 0.\n"
                assert len(listed(iter([connection] * 9))) == 2
                assert get(connection, "acme/other") is not None
            assert all(b"ok" in body_of(server, "/readyz") for server in servers)

            database = start_postgres(Path(short) / "data")
            revision = publish(url, draft("acme/refunds", files_of(1))).revision
            wait_until(lambda: all_serve(servers, revision), 30.0, "all replicas follow")
            assert [read(connection, uri) for connection in connections] == [b"State 1.\n"] * 2
            # What was never read before is there too.
            for connection in connections:
                found = get(connection, "acme/other")
                assert found is not None and all(read(connection, file) is not None for file in found)
        drop_database(database.get_uri(), url)
        database.cleanup()


def test_a_restarted_replica_takes_over_only_what_changed(postgres_url: str, tmp_path: Path) -> None:
    publish(postgres_url, *(draft(path, files_of(0)) for path in STABLE))
    with replicas(postgres_url, tmp_path, 1) as [server]:
        wait_until(partial(all_serve, [server], 1), CONVERGED_WITHIN, "the replica is up to date")
    [copy] = (tmp_path / "0").rglob("catalogs/*.sqlite")
    before = copy.stat().st_ino

    revision = publish(postgres_url, draft("acme/refunds", files_of(1))).revision
    with replicas(postgres_url, tmp_path, 1) as [server]:
        wait_until(partial(all_serve, [server], revision), CONVERGED_WITHIN, "the replica is up to date")
        with server.connection() as connection:
            assert len(listed(iter([connection] * 9))) == len(STABLE) + 1
    assert copy.stat().st_ino == before


def test_one_of_several_replicas_publishes_a_source_that_is_due(postgres_url: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"skills/tea/SKILL.md": skill_md("tea"), "skills/milk/SKILL.md": skill_md("milk")})

    async def add() -> None:
        async with open_catalog(postgres_url, create=True) as catalog:
            location = str(tmp_path / "skills")
            await add_source(catalog, ManagedSource("drinks", ManagedKind.FOLDER, location, "shop"))

    anyio.run(add)
    with replicas(postgres_url, tmp_path, 2) as servers:
        wait_until(partial(all_serve, servers, 1), 60.0, "the source is published")
        found: list[list[str]] = []
        for server in servers:
            with server.connection() as connection:
                found.append(listed(iter([connection] * 3)))
    assert found == [["skill://shop/milk/SKILL.md", "skill://shop/tea/SKILL.md"]] * 2


def test_a_damaged_copy_of_the_rows_is_made_again(postgres_url: str, tmp_path: Path) -> None:
    publish(postgres_url, draft("acme/refunds", files_of(0)))
    with replicas(postgres_url, tmp_path, 1):
        pass
    [copy] = (tmp_path / "0").rglob("catalogs/*.sqlite")
    copy.write_bytes(b"this is no database" * 1000)

    with replicas(postgres_url, tmp_path, 1) as [server], server.connection() as connection:
        assert len(listed(iter([connection] * 9))) == 1
