"""`open_derived`: a SQLite database of one process whose contents can be built again."""

import os
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 16 * 1024**3
"""The maximum size of a database by default."""

_FILES = 8
_PAGE_BYTES = 4096


def open_derived(
    path: Path | None,
    *,
    version: int,
    create: Sequence[str],
    most_bytes: int = MAX_BYTES,
    cache_kibibytes: int,
    survives_crash: bool = False,
) -> tuple[sqlite3.Connection, Path | None]:
    """Open the first file beside `path` that no other process uses, or else a temporary database.

    The statements `create` make its tables, unless this `version` of them is
    there. A damaged file is deleted. With `survives_crash`, a crash of the
    machine does not damage it; without, it is noticed later, if at all.
    """

    def prepare(database: sqlite3.Connection) -> None:
        database.execute(f"PRAGMA synchronous = {'FULL' if survives_crash else 'OFF'}")
        database.execute(f"PRAGMA cache_size = -{cache_kibibytes}")
        if database.execute("PRAGMA user_version").fetchall() != [(version,)]:
            database.execute("BEGIN")
            for statement in create:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {version}")
            database.execute("COMMIT")
        database.execute(f"PRAGMA max_page_count = {max(most_bytes // _PAGE_BYTES, 1)}")

    def open_file(file: Path) -> sqlite3.Connection:
        database = _open_file(file)
        try:
            prepare(database)
        except BaseException:
            database.close()
            raise
        return database

    for number in range(_FILES if path is not None else 0):
        assert path is not None, "else there are no files"
        file = path.with_name(f"{path.name}-{number}.sqlite")
        with suppress(OSError, sqlite3.OperationalError):
            try:
                return open_file(file), file
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                file.unlink()
                return open_file(file), file
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    # On any error the whole database is dropped, so no rollback is needed.
    database.execute("PRAGMA journal_mode = OFF")
    prepare(database)
    return database, None


def _open_file(file: Path) -> sqlite3.Connection:
    """Open a file that only this user can write to.

    Raises:
        OSError: It is not such a file, or cannot be created.
        sqlite3.OperationalError: Another process uses it.
        sqlite3.DatabaseError: It is damaged.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.touch(mode=0o600)
    found = file.lstat()
    foreign = hasattr(os, "geteuid") and found.st_uid != os.geteuid()
    if foreign or not stat.S_ISREG(found.st_mode) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{file.name} is not a regular file that only this user can write to")
    database = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        # The first transaction takes the lock, and keeps it until the database is closed.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("BEGIN EXCLUSIVE")
        database.execute("COMMIT")
        database.execute("PRAGMA journal_mode = TRUNCATE")
    except BaseException:
        database.close()
        raise
    return database
