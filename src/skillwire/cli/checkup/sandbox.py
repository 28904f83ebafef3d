"""Scripts of skills: whether they can be run here, which kinds, and who watches their memory.

Nothing is guessed: a sandbox is made, and a small script run in it for each interpreter.
"""

import sys
from collections.abc import Mapping

import anyio

from skillwire.cli.checkup.check import Area, Check
from skillwire.errors import RunnerError
from skillwire.host.asking import one_line
from skillwire.runner import Availability, Limits, Policy, Runner, RunRecord, ScriptRun

SECONDS = 20.0

_AREA = Area("sandbox")
_POLICY = Policy(limits=Limits(wall_seconds=5, cpu_seconds=5), pool=0)
_SAID = "well"
_TRIALS: Mapping[str, tuple[str, str]] = {
    # By suffix: what people call it, and a script that says which one it is.
    ".py": ("Python", f'import platform; print("{_SAID}", platform.python_version())'),
    ".sh": ("shell", f'echo "{_SAID} $BASH_VERSION"'),
    ".js": ("Node", f'console.log("{_SAID}", process.version)'),
}


async def check_sandbox(policy: Policy = _POLICY) -> list[Check]:
    """Try whether scripts can be run here, in a few seconds at most."""
    if not sys.platform.startswith("linux"):
        words = "there is no sandbox for this system, so scripts of skills are not run here"
        return [_AREA.note("scripts", words, "run them on a Linux machine, or on their server")]
    try:
        with anyio.fail_after(SECONDS):
            async with Runner(policy, record=_forget) as runner:
                if not runner.availability.is_available:
                    return [_unavailable(runner.availability)]
                return [
                    _AREA.ok(
                        "scripts", f"they can be run, in a sandbox made by {runner.availability.backend}"
                    ),
                    *[await _trial(runner, suffix) for suffix in _TRIALS],
                    _memory(runner.availability),
                ]
    except TimeoutError:
        fix = "look at what slows this machine down; nothing is run without a sandbox"
        return [_AREA.warning("scripts", f"no sandbox was made within {SECONDS:g} seconds", fix)]


def _unavailable(found: Availability) -> Check:
    words = f"they are not run here, because there is no sandbox: {one_line(found.detail)} [{found.reason}]"
    return _AREA.warning("scripts", words, one_line(found.fix) or "install bubblewrap")


async def _trial(runner: Runner, suffix: str) -> Check:
    name, content = _TRIALS[suffix]
    path = f"scripts/trial{suffix}"
    subject = f"{name} ({suffix})"
    if not runner.takes(path):
        return _AREA.note(subject, f"there is no interpreter for {suffix}, so such scripts are not run")
    run = ScriptRun("skill://doctor/SKILL.md", path, {path: content.encode()}, approval="doctor")
    try:
        outcome = await runner.run(run)
    except RunnerError as error:
        return _AREA.warning(subject, f"its scripts cannot be run: {error}", error.fix or _fix(suffix))
    said, _, version = outcome.stdout.strip().partition(" ")
    if outcome.is_error or said != _SAID:
        why = one_line(f"{outcome.verdict}: {outcome.stderr.strip()}".rstrip(": "), 200)
        return _AREA.warning(
            subject, f"a script that does nothing failed in the sandbox: {why}", _fix(suffix)
        )
    return _AREA.ok(subject, f"runs in the sandbox{f', version {one_line(version, 40)}' if version else ''}")


def _fix(suffix: str) -> str:
    return f"install an interpreter for {suffix} below /usr that every user may read, or name one in a policy"


def _memory(found: Availability) -> Check:
    words = one_line(found.memory)
    if words.startswith("control groups"):
        return _AREA.ok("memory", "counted by the kernel, in control groups")
    return _AREA.note("memory", words, "delegate a control group to this user for a stricter count")


def _forget(record: RunRecord) -> None:
    """A trial of ours is nothing to keep a record of."""
