"""The budget of the host: what it costs to know all skills of a server, from its listing alone."""

import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.candidates import ours
from bench.links import HttpLink
from bench.listing import Listed, Target
from bench.messages import WrongAnswerError
from bench.processes import StartError, opened, settled, started
from bench.rows import Row, median_ratio

ROUNDS = 9
BUDGET_SECONDS = 0.5
FLOOR = "raw reader + orjson"
TASKS = {"listing": "list_skills, the SDK's client", "registry": "Connection and Registry"}
START_TIMEOUT = 300
RUN_PATIENCE = 300


def measure_host(root: Path, skills: int, cache: Path) -> list[Row]:
    """Measure each way of listing in turns with its floor, every run in a process of its own."""
    rows: list[Row] = []
    for transport in ("http", "stdio"):
        with served(root, transport, cache) as target:
            runs: dict[str, list[Listed]] = {task: [] for task in ("floor", *TASKS)}
            for _ in range(ROUNDS):
                for task, results in runs.items():
                    results.append(run(task, target, skills))
            rows += [row for task in TASKS for row in compared(transport, task, runs)]
    return rows


def compared(transport: str, task: str, runs: dict[str, list[Listed]]) -> list[Row]:
    """Put the first listing of a process, and a later one, beside the floor and the budget."""
    ours, floor = runs[task], runs["floor"]
    return [
        _row(
            f"{transport}: {TASKS[task]}",
            [listed.first for listed in ours],
            [listed.first for listed in floor],
        ),
        _row(
            f"{transport}: the same, again",
            [listed.again for listed in ours],
            [listed.again for listed in floor],
        ),
    ]


@contextmanager
def served(root: Path, transport: str, cache: Path) -> Generator[Target]:
    """Say how a process reaches the server: at an address, or by starting one, with an index that is warm."""
    environment = {"XDG_CACHE_HOME": str(cache)}
    http = transport == "http"
    with started(ours(root, transport), http=http, env=environment) as server:
        opened(server, time.monotonic() + START_TIMEOUT)
        settled(server)
        if isinstance(server.link, HttpLink):
            yield Target(url=server.link.url)
            return
    yield Target(command=tuple(ours(root, transport)), env=environment)


def run(task: str, target: Target, skills: int) -> Listed:
    """List everything twice in a process of its own, and return what that cost it."""
    command = [sys.executable, "-m", "bench.listing", task, target.to_json()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_PATIENCE)
    if done.returncode != 0:
        raise StartError(done.stderr[-2000:])
    listed = Listed(**json.loads(done.stdout))
    if listed.count != skills:
        raise WrongAnswerError(f"{task} saw {listed.count} of {skills} skills")
    return listed


def _row(what: str, ours: list[float], floor: list[float]) -> Row:
    measured = median(ours)
    return Row(
        what,
        f"{measured * 1000:.0f} ms",
        f"{FLOOR} {median(floor) * 1000:.0f} ms",
        median_ratio(ours, floor),
        f"{BUDGET_SECONDS * 1000:.0f} ms",
        measured <= BUDGET_SECONDS,
    )
