"""`Policy`: what an operator grants to scripts. Scripts only request."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final

MIB = 1024 * 1024

DEFAULT_UID = 65534
"""The user that scripts run as when this process is root: nobody."""

_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"(?=[^:]{{1,253}}(?::|\Z))(?:{_LABEL}\.)*(?=[a-z]){_LABEL}(?::([1-9][0-9]{{0,4}}))?")

SecretSource = Callable[[], bytes]
"""Returns the value of a secret; called when a script that was granted it is run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run. Each limit is enforced and reported with the outcome.

    `cpu_seconds`, `memory_bytes` and `processes` count all processes of a run
    together; threads count as processes. `disk_bytes` and `disk_files` limit what
    is on its disk at any one time. Of standard output and error the first
    `stdout_bytes` and `stderr_bytes` are kept, and a run that writes more than
    `flood_bytes` is stopped. `output_files` and `output_bytes` are what may be
    returned as files.
    """

    wall_seconds: float = 30
    cpu_seconds: float = 30
    memory_bytes: int = 512 * MIB
    processes: int = 64
    open_files: int = 256
    disk_bytes: int = 64 * MIB
    disk_files: int = 20_000
    stdout_bytes: int = MIB
    stderr_bytes: int = 64 * 1024
    flood_bytes: int = 16 * MIB
    output_files: int = 64
    output_bytes: int = 16 * MIB

    def with_requested(self, wanted: Mapping[str, float], most: "Limits") -> "Limits":
        """Return these limits with the values that a script requests, capped by `most`.

        `wanted` has names of fields. A script may request more or less than the default.
        """
        known = {one.name for one in fields(self)}
        granted = {name: min(value, getattr(most, name)) for name, value in wanted.items() if name in known}
        return replace(self, **granted) if granted else self


MOST = Limits(wall_seconds=300, cpu_seconds=300, memory_bytes=2048 * MIB, processes=256, disk_bytes=256 * MIB)
"""The most a script may request, unless the operator sets other values."""


@dataclass(frozen=True, slots=True)
class ScriptRule:
    """An operator's grants to one script of one skill: secrets and network access.

    `origin` is the label of the server it comes from, empty for this program's
    own skills. With `digest` it is granted to exactly these bytes. `secrets`
    are delivered as files with these names, if the script declares them.
    `network` are hosts it may reach, `host` or `host:port` (443 otherwise), if it declares them.
    """

    skill: str
    script: str
    origin: str = ""
    digest: str = ""
    secrets: Mapping[str, SecretSource] = field(default_factory=dict[str, SecretSource])
    network: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A program that runs scripts: its path, its arguments before the script's path, and what it needs.

    `trees` are folders outside `/usr` that it needs to read. `address_space` is
    the least that one process may map; some reserve far more than they use.
    """

    path: Path
    arguments: tuple[str, ...] = ()
    trees: tuple[Path, ...] = ()
    address_space: int = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Policy:
    """An operator's rules for running scripts.

    `limits` apply to a script that requests nothing, and `most` is the maximum
    it may request. `interpreters` are keyed by suffix (`.py`) and override those
    found on this machine; None means that there is none. The one for `.py` also
    starts the sandbox.
    At most `concurrent` scripts run at once, and `queue` more wait for at most
    `queue_seconds`. `pool` sandboxes are started in advance. `bubblewrap` is
    found unless given. `uid` is the user that scripts run as when this process
    is root. `cgroup` is a control group (version 2) that was delegated to this
    process with the memory and pids controllers; without it the process's own
    group is tried.
    """

    limits: Limits = field(default_factory=Limits)
    most: Limits = MOST
    rules: tuple[ScriptRule, ...] = ()
    interpreters: Mapping[str, Interpreter | None] = field(default_factory=dict[str, Interpreter | None])
    concurrent: int = field(default_factory=lambda: os.cpu_count() or 1)
    queue: int = 32
    queue_seconds: float = 60
    pool: int = 1
    bubblewrap: Path | None = None
    uid: int = DEFAULT_UID
    cgroup: Path | None = None

    def rule_for(self, *, origin: str, skill: str, script: str, digest: str) -> ScriptRule | None:
        """Return the rule for exactly this script, if there is one."""
        for rule in self.rules:
            if (rule.origin, rule.skill, rule.script) == (origin, skill, script) and rule.digest in (
                "",
                digest,
            ):
                return rule
        return None


# The names of limits in policy files and script manifests, where sizes are in MiB.


_DAY = 86_400
_MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class LimitName:
    """A limit as a file names it: the field of `Limits` it sets, and its allowed range."""

    field: str
    least: float
    most: float
    is_whole: bool = False
    factor: int = 1

    def amount(self, value: float) -> float:
        """Return the value of the field."""
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
"""The limits that a script may request."""

OPERATOR_LIMITS: Final[Mapping[str, LimitName]] = {
    **SCRIPT_LIMITS,
    "stdout_mib": _mib("stdout_bytes", 0),
    "stderr_mib": _mib("stderr_bytes", 0),
    "flood_mib": _mib("flood_bytes"),
}
"""The limits that an operator may set; a script may not request the last three."""


def limit_problem(value: object, limit: LimitName | None) -> str:
    """Return what is wrong with the value of a limit, as a predicate; empty when it is valid."""
    if limit is None:
        return "is not a known limit"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "is not a number"
    if not limit.least <= value <= limit.most:
        return f"is not between {limit.least:g} and {limit.most:g}"
    if limit.is_whole and value != int(value):
        return "is not a whole number"
    return ""


def is_host(text: object) -> bool:
    """Return whether `text` is a lower-case DNS name, with or without a port: no address, no pattern."""
    match = _HOST.fullmatch(text) if isinstance(text, str) else None
    return match is not None and int(match[1] or 443) <= 65535


def is_secret_name(text: object) -> bool:
    """Return whether `text` can be the name of a secret, which is a file name in the sandbox."""
    return isinstance(text, str) and _SECRET_NAME.fullmatch(text) is not None
