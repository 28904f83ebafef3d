"""Opening catalogs: URLs, what is not a catalog, later versions, servers that do not answer, two creators."""

import socket
import sqlite3
import subprocess
import sys
import time
import traceback
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg
import pytest

from integration.catalog.catalog_world import draft, publish, published, run_together
from skillwire.catalog import CatalogError, NewerSchemaError, open_catalog
from skillwire.catalog.database import open_database

pytestmark = pytest.mark.anyio

PASSWORD = "hunter2-is-secret"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def error_of(url: str, *, create: bool = False, blobs: str = "") -> CatalogError:
    """Return the error of opening a catalog, which says what to do and has no password."""
    with pytest.raises(CatalogError) as caught:
        async with open_catalog(url, create=create, blobs=blobs):
            pass
    assert caught.value.fix
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    return caught.value


@pytest.mark.parametrize(
    "url",
    [
        "",
        "skills.db",
        "sqlite:",
        "sqlite://skills.db",
        "sqlite:///",
        f"mysql://a:{PASSWORD}@b/c",
        "file:///x",
    ],
)
async def test_a_url_of_another_form_is_refused(url: str) -> None:
    await error_of(url, create=True)


async def test_three_slashes_are_a_relative_path_and_four_an_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_catalog("sqlite:///my%20skills%3F%23.db", create=True) as catalog:
        monkeypatch.chdir("/")
        await publish(catalog, draft("acme/refunds"))

    async with open_catalog(f"sqlite:///{tmp_path}/my%20skills%3F%23.db") as catalog:
        assert await published(catalog) == {"acme/refunds": 1}
    assert (tmp_path / "my skills?#.db").is_file()


async def test_a_catalog_keeps_its_identity(catalog_url: str) -> None:
    async with open_catalog(catalog_url, create=True) as first, open_catalog(catalog_url) as second:
        assert first.id == second.id != ""


async def test_there_is_no_catalog_unless_it_is_created(
    sqlite_url: str, postgres_url: str, tmp_path: Path
) -> None:
    await error_of(sqlite_url)
    await error_of(postgres_url)
    await error_of(f"{sqlite_url}/no/such/folder.db", create=True)

    assert contents(tmp_path) == {}


