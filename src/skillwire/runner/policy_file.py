"""Read an operator's policy from a TOML file. Because it grants permissions, anything unknown is an error."""

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, cast

from skillwire.core import InvalidUriError, RunnerError, SkillUri, is_digest, quoted
from skillwire.runner.interface import FOLDER
from skillwire.runner.policy import (
    MIB,
    OPERATOR_LIMITS,
    SCRIPT_LIMITS,
    Interpreter,
    LimitName,
    Limits,
    Policy,
    ScriptRule,
    SecretSource,
    is_host,
    is_secret_name,
    limit_problem,
)

# `Table`: read a table of a TOML file key by key, and refuse unknown keys.


class TableError(ValueError):
    """A key is malformed or unknown; the message names it, and `fix` the remedy."""

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class Table:
    """A table that records which keys were read, so that `finish` can refuse the others."""

    def __init__(self, name: str, rows: Mapping[str, object]) -> None:
        self.name = name
        self._rows = rows
        self._taken: set[str] = set()

    def key(self, name: str) -> str:
        """Return the full key for a message."""
        shown = (
            name if name.replace("_", "").isalnum() and name.isascii() and len(name) < 65 else quoted(name)
        )
        return f"{self.name}.{shown}" if self.name else shown

    def rest(self) -> Mapping[str, object]:
        """Return all keys and values, for a table whose keys are names."""
        self._taken.update(self._rows)
        return self._rows

    def finish(self) -> None:
        for name in self._rows:
            if name not in self._taken:
                known = ", ".join(sorted(self._taken))
                raise TableError(f"{self.key(name)} is unknown", fix=f"known here: {known}")

    def table(self, name: str) -> "Table":
        """Return a nested table; an empty one when it is missing."""
        value = self._take(name)
        if value is not None and not isinstance(value, dict):
            raise TableError(f"{self.key(name)} is not a table")
        return Table(self.key(name), cast("dict[str, object]", value or {}))

    def tables(self, name: str) -> "list[Table]":
        """Return the tables of `[[name]]`."""
        items = self._take(name)
        if items is None:
            return []
        if not isinstance(items, list):
            raise TableError(f"{self.key(name)} is not a list of tables; write [[{name}]]")
        found: list[Table] = []
        for number, item in enumerate(cast("list[object]", items), 1):
            if not isinstance(item, dict):
                raise TableError(f"{self.key(name)} is not a list of tables; write [[{name}]]")
            found.append(Table(f"{self.key(name)}[{number}]", cast("dict[str, object]", item)))
        return found

    def text(self, name: str, default: str | None = None) -> str:
        value = self._take(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not (value or default is not None):
            raise TableError(
                f"{self.key(name)} is {'missing' if value is None else 'not a string, or empty'}"
            )
        return value

    def texts(self, name: str, *, is_filled: bool = False) -> tuple[str, ...]:
        """Return a list of strings. With `is_filled`, a list that is given must not be empty."""
        value = self._take(name)
        items = cast("list[object]", value) if isinstance(value, list) else None
        if value is None:
            return ()
        if items is None or not all(isinstance(item, str) for item in items):
            raise TableError(f"{self.key(name)} is not a list of strings")
        if is_filled and not items:
            raise TableError(f"{self.key(name)} is empty", fix="leave it out, or add an item")
        return tuple(cast("list[str]", items))

    def flag(self, name: str) -> bool:
        value = self._take(name)
        if value is not None and not isinstance(value, bool):
            raise TableError(f"{self.key(name)} is neither true nor false")
        return bool(value)

    def whole(self, name: str, default: int, *, least: int, most: int) -> int:
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise TableError(f"{self.key(name)} is not a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise TableError(f"{self.key(name)} is not a number from {least:g} to {most:g}")
        return value

    def absolute_path(self, name: str) -> Path | None:
        value = self._take(name)
        return None if value is None else self._path(name, value)

    def absolute_paths(self, name: str) -> tuple[Path, ...]:
        return tuple(self._path(name, text) for text in self.texts(name))

    def _path(self, name: str, value: object) -> Path:
        if not isinstance(value, str) or "\0" in value or not Path(value).is_absolute():
            raise TableError(f"{self.key(name)} is not an absolute path")
        return Path(value)

    def _take(self, name: str) -> object:
        self._taken.add(name)
        return self._rows.get(name)


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
        return _policy(Table("", tomllib.loads(content.decode())), base or Policy())
    except UnicodeDecodeError:
        raise PolicyError("the policy is not UTF-8 text") from None
    except RecursionError:
        raise PolicyError("the policy nests too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"the policy is not TOML: {quoted(str(error))}") from None
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
        bubblewrap=table.absolute_path("bubblewrap") or base.bubblewrap,
        # Never root: a script that escapes its namespaces must not be root outside.
        uid=table.whole("uid", base.uid, least=1, most=2**32 - 2),
        cgroup=table.absolute_path("cgroup") or base.cgroup,
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
        path = one.absolute_path("path")
        if path is None:
            raise TableError(f"{one.key('path')} is missing")
        arguments = one.texts("arguments")
        if any("\0" in argument for argument in arguments):
            raise TableError(f"{one.key('arguments')} has a NUL in it")
        found = Interpreter(path, arguments, one.absolute_paths("trees"))
        space = one.whole("address_space_mib", found.address_space // MIB, least=64, most=1_000_000)
        given[suffix] = replace(found, address_space=space * MIB)
        one.finish()
    return {**base, **given}


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
        variable, path = source.text("env", ""), source.absolute_path("file")
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
