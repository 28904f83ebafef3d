"""Looks for long: `python -m fuzz.long [--minutes N] [TARGET…]`. See `scripts/fuzz`."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fuzz.run import HERE
from fuzz.saving import save
from fuzz.test_fuzz import TARGETS, Campaign

HTTP = "http"
_FACTOR_PER_MINUTE = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Look for inputs that break a promise.")
    known = [*TARGETS, HTTP]
    told = f"one of {', '.join(known)}; all of them if none is named"
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=told)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long to run each target (5)")
    arguments = parser.parse_args()
    chosen: Sequence[str] = arguments.targets or known
    if unknown := set(chosen) - set(known):
        parser.error(f"there is no target {', '.join(sorted(unknown))}")
    targets = [name for name in chosen if name != HTTP]
    is_good = not targets or _fuzz(targets, seconds=round(60 * arguments.minutes))
    if HTTP in chosen:
        is_good = _ask(max(1, round(_FACTOR_PER_MINUTE * arguments.minutes))) and is_good
    return int(not is_good)


def _fuzz(targets: Sequence[str], *, seconds: int) -> bool:
    """Run targets; keep what they found on the way, and tell what broke."""
    is_good = True
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            command = [sys.executable, "-m", "fuzz.run", "--into", folder, "--seconds", str(seconds), target]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            problem = Campaign(place, done.stdout.decode("utf-8", "replace")).problem(target)
            if problem:
                is_good = False
                _say(f"{target}: broken\n{problem}")
            else:
                _say(f"{target}: nothing broke; {save(target, [place / target / 'found'])} inputs are new")
    return is_good


def _ask(factor: int) -> bool:
    """Ask a real server for so many times as much as a test does."""
    command = [sys.executable, "-m", "pytest", "-q", str(HERE / "test_http.py")]
    environment = {**os.environ, "SKILLWIRE_FUZZ_FACTOR": str(factor)}
    return subprocess.run(command, env=environment, check=False).returncode == 0


def _say(words: str) -> None:
    print(words, flush=True)  # noqa: T201 - this is a program


if __name__ == "__main__":
    sys.exit(main())