async def test_an_empty_file_is_no_catalog_and_can_become_one(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").touch()
    await error_of(f"sqlite:///{tmp_path}/catalog.db")

    async with open_catalog(f"sqlite:///{tmp_path}/catalog.db", create=True) as catalog:
        assert await catalog.revision() == 0


async def test_another_file_is_not_a_catalog_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("text " * 1000)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE songs (name TEXT)")
    other.close()
    before = contents(tmp_path)

    for name in before:
        for create in (False, True):
            await error_of(f"sqlite:///{tmp_path}/{name}", create=create)

    assert contents(tmp_path) == before


async def test_a_database_may_be_shared_unless_names_are_taken(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
        connection.execute("CREATE TABLE meta (songs TEXT)")
        await error_of(postgres_url, create=True)

        connection.execute("ALTER TABLE meta RENAME TO more_songs")
    async with open_catalog(postgres_url, create=True) as catalog:
        assert await catalog.revision() == 0


async def test_catalogs_in_two_schemas_of_one_database_are_separate(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA red")
    red = f"{postgres_url}&options=-csearch_path%3Dred" if "?" in postgres_url else ""
    red = red or f"{postgres_url}?options=-csearch_path%3Dred"

    async with open_catalog(red, create=True) as first, open_catalog(postgres_url, create=True) as second:
        await publish(first, draft("acme/refunds"))
        assert (await published(first), await published(second)) == ({"acme/refunds": 1}, {})


async def test_a_newer_schema_is_refused(catalog_url: str) -> None:
    async with open_catalog(catalog_url, create=True):
        pass
    async with open_database(catalog_url) as database, database.transaction(write=True) as transaction:
        await transaction.execute("UPDATE meta SET value = '2' WHERE key = 'schema'")

    assert isinstance(await error_of(catalog_url), NewerSchemaError)
    assert isinstance(await error_of(catalog_url, create=True), NewerSchemaError)


async def test_the_place_of_files_is_chosen_when_a_catalog_is_created(catalog_url: str) -> None:
    await error_of(catalog_url, create=True, blobs="ftp://x")
    async with open_catalog(catalog_url, create=True, blobs="table"):
        pass
    async with open_catalog(catalog_url, blobs="table"):
        pass
    await error_of(catalog_url, create=True, blobs="s3://bucket/skills")


async def test_a_folder_of_files_needs_a_database_in_a_file(postgres_url: str) -> None:
    await error_of(postgres_url, create=True, blobs="folder")


async def test_a_server_that_refuses_is_named_without_the_password(postgres_url: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        refused = await error_of(f"postgresql://ann:{PASSWORD}@127.0.0.1:{port}/skills")
    unknown = await error_of(f"postgresql://ann:{PASSWORD}@host.invalid/skills")
    missing = await error_of(postgres_url.replace("/test_", "/no_test_"))

    assert "refused" in str(refused)
    assert "host.invalid" in str(unknown) or "resolve" in str(unknown)
    assert "does not exist" in str(missing)
    await error_of(f"postgresql://ann:{PASSWORD}@127.0.0.1:port/skills")
    await error_of(f"postgres://ann:{PASSWORD}@127.0.0.1/skills?no_such_option={PASSWORD}")


async def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillwire.catalog.postgres.SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        await error_of(f"postgresql://ann:{PASSWORD}@127.0.0.1:{silent.getsockname()[1]}/skills")
    assert time.monotonic() - started < 8


async def test_the_url_of_an_open_catalog_has_no_password(postgres_url: str) -> None:
    given = postgres_url.replace(":@", f":{PASSWORD}@", 1)
    async with open_catalog(given, create=True) as catalog:
        assert catalog.url.startswith("postgresql://")
        assert PASSWORD not in f"{catalog.url} {catalog!r} {catalog.database!r} {catalog.store!r}"


async def test_a_file_that_another_process_locks_for_long_is_a_clear_error(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_catalog(sqlite_url, create=True):
        pass
    monkeypatch.setattr("skillwire.catalog.database.SECONDS", 0.3)
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        async with open_catalog(sqlite_url) as catalog:
            assert await catalog.revision() == 0
            with pytest.raises(CatalogError, match="locked"):
                await publish(catalog, draft("acme/refunds"))
        other.execute("ROLLBACK")
    other.close()


async def test_a_row_that_another_process_locks_for_long_is_a_clear_error(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_catalog(postgres_url, create=True):
        pass
    monkeypatch.setitem(vars(sys.modules["skillwire.catalog.postgres"])["_SETTINGS"], "lock_timeout", "300ms")
    with psycopg.connect(postgres_url) as other:
        other.execute("UPDATE state SET revision = revision")
        async with open_catalog(postgres_url) as catalog:
            assert await catalog.revision() == 0
            with pytest.raises(CatalogError, match="locked"):
                await publish(catalog, draft("acme/refunds"))


def test_without_the_extra_there_is_one_clear_error() -> None:
    code = (
        "import sys, anyio\n"
        "sys.modules['psycopg'] = None\n"
        "from skillwire.catalog import CatalogError, open_catalog\n"
        "async def main():\n"
        "    try:\n"
        "        async with open_catalog('postgresql://localhost/x'): pass\n"
        "    except CatalogError as error: print(error.fix)\n"
        "anyio.run(main)\n"
    )
    assert b"skillwire[postgres]" in subprocess.check_output([sys.executable, "-c", code])


def test_importing_the_package_loads_no_database() -> None:
    code = "import sys, skillwire.catalog; print(*{'psycopg', 'sqlite3'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code]).split() == []


CREATE = """
import sys, anyio
from integration.catalog.catalog_world import draft, publish
from skillwire.catalog import open_catalog

async def main():
    async with open_catalog(sys.argv[1], create=True) as catalog:
        for number in range(5):
            await publish(catalog, draft(f"acme/{sys.argv[2]}-{number}"))
    print(catalog.id)

sys.stdin.read()
anyio.run(main)
"""


async def test_processes_that_create_a_catalog_at_once_end_with_one(catalog_url: str) -> None:
    commands = [(CREATE, catalog_url, name) for name in ("a", "b", "c")]
    printed = await anyio.to_thread.run_sync(run_together, commands)

    async with open_catalog(catalog_url) as catalog:
        assert set(printed) == {catalog.id}
        found = await published(catalog)
    assert sorted(found) == [f"acme/{name}-{number}" for name in "abc" for number in range(5)]
    assert sorted(found.values()) == list(range(1, 16))
