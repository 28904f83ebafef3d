"""`RunRecord`: the one line that stays of a run. It tells what ran and how it ended, and no values."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeAlias

import orjson

from skillwire.core.characters import visible

logger = logging.getLogger(__name__)

_MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What ran, for whom and how it ended. `outcome` is an `Ending`, or why nothing ran."""

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
        """Write the record as one line of JSON in which nothing can hide."""
        inert = {
            key: visible(value)[:_MAX_TEXT] if isinstance(value, str) else value
            for key, value in asdict(self).items()
        }
        return orjson.dumps(inert).decode()


Recorder: TypeAlias = Callable[[RunRecord], None]


def log_record(record: RunRecord) -> None:
    """Write the record to this module's logger."""
    logger.info("%s", record.line())
