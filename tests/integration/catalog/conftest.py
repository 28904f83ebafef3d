"""Catalogs of both engines: a file, and a database of a real PostgreSQL server."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from integration.catalog.blob_places import PLACES, Place, new_place, s3_server
from integration.catalog.catalog_world import drop_database, new_database, running_postgres
from skillwire.catalog import Catalog, open_catalog


@pytest.fixture(scope="session")
def postgres() -> Generator[str]:
    """Run a server for the tests of this process, unless the environment names another; yield its URL."""
    with running_postgres() as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'catalog.db'}"


@pytest.fixture
def postgres_url(postgres: str) -> Generator[str]:
    url = new_database(postgres)
    yield url
    drop_database(postgres, url)


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")


@pytest.fixture
async def catalog(catalog_url: str, anyio_backend: str) -> AsyncGenerator[Catalog]:
    async with open_catalog(catalog_url, create=True, poll_seconds=0.3) as opened:
        yield opened


# Places for files


@pytest.fixture(scope="session")
def s3() -> Generator[dict[str, str]]:
    """Run a server with the interface of S3; yield the environment of its clients."""
    with s3_server() as environment:
        yield environment


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    return new_place(request, request.param)
