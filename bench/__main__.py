"""Runs the measurements and prints them beside their budgets: `python -m bench`."""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from bench.catalog import SIZES as CATALOG_SIZES
from bench.catalog import measure_catalogs
from bench.catalog_search import measure_catalog_search
from bench.corpus import generate
from bench.host import measure_host
from bench.large import MANY, measure_large
from bench.peers import SIZES, ComparedServer, measure_peers, show_peers
from bench.processes import can_measure
from bench.rendering import measure_rendering
from bench.rows import Row, show
from bench.runner import measure_runner
from bench.search import measure_search
from bench.serving import COLD_SKILLS, measure_cold_reads, measure_server
from bench.source import measure_source
from bench.start import FEW, measure_bridge, measure_start

BUDGETS = ("source", "start", "server", "host", "rendering", "search", "runner")
SECTIONS = (*BUDGETS, "peers", "large", "catalog", "catalog-search")
# A scan does not trust the times of files written within the last two seconds.
SETTLE = 2.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Measure skillwire's speed budgets.")
    parser.add_argument(
        "--only",
        choices=SECTIONS,
        action="append",
        help="measure this (all but peers, large and the catalogs); may be repeated",
    )
    parser.add_argument(
        "--skills", type=int, help="how many skills (10000; for the peers 100 and 1000 too; for large 100000)"
    )
    parser.add_argument("--corpus", type=Path, help="a folder with more skills that the search must find")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    sections: list[str] = options.only or list(BUDGETS)
    if not can_measure():
        print("servers and the runner are measured on Linux only", file=sys.stderr)
        sections = [section for section in sections if section in ("source", "rendering", "search")]

    skills: int = options.skills or SIZES[-1]
    sizes = (skills,) if options.skills else SIZES
    with tempfile.TemporaryDirectory(prefix="skillwire-bench-") as name:
        folder = Path(name)
        # The measured processes find their modules compiled, as users do.
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        rows: list[Row] = []
        peers: list[ComparedServer] = []
        if "source" in sections:
            rows += judged("source", skills, measure_source(corpus(folder, skills), folder / "cache"))
        if "start" in sections:
            for size in (FEW, skills):
                rows += judged(
                    "start", size, measure_start(corpus(folder, size), size, folder / "served"), "wall time"
                )
            rows += judged("start", 0, measure_bridge(folder / "bridged"), "wall time")
        if "server" in sections:
            rows += judged(
                "server", skills, measure_server(corpus(folder, skills), skills, folder / "served")
            )
            for size in sorted({min(COLD_SKILLS, skills), skills}):
                cold = measure_cold_reads(corpus(folder, size), size, folder / f"served-{size}")
                rows += judged("server", size, cold)
        if "host" in sections:
            rows += judged("host", skills, measure_host(corpus(folder, skills), skills, folder / "served"))
        if "rendering" in sections:
            rows += judged("rendering", skills, measure_rendering(skills))
        if "search" in sections:
            rows += judged("search", skills, measure_search(skills, options.corpus))
        if "runner" in sections:
            rows += measure_runner()
        if "peers" in sections:
            peers = [peer for size in sizes for peer in measure_peers(corpus(folder, size), size)]
            show_peers(peers)

        if "large" in sections:
            rows += measure_large(folder / "large", options.skills or MANY)
        if "catalog-search" in sections:
            measured = measure_catalog_search((options.skills,) if options.skills else CATALOG_SIZES)
            show("Budgets of the search of a catalog", measured)
            rows += measured

        if "catalog" in sections:
            catalog_sizes = [options.skills] if options.skills else CATALOG_SIZES
            rows += measure_catalogs(folder / "catalogs", catalog_sizes)

    if options.json:
        write_json(options.json, skills, rows, peers)
    return 0 if all(row.met for row in rows) else 1


def corpus(folder: Path, skills: int) -> Path:
    """Return a folder with so many skills, the same one each time."""
    root = folder / f"skills-{skills}"
    if not root.exists():
        print(f"generating {skills} skills ...", file=sys.stderr)
        generate(root, skills)
        time.sleep(SETTLE)
    return root


def judged(section: str, skills: int, rows: list[Row], clock: str = "CPU time") -> list[Row]:
    show(f"Budgets of the {section} at {skills} skills, {skills * 5} files (medians, {clock})", rows)
    return rows


def write_json(path: Path, skills: int, rows: list[Row], peers: list[ComparedServer]) -> None:
    results = {
        "skills": skills,
        "python": platform.python_version(),
        "rows": list(map(asdict, rows)),
        "peers": list(map(asdict, peers)),
    }
    path.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
