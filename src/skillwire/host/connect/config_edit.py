"""Adding one server to a configuration file, or removing it, without changing the rest of the file.

A file is edited as text, to preserve comments and layout. The result is parsed
again and compared before it is written.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from skillwire.core import quoted
from skillwire.host.connect.config_file import (
    TABLES,
    decoded,
    parse_json,
    read_bytes,
    table_in,
    tokens_of,
)
from skillwire.host.model import ConfigError
from skillwire.host.state.vault import replace

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_SPACE = " \t\r\n"
_OPENING = frozenset("{[")
_CLOSING = frozenset("]}")


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """A configuration before and after an edit; `before` is None for a new file."""

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
            return cls(path, None, with_value("{}\n", (TABLES[0], key), dict(entry)).encode())
        before = read_bytes(path)
        parsed = parse_json(before, path.name)
        if not isinstance(parsed, dict):
            raise ConfigError("the configuration is not an object", fix="correct the file")
        table = table_for(cast(dict[str, object], parsed))
        expected = _with_entry(cast(dict[str, object], parsed), table, key, entry)
        bom = BYTE_ORDER_MARK if before.startswith(BYTE_ORDER_MARK) else b""
        after = bom + with_value(decoded(before, path.name), (table, key), dict(entry)).encode()
        if parse_json(after, path.name) != expected:
            raise ConfigError(
                f"{quoted(path.name)} cannot be edited without changing the rest of it",
                fix=f"add this member by hand: {json.dumps(key)}: {json.dumps(dict(entry))}",
            )
        return cls(path, before, after)

    def write(self, *, mode: int | None = None) -> None:
        """Replace the file atomically, with the permissions it had; a new one gets `mode`.

        Raises:
            ConfigError: Another program changed it meanwhile; nothing was written.
            OSError: It cannot be written.
        """
        now = read_bytes(self.path) if os.path.lexists(self.path) else None
        if now != self.before:
            raise ConfigError(
                f"{quoted(self.path.name)} was changed by another program meanwhile", fix="try again"
            )
        if self.before is not None:
            mode = stat.S_IMODE(self.path.stat().st_mode)
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


# JSON with comments and trailing commas, as text that was parsed before.


def with_value(text: str, path: Sequence[str], value: object) -> str:
    """Return JSON with `value` at a path of keys, in place of an earlier one or after the last member.

    Objects on the way are added. `without_value` undoes this byte for byte
    where there was no earlier value.

    Raises:
        ConfigError: Something on the way is not an object.
    """
    layout = _JsonLayout.of(text)
    span = layout.root
    for number, key in enumerate(path):
        member = span.members.get(key)
        if member is None:
            return _appended(text, layout, span, path[number:], value)
        if number == len(path) - 1:
            margin = layout.margin(text, span)
            is_inline = layout.is_inline(text, span)
            shown = json.dumps(value, ensure_ascii=False) if is_inline else layout.dumped(value, margin)
            return text[: member.start] + shown + text[member.end :]
        if text[member.start] != "{":
            raise ConfigError(f"the value of {quoted(key)} is not an object")
        span = _span_at(text, member.start)
    return text


def without_value(text: str, path: Sequence[str]) -> str:
    """Return JSON without the value at a path of keys, and without the objects that were added for it."""
    layout = _JsonLayout.of(text)
    span = layout.root
    for key in path[:-1]:
        span = _span_at(text, span.members[key].start)
    member = span.members[path[-1]]
    if len(span.members) == 1:
        before, after = text[span.start + 1 : member.key], text[member.end : span.end]
        is_padded = after != "" and not (before + after).strip(_SPACE)
        if is_padded and len(path) > 1:
            return without_value(text, path[:-1])
        if is_padded:
            return text[: span.start + 1] + text[span.end :]
    return _without_member(text, span, member)


def _without_member(text: str, span: "_JsonObject", member: "_JsonMember") -> str:
    gap = len(text[: member.key].rstrip(_SPACE))
    if member.comma is not None:
        is_last = member.end == max(other.end for other in span.members.values())
        rest = text[member.comma + 1 :]
        if is_last or rest.lstrip(" \t")[:1] in ("\r", "\n"):
            return text[:gap] + rest
        return text[: member.key] + rest.lstrip(" \t")
    earlier = [other.comma for other in span.members.values() if other.comma is not None]
    if not earlier:
        return text[: member.key] + text[member.end :]
    comma = max(earlier)
    return text[:comma] + text[comma + 1 : gap] + text[member.end :]


def _appended(
    text: str, layout: "_JsonLayout", span: "_JsonObject", keys: Sequence[str], value: object
) -> str:
    """Return the text with one more member at the end of an object; all keys but the first are nested."""
    margin = layout.margin(text, span)
    is_inline = layout.is_inline(text, span)
    shown = layout.nested(keys[1:], value, None if is_inline else margin)
    member = f"{json.dumps(keys[0], ensure_ascii=False)}: {shown}"
    if not span.members:
        if span is layout.root and span.end == span.start + 1:
            member = layout.newline + margin + member + layout.newline
        return text[: span.end] + member + text[span.end :]
    rest = text[span.last : span.end]
    comments = rest.rstrip(_SPACE)
    gap = " " if is_inline else layout.newline + margin
    before, after = (",", "") if span.needs_comma else ("", ",")
    return (
        f"{text[: span.last]}{before}{comments}{gap}{member}{after}{rest[len(comments) :]}{text[span.end :]}"
    )


@dataclass(frozen=True, slots=True)
class _JsonMember:
    """The positions of a member: its key, its value, and the comma after it."""

    key: int
    start: int
    end: int
    comma: int | None


@dataclass(frozen=True, slots=True)
class _JsonObject:
    """The positions of an object: its braces, its members, and the end of its last token."""

    start: int
    end: int
    members: Mapping[str, _JsonMember]
    last: int

    @property
    def needs_comma(self) -> bool:
        return any(member.end == self.last for member in self.members.values())


@dataclass(frozen=True, slots=True)
class _JsonLayout:
    """How a text is laid out: its line ends, and the indentation of one level."""

    root: _JsonObject
    newline: str
    unit: str

    @classmethod
    def of(cls, text: str) -> "_JsonLayout":
        root = _span_at(text, next(start for start, token in tokens_of(text) if token == "{"))
        first = min((member.key for member in root.members.values()), default=0)
        return cls(root, "\r\n" if "\r\n" in text else "\n", _indentation(text, first) or "  ")

    def is_inline(self, text: str, span: _JsonObject) -> bool:
        """Return whether the members of an object are on one line; those of an empty one as in the root."""
        measured = span if span.members else self.root
        return bool(measured.members) and "\n" not in text[measured.start : measured.end]

    def margin(self, text: str, span: _JsonObject) -> str:
        """Return the indentation of the members of an object."""
        if span.members:
            first = min(member.key for member in span.members.values())
            if (found := _indentation(text, first)) is not None:
                return found
        line = text[text.rfind("\n", 0, span.start) + 1 : span.start]
        return line[: len(line) - len(line.lstrip(" \t"))] + self.unit

    def nested(self, keys: Sequence[str], value: object, margin: str | None) -> str:
        """Return a value inside an object for each key; on one line without a margin."""
        if not keys:
            return json.dumps(value, ensure_ascii=False) if margin is None else self.dumped(value, margin)
        inner = None if margin is None else margin + self.unit
        member = f"{json.dumps(keys[0], ensure_ascii=False)}: {self.nested(keys[1:], value, inner)}"
        if margin is None:
            return f"{{ {member} }}"
        return f"{{{self.newline}{inner}{member}{self.newline}{margin}}}"

    def dumped(self, value: object, margin: str) -> str:
        lines = json.dumps(value, indent=self.unit, ensure_ascii=False).split("\n")
        return f"{self.newline}{margin}".join(lines)


def _indentation(text: str, place: int) -> str | None:
    """Return the indentation of what begins a line at `place`; None if it does not begin one."""
    lead = text[text.rfind("\n", 0, place) + 1 : place]
    return None if lead.strip(" \t") or "\n" not in text[:place] else lead


def _span_at(text: str, opening: int) -> _JsonObject:
    """Return the positions of the object whose brace is at `opening`, in a text that is valid JSON."""
    members: dict[str, _JsonMember] = {}
    depth, last, key = 0, opening + 1, ""
    key_start = value_start = -1
    previous = "{"
    for start, token in _from(text, opening):
        if depth == 1 and token in (",", "}") and value_start >= 0:
            members[key] = _JsonMember(key_start, value_start, last, start if token == "," else None)
            value_start = -1
        if token in _CLOSING:
            depth -= 1
            if depth == 0:
                return _JsonObject(opening, start, members, last)
        elif depth == 1 and previous == ":" and value_start < 0:
            value_start = start
        elif depth == 1 and previous in ("{", ",") and token.startswith('"'):
            key, key_start = json.loads(token), start
        if token in _OPENING:
            depth += 1
        last, previous = start + len(token), token
    raise ConfigError("the configuration has an object that is not closed")


def _from(text: str, place: int) -> Iterator[tuple[int, str]]:
    return ((start, token) for start, token in tokens_of(text) if start >= place)
