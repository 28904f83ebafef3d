"""A configuration file, from the disk to plain values.

Comments and a comma after the last member are read in every file, because
editors write them. Whatever else strict JSON forbids stays forbidden.
"""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, Final

from skillwire.core.characters import quoted
from skillwire.host.failures import ConfigError

MAX_CONFIG_BYTES: Final = 1024 * 1024

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


def read_bytes(path: Path) -> bytes:
    """Read a regular file of at most 1 MiB; a FIFO of that name does not make anyone wait.

    Raises:
        ConfigError: It cannot be read, is no regular file, or is larger.
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
        raise ConfigError(f"{quoted(path.name)} is no name of a file") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"{quoted(path.name)} is larger than {MAX_CONFIG_BYTES} bytes",
            fix="put the servers into a file of their own, such as `.mcp.json`",
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
    """Parse JSON that may hold `//` and `/* */` comments and commas after the last member.

    A key that occurs twice is refused, because readers disagree about which
    one counts. `name` is what messages call the file.

    Raises:
        ConfigError: It is anything else; the message says where.
    """
    text = _without_extras(decoded(data, name), name)
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{quoted(name)} is not JSON: line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise ConfigError(f"{quoted(name)} cannot be used: it is nested too deeply") from error
    except ValueError as error:
        reason = str(error) if isinstance(error, _KeyTwiceError) else "it holds a value JSON does not have"
        raise ConfigError(f"{quoted(name)} cannot be used: {reason}") from error


def _without_extras(text: str, name: str) -> str:
    """Replace what JSON does not have by spaces, so that lines and columns stay what they are."""
    pieces: list[str] = []
    earlier = last = ""
    comma = 0
    for match in _TOKEN.finditer(text):
        piece = match[0]
        if match.lastgroup == "unclosed":
            line = text.count("\n", 0, match.start()) + 1
            raise ConfigError(f"{quoted(name)} is not JSON: the comment in line {line} has no end")
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


class _KeyTwiceError(ValueError):
    """An object with two members of one name: readers disagree about which of them counts."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _KeyTwiceError(f"the key {quoted(name)} occurs twice in one object")
        found[name] = value
    return found


def _no_number(text: str) -> object:
    raise ValueError(text)
