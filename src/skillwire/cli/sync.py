"""`skillwire sync`: write approved skills into the folders where other agents look for them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer

from skillwire.bridge.folder_names import FOLDERS, agent_of, target_folder
from skillwire.bridge.sync import SkillSync, SyncAction, SyncReport, SyncStep
from skillwire.cli.command import (
    STYLES,
    Json,
    MisuseError,
    Output,
    TargetCommand,
    Targets,
    Verbose,
    command_in,
    command_output,
    new_app,
    one_of,
)
from skillwire.cli.common import ExitCode
from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    LOCK_NAME,
    Archives,
    At,
    Config,
    Frozen,
    HostRequest,
    Lock,
    Wait,
    run_with_host,
)
from skillwire.cli.render import print_file
from skillwire.cli.states import print_refusal, reason_of
from skillwire.core import SkillError
from skillwire.host import Refusal, Storage, one_line

if TYPE_CHECKING:
    from skillwire.host import Host


class SyncMode(StrEnum):
    """What a run of the command does."""

    SYNC = "sync"
    CHECK = "check"
    DRY_RUN = "dry-run"


POLL_SECONDS: Final = 1.0
"""How often `--watch` looks for changes of approvals, of the lock and of listings."""
_FAILED_POLLS: Final = 30
_DONE = {
    SyncAction.WRITE: ("written", "would write", "green"),
    SyncAction.REPLACE: ("replaced", "would replace", "green"),
    SyncAction.REMOVE: ("removed", "would remove", "yellow"),
    SyncAction.KEEP: ("same", "same", ""),
    SyncAction.OUTDATED: ("kept", "would keep", "yellow"),
    SyncAction.REFUSE: ("refused", "would refuse", STYLES["error"]),
}

app = new_app()


@app.command(cls=TargetCommand)
def sync(
    context: typer.Context,
    targets: Targets = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="AGENT|PATH",
            help="Where to write: claude, agents, codex, cursor or gemini for its folder in this project, or "
            "any folder. Can be repeated. By default the folders synced before.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 1 if anything would change. For CI.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; show what would be done.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Sync again when approvals, the lock or the skills change; ends on Ctrl-C."
        ),
    ] = False,
    config: Config = None,
    at: At = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Write approved skills into folders of other agents.

    Each approved skill of a server becomes a folder whose name shows its
    origin, such as team--refunds, with exactly the approved files, none of
    them executable. Where an agent shows the name in SKILL.md, that is the
    folder's name, too. A skill that changed on its server stays as approved
    until you approve it again; what you revoked is removed. A folder that was
    not written by this command, or that another program changed, is never
    touched: then the difference is shown and the exit code is 1. With
    --frozen, only what the lock pins is written.
    """
    with command_output("sync", json=json, verbose=verbose) as output:
        mode = _mode(check=check, dry_run=dry_run, watch=watch, json=json)
        wanted = HostRequest(
            config=config,
            targets=(*(targets or ()), *(at or ())),
            command=command_in(context),
            lock=lock,
            frozen=frozen,
            wait=wait,
            archives=archives,
        )
        request = SyncRequest(wanted, tuple(to or ()), mode, is_endless=watch)
        run_with_host(output, wanted, lambda host: _sync(output, host, request))


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """What to sync, where to, and how."""

    wanted: HostRequest
    to: tuple[str, ...]
    mode: SyncMode
    is_endless: bool = False


def _mode(*, check: bool, dry_run: bool, watch: bool, json: bool) -> SyncMode:
    if check + dry_run + watch > 1:
        raise MisuseError(
            "--check, --dry-run and --watch exclude each other", fix="use one of them at a time"
        )
    if watch and json:
        raise MisuseError("--json prints one document, and --watch does not end", fix="leave one of them out")
    if check:
        return SyncMode.CHECK
    return SyncMode.DRY_RUN if dry_run else SyncMode.SYNC


async def _sync(output: Output, host: Host, request: SyncRequest) -> None:
    work = SkillSync(host, Storage(), Path.cwd())
    targets = _targets(work, request.to)
    for problem in host.problems:
        print_refusal(output, problem)
    if request.is_endless:
        await _watch(output, host, work, targets, request)
        return
    report = await work.run(targets, writes=request.mode is SyncMode.SYNC)
    ok = report.is_fine and not (request.mode is SyncMode.CHECK and report.has_changes)
    if not ok:
        output.code = ExitCode.NO
    if output.json:
        output.document(
            {"mode": request.mode.value, "ok": ok, **_report_json(report, targets)}
            | {"problems": [problem.to_json() for problem in host.problems]}
        )
        return
    _print(output, report, request)


