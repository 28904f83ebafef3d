"""Trusted folders: remembered with the user, bound to real paths, and nothing is trusted in doubt."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillwire.core.errors import SourceError
from skillwire.host.state.trust import FolderTrust


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "work" / "project"
    folder.mkdir(parents=True)
    return folder


def file_of(state: Path) -> Path:
    return state / "trusted-folders.json"


@pytest.mark.requirement("FS-04")
def test_nothing_is_trusted_before_the_user_says_so(state: Path, project: Path) -> None:
    assert not FolderTrust(state).is_trusted(project)
    assert not state.exists()


@pytest.mark.requirement("FS-04")
def test_trust_covers_a_folder_and_what_lies_inside_and_nothing_around_it(state: Path, project: Path) -> None:
    (project / "a" / "b").mkdir(parents=True)
    (project.parent / "project-2").mkdir()

    FolderTrust(state).trust(project)

    again = FolderTrust(state)
    assert again.folders() == (project,)
    assert again.is_trusted(project)
    assert again.is_trusted(project / "a" / "b")
    assert again.is_trusted(project / "not-yet-there")
    assert not again.is_trusted(project.parent)
    assert not again.is_trusted(project.parent / "project-2")
    assert not again.is_trusted(project / ".." / "project-2")


@pytest.mark.requirement("FS-04")
def test_a_link_does_not_borrow_the_trust_of_the_folder_it_lies_in(
    state: Path, project: Path, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (project / "inside").symlink_to(stranger)
    (stranger / "outside").symlink_to(project)

    trust = FolderTrust(state)
    trust.trust(project)

    assert not trust.is_trusted(project / "inside")
    assert trust.is_trusted(stranger / "outside")


def test_a_folder_that_is_a_link_is_trusted_by_its_real_path(
    state: Path, project: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(project)
    trust = FolderTrust(state)

    trust.trust(link)

    assert trust.folders() == (project,)
    link.unlink()
    link.symlink_to(project.parent)
    assert not trust.is_trusted(link)


def test_trust_ends_when_the_user_takes_it_back(state: Path, project: Path) -> None:
    (project / "a").mkdir()
    trust = FolderTrust(state)
    trust.trust(project)
    trust.trust(project / "a")
    trust.trust(project.parent.parent / "state")

    assert trust.distrust(project)
    assert not trust.distrust(project)

    assert trust.folders() == (state,)
    assert not trust.is_trusted(project / "a")


def test_only_a_folder_that_exists_can_be_trusted(state: Path, project: Path) -> None:
    (project / "file").write_text("x")

    for place in (project / "gone", project / "file"):
        with pytest.raises(SourceError):
            FolderTrust(state).trust(place)

    assert FolderTrust(state).folders() == ()


def test_the_file_is_the_users_alone(state: Path, project: Path) -> None:
    FolderTrust(state).trust(project)

    assert stat.S_IMODE(file_of(state).stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert str(project).encode() in file_of(state).read_bytes()


@pytest.mark.requirement("FS-04")
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_trusts_nothing(state: Path, project: Path, mode: int) -> None:
    trust = FolderTrust(state)
    trust.trust(project)

    file_of(state).chmod(mode)

    assert not trust.is_trusted(project)
    assert trust.folders() == ()


@pytest.mark.requirement("FS-04")
def test_a_file_that_is_a_link_trusts_nothing(state: Path, project: Path, tmp_path: Path) -> None:
    trust = FolderTrust(state)
    trust.trust(project)
    file_of(state).rename(tmp_path / "elsewhere.json")

    file_of(state).symlink_to(tmp_path / "elsewhere.json")

    assert not trust.is_trusted(project)


def test_a_fifo_in_its_place_trusts_nothing_and_stops_nobody(state: Path, project: Path) -> None:
    state.mkdir()
    os.mkfifo(file_of(state))

    assert not FolderTrust(state).is_trusted(project)


@pytest.mark.requirement("FS-04")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"version": 2, "folders": ["/"]}',
        b'{"version": 1}',
        b'{"version": 1, "folders": "/"}',
        b'{"version": 1, "folders": ["/", 7]}',
        b'{"version": 1, "folders": ["."]}',
        b'{"version": 1, "folders": ["/"]' + b" " * 2**20 + b"}",
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_broken_file_trusts_nothing_and_is_kept_when_it_is_replaced(
    state: Path, project: Path, content: bytes
) -> None:
    state.mkdir()
    file_of(state).write_bytes(content)
    trust = FolderTrust(state)
    assert not trust.is_trusted(project)

    trust.trust(project)

    assert trust.folders() == (project,)
    (kept,) = state.glob("trusted-folders.json.*")
    assert kept.read_bytes() == content


@pytest.mark.requirement("FS-04")
def test_a_folder_that_another_program_wrote_into_the_file_is_not_trusted(state: Path, project: Path) -> None:
    (project / "mine").mkdir()
    FolderTrust(state).trust(project / "mine")
    written = file_of(state).read_bytes()

    file_of(state).write_bytes(written.replace(b"/mine", b""))

    trust = FolderTrust(state)
    assert trust.folders() == ()
    assert trust.tampering is not None
    assert trust.tampering.code == "state-tampered"


def test_two_hosts_do_not_lose_each_others_answers(state: Path, project: Path) -> None:
    one, other = FolderTrust(state), FolderTrust(state)
    (project / "a").mkdir()
    (project / "b").mkdir()

    one.trust(project / "a")
    other.trust(project / "b")

    assert one.folders() == other.folders() == (project / "a", project / "b")


def test_a_state_that_cannot_be_written_is_one_clear_error(state: Path, project: Path) -> None:
    state.write_text("a file where the folder should be")

    with pytest.raises(SourceError):
        FolderTrust(state).trust(project)

    assert not FolderTrust(state).is_trusted(project)


def test_a_name_that_is_not_utf8_can_be_trusted(state: Path, project: Path) -> None:
    folder = project / os.fsdecode(b"caf\xe9")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes only names that are UTF-8")
    trust = FolderTrust(state)

    trust.trust(folder)

    assert trust.is_trusted(folder)
    assert trust.folders() == (folder,)


@settings(deadline=None)
@given(st.text(max_size=50))
def test_whatever_is_asked_about_is_trusted_or_not(text: str) -> None:
    assert FolderTrust(Path("/nonexistent")).is_trusted(Path(text)) is False
