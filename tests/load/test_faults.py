"""Faults of disks, folders and limits: the server says so once, serves no wrong byte, and gets well again."""

import mmap
import os
import resource
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from configs import configured
from folders import write_files, write_skill
from load.faults import Ward, full_disk, pause, ward, with_limits, without_privileges
from serving import environment, hook, listed_uris, modern
from skillwire.core.errors import INTERNAL_ERROR, INVALID_PARAMS
from skillwire.sources import DirectorySource

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="these faults are made as Linux does"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """A server without privileges that many things happen to, one after the other."""
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("faults")
    with ward(folder, env=environment(home), before=without_privileges()) as sick:
        yield sick

        assert sick.is_serving()
        assert sick.server.stop() == 0
        assert "Traceback" not in sick.server.words


@pytest.fixture
def sick(served: Ward) -> Iterator[Ward]:
    """The same server; it must be well, and say nothing more, when a test is done."""
    served.hush()
    yield served
    assert served.is_serving()


# What may not be read


@pytest.mark.requirement("SDK-07")
@pytest.mark.parametrize("path", ["locked", "locked/a.md", "locked/SKILL.md", "locked/sub"])
def test_what_may_not_be_read_any_more_is_set_aside_with_one_line_and_comes_back(
    sick: Ward, path: str
) -> None:
    write_skill(sick.root / "locked", {"a.md": "secret", "sub/b.md": "b"})
    sick.until(lambda: sick.publishes("locked"), "it is there")

    (sick.root / path).chmod(0o000)
    sick.until(lambda: not sick.publishes("locked"), "it is set aside")
    assert sick.read("skill://locked/a.md") == INVALID_PARAMS
    assert sick.is_serving()
    (sick.root / path).chmod(0o755)
    sick.until(lambda: sick.publishes("locked"), "it is back")

    assert sick.read("skill://locked/a.md") == b"secret"
    assert len(sick.said()) == 1
    assert len(sick.said("locked is not published: .*cannot be read: Permission denied")) == 1
    shutil.rmtree(sick.root / "locked")
    sick.until(lambda: not sick.publishes("locked"), "it is gone")


@pytest.mark.requirement("SDK-07")
def test_a_folder_that_may_not_be_watched_does_not_keep_others_from_being_noticed(sick: Ward) -> None:
    """The folders of a tree are watched one by one, and the first failure must not end that in silence."""
    (sick.root / "aaa").mkdir()
    (sick.root / "aaa").chmod(0o000)
    pause(0.5)
    write_skill(sick.root / "zzz", {"a.md": "1"})
    sick.until(lambda: sick.publishes("zzz"), "a new skill")
    for number in "234":
        write_files(sick.root, {"zzz/a.md": number})
        sick.until(lambda n=number: sick.read("skill://zzz/a.md") == n.encode(), "an edit")

    (sick.root / "aaa").chmod(0o755)
    (sick.root / "aaa").rmdir()
    shutil.rmtree(sick.root / "zzz")
    sick.until(lambda: not sick.publishes("zzz"), "it is gone")


@pytest.mark.requirement("SDK-07")
def test_a_root_that_is_taken_away_and_put_back_costs_no_skill(sick: Ward) -> None:
    write_skill(sick.root / "cold", {"a.md": "cold"})
    sick.until(lambda: sick.publishes("cold"), "it is there")
    before = sick.listed()

    sick.root.rename(sick.root.with_name("away"))
    for _ in range(3):
        assert sick.read("skill://cold/a.md") == INTERNAL_ERROR
        assert sick.listed() == before
    sick.until(lambda: bool(sick.said("cannot be read")), "it is said")
    pause(2.5)
    assert sick.listed() == before
    sick.root.with_name("away").rename(sick.root)
    sick.until(lambda: sick.read("skill://cold/a.md") == b"cold", "it is served again")
    write_files(sick.root, {"cold/a.md": "warm"})
    sick.until(lambda: sick.read("skill://cold/a.md") == b"warm", "changes are noticed again")

    reason = "the folder of skills cannot be read: No such file or directory"
    assert sick.said(reason + "; serving the last state") == sick.said("serving the last state")
    assert len(sick.said("serving the last state")) == 1
    assert len(sick.said(f"a request failed: {reason}")) == 1
    assert len(sick.said()) == 2
    shutil.rmtree(sick.root / "cold")
    sick.until(lambda: not sick.publishes("cold"), "it is gone")


