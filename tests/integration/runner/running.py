"""Running a few lines of code in a real sandbox, for tests of what comes of it."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from skillwire.core.yaml12 import JsonValue
from skillwire.runner import Outcome, Policy, Recorder, Runner, RunRecord, ScriptInterface, ScriptRun

SKILL = "skill://lab/SKILL.md"
DEADLINE = 60.0

# Where nothing may be missing, what is missing makes a test fail.
_IS_STRICT = bool(os.environ.get("CI") or os.environ.get("SKILLWIRE_REQUIRE_ALL"))

needs_sandbox = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not (_IS_STRICT or Path("/usr/bin/bwrap").exists()),
    reason="bubblewrap is not installed here",
)


def script_run(
    code: str,
    *,
    name: str = "a.py",
    interface: ScriptInterface | None = None,
    arguments: Mapping[str, JsonValue] | None = None,
    files: Mapping[str, bytes] | None = None,
    origin: str = "",
) -> ScriptRun:
    """Return a run of this code as the only script of a skill."""
    path = f"scripts/{name}"
    return ScriptRun(
        SKILL,
        path,
        {**(files or {}), path: code.encode()},
        arguments or {},
        interface or ScriptInterface(),
        origin=origin,
    )


async def ran(run: ScriptRun, policy: Policy | None = None, *, record: Recorder | None = None) -> Outcome:
    """Run it with nothing started ahead, and wait for it no longer than a test may."""
    with anyio.fail_after(DEADLINE):
        async with Runner(policy or Policy(pool=0), record=record or _forget) as runner:
            found = runner.availability
            assert found.is_available, f"{found.reason}: {found.detail}"
            return await runner.run(run)


def _forget(record: RunRecord) -> None:
    """Most tests are not about records."""
