"""Reading and parsing a configuration file.

Comments and trailing commas are allowed in every file, because editors write
them. Everything else must be strict JSON.
"""

import json
import os
import re
import stat
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from skillwire.core import quoted, visible
from skillwire.host.model import ConfigError

MAX_CONFIG_BYTES: Final = 1024 * 1024
CONFIG_PATHS: Final = (Path(".mcp.json"), Path(".cursor", "mcp.json"), Path(".vscode", "mcp.json"))
"""The paths of a project's configuration, in the order in which they are tried."""
TABLES: Final = ("mcpServers", "servers")
"""The names of the object that holds the servers."""

_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_TOKEN = re.compile(
    r"""
    (?P<space> [ \t\r\n]++ )
    | (?P<comment> //[^\r\n]*+ | /\*.*?\*/ )
    | (?P<unclosed> /\* )
    | (?P<token> "(?:[^"\\]|\\.)*+"? | [\[\]{},:] | [^\s"/\[\]{},:]++ | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_NO_BREAK = re.compile(r"[^\r\n]")
_CLOSING = frozenset("]}")
_NO_VALUE = frozenset(("", "[", "{", ",", ":"))


def find_config(start: Path) -> Path | None:
    """Return the default configuration of a folder: the first of `CONFIG_PATHS` that exists.

    Parent folders are not searched, so that nothing outside the folder decides
    what is started in it.
    """
    return next((start / place for place in CONFIG_PATHS if os.path.lexists(start / place)), None)


def read_bytes(path: Path) -> bytes:
    """Read a regular file of at most 1 MiB, without blocking on a FIFO.

    Raises:
        ConfigError: It cannot be read, is not a regular file, or is larger.
    """
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"{quoted(path.name)} is not a regular file")
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{quoted(path.name)} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{quoted(path.name)} is not a valid file name") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"{quoted(path.name)} is larger than {MAX_CONFIG_BYTES} bytes",
            fix="put the servers in a separate file, such as `.mcp.json`",
        )
    return data


def decoded(data: bytes, name: str) -> str:
    """Return the text of a file, without its byte order mark.

    Raises:
        ConfigError: It is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{quoted(name)} is not UTF-8 text") from error


def parse_json(data: bytes, name: str) -> object:
    """Parse JSON that may hold `//` and `/* */` comments and trailing commas.

    Duplicate keys are refused, because parsers disagree about which one counts.
    `name` is the name of the file in messages.

    Raises:
        ConfigError: It is invalid; the message has the position.
    """
    text = _blank_extras(decoded(data, name), name)
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{quoted(name)} is not JSON: line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise ConfigError(f"{quoted(name)} cannot be used: it is nested too deeply") from error
    except ValueError as error:
        reason = (
            str(error) if isinstance(error, _DuplicateKeyError) else "it has a value that JSON does not allow"
        )
        raise ConfigError(f"{quoted(name)} cannot be used: {reason}") from error


def tokens_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the tokens of such JSON with their positions, without spaces and comments."""
    return ((match.start(), match[0]) for match in _TOKEN.finditer(text) if match.lastgroup == "token")


def _blank_extras(text: str, name: str) -> str:
    """Replace comments and trailing commas by spaces, so that lines and columns do not change."""
    pieces: list[str] = []
    earlier = last = ""
    comma = 0
    for match in _TOKEN.finditer(text):
        piece = match[0]
        if match.lastgroup == "unclosed":
            line = text.count("\n", 0, match.start()) + 1
            raise ConfigError(f"{quoted(name)} is not JSON: the comment in line {line} is not closed")
        if match.lastgroup == "comment":
            piece = _NO_BREAK.sub(" ", piece)
        elif match.lastgroup == "token":
            if piece in _CLOSING and last == "," and earlier not in _NO_VALUE:
                pieces[comma] = " "
            if piece == ",":
                comma = len(pieces)
            earlier, last = last, piece
        pieces.append(piece)
    return "".join(pieces)


class _DuplicateKeyError(ValueError):
    """An object has two members with the same name."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _DuplicateKeyError(f"the key {quoted(name)} occurs twice in one object")
        found[name] = value
    return found


def _reject_constant(text: str) -> object:
    raise ValueError(text)


def table_in(document: Mapping[str, object]) -> str | None:
    """Return the name of the servers object of a configuration; None if there is none.

    Raises:
        ConfigError: There are two of them, or it is not an object.
    """
    tables = [name for name in TABLES if name in document]
    if len(tables) > 1:
        raise ConfigError("the configuration has both `mcpServers` and `servers`", fix="keep one of them")
    if tables and not isinstance(document[tables[0]], dict):
        raise ConfigError(f"the configuration has a `{tables[0]}` that is not an object")
    return tables[0] if tables else None


# Files of environment variables: `NAME=value`, one per line.


_SPACE = r"[ \t\f\v]"
_EMPTY = re.compile(rf"{_SPACE}*+(?:#[^\n]*+)?(?:\n|\Z)")
_NAME = re.compile(rf"{_SPACE}*+(?:export{_SPACE}++)?([A-Za-z_][A-Za-z0-9_.-]*+){_SPACE}*+={_SPACE}*+")
_SINGLE = re.compile(r"'([^']*+)'")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_LINE = re.compile(r"[^\n]*+")
_COMMENT = re.compile(rf"(?:\A|{_SPACE})#")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


def parse_env_file(data: bytes, name: str) -> dict[str, str]:
    """Parse a file of variables; of a name that occurs twice, the later value counts.

    Values may be quoted, and then span several lines; double quotes allow the
    escapes `\\n`, `\\t`, `\\"` and the like. A comment starts with `#` at the
    start of a line or after a space. Variables are not expanded. Messages have
    the number of the line but never its content.

    Raises:
        ConfigError: A line is invalid, or the file is not text.
    """
    text = decoded(data, name).replace("\r\n", "\n")
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        if empty := _EMPTY.match(text, position):
            position = empty.end()
            continue
        variable = _NAME.match(text, position)
        if variable is None:
            raise _line_error(text, position, name)
        value, end = _value(text, variable.end())
        rest = _EMPTY.match(text, end)
        if rest is None or "\0" in value:
            raise _line_error(text, position, name)
        found[variable[1]] = value
        position = rest.end()
    return found


def _value(text: str, start: int) -> tuple[str, int]:
    """Return the value that starts at `start`, and its end."""
    if single := _SINGLE.match(text, start):
        return single[1], single.end()
    if double := _DOUBLE.match(text, start):
        return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), double[1]), double.end()
    line = _LINE.match(text, start)
    plain = "" if line is None else line[0]
    if comment := _COMMENT.search(plain):
        plain = plain[: comment.start()]
    return plain.strip(), start + len(plain)


