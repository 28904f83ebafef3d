"""Places for blobs that tests use: a folder, tables of both engines, and a bucket of a real server."""

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from skillwire.catalog import Catalog, open_catalog
from skillwire.catalog.blobs import BlobStore, open_blobs
from skillwire.catalog.database import open_database
from skillwire.catalog.schema import FOLDER, TABLE, prepare
from skillwire.core import digest_of

PLACES = ("sqlite-folder", "sqlite-table", "postgres-table", "postgres-s3")

ONE = b"one\n"
DIGEST = digest_of(ONE)


@dataclass(frozen=True, slots=True)
class Place:
    """How to open a store of blobs, in any process that has the environment."""

    url: str
    location: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def folder(self) -> Path:
        return Path(self.url.removeprefix("sqlite:///") + ".blobs")

    def catalog(self) -> AbstractAsyncContextManager[Catalog]:
        """Open the catalog that has its files here."""
        return open_catalog(self.url, create=True, blobs=self.location)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[BlobStore]:
        async with open_database(self.url, create=True) as database:
            await prepare(database, create=True, blobs=self.location)
            yield open_blobs(self.location, database)

    async def damage(self, digest: str, content: bytes) -> None:
        """Replace the stored bytes of a blob by others."""
        name = digest.removeprefix("sha256:")
        if self.location == FOLDER:
            (self.folder / name[:2] / name).write_bytes(content)
        elif self.location == TABLE:
            async with open_database(self.url) as database, database.transaction(write=True) as transaction:
                await transaction.execute("UPDATE blobs SET content = ? WHERE digest = ?", (content, digest))
        else:
            _, _, bucket, prefix = self.location.split("/", 3)
            store = S3Store(bucket, prefix=prefix, client_options={"allow_http": True})
            await obstore.put_async(store, name, content)


def new_place(request: pytest.FixtureRequest, name: str) -> Place:
    """Return a new place; `name` is one of `PLACES`."""
    engine, _, location = name.partition("-")
    url: str = request.getfixturevalue(f"{engine}_url")
    if location != "s3":
        return Place(url, location)
    environment: dict[str, str] = request.getfixturevalue("s3")
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    return Place(url, f"s3://files/{secrets.token_hex(4)}/blobs", environment)


@contextmanager
def s3_server() -> Generator[dict[str, str]]:
    """Run a server with the interface of S3 and the bucket `files`; yield the environment of its clients."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("moto_server")), "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/files", method="PUT")
                urllib.request.urlopen(request, timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.05)
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "not-to-be-shown",
            "AWS_REGION": "us-east-1",
        }
    finally:
        process.kill()
        process.wait()


def run_script(place: Place, script: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start a Python program with the URL and the location of the place as its first arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", script, place.url, place.location, *arguments],
        env={**os.environ, **place.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
