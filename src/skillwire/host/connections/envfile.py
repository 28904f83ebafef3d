"""Files of environment variables: `NAME=value`, one to a line."""

import re
from typing import Final

from skillwire.core.characters import quoted
from skillwire.host.connections.configfile import decoded
from skillwire.host.failures import ConfigError

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

    Values may stand in quotes, and then go over several lines; in double
    quotes `\\n`, `\\t`, `\\"` and the like are what they are elsewhere. A
    comment begins with `#` at the start of a line or after a space. Nothing
    is filled in. Messages name the line and never what it holds.

    Raises:
        ConfigError: A line is something else, or the file is no text.
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
            raise _wrong(text, position, name)
        value, end = _value(text, variable.end())
        rest = _EMPTY.match(text, end)
        if rest is None or "\0" in value:
            raise _wrong(text, position, name)
        found[variable[1]] = value
        position = rest.end()
    return found


def _value(text: str, start: int) -> tuple[str, int]:
    """Return the value that begins at `start`, and where it ends."""
    if single := _SINGLE.match(text, start):
        return single[1], single.end()
    if double := _DOUBLE.match(text, start):
        return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), double[1]), double.end()
    line = _LINE.match(text, start)
    plain = "" if line is None else line[0]
    if comment := _COMMENT.search(plain):
        plain = plain[: comment.start()]
    return plain.strip(), start + len(plain)


def _wrong(text: str, position: int, name: str) -> ConfigError:
    line = text.count("\n", 0, position) + 1
    return ConfigError(f"line {line} of {quoted(name)} is no NAME=value")
