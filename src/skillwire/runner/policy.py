"""`Policy`: what an operator grants to scripts, and how it is read from a TOML file. Scripts only request."""

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import ClassVar, Final, cast

from skillwire.core.characters import quoted
from skillwire.core.errors import InvalidUriError, RunnerError
from skillwire.core.manifest import is_digest
from skillwire.core.toml import InvalidTomlError, Table, TableError, parse_toml
from skillwire.core.uri import SkillUri

MIB = 1024 * 1024
FOLDER: Final = "scripts/"
"""The folder of scripts in a skill."""

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


# Read a policy from a TOML file. Because it grants permissions, anything unknown is an error.


MAX_POLICY_SIZE: Final = 256 * 1024
MAX_SECRET_SIZE: Final = 64 * 1024

_SUFFIX = re.compile(r"\.[a-z0-9]{1,16}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOR_OTHERS_TO_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OPENING = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)


class PolicyError(RunnerError):
    """A policy file cannot be read, or has a malformed or unknown entry. Nothing in it is used."""

    refusal: ClassVar[str] = "invalid-policy"
    violates = "EXEC-11"


@dataclass(frozen=True, slots=True)
class EnvironmentSecret:
    """A secret in a variable of this program's environment."""

    name: str
    variable: str

    def __call__(self) -> bytes:
        value = os.environ.get(self.variable)
        if value is None:
            raise _unavailable(self.name, f"set the environment variable {self.variable}")
        return _bounded(self.name, os.fsencode(value))


@dataclass(frozen=True, slots=True)
class FileSecret:
    """A secret in a file, without the line end that editors add."""

    name: str
    path: Path

    def __call__(self) -> bytes:
        try:
            content = _read(self.path, MAX_SECRET_SIZE + 2)
        except (OSError, ValueError) as error:
            raise _unavailable(self.name, "check that its file exists and can be read") from error
        return _bounded(self.name, content.removesuffix(b"\n").removesuffix(b"\r"))


def load_policy(path: Path) -> Policy:
    """Read a policy file that only its owner can write.

    Raises:
        PolicyError: It cannot be read, others can write it, or it holds something malformed or unknown.
    """
    try:
        content = _read(path, MAX_POLICY_SIZE + 1, is_private=True)
    except (OSError, ValueError) as error:
        reason = error.strerror or "it cannot be read" if isinstance(error, OSError) else str(error)
        fix = "chmod go-w the file" if isinstance(error, _WritableError) else ""
        raise PolicyError(f"the policy file {quoted(path.name)} is not used: {reason}", fix=fix) from error
    return parse_policy(content)


def parse_policy(content: bytes, *, base: Policy | None = None) -> Policy:
    """Parse a policy in TOML; values that are not set are taken from `base`.

    Raises:
        PolicyError: It is not TOML, or something in it is malformed or unknown; the message names the key.
    """
    if len(content) > MAX_POLICY_SIZE:
        raise PolicyError(f"the policy is larger than {MAX_POLICY_SIZE} bytes")
    try:
        return _policy(parse_toml(content, what="the policy"), base or Policy())
    except InvalidTomlError as error:
        raise PolicyError(str(error)) from None
    except TableError as error:
        raise PolicyError(f"in the policy, {error}", fix=error.fix) from None


def _policy(table: Table, base: Policy) -> Policy:
    limits = _limits(table.table("limits"), OPERATOR_LIMITS, base.limits)
    most = _limits(table.table("most"), SCRIPT_LIMITS, base.most)
    for name, limit in SCRIPT_LIMITS.items():
        if getattr(limits, limit.field) > getattr(most, limit.field):
            raise TableError(
                f"limits.{name} is more than most.{name}, the maximum that a script may request",
                fix=f"set {name} under [most] too",
            )
    policy = replace(
        base,
        limits=limits,
        most=most,
        rules=(*base.rules, *_rules(table)),
        interpreters=_interpreters(table.table("interpreters"), base.interpreters),
        concurrent=table.whole("concurrent", base.concurrent, least=1, most=1024),
        queue=table.whole("queue", base.queue, least=0, most=10_000),
        queue_seconds=table.number("queue_seconds", base.queue_seconds, least=0.1, most=3600),
        pool=table.whole("pool", base.pool, least=0, most=64),
        bubblewrap=_path(table, "bubblewrap") or base.bubblewrap,
        # Never root: a script that escapes its namespaces must not be root outside.
        uid=table.whole("uid", base.uid, least=1, most=2**32 - 2),
        cgroup=_path(table, "cgroup") or base.cgroup,
    )
    table.finish()
    return policy


def _limits(table: Table, names: Mapping[str, LimitName], base: Limits) -> Limits:
    changed: dict[str, float] = {}
    for name, value in table.rest().items():
        known = names.get(name)
        problem = limit_problem(value, known)
        if known is None or problem:
            raise TableError(f"{table.key(name)} {problem}")
        changed[known.field] = known.amount(cast(float, value))
    return replace(base, **changed)


def _interpreters(table: Table, base: Mapping[str, Interpreter | None]) -> Mapping[str, Interpreter | None]:
    given: dict[str, Interpreter | None] = {}
    for suffix, value in table.rest().items():
        if not _SUFFIX.fullmatch(suffix):
            raise TableError(f"{table.key(suffix)} is not a suffix like '.py'")
        if value is False:
            given[suffix] = None
            continue
        one = table.table(suffix)
        path = _path(one, "path")
        if path is None:
            raise TableError(f"{one.key('path')} is missing")
        arguments = one.texts("arguments")
        if any("\0" in argument for argument in arguments):
            raise TableError(f"{one.key('arguments')} has a NUL in it")
        found = Interpreter(
            path, arguments, tuple(_absolute(one, "trees", text) for text in one.texts("trees"))
        )
        space = one.whole("address_space_mib", found.address_space // MIB, least=64, most=1_000_000)
        given[suffix] = replace(found, address_space=space * MIB)
        one.finish()
    return {**base, **given}


def _path(table: Table, name: str) -> Path | None:
    value = table.value(name)
    return None if value is None else _absolute(table, name, value)


def _absolute(table: Table, name: str, value: object) -> Path:
    if not isinstance(value, str) or "\0" in value or not Path(value).is_absolute():
        raise TableError(f"{table.key(name)} is not an absolute path")
    return Path(value)


def _rules(table: Table) -> list[ScriptRule]:
    rules: dict[tuple[str, str, str, str], ScriptRule] = {}
    for grant in table.tables("grant"):
        rule = ScriptRule(
            skill=_skill(grant),
            script=_script(grant),
            origin=grant.text("origin", ""),
            digest=grant.text("digest", ""),
            secrets=_secrets(grant.table("secrets")),
            network=grant.texts("network"),
        )
        if rule.digest and not is_digest(rule.digest):
            raise TableError(f"{grant.key('digest')} is not sha256: and 64 lower-case hexadecimal digits")
        for host in rule.network:
            if not is_host(host):
                raise TableError(f"{grant.key('network')} has {quoted(host)}, which is not a plain host name")
        grant.finish()
        key = (rule.origin, rule.skill, rule.script, rule.digest)
        if key in rules:
            raise TableError(f"{grant.name} is a second grant for the same script")
        rules[key] = rule
    # The first match is used, so rules for exact bytes come before rules for any.
    return sorted(rules.values(), key=lambda rule: not rule.digest)


def _skill(grant: Table) -> str:
    text = grant.text("skill")
    try:
        return SkillUri.parse(text).text
    except InvalidUriError:
        fix = "give the URI of its SKILL.md, as `skillwire list` shows it"
        raise TableError(f"{grant.key('skill')} is not the URI of a skill", fix=fix) from None


def _script(grant: Table) -> str:
    path = grant.text("script")
    name = path.removeprefix(FOLDER)
    if name == path or not name or "/" in name:
        raise TableError(f"{grant.key('script')} is not the path of a script, like 'scripts/fetch.py'")
    return path


def _secrets(table: Table) -> dict[str, SecretSource]:
    secrets: dict[str, SecretSource] = {}
    for name in table.rest():
        if not is_secret_name(name):
            raise TableError(f"{table.key(name)} is not the name of a secret: use letters, digits and _")
        source = table.table(name)
        variable, path = source.text("env", ""), _path(source, "file")
        source.finish()
        if bool(variable) == bool(path):
            raise TableError(f"{source.name} needs either `env` or `file`")
        if path is not None:
            secrets[name] = FileSecret(name, path)
        elif _VARIABLE.fullmatch(variable):
            secrets[name] = EnvironmentSecret(name, variable)
        else:
            raise TableError(f"{source.key('env')} is not the name of an environment variable")
    return secrets


class _WritableError(ValueError):
    pass


def _read(path: Path, most: int, *, is_private: bool = False) -> bytes:
    """Return the first `most` bytes of a regular file. Pipes are refused, because reading one could block."""
    descriptor = os.open(path, _OPENING)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if is_private and os.name == "posix" and found.st_mode & _FOR_OTHERS_TO_WRITE:
            raise _WritableError("users other than its owner can write it")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def _bounded(name: str, value: bytes) -> bytes:
    if not value or len(value) > MAX_SECRET_SIZE:
        what = "empty" if not value else f"larger than {MAX_SECRET_SIZE} bytes"
        raise RunnerError(f"the secret {name} is {what}")
    return value


def _unavailable(name: str, fix: str) -> RunnerError:
    return RunnerError(f"the secret {name} is not available", fix=fix)
