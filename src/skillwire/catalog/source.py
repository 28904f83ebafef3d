"""`CatalogSource`: the skills of a catalog as a source of a server.

Pages, entries and directories are answered from a SQLite file: the catalog's
own, or for PostgreSQL a copy of its rows on the local disk, which is brought up
to date by what changed. Before a request is answered, the catalog is asked for
its revision, so that all servers of one catalog answer alike; while it is away,
they answer from the state they know.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Final

import anyio
import anyio.to_thread
import platformdirs

from skillwire.catalog.catalog import Catalog, open_catalog
from skillwire.catalog.database import SqliteDatabase
from skillwire.catalog.model import COLUMNS, FOREVER, CatalogError, SkillRow
from skillwire.catalog.schema import VERSIONS
from skillwire.core import ByteCache, ManifestFile, SkillEntry, SkillUri, SourceError
from skillwire.search.database import open_derived
from skillwire.sources.background import FailureLog, run_in_background
from skillwire.sources.snapshot import SharedState, Snapshot, SnapshotSource
from skillwire.sources.stored import READ_INDEX, SkillsFile, StoredSnapshot

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 2.0
"""How long a change in the catalog may be unnoticed while nobody asks and no notification arrives."""
ANSWER_SECONDS: Final = 1.0
"""How long a request waits for the revision of the catalog before the last known state is used."""

SYNC_SECONDS: Final = 10.0
"""How often a server looks for managed sources that are due."""

_CACHED_BYTES = 64 * 1024 * 1024
# Older states are kept for answers that are being written.
_KEPT_REVISIONS = 1000
_BATCH = 1000

_FORMAT = 1
_CREATE = (
    "DROP TABLE IF EXISTS versions",
    "DROP TABLE IF EXISTS state",
    # Indexes that are built after all rows were copied take a fifth of the time.
    VERSIONS.format(**SqliteDatabase.types).replace(", PRIMARY KEY (uri, since)", ""),
    "CREATE TABLE state (catalog TEXT NOT NULL, revision INTEGER NOT NULL)",
    "INSERT INTO state VALUES ('', 0)",
)
_CACHE_KIBIBYTES = 16 * 1024
_INDEXES = (
    READ_INDEX,
    "CREATE INDEX versions_since ON versions (since)",
    f"CREATE INDEX versions_until ON versions (until) WHERE until < {FOREVER}",
)
_DELETE = "DELETE FROM versions WHERE uri = ? AND since = ?"
_INSERT = f"INSERT INTO versions ({COLUMNS}) VALUES ({', '.join('?' * len(SkillRow._fields))})"


class CatalogSource(SnapshotSource):
    """The skills of a catalog, at the revision that it has when a request arrives.

        async with CatalogSource("postgresql://db/skills") as source: ...

    `folder` is where the copy of a catalog on PostgreSQL is, by default in the
    user's cache. Several processes use different files there.
    """

    def __init__(self, url: str, *, folder: Path | None = None, poll_seconds: float = POLL_SECONDS) -> None:
        super().__init__()
        self.url = url
        self._folder = folder
        self._poll_seconds = poll_seconds
        self._blobs: ByteCache[str, bytes] = ByteCache(_CACHED_BYTES)
        self._stack = AsyncExitStack()
        self._catalog: Catalog | None = None
        self._file: SkillsFile | None = None
        self._copy: _Copy | None = None
        self._checks = _RevisionChecks(self._check)
        self._failures = FailureLog(logger)
        self._newest = 0
        self._answered_at = 0.0

    async def __aenter__(self) -> CatalogSource:
        """Open the catalog, and bring the copy up to date.

        Raises:
            CatalogError: There is no such catalog, or it cannot be reached.
            SourceError: Its file cannot be read.
        """
        async with AsyncExitStack() as stack:
            catalog = self._catalog = await stack.enter_async_context(
                open_catalog(self.url, poll_seconds=self._poll_seconds)
            )
            path = catalog.database.path
            if path is not None:
                self._file = SkillsFile.open(path)
                stack.callback(self._file.close)
            else:
                self._file = await stack.enter_async_context(_open_copy(catalog, self._folder))
                self._copy = _Copy(catalog, self._file)
            await self._update()
            await stack.enter_async_context(
                run_in_background(self._follow, self._checks.run, self._sync_sources)
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def cache_key(self) -> str:
        return "" if self._catalog is None else f"catalog {self._catalog.id}"

    @property
    def shared_state(self) -> SharedState:
        """The revision that is served, how many newer ones are known, and when the catalog answered."""
        behind = max(0, self._newest - self._at)
        return SharedState(self._at, behind, time.monotonic() - self._answered_at)

    @property
    def stored(self) -> StoredSnapshot:
        """The current state."""
        snapshot = self.snapshot
        assert isinstance(snapshot, StoredSnapshot), "nothing else is published here"
        return snapshot

    async def catch_up(self) -> Snapshot:
        """Return the state that the catalog has now, or the last known one if it does not answer in time."""
        if self._copy is None:
            await self._update()  # To read the revision from a file takes less than to wait for a task.
        else:
            await self._checks.wait(ANSWER_SECONDS)
        return self.snapshot

    async def read_file(self, uri: str) -> bytes:
        """Return the bytes of a file, which match the digest in the entry.

        Raises:
            NotFoundError: No skill has such a file.
            SourceError: The catalog cannot be reached, or the file is damaged.
        """
        line = self.snapshot.locate(uri)[1]
        assert line is not None, "no skill of a catalog is dynamic"
        content = self._blobs.get(line.digest)
        if content is None:
            assert self._catalog is not None, "the source is open"
            try:
                content = await self._catalog.read_blob(line.digest)
            except CatalogError as error:
                raise SourceError(f"{uri} cannot be read at the moment: {error}", fix=error.fix) from error
            self._blobs.put(line.digest, content, len(content))
        return content

    def read_now(self, entry: SkillEntry, line: ManifestFile) -> bytes | None:
        """Return the bytes of a file, if they are at hand."""
        content = self._blobs.get(line.digest)
        if content is None and self._catalog is not None:
            get_now = getattr(self._catalog.store, "get_now", None)
            content = None if get_now is None else get_now(line.digest)
        return content

    def place_of(self, uri: SkillUri) -> str:
        return f"catalog, {uri.text}"

    def modified_at(self, uri: SkillUri) -> float | None:
        details = self.stored.details(uri.text)
        return None if details is None else details.modified

    def order_of(self, uri: SkillUri) -> Sequence[str]:
        details = self.stored.details(uri.text)
        return () if details is None else details.order

    async def _follow(self) -> None:
        """Update when the catalog announces a change, and at least every `poll_seconds`."""
        assert self._catalog is not None, "the source is open"
        while True:
            await self._catalog.wait_for_change(self._at, seconds=self._poll_seconds)
            await self._checks.wait(self._poll_seconds)

    async def _sync_sources(self) -> None:
        """Publish the managed sources of the catalog when they are due, if no other process does."""
        failures = FailureLog(logger)
        assert self._catalog is not None, "the source is open"
        while True:
            try:
                if await self._catalog.database.read("SELECT 1 FROM managed LIMIT 1"):
                    # What fetches sources takes time to import, and most catalogs have none.
                    await import_module("skillwire.catalog.sync").run_due(self._catalog)
                failures.recovered("the sources of the catalog are synced again")
            except CatalogError as error:
                failures.failed("sync", f"the sources of the catalog are not synced: {error}")
            await anyio.sleep(SYNC_SECONDS * random.uniform(0.5, 1.5))

    async def _check(self) -> None:
        """Update to the revision of the catalog, if it answers."""
        try:
            await self._update()
            self._failures.recovered("the catalog answers again")
        except (CatalogError, SourceError) as error:
            self._failures.failed("update", f"the last known state of the catalog is served: {error}")

    @property
    def _at(self) -> int:
        return self.stored.selection.at

    async def _update(self) -> None:
        """Publish the state of the newest revision.

        Raises:
            CatalogError: The catalog does not answer.
            SourceError: The file cannot be read or written.
        """
        assert self._file is not None and self._catalog is not None, "the source is open"
        newest = await self._catalog.revision() if self._copy is not None else self._file.revision()
        self._newest, self._answered_at = newest, time.monotonic()
        revision = newest if self._copy is None else await self._copy.update(newest)
        if self._snapshot is None or revision != self._at:
            number = 1 if self._snapshot is None else self._snapshot.revision + 1
            self._replace_snapshot(replace(StoredSnapshot.at(self._file, revision), revision=number))


class _Copy:
    """The rows of a catalog in a local file: all current ones, and some older ones."""

    def __init__(self, catalog: Catalog, file: SkillsFile) -> None:
        self._catalog = catalog
        self._file = file

    async def update(self, newest: int) -> int:
        """Take over what changed until the newest revision, and return the one that the file has then.

        Raises:
            CatalogError: The catalog does not answer.
            SourceError: The file cannot be written.
        """
        revision = self._file.revision()
        if newest == revision:
            return revision
        in_thread = anyio.to_thread.run_sync
        # If the catalog was restored from a backup, everything is copied again.
        known = revision if newest > revision else 0
        await in_thread(self._begin, known == 0)
        try:
            async with self._catalog.rows_since(known, batch=_BATCH) as changes:
                async for rows in changes.batches:
                    await in_thread(self._insert, rows, known > 0)
            await in_thread(self._finish, changes.revision, known == 0)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await in_thread(self._roll_back)
            raise
        return changes.revision

    # Readers use the same connection. They see the rows of a transaction that is not committed, but their
    # queries are at an older revision.

    def _begin(self, is_first: bool) -> None:
        with self._file.writing() as database:
            database.execute("BEGIN")
            for statement in _CREATE if is_first else ():
                database.execute(statement)

    def _insert(self, rows: Sequence[SkillRow], is_update: bool) -> None:
        with self._file.writing() as database:
            if is_update:
                database.executemany(_DELETE, [(row.uri, row.since) for row in rows])
            database.executemany(_INSERT, rows)

    def _finish(self, revision: int, is_first: bool) -> None:
        with self._file.writing() as database:
            for statement in _INDEXES if is_first else ():
                database.execute(statement)
            database.execute("DELETE FROM versions WHERE until <= ?", (revision - _KEPT_REVISIONS,))
            database.execute("UPDATE state SET catalog = ?, revision = ?", (self._catalog.id, revision))
            database.execute("COMMIT")

    def _roll_back(self) -> None:
        with self._file.writing() as database:
            if database.in_transaction:
                database.execute("ROLLBACK")


@asynccontextmanager
async def _open_copy(catalog: Catalog, folder: Path | None) -> AsyncGenerator[SkillsFile]:
    """Open a local file for the rows of a catalog, which no other process uses."""
    path = (folder or platformdirs.user_cache_path("skillwire") / "catalogs") / catalog.id
    open_file = partial(
        open_derived,
        path,
        version=_FORMAT,
        create=_CREATE,
        cache_kibibytes=_CACHE_KIBIBYTES,
        survives_crash=True,
    )
    try:
        database, _ = await anyio.to_thread.run_sync(open_file)
    except sqlite3.Error as error:
        raise SourceError(
            f"the copy of the catalog cannot be opened: {error}", fix="check the disk"
        ) from error
    file = SkillsFile(database)
    try:
        yield file
    finally:
        file.close()


class _RevisionChecks:
    """Runs one check at a time for all requests that wait.

    A request waits for a check that began after it arrived. While a check takes
    longer than a request would wait, no further request waits.
    """

    def __init__(self, check: Callable[[], Awaitable[None]]) -> None:
        self._check = check
        self._begun = 0
        self._ended = 0
        self._since = 0.0
        self._wanted = anyio.Event()
        self._done = anyio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait for a check that begins from now on, for at most some seconds."""
        left = seconds
        if self._begun > self._ended:
            left -= time.monotonic() - self._since
        wanted = self._begun + 1
        self._wanted.set()
        if left <= 0:
            return
        with anyio.move_on_after(left):
            while self._ended < wanted:
                await self._done.wait()

    async def run(self) -> None:
        """Check whenever a request waits, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            self._begun += 1
            self._since = time.monotonic()
            await self._check()
            self._ended = self._begun
            self._done.set()
            self._done = anyio.Event()