def _line_error(text: str, position: int, name: str) -> ConfigError:
    line = text.count("\n", 0, position) + 1
    return ConfigError(f"line {line} of {quoted(name)} is not NAME=value")


# Expanding `${…}`: environment variables, paths, and inputs that an editor would ask for.


INPUT_PREFIX: Final = "SKILLWIRE_INPUT_"
"""The prefix of the environment variables that hold the values of inputs."""

MAX_FILLED: Final = 4 * 1024 * 1024
"""How many characters variables and `envFile`s may add to one configuration."""

_VARIABLE = re.compile(
    r"\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?"
    r"|(?P<kind>env|input|config|command|workspaceFolder):(?P<what>[^}]*)"
    r"|(?P<slash>/))\}"
)


def input_variable(identifier: str) -> str:
    """Return the environment variable for an input: `SKILLWIRE_INPUT_API_KEY` for `api-key`."""
    return INPUT_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", identifier).upper()


@dataclass(frozen=True, slots=True)
class FilledText:
    """A text with its variables expanded.

    `shown` has the name of each input where `text` has its value: inputs are
    often secrets, and are neither displayed nor part of a fingerprint.
    """

    text: str = field(repr=False)
    shown: str
    has_input: bool = False


class Variables:
    """The values for `${…}` in one configuration: its project's folder, the environment, its `inputs`."""

    def __init__(self, folder: Path, environ: Mapping[str, str], inputs: object = None) -> None:
        self._folder = folder
        self._environ = environ
        self._left = MAX_FILLED
        self._inputs = _declared(inputs)
        self._inputs_by_variable: defaultdict[str, list[str]] = defaultdict(list)
        for identifier in self._inputs:
            self._inputs_by_variable[input_variable(identifier)].append(identifier)

    def fill(self, text: str, *, owner: str, place: str) -> FilledText:
        """Expand the variables in a text; `owner` and `place` name its field in messages.

        Raises:
            ConfigError: A variable has no value; the message says which, and how to set it.
        """
        location = _FieldLocation(owner, place)
        value: list[str] = []
        shown: list[str] = []
        has_input = False
        end = 0
        for match in _VARIABLE.finditer(text):
            between = text[end : match.start()]
            found = self._value(match, location)
            self.spend(len(found), owner=owner)
            is_input = match["kind"] == "input"
            value += (between, found)
            shown += (between, match[0] if is_input else found)
            has_input = has_input or is_input
            end = match.end()
        rest = text[end:]
        return FilledText("".join(value) + rest, "".join(shown) + rest, has_input)

    def spend(self, characters: int, *, owner: str) -> None:
        """Count added characters, so that the result has a bounded size.

        Raises:
            ConfigError: They are more than `MAX_FILLED`.
        """
        if characters > self._left:
            raise ConfigError(f"{owner} is not read: variables add more than {MAX_FILLED} characters")
        self._left -= characters

    def _value(self, match: re.Match[str], location: "_FieldLocation") -> str:
        if match["slash"]:
            return os.sep
        kind, what = match["kind"], match["what"]
        if kind is None:
            return self._named(match["name"], match["default"], location)
        if kind == "env":
            return self._variable(what, location, fix=f"set {quoted(what)}, possibly to an empty value")
        if kind == "input":
            return self._input(what, location)
        raise location.error(
            f"needs {quoted(match[0])}, which only an editor can expand", fix="write the value itself"
        )

    def _named(self, name: str, default: str | None, location: "_FieldLocation") -> str:
        if default is not None:
            return self._environ.get(name) or default
        if name == "workspaceFolder":
            return str(self._folder)
        if name == "workspaceFolderBasename":
            return self._folder.name
        if name == "pathSeparator":
            return os.sep
        if name == "userHome":
            home = self._environ.get("HOME") or self._environ.get("USERPROFILE")
            return home or self._variable("HOME", location, fix="set HOME")
        return self._variable(name, location, fix=f"set {name}, or write ${{{name}:-default}}")

    def _variable(self, name: str, location: "_FieldLocation", *, fix: str) -> str:
        found = self._environ.get(name)
        if found is None:
            shown = name if name.isidentifier() and name.isascii() else quoted(name)
            raise location.error(f"needs the variable {shown}, which is not set", fix=fix)
        return found

    def _input(self, identifier: str, location: "_FieldLocation") -> str:
        shown = quoted(identifier)
        if identifier not in self._inputs:
            raise location.error(
                f"needs the input {shown}, which the file does not declare", fix="add it to `inputs`"
            )
        variable = input_variable(identifier)
        if len(identifiers := self._inputs_by_variable[variable]) > 1:
            names = " and ".join(map(quoted, identifiers[:2]))
            raise location.error(
                f"needs the input {shown}, but {variable} would set both {names}",
                fix="rename one of these inputs",
            )
        found = self._environ.get(variable, self._inputs[identifier])
        if found is None:
            raise location.error(f"needs the input {shown}, which has no value", fix=f"set {variable}")
        return found


