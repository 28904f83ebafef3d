"""What the tests of sources share: a folder for skills, a patient clock, and a note of what is read."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from folders import NotedReads
from skillwire.sources.directory import scan
from skillwire.sources.directory.walk import FolderReader


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    folder.mkdir()
    return folder


@pytest.fixture
def patient_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files count as old as soon as they are written, as if two seconds had gone by."""
    monkeypatch.setattr(scan, "RACY_NS", 0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> NotedReads:
    @contextmanager
    def noting() -> Generator[list[str]]:
        noted: list[str] = []
        read = FolderReader.read

        def read_and_note(
            reader: FolderReader, folder: str, name: str, size: int
        ) -> tuple[bytes, os.stat_result]:
            noted.append(f"{folder}/{name}" if folder else name)
            return read(reader, folder, name, size)

        with monkeypatch.context() as patch:
            patch.setattr(FolderReader, "read", read_and_note)
            yield noted

    return noting
