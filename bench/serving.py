"""The budgets of the server: hot requests against raw floors, a full listing, memory, an edit."""

import time
from pathlib import Path
from statistics import median

from bench.candidates import OURS, PLAIN, Candidate
from bench.corpus import CASES, place_of
from bench.measuring import TIMES, ask, cold, edit, hot, list_all
from bench.messages import WrongAnswerError
from bench.processes import Server, opened, settled, started
from bench.rows import Row, limit_row, ratio_row

ROUNDS = 9
EDITS = 5
FLOORS = {"http": "raw ASGI", "stdio": "raw pipe loop"}
BUDGETS = {"http": 1.5, "stdio": 2.5}
COLD_FLOORS = {"http": "ASGI: open, hash", "stdio": "pipe loop: open, hash"}
COLD_BUDGET = 3.0
COLD_SKILLS = 1_000
COLD_TURNS = 25
TIMEOUT = 60
# Started without an index, a server reads and hashes every file before it answers.
START_TIMEOUT = 300


def measure_server(root: Path, skills: int, cache: Path) -> list[Row]:
    rows: list[Row] = []
    _compile_modules(cache)
    for transport in ("http", "stdio"):
        env = {"XDG_CACHE_HOME": str(cache)}
        with started(OURS.command(root, transport), http=transport == "http", env=env) as server:
            opened(server, time.monotonic() + START_TIMEOUT)
            _same_as_plain(server, root, transport, env)
            settled(server)
            rows += _whole_catalog(server, transport, skills)
            rows += _hot_requests(server, OURS, transport)
            rows += _memory(server, transport)
            rows += _editing(server, transport, root)
    return rows


def _compile_modules(cache: Path) -> None:
    """Run a server once: one that compiles its modules needs 6 MiB more, which users pay at most once."""
    empty = cache.with_name("empty")
    empty.mkdir(exist_ok=True)
    env = {"XDG_CACHE_HOME": str(cache)}
    for transport in ("http", "stdio"):
        with started(OURS.command(empty, transport), http=transport == "http", env=env) as server:
            opened(server, time.monotonic() + START_TIMEOUT)


def measure_cold_reads(root: Path, skills: int, cache: Path) -> list[Row]:
    """Measure reads of files that nobody read before, spread over all skills."""
    rows: list[Row] = []
    turns = min(COLD_TURNS, skills // TIMES)
    numbers = range(0, skills, skills // (turns * TIMES))[: turns * TIMES]
    files = [f"{place_of(number, CASES)}/references/part-1.md" for number in numbers]
    for transport in ("http", "stdio"):
        env = {"XDG_CACHE_HOME": str(cache)}
        with started(OURS.command(root, transport), http=transport == "http", env=env) as server:
            opened(server, time.monotonic() + START_TIMEOUT)
            settled(server)
            runs = cold(server, transport, root, files, TIMEOUT)
        what = f"{transport}: cold 2 KB resources/read, {skills} skills"
        rows.append(ratio_row(what, runs.server, COLD_FLOORS[transport], runs.floor, COLD_BUDGET, "us"))
    return rows


def _same_as_plain(server: Server, root: Path, transport: str, env: dict[str, str]) -> None:
    """Check that the fast path and the plain SDK path say the same."""
    plain_env = {**env, **dict(PLAIN.env)}
    with started(PLAIN.command(root, transport), http=transport == "http", env=plain_env) as plain:
        opened(plain, time.monotonic() + START_TIMEOUT)
        for call in (OURS.read, OURS.page):
            if ask(server, call, TIMEOUT) != ask(plain, call, TIMEOUT):
                raise WrongAnswerError(f"{call.method} over {transport} differs from the plain SDK path")


def _whole_catalog(server: Server, transport: str, skills: int) -> list[Row]:
    first, *again = (list_all(server, OURS, skills, TIMEOUT).cpu for _ in range(4))
    return [
        limit_row(f"{transport}: listing all, server CPU, the first time", first * 1000, "ms", 100),
        limit_row(f"{transport}: the same, again", median(again) * 1000, "ms", 100),
    ]


def _hot_requests(server: Server, candidate: Candidate, transport: str) -> list[Row]:
    rows: list[Row] = []
    for what, call in (("4 KB resources/read", candidate.read), ("skills/list, a full page", candidate.page)):
        runs = hot(server, call, transport, rounds=ROUNDS, timeout=TIMEOUT)
        what = f"{transport}: hot {what}"
        rows.append(ratio_row(what, runs.server, FLOORS[transport], runs.floor, BUDGETS[transport], "us"))
    return rows


def _memory(server: Server, transport: str) -> list[Row]:
    return [limit_row(f"{transport}: memory after all this", server.resident_mib(), "MiB", 150)]


def _editing(server: Server, transport: str, root: Path) -> list[Row]:
    runs = [edit(server, OURS, root, TIMEOUT) for _ in range(EDITS)]
    wall, cpu = median(run.wall for run in runs), median(run.cpu for run in runs)
    return [
        limit_row(f"{transport}: one edit visible in list, get and read, wall", wall * 1000, "ms", 1000),
        limit_row(f"{transport}: the same, server CPU", cpu * 1000, "ms", 50),
    ]
