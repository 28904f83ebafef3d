"""`skillwire` as a command line, for tests in which starting it is not the point: see `preloaded`."""

import atexit
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path

import preloaded
import serving
import skillwire

READY_WITHIN = 120.0
ENDED_WITHIN = 10.0


def skillwire_command(*words: str | Path) -> list[str]:
    """Return a command line that runs `skillwire` with these words, in a process of its own."""
    if not hasattr(os, "fork"):
        return [sys.executable, "-m", "skillwire", *map(str, words)]
    return [sys.executable, "-I", "-S", preloaded.__file__, _nursery(), *map(str, words)]


def script_command(script: Path, *words: str | Path) -> list[str]:
    """Return a command line that runs a script, one that imports much of what `skillwire` does."""
    return (
        skillwire_command(script, *words)
        if hasattr(os, "fork")
        else [sys.executable, str(script), *map(str, words)]
    )


def write_program(path: Path, words: list[str]) -> None:
    """Write a program that runs a command line, with the arguments it is given at the end."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)


def words_of(*args: str | Path) -> list[str]:
    """Return a command line that runs `skillwire serve`, as `serving.words_of` does."""
    return skillwire_command("serve", *args)


http_server = partial(serving.http_server, command=words_of)
stdio_server = partial(serving.stdio_server, command=words_of)


@cache
def _nursery() -> str:
    """Start this process's nursery when it is first wanted, and return where it listens."""
    folder = tempfile.mkdtemp(prefix="nursery-")
    path = f"{folder}/door"
    process = subprocess.Popen(
        [sys.executable, preloaded.__file__, "--keep", path],
        env={**os.environ, "PYTHONPATH": str(Path(skillwire.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # No process of it shall find the terminal in which somebody runs the tests.
        start_new_session=True,
    )
    atexit.register(_end, process, folder)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], READY_WITHIN)
    assert ready and process.stdout.readline() == b"ready\n", "the nursery does not start"
    return path


def _end(process: "subprocess.Popen[bytes]", folder: str) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        process.wait(ENDED_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