# What is not what it was


@pytest.mark.requirement("READ-10")
def test_a_file_that_becomes_a_fifo_hangs_nobody(sick: Ward) -> None:
    path = write_skill(sick.root / "pipes", {"a.md": "a file"}) / "a.md"
    sick.until(lambda: sick.publishes("pipes"), "it is there")

    path.unlink()
    os.mkfifo(path)
    assert sick.read("skill://pipes/a.md") == INVALID_PARAMS
    sick.until(lambda: len(sick.said("pipes is not published: .*FIFO")) == 1, "it is said once")
    path.unlink()
    path.write_text("a file again")
    sick.until(lambda: sick.read("skill://pipes/a.md") == b"a file again", "it is a file again")

    assert len(sick.said()) == 1
    shutil.rmtree(sick.root / "pipes")
    sick.until(lambda: not sick.publishes("pipes"), "it is gone")


@pytest.mark.requirement("SDK-07")
def test_a_file_that_is_cut_and_refilled_while_it_is_read_is_never_served_in_part(sick: Ward) -> None:
    whole, half = b"x" * 2_000_000, b"x" * 1_000_000
    path = write_skill(sick.root / "large", {"a.md": whole}) / "a.md"
    sick.until(lambda: sick.publishes("large"), "it is there")
    stopping = threading.Event()

    def cut() -> None:
        while not stopping.is_set():
            os.truncate(path, len(half))
            path.write_bytes(whole)

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        answers = [sick.read("skill://large/a.md") for _ in range(6)]
    finally:
        stopping.set()
        thread.join(10)

    # Each was compared with what an entry promised; a writer who pauses half-way publishes a half.
    assert all(
        answer in (INTERNAL_ERROR, INVALID_PARAMS) if isinstance(answer, int) else whole.startswith(answer)
        for answer in answers
    )
    sick.until(lambda: sick.read("skill://large/a.md") == whole, "it is whole again")
    shutil.rmtree(sick.root / "large")
    sick.until(lambda: not sick.publishes("large"), "it is gone")


@pytest.mark.requirement("SDK-07")
def test_bytes_that_change_behind_size_and_times_are_not_served_as_what_they_were(sick: Ward) -> None:
    path = write_skill(sick.root / "mapped", {"a.md": "one"}) / "a.md"
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:3] = b"two"
        sick.until(lambda: sick.read("skill://mapped/a.md") == b"two", "it is there")
        pause(2.2)  # From here on its times would be believed.
        write_files(sick.root, {"mapped/b.md": "look again"})
        sick.until(lambda: sick.read("skill://mapped/b.md") == b"look again", "it was looked at again")
        before = path.stat()
        memory[:3] = b"six"
        assert path.stat() == before

        # What was read a moment ago may be answered from memory, as it was published.
        assert sick.read("skill://mapped/a.md") in (b"two", b"six")

    shutil.rmtree(sick.root / "mapped")
    sick.until(lambda: not sick.publishes("mapped"), "it is gone")
    assert sick.said() == []


def test_times_of_another_century_are_no_reason_to_serve_old_bytes(sick: Ward) -> None:
    path = write_skill(sick.root / "dated", {"a.md": "one"}) / "a.md"
    for seconds, text in ((0, "two"), (2**33, "six"), (2**33, "ten"), (1_000_000_000, "one")):
        path.write_text(text)
        os.utime(path, (seconds, seconds))
        sick.until(lambda wanted=text: sick.read("skill://dated/a.md") == wanted.encode(), "the edit is seen")

    shutil.rmtree(sick.root / "dated")
    sick.until(lambda: not sick.publishes("dated"), "it is gone")
    assert sick.said() == []


