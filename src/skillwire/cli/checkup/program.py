"""The program itself: versions, and what this system offers for running scripts apart."""

import platform
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from skillwire import __version__
from skillwire.cli.checkup.check import Area, Check

_PROGRAM = Area("program")
_SANDBOX = Area("sandbox")
_SECONDS = 10
_NAMESPACES = (
    # The file, the value that forbids, and what to say.
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces is 0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone is 0"),
)


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


def check_sandbox() -> Iterator[Check]:
    """Say what can be known of a sandbox here; this release runs no scripts in one."""
    yield _SANDBOX.note("scripts", "scripts of skills are not run by this release")
    if not sys.platform.startswith("linux"):
        yield _SANDBOX.note("bubblewrap", "there is none for this system")
        return
    program = shutil.which("bwrap")
    if program is None:
        yield _SANDBOX.note("bubblewrap", "not found on PATH")
    else:
        yield _sandboxed(program)
    for path, forbidding, words in _NAMESPACES:
        if _content(path) == forbidding:
            yield _SANDBOX.note("user namespaces", f"not allowed: {words}")
            return
    yield _SANDBOX.note("user namespaces", "nothing in /proc forbids them")


def _has_full_text_search() -> bool:
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.execute("CREATE VIRTUAL TABLE probe USING fts5(text)")
        except sqlite3.Error:
            return False
    return True


def _sandboxed(program: str) -> Check:
    """Try a sandbox around a program that does nothing."""
    words = [program, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "true"]
    try:
        result = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return _SANDBOX.note("bubblewrap", f"found, and cannot be started: {type(error).__name__}")
    if result.returncode:
        reason = result.stderr.decode("utf-8", "replace").strip()[:200] or f"exit code {result.returncode}"
        return _SANDBOX.note("bubblewrap", f"found, and makes no sandbox here: {reason}")
    return _SANDBOX.ok("bubblewrap", "found, and makes a sandbox")


def _content(path: str) -> str:
    try:
        return Path(path).read_text("ascii", "replace").strip()
    except OSError:
        return ""
