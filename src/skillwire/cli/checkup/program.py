"""The program itself, and which versions are at work."""

import platform
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version

from skillwire import __version__
from skillwire.cli.checkup.check import Area, Check

_PROGRAM = Area("program")


def check_program() -> Iterator[Check]:
    """Say which versions are at work."""
    found = f"{__version__}, Python {platform.python_version()} on {platform.system() or sys.platform}"
    yield _PROGRAM.ok("skillwire", found)
    try:
        yield _PROGRAM.ok("MCP SDK", f"mcp {version('mcp')}")
    except PackageNotFoundError:
        yield _PROGRAM.problem("MCP SDK", "the package mcp is not installed", "install skillwire again")
    if _has_full_text_search():
        yield _PROGRAM.ok("search", f"SQLite {sqlite3.sqlite_version} with FTS5")
    else:
        yield _PROGRAM.warning(
            "search",
            f"SQLite {sqlite3.sqlite_version} has no FTS5, so skills cannot be searched",
            "use a Python whose sqlite3 has FTS5",
        )


def _has_full_text_search() -> bool:
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.execute("CREATE VIRTUAL TABLE probe USING fts5(text)")
        except sqlite3.Error:
            return False
    return True
