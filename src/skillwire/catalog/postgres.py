"""`PostgresDatabase`: transactions on PostgreSQL, and notices of changes.

The only module that needs psycopg.
"""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Final, LiteralString, cast
from urllib.parse import quote

import anyio
import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from skillwire.catalog.database import POSTGRESQL, SECONDS, Parameters, Row, Streams, Transaction
from skillwire.catalog.model import CatalogError
from skillwire.sources.background import FailureLog, run_in_background

logger = logging.getLogger(__name__)

CHANNEL: Final = "skillwire"
"""The channel of `NOTIFY`; the payload is a revision."""
STATEMENT_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 60.0
"""How long a transaction may wait for its client."""

_MOST_CONNECTIONS = 8
_MOST_WAITING = 200
# A connection that cannot be made is given up soon; the next call tries again.
_RECONNECT_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_ALIVE_SECONDS = 30.0
_MIGRATION_LOCK = int.from_bytes(b"skillwir", "big")

# A server that does not answer any more is noticed within half a minute.
_DEFAULTS: Mapping[str, str] = {
    "application_name": "skillwire",
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

_SETTINGS: Mapping[str, str] = {
    "statement_timeout": f"{STATEMENT_SECONDS:.0f}s",
    "lock_timeout": f"{SECONDS:.0f}s",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS:.0f}s",
    "client_encoding": "UTF8",
}

Connection = psycopg.AsyncConnection[Row]


@asynccontextmanager
async def open_postgres(url: str) -> AsyncGenerator["PostgresDatabase"]:
    """Connect to a database.

    Raises:
        CatalogError: The URL is not valid, or the server cannot be reached or refuses the user.
    """
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The message of the error may have the password.
        raise CatalogError(
            "this is not a valid PostgreSQL URL", fix="write postgresql://user@host:5432/database"
        ) from None
    options = {**_DEFAULTS, **{name: value for name, value in given.items() if value is not None}}
    await _try(options)
    pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
        kwargs={**options, "autocommit": True},
        min_size=1,
        max_size=_MOST_CONNECTIONS,
        max_waiting=_MOST_WAITING,
        timeout=SECONDS,
        reconnect_timeout=_RECONNECT_SECONDS,
        configure=_configure,
        open=False,
    )
    database = PostgresDatabase(pool, options, _shown(url, options))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close, pool)
        try:
            # Otherwise the first call makes a second connection, because the first one is not ready.
            await pool.open(wait=True, timeout=SECONDS)
        except PoolTimeout as error:
            raise CatalogError("PostgreSQL does not answer in time", fix="try again later") from error
        await stack.enter_async_context(run_in_background(database.listen))
        yield database


async def _try(options: Mapping[str, Any]) -> None:
    """Connect once, because the pool does not report why it cannot.

    Raises:
        CatalogError: It is not possible.
    """
    try:
        with anyio.fail_after(SECONDS):
            await (await psycopg.AsyncConnection.connect(**options)).close()
    except TimeoutError:
        raise CatalogError(
            f"PostgreSQL does not answer within {SECONDS:.0f} s", fix="check the host and the port of the URL"
        ) from None
    except psycopg.Error as error:
        # What the server said, or else what the system did; before that are addresses.
        said = str(error).rpartition("FATAL:")[2].strip() or type(error).__name__
        reason = said.splitlines()[0].rpartition(" failed: ")[2]
        raise CatalogError(
            f"PostgreSQL cannot be used: {reason}",
            fix="check that the server runs, and the user, password and database of the URL",
        ) from error


async def _configure(connection: psycopg.AsyncConnection[Any]) -> None:
    for setting, value in _SETTINGS.items():
        await connection.execute("SELECT set_config(%s, %s, false)", (setting, value))


async def _close(pool: AsyncConnectionPool[Any]) -> None:
    with anyio.move_on_after(SECONDS, shield=True):
        await pool.close(timeout=SECONDS / 2)


