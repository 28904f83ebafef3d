"""`Sandbox`: a set of namespaces with one init, for one run.

This is synchronous on purpose: a run is one loop over a few descriptors, in a
thread of its own.
"""

import json
import logging
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from skillwire.core import RunnerError, SandboxUnavailableError
from skillwire.runner.outcome import RawOutcome
from skillwire.runner.policy import MIB, Interpreter, Limits, Policy
from skillwire.runner.sandbox.cgroups import FIX, UNUSABLE, Cgroup, CgroupParent, delegated
from skillwire.runner.sandbox.command import (
    ENVIRONMENT,
    IN_ETC,
    PYTHON_SUFFIX,
    SEARCH_PATH,
    bubblewrap_command,
    find_bubblewrap,
    found_interpreters,
    in_root,
    is_reachable,
)
from skillwire.runner.sandbox.conversation import (
    Job,
    SandboxRun,
    StopSignal,
    message,
    parse_message,
    receive_message,
)
from skillwire.runner.sandbox.seccomp import filter_for

START_SECONDS = 15.0
END_SECONDS = 15.0
HOLD_BYTES = 24 * MIB
HOLD_FILES = 4096
_MAX_WORDS = 4096
_OWN_FILES = 4  # The root of the file system and the three folders in it.
_CONFINED = {"NoNewPrivs": 1, "Seccomp": 2, "CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0}


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """How sandboxes are started on this machine. `uid` is the user to switch to, None for the current one."""

    bubblewrap: Path
    python: Interpreter
    trees: tuple[Path, ...] = ()
    uid: int | None = None
    cgroups: CgroupParent | None = None


class Sandbox:
    """One sandbox: started by `start`, used once by `run`, ended by `close`."""

    def __init__(
        self, process: subprocess.Popen[bytes], connection: socket.socket, cgroup: Cgroup | None
    ) -> None:
        self._process = process
        self._connection = connection
        self._cgroup = cgroup
        self._pid = 0
        self._pidfd = -1

    @classmethod
    def start(cls, recipe: SandboxConfig, limits: Limits) -> "Sandbox":
        """Start a sandbox with the disk size of `limits`, and wait until it is ready.

        Raises:
            SandboxUnavailableError: It does not start, or is not confined as required.
        """
        cgroup = recipe.cgroups.make() if recipe.cgroups else None
        ours, theirs = socket.socketpair()
        status_read, status_write = os.pipe()
        with theirs, open(status_read, "rb") as status:
            try:
                process = _spawn(recipe, theirs.fileno(), status_write, keep_open=status_read)
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
                sandbox._prepare(status, limits)
                sandbox._check(recipe)
            except BaseException:
                sandbox.close()
                raise
        return sandbox

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: Job, stop: StopSignal) -> RawOutcome:
        """Run one script, and return after all its processes have ended.

        Raises:
            Stopped: `stop` was set.
            RunnerError: The sandbox failed.
        """
        cgroup, limits = self._cgroup, job.limits
        try:
            if cgroup is not None:
                cgroup.limit(limits, given=job.given_bytes)
                job = replace(job, is_counted_outside=True)
            with SandboxRun(self._process, self._connection, job, stop, kill=self.kill) as run:
                try:
                    run.send()
                    run.relay()
                except RunnerError:
                    if cgroup is None or cgroup.hit(limits) is None:
                        raise
                    self.kill()
                self._wait_until_gone()
                if cgroup is None:
                    return run.finish()
                # Read the usage now: closing removes the group.
                return cgroup.measured(run.finish(cgroup.hit(limits)), limits)
        finally:
            self.close()

    def kill(self) -> None:
        """Kill everything in the sandbox, without waiting for it to end."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        elif self._process.returncode is None:
            # PID 1 is not known yet; it and bubblewrap are both still in bubblewrap's process group. Until
            # bubblewrap is waited for, its PID cannot be reused, even if it has ended.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """End everything, wait for it, and release its resources."""
        self.kill()
        with suppress(RunnerError):
            self._wait_until_gone()
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

    def _prepare(self, status: IO[bytes], limits: Limits) -> None:
        """Find PID 1, send it its setup, and wait until it has dropped its privileges."""
        self._connection.settimeout(START_SECONDS)
        try:
            self._pid = _child_pid(status)
            if self._pid:
                self._pidfd = os.pidfd_open(self._pid)
            if self._cgroup is not None:
                self._cgroup.add(self._process.pid, self._pid)
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
                self._error_line() or f"the sandbox does not start: {error}"
            ) from error
        if answer != {"ready": True}:
            raise SandboxUnavailableError(self._error_line() or "the sandbox ended before it was ready")

    def _check(self, recipe: SandboxConfig) -> None:
        """Check from outside that PID 1 has dropped all privileges, before it gets a job.

        Raises:
            SandboxUnavailableError: It has not, or cannot be inspected.
        """
        try:
            text = Path(f"/proc/{self._pid}/status").read_text("ascii", "replace")
        except OSError as error:
            raise SandboxUnavailableError("the sandbox cannot be inspected from outside") from error
        lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        for name, wanted in _CONFINED.items():
            if int(lines.get(name, "-1").strip() or "-1", 16) != wanted:
                raise SandboxUnavailableError(
                    f"the sandbox is not confined: {name} is {lines.get(name, '').strip()}"
                )
        if recipe.uid is not None and set(lines.get("Uid", "0").split()) != {str(recipe.uid)}:
            raise SandboxUnavailableError("the sandbox is not confined: it runs as the wrong user")

    def _error_line(self) -> str:
        """Return the last line that bubblewrap or the init wrote to standard error."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        if self._process.stderr is None:
            return ""
        words = os.read(self._process.stderr.fileno(), _MAX_WORDS)
        lines = words.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _wait_until_gone(self) -> None:
        """Wait until PID 1 has ended, and with it everything in its PID namespace.

        Raises:
            RunnerError: It has not ended in time.
        """
        deadline = time.monotonic() + END_SECONDS
        if self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(END_SECONDS * 1000):
                raise RunnerError("a sandbox did not end in time")
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise RunnerError("bubblewrap did not end in time") from error


