"""The budgets of reading folders: scanning, noticing an edit, memory, and the start of a process."""

import json
import resource
import subprocess
import sys
from pathlib import Path

from bench.rows import Row, limit_row, ratio_row

ROUNDS = 9
START_ROUNDS = 15
FULL_FLOOR = "walk+read+sha256+C-YAML"
WALK_FLOOR = "walk+stat"


def measure_source(root: Path, cache: Path) -> list[Row]:
    return [*scanning(root, cache), *editing(root, cache), *starting()]


def scanning(root: Path, cache: Path) -> list[Row]:
    seconds: dict[str, list[float]] = {}
    run("warm", root, cache)  # Writes the index that the later rounds find.
    for _ in range(ROUNDS):
        for task in ("floor_full", "cold", "floor_walk", "warm"):
            seconds.setdefault(task, []).append(run(task, root, cache)["cpu"])
    return [
        ratio_row(
            "cold start to first full listing", seconds["cold"], FULL_FLOOR, seconds["floor_full"], 1.5
        ),
        ratio_row(
            "warm restart to first full listing", seconds["warm"], WALK_FLOOR, seconds["floor_walk"], 2.0
        ),
    ]


def editing(root: Path, cache: Path) -> list[Row]:
    edit = run("edit", root, cache)
    held = run("memory", root, cache)["rss_mib"]
    return [
        limit_row("one edit visible in read, get and list, wall", edit["wall"] * 1000, "ms", 1000),
        limit_row("the same, CPU", edit["cpu"] * 1000, "ms", 50),
        limit_row("memory with the folder open and listed", held, "MiB", 150),
    ]


def starting() -> list[Row]:
    bare = start_cpu("-c", "pass")
    front = start_cpu("-c", "import skillwire")
    help_page = start_cpu("-m", "skillwire", "--help")
    return [
        start_row("import skillwire, CPU beyond a bare interpreter", front - bare, bare, 60),
        start_row("skillwire --help, CPU in all", help_page, bare, 150),
    ]


def start_row(what: str, cpu: float, bare: float, limit: float) -> Row:
    against = f"bare interpreter {bare:.0f} ms"
    return Row(what, f"{cpu:.0f} ms", against, cpu / bare, f"{limit:.0f} ms", cpu <= limit)


def run(task: str, root: Path, cache: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.worker", task, str(root), str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return json.loads(done.stdout)


def start_cpu(*arguments: str) -> float:
    """Return the CPU milliseconds of one process from start to end, the best of several."""
    best = float("inf")
    for _ in range(START_ROUNDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best * 1000
