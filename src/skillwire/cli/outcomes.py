"""What became of a run of a script, for people and for programs."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from skillwire.cli.answer import STYLES, Answer
from skillwire.cli.outputs import Kept
from skillwire.core.characters import revealed, visible
from skillwire.core.manifest import digest_of
from skillwire.host import Origin
from skillwire.host.asking import barred, one_line
from skillwire.host.running.results import RanScript
from skillwire.host.running.words import amount_words, hit_words, limit_words
from skillwire.runner import Limits, Outcome, OutputFile, SkippedOutput

_TAB: Final = 4
_MENTIONED: Final = ("wall_seconds", "cpu_seconds", "memory_bytes", "processes", "disk_bytes")


def limits_words(limits: Limits) -> str:
    """Say in one line what a run may use of what matters most."""
    return ", ".join(limit_words({name: getattr(limits, name) for name in _MENTIONED}))


def verdict_words(ran: RanScript) -> str:
    """Say how a run ended."""
    limit = None if ran.outcome is None else ran.outcome.limit
    return ran.verdict if limit is None else f"stopped at a limit ({hit_words(limit)})"


def print_output(answer: Answer, ran: RanScript) -> None:
    """Write what the script said: its output as the answer, its errors as words about it.

    To a terminal, its errors go behind bars: they must not pass for ours.
    """
    out = ran.text if ran.outcome is None else ran.outcome.stdout
    err = "" if ran.outcome is None else ran.outcome.stderr
    text = revealed(out)
    if answer.width is not None and text and not text.endswith("\n"):
        text += "\n"
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
    if answer.terminal is None:
        sys.stderr.write(revealed(err) if not err or err.endswith("\n") else f"{revealed(err)}\n")
        return
    for line in err.removesuffix("\n").split("\n") if err else ():
        for part in barred(visible(line.expandtabs(_TAB)), answer.terminal.width - 1):
            answer.word((part.lead, "cyan"), part.text, wrap=False)


def print_outcome(answer: Answer, ran: RanScript, kept: Kept | None) -> None:
    """Say what else there is to know of a run: limits, files, and how it ended unless all is well."""
    outcome = ran.outcome
    for hit in outcome.reached if outcome else ():
        answer.word(("warning:", STYLES["warning"]), f" it went on after reaching a limit ({hit_words(hit)})")
    _print_files(answer, ran.files, kept)
    for skipped in _skipped(outcome, kept):
        answer.word(
            ("warning:", STYLES["warning"]), f" not kept, {skipped.reason}: {one_line(skipped.path)}", hang=2
        )
    if answer.verbose and outcome is not None:
        usage = outcome.usage
        answer.word(
            f"{ran.verdict} after {usage.wall_seconds:.2f} s; it used {usage.cpu_seconds:.2f} s of CPU, "
            f"{amount_words('memory_bytes', usage.memory_bytes)} of memory, {usage.processes:,} processes"
        )


def _print_files(answer: Answer, files: Sequence[OutputFile], kept: Kept | None) -> None:
    paths = {file.path for file in files} if kept is None else set(kept.paths)
    shown = [file for file in files if file.path in paths]
    if not shown:
        return
    if kept is None:
        answer.word(("It left files", "bold"), ", which --output DIR keeps: bytes, digest, path")
    else:
        answer.word(("Files", "bold"), f" in {kept.folder}: bytes, digest, path", wrap=False)
    room = max(len(f"{len(file.content):,}") for file in shown)
    for file in shown:
        words = f"{len(file.content):>{room},}  {digest_of(file.content)}  {one_line(file.path)}"
        answer.word(("  | ", "cyan"), words, wrap=False)


def _skipped(outcome: Outcome | None, kept: Kept | None) -> Iterator[SkippedOutput]:
    yield from () if outcome is None else outcome.skipped
    yield from () if kept is None else kept.refused


def origin_json(origin: Origin) -> dict[str, object]:
    return {"kind": origin.kind.value, "label": origin.label, "fingerprint": origin.fingerprint}


def outcome_json(ran: RanScript, kept: Kept | None) -> dict[str, object]:
    """Return everything about a run, for programs."""
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