def _shown(url: str, options: Mapping[str, Any]) -> str:
    """Return a URL without a password."""
    user, host, port = (str(options.get(name) or "") for name in ("user", "host", "port"))
    place = f"{quote(user)}@" if user else ""
    place += quote(host, safe="") + (f":{port}" if port else "")
    return f"{POSTGRESQL}://{place}/{quote(str(options.get('dbname') or ''), safe='')}"


class PostgresDatabase:
    """A database of a PostgreSQL server. A restart of the server is survived: calls connect again."""

    kind = POSTGRESQL
    path: Path | None = None
    types: Mapping[str, str] = {
        "integer": "BIGINT",
        "real": "DOUBLE PRECISION",
        "blob": "BYTEA",
        # Compared by bytes, as SQLite does.
        "text": 'TEXT COLLATE "C"',
        "identity": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    }
    clock = "extract(epoch FROM clock_timestamp())::float8"

    def __init__(self, pool: AsyncConnectionPool[Connection], options: Mapping[str, Any], url: str) -> None:
        self.url = url
        self.notice = 0
        self._pool = pool
        self._options = options
        self._is_listening = anyio.Event()
        self._noticed = anyio.Event()
        self._failures = FailureLog(logger)

    @asynccontextmanager
    async def transaction(self, *, write: bool) -> AsyncGenerator["PostgresTransaction"]:
        mode = "ISOLATION LEVEL READ COMMITTED" if write else "ISOLATION LEVEL REPEATABLE READ READ ONLY"
        async with self._connection(lambda connection: _execute(connection, f"BEGIN {mode}")) as connection:
            transaction = PostgresTransaction(connection)
            try:
                yield transaction
                await transaction.streams.close()
                await transaction.execute("COMMIT")
            except BaseException:
                with anyio.move_on_after(SECONDS, shield=True), suppress(psycopg.Error):
                    await transaction.streams.close()
                    await connection.rollback()
                raise

    async def read(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        rows: list[Row] = []

        async def fetch(connection: Connection) -> None:
            rows[:] = await PostgresTransaction(connection).fetch(sql, parameters)

        async with self._connection(fetch):
            return rows

    async def tables(self, transaction: Transaction | None = None) -> set[str]:
        query = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
        return {name for (name,) in await (transaction.fetch(query) if transaction else self.read(query))}

    async def lock_schema(self, transaction: Transaction) -> None:
        await transaction.fetch("SELECT pg_advisory_xact_lock(?)", (_MIGRATION_LOCK,))

    async def announce(self, transaction: Transaction, revision: int) -> None:
        await transaction.fetch("SELECT pg_notify(?, ?)", (CHANNEL, str(revision)))

    async def wait_for_notice(self, notice: int, seconds: float) -> None:
        self._is_listening.set()
        with anyio.move_on_after(seconds):
            while self.notice <= notice:
                await self._noticed.wait()

    async def listen(self) -> None:
        """Count notices on a connection of its own, from the first time that somebody waits for one."""
        await self._is_listening.wait()
        pause = _FIRST_PAUSE
        while True:
            try:
                with anyio.fail_after(SECONDS):
                    connection = await psycopg.AsyncConnection.connect(**self._options, autocommit=True)
                try:
                    with anyio.fail_after(SECONDS):
                        await connection.execute(f"LISTEN {CHANNEL}")
                    self._failures.recovered("listening for changes of the catalog again")
                    pause = _FIRST_PAUSE
                    # Something may have changed before.
                    self._notify()
                    await self._count_notices(connection)
                finally:
                    with anyio.move_on_after(SECONDS, shield=True):
                        await connection.close()
            except (psycopg.Error, OSError, TimeoutError) as error:
                self._failures.failed(
                    type(error).__name__, "cannot listen for changes of the catalog; checking it regularly"
                )
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _count_notices(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for _ in connection.notifies(timeout=_ALIVE_SECONDS):
                self._notify()
            with anyio.fail_after(SECONDS):
                await connection.execute("")

    def _notify(self) -> None:
        self.notice += 1
        self._noticed.set()
        self._noticed = anyio.Event()

    @asynccontextmanager
    async def _connection(
        self, start: Callable[[Connection], Awaitable[object]]
    ) -> AsyncGenerator[Connection]:
        """Take a connection on which `start` succeeded; one that the server has closed is replaced.

        To check each connection before would take as long as most statements.
        """
        deadline = time.monotonic() + SECONDS
        for attempt in count():
            connection = await self._take(deadline)
            try:
                try:
                    await start(connection)
                except CatalogError:
                    if connection.broken and attempt <= _MOST_CONNECTIONS:
                        continue
                    raise
                yield connection
                return
            finally:
                with anyio.move_on_after(SECONDS, shield=True):
                    await self._pool.putconn(connection)

    async def _take(self, deadline: float) -> Connection:
        """Take a connection from the pool.

        Raises:
            CatalogError: None can be had until the deadline.
        """
        while True:
            try:
                return await self._pool.getconn(timeout=_RECONNECT_SECONDS)
            except (PoolTimeout, PoolClosed, TooManyRequests) as error:
                # A pool that could not connect for some time tries again only when it is asked again.
                if not isinstance(error, PoolTimeout) or time.monotonic() >= deadline:
                    raise CatalogError(
                        "the database of the catalog cannot be reached, or is too busy", fix="try again later"
                    ) from error


class PostgresTransaction:
    """A transaction of `PostgresDatabase`."""

    def __init__(self, connection: Connection) -> None:
        self.streams = Streams()
        self._names = count()
        self._connection = connection

    async def fetch(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        with _errors(self._connection):
            cursor = await self._connection.execute(_with_places(sql), parameters)
            return await cursor.fetchall()

    async def execute(self, sql: str, parameters: Parameters = ()) -> int:
        with _errors(self._connection):
            return (await self._connection.execute(_with_places(sql), parameters)).rowcount

    async def execute_many(self, sql: str, parameters: Iterable[Parameters]) -> None:
        with _errors(self._connection):
            async with self._connection.cursor() as cursor:
                await cursor.executemany(_with_places(sql), parameters)

    def stream(
        self, sql: str, parameters: Parameters = (), *, batch: int = 1000
    ) -> AsyncGenerator[list[Row]]:
        return self.streams.add(self._stream(sql, parameters, batch))

    async def _stream(self, sql: str, parameters: Parameters, batch: int) -> AsyncGenerator[list[Row]]:
        cursor = self._connection.cursor(f"rows_{next(self._names)}")
        try:
            with _errors(self._connection):
                await cursor.execute(_with_places(sql), parameters)
            while True:
                with _errors(self._connection):
                    rows = await cursor.fetchmany(batch)
                if not rows:
                    break
                yield rows
        finally:
            with anyio.move_on_after(SECONDS, shield=True), suppress(psycopg.Error):
                await cursor.close()


async def _execute(connection: Connection, sql: str) -> None:
    await PostgresTransaction(connection).execute(sql)


@lru_cache(maxsize=512)
def _with_places(sql: str) -> LiteralString:
    """Return a statement with the placeholders of psycopg. No statement has a question mark in a text."""
    return cast("LiteralString", sql.replace("%", "%%").replace("?", "%s"))


@contextmanager
def _errors(connection: Connection) -> Generator[None]:
    """Translate errors; a call that takes too long is cancelled.

    Raises:
        CatalogError: The statement failed.
    """
    try:
        with anyio.fail_after(STATEMENT_SECONDS + SECONDS):
            yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise CatalogError(
            f"the catalog is locked by another process for more than {SECONDS:.0f} s",
            fix="try again when it has finished",
        ) from error
    except (psycopg.errors.QueryCanceled, TimeoutError) as error:
        raise CatalogError("the database of the catalog takes too long", fix="try again later") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise CatalogError(
            "the user of the database may not do this", fix="grant the rights, or use another user"
        ) from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise CatalogError("the database of the catalog cannot be reached", fix="try again later") from error
    except psycopg.Error as error:
        code = error.sqlstate or type(error).__name__
        raise CatalogError(f"the database of the catalog refused a statement ({code})") from error
