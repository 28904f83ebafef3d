"""`skills.lock`: the approvals of a project, in a file that is meant for version control.

It is policy that arrives with a checkout, so it is parsed strictly: one
invalid field invalidates the whole file. The same approvals always give the
same bytes, with one line for each file, so that diffs are readable.
"""

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import cast

from skillwire.core import ManifestFile, differing, quoted
from skillwire.host.approval.store import (
    approval_row,
    check_storable,
    coverage_row,
    parse_approval,
    site_row,
)
from skillwire.host.model import Approval, OriginKind, RefusedError, SkillId
from skillwire.host.state.vault import (
    NotPrivateError,
    Row,
    fields,
    items,
    read_plain,
    remove_leftovers,
    replace,
)

VERSION = 1
MAX_LOCK_BYTES = 4 * 1024 * 1024

_DOCUMENT = frozenset({"version", "skill"})
_HEAD = "# Approved skills, each with every file it has. Written by skillwire; review it as you would code.\n"
_SHORT_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_SPECIAL = re.compile(r'["\\]|[^\x20-\x7e]')
_MAX_DOTS = 16
_STRING_OR_COMMENT = re.compile(r""""(?:[^"\\\n]|\\[^\n])*+"?|'[^'\n]*+'?|#[^\n]*""")


class InvalidLockError(RefusedError):
    """A lock is invalid, or cannot hold these approvals; the message says why."""

    refusal = "lock-invalid"


@dataclass(frozen=True, slots=True)
class Lock:
    """The content of a lock: approvals sorted by origin and URI, and the exact bytes they were read from."""

    approvals: tuple[Approval, ...]
    content: bytes


class Pins:
    """The approvals of a lock, indexed by origin and URI."""

    def __init__(self, lock: Lock | None) -> None:
        found = {approval.skill: approval for approval in lock.approvals} if lock else {}
        self._approvals: Mapping[SkillId, Approval] = found

    def find(self, skill: SkillId) -> Approval | None:
        """Return the approval for a skill of exactly this label, endpoint and URI."""
        return self._approvals.get(skill)

    def __len__(self) -> int:
        return len(self._approvals)


@dataclass(frozen=True, slots=True)
class LockDifference:
    """How a lock differs from another: approvals it has, has no more, or has otherwise (before, after)."""

    added: tuple[Approval, ...] = ()
    removed: tuple[Approval, ...] = ()
    changed: tuple[tuple[Approval, Approval], ...] = ()

    @classmethod
    def between(cls, before: Lock | None, after: Lock | None) -> "LockDifference":
        old = {approval.skill: approval for approval in before.approvals} if before else {}
        new = {approval.skill: approval for approval in after.approvals} if after else {}
        added, removed, changed = differing(old, new)
        return cls(
            tuple(map(new.__getitem__, added)),
            tuple(map(old.__getitem__, removed)),
            tuple((old[skill], new[skill]) for skill in changed),
        )

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)


def read_lock(path: Path) -> Lock:
    """Read the lock at `path`.

    Raises:
        InvalidLockError: There is none, or it cannot be used.
    """
    content = read_lock_bytes(path)
    if content is None:
        raise InvalidLockError("there is no lock", reference=path.name)
    return parse_lock(content, path.name)


def read_lock_bytes(path: Path) -> bytes | None:
    """Return the bytes of a lock; None when there is none.

    A symbolic link is refused: a checkout could point it at any file of the
    user. A project that shares a lock can pass the path of the file itself.

    Raises:
        InvalidLockError: It is a link or not a regular file, too large, or cannot be read.
    """
    try:
        return read_plain(path, most=MAX_LOCK_BYTES)
    except OSError as error:
        message = f"the lock cannot be read: {error.strerror or type(error).__name__}"
        raise InvalidLockError(message, reference=path.name) from error


def parse_lock(content: bytes, name: str = "skills.lock") -> Lock:
    """Parse the bytes of a lock.

    Raises:
        InvalidLockError: They are not a valid lock of this version.
    """
    if len(content) > MAX_LOCK_BYTES:
        raise InvalidLockError(f"the lock is larger than {MAX_LOCK_BYTES} bytes", reference=name)
    try:
        document = _parse_toml(content)
        if document.get("version") != VERSION or isinstance(document["version"], bool):
            raise ValueError(f"its version is not {VERSION}")
        rows = items(fields({"skill": [], **document}, _DOCUMENT)["skill"], "skill")
        approvals = _parse_rows(rows)
    except ValueError as error:
        raise InvalidLockError(f"the lock is not valid: {error}", reference=name) from error
    return Lock(tuple(sorted(approvals.values(), key=_order)), content)


