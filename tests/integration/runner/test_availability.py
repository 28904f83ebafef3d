"""Whether scripts can be run here is found out by running one. Where that fails in any way, none is run."""

import os
import shlex
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from escape.watching import processes
from integration.runner.running import DEADLINE, needs_sandbox, ran, script_run
from skillwire.core.errors import EXECUTION_FAILED, SandboxUnavailableError
from skillwire.runner import Availability, Interpreter, Outcome, Policy, Runner, RunRecord
from skillwire.runner.sandbox import sandbox
from skillwire.runner.sandbox.cgroups import delegated
from skillwire.runner.sandbox.sandbox import PROFILE

pytestmark = [needs_sandbox, pytest.mark.requirement("EXEC-12", "EXEC-16")]

REAL = "/usr/bin/bwrap"
MARK = "the script ran"


@pytest.fixture
def public() -> Generator[Path]:
    """A folder that the user can reach whom scripts run as."""
    with tempfile.TemporaryDirectory(prefix="skillwire-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def program(folder: Path, code: str, name: str = "bwrap") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{code}\n", "utf-8")
    path.chmod(0o755)
    return path


async def refused(policy: Policy) -> Availability:
    """Check that nothing is run under a policy, and return why."""
    records: list[RunRecord] = []
    with anyio.fail_after(DEADLINE):
        async with Runner(policy, record=records.append) as runner:
            found = runner.availability
            assert not found.is_available, "a sandbox was made"
            assert (runner.suffixes, runner.has_interpreter("scripts/a.py")) == ((), False)
            with pytest.raises(SandboxUnavailableError) as failed:
                await runner.run(script_run(f"print({MARK!r})"))
    assert failed.value.code == EXECUTION_FAILED == -32003
    assert (failed.value.reason, failed.value.backend) == (found.reason, "bwrap")
    assert failed.value.fix == found.fix != ""
    assert str(failed.value) == found.detail != ""
    assert all(record.outcome == "sandbox-unavailable" for record in records)
    return found


async def test_a_real_run_shows_that_scripts_can_be_run() -> None:
    with anyio.fail_after(DEADLINE):
        async with Runner(Policy(pool=0)) as runner:
            found = runner.availability
            taken = [runner.has_interpreter(f"scripts/a{suffix}") for suffix in (".py", ".sh", ".rb", "")]

    assert (found.is_available, found.backend, found.detail) == (True, "bwrap", "")
    assert found.memory == "control groups" or found.memory.startswith("sampled every 40 ms: ")
    assert taken == [True, True, False, False]


async def test_a_runner_that_is_not_open_runs_nothing() -> None:
    runner = Runner(Policy(pool=0))

    with pytest.raises(SandboxUnavailableError):
        await runner.run(script_run("print(1)"))
    async with runner:
        pass
    with pytest.raises(SandboxUnavailableError):
        await runner.run(script_run("print(1)"))


async def test_without_bubblewrap_nothing_is_run(tmp_path: Path) -> None:
    found = await refused(Policy(bubblewrap=tmp_path / "bwrap", pool=0))

    assert found.reason == "bubblewrap_missing"
    assert "apt install bubblewrap" in found.fix


# Programs that take bubblewrap's place

JUST_RUNS = 'while [ "$1" != -- ]; do shift; done\nshift\nexec "$@"'
# Says which process it is, as the real one does, so that nothing is missing but the sandbox.
LIES = (
    'while [ "$1" != -- ]; do\n'
    """  if [ "$1" = --json-status-fd ]; then printf '{"child-pid": %d}\\n' $$ >&"$2"; fi\n"""
    "  shift\n"
    "done\n"
    "shift\n"
    'exec "$@"'
)


@pytest.mark.parametrize("code", [JUST_RUNS, LIES], ids=["just runs", "lies"])
async def test_a_program_that_makes_no_sandbox_is_found_out(public: Path, code: str) -> None:
    found = await refused(Policy(bubblewrap=program(public, code), pool=0))

    assert "Operation not permitted" in found.detail
    assert found.reason == "user_namespaces_restricted"


def calling(before: str, after: str) -> str:
    """Return a program that calls the real bubblewrap with other words in place of one."""
    return (
        "words=()\n"
        'for word in "$@"; do\n'
        f'  if [ "$word" = {before} ]; then words+=({after}); else words+=("$word"); fi\n'
        "done\n"
        f'exec {REAL} "${{words[@]}}"'
    )


@pytest.mark.parametrize(
    ("code", "noticed"),
    [
        (calling("--unshare-net", ""), "interfaces"),
        (calling("--proc", "--ro-bind /proc"), "processes"),
        (calling("--remount-ro", "--dir"), "root_writable"),
        (calling("--hostname", "--dir /home --hostname"), "root"),
        (calling("--hostname", "--dir /etc/ssh --hostname"), "etc"),
        (calling("1000", "1001"), "uid"),
    ],
    ids=lambda value: value if value.isidentifier() else "",
)
async def test_a_sandbox_with_a_hole_is_found_out(public: Path, code: str, noticed: str) -> None:
    found = await refused(Policy(bubblewrap=program(public, code), pool=0))

    assert found.reason == "self_test_failed"
    assert found.detail.startswith("the self-test of the sandbox failed: ")
    assert noticed in found.detail.split(": ")[1].split(", ")


