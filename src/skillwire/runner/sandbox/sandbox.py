"""`Sandbox`: one namespace with one init, for one run, and then no more.

Synchronous on purpose: a run is one loop over a few descriptors, and lives in
a thread of its own.
"""

import os
import platform
import select
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from skillwire.errors import RunnerError, SandboxUnavailableError
from skillwire.runner.policy import MIB, Interpreter, Limits
from skillwire.runner.sandbox.cgroups import Cgroup, CgroupParent
from skillwire.runner.sandbox.command import ENVIRONMENT, SEARCH_PATH, bubblewrap_command
from skillwire.runner.sandbox.conversing import Job, Raw, Run, Stop
from skillwire.runner.sandbox.messages import message, parse_message, receive_message
from skillwire.runner.sandbox.seccomp import filter_for

START_SECONDS = 15.0
DEATH_SECONDS = 15.0
HOLD_BYTES = 24 * MIB
HOLD_FILES = 4096
_MAX_WORDS = 4096
_OWN_FILES = 4  # The root of the file system and the three folders in it.
_CONFINED = {"NoNewPrivs": 1, "Seccomp": 2, "CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How sandboxes are made on this machine. `uid` is whom to become first, None to stay who we are."""

    bubblewrap: Path
    python: Interpreter
    trees: tuple[Path, ...] = ()
    uid: int | None = None
    cgroups: CgroupParent | None = None


class Sandbox:
    """One sandbox: started by `start`, used once by `run`, gone after `close`."""

    def __init__(
        self, process: subprocess.Popen[bytes], connection: socket.socket, cgroup: Cgroup | None
    ) -> None:
        self._process = process
        self._connection = connection
        self._cgroup = cgroup
        self._pid = 0
        self._pidfd = -1

    @classmethod
    def start(cls, recipe: Recipe, limits: Limits) -> "Sandbox":
        """Start a sandbox whose disk is as large as `limits` say, and wait until it is ready.

        Raises:
            SandboxUnavailableError: It does not start, or is not as tight as it must be.
        """
        cgroup = recipe.cgroups.make() if recipe.cgroups else None
        ours, theirs = socket.socketpair()
        status_read, status_write = os.pipe()
        with theirs, open(status_read, "rb") as status:
            try:
                process = _spawned(recipe, theirs.fileno(), status_write)
            except OSError as error:
                ours.close()
                if cgroup is not None:
                    cgroup.remove()
                raise SandboxUnavailableError(f"bubblewrap cannot be started: {error.strerror}") from error
            finally:
                os.close(status_write)
            theirs.close()
            sandbox = cls(process, ours, cgroup)
            try:
                sandbox._settle(status, limits)
                sandbox._check(recipe)
            except BaseException:
                sandbox.close()
                raise
        return sandbox

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: Job, stop: Stop) -> Raw:
        """Run one script, and return when nothing of it is left.

        Raises:
            Stopped: `stop` was set.
            RunnerError: The sandbox broke.
        """
        cgroup, limits = self._cgroup, job.limits
        try:
            if cgroup is not None:
                cgroup.limit(limits, given=job.given_bytes)
                job = replace(job, is_counted_outside=True)
            with Run(self._process, self._connection, job, stop, kill=self.kill) as run:
                try:
                    run.send()
                    run.attend()
                except RunnerError:
                    if cgroup is None or cgroup.hit(limits) is None:
                        raise
                    self.kill()
                self._await_death()
                if cgroup is None:
                    return run.finish()
                # Closing removes the group, and with it what it has to say.
                return cgroup.measured(run.finish(cgroup.hit(limits)), limits)
        finally:
            self.close()

    def kill(self) -> None:
        """End everything in the sandbox; it takes a moment."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        elif self._process.poll() is None:
            # It has not said yet which process is PID 1; both are still in the group that it leads.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """End everything, wait until it is gone, and let go of what belonged to it."""
        self.kill()
        with suppress(RunnerError):
            self._await_death()
        self._connection.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self._cgroup is not None:
            self._cgroup.remove()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _settle(self, status: IO[bytes], limits: Limits) -> None:
        """Get to know PID 1, let it prepare, and wait until it has given up its rights."""
        self._connection.settimeout(START_SECONDS)
        try:
            self._pid = _child_pid(status)
            if self._pid:
                self._pidfd = os.pidfd_open(self._pid)
            if self._cgroup is not None:
                self._cgroup.adopt(self._process.pid, self._pid)
            program = filter_for(platform.machine())
            setup = {
                "disk_bytes": limits.disk_bytes,
                "disk_files": limits.disk_files + _OWN_FILES,
                "hold_bytes": HOLD_BYTES,
                "hold_files": HOLD_FILES,
                "filter_bytes": len(program),
            }
            self._connection.sendall(message(setup) + program)
            answer = receive_message(self._connection)
        except (OSError, RunnerError) as error:
            if isinstance(error, SandboxUnavailableError):
                raise
            raise SandboxUnavailableError(
                self._last_words() or f"the sandbox does not start: {error}"
            ) from error
        if answer != {"ready": True}:
            raise SandboxUnavailableError(self._last_words() or "the sandbox ended before it was ready")

    def _check(self, recipe: Recipe) -> None:
        """Look from outside whether PID 1 has really given everything up, before it gets anything to run."""
        try:
            text = Path(f"/proc/{self._pid}/status").read_text("ascii", "replace")
        except OSError as error:
            raise SandboxUnavailableError("the sandbox cannot be looked at from outside") from error
        lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        for name, wanted in _CONFINED.items():
            if int(lines.get(name, "-1").strip() or "-1", 16) != wanted:
                raise SandboxUnavailableError(
                    f"the sandbox is not tight: {name} is {lines.get(name, '').strip()}"
                )
        if recipe.uid is not None and set(lines.get("Uid", "0").split()) != {str(recipe.uid)}:
            raise SandboxUnavailableError("the sandbox is not tight: it runs as another user than it should")

    def _last_words(self) -> str:
        """Return what bubblewrap or the init said when it failed."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_SECONDS)
        if self._process.stderr is None:
            return ""
        words = os.read(self._process.stderr.fileno(), _MAX_WORDS)
        lines = words.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _await_death(self) -> None:
        """Wait until PID 1 is gone, and with it, as the kernel sees to, everything in its namespace.

        Raises:
            RunnerError: It is not, after a long time.
        """
        deadline = time.monotonic() + DEATH_SECONDS
        if self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(DEATH_SECONDS * 1000):
                raise RunnerError("a sandbox does not end")
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise RunnerError("bubblewrap does not end") from error


