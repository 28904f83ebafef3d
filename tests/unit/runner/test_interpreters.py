"""Which program runs which script, and whether the user that scripts run as can reach it."""

import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from skillwire.runner.sandbox.command import find_bubblewrap, found_interpreters, is_reachable

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of files are as on POSIX systems")

STRANGER = 65534
SUFFIXES = {".py", ".sh", ".js", ".mjs", ".cjs"}


@pytest.fixture
def public() -> Generator[Path]:
    """A folder that everybody can get to, unlike those of a test run."""
    with tempfile.TemporaryDirectory(prefix="skillwire-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if not all(parent.stat().st_mode & 0o001 for parent in folder.resolve().parents):
            pytest.skip("temporary files lie in a private folder here")
        yield folder


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_what_everybody_may_read_is_reachable(public: Path) -> None:
    assert is_reachable(program(public / "bin" / "python"), STRANGER)


def test_what_lies_in_a_private_folder_is_out_of_reach_for_another_user(public: Path) -> None:
    path = program(public / "home" / "bin" / "python")
    (public / "home").chmod(0o700)

    assert is_reachable(path, None)
    assert not is_reachable(path, STRANGER)


def test_a_file_that_is_private_itself_is_out_of_reach_for_another_user(public: Path) -> None:
    assert not is_reachable(program(public / "python", 0o750), STRANGER)


def test_a_link_is_as_reachable_as_what_it_leads_to(public: Path) -> None:
    hidden = program(public / "home" / "python")
    (public / "home").chmod(0o700)
    (public / "python").symlink_to(hidden)

    assert not is_reachable(public / "python", STRANGER)


@pytest.mark.parametrize("uid", [None, STRANGER])
def test_what_is_not_there_is_out_of_reach(public: Path, uid: int | None) -> None:
    (public / "loop").symlink_to(public / "loop")

    assert not is_reachable(public / "nothing", uid)
    assert not is_reachable(public / "loop", uid)


@pytest.mark.requirement("EXEC-15")
@pytest.mark.parametrize("uid", [None, STRANGER])
def test_interpreters_are_found_by_suffix_and_all_can_be_reached(uid: int | None) -> None:
    found = found_interpreters(uid)

    assert found.keys() <= SUFFIXES
    assert ".sh" in found
    for interpreter in found.values():
        assert is_reachable(interpreter.path, uid)
        assert all(is_reachable(tree, uid) for tree in interpreter.trees)


def test_the_python_of_this_program_comes_first_if_it_can_be_reached(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = program(public / "opt" / "bin" / "python3.12")
    monkeypatch.setattr(sys, "_base_executable", str(python))
    monkeypatch.setattr(sys, "base_prefix", str(public / "opt"))

    found = found_interpreters(STRANGER)[".py"]

    assert (found.path, found.trees) == (python.resolve(), ((public / "opt").resolve(),))


def test_another_python_is_taken_where_this_one_is_out_of_reach(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = program(public / "opt" / "bin" / "python3.12")
    (public / "opt").chmod(0o700)
    monkeypatch.setattr(sys, "_base_executable", str(python))
    monkeypatch.setattr(sys, "base_prefix", str(public / "opt"))

    found = found_interpreters(STRANGER).get(".py")

    assert found is None or (found.path != python.resolve() and found.trees == ())


def test_bubblewrap_never_comes_from_a_search_path(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = program(public / "bwrap")
    monkeypatch.setenv("PATH", str(public))
    monkeypatch.chdir(public)

    assert find_bubblewrap(None) in (Path("/usr/bin/bwrap"), Path("/usr/local/bin/bwrap"), None)
    assert find_bubblewrap(planted) == planted


def test_bubblewrap_has_to_be_a_program(public: Path) -> None:
    assert find_bubblewrap(public) is None
    assert find_bubblewrap(public / "nothing") is None
    assert find_bubblewrap(program(public / "bwrap", 0o644)) is None