def test_links_in_a_circle_and_a_huge_folder_are_said_and_left_alone(sick: Ward) -> None:
    folder = write_skill(sick.root / "circle")
    (sick.root / "loop").symlink_to(".")
    (sick.root / "self").symlink_to("self")
    (folder / "inner").symlink_to("..")
    huge = write_skill(sick.root / "huge")
    for number in range(5000):
        (huge / f"{number}.md").touch()
    write_skill(sick.root / "after")

    sick.until(lambda: sick.publishes("after"), "others are noticed")
    sick.until(lambda: bool(sick.said("^WARNING: huge is not published: ")), "the huge one is said")

    assert not {"circle", "huge"} & {uri.split("/")[2] for uri in sick.listed()}
    assert len(sick.said("huge")) == len(sick.said("circle")) == 1
    (sick.root / "loop").unlink()
    (sick.root / "self").unlink()
    for name in ("circle", "huge", "after"):
        shutil.rmtree(sick.root / name)
    sick.until(lambda: not sick.publishes("after"), "all is gone")


@pytest.mark.requirement("SDK-07")
def test_more_events_than_the_kernel_keeps_leave_nothing_unnoticed(sick: Ward) -> None:
    events = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) + 2000
    storm = write_skill(sick.root / "storm", {"a.md": "one"})
    sick.until(lambda: sick.publishes("storm"), "it is there")

    sick.server.send_signal(signal.SIGSTOP)
    try:
        for number in range(events // 3):
            (storm / f"f{number % 50}").touch()
            (storm / f"f{number % 50}").unlink()
        write_files(sick.root, {"storm/a.md": "two"})
        write_skill(sick.root / "late")
        pause(1.0)
    finally:
        sick.server.send_signal(signal.SIGCONT)

    sick.until(lambda: sick.publishes("late"), "what happened last")
    sick.until(lambda: sick.read("skill://storm/a.md") == b"two", "the edit")
    for name in ("storm", "late"):
        shutil.rmtree(sick.root / name)
    sick.until(lambda: not sick.publishes("late"), "all is gone")


# Limits


@pytest.mark.requirement("SDK-07")
@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("max_inotify_watches", "OS file watch limit reached"),
        ("max_inotify_instances", "Too many open files"),
    ],
)
def test_without_watches_changes_are_found_by_looking_and_that_is_said_once(
    tmp_path: Path, empty_home: Path, limit: str, words: str
) -> None:
    before = with_limits(**{limit: 0})
    with ward(tmp_path, env=environment(empty_home), before=before) as sick:
        write_skill(sick.root / "new", {"a.md": "1"})
        sick.until(lambda: sick.publishes("new"), "a new skill")
        write_files(sick.root, {"new/a.md": "2"})
        sick.until(lambda: sick.read("skill://new/a.md") == b"2", "an edit")

        assert len(sick.server.words.splitlines()) == 3, sick.server.words
        assert words in sick.server.words


