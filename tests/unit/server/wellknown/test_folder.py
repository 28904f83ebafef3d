"""A web site as files: what is written, what is refused, and what a reader can never see."""

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from commands import names_in
from skillwire.server.wellknown import folder as folder_module
from skillwire.server.wellknown.folder import ForeignFolderError, SiteFolder, SiteFolderError
from skillwire.wire.wellknown import SCHEMA


def path_of(data: bytes, name: str = "SKILL.md") -> str:
    return f"{hashlib.sha256(data).hexdigest()}/{name}"


def index_of(*contents: bytes) -> bytes:
    skills = [
        {
            "name": f"s{number}",
            "type": "skill-md",
            "description": "Use.",
            "url": path_of(content),
            "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
        }
        for number, content in enumerate(contents)
    ]
    return json.dumps({"$schema": SCHEMA, "skills": skills}).encode()


def write(root: Path, *contents: bytes) -> None:
    with SiteFolder(root) as folder:
        for content in contents:
            if not folder.has(path_of(content)):
                folder.add(path_of(content), content)
        folder.publish(index_of(*contents))


def files_in(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


HOME = ".well-known/agent-skills"


@pytest.mark.requirement("DISC-14")
def test_a_site_is_written_with_nothing_else_left_behind(tmp_path: Path) -> None:
    root = tmp_path / "new" / "site"

    write(root, b"one", b"two")

    assert files_in(root) == {
        f"{HOME}/index.json": index_of(b"one", b"two"),
        f"{HOME}/{path_of(b'one')}": b"one",
        f"{HOME}/{path_of(b'two')}": b"two",
    }
    assert names_in(root / ".well-known") == ["agent-skills"]


def test_earlier_artifacts_stay_until_they_are_removed_by_name(tmp_path: Path) -> None:
    write(tmp_path, b"one", b"two")
    write(tmp_path, b"two", b"three")

    with SiteFolder(tmp_path) as folder:
        others = folder.other_artifacts([path_of(b"two"), path_of(b"three")])
        assert others == [path_of(b"one").partition("/")[0]]
        assert folder.has(path_of(b"one"))
        folder.remove(others[0])

    assert sorted(files_in(tmp_path).values()) == sorted([b"two", b"three", index_of(b"two", b"three")])


def test_a_writer_that_fails_before_the_index_leaves_the_earlier_site(tmp_path: Path) -> None:
    write(tmp_path, b"one")
    before = files_in(tmp_path)

    with pytest.raises(RuntimeError), SiteFolder(tmp_path) as folder:
        folder.add(path_of(b"two"), b"two")
        assert files_in(tmp_path)[f"{HOME}/index.json"] == index_of(b"one")
        raise RuntimeError

    assert files_in(tmp_path) == before
    assert names_in(tmp_path / ".well-known") == ["agent-skills"]


def test_a_damaged_artifact_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, b"one")
    file = tmp_path / HOME / path_of(b"one")
    file.write_bytes(b"on")

    write(tmp_path, b"one")

    assert file.read_bytes() == b"one"


@pytest.mark.requirement("DISC-14")
@pytest.mark.parametrize(
    "path",
    [
        "notes.txt",
        "index.json",
        "tea/SKILL.md",
        f"{'0' * 64}/evil.sh",
        f"{'0' * 63}/SKILL.md",
        ".git/config",
        f"{'0' * 64}/deep/SKILL.md",
    ],
)
def test_a_folder_with_anything_of_others_in_it_is_left_alone(tmp_path: Path, path: str) -> None:
    target = tmp_path / HOME / path
    target.parent.mkdir(parents=True)
    target.write_text('{"skills": []}')

    with pytest.raises(ForeignFolderError) as caught, SiteFolder(tmp_path):
        pass

    assert caught.value.refusal == "already-exists"
    assert files_in(tmp_path) == {f"{HOME}/{path}": b'{"skills": []}'}
    assert names_in(tmp_path / ".well-known") == ["agent-skills"]


