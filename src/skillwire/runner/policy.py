"""`Policy`: what an operator lets scripts have. Scripts only ever ask."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

MIB = 1024 * 1024

DEFAULT_UID = 65534
"""Whom scripts run as when this process is root: nobody."""

SecretSource = Callable[[], bytes]
"""Gets the value of a secret, at the moment a script that was granted it is run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one run may use. Each is enforced, and each is reported with the outcome.

    `cpu_seconds`, `memory_bytes` and `processes` count all processes of a run
    together; threads count as processes. `disk_bytes` and `disk_files` are what
    it may have written at any one time. Of standard output and error the first
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

    def asked(self, wanted: Mapping[str, float], most: "Limits") -> "Limits":
        """Return these limits with what a script asks for, as far as `most` allows it.

        `wanted` has names of fields. It may ask for more or less than the default.
        """
        known = {one.name for one in fields(self)}
        granted = {name: min(value, getattr(most, name)) for name, value in wanted.items() if name in known}
        return replace(self, **granted) if granted else self


MOST = Limits(wall_seconds=300, cpu_seconds=300, memory_bytes=2048 * MIB, processes=256, disk_bytes=256 * MIB)
"""What a script may ask for at most, unless the operator says otherwise."""


@dataclass(frozen=True, slots=True)
class ScriptRule:
    """What an operator grants one script of one skill, beyond running.

    `origin` is the label of the server it comes from, empty for skills of this
    program's own. With `digest` it is granted to exactly these bytes. `secrets`
    are delivered as files by these names, if the script declares them.
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
    """A program that runs scripts: its path, what it is called with before the script's path, what it needs.

    `trees` are folders outside `/usr` that it needs to see. `address_space` is
    how much one process of it may map at least; some reserve far more than they use.
    """

    path: Path
    arguments: tuple[str, ...] = ()
    trees: tuple[Path, ...] = ()
    address_space: int = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Policy:
    """How scripts are run here.

    `limits` are what a script gets that asks for nothing, and `most` what it
    may ask for. `interpreters` go by suffix (`.py`), and come before those found
    on this machine; None means that there is none. The one for `.py` also starts
    the sandbox.
    `concurrent` runs go on at once, `queue` more wait, at most `queue_seconds`.
    `pool` sandboxes are started ahead. `bubblewrap` is found unless given.
    `uid` is whom scripts run as when this process is root. `cgroup` is a
    control group (version 2) that was delegated to this process and hands on
    memory and processes; without it our own is tried.
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
        """Return what was granted to exactly this script, if anything was."""
        for rule in self.rules:
            if (rule.origin, rule.skill, rule.script) == (origin, skill, script) and rule.digest in (
                "",
                digest,
            ):
                return rule
        return None
