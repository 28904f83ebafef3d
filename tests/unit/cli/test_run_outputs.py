"""Keeping what a script left: every name is a stranger's, and nothing lands outside of the folder."""

import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import names_in
from skillwire.cli.command import AlreadyExistsError, MisuseError, OutputError
from skillwire.cli.run_output import refusals_of, require_empty, save_files
from skillwire.runner import OutputFile

HOSTILE = [
    "",
    "/etc/passwd",
    "//server/share",
    "..",
    "../up",
    "a/../../up",
    "a/..",
    ".",
    "./a",
    "a//b",
    "a/",
    "a\\b",
    "..\\up",
    "c:evil",
    "file:stream",
    "nul",
    "CON.txt",
    "a/Lpt1",
    "trailing.",
    "trailing ",
    ".bashrc",
    ".git/config",
    "a/.hidden",
    "a\0b",
    "a\nb",
    "a\x1b[31mb",
    "a\u202egpj.exe",
    "a\u200bb",
    "\ud800",
    "what?",
    "all*",
    "a|b",
    '"a"',
    "<a>",
    "x" * 256,
    "/".join(["deep"] * 300),
]
ODD = "abAB./\\:~ \0\n\x1b\u202e\u0130é*?-_"


def files(*paths: str) -> list[OutputFile]:
    return [OutputFile(path, path.encode("utf-8", "replace")) for path in paths]


def all_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.requirement("EXEC-17")
def test_files_land_in_a_new_folder_private_and_not_executable(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "out"

    kept = save_files(folder, files("report.md", "charts/one.svg", "charts/two.svg"))

    assert (kept.folder, kept.refused) == (folder, ())
    assert kept.paths == ("report.md", "charts/one.svg", "charts/two.svg")
    assert all_files(folder) == set(kept.paths)
    assert (folder / "charts" / "one.svg").read_bytes() == b"charts/one.svg"
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert names_in(tmp_path) == ["a"], "nothing is left beside it"


@pytest.mark.requirement("EXEC-17")
@pytest.mark.parametrize("path", HOSTILE, ids=ascii)
def test_a_hostile_name_is_refused_and_costs_only_itself(tmp_path: Path, path: str) -> None:
    kept = save_files(tmp_path / "out", files(path, "good.txt"))

    assert [skipped.path for skipped in kept.refused] == [path]
    assert kept.refused[0].reason
    assert all_files(tmp_path) == {"out/good.txt"}


@pytest.mark.requirement("EXEC-17")
@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(st.sampled_from(ODD), max_size=12) | st.text(max_size=12), max_size=6))
def test_what_is_not_refused_stays_inside_on_every_system(paths: list[str]) -> None:
    refused = refusals_of(paths)

    for path in paths:
        if path in refused:
            continue
        for pure in (PurePosixPath(path), PureWindowsPath(path)):
            assert not pure.is_absolute() and not pure.drive and not pure.root
            assert ".." not in pure.parts
            assert pure.as_posix() == path, "it means the same everywhere"


@pytest.mark.requirement("EXEC-17")
@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.sampled_from(ODD), max_size=8), max_size=5, unique=True))
def test_whatever_the_names_are_nothing_appears_outside(paths: list[str]) -> None:
    with TemporaryDirectory() as folder:
        world = Path(folder)
        kept = save_files(world / "out", files(*paths))

        assert names_in(world) == ["out"]
        assert all_files(world / "out") == set(kept.paths)
    assert {*kept.paths, *(skipped.path for skipped in kept.refused)} == set(paths)


def test_of_names_that_some_disk_takes_for_one_the_first_is_kept(tmp_path: Path) -> None:
    kept = save_files(tmp_path / "out", files("Report.md", "report.md", "caf\u00e9", "cafe\u0301"))

    assert kept.paths == ("Report.md", "caf\u00e9")
    assert [skipped.path for skipped in kept.refused] == ["report.md", "cafe\u0301"]


def test_a_file_whose_name_is_that_of_a_folder_is_refused(tmp_path: Path) -> None:
    kept = save_files(tmp_path / "out", files("a", "A/b"))

    assert (kept.paths, [skipped.path for skipped in kept.refused]) == (("A/b",), ["a"])


def test_an_empty_folder_may_be_there_and_a_full_one_not(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    save_files(out, files("one"))

    with pytest.raises(AlreadyExistsError, match="not empty"):
        save_files(out, files("two"))

    assert all_files(tmp_path) == {"out/one"}


def test_the_folder_at_hand_and_a_file_are_no_folder_to_keep_things_in(here: Path) -> None:
    (here / "file").write_text("mine")

    with pytest.raises(AlreadyExistsError, match="not a folder"):
        require_empty(Path("file"))
    (here / "file").unlink()
    with pytest.raises(MisuseError, match="the current folder"):
        require_empty(Path())


def test_a_link_to_a_folder_leads_to_the_folder_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    save_files(tmp_path / "link", files("one"))

    assert (tmp_path / "link").is_symlink()
    assert all_files(tmp_path / "real") == {"one"}


def test_a_run_without_files_leaves_an_empty_folder(tmp_path: Path) -> None:
    save_files(tmp_path / "out", [])

    assert names_in(tmp_path / "out") == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no /proc")
def test_a_place_nothing_can_be_written_to_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    with pytest.raises(OutputError, match="cannot be written"):
        save_files(tmp_path / "file" / "out", files("one"))

    assert names_in(tmp_path) == ["file"]
