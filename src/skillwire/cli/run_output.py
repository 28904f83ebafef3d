"""The outcome of a script: printed, as JSON, and its files saved below a folder.

Names of files are untrusted, and none may lead out of the folder.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skillwire.cli.command import (
    STYLES,
    AlreadyExistsError,
    MisuseError,
    Output,
    OutputError,
)
from skillwire.core import (
    digest_of,
    fold_path,
    folders_of,
    path_findings,
    revealed,
    visible,
)
from skillwire.host import (
    Origin,
    ScriptResult,
    format_amount,
    format_limit_hit,
    format_limits,
    one_line,
    untrusted_lines,
)
from skillwire.runner import (
    Limits,
    Outcome,
    OutputFile,
    SkippedOutput,
)

if TYPE_CHECKING:
    pass


LONGEST_NAME = 255
"""The most bytes of a file name that common file systems accept."""
LONGEST_PATH = 1024

# Characters that are allowed in a URI and special in file systems: drives, streams, patterns.
_UNUSABLE = re.compile(r'[\\:*?"<>|\x00]')
_FATAL = frozenset({"unusable-path", "reserved-path"})


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """The saved files of one run: their folder, their paths, and the files that were refused."""

    folder: Path
    paths: tuple[str, ...] = ()
    refused: tuple[SkippedOutput, ...] = ()


def require_empty(folder: Path) -> None:
    """Check that a folder is missing or empty, so that files can be saved in it.

    Raises:
        AlreadyExistsError: It is not empty, or not a folder.
        MisuseError: It is the current folder, which cannot be replaced.
    """
    real = Path(os.path.realpath(folder))
    if not os.path.lexists(real):
        return
    if not real.is_dir():
        raise AlreadyExistsError(
            f"{folder} exists and is not a folder", fix="choose another name for --output"
        )
    if real == Path.cwd():
        raise MisuseError(f"{folder} is the current folder", fix="name a new one: --output out")
    if any(real.iterdir()):
        raise AlreadyExistsError(f"{folder} is not empty", fix="choose another folder for --output")


def save_files(folder: Path, files: Sequence[OutputFile]) -> SavedFiles:
    """Save files in a new or empty folder, atomically.

    Everything is written to a temporary folder beside it and moved into place
    with one rename, so no symbolic link can be followed. Only the user can
    read the files, and none is executable. A file whose name means another
    place on some file system is refused.

    Raises:
        AlreadyExistsError: The folder is not empty.
        OutputError: It cannot be written.
    """
    require_empty(folder)
    refused = refusals_of([file.path for file in files])
    real = Path(os.path.realpath(folder))
    top = real
    while not top.parent.exists():
        top = top.parent
    staging = top.with_name(f".skillwire-{secrets.token_hex(8)}")
    good = [file for file in files if file.path not in refused]
    try:
        staging.mkdir(0o700)
        inside = staging / real.relative_to(top.parent)
        inside.mkdir(0o700, parents=True)
        for file in good:
            _write(inside, file)
        _move(staging / top.name, top)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    skipped = tuple(SkippedOutput(path, reason) for path, reason in refused.items())
    return SavedFiles(folder, tuple(file.path for file in good), skipped)


def refusals_of(paths: Sequence[str]) -> dict[str, str]:
    """Return the paths that are not written, each with the reason."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    folders = {fold_path(folder) for folder in folders_of(paths)}
    for path in paths:
        reason = _reason(path)
        if not reason and (fold_path(path) in seen or fold_path(path) in folders):
            reason = "its name is the same as another one on some file systems"
        if reason:
            found[path] = reason
        else:
            seen.add(fold_path(path))
    return found


def _reason(path: str) -> str:
    names = path.split("/")
    if path.startswith("/") or ".." in names:
        return "its name leads out of the folder"
    try:
        raw = path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not valid Unicode"
    if len(raw) > LONGEST_PATH or any(len(name.encode()) > LONGEST_NAME for name in names):
        return "its name is too long"
    if any(name.startswith(".") for name in names):
        return "its name starts with a dot"
    if _UNUSABLE.search(path) or visible(path) != path:
        return "its name has characters that are not allowed"
    codes = {finding.code for finding in path_findings([path])}
    return "its name is reserved on some systems" if codes & _FATAL else ""


