"""Control groups, version 2, where they were delegated to us: the kernel then counts memory and processes.

Whether they are is found out by making one. Where they are not, the init
watches memory itself, which is slower to notice and sees less.
"""

import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from skillwire.errors import RunnerError
from skillwire.runner.outcome import LimitHit
from skillwire.runner.policy import Limits
from skillwire.runner.sandbox.conversing import Raw

ROOT = Path("/sys/fs/cgroup")
NEEDED = frozenset({"memory", "pids"})
_REMOVE_SECONDS = 5.0


class Cgroup:
    """The control group of one sandbox."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def adopt(self, *pids: int) -> None:
        """Take in processes that run no stranger's code yet; what they start is in here too.

        Raises:
            RunnerError: The kernel does not let us.
        """
        try:
            for pid in pids:
                if pid:
                    self._write("cgroup.procs", pid)
        except OSError as error:
            raise RunnerError("the control group does not take the sandbox in") from error

    def limit(self, limits: Limits) -> None:
        """Let the kernel enforce memory and processes from here on."""
        self._write("memory.max", limits.memory_bytes)
        self._write("memory.oom.group", 0)
        with suppress(OSError):  # There is no swap on some kernels.
            self._write("memory.swap.max", 0)
        self._write("pids.max", limits.processes + 2)  # bubblewrap and the init

    def judged(self, raw: Raw, limits: Limits) -> Raw:
        """Add to a result what only the kernel has seen."""
        events = dict(line.split() for line in self._read("memory.events").splitlines())
        peak = max(raw.usage.memory_bytes, int(self._read("memory.peak") or 0))
        raw = replace(raw, usage=replace(raw.usage, memory_bytes=peak))
        if raw.limit is None and int(events.get("oom_kill", 0)):
            return replace(
                raw, limit=LimitHit("memory_bytes", limits.memory_bytes, peak), files=(), skipped=()
            )
        return raw

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

    def _write(self, name: str, value: int) -> None:
        (self._folder / name).write_text(str(value))

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
            RunnerError: It cannot be made any more.
        """
        folder = self.folder / f"skillwire-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            folder.mkdir()
        except OSError as error:
            raise RunnerError("no control group can be made for a sandbox") from error
        return Cgroup(folder)


def delegated(configured: Path | None = None) -> tuple[CgroupParent | None, str]:
    """Return the control group we may use, or None and why there is none.

    It is the one that the operator names, else our own if it can have children.
    """
    folder = configured or _own()
    if folder is None:
        return None, "control groups of version 2 are not mounted here"
    try:
        enabled = set((folder / "cgroup.subtree_control").read_text().split())
    except OSError:
        return None, f"{folder} is no control group of version 2"
    if not NEEDED <= enabled:
        missing = ", ".join(sorted(NEEDED - enabled))
        return None, f"{folder} does not hand on these controllers: {missing}"
    probe = folder / f"skillwire-probe-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
        (probe / "memory.max").write_text("max")
        probe.rmdir()
    except OSError as error:
        with suppress(OSError):
            probe.rmdir()
        return None, f"{folder} was not delegated to this user: {error.strerror}"
    return CgroupParent(folder), ""


def _own() -> Path | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    place = next((line[3:] for line in lines if line.startswith("0::")), None)
    if place is None or not (ROOT / "cgroup.controllers").exists():
        return None
    return ROOT / place.lstrip("/")
