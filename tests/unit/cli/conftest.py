"""What the tests of the command line share: a way to run it, and a folder to run it in."""

from pathlib import Path

import pytest

from commands import Command, Outcome, as_words
from skillwire.cli.app import run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def skillwire(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*args: str | Path) -> Outcome:
        capsys.readouterr()
        code = run(as_words(args))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