def _write(folder: Path, file: OutputFile) -> None:
    place = folder
    for name in file.path.split("/")[:-1]:
        place /= name
        place.mkdir(0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(folder / file.path, flags, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(file.content)
        opened.flush()
        os.fsync(opened.fileno())


def _move(made: Path, place: Path) -> None:
    """Rename a folder to its final path, where an empty folder may exist."""
    if os.name == "nt" and place.is_dir():
        place.rmdir()  # Windows cannot rename onto a folder; one that is not empty stays.
    made.rename(place)


_TAB: Final = 4
_MENTIONED: Final = ("wall_seconds", "cpu_seconds", "memory_bytes", "processes", "disk_bytes")


def limits_words(limits: Limits) -> str:
    """Return the most important limits of a run in one line."""
    return ", ".join(format_limits({name: getattr(limits, name) for name in _MENTIONED}))


def verdict_words(ran: ScriptResult) -> str:
    """Return in a few words how a run ended."""
    limit = None if ran.outcome is None else ran.outcome.limit
    return ran.verdict if limit is None else f"stopped at a limit ({format_limit_hit(limit)})"


def print_output(output: Output, ran: ScriptResult) -> None:
    """Write the script's standard output and standard error to ours.

    On a terminal, its errors are shown behind bars: they must not pass for ours.
    """
    out = ran.text if ran.outcome is None else ran.outcome.stdout
    err = "" if ran.outcome is None else ran.outcome.stderr
    text = revealed(out)
    if output.width is not None and text and not text.endswith("\n"):
        text += "\n"
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    if output.terminal is None:
        sys.stderr.write(revealed(err) if not err or err.endswith("\n") else f"{revealed(err)}\n")
        return
    for line in err.removesuffix("\n").split("\n") if err else ():
        for part in untrusted_lines(visible(line.expandtabs(_TAB)), output.terminal.width - 1):
            output.message((part.lead, "cyan"), part.text, wrap=False)


def print_outcome(output: Output, ran: ScriptResult, kept: SavedFiles | None) -> None:
    """Print what else is known about a run: limits reached, files, and with `--verbose` what it used."""
    outcome = ran.outcome
    for hit in outcome.reached if outcome else ():
        output.message(
            ("warning:", STYLES["warning"]),
            f" the script reached a limit and continued ({format_limit_hit(hit)})",
        )
    _print_files(output, ran.files, kept)
    for skipped in _skipped(outcome, kept):
        output.message(
            ("warning:", STYLES["warning"]), f" not kept, {skipped.reason}: {one_line(skipped.path)}", hang=2
        )
    if output.verbose and outcome is not None:
        usage = outcome.usage
        output.message(
            f"{ran.verdict} after {usage.wall_seconds:.2f} s; it used {usage.cpu_seconds:.2f} s of CPU, "
            f"{format_amount('memory_bytes', usage.memory_bytes)} of memory, {usage.processes:,} processes"
        )


def _print_files(output: Output, files: Sequence[OutputFile], kept: SavedFiles | None) -> None:
    paths = {file.path for file in files} if kept is None else set(kept.paths)
    shown = [file for file in files if file.path in paths]
    if not shown:
        return
    if kept is None:
        output.message(("Output files", "bold"), " (keep them with --output DIR): bytes, digest, path")
    else:
        output.message(("Files", "bold"), f" in {kept.folder}: bytes, digest, path", wrap=False)
    room = max(len(f"{len(file.content):,}") for file in shown)
    for file in shown:
        words = f"{len(file.content):>{room},}  {digest_of(file.content)}  {one_line(file.path)}"
        output.message(("  | ", "cyan"), words, wrap=False)


def _skipped(outcome: Outcome | None, kept: SavedFiles | None) -> Iterator[SkippedOutput]:
    yield from () if outcome is None else outcome.skipped
    yield from () if kept is None else kept.refused


def origin_json(origin: Origin) -> dict[str, object]:
    return {"kind": origin.kind.value, "label": origin.label, "fingerprint": origin.fingerprint}


def outcome_json(ran: ScriptResult, kept: SavedFiles | None) -> dict[str, object]:
    """Return everything about a run as JSON."""
    outcome = ran.outcome
    paths = () if kept is None else kept.paths
    return {
        "reference": ran.reference,
        "origin": origin_json(ran.origin),
        "script": ran.script,
        "digest": ran.digest or None,
        "where": ran.where,
        "ending": None if outcome is None else outcome.ending.value,
        "exitCode": None if outcome is None else outcome.exit_code,
        "signal": None if outcome is None else outcome.signal,
        "limit": None if outcome is None or outcome.limit is None else asdict(outcome.limit),
        "reached": [] if outcome is None else [asdict(hit) for hit in outcome.reached],
        "stdout": ran.text if outcome is None else outcome.stdout,
        "stderr": "" if outcome is None else outcome.stderr,
        "structured": None if outcome is None or outcome.structured is None else dict(outcome.structured),
        "files": [
            {
                "path": file.path,
                "size": len(file.content),
                "digest": digest_of(file.content),
                "kept": file.path in paths,
            }
            for file in ran.files
        ],
        "skipped": [asdict(skipped) for skipped in _skipped(outcome, kept)],
        "output": None if kept is None else str(kept.folder),
        "usage": None if outcome is None else asdict(outcome.usage),
        "limits": None if outcome is None else asdict(outcome.limits),
        "isError": ran.is_error,
        "verdict": ran.verdict,
    }
