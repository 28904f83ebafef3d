"""One entry in a configuration of another program, changed as text: JSON with comments, TOML or YAML.

Everything around the entry stays byte for byte. A text is parsed before and
after; if anything but the entry would differ, nothing is returned.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TypeAlias, cast

import yaml

from skillwire.core.yaml12 import YamlRefusedError, parse_yaml
from skillwire.host.connect import config_edit
from skillwire.host.connect.config_file import parse_json
from skillwire.host.model import ConfigError

Entry: TypeAlias = Mapping[str, object]
"""A server in a configuration: texts, numbers, booleans, and lists of texts."""


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How a configuration is parsed, and how a value at a path of keys is set or removed in its text.

    The path of an entry has two keys: that of the table, and its own.
    """

    parse: Callable[[str], object]
    with_value: Callable[[str, Sequence[str], object], str]
    without_value: Callable[[str, Sequence[str]], str]
    blank: str
    """The text of a new file."""

    def entry_in(self, text: str, path: Sequence[str]) -> object:
        """Return the value at a path of keys, or None.

        Raises:
            ConfigError: The text cannot be parsed, or something on the way is not a table.
        """
        value = cast(object, self._table(text))
        for key in path:
            if not isinstance(value, dict):
                raise ConfigError(f"the configuration has no table for {'.'.join(path)}")
            value = cast(dict[str, object], value).get(key)
            if value is None:
                return None
        return value

    def with_entry(self, text: str, path: Sequence[str], entry: Entry) -> str:
        """Return the text with an entry; of an earlier one, other members and their comments are kept.

        Raises:
            ConfigError: It is not possible without changing anything else.
        """
        current = self.entry_in(text, path)
        members = cast(dict[str, object], current) if isinstance(current, dict) else {}
        after = text if isinstance(current, dict) else self.with_value(text, path, entry)
        for key, value in entry.items() if isinstance(current, dict) else ():
            if key not in members or _canonical(members[key]) != _canonical(value):
                after = self.with_value(after, (*path, key), value)
        self._require(after, self._expected(text, path, {**members, **entry}))
        return after

    def without_entry(self, text: str, path: Sequence[str]) -> str:
        """Return the text without the entry, and without its table if that was added for it.

        Raises:
            ConfigError: It is not possible without changing anything else.
        """
        after = self.without_value(text, path)
        expected = self._expected(text, path, None)
        if expected.get(path[0]) == {} and path[0] not in self._table(after):
            del expected[path[0]]
        self._require(after, expected)
        return after

    def _table(self, text: str) -> dict[str, object]:
        found = self.parse(text)
        if not isinstance(found, dict):
            raise ConfigError("the configuration is not a table")
        return cast(dict[str, object], found)

    def _expected(self, text: str, path: Sequence[str], value: object) -> dict[str, object]:
        """Return the parsed text with another value at a path; None removes it."""
        whole = self._table(text)
        table = whole
        for key in path[:-1]:
            table = cast(dict[str, object], table.setdefault(key, {}))
        if value is None:
            table.pop(path[-1], None)
        else:
            table[path[-1]] = value
        return whole

    def _require(self, after: str, expected: object) -> None:
        if _canonical(self._table(after)) != _canonical(expected):
            raise not_editable()


def not_editable() -> ConfigError:
    """Return the error for a text in which the entry cannot be changed by itself."""
    return ConfigError("the configuration cannot be edited without changing the rest of it")


def _canonical(value: object) -> str:
    """Return a text that differs for values that differ, also where `==` does not (`1`, `1.0`, `true`)."""
    return json.dumps(value, sort_keys=True, default=repr)


# TOML: a table of its own at the end of the file.


_TOML_KEY = re.compile(r"""(?:[^="']|"(?:[^"\\]|\\.)*"|'[^']*')*=[ \t]*""")
_MOST_LINES = 1_000


@dataclass(frozen=True, slots=True)
class _TomlStatement:
    """A header, or a key with its value: the path of keys from the root, and the text and its position."""

    keys: tuple[str, ...]
    is_header: bool
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def _parse_toml(text: str) -> object:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the configuration is not TOML: {error}") from error


