"""`Outcome`: the result of one run of a script."""

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TypeAlias

import orjson

from skillwire.core.characters import visible
from skillwire.core.yaml12 import JsonValue
from skillwire.runner.policy import Limits


class Ending(StrEnum):
    """How a run ended."""

    EXITED = "exited"
    """The script exited with a status."""
    SIGNALLED = "signalled"
    """A signal ended it, such as a crash."""
    LIMIT = "limit"
    """It was stopped at a limit."""


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A limit that was reached: its name in `Limits`, what it allowed, and what was used or asked for."""

    name: str
    allowed: float
    used: float

    def __str__(self) -> str:
        return f"{self.name} {_number(self.allowed)}, used {_number(self.used)}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources a run used. `memory_bytes` and `processes` are peak values."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    processes: int = 0
    disk_bytes: int = 0
    disk_files: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file in the output folder of a script: its relative path and its bytes."""

    path: str
    content: bytes


@dataclass(frozen=True, slots=True)
class SkippedOutput:
    """A file in the output folder that is not returned, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class RawOutcome:
    """The unprocessed result of a sandbox. `status` is that of `os.waitpid`."""

    status: int | None
    limit: LimitHit | None
    stdout: bytes
    stderr: bytes
    usage: Usage
    files: tuple[OutputFile, ...] = ()
    skipped: tuple[SkippedOutput, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: how it ended, what it wrote, what it used.

    `stdout` and `stderr` are text that can be shown anywhere: decoded, without
    control and hidden characters, without secrets. `structured` is standard
    output as JSON, if all of it is one JSON object. `limit` is what stopped the
    run; `reached` are limits it reached without being stopped. None of this is trusted.
    """

    run_id: str
    ending: Ending
    exit_code: int | None = None
    signal: int | None = None
    limit: LimitHit | None = None
    reached: tuple[LimitHit, ...] = ()
    stdout: str = ""
    stderr: str = ""
    structured: Mapping[str, JsonValue] | None = None
    files: tuple[OutputFile, ...] = ()
    skipped: tuple[SkippedOutput, ...] = ()
    usage: Usage = field(default_factory=Usage)
    limits: Limits = field(default_factory=Limits)

    @property
    def is_error(self) -> bool:
        return not (self.ending is Ending.EXITED and self.exit_code == 0)

    @property
    def verdict(self) -> str:
        """The end of the run in a few words."""
        if self.limit is not None:
            return f"stopped at a limit: {self.limit}"
        if self.ending is Ending.SIGNALLED and self.signal is not None:
            try:
                return f"ended by {signal.Signals(self.signal).name}"
            except ValueError:
                return f"ended by signal {self.signal}"
        return f"exit status {self.exit_code}"


# `RunRecord`: the audit record of a run: what ran and how it ended, without argument values or output.


logger = logging.getLogger(__name__)

_MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of one run: the script and how it ended.

    `outcome` is an `Ending`, or the refusal code when nothing ran.
    """

    run_id: str
    origin: str
    skill: str
    script: str
    script_digest: str
    arguments_digest: str
    approval: str
    limits: str
    secrets: tuple[str, ...]
    network: tuple[str, ...]
    outcome: str
    detail: str
    duration_seconds: float
    cpu_seconds: float
    memory_bytes: int
    is_pooled: bool
    traffic: str = ""

    def line(self) -> str:
        """Return the record as one line of JSON, with hidden characters escaped."""
        inert = {
            key: visible(value, most=_MAX_TEXT) if isinstance(value, str) else value
            for key, value in asdict(self).items()
        }
        return orjson.dumps(inert).decode()


Recorder: TypeAlias = Callable[[RunRecord], None]
"""Receives the record of each run, for an audit log."""


def log_record(record: RunRecord) -> None:
    """Write the record to this module's logger."""
    logger.info("%s", record.line())
