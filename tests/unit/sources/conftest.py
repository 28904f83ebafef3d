"""What the tests of sources share: a folder for skills, and a clock that lets records be trusted."""

from pathlib import Path

import pytest

from skillwire.sources import scan


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    folder.mkdir()
    return folder


@pytest.fixture
def patient_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files count as old as soon as they are written, as if two seconds had gone by."""
    monkeypatch.setattr(scan, "RACY_NS", 0)