@cache
def _init_source() -> str:
    return Path(__file__).with_name("init.py").read_text("utf-8")


def _spawned(recipe: Recipe, control: int, status: int) -> subprocess.Popen[bytes]:
    """Start bubblewrap as nobody, with nothing inherited but what it needs."""
    identity: dict[str, Any] = {}
    if recipe.uid is not None:
        identity = {"user": recipe.uid, "group": recipe.uid, "extra_groups": []}
    command = bubblewrap_command(
        recipe.bubblewrap, recipe.python, recipe.trees, source=_init_source(), control=control, status=status
    )
    return subprocess.Popen[bytes](
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Its own environment can be read from inside, so it gets none of ours.
        env={"PATH": SEARCH_PATH, "LANG": ENVIRONMENT["LANG"]},
        cwd="/",
        close_fds=True,
        pass_fds=(control, status),
        start_new_session=True,
        umask=0o077,
        **identity,
    )


def _child_pid(status: IO[bytes]) -> int:
    """Read from bubblewrap which process is PID 1 inside; 0 when it ended before it had one."""
    poll = select.poll()
    poll.register(status.fileno(), select.POLLIN)
    if not poll.poll(START_SECONDS * 1000):
        raise TimeoutError("bubblewrap does not answer")
    line = status.readline(_MAX_WORDS)
    pid = parse_message(line).get("child-pid", 0) if line else 0
    return pid if isinstance(pid, int) else 0
