"""`skillwire doctor`: everything that may stand between a user and the skills, checked in one go."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer

from skillwire.cli.answer import STYLES, Answer, answering, plural
from skillwire.cli.checkup.check import Check, Status
from skillwire.cli.checkup.configuration import check_configuration
from skillwire.cli.checkup.connectivity import check_servers
from skillwire.cli.checkup.places import check_places
from skillwire.cli.checkup.program import check_program
from skillwire.cli.checkup.project import check_folders, check_lock
from skillwire.cli.checkup.sandbox import check_sandbox
from skillwire.cli.failures import ExitCode
from skillwire.cli.hosting import DEFAULT_WAIT, LOCK_NAME, Config, Frozen, Lock, Wait
from skillwire.cli.options import Json, Verbose, new_app
from skillwire.cli.progress import progress
from skillwire.cli.tables import print_hanging
from skillwire.host import Places
from skillwire.host.registry.local import default_roots

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

    Says in words what is well and what is not, with a fix for each problem.
    Nothing is approved or loaded, and no secret is printed. Exits with 1 when
    there is a problem.
    """
    with answering("doctor", json=json, verbose=verbose) as answer:
        checks = _checks(answer, config, lock, frozen=frozen, wait=wait, offline=offline)
        has_problem = any(check.status is Status.PROBLEM for check in checks)
        if json:
            answer.document({"ok": not has_problem, "checks": [check.to_json() for check in checks]})
        else:
            _print(answer, checks)
        if has_problem:
            answer.code = ExitCode.NO


def _checks(
    answer: Answer, config: Path | None, lock: Path | None, *, frozen: bool, wait: float, offline: bool
) -> list[Check]:
    places, roots = Places.default(), default_roots(Path.cwd())
    configured = check_configuration(config)
    checks = [*check_program(), *configured.checks]
    if not offline and configured.usable:
        with progress(answer, f"connecting to {plural(len(configured.usable), 'server')}"):
            checks += anyio.run(check_servers, configured.usable, wait)
    checks.append(check_lock(lock or Path(LOCK_NAME), places.state, is_named=lock is not None, frozen=frozen))
    checks += check_folders(roots, places.state)
    checks += check_places(places, roots)
    with progress(answer, "trying a sandbox"):
        checks += anyio.run(check_sandbox)
    return checks


def _print(answer: Answer, checks: Sequence[Check]) -> None:
    area = ""
    for check in checks:
        if answer.width is None:
            answer.line(f"{check.status}: {check.area}: {check.subject}: {check.found}{_fix(check)}")
            continue
        if check.area != area:
            area = check.area
            answer.line((area, "bold"))
        head = f"{check.status:{_WIDEST}}", _LOOKS[check.status]
        print_hanging(answer, head, f"{check.subject}: {check.found}", indent=2)
        if check.fix:
            print_hanging(answer, (f"{'':{_WIDEST}}  fix:", "bold"), check.fix, indent=2)
    answer.word(", ".join(_summary(checks)))


def _fix(check: Check) -> str:
    return f"; fix: {check.fix}" if check.fix else ""


def _summary(checks: Sequence[Check]) -> Iterator[str]:
    counts = Counter(check.status for check in checks)
    yield plural(counts[Status.PROBLEM], "problem") if counts[Status.PROBLEM] else "no problems"
    if counts[Status.WARNING]:
        yield plural(counts[Status.WARNING], "warning")
    yield f"{counts[Status.OK]} ok"
