"""`skillwire doctor`: check everything that could keep skills from working."""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

import skillwire.host
from skillwire.cli.command import (
    STYLES,
    Json,
    Output,
    Verbose,
    command_output,
    new_app,
    plural,
    print_hanging,
    progress,
)
from skillwire.cli.common import ExitCode
from skillwire.cli.doctor_checks import (
    Area,
    Check,
    Status,
    check_configuration,
    check_folders,
    check_lock,
    check_places,
)
from skillwire.cli.hosting import DEFAULT_WAIT, LOCK_NAME, Config, Frozen, Lock, Wait
from skillwire.core import Dialect, RunnerError, SkillError, __version__
from skillwire.host import REFUSALS, NotDeclaredError, ServerConfig, Storage, default_roots, one_line
from skillwire.runner import Availability, Limits, Policy, Runner, RunRecord, ScriptRun

if TYPE_CHECKING:
    from skillwire.host import Listing


# Report the versions of the program and of what it depends on.


_PROGRAM = Area("program")


def check_program() -> Iterator[Check]:
    """Yield the versions in use."""
    found = f"{__version__}, Python {platform.python_version()} on {platform.system() or sys.platform}"
    yield _PROGRAM.ok("skillwire", found)
    try:
        yield _PROGRAM.ok("MCP SDK", f"mcp {version('mcp')}")
    except PackageNotFoundError:
        yield _PROGRAM.problem("MCP SDK", "the package mcp is not installed", "install skillwire again")


# Check each server: whether it answers, its protocol version, whether it serves skills, and its latency.


_AREA = Area("servers")


async def check_servers(servers: Sequence[ServerConfig], seconds: float) -> list[Check]:
    """Check all servers concurrently, each for at most `seconds`, without caching or approving anything."""
    checks: dict[str, Check] = {}

    async def ask(server: ServerConfig) -> None:
        checks[server.label] = await _check(server, seconds)

    async with anyio.create_task_group() as group:
        for server in servers:
            group.start_soon(ask, server)
    return [checks[server.label] for server in servers]


async def _check(server: ServerConfig, seconds: float) -> Check:
    start = time.monotonic()
    speaks = ""
    try:
        async with skillwire.host.connection_for(server) as connection:
            with anyio.fail_after(seconds):
                await connection.connect()
                version = connection.protocol_version
                speaks = "is a web site" if version is None else f"speaks MCP {version}"
                listing = await connection.list_skills()
            if listing.dialect not in (Dialect.CORE, Dialect.WELL_KNOWN):
                speaks = f"{speaks} and the older dialect {listing.dialect}"
            return _listed(server, speaks, listing, start)
    except NotDeclaredError:
        return _AREA.note(server.label, f"{speaks}, serves no skills, {_took(start)}")
    except TimeoutError:
        found = f"no answer within {seconds:g} seconds{f'; it {speaks}' if speaks else ''}"
        return _AREA.problem(server.label, found, "allow more time with --wait, or check the server's log")
    except SkillError as error:
        kind = REFUSALS.get(error.refusal)
        fix = error.fix or (kind.remedy if kind else "check the server's log")
        return _AREA.problem(server.label, str(error), fix)


def _listed(server: ServerConfig, speaks: str, listing: Listing, start: float) -> Check:
    found = f"{speaks}, lists {plural(len(listing.entries), 'skill')}, {_took(start)}"
    if listing.problem is not None:
        words = f"{found}; the listing is incomplete: {listing.problem}"
        return _AREA.problem(server.label, words, "report it to the server's author")
    if listing.refused:
        words = f"{found}; refused {plural(len(listing.refused), 'entry')}".replace("entrys", "entries")
        return _AREA.warning(
            server.label, words, f"see `skillwire list {server.label} -v` for the rules they break"
        )
    return _AREA.ok(server.label, found)


def _took(start: float) -> str:
    return f"{time.monotonic() - start:.2f} s"


# Check whether scripts of skills can be run here, which kinds, and how their memory is limited.


SECONDS = 20.0

_SANDBOX_AREA = Area("sandbox")
_POLICY = Policy(limits=Limits(wall_seconds=5, cpu_seconds=5), pool=0)
_MARKER = "ok"
_TRIALS: Mapping[str, tuple[str, str]] = {
    # By suffix: a name for people, and a script that prints the interpreter's version.
    ".py": ("Python", f'import platform; print("{_MARKER}", platform.python_version())'),
    ".sh": ("shell", f'echo "{_MARKER} $BASH_VERSION"'),
    ".js": ("Node", f'console.log("{_MARKER}", process.version)'),
}


async def check_sandbox(policy: Policy = _POLICY) -> list[Check]:
    """Check whether scripts can be run here."""
    if not sys.platform.startswith("linux"):
        words = "there is no sandbox for this system, so scripts of skills are not run here"
        return [_SANDBOX_AREA.note("scripts", words, "run them on Linux, or on their server")]
    try:
        with anyio.fail_after(SECONDS):
            async with Runner(policy, record=_discard) as runner:
                if not runner.availability.is_available:
                    return [_unavailable(runner.availability)]
                return [
                    _SANDBOX_AREA.ok("scripts", f"can be run in a sandbox of {runner.availability.backend}"),
                    *[await _trial(runner, suffix) for suffix in _TRIALS],
                    _memory(runner.availability),
                ]
    except TimeoutError:
        fix = "find out what slows this machine down; nothing is run without a sandbox"
        return [_SANDBOX_AREA.warning("scripts", f"no sandbox started within {SECONDS:g} seconds", fix)]