def _statements(text: str) -> Iterator[_TomlStatement]:
    """Yield the statements of a text that is valid TOML: each is the fewest lines that are TOML alone."""
    table: tuple[str, ...] = ()
    part, place, lines = "", 0, 0
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        part, place, lines = part + line, place + len(line), lines + 1
        try:
            keys = _keys_of(tomllib.loads(part))
        except tomllib.TOMLDecodeError:
            if lines > _MOST_LINES:
                raise not_editable() from None
            continue
        if keys:
            is_header = part.lstrip().startswith("[")
            table = keys if is_header else table
            yield _TomlStatement(keys if is_header else table + keys, is_header, part, place - len(part))
        part, lines = "", 0


def _keys_of(value: object) -> tuple[str, ...]:
    """Return the keys of a statement; those of a table on one line count, if it has one key."""
    if not isinstance(value, dict) or len(members := cast(dict[str, object], value)) != 1:
        return ()
    [(key, inner)] = members.items()
    return (key, *_keys_of(inner))


def _with_toml_value(text: str, value: object) -> str:
    """Return a statement with another value; a comment after it stays."""
    key = _TOML_KEY.match(text)
    places = (*(match.start() for match in re.finditer("#", text)), len(text))
    for place in places:
        with suppress(tomllib.TOMLDecodeError):
            if key is not None and tomllib.loads(text[:place]) == tomllib.loads(text):
                return key[0] + _plain_json(value) + text[len(text[:place].rstrip()) :]
    raise not_editable()


def _with_toml(text: str, path: Sequence[str], value: object) -> str:
    newline = _newline_of(text)
    if isinstance(value, Mapping):
        entry = cast(Entry, value)
        lines = [f"[{'.'.join(path)}]", *(f"{key} = {_plain_json(item)}" for key, item in entry.items())]
        section = newline.join(lines)
        if not text or text.endswith("\n"):
            return f"{text}{newline if text else ''}{section}{newline}"
        return f"{text}{newline * 2}{section}"
    found = list(_statements(text))
    for statement in found:
        if statement.keys == tuple(path) and not statement.is_header:
            return text[: statement.start] + _with_toml_value(statement.text, value) + text[statement.end :]
    for statement in found:
        if statement.keys == tuple(path[:-1]) and statement.is_header:
            head = text[: statement.end]
            line = f"{path[-1]} = {_plain_json(value)}"
            return head + (line + newline if head.endswith("\n") else newline + line) + text[statement.end :]
    raise not_editable()


def _without_toml(text: str, path: Sequence[str]) -> str:
    """Remove every statement below the path, and a blank line before the header that comes first."""
    is_own = groupby(_statements(text), lambda statement: statement.keys[: len(path)] == tuple(path))
    runs = [list(run) for own, run in is_own if own]
    if not runs:
        raise not_editable()
    for run in reversed(runs):
        head, tail = text[: run[0].start], text[run[-1].end :]
        if run[0].is_header and re.search(r"(?:\n|\A)\r?\n\Z", head):
            most = 1 if tail or text.endswith("\n") else 2
            head = re.sub(rf"(?:\r?\n){{1,{most}}}\Z", "", head, count=1)
        text = head + tail
    return text


def _plain_json(value: object) -> str:
    """Return a text, number, boolean or list of texts as JSON, which is also TOML and YAML."""
    return json.dumps(value, ensure_ascii=False)