def test_bubblewrap_itself_called_through_a_program_makes_a_sandbox(public: Path) -> None:
    """The programs above fail for what they change, and not for being programs."""
    same = program(public, calling("no-such-word", ""))

    outcome = anyio.run(ran, script_run(f"print({MARK!r})"), Policy(bubblewrap=same, pool=0))

    assert outcome.stdout == f"{MARK}\n"


@pytest.mark.parametrize(
    "words",
    [
        "bwrap: setting up uid map: Permission denied",
        "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
    ],
)
async def test_what_bubblewrap_says_where_apparmor_keeps_it_is_explained(public: Path, words: str) -> None:
    found = await refused(
        Policy(bubblewrap=program(public, f"echo {shlex.quote(words)} >&2\nexit 1"), pool=0)
    )

    assert found.detail == words
    assert found.reason in ("user_namespaces_restricted", "apparmor_restricts_user_namespaces")
    assert PROFILE in found.fix


async def test_a_program_that_never_answers_is_given_up(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "START_SECONDS", 0.5)

    found = await refused(Policy(bubblewrap=program(public, "exec sleep 100"), pool=0))

    assert "does not" in found.detail


# Interpreters and users


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up who it is")
async def test_an_interpreter_that_nobody_else_can_reach_is_named(public: Path) -> None:
    private = public / "private"
    private.mkdir(mode=0o700)
    python = program(private, "exec /usr/bin/python3", "python3")

    found = await refused(Policy(interpreters={".py": Interpreter(python)}, pool=0))

    assert found.reason == "interpreter_unreachable"
    assert found.detail == f"{python} cannot be read by the user that scripts run as"
    assert "install it where every user can read it" in found.fix


async def test_an_interpreter_that_cannot_be_read_is_named(public: Path) -> None:
    python = program(public, "exec /usr/bin/python3", "python3")
    python.chmod(0o000)

    found = await refused(Policy(interpreters={".py": Interpreter(python)}, pool=0))

    assert found.reason == "interpreter_unreachable"


async def test_an_interpreter_that_is_none_is_found_out(public: Path) -> None:
    python = program(public, "echo I am no Python >&2; exit 3", "python3")

    found = await refused(Policy(interpreters={".py": Interpreter(python, trees=(public,))}, pool=0))

    assert "I am no Python" in found.detail


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up who it is")
async def test_scripts_never_run_as_root() -> None:
    found = await refused(Policy(uid=0, pool=0))

    assert (found.reason, found.detail) == ("policy_unsafe", "scripts must not run as root")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up who it is")
async def test_root_becomes_the_user_of_the_policy_before_anything_starts() -> None:
    """Judged from outside: the owners of the script and of all between it and this process."""
    mark = f"u{os.getpid()}"
    code = (
        "import ctypes, os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        f"ctypes.CDLL(None).prctl(15, b{mark!r}, 0, 0, 0)\n"
        "signal.sigwait([signal.SIGUSR1])\n"
        "print(os.getuid())\n"
    )
    outcomes: list[Outcome] = []
    owners: list[set[int]] = []

    async def run(runner: Runner) -> None:
        outcomes.append(await runner.run(script_run(code)))

    with anyio.fail_after(DEADLINE):
        async with Runner(Policy(uid=54321, pool=0)) as runner, anyio.create_task_group() as tasks:
            tasks.start_soon(run, runner)
            found: list[int] = []
            while not found:
                await anyio.sleep(0.02)
                found = [pid for pid, one in processes().items() if one.name == mark]
            owners += [owners_of(pid) for pid in line_of_parents(found[0])]
            os.kill(found[0], signal.SIGUSR1)

    assert owners == [{54321}] * 3  # Of the script, the init of its sandbox, and bubblewrap.
    assert [outcome.stdout for outcome in outcomes] == ["1000\n"]


def line_of_parents(pid: int) -> list[int]:
    """Return a process and its parents, up to this process."""
    everyone = processes()
    found: list[int] = []
    while pid != os.getpid():
        found.append(pid)
        pid = everyone[pid].parent
    return found


def owners_of(pid: int) -> set[int]:
    status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    return set(map(int, status.partition("Uid:")[2].splitlines()[0].split()))


# Control groups


def test_where_control_groups_were_not_delegated_the_reason_is_told() -> None:
    parent, reason = delegated()

    assert (parent is None) == bool(reason)


async def test_who_counts_memory_is_told() -> None:
    parent, reason = delegated()

    with anyio.fail_after(DEADLINE):
        async with Runner(Policy(pool=0)) as runner:
            memory = runner.availability.memory

    assert memory == ("control groups" if parent else f"sampled every 40 ms: {reason}")


@pytest.mark.parametrize(
    ("handed_on", "words"),
    [(None, "is not a control group of version 2"), ("memory pids\n", "was not delegated to this user")],
    ids=["no group", "looks like one"],
)
async def test_a_control_group_that_cannot_be_used_is_refused_and_not_done_without(
    tmp_path: Path, handed_on: str | None, words: str
) -> None:
    if handed_on is not None:
        (tmp_path / "cgroup.subtree_control").write_text(handed_on)

    found = await refused(Policy(cgroup=tmp_path, pool=0))

    assert found.reason == "cgroup_unusable"
    assert words in found.detail
    assert "leave it out" in found.fix
