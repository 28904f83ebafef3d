"""Runs the measurements and prints them beside their budgets: `python -m bench`."""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.corpus import generate

ROUNDS = 9
START_ROUNDS = 15
# A scan does not trust the times of files written within the last two seconds.
SETTLE = 2.5
FULL_FLOOR = "walk+read+sha256+C-YAML"
WALK_FLOOR = "walk+stat"


@dataclass(frozen=True, slots=True)
class Row:
    """One budget: what was measured, against what, and whether it holds."""

    what: str
    measured: str
    against: str
    ratio: float | None
    budget: str
    met: bool


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Measure skillwire's speed budgets.")
    parser.add_argument("--skills", type=int, default=10_000, help="how many skills to generate (10000)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="skillwire-bench-") as folder:
        root, cache = Path(folder, "skills"), Path(folder, "cache")
        print(f"generating {options.skills} skills ...", file=sys.stderr)
        generate(root, options.skills)
        time.sleep(SETTLE)
        # The measured processes find their modules compiled, as users do.
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(folder, "compiled"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        rows = [*scanning(root, cache), *editing(root, cache), *starting()]

    show(rows, options.skills)
    if options.json:
        results = {
            "skills": options.skills,
            "python": platform.python_version(),
            "rows": list(map(asdict, rows)),
        }
        options.json.write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    return 0 if all(row.met for row in rows) else 1


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


def ratio_row(what: str, ours: list[float], floor_name: str, floor: list[float], budget: float) -> Row:
    """Compare runs that took turns: the median of the ratios of neighbours, which share the noise."""
    ratio = median(mine / least for mine, least in zip(ours, floor, strict=True))
    measured, against = f"{median(ours):.2f} s", f"{floor_name} {median(floor):.2f} s"
    return Row(what, measured, against, ratio, f"{budget} x floor", ratio <= budget)


def limit_row(what: str, measured: float, unit: str, limit: float) -> Row:
    return Row(what, f"{measured:.0f} {unit}", "", None, f"{limit:.0f} {unit}", measured <= limit)


def show(rows: list[Row], skills: int) -> None:
    table = Table(
        title=f"Budgets at {skills} skills, {skills * 5} files (CPU time, medians of {ROUNDS} rounds)"
    )
    for column in ("what", "measured", "against", "ratio", "budget", ""):
        table.add_column(column, justify="right" if column in ("measured", "ratio") else "left")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        verdict = "[green]met[/]" if row.met else "[red]missed[/]"
        table.add_row(row.what, row.measured, row.against, ratio, row.budget, verdict)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    sys.exit(main())
