"""Servers as processes: started, asked, their CPU time and memory read from outside, stopped."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.links import HttpLink, Link, PipeLink
from bench.messages import Call, next_number, result

REPOSITORY = Path(__file__).parents[1]
_SETTLE_SECONDS = 30
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)(/\S*)")


class StartError(Exception):
    """A server did not start; the message holds the end of what it wrote."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    link: Link

    def cpu(self) -> float:
        """Return the CPU seconds it has used, its children included, to the microsecond."""
        return sum(map(_cpu_of, _family(self.process.pid)))

    def stay_on(self, cores: Collection[int]) -> None:
        """Keep all of its threads on these cores."""
        for pid in _family(self.process.pid):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cores)

    def resident_mib(self) -> float:
        return sum(map(_resident_of, _family(self.process.pid))) * os.sysconf("SC_PAGE_SIZE") / 2**20


def can_measure() -> bool:
    return sys.platform == "linux"


@contextmanager
def started(
    command: Sequence[str], *, http: bool, env: Mapping[str, str] | None = None, timeout: float = 60
) -> Generator[Server]:
    """Start a server, wait until it takes requests, and stop it at the end."""
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if http else subprocess.PIPE,
            stdout=subprocess.DEVNULL if http else subprocess.PIPE,
            stderr=words,
            cwd=REPOSITORY,
            env={**os.environ, **(env or {})},
            bufsize=0,
        )
        try:
            link = _http_link(process, words, timeout) if http else _pipe_link(process)
            try:
                yield Server(process, link)
            finally:
                link.close()
        finally:
            _stop(process)


def opened(server: Server, until: float) -> None:
    """Open a conversation as a client of 2026-07-28 does, and wait until the server is ready.

    The first answer may come before that.
    """
    for _ in range(2):
        number = next_number()
        result(server.link.ask(Call("server/discover"), number, until), number)


def settled(server: Server) -> None:
    """Wait until a server has nothing to do any more of what it does after its start."""
    until = time.monotonic() + _SETTLE_SECONDS
    idle = 0
    used = server.cpu()
    while idle < 4 and time.monotonic() < until:
        time.sleep(0.5)
        before, used = used, server.cpu()
        idle = idle + 1 if used - before < 0.01 else 0


def _http_link(process: subprocess.Popen[bytes], words: IO[bytes], timeout: float) -> Link:
    until = time.monotonic() + timeout
    while True:
        # Read at a place of our own: the position of the open file is shared with the writer.
        written = os.pread(words.fileno(), 2**20, 0)
        if address := _ADDRESS.search(written):
            return HttpLink(int(address[1]), address[2].decode())
        if process.poll() is not None or time.monotonic() > until:
            raise StartError(written[-2000:].decode(errors="replace") or "no word from the server")
        time.sleep(0.02)


def _pipe_link(process: subprocess.Popen[bytes]) -> Link:
    assert process.stdin is not None and process.stdout is not None
    return PipeLink(os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno()))


def _stop(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # A thread may end meanwhile.
            for child in (task / "children").read_text("ascii").split():
                found += _family(int(child))
    return found


def _cpu_of(pid: int) -> float:
    # Linux numbers the CPU clock of process P as (~P << 3) | 2, which is what clock_getcpuclockid(3)
    # returns. Unlike /proc/P/stat it does not count in steps of 10 ms, and it keeps the time of threads
    # that have ended.
    return time.clock_gettime((~pid << 3) | 2)


def _resident_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
