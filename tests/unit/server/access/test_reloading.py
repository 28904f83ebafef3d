"""A file that changes while a server runs: taken when it is whole, ignored when it is wrong."""

import logging
import os
from pathlib import Path

import pytest

from skillwire.core.errors import SkillError
from skillwire.server.access.admission import ReloadedFile


class World:
    """A file, what was read of it, and clocks that stand still; files are as old as the test wants."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rules.toml"
        self.path.write_text("1")
        self.seconds = 1000.0
        self.is_settled = True
        self.reads = 0
        self.file = ReloadedFile(self.path, self.read, now=self.now, ticks=lambda: self.seconds)
        self.file.load()

    def now(self) -> float:
        return self.path.stat().st_ctime + (5 if self.is_settled else 0.2)

    def read(self, path: Path) -> int:
        self.reads += 1
        try:
            return int(path.read_text())
        except (OSError, ValueError) as error:
            raise SkillError("the file is wrong", fix="write it anew") from error

    def look(self, after: float = 1.0) -> int:
        self.seconds += after
        self.file.check()
        return self.file.value


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_file_is_looked_at_once_a_second_and_read_when_it_changed(world: World) -> None:
    version = world.file.version
    assert world.look() == 1
    world.path.write_text("22")

    assert world.look(0.5) == 1
    assert world.look(0.5) == 22
    assert world.look() == 22
    assert (world.reads, world.file.version) == (2, version + 1)


def test_a_file_that_is_being_written_is_left_alone_until_two_looks_saw_the_same(world: World) -> None:
    world.is_settled = False
    world.path.write_text("2")
    assert world.look() == 1
    world.path.write_text("23")
    assert world.look() == 1

    assert world.look() == 23
    assert world.reads == 2


@pytest.mark.requirement("SEC-14")
def test_a_change_made_while_nobody_asked_counts_for_whoever_asks_next(world: World) -> None:
    world.path.write_text("2")

    assert world.look(after=7200) == 2


def test_a_file_of_the_same_size_and_date_put_in_its_place_is_noticed(world: World) -> None:
    found = world.path.stat()
    other = world.path.with_name("new")
    other.write_text("7")
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(world.path)

    assert world.look() == 7


def test_a_wrong_version_is_logged_once_and_the_last_good_one_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.path.write_text("nonsense")
    version = world.file.version

    assert [world.look() for _ in range(3)] == [1, 1, 1]
    assert world.file.version == version
    assert [record.message for record in caplog.records] == [
        "the file is wrong (write it anew); the previous version stays in use"
    ]
    world.path.write_text("3")
    assert world.look() == 3


def test_a_file_that_is_gone_is_logged_once_and_taken_when_it_is_back(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.path.unlink()

    assert [world.look() for _ in range(4)] == [1, 1, 1, 1]
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    world.path.write_text("5")
    assert world.look() == 5


def test_whoever_asks_for_it_has_the_file_read_at_once(world: World) -> None:
    world.is_settled = False
    world.path.write_text("9")

    world.file.reload()

    assert world.file.value == 9


def test_permissions_that_are_corrected_make_the_file_count(world: World) -> None:
    world.path.write_text("bad")
    world.look()
    reads = world.reads
    world.path.chmod(0o640)

    world.look()

    assert world.reads == reads + 1


def test_a_file_that_cannot_be_used_at_the_start_is_an_error(tmp_path: Path) -> None:
    def wrong(path: Path) -> int:
        raise SkillError("no")

    with pytest.raises(SkillError):
        ReloadedFile(tmp_path / "gone", wrong).load()
