"""`Places`: private folders, apart from everything a skill is found in and a tool can write to."""

from dataclasses import replace
from pathlib import Path

import pytest

from approving import foreign_folder, mode_of
from skillwire.host.model.errors import UnsafePlaceError
from skillwire.host.state.places import Storage


@pytest.fixture
def places(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "own" / "state", tmp_path / "own" / "cache")


def check_with(storage: Storage, kind: str, roots: list[Path]) -> None:
    """Check a storage beside folders where skills are discovered, or where tools may write."""
    if kind == "discovery":
        storage.check(roots)
    else:
        replace(storage, writable_roots=roots).check([])


def test_the_default_places_are_the_users(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    found = Storage()

    assert found.state.is_relative_to(empty_home)
    assert found.cache.is_relative_to(empty_home)
    assert found.state != found.cache
    assert found.audit.parent == found.state


def test_folders_are_made_for_this_user_only(places: Storage) -> None:
    places.prepare()
    places.prepare()

    assert [mode_of(places.state), mode_of(places.cache)] == [0o700, 0o700]


def test_a_folder_that_was_open_to_others_is_closed(places: Storage) -> None:
    places.state.mkdir(parents=True)
    places.state.chmod(0o777)

    places.prepare()

    assert mode_of(places.state) == 0o700


@pytest.mark.requirement("CACHE-04")
def test_a_place_that_is_a_link_is_refused(tmp_path: Path, places: Storage) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "elsewhere").mkdir()
    places.cache.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnsafePlaceError) as caught:
        places.prepare()

    assert caught.value.reference == str(places.cache)
    assert str(tmp_path) not in str(caught.value)


def test_a_place_that_is_a_file_is_refused(places: Storage) -> None:
    places.state.parent.mkdir()
    places.state.write_text("mine")

    with pytest.raises(UnsafePlaceError):
        places.prepare()

    assert places.state.read_text() == "mine"


def test_a_place_of_another_user_is_refused(tmp_path: Path, places: Storage) -> None:
    with pytest.raises(UnsafePlaceError):
        Storage(foreign_folder(tmp_path), places.cache).prepare()


@pytest.mark.requirement("CACHE-04")
def test_places_apart_from_all_roots_are_accepted_and_nothing_is_made(
    tmp_path: Path, places: Storage
) -> None:
    apart = replace(places, writable_roots=[tmp_path / "project", tmp_path / "own-project"])
    apart.check([tmp_path / "skills", tmp_path / "gone"])

    assert not places.state.exists()


@pytest.mark.requirement("CACHE-04")
@pytest.mark.parametrize("root", [".", "own", "own/cache", "own/cache/below", "own/state"])
@pytest.mark.parametrize("kind", ["discovery", "writable"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_place_that_overlaps_with_a_root_is_refused(
    tmp_path: Path, places: Storage, root: str, kind: str, exists: bool
) -> None:
    if exists:
        places.prepare()
        (tmp_path / root).mkdir(exist_ok=True)
    roots = [tmp_path / "apart", tmp_path / root]

    with pytest.raises(UnsafePlaceError):
        check_with(places, kind, roots)


@pytest.mark.requirement("CACHE-04")
@pytest.mark.parametrize("kind", ["discovery", "writable"])
def test_a_root_that_leads_to_a_place_through_a_link_is_refused(
    tmp_path: Path, places: Storage, kind: str
) -> None:
    places.prepare()
    (tmp_path / "skills").symlink_to(tmp_path / "own")
    roots = [tmp_path / "skills"]

    with pytest.raises(UnsafePlaceError):
        check_with(places, kind, roots)


@pytest.mark.requirement("CACHE-04")
def test_a_place_that_is_reached_through_a_link_in_its_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "own").symlink_to(tmp_path / "project")

    with pytest.raises(UnsafePlaceError):
        check_with(
            Storage(tmp_path / "own" / "state", tmp_path / "cache"), "writable", [tmp_path / "project"]
        )


@pytest.mark.requirement("CACHE-04")
def test_a_skill_that_links_to_the_cache_is_refused(tmp_path: Path, places: Storage) -> None:
    places.prepare()
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "notes").symlink_to(places.cache)

    with pytest.raises(UnsafePlaceError):
        places.check([tmp_path / "skills"])


def test_a_skill_that_links_elsewhere_is_fine(tmp_path: Path, places: Storage) -> None:
    places.prepare()
    (tmp_path / "skills").mkdir()
    (tmp_path / "source").mkdir()
    (tmp_path / "skills" / "notes").symlink_to(tmp_path / "source")

    places.check([tmp_path / "skills"])


def test_state_and_cache_are_two_folders(tmp_path: Path) -> None:
    with pytest.raises(UnsafePlaceError):
        Storage(tmp_path / "own", tmp_path / "own").check([])

    Storage(tmp_path / "own", tmp_path / "own" / "cache").check([])
