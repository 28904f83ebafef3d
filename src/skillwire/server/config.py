"""The configuration file of `skillwire serve`: reading, writing, and taking a new version while it runs."""

import logging
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final, cast

from skillwire.core import SkillError, quoted, visible
from skillwire.core.toml import Table, TableError
from skillwire.server.access.settings import AccessError, read_owner_writable
from skillwire.server.options import (
    OPTIONS,
    Option,
    OptionError,
    ServeOptions,
    ValueKind,
    values_of,
    with_values,
)

MAX_CONFIG_SIZE: Final = 64 * 1024
_SHOWN_KEY: Final = 64
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_AUTH: Final = ("token_file", "access", "allow_anonymous")
_TLS: Final = ("tls_cert", "tls_key")

logger = logging.getLogger(__name__)


class ServeConfigError(AccessError):
    """A configuration file that cannot be used. Nothing of it takes effect."""


def read_config(path: Path) -> dict[str, object]:
    """Return the options that a configuration file sets, by their names.

    Raises:
        AccessError: It cannot be read, others can write it, or it is too large.
        ServeConfigError: It is not TOML, has an unknown key, or a value that cannot be used.
    """
    content = read_owner_writable(path, most=MAX_CONFIG_SIZE, what="configuration file")
    return parse_config(content, path)


def parse_config(content: bytes, path: Path) -> dict[str, object]:
    """Return the options that TOML sets; relative paths start at the folder of `path`.

    Raises:
        ServeConfigError: It is not TOML, has an unknown key, or a value that cannot be used.
    """
    try:
        text = content.decode()
        rows = tomllib.loads(text)
    except UnicodeDecodeError:
        raise ServeConfigError(f"{path}: not UTF-8 text") from None
    except RecursionError:
        raise ServeConfigError(f"{path}: nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ServeConfigError(f"{path}: not TOML: {quoted(str(error))}") from None
    table = Table("", rows)
    values: dict[str, object] = {}
    for key in rows:
        option = OPTIONS.get(key)
        try:
            if option is None:
                raise _unknown(key)
            values[key] = _value(table, option, path.parent)
        except TableError as error:
            place = f"{path}, line {line}" if (line := _line_of(key, text)) else str(path)
            raise ServeConfigError(f"{place}: {error}", fix=error.fix) from None
    return values


def _unknown(key: str) -> TableError:
    shown = visible(key, most=_SHOWN_KEY)
    near = get_close_matches(key[:_SHOWN_KEY], OPTIONS, n=1)
    if near:
        return TableError(f'unknown key "{shown}"; did you mean "{near[0]}"?', fix=f"write {near[0]}")
    return TableError(f'unknown key "{shown}"', fix="`skillwire serve --help` lists all keys")


def _value(table: Table, option: Option, folder: Path) -> object:
    """Return the value of a key that is in the table.

    Raises:
        TableError: It has another type, or is out of bounds.
    """
    name = option.name
    if option.kind is ValueKind.FLAG:
        return table.flag(name)
    if option.kind is ValueKind.WHOLE:
        return table.whole(name, 0, least=int(option.least), most=int(option.most))
    if option.kind is ValueKind.NUMBER:
        return float(table.number(name, 0, least=option.least, most=option.most))
    if option.kind is ValueKind.TEXT:
        return table.text(name, "")
    if option.kind is ValueKind.TEXTS:
        return table.texts(name)
    texts = (table.text(name),) if option.kind is ValueKind.PATH else table.texts(name)
    if not all(texts) or any("\0" in text for text in texts):
        raise TableError(f"{name} has an empty path, or one with a NUL character")
    paths = tuple(folder / text for text in texts)
    return paths[0] if option.kind is ValueKind.PATH else paths


def _line_of(key: str, text: str) -> int:
    """Return the number of the line where a key at the top of the file is set; 0 when that is not found."""
    spelled = re.compile(rf"""\s*\[*\s*(["']?){re.escape(key)}\1\s*[.=\]]""")
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if not spelled.match(line):
            continue
        try:
            tomllib.loads("".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue  # Inside a value of several lines.
        return number + 1
    return 0


def config_text(options: ServeOptions) -> str:
    """Return options as a configuration file, with absolute paths; what has no value is left out.

    Raises:
        OptionError: A path is not UTF-8, which TOML cannot hold.
    """
    lines: list[str] = []
    for name, value in values_of(options).items():
        if value is None or value in ("", ()):
            continue
        try:
            lines.append(f"{name} = {_toml(value)}\n")
        except UnicodeEncodeError:
            raise OptionError(f"the value of {name} is not UTF-8, which TOML cannot hold") from None
    return "".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, cast('tuple[object, ...]', value)))}]"
    text = str(value.absolute()) if isinstance(value, Path) else str(value)
    text.encode()
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    """Return a character of a TOML string; one that a terminal would not show is spelled out."""
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if visible(character) == character else f"\\U{ord(character):08X}"


