"""What is written to control groups and read from them, in plain folders that look like some."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from skillwire.core.errors import RunnerError, SandboxUnavailableError
from skillwire.runner.outcome import LimitHit, RawOutcome, Usage
from skillwire.runner.policy import MIB, Limits
from skillwire.runner.sandbox import cgroups
from skillwire.runner.sandbox.cgroups import Cgroup, CgroupParent, delegated
from skillwire.runner.sandbox.conversation import Job

LIMITS = Limits(memory_bytes=64 * MIB, processes=20)
RAW = RawOutcome(0, None, b"out", b"", Usage(wall_seconds=1.0, cpu_seconds=0.5, memory_bytes=7, processes=3))
NOBODYS_PID = 2**22 + 1
"""More than Linux ever counts to."""
FILES = ("cgroup.procs", "memory.max", "memory.swap.max", "memory.oom.group", "pids.max")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "group"
    made.mkdir()
    for name in FILES:
        (made / name).touch()
    return made


def settings(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in FILES if (folder / name).exists()}


def ignore(path: Path, text: str) -> None:
    """Be a file system that takes everything."""


def test_limits_are_written_for_the_whole_run(folder: Path) -> None:
    Cgroup(folder).limit(LIMITS)

    assert settings(folder) == {
        "cgroup.procs": "",
        "memory.max": str(64 * MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "22",
    }


def test_files_that_a_script_is_given_are_not_held_against_it(folder: Path) -> None:
    cgroup = Cgroup(folder)
    (folder / "memory.peak").write_text(f"{30 * MIB}\n")

    cgroup.limit(LIMITS, given=10 * MIB)

    assert settings(folder)["memory.max"] == str(74 * MIB)
    assert cgroup.measured(RAW, LIMITS).usage.memory_bytes == 20 * MIB


def test_a_kernel_without_swap_takes_the_other_limits(folder: Path) -> None:
    (folder / "memory.swap.max").unlink()

    Cgroup(folder).limit(LIMITS)

    assert settings(folder)["memory.max"] == str(64 * MIB)
    assert not (folder / "memory.swap.max").exists()


@pytest.mark.parametrize("name", ["memory.max", "memory.oom.group", "pids.max"])
def test_a_limit_that_cannot_be_set_is_an_error(folder: Path, name: str) -> None:
    (folder / name).unlink()

    with pytest.raises(RunnerError):
        Cgroup(folder).limit(LIMITS)


def test_processes_that_there_are_are_taken_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, str]] = []

    def write(path: Path, text: str) -> None:
        written.append((str(path), text))

    monkeypatch.setattr(cgroups, "_write", write)

    Cgroup(folder).add(101, 0, 102)

    procs = str(folder / "cgroup.procs")
    assert [line for line in written if line[0] == procs] == [(procs, "101"), (procs, "102")]
    assert [path for path, _ in written if path != procs] == [
        "/proc/101/oom_score_adj",
        "/proc/102/oom_score_adj",
    ]


def test_a_group_that_takes_nobody_in_makes_the_sandbox_unavailable(folder: Path) -> None:
    (folder / "cgroup.procs").unlink()

    with pytest.raises(SandboxUnavailableError) as caught:
        Cgroup(folder).add(NOBODYS_PID)

    assert caught.value.reason == "cgroup_unusable"
    assert caught.value.fix


def test_a_process_that_has_ended_is_left_to_speak_for_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_process(path: Path, text: str) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(cgroups, "_write", no_such_process)

    with pytest.raises(RunnerError) as caught:
        Cgroup(folder).add(101)

    assert not isinstance(caught.value, SandboxUnavailableError)


@pytest.mark.parametrize(
    "events",
    ["", "low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n", "oom_kill\n", "oom_kill many\n"],
)
def test_a_run_that_the_kernel_has_not_ended_has_hit_nothing(folder: Path, events: str) -> None:
    (folder / "memory.events").write_text(events)

    assert Cgroup(folder).hit(LIMITS) is None


def test_a_run_that_the_kernel_has_ended_has_hit_the_memory_limit(folder: Path) -> None:
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 1\noom_kill 4\noom_group_kill 1\n")
    (folder / "memory.peak").write_text("67108741\n")

    assert Cgroup(folder).hit(LIMITS) == LimitHit("memory_bytes", 64 * MIB, 67108741)


def test_a_kernel_that_knows_no_peak_says_that_the_limit_was_used(folder: Path) -> None:
    (folder / "memory.events").write_text("oom_kill 1\n")

    assert Cgroup(folder).hit(LIMITS) == LimitHit("memory_bytes", 64 * MIB, 64 * MIB)


def test_a_group_that_says_nothing_leaves_the_result_as_it_is(folder: Path) -> None:
    assert Cgroup(folder).measured(RAW, LIMITS) == RAW


def test_the_kernel_knows_better_how_much_was_used(folder: Path) -> None:
    (folder / "memory.peak").write_text("9000000\n")
    (folder / "pids.peak").write_text("9\n")
    (folder / "pids.events").write_text("max 0\n")
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nsystem_usec 1\n")

    usage = Cgroup(folder).measured(RAW, LIMITS).usage

    assert usage == replace(RAW.usage, memory_bytes=9000000, processes=7)


def test_a_process_too_many_means_that_all_were_used(folder: Path) -> None:
    (folder / "pids.events").write_text("max 3\n")

    assert Cgroup(folder).measured(RAW, LIMITS).usage.processes == 20


def test_time_is_counted_from_the_limits_on_when_the_init_could_not_report(folder: Path) -> None:
    cgroup = Cgroup(folder)
    (folder / "cpu.stat").write_text("usage_usec 400000\n")
    cgroup.limit(LIMITS)
    (folder / "cpu.stat").write_text("usage_usec 1900000\n")

    raw = cgroup.measured(replace(RAW, usage=Usage()), LIMITS)

    assert raw.usage.cpu_seconds == 1.5


def test_a_group_is_made_and_removed(tmp_path: Path) -> None:
    cgroup = CgroupParent(tmp_path).make()

    made = [path.name for path in tmp_path.iterdir()]
    cgroup.remove()
    cgroup.remove()

    assert [name.split("-")[:2] for name in made] == [["skillwire", str(os.getpid())]]
    assert list(tmp_path.iterdir()) == []


def test_no_group_can_be_made_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailableError) as caught:
        CgroupParent(tmp_path / "gone").make()

    assert caught.value.reason == "cgroup_unusable"


def test_only_what_ended_processes_left_is_swept(tmp_path: Path) -> None:
    ours, others = f"skillwire-{os.getpid()}-00000000", ["skillwire-probe-1", "main", "skillwire-x"]
    for name in (ours, f"skillwire-{NOBODYS_PID}-00000000", *others):
        (tmp_path / name).mkdir()

    CgroupParent(tmp_path).remove_stale()

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([ours, *others])


def test_a_folder_that_is_no_control_group_is_named(tmp_path: Path) -> None:
    assert delegated(tmp_path) == (None, f"{tmp_path} is not a control group of version 2")


def test_controllers_are_switched_on_in_a_group_that_was_named(tmp_path: Path) -> None:
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("cpu")

    delegated(tmp_path)

    assert control.read_text() == "+memory +pids"


def test_a_group_in_which_nothing_can_be_limited_was_not_delegated(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")

    parent, reason = delegated(tmp_path)

    assert parent is None
    assert reason.startswith(f"{tmp_path} was not delegated to this user")
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.subtree_control"]


def test_our_own_group_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("cpu pids\n")
    monkeypatch.setattr(cgroups, "_own", lambda: tmp_path)

    parent, reason = delegated()

    assert parent is None
    assert reason.startswith(f"{tmp_path} does not enable these controllers for its children: memory,")
    assert control.read_text() == "cpu pids\n"


def test_without_version_2_there_is_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)

    assert delegated() == (None, "control groups of version 2 are not mounted here")


@pytest.mark.parametrize(("may_write", "is_delegated"), [(True, True), (False, False)])
def test_processes_must_be_allowed_to_get_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_write: bool, is_delegated: bool
) -> None:
    asked: list[Path] = []

    def access(path: Path, mode: int, *, effective_ids: bool) -> bool:
        asked.append(path)
        return may_write

    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "cgroup.subtree_control").write_text("memory pids")
    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(cgroups, "_own", lambda: tmp_path / "session")
    monkeypatch.setattr(cgroups, "_write", ignore)
    monkeypatch.setattr(os, "access", access)

    parent, reason = delegated(folder)

    assert asked == [tmp_path / "cgroup.procs"]
    assert (parent == CgroupParent(folder)) is is_delegated
    assert (reason == "") is is_delegated


def test_the_init_leaves_counting_to_the_kernel_where_that_counts() -> None:
    job = Job("/skill/a.py", {"a.py": b"12345"}, b"", LIMITS, 1 << 30, {}, secrets={"key": b"678"})

    told = replace(job, is_counted_outside=True).message()

    assert b'"memory_bytes":67108864' in job.message().replace(b" ", b"")
    assert b'"processes":20' in job.message().replace(b" ", b"")
    assert b'"memory_bytes":4611686018427387904' in told.replace(b" ", b"")
    assert b'"processes":21' in told.replace(b" ", b"")
    assert job.given_bytes == 8
