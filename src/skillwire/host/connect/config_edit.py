"""Adding one server to a configuration file without changing the rest of it.

The file is edited as text, to preserve comments and layout. The result is
parsed again and compared before it is written.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from skillwire.core import quoted
from skillwire.host.connect.config_file import TABLES, decoded, parse_json, read_bytes, table_in, tokens_of
from skillwire.host.model import ConfigError
from skillwire.host.state.vault import replace

_INDENT = "  "
_OPENING = frozenset("{[")
_CLOSING = frozenset("}]")


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """A configuration before and after adding one server; `before` is None for a new file."""

    path: Path
    before: bytes | None
    after: bytes

    @classmethod
    def for_server(cls, path: Path, key: str, entry: Mapping[str, object]) -> "ConfigEdit":
        """Build the edit that sets `key` to `entry` in the file at `path`. Nothing is written.

        Raises:
            ConfigError: The file cannot be read, is not a configuration, or is a symbolic link.
        """
        if path.is_symlink():
            raise ConfigError(
                f"{quoted(path.name)} is a symbolic link, which is not written through",
                fix="name the target of the link with --config",
            )
        if not path.exists():
            document = {TABLES[0]: {key: dict(entry)}}
            return cls(path, None, _dumped(document).encode() + b"\n")
        before = read_bytes(path)
        parsed = parse_json(before, path.name)
        if not isinstance(parsed, dict):
            raise ConfigError("the configuration is not an object", fix="correct the file")
        table = table_for(cast(dict[str, object], parsed))
        expected = _with_entry(cast(dict[str, object], parsed), table, key, entry)
        bom = b"\xef\xbb\xbf" if before.startswith(b"\xef\xbb\xbf") else b""
        after = bom + _edited(decoded(before, path.name), table, key, entry).encode()
        if parse_json(after, path.name) != expected:
            raise ConfigError(
                f"{quoted(path.name)} cannot be edited without changing the rest of it",
                fix=f"add this member by hand: {json.dumps(key)}: {json.dumps(dict(entry))}",
            )
        return cls(path, before, after)

    def write(self) -> None:
        """Replace the file atomically, with the permissions it had.

        Raises:
            ConfigError: Another program changed it meanwhile; nothing was written.
            OSError: It cannot be written.
        """
        now = read_bytes(self.path) if os.path.lexists(self.path) else None
        if now != self.before:
            raise ConfigError(
                f"{quoted(self.path.name)} was changed by another program meanwhile", fix="try again"
            )
        mode = None if self.before is None else stat.S_IMODE(self.path.stat().st_mode)
        replace(self.path, self.after, mode=mode)


def table_for(document: Mapping[str, object]) -> str:
    """Return the name of the servers object of a configuration, or the default name.

    Raises:
        ConfigError: It has two such objects, or its servers are elsewhere.
    """
    table = table_in(document)
    if table is None and ("projects" in document or "mcp" in document or "mcp.servers" in document):
        raise ConfigError(
            "the file holds the settings of another program, and no servers for this host",
            fix="name a separate file with --config, such as .mcp.json",
        )
    return table or TABLES[0]


def _with_entry(
    document: Mapping[str, object], table: str, key: str, entry: Mapping[str, object]
) -> dict[str, object]:
    servers = cast(dict[str, object], document.get(table, {}))
    return {**document, table: {**servers, key: dict(entry)}}


def _edited(text: str, table: str, key: str, entry: Mapping[str, object]) -> str:
    """Return the text with the entry, in place of an earlier one or after the last member."""
    whole = _members(text, _first_brace(text))
    if table not in whole.values:
        return _appended(text, whole, table, {key: dict(entry)}, depth=1)
    servers = _members(text, whole.values[table][0])
    if key in servers.values:
        start, end = servers.values[key]
        return text[:start] + _dumped(dict(entry), depth=2) + text[end:]
    return _appended(text, servers, key, entry, depth=2)


def _appended(text: str, parent: "_ObjectSpan", key: str, value: Mapping[str, object], *, depth: int) -> str:
    """Return the text with one more member at the end of an object, on its own line."""
    margin = "\n" + _INDENT * depth
    member = f"{margin}{json.dumps(key, ensure_ascii=False)}: {_dumped(value, depth=depth)}"
    comma = "," if parent.needs_comma else ""
    rest = text[parent.last : parent.end].rstrip()
    return f"{text[: parent.last]}{comma}{rest}{member}\n{_INDENT * (depth - 1)}{text[parent.end :]}"


def _dumped(value: Mapping[str, object], *, depth: int = 0) -> str:
    lines = json.dumps(value, indent=_INDENT, ensure_ascii=False).splitlines()
    return f"\n{_INDENT * depth}".join(lines)


@dataclass(frozen=True, slots=True)
class _ObjectSpan:
    """The positions of an object in a text: its members' values, its last token, its closing brace."""

    values: Mapping[str, tuple[int, int]]
    last: int
    end: int
    needs_comma: bool


def _first_brace(text: str) -> int:
    return next(start for start, token in tokens_of(text) if token == "{")


def _members(text: str, opening: int) -> _ObjectSpan:
    """Return the positions of the object whose brace is at `opening`, in a text that is valid JSON."""
    values: dict[str, tuple[int, int]] = {}
    depth, last, key = 0, opening + 1, ""
    value_start = -1
    previous = "{"
    for start, token in _from(text, opening):
        if depth == 1 and token in (",", "}") and value_start >= 0:
            values[key] = (value_start, last)
            value_start = -1
        if token in _CLOSING:
            depth -= 1
            if depth == 0:
                return _ObjectSpan(values, last, start, previous not in ("{", ","))
        elif depth == 1 and previous == ":" and value_start < 0:
            value_start = start
        elif depth == 1 and previous in ("{", ",") and token.startswith('"'):
            key = json.loads(token)
        if token in _OPENING:
            depth += 1
        last, previous = start + len(token), token
    raise ConfigError("the configuration has an object that is not closed")


def _from(text: str, place: int) -> Iterator[tuple[int, str]]:
    return ((start, token) for start, token in tokens_of(text) if start >= place)