def _unavailable(found: Availability) -> Check:
    words = f"cannot be run here, because there is no sandbox: {one_line(found.detail)} [{found.reason}]"
    return _SANDBOX_AREA.warning("scripts", words, one_line(found.fix) or "install bubblewrap")


async def _trial(runner: Runner, suffix: str) -> Check:
    name, content = _TRIALS[suffix]
    path = f"scripts/trial{suffix}"
    subject = f"{name} ({suffix})"
    if not runner.has_interpreter(path):
        return _SANDBOX_AREA.note(
            subject, f"there is no interpreter for {suffix}, so such scripts are not run"
        )
    run = ScriptRun("skill://doctor/SKILL.md", path, {path: content.encode()}, approval="doctor")
    try:
        outcome = await runner.run(run)
    except RunnerError as error:
        return _SANDBOX_AREA.warning(
            subject, f"its scripts cannot be run: {error}", error.fix or _sandbox_fix(suffix)
        )
    said, _, version = outcome.stdout.strip().partition(" ")
    if outcome.is_error or said != _MARKER:
        why = one_line(f"{outcome.verdict}: {outcome.stderr.strip()}".rstrip(": "), 200)
        return _SANDBOX_AREA.warning(
            subject, f"a script that does nothing failed in the sandbox: {why}", _sandbox_fix(suffix)
        )
    return _SANDBOX_AREA.ok(
        subject, f"runs in the sandbox{f', version {one_line(version, 40)}' if version else ''}"
    )


def _sandbox_fix(suffix: str) -> str:
    return f"install an interpreter for {suffix} below /usr, readable by every user, or name one in a policy"


def _memory(found: Availability) -> Check:
    words = one_line(found.memory)
    if words.startswith("control groups"):
        return _SANDBOX_AREA.ok("memory", "limited by the kernel, with control groups")
    return _SANDBOX_AREA.note("memory", words, "delegate a control group to this user for a stricter limit")


def _discard(record: RunRecord) -> None:
    """Keep no audit record of these test runs."""


_LOOKS = {
    Status.OK: "green",
    Status.NOTE: STYLES["note"],
    Status.WARNING: STYLES["warning"],
    Status.PROBLEM: STYLES["error"],
}
_WIDEST = max(len(status) for status in Status)

app = new_app()


@app.command()
def doctor(
    offline: Annotated[bool, typer.Option("--offline", help="Connect to no server.")] = False,
    config: Config = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Check configuration, servers, folders and state.

    Prints the result of each check, with a fix for each problem. Nothing is
    approved or loaded, and no secret is printed. Exits with 1 when there is a
    problem.
    """
    with command_output("doctor", json=json, verbose=verbose) as output:
        checks = _checks(output, config, lock, frozen=frozen, wait=wait, offline=offline)
        has_problem = any(check.status is Status.PROBLEM for check in checks)
        if json:
            output.document({"ok": not has_problem, "checks": [check.to_json() for check in checks]})
        else:
            _print(output, checks)
        if has_problem:
            output.code = ExitCode.NO


def _checks(
    output: Output, config: Path | None, lock: Path | None, *, frozen: bool, wait: float, offline: bool
) -> list[Check]:
    places, roots = Storage(), default_roots(Path.cwd())
    configured = check_configuration(config)
    checks = [*check_program(), *configured.checks]
    if not offline and configured.usable:
        with progress(output, f"connecting to {plural(len(configured.usable), 'server')}"):
            checks += anyio.run(check_servers, configured.usable, wait)
    checks.append(check_lock(lock or Path(LOCK_NAME), places.state, is_named=lock is not None, frozen=frozen))
    checks += check_folders(roots, places.state)
    checks += check_places(places, roots)
    with progress(output, "trying a sandbox"):
        checks += anyio.run(check_sandbox)
    return checks


def _print(output: Output, checks: Sequence[Check]) -> None:
    area = ""
    for check in checks:
        if output.width is None:
            output.line(f"{check.status}: {check.area}: {check.subject}: {check.found}{_fix(check)}")
            continue
        if check.area != area:
            area = check.area
            output.line((area, "bold"))
        head = f"{check.status:{_WIDEST}}", _LOOKS[check.status]
        print_hanging(output, head, f"{check.subject}: {check.found}", indent=2)
        if check.fix:
            print_hanging(output, (f"{'':{_WIDEST}}  fix:", "bold"), check.fix, indent=2)
    output.message(", ".join(_summary(checks)))


def _fix(check: Check) -> str:
    return f"; fix: {check.fix}" if check.fix else ""


def _summary(checks: Sequence[Check]) -> Iterator[str]:
    counts = Counter(check.status for check in checks)
    yield plural(counts[Status.PROBLEM], "problem") if counts[Status.PROBLEM] else "no problems"
    if counts[Status.WARNING]:
        yield plural(counts[Status.WARNING], "warning")
    yield f"{counts[Status.OK]} ok"