def _newline_of(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


# YAML: a mapping in the style of the one that it is added to.


_INDENT = 2


def _parse_yaml(text: str) -> object:
    try:
        found = parse_yaml(text)
    except YamlRefusedError as error:
        place = "" if error.line is None else f" in line {error.line + 1}"
        raise ConfigError(f"the configuration is not plain YAML{place}: {error}") from error
    return {} if found is None else found


def _with_yaml(text: str, path: Sequence[str], value: object) -> str:
    node, pair = composed(text), None
    if node is None:
        return _with_lines(text, len(text), _yaml_lines(path, value, 0))
    for number, key in enumerate(path):
        if (pair := pair_in(node, key)) is None:
            return _with_pair(text, cast(yaml.MappingNode, node), path[number:], value)
        node = pair[1]
    assert pair is not None, "a path has keys"
    return f"{text[: pair[0].end_mark.index]}: {_plain_json(value)}{text[_end_of(pair[1]) :]}"


def _without_yaml(text: str, path: Sequence[str]) -> str:
    parent = node = composed(text)
    pair = None
    for key in path:
        if (pair := pair_in(node, key)) is None:
            raise not_editable()
        parent, node = node, pair[1]
    assert pair is not None and isinstance(parent, yaml.MappingNode), "a path has keys"
    is_added = len(parent.value) == 1 and len(path) > 1
    if parent.flow_style:
        is_added = is_added and text[_end_of(pair[1]) : parent.end_mark.index] == " }"
        return _without_yaml(text, path[:-1]) if is_added else _without_flow_pair(text, parent, pair)
    if is_added:
        return _without_yaml(text, path[:-1])
    start, end = text.rfind("\n", 0, pair[0].start_mark.index) + 1, _line_end(text, _end_of(pair[1]))
    if text[start : pair[0].start_mark.index].strip(" "):
        raise not_editable()
    head = text[:start]
    if end == len(text) and not text.endswith("\n"):
        head = re.sub(r"\r?\n\Z", "", head)
    return head + text[end:]


_Pair: TypeAlias = tuple[yaml.Node, yaml.Node]


def composed(text: str) -> yaml.Node | None:
    """Return the nodes of a text that was parsed before, with their positions."""
    return cast("yaml.Node | None", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]  # the bundled stubs are incomplete


def _pairs_of(node: yaml.MappingNode) -> list[_Pair]:
    return cast(list[_Pair], node.value)


def pair_in(node: yaml.Node | None, key: str) -> _Pair | None:
    """Return a key of a mapping with its value, or None.

    Raises:
        ConfigError: It is no mapping.
    """
    if not isinstance(node, yaml.MappingNode):
        raise not_editable()
    return next((pair for pair in _pairs_of(node) if pair[0].value == key), None)


def _end_of(node: yaml.Node) -> int:
    """Return the end of a node's last character; the marks of blocks include what follows them."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = cast("_Pair | yaml.Node", node.value[-1])
        return _end_of(last[1] if isinstance(last, tuple) else last)
    return node.end_mark.index


def _line_end(text: str, place: int) -> int:
    """Return where the line that ends a value at `place` is over."""
    if text[place - 1 : place] == "\n":
        return place
    return text.find("\n", place) + 1 or len(text)


def _with_pair(text: str, parent: yaml.MappingNode, keys: Sequence[str], value: object) -> str:
    """Return the text with one more pair at the end of a mapping, in its style."""
    pairs = _pairs_of(parent)
    if not parent.flow_style:
        margin = pairs[0][0].start_mark.column
        at = _line_end(text, _end_of(pairs[-1][1]))
        return _with_lines(text, at, _yaml_lines(keys, value, margin))
    shown = _plain_json(value)
    for key in reversed(keys[1:]):
        shown = f"{{ {key}: {shown} }}"
    at = _end_of(pairs[-1][1]) if pairs else parent.end_mark.index - 1
    return f"{text[:at]}{', ' if pairs else ''}{keys[0]}: {shown}{text[at:]}"


def _without_flow_pair(text: str, parent: yaml.MappingNode, pair: _Pair) -> str:
    pairs = _pairs_of(parent)
    number = pairs.index(pair)
    start, end = pair[0].start_mark.index, _end_of(pair[1])
    if number > 0:
        start = _end_of(pairs[number - 1][1])
    elif len(pairs) > 1:
        end = pairs[1][0].start_mark.index
    return text[:start] + text[end:]


def _with_lines(text: str, place: int, lines: Sequence[str]) -> str:
    newline = _newline_of(text)
    block = newline.join(lines)
    if place == len(text) and text and not text.endswith("\n"):
        return text + newline + block
    return text[:place] + block + newline + text[place:]


def _yaml_lines(keys: Sequence[str], value: object, margin: int) -> list[str]:
    """Return the lines of a value below its keys, each key indented by one more level."""
    lead, inner = " " * margin, margin + _INDENT
    if len(keys) > 1:
        return [f"{lead}{keys[0]}:", *_yaml_lines(keys[1:], value, inner)]
    if not isinstance(value, Mapping):
        return [f"{lead}{keys[0]}: {_plain_json(value)}"]
    rows = (_yaml_lines([key], item, inner) for key, item in cast(Entry, value).items())
    return [f"{lead}{keys[0]}:", *chain.from_iterable(rows)]


def _parse_json(text: str) -> object:
    try:
        return parse_json(text.encode(), "configuration")
    except ConfigError as error:
        words = str(error).replace("'configuration'", "the configuration", 1)
        raise ConfigError(words) from error


JSON = TextFormat(_parse_json, config_edit.with_value, config_edit.without_value, "{}\n")
TOML = TextFormat(_parse_toml, _with_toml, _without_toml, "")
YAML = TextFormat(_parse_yaml, _with_yaml, _without_yaml, "")
