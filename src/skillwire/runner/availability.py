"""`Availability`: whether scripts can be run here, found out by running one."""

import json
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillwire.errors import RunnerError, SandboxUnavailableError
from skillwire.runner.policy import Interpreter, Limits, Policy
from skillwire.runner.sandbox.cgroups import FIX, UNUSABLE, delegated
from skillwire.runner.sandbox.command import ENVIRONMENT, IN_ETC, in_root
from skillwire.runner.sandbox.conversing import Job, Stop
from skillwire.runner.sandbox.diagnosis import INSTALL, diagnose
from skillwire.runner.sandbox.interpreters import (
    PYTHON_SUFFIX,
    find_bubblewrap,
    found_interpreters,
    is_reachable,
)
from skillwire.runner.sandbox.sandbox import Recipe, Sandbox
from skillwire.runner.sandbox.seccomp import filter_for

BACKEND = "bwrap"
_SELF_TEST_SECONDS = 20.0
_CANARY = "SKILLWIRE_SELF_TEST"

# Run inside: says what can be seen and done there, as JSON.
_LOOK = rb"""
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
_SEEN: dict[str, Any] = {
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
    """Whether scripts can be run here, as a real run has shown; if not, why, and what to do.

    `memory` says who counts it: the kernel's control groups, or the init.
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
            SandboxUnavailableError: They cannot.
        """
        if not self.is_available:
            raise SandboxUnavailableError(self.detail, reason=self.reason, backend=self.backend, fix=self.fix)


@dataclass(frozen=True, slots=True)
class Equipment:
    """What was found on this machine: how sandboxes are made, and which interpreters there are."""

    availability: Availability
    recipe: Recipe | None = None
    interpreters: tuple[tuple[str, Interpreter], ...] = ()


def equip(policy: Policy) -> Equipment:
    """Find what is needed and try it; blocks for a moment, and never raises."""
    try:
        recipe, interpreters, memory = _recipe(policy)
        _test(recipe, policy.limits)
    except SandboxUnavailableError as error:
        return Equipment(Availability(False, error.backend, str(error), error.fix, error.reason))
    except (RunnerError, OSError) as error:
        reason, fix = diagnose(str(error))
        return Equipment(Availability(False, BACKEND, str(error), fix, reason))
    return Equipment(Availability(True, memory=memory), recipe, tuple(interpreters.items()))


def _recipe(policy: Policy) -> tuple[Recipe, dict[str, Interpreter], str]:
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
            "no Python can be reached by the user that scripts run as",
            reason="interpreter_missing",
            fix="install one for all users (apt install python3), or name one in the policy",
        )
    cgroups, why_not = delegated(policy.cgroup)
    if policy.cgroup is not None and cgroups is None:
        raise SandboxUnavailableError(why_not, reason=UNUSABLE, fix=FIX)
    trees = {tree for interpreter in interpreters.values() for tree in interpreter.trees}
    recipe = Recipe(bubblewrap, python, tuple(sorted(trees)), uid, cgroups)
    memory = "control groups" if cgroups else f"watched every 40 ms: {why_not}"
    return recipe, interpreters, memory


def _require_reachable(interpreters: Iterable[Interpreter], uid: int | None) -> None:
    for interpreter in interpreters:
        for path in (interpreter.path, *interpreter.trees):
            if not is_reachable(path, uid):
                raise SandboxUnavailableError(
                    f"{path} cannot be read by the user that scripts run as",
                    reason="interpreter_unreachable",
                    fix="install it where everybody may read it, or name another in the policy",
                )
            if path in (Path("/"), Path("/etc"), Path("/home"), Path("/root"), Path("/run"), Path("/var")):
                raise SandboxUnavailableError(
                    f"{path} must not be shown to scripts", reason="policy_unsafe", fix="name a smaller tree"
                )


def _test(recipe: Recipe, limits: Limits) -> None:
    """Run a script that looks around, and compare what it saw with what it must see.

    Raises:
        SandboxUnavailableError: It saw more, or did not run.
    """
    job = Job(
        script="/skill/scripts/look.py",
        files={"scripts/look.py": _LOOK},
        stdin=b'{"given": true}',
        limits=Limits(
            wall_seconds=_SELF_TEST_SECONDS, disk_bytes=limits.disk_bytes, disk_files=limits.disk_files
        ),
        address_space=1 << 30,
        environment=ENVIRONMENT,
    )
    os.environ[_CANARY] = "1"
    stop = Stop()
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
    wrong = sorted(key for key, value in _SEEN.items() if seen.get(key) != value)
    shown = {"root": in_root(recipe.trees), "etc": IN_ETC}
    wrong += [key for key, names in shown.items() if not set(seen.get(key, ["?"])) <= names]
    if wrong or raw.status != 0 or [file.content for file in raw.files] != [b"proof"]:
        what = (
            ", ".join(wrong) or raw.stderr.decode("utf-8", "replace").strip()[-200:] or f"status {raw.status}"
        )
        raise SandboxUnavailableError(
            f"the sandbox is not what it must be: {what}",
            reason="self_test_failed",
            fix="do not run scripts here, and report this",
        )


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError:
        return {}
