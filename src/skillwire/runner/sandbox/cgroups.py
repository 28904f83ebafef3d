"""Control groups, version 2, where they were delegated to us: the kernel then counts memory and processes.

Whether they are is found out by making one. Where they are not, the init
watches memory itself, which is slower to notice and sees less.
"""

import errno
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from skillwire.errors import RunnerError, SandboxUnavailableError
from skillwire.runner.outcome import LimitHit
from skillwire.runner.policy import Limits
from skillwire.runner.sandbox.conversing import Raw

ROOT = Path("/sys/fs/cgroup")
NEEDED = frozenset({"memory", "pids"})
UNUSABLE = "cgroup_unusable"
FIX = "delegate it and run this process in a group inside of it, or leave it out"
_NAME = "skillwire"
_OURS = 2  # Processes in a group that are not the script's: bubblewrap and the init.
_UNPROTECTED = "500"
_REMOVE_SECONDS = 5.0
_REASONS = {
    errno.EBUSY: "there are processes in it itself",
    errno.ENOENT: "it does not get them from above",
}


class Cgroup:
    """The control group of one sandbox."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given = 0
        self._cpu = 0

    def adopt(self, *pids: int) -> None:
        """Take in processes that run no stranger's code yet; what they start is in here too.

        If we are protected from the kernel when memory runs out, they are not:
        it could end none of them, and they would stand still at the limit.

        Raises:
            SandboxUnavailableError: The kernel does not let us.
            RunnerError: One of them has ended.
        """
        try:
            for pid in pids:
                if pid:
                    self._write("cgroup.procs", pid)
                    with suppress(OSError):
                        _write(Path("/proc", str(pid), "oom_score_adj"), _UNPROTECTED)
        except ProcessLookupError as error:
            raise RunnerError("it ended") from error  # Its last words say why.
        except OSError as error:
            raise SandboxUnavailableError(
                f"the control group does not take the sandbox in: {error.strerror}", reason=UNUSABLE, fix=FIX
            ) from error

    def limit(self, limits: Limits, *, given: int = 0) -> None:
        """Let the kernel enforce memory and processes from here on.

        `given` is how many bytes the script is given as files. They lie in
        memory, and are not the script's doing. Where memory runs out everything
        in the group ends at once: the run is over, and which process the
        kernel would pick is anyone's guess.

        Raises:
            RunnerError: The kernel does not let us.
        """
        self._given, self._cpu = given, self._cpu_microseconds()
        try:
            self._write("memory.oom.group", 1)
            with suppress(OSError):  # There is no swap on some kernels.
                self._write("memory.swap.max", 0)
            self._write("pids.max", limits.processes + _OURS)
            self._write("memory.max", limits.memory_bytes + given)
        except OSError as error:
            raise RunnerError("the control group of a sandbox takes no limits") from error

    def hit(self, limits: Limits) -> LimitHit | None:
        """Return the limit at which the kernel has ended the run, if it has."""
        if not _counts(self._read("memory.events")).get("oom_kill"):
            return None
        return LimitHit("memory_bytes", limits.memory_bytes, self._peak() or limits.memory_bytes)

    def measured(self, raw: Raw, limits: Limits) -> Raw:
        """Put in what the kernel has counted, which is more exact than what was seen now and then."""
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
        """Remove the group, which is empty by now."""
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
        """Return the most memory that was used at one time; 0 where the kernel (before 5.19) does not say."""
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
    """A delegated control group in which those of sandboxes are made."""

    folder: Path

    def make(self) -> Cgroup:
        """Make a group for one sandbox.

        Raises:
            SandboxUnavailableError: It cannot be made any more.
        """
        folder = self.folder / f"{_NAME}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            folder.mkdir()
        except OSError as error:
            raise SandboxUnavailableError(
                "no control group can be made for a sandbox", reason=UNUSABLE, fix=FIX
            ) from error
        return Cgroup(folder)

    def sweep(self) -> None:
        """Remove the groups of processes that ended without doing so themselves."""
        for folder in self.folder.glob(f"{_NAME}-*-*"):
            pid = folder.name.split("-")[1]
            if pid.isdecimal() and not Path("/proc", pid).exists():
                with suppress(OSError):
                    folder.rmdir()


def delegated(configured: Path | None = None) -> tuple[CgroupParent | None, str]:
    """Return the control group we may use, or None and why there is none.

    It is the one that the operator names, else our own if it can have children.
    """
    own = _own()
    folder = configured or own
    if folder is None:
        return None, "control groups of version 2 are not mounted here"
    problem = _handing_on_problem(folder, may_change=configured is not None) or _making_problem(folder, own)
    if problem:
        return None, f"{folder} {problem}"
    parent = CgroupParent(folder)
    parent.sweep()
    return parent, ""


def _handing_on_problem(folder: Path, *, may_change: bool) -> str:
    """Say why a group does not hand on the controllers we need; empty when it does, if only since now."""
    control = folder / "cgroup.subtree_control"
    try:
        missing = sorted(NEEDED - set(control.read_text().split()))
    except OSError:
        return "is no control group of version 2"
    if not missing:
        return ""
    problem = f"does not hand on these controllers: {', '.join(missing)}"
    if not may_change:
        return f"{problem}, as none does that this process itself is in"
    try:
        _write(control, " ".join(f"+{name}" for name in missing))
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror)
        return f"{problem}, and cannot be made to: {reason}"
    return ""


def _making_problem(folder: Path, own: Path | None) -> str:
    """Say why no sandbox can be put into a group under this one; empty when it can."""
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
        # The kernel wants to see this right where the two ways part.
        gate = Path(os.path.commonpath((own, folder)), "cgroup.procs")
        if gate.exists() and not os.access(gate, os.W_OK, effective_ids=True):
            return f"is out of reach: this user may move no process there from {own}"
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
    """Write to a file that the kernel has put there, and never make one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _counts(text: str) -> dict[str, int]:
    """Read lines of a name and a number."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: _number(pair[1]) for pair in pairs if len(pair) == 2}


def _number(text: str) -> int:
    return int(text) if text.strip().isdecimal() else 0