@pytest.mark.requirement("DISC-14")
def test_an_index_by_hand_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / HOME / "index.json"
    target.parent.mkdir(parents=True)
    by_hand = json.loads(index_of(b"one"))
    by_hand["skills"][0]["url"] = "one/SKILL.md"
    target.write_text(json.dumps(by_hand))

    with pytest.raises(ForeignFolderError), SiteFolder(tmp_path):
        pass

    assert json.loads(target.read_text()) == by_hand


def test_other_files_of_a_web_root_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello")
    (tmp_path / ".well-known").mkdir()
    (tmp_path / ".well-known" / "security.txt").write_text("call us")

    write(tmp_path, b"one")

    assert files_in(tmp_path)["index.html"] == b"hello"
    assert files_in(tmp_path)[".well-known/security.txt"] == b"call us"


@pytest.mark.parametrize("linked", ["", ".well-known", HOME])
def test_nothing_is_written_through_a_link(tmp_path: Path, linked: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "root" / linked if linked else tmp_path / "root"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere, target_is_directory=True)

    with pytest.raises(SiteFolderError), SiteFolder(tmp_path / "root"):
        pass

    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["index.json", "0" * 64])
def test_a_link_inside_the_site_is_not_ours(tmp_path: Path, name: str) -> None:
    write(tmp_path / "root", b"one")
    home = tmp_path / "root" / HOME
    (tmp_path / "other").write_bytes(index_of())
    (home / name).unlink(missing_ok=True)
    (home / name).symlink_to(tmp_path / "other")

    with pytest.raises(ForeignFolderError), SiteFolder(tmp_path / "root"):
        pass

    assert (tmp_path / "other").read_bytes() == index_of()


def test_two_writers_at_once_are_one_too_many(tmp_path: Path) -> None:
    with SiteFolder(tmp_path) as folder:
        with pytest.raises(SiteFolderError) as caught, SiteFolder(tmp_path):
            pass
        folder.publish(index_of())

    assert caught.value.refusal == "cannot-write"
    assert "another process" in str(caught.value)
    write(tmp_path, b"one")


def test_without_file_locks_the_error_names_the_folder_that_a_killed_writer_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "fcntl", None)
    write(tmp_path, b"one")
    left = tmp_path / ".well-known" / ".agent-skills.part"
    left.mkdir()

    with pytest.raises(SiteFolderError) as caught:
        write(tmp_path, b"two")
    left.rmdir()
    write(tmp_path, b"two")

    assert str(left) in caught.value.fix
    assert files_in(tmp_path)[f"{HOME}/index.json"] == index_of(b"two")


@pytest.mark.parametrize("name", ["notes.txt", f"{'0' * 64}/notes.txt", "index.json/SKILL.md"])
def test_a_folder_of_others_where_ours_would_be_written_first_is_not_emptied(
    tmp_path: Path, name: str
) -> None:
    theirs = tmp_path / ".well-known" / ".agent-skills.part" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")

    with pytest.raises(ForeignFolderError), SiteFolder(tmp_path):
        pass

    assert theirs.read_text() == "theirs"


@pytest.mark.requirement("DISC-14")
def test_nobody_but_the_owner_may_write_whatever_the_umask(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        write(tmp_path / "site", b"one")
    finally:
        os.umask(mask)

    modes = {
        stat.S_IMODE(path.stat().st_mode) & 0o022
        for path in [tmp_path / "site", *(tmp_path / "site").rglob("*")]
    }
    assert modes == {0}
    with SiteFolder(tmp_path / "site") as folder:
        assert not folder.is_exposed
        folder.home.chmod(0o777)
        assert folder.is_exposed


def test_a_file_where_the_root_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site").write_text("no folder")

    with pytest.raises(SiteFolderError), SiteFolder(tmp_path / "site"):
        pass