def _targets(work: SkillSync, to: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the folders to sync: those of `--to`, or those synced before.

    Raises:
        MisuseError: There are none.
    """
    project = Path.cwd()
    try:
        folders = [target_folder(name, project) for name in to]
    except RuntimeError as error:
        raise MisuseError("--to names the home of an unknown user", fix="write the whole path") from error
    if folders:
        return tuple(dict.fromkeys(map(work.resolved, folders)))
    if known := work.targets():
        return known
    raise MisuseError(
        "nothing was synced for this project yet, so --to is needed",
        fix=f"add --to {one_of(list(FOLDERS))}, or --to with a folder such as ~/.claude/skills",
    )


async def _watch(
    output: Output, host: Host, work: SkillSync, targets: tuple[Path, ...], request: SyncRequest
) -> None:
    """Sync, wait until something changes, and sync again, until the user ends it."""
    shown: object = None
    polls = 0
    while True:
        try:
            if host.lock.path is not None and shown is not None:
                await anyio.to_thread.run_sync(host.lock.reload)
            report = await work.run(targets, writes=True)
            if (
                now := [(step.target, step.name, step.action, step.reason) for step in report.steps]
            ) != shown:
                _print(output, report, request, is_first=shown is None)
                shown = [
                    (*row[:2], _settled(row[2]), row[3]) for row in now if row[2] is not SyncAction.REMOVE
                ]
        except SkillError as error:
            output.refuse(error)
        sys.stdout.flush()
        before = _stamp(host, request)
        while _stamp(host, request) == before:
            await anyio.sleep(POLL_SECONDS)
            polls += 1
            states = {status.state for status in host.view.servers}
            if "stale" in states or ("failed" in states and polls % _FAILED_POLLS == 0):
                await host.refresh(wait_seconds=request.wanted.wait)


def _settled(action: SyncAction) -> SyncAction:
    """Return what the next sync says of a folder if nothing changes."""
    return SyncAction.KEEP if action in (SyncAction.WRITE, SyncAction.REPLACE) else action


def _stamp(host: Host, request: SyncRequest) -> tuple[object, ...]:
    """Return a value that changes with the user's state, the lock and the listings."""
    lock = request.wanted.lock or Path(LOCK_NAME)
    return (_changed_at(Storage().state), _changed_at(lock), host.view.revision)


def _changed_at(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _print(output: Output, report: SyncReport, request: SyncRequest, *, is_first: bool = True) -> None:
    for step in report.steps:
        if is_first or step.action is not SyncAction.KEEP:
            _print_step(output, step, request.wanted, is_done=request.mode is SyncMode.SYNC)
    for note in report.notes if is_first else ():
        output.message(("note:", STYLES["note"]), f" not synced: {note.subject}: {reason_of(note)}")
    if not report.steps:
        output.line("no skill of these servers is approved, so there is nothing to sync")
    if request.mode is SyncMode.CHECK and report.has_changes:
        output.message(("fix:", "bold"), " run `skillwire sync` without --check, and commit what it writes")


def _print_step(output: Output, step: SyncStep, wanted: HostRequest, *, is_done: bool) -> None:
    done, planned, style = _DONE[step.action]
    place = one_line(os.path.relpath(Path(step.target) / step.name))
    if place.startswith(".."):
        place = one_line(str(Path(step.target) / step.name))
    word = done if is_done else planned
    output.line((f"{word:<14}", style), f"{place}  {one_line(step.reference)}", wrap=False)
    if step.original_name and step.action in (SyncAction.WRITE, SyncAction.REPLACE) and is_done:
        output.line(f"its SKILL.md has this name instead of {one_line(step.original_name)}", indent=14)
    if step.reason is not None:
        output.line(f"{reason_of(step.reason)}; {_remedy(step, step.reason, wanted)}", indent=14)
    for file in step.files:
        print_file(output, file)


def _remedy(step: SyncStep, reason: Refusal, wanted: HostRequest) -> str:
    """Return what to do about a folder, with commands that find the same servers."""
    if reason.code != "skill-changed":
        return reason.remedy
    look, agree = (wanted.command_line(word, one_line(step.reference)) for word in ("diff", "approve"))
    return f"review it with `{look}`, then run `{agree}`"


def _report_json(report: SyncReport, targets: tuple[Path, ...]) -> dict[str, object]:
    return {
        "targets": [{"folder": str(path), "agent": agent_of(path) or None} for path in targets],
        "folders": [
            {
                "target": step.target,
                "name": step.name,
                "reference": step.reference,
                "action": step.action.value,
                "originalName": step.original_name or None,
                "reason": None if step.reason is None else step.reason.to_json(),
                "files": [file.to_json() for file in step.files],
            }
            for step in report.steps
        ],
        "notes": [note.to_json() for note in report.notes],
    }
