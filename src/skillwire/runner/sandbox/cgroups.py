"""Control groups (version 2) that were delegated to this process, in which the kernel limits memory.

Whether they were delegated is tested by creating one. Without them, the
sandbox's init samples memory itself, which is slower and less complete.
"""

import errno
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from skillwire.core import RunnerError, SandboxUnavailableError
from skillwire.runner.outcome import LimitHit, RawOutcome
from skillwire.runner.policy import Limits

ROOT = Path("/sys/fs/cgroup")
NEEDED = frozenset({"memory", "pids"})
UNUSABLE = "cgroup_unusable"
FIX = "delegate it and run this process in a group inside it, or leave it out"
_NAME = "skillwire"
_OURS = 2  # Processes in a group that are not the script's: bubblewrap and the init.
_UNPROTECTED = "500"
_REMOVE_SECONDS = 5.0
_REASONS = {
    errno.EBUSY: "it has processes of its own",
    errno.ENOENT: "its parent does not enable them",
}


class Cgroup:
    """The control group of one sandbox."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given = 0
        self._cpu = 0

    def add(self, *pids: int) -> None:
        """Move processes into the group before they run untrusted code; their children are in it too.

        If this process is protected from the OOM killer, they must not be: the
        kernel could end none of them, and they would hang at the limit.

        Raises:
            SandboxUnavailableError: The kernel refuses it.
            RunnerError: One of the processes has ended.
        """
        try:
            for pid in pids:
                if pid:
                    self._write("cgroup.procs", pid)
                    with suppress(OSError):
                        _write(Path("/proc", str(pid), "oom_score_adj"), _UNPROTECTED)
        except ProcessLookupError as error:
            raise RunnerError("it ended") from error  # Its standard error has the reason.
        except OSError as error:
            raise SandboxUnavailableError(
                f"the sandbox cannot be moved into its control group: {error.strerror}",
                reason=UNUSABLE,
                fix=FIX,
            ) from error

    def limit(self, limits: Limits, *, given: int = 0) -> None:
        """Set the kernel limits of memory and processes.

        `given` is the size of the files that the script is given. They are held
        in memory, and do not count for the script. At the memory limit the
        kernel kills the whole group, not only one process.

        Raises:
            RunnerError: The kernel refuses it.
        """
        self._given, self._cpu = given, self._cpu_microseconds()
        try:
            self._write("memory.oom.group", 1)
            with suppress(OSError):  # Some kernels have no swap.
                self._write("memory.swap.max", 0)
            self._write("pids.max", limits.processes + _OURS)
            self._write("memory.max", limits.memory_bytes + given)
        except OSError as error:
            raise RunnerError("cannot set the limits of a sandbox's control group") from error

    def hit(self, limits: Limits) -> LimitHit | None:
        """Return the limit at which the kernel killed the run, if it did."""
        if not _counts(self._read("memory.events")).get("oom_kill"):
            return None
        return LimitHit("memory_bytes", limits.memory_bytes, self._peak() or limits.memory_bytes)

    def measured(self, raw: RawOutcome, limits: Limits) -> RawOutcome:
        """Return the result with the usage counted by the kernel, which is more exact than samples."""
        used = raw.usage
        processes = max(used.processes, _number(self._read("pids.peak")) - _OURS)
        if _counts(self._read("pids.events")).get("max"):
            processes = max(processes, limits.processes)
        usage = replace(
            used,
            memory_bytes=self._peak() or used.memory_bytes,
            processes=processes,
            cpu_seconds=used.cpu_seconds or (self._cpu_microseconds() - self._cpu) / 1e6,
        )
        return replace(raw, usage=usage)

    def remove(self) -> None:
        """Remove the group after its processes have ended."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        with suppress(OSError):
            self._write("cgroup.kill", 1)
        while self._folder.exists() and time.monotonic() < deadline:
            try:
                self._folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)

    def _peak(self) -> int:
        """Return the peak memory use; 0 where the kernel (before 5.19) does not report it."""
        return max(0, _number(self._read("memory.peak")) - self._given)

    def _cpu_microseconds(self) -> int:
        return _counts(self._read("cpu.stat")).get("usage_usec", 0)

    def _write(self, name: str, value: int) -> None:
        _write(self._folder / name, str(value))

    def _read(self, name: str) -> str:
        try:
            return (self._folder / name).read_text()
        except OSError:
            return ""


@dataclass(frozen=True, slots=True)
class CgroupParent:
    """A delegated control group in which those of sandboxes are created."""

    folder: Path

    def make(self) -> Cgroup:
        """Create a group for one sandbox.

        Raises:
            SandboxUnavailableError: It cannot be created.
        """
        folder = self.folder / f"{_NAME}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            folder.mkdir()
        except OSError as error:
            raise SandboxUnavailableError(
                "cannot create a control group for a sandbox", reason=UNUSABLE, fix=FIX
            ) from error
        return Cgroup(folder)

    def remove_stale(self) -> None:
        """Remove groups that were left by processes that have ended."""
        for folder in self.folder.glob(f"{_NAME}-*-*"):
            pid = folder.name.split("-")[1]
            if pid.isdecimal() and not Path("/proc", pid).exists():
                with suppress(OSError):
                    folder.rmdir()


def delegated(configured: Path | None = None) -> tuple[CgroupParent | None, str]:
    """Return the control group to use, or None and the reason.

    It is the one that the operator names, else the process's own if it can have children.
    """
    own = _own()
    folder = configured or own
    if folder is None:
        return None, "control groups of version 2 are not mounted here"
    problem = _controllers_problem(folder, may_change=configured is not None) or _delegation_problem(
        folder, own
    )
    if problem:
        return None, f"{folder} {problem}"
    parent = CgroupParent(folder)
    parent.remove_stale()
    return parent, ""


def _controllers_problem(folder: Path, *, may_change: bool) -> str:
    """Return why a group does not enable the needed controllers; empty when it does, or does now."""
    control = folder / "cgroup.subtree_control"
    try:
        missing = sorted(NEEDED - set(control.read_text().split()))
    except OSError:
        return "is not a control group of version 2"
    if not missing:
        return ""
    problem = f"does not enable these controllers for its children: {', '.join(missing)}"
    if not may_change:
        return f"{problem}, as a group with processes of its own cannot"
    try:
        _write(control, " ".join(f"+{name}" for name in missing))
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror)
        return f"{problem}, and enabling them failed: {reason}"
    return ""


def _delegation_problem(folder: Path, own: Path | None) -> str:
    """Return why a sandbox cannot be moved into a child of this group; empty when it can."""
    probe = folder / f"{_NAME}-probe-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
        try:
            _write(probe / "memory.max", "max")
        finally:
            probe.rmdir()
    except OSError as error:
        return f"was not delegated to this user: {error.strerror}"
    if own is not None:
        # The kernel requires write access to the common ancestor of both groups.
        gate = Path(os.path.commonpath((own, folder)), "cgroup.procs")
        if gate.exists() and not os.access(gate, os.W_OK, effective_ids=True):
            return f"cannot be used: this user may not move a process there from {own}"
    return ""


def _own() -> Path | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    place = next((line[3:] for line in lines if line.startswith("0::")), None)
    if place is None or not (ROOT / "cgroup.controllers").exists():
        return None
    return ROOT / place.lstrip("/")


def _write(path: Path, text: str) -> None:
    """Write to an existing file of the kernel, without creating one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _counts(text: str) -> dict[str, int]:
    """Parse lines of a name and a number."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: _number(pair[1]) for pair in pairs if len(pair) == 2}


def _number(text: str) -> int:
    return int(text) if text.strip().isdecimal() else 0