def lock_bytes(approvals: Iterable[Approval]) -> bytes:
    """Return the lock that holds these approvals; their order makes no difference.

    Raises:
        InvalidLockError: A skill is listed twice or is local, an approval
            cannot be written, or the lock would be too large.
    """
    ordered = sorted(approvals, key=_order)
    for approval, following in pairwise(ordered):
        if approval.skill == following.skill:
            raise InvalidLockError(f"{quoted(approval.skill.uri)} would be in the lock twice")
    for approval in ordered:
        if not approval.skill.origin.is_remote:
            raise InvalidLockError(
                f"{quoted(approval.skill.uri)} is a local skill; a lock pins only skills of servers"
            )
        try:
            check_storable(approval)
        except ValueError as error:
            raise InvalidLockError(f"a lock cannot hold {quoted(approval.skill.uri)}: {error}") from error
    content = "\n".join([f"{_HEAD}version = {VERSION}\n", *map(_table, ordered)]).encode()
    if len(content) > MAX_LOCK_BYTES:
        raise InvalidLockError(f"the lock would be larger than {MAX_LOCK_BYTES} bytes")
    # A label that TOML cannot represent would make the lock unreadable.
    return parse_lock(content).content


def write_lock(path: Path, approvals: Iterable[Approval]) -> bytes:
    """Replace the lock at `path` atomically, keeping its permissions, and return the bytes.

    As when reading, a symbolic link is refused.

    Raises:
        InvalidLockError: The approvals cannot be in a lock, or it cannot be
            written; the old lock is unchanged.
    """
    content = lock_bytes(approvals)
    write_lock_bytes(path, content)
    return content


def write_lock_bytes(path: Path, content: bytes) -> None:
    """Write the bytes of a lock to `path`, as `write_lock` does.

    Raises:
        InvalidLockError: They cannot be written; the old lock is unchanged.
    """
    try:
        replace(path, content, mode=_mode_of(path))
    except OSError as error:
        message = f"the lock cannot be written: {error.strerror or type(error).__name__}"
        raise InvalidLockError(message, reference=path.name) from error
    remove_leftovers(path.parent)


def _mode_of(path: Path) -> int | None:
    """Return the permissions of the file to replace; None when there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise NotPrivateError("it is a link or not a regular file")
    return stat.S_IMODE(found.st_mode) & 0o777


def _order(approval: Approval) -> tuple[str, str, str]:
    return (approval.skill.origin.label, approval.skill.origin.fingerprint, approval.skill.uri)


def _parse_toml(content: bytes) -> Row:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    _check_keys(text)
    try:
        return cast(Row, tomllib.loads(text))
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not TOML: {quoted(str(error))}") from None


def _check_keys(text: str) -> None:
    """Refuse keys with very many parts: the parser's time and memory grow with the square of their number.

    Outside strings and comments a lock has hardly any dots. Multi-line
    strings, which no lock needs, are refused so that lines can be checked one by one.
    """
    if '"""' in text or "'''" in text:
        raise ValueError("it has a multi-line string")
    if any(line.count(".") > _MAX_DOTS for line in _STRING_OR_COMMENT.sub("s", text).split("\n")):
        raise ValueError(f"it has a key with more than {_MAX_DOTS} parts")


def _parse_rows(rows: Iterable[object]) -> dict[SkillId, Approval]:
    found: dict[SkillId, Approval] = {}
    for number, row in enumerate(rows, start=1):
        try:
            approval = parse_approval(*_kind_of(row))
        except ValueError as error:
            raise ValueError(f"skill {number}: {error}") from None
        if approval.skill in found:
            raise ValueError(f"skill {number}: {quoted(approval.skill.uri)} is listed twice")
        found[approval.skill] = approval
    return found


def _kind_of(row: object) -> tuple[object, OriginKind]:
    """Return a row without its `kind` field, and the kind of origin; without the field it is a server."""
    if not isinstance(row, dict) or "kind" not in row:
        return cast(object, row), OriginKind.SERVER
    table = dict(cast(Row, row))
    if table.pop("kind") != OriginKind.SITE:
        raise ValueError("`kind` is not site")
    return table, OriginKind.SITE


def _table(approval: Approval) -> str:
    """Return one approval as TOML, one file per line; generic TOML writers choose the layout by length."""
    row = approval_row(approval)
    grants = ", ".join(map(_string, cast(list[str], row["grants"])))
    when = cast(datetime, row["approved_at"]).isoformat().replace("+00:00", "Z")
    few = {**site_row(approval.skill), **coverage_row(approval.manifest)}
    optional = "".join(f"{name} = {_string(str(value))}\n" for name, value in few.items())
    lines = "".join(
        f"  {{ uri = {_string(file.uri)}, digest = {_string(file.digest)}{_size(file)} }},\n"
        for file in approval.manifest.files
    )
    return (
        "[[skill]]\n"
        f"label = {_string(approval.skill.origin.label)}\n"
        f"fingerprint = {_string(approval.skill.origin.fingerprint)}\n"
        f"uri = {_string(approval.skill.uri)}\n"
        f"{optional}"
        f"grants = [{grants}]\n"
        f"approved_at = {when}\n"
        f"approved_by = {_string(approval.granted_by)}\n"
        f"files = [\n{lines}]\n"
    )


def _size(file: ManifestFile) -> str:
    return "" if file.known_size is None else f", size = {file.size}"


def _string(text: str) -> str:
    """Return text as a TOML string; invisible characters are escaped."""
    return f'"{_SPECIAL.sub(_escaped, text)}"'


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if character.isprintable():
        return character
    return f"\\u{ord(character):04X}" if ord(character) <= 0xFFFF else f"\\U{ord(character):08X}"
