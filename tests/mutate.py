"""Break the source in one place at a time, and see whether a test of the broken rule fails.

`python tests/mutate.py [NAME…]` makes the edits of `tests/mutations.toml`, or those named; `--list` prints
them. Each edit is made in a copy of `src`, and only tests marked with one of its requirements are run, the
quick ones first. An edit that no such test notices has survived: the tests promise more than they show.
"""

import argparse
import compileall
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import requirements

ROOT = requirements.ROOT
SOURCE = ROOT / "src"
TABLE = ROOT / "tests" / "mutations.toml"

SIDE_BY_SIDE = 2
SECONDS = 240.0
CONTROL_SECONDS = 1200.0
TIERS = ("tests/unit/", "tests/integration/", "tests/")
"""Where to look for a test that fails, the quickest first; what an earlier tier has is not run again."""

_CHILD = "import skillwire; print(skillwire.__file__)"
_PYTEST = f"""
import subprocess, sys, pytest
{_CHILD}
if sys.argv[1] == "--child":
    print(subprocess.check_output([sys.executable, "-c", {_CHILD!r}], text=True), end="", flush=True)
sys.exit(pytest.main(sys.argv[2:]))
"""
_OPTIONS = (
    "-v",
    "-x",
    "--tb=no",
    "--no-summary",
    "-p",
    "no:cacheprovider",
    "-p",
    "anyio",
    "-p",
    "pytest_cov",
)
_BLAMED = re.compile(r"^(tests/\S+?\.py::\w+).* (?:FAILED|ERROR)", re.MULTILINE)
_PASSED, _FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Mutation:
    """One edit: `old`, which `file` has exactly once, becomes `new`, and that breaks `breaks`."""

    name: str
    file: str
    old: str
    new: str
    breaks: tuple[str, ...]
    what: str


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutation; `blamed` is the test that caught it."""

    name: str
    state: str
    seconds: float
    blamed: str = ""
    output: str = ""

    @property
    def is_caught(self) -> bool:
        return self.state == "caught"

    @property
    def is_passed(self) -> bool:
        return self.state == "passed"


def mutations(table: Path = TABLE) -> list[Mutation]:
    """Return every edit, in the order of the table."""
    rows: list[dict[str, Any]] = tomllib.loads(table.read_text("utf-8"))["edit"]
    return [Mutation(breaks=tuple(row.pop("breaks")), **row) for row in rows]


def mutated(mutation: Mutation, source: Path) -> str:
    """Return the text of the edited file.

    Raises:
        ValueError: The text to replace is not there exactly once, or the result is no Python.
    """
    text = (source / "skillwire" / mutation.file).read_text("utf-8")
    if text.count(mutation.old) != 1:
        raise ValueError(
            f"{mutation.name}: {mutation.file} has the old text {text.count(mutation.old)} times"
        )
    edited = text.replace(mutation.old, mutation.new)
    compile(edited, mutation.file, "exec", dont_inherit=True)
    return edited


def tests_for(mutation: Mutation, cited: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the tests marked with a requirement the mutation breaks, by tier; empty tiers are left out."""
    left = list(dict.fromkeys(test for identifier in mutation.breaks for test in cited.get(identifier, ())))
    tiers: list[list[str]] = []
    for tier in TIERS:
        tiers.append([test for test in left if test.startswith(tier)])
        left = [test for test in left if not test.startswith(tier)]
    return [tier for tier in tiers if tier]


