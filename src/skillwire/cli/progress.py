"""A sign of life on the terminal while something takes long."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Timer

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from skillwire.cli.answer import Answer

PATIENCE = 0.5
"""Seconds before anything is shown: what ends sooner needs no bar."""

_REFRESH = 0.1


class Meter:
    """Tells how far a long job has come; without a terminal it tells nobody."""

    def __init__(self, bar: Progress | None = None, task: TaskID | None = None) -> None:
        self._bar = bar
        self._task = task
        self._next = 0.0

    def show(self, doing: str, done: int, total: int | None = None) -> None:
        """Say what is being done, and how much of it is; cheap enough for every step."""
        if self._bar is None or self._task is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + _REFRESH
        amount = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        self._bar.update(self._task, description=f"{doing}: {amount}", completed=done, total=total)


@contextmanager
def progress(answer: Answer, doing: str) -> Generator[Meter]:
    """Show a bar while the block runs, once it has run for half a second, and remove it at the end."""
    if answer.terminal is None:
        yield Meter()
        return
    columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"))
    bar = Progress(*columns, console=answer.terminal, transient=True)
    task = bar.add_task(doing, total=None)
    timer = Timer(PATIENCE, bar.start)
    timer.start()
    try:
        yield Meter(bar, task)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
