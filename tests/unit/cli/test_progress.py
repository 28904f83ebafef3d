"""The bar on the terminal: late, on standard error, and gone at the end."""

import threading
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress, TaskID

from skillwire.cli import command as output
from skillwire.cli.command import Output, ProgressMeter, progress

SHOW_CURSOR = "\x1b[?25h"


class Terminal(StringIO):
    """A terminal that remembers all that was written, and tells when a certain text was."""

    def __init__(self, awaited: str = "") -> None:
        super().__init__()
        self.written = threading.Event()
        self._awaited = awaited

    def write(self, text: str) -> int:
        if self._awaited in text:
            self.written.set()
        return super().write(text)


class Screen(Output):
    """An answer whose words go to such a terminal, if to any."""

    def __init__(self, terminal: Terminal | None) -> None:
        super().__init__("test")
        self._shown = terminal and Console(file=terminal, force_terminal=True, width=80, color_system=None)

    @property
    def terminal(self) -> Console | None:
        return self._shown


def test_a_quick_job_shows_nothing() -> None:
    terminal = Terminal()

    with progress(Screen(terminal), "reading") as meter:
        meter.show("reading", 1, 2)

    assert "reading" not in terminal.getvalue()


def test_a_long_job_shows_how_far_it_is_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SHOW_AFTER", 0)
    terminal = Terminal("reading: 1,500 of 3,000")

    with progress(Screen(terminal), "reading") as meter:
        meter.show("reading", 1500, 3000)
        shown = terminal.written.wait(30)

    assert shown
    assert SHOW_CURSOR in terminal.getvalue()


def test_a_failure_ends_the_bar_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SHOW_AFTER", 0)
    terminal = Terminal("reading")

    with pytest.raises(KeyboardInterrupt), progress(Screen(terminal), "reading"):
        terminal.written.wait(30)
        raise KeyboardInterrupt

    assert SHOW_CURSOR in terminal.getvalue()


def test_steps_that_follow_each_other_quickly_are_not_all_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 0.05, 0.2])
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    drawn: list[str] = []

    class Bar(Progress):
        def update(self, *_args: object, description: str | None = None, **_options: object) -> None:
            drawn.append(description or "")

    meter = ProgressMeter(Bar(disable=True), TaskID(0))
    for step in (1, 2, 3):
        meter.show("reading", step)

    assert drawn == ["reading: 1", "reading: 3"]


def test_without_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(Screen(None), "reading") as meter:
        meter.show("reading", 1)

    assert capsys.readouterr() == ("", "")