@dataclass(frozen=True, slots=True)
class OptionLayers:
    """Where options come from: what was typed wins over the configuration file, and that over defaults."""

    typed: Mapping[str, object] = field(default_factory=dict[str, object])
    file: Path | None = None

    def read(self) -> ServeOptions:
        """Read the file, and return all options.

        Raises:
            AccessError: The file cannot be used.
        """
        values = {} if self.file is None else read_config(self.file)
        # The transport is one choice: typing one of the two replaces the other of the file.
        for name, other in (("stdio", "http"), ("http", "stdio")):
            if name in self.typed and other not in self.typed:
                values.pop(other, None)
        return with_values(ServeOptions(), {**values, **self.typed})


def live_changes(old: ServeOptions, new: ServeOptions) -> tuple[dict[str, object], list[str]]:
    """Return the values of `new` that can take effect while a server runs, and what needs a restart."""
    before, after = values_of(old), values_of(new)
    fixed = {name for name, option in OPTIONS.items() if not option.is_live}
    auth, auth_after = old.endpoint.auth, new.endpoint.auth
    # Whether credentials are required, requests are counted or TLS is served is settled at the start.
    if auth.is_open or auth_after.is_open:
        fixed.update(_AUTH)
    if auth.is_open and bool(auth.rate) != bool(auth_after.rate):
        fixed.add("rate")
    if (old.endpoint.tls is None) != (new.endpoint.tls is None):
        fixed.update(_TLS)
    changed = [name for name in OPTIONS if before[name] != after[name]]
    return {name: after[name] for name in changed if name not in fixed}, [
        name for name in changed if name in fixed
    ]


class LiveOptions:
    """The options of a running server. Some of them take effect when the file is read again."""

    def __init__(
        self,
        options: ServeOptions,
        reread: Callable[[], ServeOptions] | None,
        *,
        is_logged: bool = True,
    ) -> None:
        self.options = options
        self._reread = reread
        self._is_logged = is_logged

    def reload(self, apply: Callable[[ServeOptions], None]) -> bool:
        """Read the file again, and `apply` what can change now; False when it cannot be used.

        A file that cannot be used changes nothing, and is logged.
        """
        if self._reread is None:
            return True
        try:
            new = self._reread()
            http = new.endpoint.http or self.options.endpoint.http
            with_values(new, {"http": http}).endpoint.check()
            values, restart = live_changes(self.options, new)
            options = with_values(self.options, values)
            if values:
                apply(options)
        except SkillError as error:
            fix = f" ({error.fix})" if error.fix else ""
            level = logging.ERROR if self._is_logged else logging.DEBUG
            logger.log(level, "%s%s; the previous settings stay in effect", error, fix)
            return False
        self.options = options
        if restart and self._is_logged:
            logger.warning("restart the server to apply: %s", ", ".join(restart))
        if values:
            logger.info("applied: %s", ", ".join(values))
        return True