@cache
def _init_source() -> str:
    return Path(__file__).with_name("init.py").read_text("utf-8")


def _spawn(recipe: SandboxConfig, control: int, status: int, *, keep_open: int) -> subprocess.Popen[bytes]:
    """Start bubblewrap as an unprivileged user, inheriting only what it needs.

    `keep_open` is the read end of the pipe that `status` writes to. Bubblewrap
    inherits it as well, so the pipe stays whole when this process is killed.
    Otherwise it would be killed by SIGPIPE between cloning the first process of the
    sandbox and letting it continue, and that process would wait forever.
    This way the init always starts, and ends when it finds its connection closed.
    """
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
        # Its environment can be read from inside, so it does not inherit ours.
        env={"PATH": SEARCH_PATH, "LANG": ENVIRONMENT["LANG"]},
        cwd="/",
        close_fds=True,
        pass_fds=(control, status, keep_open),
        start_new_session=True,
        umask=0o077,
        **identity,
    )


def _child_pid(status: IO[bytes]) -> int:
    """Return the process that is PID 1 inside, as bubblewrap reports it; 0 when it ended before."""
    poll = select.poll()
    poll.register(status.fileno(), select.POLLIN)
    if not poll.poll(START_SECONDS * 1000):
        raise TimeoutError("bubblewrap did not report in time")
    line = status.readline(_MAX_WORDS)
    pid = parse_message(line).get("child-pid", 0) if line else 0
    return pid if isinstance(pid, int) else 0


# `Pool`: sandboxes that are started in advance, each for one run.


_RETRY_SECONDS = 30.0

logger = logging.getLogger(__name__)


