"""The tables of a catalog, and how they are created and upgraded."""

import secrets
from collections.abc import Sequence
from typing import Final

from skillwire.catalog.database import POSTGRESQL, SQLITE, Database, Transaction
from skillwire.catalog.model import FOREVER, CatalogError, NewerSchemaError, NoCatalogError
from skillwire.sources.stored import READ_INDEX

VERSIONS: Final = (
    "CREATE TABLE versions (uri {text} NOT NULL, since {integer} NOT NULL, until {integer} NOT NULL, "
    "namespace {text} NOT NULL, name {text} NOT NULL, entry {blob} NOT NULL, digest {text} NOT NULL, "
    "details {text} NOT NULL, modified {real}, listed {integer} NOT NULL, pinned {integer} NOT NULL, "
    "is_pin {integer} NOT NULL, version {text} NOT NULL, source {text} NOT NULL, "
    "PRIMARY KEY (uri, since))"
)

MIGRATIONS: Final[Sequence[Sequence[str]]] = (
    (
        "CREATE TABLE meta (key {text} PRIMARY KEY, value {text} NOT NULL)",
        "CREATE TABLE state (one {integer} PRIMARY KEY CHECK (one = 1), revision {integer} NOT NULL)",
        VERSIONS,
        READ_INDEX,
        f"CREATE UNIQUE INDEX versions_current ON versions (uri) WHERE until = {FOREVER}",
        f"CREATE UNIQUE INDEX versions_name ON versions (namespace, name) "
        f"WHERE until = {FOREVER} AND is_pin = 0",
        f"CREATE INDEX versions_source ON versions (source) WHERE until = {FOREVER} AND source <> ''",
        "CREATE INDEX versions_since ON versions (since)",
        f"CREATE INDEX versions_until ON versions (until) WHERE until < {FOREVER}",
        "CREATE TABLE revisions (revision {integer} PRIMARY KEY, at {real} NOT NULL, actor {text} NOT NULL, "
        "action {text} NOT NULL, note {text} NOT NULL)",
        "CREATE TABLE audit (id {identity}, at {real} NOT NULL, actor {text} NOT NULL, "
        "action {text} NOT NULL, namespace {text} NOT NULL, uri {text} NOT NULL, revision {integer}, "
        "detail {text} NOT NULL)",
        "CREATE TABLE leases (name {text} PRIMARY KEY, holder {text} NOT NULL, until {real} NOT NULL)",
        "CREATE TABLE blobs (digest {text} PRIMARY KEY, size {integer} NOT NULL, at {real} NOT NULL, "
        "content {blob} NOT NULL)",
        "CREATE TABLE managed (name {text} PRIMARY KEY, kind {text} NOT NULL, location {text} NOT NULL, "
        "prefix {text} NOT NULL, every {real} NOT NULL, options {text} NOT NULL, last_at {real}, "
        "last_result {text} NOT NULL)",
        "INSERT INTO state (one, revision) VALUES (1, 0)",
    ),
)
"""The statements of each version of the schema, which upgrade the one before."""

SCHEMA: Final = len(MIGRATIONS)
"""The version of the schema that this program uses."""

FOLDER: Final = "folder"
TABLE: Final = "table"
S3: Final = "s3://"

_OWN_TABLES = frozenset({"meta", "state", "versions"})
_SET = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


async def prepare(database: Database, *, create: bool, blobs: str = "") -> dict[str, str]:
    """Check the schema of a catalog, upgrade an older one, and return its settings from `meta`.

    With `create`, the tables are created if there are none; `blobs` is then where
    files are stored, by default in a folder beside a SQLite database, and else
    in a table. Several processes may do so at the same time.

    Raises:
        CatalogError: There is no catalog, or another program's tables; or it stores files elsewhere.
        NewerSchemaError: A later version of this program is needed.
    """
    blobs = _location(database, blobs) if blobs else ""
    if not await _has_catalog(database):
        if not create:
            raise NoCatalogError("there is no catalog in this database", fix="publish something to create it")
        await _migrate(database, blobs or (FOLDER if database.kind == SQLITE else TABLE))
    meta = await _read_meta(database)
    if int(meta["schema"]) < SCHEMA:
        await _migrate(database, meta["blobs"])
        meta = await _read_meta(database)
    if blobs and blobs != meta["blobs"]:
        raise CatalogError(
            f"this catalog stores its files in {meta['blobs']!r}, not in {blobs!r}",
            fix="leave the option out; the place is chosen when a catalog is created",
        )
    return meta


def _location(database: Database, blobs: str) -> str:
    if blobs == TABLE or (blobs == FOLDER and database.kind == SQLITE) or blobs.startswith(S3):
        return blobs.rstrip("/")
    where = "`folder`, `table`" if database.kind == SQLITE else "`table`"
    raise CatalogError(
        f"this catalog cannot store files in {blobs!r}", fix=f"use {where} or s3://bucket/path"
    )


async def _has_catalog(database: Database, transaction: Transaction | None = None) -> bool:
    """Return whether there is a catalog; False when there is room for one.

    Raises:
        CatalogError: Another program's tables are in the way.
    """
    tables = await database.tables(transaction)
    if tables >= _OWN_TABLES:
        return True
    # A PostgreSQL database may be shared, if the names differ.
    if tables if database.kind != POSTGRESQL else tables & _OWN_TABLES:
        raise CatalogError(
            "this database has tables of another program and is not a catalog", fix="name another database"
        )
    return False


async def _read_meta(database: Database) -> dict[str, str]:
    try:
        meta = {str(key): str(value) for key, value in await database.read("SELECT key, value FROM meta")}
        schema = int(meta["schema"])
    except (CatalogError, KeyError, ValueError) as error:
        raise CatalogError("this database is not a catalog", fix="name another database") from error
    if schema > SCHEMA:
        raise NewerSchemaError(
            f"this catalog has version {schema} of the schema, and this program supports up to {SCHEMA}",
            fix="upgrade skillwire on this machine",
        )
    return meta


async def _migrate(database: Database, blobs: str) -> None:
    """Run the statements that are missing, unless another process has done so meanwhile."""
    async with database.transaction(write=True) as transaction:
        await database.lock_schema(transaction)
        schema = await _schema_of(transaction) if await _has_catalog(database, transaction) else 0
        for statements in MIGRATIONS[schema:]:
            for statement in statements:
                await transaction.execute(statement.format(**database.types))
        if schema < SCHEMA:
            await transaction.execute(_SET, ("schema", str(SCHEMA)))
        if not schema:
            await transaction.execute(_SET, ("blobs", blobs))
            await transaction.execute(_SET, ("id", secrets.token_hex(16)))


async def _schema_of(transaction: Transaction) -> int:
    return int((await transaction.fetch("SELECT value FROM meta WHERE key = 'schema'"))[0][0])
