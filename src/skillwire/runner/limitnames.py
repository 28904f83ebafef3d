"""The names of limits in files that people write, where sizes are in MiB."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skillwire.runner.policy import MIB

_DAY = 86_400
_MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class LimitName:
    """A limit as a file names it: the field of `Limits` it means, and what can be said of it."""

    field: str
    least: float
    most: float
    is_whole: bool = False
    factor: int = 1

    def amount(self, value: float) -> float:
        """Return what goes into the field."""
        return int(value * self.factor) if self.is_whole or self.factor != 1 else value


def _seconds(field: str) -> LimitName:
    return LimitName(field, 0.1, _DAY)


def _count(field: str, least: int = 1) -> LimitName:
    return LimitName(field, least, _MANY, is_whole=True)


def _mib(field: str, least: float = 1) -> LimitName:
    return LimitName(field, least, _MANY, factor=MIB)


SCRIPT_LIMITS: Final[Mapping[str, LimitName]] = {
    "wall_seconds": _seconds("wall_seconds"),
    "cpu_seconds": _seconds("cpu_seconds"),
    "memory_mib": _mib("memory_bytes"),
    "processes": _count("processes"),
    "open_files": _count("open_files"),
    "disk_mib": _mib("disk_bytes"),
    "disk_files": _count("disk_files"),
    "output_files": _count("output_files", 0),
    "output_mib": _mib("output_bytes", 0),
}
"""What a script may ask for."""

OPERATOR_LIMITS: Final[Mapping[str, LimitName]] = {
    **SCRIPT_LIMITS,
    "stdout_mib": _mib("stdout_bytes", 0),
    "stderr_mib": _mib("stderr_bytes", 0),
    "flood_mib": _mib("flood_bytes"),
}
"""What an operator may set; of these a script may not ask for the last three."""


def limit_problem(value: object, limit: LimitName | None) -> str:
    """Say what is wrong with the value of a limit, as the rest of a sentence; empty when nothing is."""
    if limit is None:
        return "is no limit known here"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "is no number"
    if not limit.least <= value <= limit.most:
        return f"is not between {limit.least:g} and {limit.most:g}"
    if limit.is_whole and value != int(value):
        return "is no whole number"
    return ""