class Pool:
    """A few sandboxes that are ready; a thread starts new ones between runs."""

    def __init__(self, recipe: SandboxConfig, limits: Limits, size: int) -> None:
        self._recipe = recipe
        self._limits = limits
        self._size = size
        self._ready: deque[Sandbox] = deque()
        self._wanted = size
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._fill, name="skillwire-sandboxes", daemon=True)

    def __enter__(self) -> "Pool":
        if self._size:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._size:
            self._thread.join()
        while self._ready:
            self._ready.pop().close()

    def take(self, limits: Limits) -> Sandbox | None:
        """Return a ready sandbox with the disk size of `limits`; None when there is none."""
        if (limits.disk_bytes, limits.disk_files) != (self._limits.disk_bytes, self._limits.disk_files):
            return None
        while True:
            with self._changed:
                if not self._ready:
                    return None
                sandbox = self._ready.popleft()
            if sandbox.is_alive:
                return sandbox
            sandbox.close()

    def replenish(self) -> None:
        """Start missing sandboxes; called after a run, so that this does not slow it down."""
        with self._changed:
            self._wanted = self._size
            self._changed.notify_all()

    def wait_until_full(self, seconds: float) -> bool:
        """Wait until all are ready, and return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._ready) >= self._size, seconds)

    def _fill(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or len(self._ready) < self._wanted)
                if self._is_closing:
                    return
            try:
                sandbox = Sandbox.start(self._recipe, self._limits)
            except RunnerError as error:
                logger.warning("cannot start a sandbox in advance: %s", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closing, _RETRY_SECONDS)
                continue
            with self._changed:
                self._ready.append(sandbox)
                if len(self._ready) >= self._size:
                    self._wanted = 0
                self._changed.notify_all()


# Find out why a sandbox does not start, and what an operator can do about it.


RESTRICTED = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
MOST = "/proc/sys/user/max_user_namespaces"
CLONE = "/proc/sys/kernel/unprivileged_userns_clone"

INSTALL = "install bubblewrap: apt install bubblewrap, dnf install bubblewrap, or the like"
PROFILE = (
    "allow this one program to create user namespaces: write an AppArmor profile /etc/apparmor.d/bwrap with\n"
    "    abi <abi/4.0>,\n"
    "    include <tunables/global>\n"
    "    profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }\n"
    "and load it with: apparmor_parser -r /etc/apparmor.d/bwrap"
)
_CONTAINER = (
    "in a container, configure its runtime to allow user namespaces (for Docker: --security-opt seccomp=… "
    "with clone and unshare allowed, and --security-opt systempaths=unconfined), or run skillwire outside it"
)
_NAMESPACES = (
    "uid map",
    "rtm_newaddr",
    "creating new namespace",
    "no permissions to create",
    "operation not permitted",
    "permission denied",
)


class Diagnosis(NamedTuple):
    """A stable reason code, and the remedy."""

    reason: str
    fix: str


def setting(path: str) -> str:
    """Return a kernel setting; empty when it cannot be read."""
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def diagnose(detail: str, read: Callable[[str], str] = setting) -> Diagnosis:
    """Return why a sandbox did not start, from its error message."""
    words = detail.casefold()
    if read(MOST) == "0" or read(CLONE) == "0":
        return Diagnosis(
            "user_namespaces_off",
            "user namespaces are switched off; allow them: sysctl user.max_user_namespaces=15000 "
            "(on some systems kernel.unprivileged_userns_clone=1)",
        )
    if any(sign in words for sign in _NAMESPACES):
        if read(RESTRICTED) == "1":
            return Diagnosis("apparmor_restricts_user_namespaces", PROFILE)
        if "uid map" in words or "rtm_newaddr" in words:
            return Diagnosis("user_namespaces_restricted", f"{PROFILE}\nor, {_CONTAINER}")
        return Diagnosis("user_namespaces_restricted", _CONTAINER)
    return Diagnosis("sandbox_unavailable", "see the detail; skillwire doctor tries again")


BACKEND = "bwrap"
_SELF_TEST_SECONDS = 20.0
_CANARY = "SKILLWIRE_SELF_TEST"

# Runs inside the sandbox, and prints as JSON what it can see and do there.
_SELF_TEST = rb"""
import json, os, socket, sys

def works(action):
    try:
        action()
    except OSError:
        return False
    return True

with open("/proc/net/dev") as file:
    interfaces = [line.split(":")[0].strip() for line in file if ":" in line]
print(json.dumps({
    "uid": os.getuid(),
    "given": json.load(sys.stdin),
    "environment": sorted(os.environ),
    "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()),
    "interfaces": interfaces,
    "root_writable": works(lambda: os.mkdir("/escape")),
    "usr_writable": works(lambda: os.mkdir("/usr/escape")),
    "shadow": works(lambda: open("/etc/shadow")),
    "root": sorted(os.listdir("/")),
    "etc": sorted(os.listdir("/etc")),
    "init_environment": works(lambda: open("/proc/1/environ").read()),
    "netlink": works(lambda: socket.socket(16, 3, 0).close()),
}))
open("/out/proof", "w").write("proof")
"""
_EXPECTED: dict[str, Any] = {
    "uid": 1000,
    "given": {"given": True},
    "environment": sorted(ENVIRONMENT),
    "processes": ["1", "2"],
    "interfaces": ["lo"],
    "root_writable": False,
    "usr_writable": False,
    "shadow": False,
    "init_environment": False,
    "netlink": False,
}


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether scripts can be run here, as a test run has shown; if not, why, and what to do.

    `memory` describes how memory is limited: by the kernel's control groups, or by the sandbox's init.
    """

    is_available: bool
    backend: str = BACKEND
    detail: str = ""
    fix: str = ""
    reason: str = "sandbox_unavailable"
    memory: str = ""

    def require(self) -> None:
        """Raise unless scripts can be run.

        Raises:
            SandboxUnavailableError: Scripts cannot be run.
        """
        if not self.is_available:
            raise SandboxUnavailableError(self.detail, reason=self.reason, backend=self.backend, fix=self.fix)


@dataclass(frozen=True, slots=True)
class SandboxSetup:
    """What was found on this machine: how sandboxes are started, and which interpreters there are."""

    availability: Availability
    recipe: SandboxConfig | None = None
    interpreters: tuple[tuple[str, Interpreter], ...] = ()