def run(mutation: Mutation, cited: Mapping[str, Sequence[str]], compiled: Path) -> Result:
    """Make one edit in a copy of the source, and run the tests of what it breaks until one fails."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutate-") as name:
        folder = Path(name)
        source = shutil.copytree(compiled, folder / "src")
        target = source / "skillwire" / mutation.file
        target.write_text(mutated(mutation, source), "utf-8")
        output = ""
        for tests in tests_for(mutation, cited):
            code, output = _pytest(folder, source, tests)
            seconds = time.monotonic() - started
            if code is None:
                return Result(mutation.name, "timeout", seconds, output=output)
            if code == _FAILED and (blamed := _BLAMED.search(output)):
                return Result(mutation.name, "caught", seconds, blamed[1], output)
            if code != _PASSED:
                return Result(mutation.name, "error", seconds, output=output)
        return Result(mutation.name, "survived", time.monotonic() - started, output=output)


def run_control(tests: Sequence[str], compiled: Path) -> Result:
    """Run the tests that caught something on an unedited copy: one that fails there has caught nothing."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutate-") as name:
        code, output = _pytest(Path(name), compiled, tests, check_child=True)
    state = "passed" if code == _PASSED else "failed"
    blamed = _BLAMED.search(output)
    return Result("control", state, time.monotonic() - started, blamed[1] if blamed else "", output)


def _compiled(folder: Path) -> Path:
    """Copy the source and compile it, so that no run has to compile more than the edited file."""
    source = shutil.copytree(SOURCE, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(source, quiet=1)
    return source


def _pytest(
    folder: Path, source: Path, tests: Sequence[str], *, check_child: bool = False
) -> tuple[int | None, str]:
    """Run tests against a copy of the source; the exit code is None when that took too long.

    Raises:
        RuntimeError: The tests, or programs they would start, import something else than the copy.
    """
    words = ["--child" if check_child else "--alone", *_OPTIONS, f"--basetemp={folder / 'tmp'}", *tests]
    report = folder / "output"
    with report.open("wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-c", _PYTEST, *words],
            cwd=ROOT,
            env=_environment(folder, source),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(CONTROL_SECONDS if check_child else SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        code = None
    output = report.read_text("utf-8", "replace")
    imported = output.splitlines()[: 2 if check_child else 1]
    if not imported or any(line != str(source / "skillwire" / "__init__.py") for line in imported):
        raise RuntimeError(f"the copy in {source} is not what the tests import:\n{output[:2000]}")
    return code, output


def _environment(folder: Path, source: Path) -> dict[str, str]:
    """Let the copy be imported before the checkout, load few plugins, and compile tests only once."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **environment,
        "PYTHONPATH": str(source),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "examples"),
    }


def _print(result: Result, *, verbose: bool = False) -> None:
    print(f"{result.state:9} {result.name:44} {result.seconds:6.1f} s  {result.blamed}", flush=True)  # noqa: T201
    if verbose:
        print(result.output[-4000:], flush=True)  # noqa: T201


def run_all(chosen: Sequence[Mutation]) -> bool:
    """Run mutations, some side by side, and then the control; return whether each was caught."""
    cited = requirements.citations()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="mutate-") as name, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        compiled = _compiled(Path(name))
        for result in pool.map(partial(run, cited=cited, compiled=compiled), chosen):
            _print(result, verbose=not result.is_caught)
            results.append(result)
        caught = [result for result in results if result.is_caught]
        control = run_control(sorted({result.blamed for result in caught}), compiled)
    _print(control, verbose=not control.is_passed)
    for result in results:
        if not result.is_caught:
            print(f"not caught: {result.name} ({result.state})")  # noqa: T201
    print(f"{len(caught)} of {len(results)} mutations were caught")  # noqa: T201
    return control.is_passed and len(caught) == len(results)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these edits")
    parser.add_argument("--list", action="store_true", help="print every edit and end")
    arguments = parser.parse_args()
    known = {mutation.name: mutation for mutation in mutations()}
    if unknown := sorted(set(arguments.names) - known.keys()):
        parser.error(f"there is no edit called {', '.join(unknown)}")
    chosen = [known[name] for name in arguments.names] or list(known.values())
    if arguments.list:
        for mutation in chosen:
            print(f"{mutation.name:44} {', '.join(mutation.breaks):24} {mutation.what}")  # noqa: T201
        return 0
    return 0 if run_all(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