@pytest.mark.requirement("SDK-07")
def test_a_server_that_runs_out_of_descriptors_keeps_what_it_has_and_recovers(
    tmp_path: Path, empty_home: Path
) -> None:
    with ward(tmp_path, env=environment(empty_home)) as sick, sick.server.connection() as connection:
        write_skill(sick.root / "other", {"a.md": "1"})
        sick.until(lambda: sick.read("skill://other/a.md") == b"1", "it is there")
        assert "result" in connection.call(modern("server/discover"))
        used = max(int(link.name) for link in Path(f"/proc/{sick.server.pid}/fd").iterdir())
        # From now on, no file and no connection can be opened.
        before = resource.prlimit(sick.server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(sick.server.pid, resource.RLIMIT_NOFILE, (used + 1, before[1]))
        write_files(sick.root, {"other/a.md": "2"})
        sick.until(lambda: bool(sick.said("Too many open files")), "it is said")
        pause(2.5)
        meanwhile = connection.call(modern("skills/list"))
        resource.prlimit(sick.server.pid, resource.RLIMIT_NOFILE, before)

        def is_edited() -> bool:
            try:
                return sick.read("skill://other/a.md") == b"2"
            except ConnectionError:
                return False  # There was no descriptor left for this one.

        sick.until(is_edited, "the edit is found in the end")
        assert listed_uris(meanwhile) == ["skill://other/SKILL.md", "skill://well/SKILL.md"]
        assert sick.publishes("well")
        assert len(sick.said("the folder of skills cannot be read: Too many open files")) == 1
        assert sick.server.stop() == 0
        assert "Traceback" not in sick.server.words


# The index


def test_a_disk_too_full_for_the_index_costs_one_line(tmp_path: Path, empty_home: Path) -> None:
    for number in range(300):
        write_skill(tmp_path / "skills" / f"many-{number}", {"a.md": str(number)})
    pause(2.5)  # What changed a moment ago is not kept in an index.
    with (
        full_disk(empty_home / ".cache", kilobytes=8),
        ward(tmp_path, *configured(empty_home, page_size=1000), env=environment(empty_home)) as sick,
    ):
        assert len(sick.listed()) == 301
        assert sick.read("skill://many-7/a.md") == b"7"
        write_files(tmp_path, {"skills/many-7/a.md": "seven"})
        sick.until(lambda: sick.read("skill://many-7/a.md") == b"seven", "an edit")
        said = sick.server.words.splitlines()
        assert sick.server.stop() == 0
        assert [path.name for path in (empty_home / ".cache" / "skillwire" / "scan").iterdir()] == []

    assert [line for line in said if line.startswith("WARNING")] == [
        "WARNING: the index of this scan cannot be saved: No space left on device; "
        "the next start takes longer"
    ]


async def _open_once(root: Path, cache: Path) -> None:
    async with DirectorySource(root, watch=False, cache_dir=cache):
        pass


def test_a_damaged_index_and_a_cache_that_may_not_be_written_cost_a_line_each(
    tmp_path: Path, empty_home: Path
) -> None:
    env = environment(empty_home)
    places = empty_home / ".cache" / "skillwire" / "scan"
    write_skill(tmp_path / "skills" / "well", {"a.md": "well"})
    anyio.run(_open_once, tmp_path / "skills", places)
    (index,) = places.iterdir()
    content = bytearray(index.read_bytes())
    content[len(content) // 2] ^= 1
    index.write_bytes(content)
    index.chmod(0o600)
    write_skill(tmp_path / "skills" / "later")  # So that there is something to write.
    places.chmod(0o500)

    with ward(tmp_path, env=env, before=without_privileges()) as sick:
        assert sick.is_serving()
        said = sick.server.words.splitlines()
    places.chmod(0o700)

    assert [line for line in said if line.startswith("WARNING")] == [
        "WARNING: the index of an earlier scan cannot be used: it is damaged, or belongs to another folder; "
        "reading every file",
        "WARNING: the index of this scan cannot be saved: Permission denied; the next start takes longer",
    ]
    assert index.read_bytes() == content


# The clock

JUMPING = """
import os, time
real, real_ns = time.time, time.time_ns
def ahead():
    try:
        return float(open(os.environ["CLOCK"]).read() or 0)
    except (OSError, ValueError):
        return 0.0
time.time = lambda: real() + ahead()
time.time_ns = lambda: real_ns() + int(ahead() * 1e9)
"""


@pytest.mark.requirement("SDK-07")
def test_a_clock_that_jumps_changes_nothing_and_is_said_once_each_time(
    tmp_path: Path, empty_home: Path
) -> None:
    clock = tmp_path / "clock"
    env = {**environment(empty_home), **hook(tmp_path / "hook", JUMPING), "CLOCK": str(clock)}
    with ward(tmp_path, env=env) as sick:
        path = write_skill(sick.root / "timed", {"a.md": "000"}) / "a.md"
        said: list[str] = []
        steps = {1: (0, ""), 2: (86_400, "forward by 86400"), 3: (-86_400, "back by 172800")}
        steps |= {4: (3, "forward by 86403"), 5: (0, "")}
        for number, (ahead, way) in steps.items():
            clock.write_text(str(ahead))
            content = b"%03d" % number
            path.write_bytes(content)
            sick.until(
                lambda wanted=content: sick.read("skill://timed/a.md") == wanted, f"the edit at {ahead:+}"
            )
            if way:
                said.append(f"WARNING: the clock jumped {way} seconds; rescanning everything")
                sick.until(lambda: len(sick.said()) >= len(said), f"the jump {way}")

        assert sick.said() == said
        assert sick.server.stop() == 0
