"""The audit log: one JSON line for each action, decision or refusal of the host, without skill content."""

import logging
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

import orjson

from skillwire.core import SourceError, visible
from skillwire.host.state.vault import check_private, locked, make_folder

MAX_BYTES = 5 * 1024 * 1024
KEEP = 5

Scalar: TypeAlias = str | int | float | bool | None
Field: TypeAlias = Scalar | Sequence[Scalar]

_MAX_TEXT = 500
_MAX_ITEMS = 50
_plain = partial(visible, most=_MAX_TEXT)
_MAX_LINE = 64 * 1024
_LARGEST = 2**53
_LOCK_TIMEOUT = 1.0
_APPEND = (
    os.O_WRONLY
    | os.O_APPEND
    | os.O_CREAT
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
)

logger = logging.getLogger(__name__)


class AuditLog:
    """Appends events to a private file, and rotates it when it is full.

    `path` is the newest file; `path.1` is the one before, and so on, up to
    `keep` files. Processes can share a log: each line is written at once and
    carries its session. A log that cannot be written is reported once and does
    not stop the host. Callers pass names, URIs, digests and codes: no content,
    no header values and no environment values.
    """

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_BYTES, keep: int = KEEP, session: str | None = None
    ) -> None:
        self.session = session or secrets.token_hex(8)
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._write_lock = threading.Lock()
        self._has_warned = False
        self._is_torn = False

    def record(self, event: str, /, **fields: Field) -> None:
        """Append one event. Text is escaped and truncated; of other values only the type is written."""
        line = line_of(event, self.session, fields)
        try:
            with self._write_lock:
                self._append(line)
        except (OSError, SourceError) as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("the audit log cannot be written: %s", error)

    def _append(self, line: bytes) -> None:
        try:
            size = os.lstat(self._path).st_size
        except FileNotFoundError:
            make_folder(self._path.parent)
            size = 0
        if size and size + len(line) > self._max_bytes:
            try:
                self._rotate(len(line))
            except (OSError, SourceError):
                # Exceed the limit rather than lose an event, up to twice the limit.
                if size > 2 * self._max_bytes:
                    raise
        descriptor = os.open(self._path, _APPEND, 0o600)
        try:
            check_private(os.fstat(descriptor))
            # End a line that a full disk truncated, so that the next one stays valid.
            whole = b"\n" + line if self._is_torn else line
            written = os.write(descriptor, whole)  # One system call for each line.
            self._is_torn = written < len(whole)
        finally:
            os.close(descriptor)

    def _rotate(self, room: int) -> None:
        """Rename the files, unless another process has just done so."""
        with locked(self._path.with_name(f".{self._path.name}.lock"), timeout=_LOCK_TIMEOUT):
            if os.lstat(self._path).st_size + room <= self._max_bytes:
                return
            for number in range(self._keep, 0, -1):
                older = self._path.with_name(f"{self._path.name}.{number}")
                newer = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
                with suppress(FileNotFoundError):
                    newer.replace(older)
            if self._keep == 0:
                self._path.unlink()


def line_of(event: str, session: str, fields: Mapping[str, Field]) -> bytes:
    """Return one event as a line of JSON, for any field values."""
    head = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "session": session,
        "event": _plain(event),
    }
    values: dict[str, object] = {}
    for name, value in fields.items():
        if name in head:
            continue
        if isinstance(value, list | tuple | set | frozenset):
            some = list(cast(Sequence[object], value))
            more = ["…"] if len(some) > _MAX_ITEMS else []
            values[_plain(name)] = [*map(_scalar, some[:_MAX_ITEMS]), *more]
        else:
            values[_plain(name)] = _scalar(value)
    line = orjson.dumps({**head, **values}, option=orjson.OPT_APPEND_NEWLINE)
    if len(line) > _MAX_LINE:
        line = orjson.dumps({**head, "cut": True}, option=orjson.OPT_APPEND_NEWLINE)
    return line


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= _LARGEST else _plain(str(value))
    if isinstance(value, str):
        return _plain(value)
    return f"<{type(value).__name__}>"
