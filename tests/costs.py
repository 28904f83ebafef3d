"""What a run cost: seconds of each file, and how many tests it left to the proof tier."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

MARK = "proof"
SHOWN = 10
_TICKS = os.sysconf("SC_CLK_TCK")


class Costs:
    """Counts seconds in the processes that run tests, and adds them up in the one that reports."""

    def __init__(self, *, is_proof: bool) -> None:
        self._is_proof = is_proof
        self._spent: list[tuple[str, float, float]] = []
        self._left = 0
        self._since: tuple[float, float] | None = None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave tests marked with `proof` to the tier of that name."""
        left = [] if self._is_proof else [item for item in items if item.get_closest_marker(MARK)]
        self._left = len(left)
        if left:
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if not item.get_closest_marker(MARK)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Count from the first test of a file on."""
        self._since = self._since or (_cpu_seconds(), time.monotonic())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Count up to the last test of a file, while what its fixtures started still runs."""
        if self._since is not None and (nextitem is None or nextitem.path != item.path):
            cpu, wall = self._since
            file = item.nodeid.partition("::")[0]
            self._spent.append((file, _cpu_seconds() - cpu, time.monotonic() - wall))
            self._since = None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["costs"] = [self._spent, self._left]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker of pytest-xdist counted; each of them collects, and leaves, the same tests."""
        spent, left = getattr(node, "workeroutput", {}).get("costs", ([], 0))
        self._spent += spent
        self._left = max(self._left, left)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left:
            terminalreporter.write_line(f"{self._left} tests are left to `scripts/test proof`")
        files: dict[str, tuple[float, float]] = {}
        for file, cpu, wall in self._spent:
            before = files.get(file, (0.0, 0.0))
            files[file] = (before[0] + cpu, before[1] + wall)
        if len(files) > SHOWN:
            total = sum(cpu for cpu, _ in files.values())
            terminalreporter.write_line(f"{total:.0f} s of CPU; most of it, and wall time, in")
            for file in sorted(files, key=lambda file: files[file], reverse=True)[:SHOWN]:
                terminalreporter.write_line("{:7.1f} {:7.1f}  {}".format(*files[file], file))


def _cpu_seconds() -> float:
    """Return what this process has used, with every process below it, ended or not."""
    spent = os.times()
    return sum(spent[:4]) + sum(map(_spent_below, _children(os.getpid())))


def _spent_below(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS + sum(map(_spent_below, _children(process)))


def _children(process: int) -> list[int]:
    try:
        tasks = [*Path(f"/proc/{process}/task").iterdir()]
        return [int(child) for task in tasks for child in (task / "children").read_text("utf-8").split()]
    except OSError:
        return []
