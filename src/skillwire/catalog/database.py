"""`Database`: transactions on SQLite or PostgreSQL, with the same SQL and `?` for parameters."""

import os
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import anyio
import anyio.to_thread

from skillwire.catalog.model import CatalogError, NoCatalogError

SECONDS: Final = 10.0
"""How long a call waits for a connection, or for another process that writes."""
SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"

Row: TypeAlias = tuple[Any, ...]
Parameters: TypeAlias = Sequence[object]
Result = TypeVar("Result")

# How often the file is checked for a change of another process.
_POLL_SECONDS = 0.2
_MOST_READERS = 8
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_OTHER_FILES = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
_URL_FIX = "write sqlite:///folder/skills.db for a file, or postgresql://user@host/database"


class Transaction(Protocol):
    """An open transaction, used by one task."""

    async def fetch(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Return all rows of a query."""
        ...

    async def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Execute a statement, and return the number of rows it changed."""
        ...

    async def execute_many(self, sql: str, parameters: Iterable[Parameters]) -> None:
        """Execute a statement for each of many rows of parameters."""
        ...

    def stream(self, sql: str, parameters: Parameters = (), *, batch: int = 1000) -> AsyncIterator[list[Row]]:
        """Yield the rows of a query in batches, which are not held in memory together."""
        ...


class Database(Protocol):
    """An open database.

    `url` has no password. `types` are the names of column types, for
    `str.format`: `{integer}`, `{real}`, `{blob}`, `{text}` and `{identity}`, a
    primary key that the database assigns. `clock` is an expression for its time
    in POSIX seconds. `path` is the file of SQLite, else None. `notice` grows when
    another process may have changed something.
    """

    @property
    def kind(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def path(self) -> Path | None: ...
    @property
    def types(self) -> Mapping[str, str]: ...
    @property
    def clock(self) -> str: ...
    @property
    def notice(self) -> int: ...

    def transaction(self, *, write: bool) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction, which sees one state; it is rolled back when the block raises.

        On SQLite a transaction that writes excludes others that do. On PostgreSQL
        it excludes those that changed the same row before, and reads the latest.

        Raises:
            CatalogError: The database cannot be reached, or is locked for too long.
        """
        ...

    async def read(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Return all rows of one query, in a transaction of its own."""
        ...

    async def tables(self, transaction: Transaction | None = None) -> set[str]:
        """Return the names of all tables, as a transaction sees them if one is open."""
        ...

    async def lock_schema(self, transaction: Transaction) -> None:
        """Exclude other processes that create or upgrade tables, until the transaction ends."""
        ...

    async def announce(self, transaction: Transaction, revision: int) -> None:
        """Let other processes know of a revision when the transaction is committed."""
        ...

    async def wait_for_notice(self, notice: int, seconds: float) -> None:
        """Wait until `notice` is greater than this, or for a while that is at most `seconds`."""
        ...


class Streams:
    """The streams of a transaction. Those that were not read to their end are closed with it."""

    def __init__(self) -> None:
        self._opened: list[AsyncGenerator[list[Row]]] = []

    def add(self, stream: AsyncGenerator[list[Row]]) -> AsyncGenerator[list[Row]]:
        self._opened.append(stream)
        return stream

    async def close(self) -> None:
        while self._opened:
            await self._opened.pop().aclose()


def open_database(url: str, *, create: bool = False) -> AbstractAsyncContextManager[Database]:
    """Open the database at a URL: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`.

    Raises:
        CatalogError: The URL has another form, or the database cannot be opened.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == SQLITE and separator and len(rest) > 1 and rest.startswith("/") and "\0" not in rest:
        return open_sqlite(Path(unquote(rest[1:])), url, create=create)
    if scheme in (POSTGRESQL, "postgres") and separator:
        return _postgres_opener()(url)
    # The URL may have a password.
    raise CatalogError("this is not the URL of a catalog", fix=_URL_FIX)


def _postgres_opener() -> Callable[[str], AbstractAsyncContextManager[Database]]:
    try:
        return import_module("skillwire.catalog.postgres").open_postgres
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("psycopg", "psycopg_pool"):
            raise
        raise CatalogError(
            "a catalog on PostgreSQL needs psycopg, which is not installed",
            fix="install the extra: pip install 'skillwire[postgres]'",
        ) from error


# SQLite


@asynccontextmanager
async def open_sqlite(path: Path, url: str, *, create: bool) -> AsyncGenerator["SqliteDatabase"]:
    """Open the database in a file; with `create` there may be none yet.

    Raises:
        CatalogError: There is no such file, or it is not a database.
    """
    database = SqliteDatabase(path, url, create=create)
    try:
        await database.tables()
        yield database
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(database.close)


class SqliteDatabase:
    """A SQLite database in WAL mode, so that readers do not wait for a writer.

    Calls run in threads. A call is never abandoned: a cancelled task first
    waits until the call returns, which a lock delays by at most `SECONDS`.
    """

    kind = SQLITE
    types: Mapping[str, str] = {
        "integer": "INTEGER",
        "real": "REAL",
        "blob": "BLOB",
        "text": "TEXT",
        "identity": "INTEGER PRIMARY KEY",
    }
    clock = "((julianday('now') - 2440587.5) * 86400.0)"

    def __init__(self, path: Path, url: str, *, create: bool) -> None:
        self.url = url
        self.path: Path | None = path
        self.notice = 0
        self._name = path.name
        # `path.as_uri` refuses relative paths.
        self._uri = f"file:{quote(os.path.abspath(path))}?mode={'rwc' if create else 'rw'}"  # noqa: PTH100
        self._idle: list[sqlite3.Connection] = []
        self._writing = anyio.Lock()
        self._reading = anyio.Semaphore(_MOST_READERS)
        self._threads = anyio.CapacityLimiter(_MOST_READERS + 1)
        self._is_wal = False

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()

    @asynccontextmanager
    async def transaction(self, *, write: bool) -> AsyncGenerator["SqliteTransaction"]:
        async with _held(self._writing if write else self._reading), self._connection() as connection:
            transaction = SqliteTransaction(connection, self._call)
            try:
                if write:
                    await self._call(self._begin_immediate, connection)
                else:
                    await self._call(connection.execute, "BEGIN")
                yield transaction
                await self._call(connection.execute, "COMMIT")
            finally:
                with anyio.CancelScope(shield=True):
                    await transaction.streams.close()
                    if connection.in_transaction:
                        await self._call(connection.rollback)

    async def read(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        async with _held(self._reading), self._connection() as connection:
            return await SqliteTransaction(connection, self._call).fetch(sql, parameters)

    async def tables(self, transaction: Transaction | None = None) -> set[str]:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        return {name for (name,) in await (transaction.fetch(query) if transaction else self.read(query))}

    async def lock_schema(self, transaction: Transaction) -> None:
        """Do nothing: a transaction that writes excludes all others."""

    async def announce(self, transaction: Transaction, revision: int) -> None:
        """Do nothing: other processes check the file."""

    async def wait_for_notice(self, notice: int, seconds: float) -> None:
        await anyio.sleep(min(seconds, _POLL_SECONDS))

    async def _call(self, function: Callable[..., Result], *arguments: object) -> Result:
        with self._errors():
            return await anyio.to_thread.run_sync(function, *arguments, limiter=self._threads)

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[sqlite3.Connection]:
        connection = self._idle.pop() if self._idle else await self._call(self._connect)
        try:
            yield connection
        finally:
            # After a failure of the disk, it may be unable to roll back.
            if connection.in_transaction:
                connection.close()
            else:
                self._idle.append(connection)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._uri, uri=True, timeout=SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _begin_immediate(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction that writes; the first one of a new file sets its mode before."""
        deadline = time.monotonic() + SECONDS
        while not self._is_wal:
            # SQLite does not wait for locks itself here.
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                self._is_wal = True
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        connection.execute("BEGIN IMMEDIATE")

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # The code of an extended error has the one of its kind in the lowest byte.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _BUSY:
                raise CatalogError(
                    f"the catalog {self._name!r} is locked by another process for more than {SECONDS:.0f} s",
                    fix="try again when it has finished",
                ) from error
            if code in _OTHER_FILES:
                raise CatalogError(
                    f"the file {self._name!r} is not a catalog, or it is damaged",
                    fix="name another file, or restore a backup",
                ) from error
            if code == sqlite3.SQLITE_CANTOPEN:
                raise self._unopened() from error
            raise CatalogError(
                f"the catalog {self._name!r} cannot be used: {error}",
                fix="check the permissions of the file and its folder, and the space on the disk",
            ) from error

    def _unopened(self) -> CatalogError:
        if self.path is not None and os.path.lexists(self.path):
            return CatalogError(
                f"the catalog {self._name!r} cannot be opened", fix="check the permissions of the file"
            )
        return NoCatalogError(
            f"there is no catalog {self._name!r}",
            fix="check the path; publishing creates the file, in a folder that exists",
        )


@asynccontextmanager
async def _held(lock: anyio.Lock | anyio.Semaphore) -> AsyncGenerator[None]:
    """Hold a lock; waiting for it has a deadline.

    Raises:
        CatalogError: Others hold it for too long.
    """
    try:
        with anyio.fail_after(SECONDS):
            await lock.acquire()
    except TimeoutError:
        raise CatalogError("the catalog is busy with other calls", fix="try again later") from None
    try:
        yield
    finally:
        lock.release()


class SqliteTransaction:
    """A transaction of `SqliteDatabase`."""

    def __init__(self, connection: sqlite3.Connection, call: Callable[..., Any]) -> None:
        self.streams = Streams()
        self._connection = connection
        self._call = call

    async def fetch(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        return await self._call(lambda: self._connection.execute(sql, parameters).fetchall())

    async def execute(self, sql: str, parameters: Parameters = ()) -> int:
        return await self._call(lambda: self._connection.execute(sql, parameters).rowcount)

    async def execute_many(self, sql: str, parameters: Iterable[Parameters]) -> None:
        await self._call(self._connection.executemany, sql, parameters)

    def stream(
        self, sql: str, parameters: Parameters = (), *, batch: int = 1000
    ) -> AsyncGenerator[list[Row]]:
        return self.streams.add(self._stream(sql, parameters, batch))

    async def _stream(self, sql: str, parameters: Parameters, batch: int) -> AsyncGenerator[list[Row]]:
        cursor: sqlite3.Cursor = await self._call(self._connection.execute, sql, parameters)
        try:
            while rows := await self._call(cursor.fetchmany, batch):
                yield rows
        finally:
            cursor.close()
