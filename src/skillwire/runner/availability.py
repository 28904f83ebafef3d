"""`Availability`: whether scripts can be run here, tested by running one."""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from skillwire.core import RunnerError, SandboxUnavailableError
from skillwire.runner.policy import Interpreter, Limits, Policy
from skillwire.runner.sandbox.cgroups import FIX, UNUSABLE, delegated
from skillwire.runner.sandbox.command import (
    ENVIRONMENT,
    IN_ETC,
    PYTHON_SUFFIX,
    find_bubblewrap,
    found_interpreters,
    in_root,
    is_reachable,
)
from skillwire.runner.sandbox.conversation import Job, StopSignal
from skillwire.runner.sandbox.sandbox import Sandbox, SandboxConfig
from skillwire.runner.sandbox.seccomp import filter_for

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