@dataclass(frozen=True, slots=True)
class _FieldLocation:
    owner: str
    place: str

    def error(self, what: str, *, fix: str) -> ConfigError:
        return ConfigError(f"{self.owner} {what} (in {quoted(self.place)})", fix=fix)


def _declared(inputs: object) -> dict[str, str | None]:
    """Return the inputs that a file declares, each with its default.

    Invalid declarations are ignored, and a server that needs one is refused. An
    input that is declared twice has no default, because it is ambiguous.
    """
    items = cast(list[object], inputs) if isinstance(inputs, list) else []
    tables = [cast(dict[str, object], item) for item in items if isinstance(item, dict)]
    found = [(table["id"], table.get("default")) for table in tables if isinstance(table.get("id"), str)]
    times = Counter(identifier for identifier, _ in found)
    return {
        cast(str, identifier): default if isinstance(default, str) and times[identifier] == 1 else None
        for identifier, default in found
    }


# Labels of servers, derived from the keys of a configuration and safe to show and to type.


MAX_LABEL_LENGTH: Final = 64
RESERVED_LABELS: Final = frozenset({"local", "project", "user", "skill"})


def label_of(key: str) -> str:
    """Return the label for the key of a server: letters and digits of any script, `.`, `_` and `-`.

    Raises:
        ConfigError: The label is empty, too long, or reserved.
    """
    spelled = "".join(
        character if _is_label_character(character) else " "
        for character in unicodedata.normalize("NFC", key)
    )
    label = "-".join(spelled.split()).strip("-")
    if not label:
        raise ConfigError(f"the key {quoted(key)} has no letter or digit", fix="rename the server")
    if len(label) > MAX_LABEL_LENGTH:
        raise ConfigError(
            f"the key {quoted(key)} is longer than {MAX_LABEL_LENGTH} characters", fix="rename the server"
        )
    if folded(label) in RESERVED_LABELS:
        raise ConfigError(
            f"the key {quoted(key)} is reserved for local skills",
            fix="rename the server",
        )
    return label


def require_distinct(labels: Sequence[str]) -> None:
    """Check that all labels differ.

    Raises:
        ConfigError: Two are equal.
    """
    folds = [label.casefold() for label in labels]
    for label in labels:
        if folds.count(label.casefold()) > 1:
            raise ConfigError(f"more than one server has the label {label}", reference=label)


def folded(label: str) -> str:
    """Return the form in which labels that look alike are equal."""
    return unicodedata.normalize("NFKC", label).casefold()


def _is_label_character(character: str) -> bool:
    if character in "._-":
        return True
    category = unicodedata.category(character)
    # Some letters, such as the Hangul fillers, are invisible.
    return (category[0] == "L" or category == "Nd") and visible(character) == character