def probe_sandbox(policy: Policy) -> SandboxSetup:
    """Find what a sandbox needs and run a self-test; blocks for a moment, and never raises."""
    try:
        recipe, interpreters, memory = _recipe(policy)
        _test(recipe, policy.limits)
    except SandboxUnavailableError as error:
        return SandboxSetup(Availability(False, error.backend, str(error), error.fix, error.reason))
    except (RunnerError, OSError) as error:
        reason, fix = diagnose(str(error))
        return SandboxSetup(Availability(False, BACKEND, str(error), fix, reason))
    return SandboxSetup(Availability(True, memory=memory), recipe, tuple(interpreters.items()))


def _recipe(policy: Policy) -> tuple[SandboxConfig, dict[str, Interpreter], str]:
    if sys.platform != "linux":
        raise SandboxUnavailableError(
            f"there is no sandbox for {platform.system() or 'this system'}",
            reason="platform_unsupported",
            fix="run scripts on Linux; everything else works here",
        )
    filter_for(platform.machine())
    bubblewrap = find_bubblewrap(policy.bubblewrap)
    if bubblewrap is None:
        raise SandboxUnavailableError("bubblewrap is not installed", reason="bubblewrap_missing", fix=INSTALL)
    is_root = os.geteuid() == 0
    if is_root and policy.uid == 0:
        raise SandboxUnavailableError(
            "scripts must not run as root", reason="policy_unsafe", fix="name another `uid` in the policy"
        )
    uid = policy.uid if is_root else None
    known = {**found_interpreters(uid), **policy.interpreters}
    interpreters = {suffix: found for suffix, found in known.items() if found is not None}
    _require_reachable(interpreters.values(), uid)
    python = interpreters.get(PYTHON_SUFFIX)
    if python is None:
        raise SandboxUnavailableError(
            "the user that scripts run as cannot read any Python",
            reason="interpreter_missing",
            fix="install one for all users (apt install python3), or name one in the policy",
        )
    cgroups, why_not = delegated(policy.cgroup)
    if policy.cgroup is not None and cgroups is None:
        raise SandboxUnavailableError(why_not, reason=UNUSABLE, fix=FIX)
    trees = {tree for interpreter in interpreters.values() for tree in interpreter.trees}
    recipe = SandboxConfig(bubblewrap, python, tuple(sorted(trees)), uid, cgroups)
    memory = "control groups" if cgroups else f"sampled every 40 ms: {why_not}"
    return recipe, interpreters, memory


def _require_reachable(interpreters: Iterable[Interpreter], uid: int | None) -> None:
    for interpreter in interpreters:
        for path in (interpreter.path, *interpreter.trees):
            if not is_reachable(path, uid):
                raise SandboxUnavailableError(
                    f"{path} cannot be read by the user that scripts run as",
                    reason="interpreter_unreachable",
                    fix="install it where every user can read it, or name another one in the policy",
                )
            if path in (Path("/"), Path("/etc"), Path("/home"), Path("/root"), Path("/run"), Path("/var")):
                raise SandboxUnavailableError(
                    f"{path} must not be visible to scripts",
                    reason="policy_unsafe",
                    fix="name a smaller tree",
                )


def _test(recipe: SandboxConfig, limits: Limits) -> None:
    """Run a script that probes the sandbox, and compare what it found with what it must find.

    Raises:
        SandboxUnavailableError: It found more, or did not run.
    """
    job = Job(
        script="/skill/scripts/look.py",
        files={"scripts/look.py": _SELF_TEST},
        stdin=b'{"given": true}',
        limits=Limits(
            wall_seconds=_SELF_TEST_SECONDS, disk_bytes=limits.disk_bytes, disk_files=limits.disk_files
        ),
        address_space=1 << 30,
        environment=ENVIRONMENT,
    )
    os.environ[_CANARY] = "1"
    stop = StopSignal()
    try:
        raw = Sandbox.start(recipe, limits).run(job, stop)
    except RunnerError as error:
        if isinstance(error, SandboxUnavailableError) and error.fix:
            raise
        reason, fix = diagnose(str(error))
        raise SandboxUnavailableError(str(error), reason=reason, fix=fix) from error
    finally:
        stop.close()
        os.environ.pop(_CANARY, None)
    seen = _parsed(raw.stdout)
    wrong = sorted(key for key, value in _EXPECTED.items() if seen.get(key) != value)
    shown = {"root": in_root(recipe.trees), "etc": IN_ETC}
    wrong += [key for key, names in shown.items() if not set(seen.get(key, ["?"])) <= names]
    if wrong or raw.status != 0 or [file.content for file in raw.files] != [b"proof"]:
        what = (
            ", ".join(wrong) or raw.stderr.decode("utf-8", "replace").strip()[-200:] or f"status {raw.status}"
        )
        raise SandboxUnavailableError(
            f"the self-test of the sandbox failed: {what}",
            reason="self_test_failed",
            fix="do not run scripts here, and report this",
        )


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError:
        return {}
