"""An operator's policy as a file. It grants things, so all it says is understood or nothing of it counts."""

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, cast

from skillwire.core.characters import quoted
from skillwire.core.manifest import is_digest
from skillwire.core.uri import SkillUri
from skillwire.errors import InvalidUriError, RunnerError
from skillwire.runner.interface import FOLDER, is_host, is_secret_name
from skillwire.runner.limitnames import OPERATOR_LIMITS, SCRIPT_LIMITS, LimitName, limit_problem
from skillwire.runner.policy import MIB, Interpreter, Limits, Policy, ScriptRule, SecretSource
from skillwire.runner.tomltable import Table, TableError

MAX_POLICY_SIZE: Final = 256 * 1024
MAX_SECRET_SIZE: Final = 64 * 1024

_SUFFIX = re.compile(r"\.[a-z0-9]{1,16}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOR_OTHERS_TO_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OPENING = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)


class PolicyError(RunnerError):
    """A policy file that cannot be read, or says something that is not understood. Nothing of it counts."""

    refusal: ClassVar[str] = "invalid-policy"
    requirement: ClassVar[str] = "EXEC-11"


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
    """A secret in a file. A line end that an editor left behind it is no part of it."""

    name: str
    path: Path

    def __call__(self) -> bytes:
        try:
            content = _read(self.path, MAX_SECRET_SIZE + 2)
        except (OSError, ValueError) as error:
            raise _unavailable(self.name, "see that its file is there and can be read") from error
        return _bounded(self.name, content.removesuffix(b"\n").removesuffix(b"\r"))


def load_policy(path: Path) -> Policy:
    """Read a policy file that nobody else can write.

    Raises:
        PolicyError: It cannot be read, others can write it, or it says something that is not understood.
    """
    try:
        content = _read(path, MAX_POLICY_SIZE + 1, is_private=True)
    except (OSError, ValueError) as error:
        reason = error.strerror or "it cannot be read" if isinstance(error, OSError) else str(error)
        fix = "chmod go-w the file" if isinstance(error, _WritableError) else ""
        raise PolicyError(f"the policy file {quoted(path.name)} is not used: {reason}", fix=fix) from error
    return parse_policy(content)


def parse_policy(content: bytes, *, base: Policy | None = None) -> Policy:
    """Read a policy in TOML; what it does not say is as in `base`.

    Raises:
        PolicyError: It is no TOML, or something in it is malformed or unknown; the message names the key.
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
                f"limits.{name} is more than most.{name}: what a script gets unasked it may ask for",
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
        # Never root: a script that is root outside its namespaces is a script at large.
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
            raise TableError(f"{table.key(suffix)} is no suffix like '.py'")
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
                raise TableError(f"{grant.key('network')} has {quoted(host)}, which is no plain host name")
        grant.finish()
        key = (rule.origin, rule.skill, rule.script, rule.digest)
        if key in rules:
            raise TableError(f"{grant.name} grants something to a script that has a grant already")
        rules[key] = rule
    # The first that matches counts, and one for exact bytes says more than one for any.
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
            raise TableError(f"{table.key(name)} is no name of a secret: letters, digits and _")
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
            raise TableError(f"{source.key('env')} is no name of an environment variable")
    return secrets


class _WritableError(ValueError):
    pass


def _read(path: Path, most: int, *, is_private: bool = False) -> bytes:
    """Return the first `most` bytes of a plain file. A pipe would be waited for, and is refused instead."""
    descriptor = os.open(path, _OPENING)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no plain file")
        if is_private and os.name == "posix" and found.st_mode & _FOR_OTHERS_TO_WRITE:
            raise _WritableError("others than its owner can write it")
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
    return RunnerError(f"the secret {name} is not to be had", fix=fix)
