"""Reading the `mcpServers` configuration people already have.

A file that is none raises; a server that cannot be used costs only itself.
"""

import json
import os
import re
import stat
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpx2

from skillwire.core.characters import quoted, visible
from skillwire.host.connections.endpoints import Endpoint, HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.failures import ConfigError
from skillwire.host.refusals import Refusal

MAX_CONFIG_BYTES: Final = 1024 * 1024
MAX_LABEL_LENGTH: Final = 64
RESERVED_LABELS: Final = frozenset({"local", "project", "user", "skill"})

_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t -~]*")
_HTTP_TYPES = frozenset({"http", "streamable-http", "streamablehttp"})
_LONGEST_TITLE = 200


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a configuration that can be used, and why the others cannot."""

    servers: tuple[ServerConfig, ...] = ()
    refused: tuple[Refusal, ...] = ()


def read_servers(path: Path, *, environ: Mapping[str, str] | None = None) -> Servers:
    """Read a configuration file such as `.mcp.json`.

    Raises:
        ConfigError: It cannot be read, is larger than 1 MiB, or is not such a file.
    """
    document = _parse(_read(path), path.name)
    return servers_of(document, base=path.parent, environ=os.environ if environ is None else environ)


def servers_of(document: object, *, base: Path, environ: Mapping[str, str]) -> Servers:
    """Take the servers from a parsed configuration; a relative `cwd` starts at `base`.

    Raises:
        ConfigError: The document has no object `mcpServers`.
    """
    table = cast(Mapping[str, object], document).get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise ConfigError("the configuration has no object `mcpServers`")
    found: list[ServerConfig] = []
    refused: list[Refusal] = []
    keys = cast(dict[str, object], table)
    rivals = _rivals(keys)
    for key, value in keys.items():
        try:
            found.append(_Entry(key, value, base, environ).server(rivals))
        except ConfigError as error:
            refused.append(Refusal.of(error, visible(key)[:_LONGEST_TITLE]))
    return Servers(tuple(found), tuple(refused))


def label_of(key: str) -> str:
    """Make the label of a server from its key: letters, digits, `.`, `_` and `-`, whatever the script.

    Raises:
        ConfigError: Nothing is left, it is too long, or it is a word with another meaning.
    """
    spelled = "".join(
        character if _stays(character) else " " for character in unicodedata.normalize("NFC", key)
    )
    label = "-".join(spelled.split()).strip("-")
    if not label:
        raise ConfigError(f"the key {quoted(key)} has no letter or digit", fix="rename the server")
    if len(label) > MAX_LABEL_LENGTH:
        raise ConfigError(
            f"the key {quoted(key)} is longer than {MAX_LABEL_LENGTH} characters", fix="rename the server"
        )
    if _folded(label) in RESERVED_LABELS:
        raise ConfigError(
            f"the key {quoted(key)} cannot name a server: the word means local skills here",
            fix="rename the server",
        )
    return label


def _stays(character: str) -> bool:
    if character in "._-":
        return True
    category = unicodedata.category(character)
    # Some letters, such as the Hangul fillers, cannot be seen.
    return (category[0] == "L" or category == "Nd") and visible(character) == character


def _folded(label: str) -> str:
    return unicodedata.normalize("NFKC", label).casefold()


def _rivals(keys: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the keys that give each label; where there are several, none of them has it."""
    rivals: defaultdict[str, list[str]] = defaultdict(list)
    for key in keys:
        try:
            rivals[_folded(label_of(key))].append(key)
        except ConfigError:
            continue
    return rivals


class _Entry:
    """One value of `mcpServers` while it is read."""

    def __init__(self, key: str, value: object, base: Path, environ: Mapping[str, str]) -> None:
        self._key = key
        self._value = value
        self._base = base
        self._environ = environ

    def server(self, rivals: Mapping[str, Sequence[str]]) -> ServerConfig:
        label = label_of(self._key)
        claims = rivals[_folded(label)]
        if len(claims) > 1:
            raise ConfigError(
                f"the keys {' and '.join(map(quoted, claims))} give one and the same label",
                fix="rename one of the servers",
            )
        value = self._value
        if not isinstance(value, dict):
            raise self._wrong("is no object")
        raw = cast(dict[str, object], value)
        disabled = raw.get("disabled", False)
        if not isinstance(disabled, bool):
            raise self._wrong("has a `disabled` that is neither true nor false")
        title = visible(self._key)[:_LONGEST_TITLE]
        return ServerConfig(label, self._endpoint(raw), title=title, is_enabled=not disabled)

    def _endpoint(self, raw: Mapping[str, object]) -> Endpoint:
        kind = raw.get("type", "http" if "url" in raw else "stdio")
        if "command" in raw and "url" in raw:
            raise self._wrong("has both a `command` and a `url`")
        if kind == "stdio":
            return self._stdio(raw)
        if isinstance(kind, str) and kind.lower() in _HTTP_TYPES:
            return self._http(raw)
        if kind == "sse":
            raise ConfigError(
                f"the server {quoted(self._key)} uses the retired transport `sse`",
                fix='use the server\'s streamable HTTP address and "type": "http"',
            )
        shown = quoted(kind) if isinstance(kind, str) else "no text"
        raise self._wrong(f"has a `type` that is not known: {shown}")

    def _stdio(self, raw: Mapping[str, object]) -> StdioEndpoint:
        command = self._text(raw.get("command"), "command")
        if not command:
            raise self._wrong("has an empty `command`")
        args = tuple(
            self._text(value, f"args[{number}]") for number, value in enumerate(self._list(raw, "args"))
        )
        env = {name: self._text(value, f"env.{name}") for name, value in self._table(raw, "env").items()}
        for name in env:
            if not name or "=" in name or "\0" in name:
                raise self._wrong(f"has an environment variable that cannot be called {quoted(name)}")
        cwd = None if raw.get("cwd") is None else self._text(raw["cwd"], "cwd")
        return StdioEndpoint(command, args, env, None if cwd is None else str((self._base / cwd).absolute()))

    def _http(self, raw: Mapping[str, object]) -> HttpEndpoint:
        url = self._text(raw.get("url"), "url")
        headers = {
            name: self._text(value, f"headers.{name}") for name, value in self._table(raw, "headers").items()
        }
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise self._wrong(f"has a header that cannot be called {quoted(name)}")
            if not _HEADER_VALUE.fullmatch(value):
                raise self._wrong(f"has a header {quoted(name)} whose value is not plain ASCII text")
        self._check_url(url)
        return HttpEndpoint(url, headers)

    def _check_url(self, url: str) -> None:
        """Refuse what is no plain web address; the address itself may hold a secret and is not repeated."""
        try:
            parsed = httpx2.URL(url)
        except (httpx2.InvalidURL, ValueError) as error:
            raise self._wrong("has a `url` that is none") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise self._wrong("has a `url` that does not begin with http:// or https:// and a host")
        if "#" in url:
            raise self._wrong("has a `url` with a fragment")
        if re.search(r"[\x00-\x20\x7f]", url):
            raise self._wrong("has a `url` with a space or control character")

    def _list(self, raw: Mapping[str, object], name: str) -> list[object]:
        value = raw.get(name)
        if value is not None and not isinstance(value, list):
            raise self._wrong(f"has a `{name}` that is no list")
        return cast(list[object], value or [])

    def _table(self, raw: Mapping[str, object], name: str) -> dict[str, object]:
        value = raw.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(f"has a `{name}` that is no object")
        return cast(dict[str, object], value or {})

    def _text(self, value: object, name: str) -> str:
        if not isinstance(value, str):
            what = "no" if value is None else "something that is no text as"
            raise self._wrong(f"has {what} {quoted(name)}")
        text = _VARIABLE.sub(self._variable(name), value)
        if "\0" in text:
            raise self._wrong(f"has a NUL character in {quoted(name)}")
        return text

    def _variable(self, place: str) -> Callable[[re.Match[str]], str]:
        def value(match: re.Match[str]) -> str:
            found = self._environ.get(match[1])
            if match[2] is not None:
                return found or match[3]
            if found is None:
                raise ConfigError(
                    f"the server {quoted(self._key)} needs the variable {match[1]} for {quoted(place)}, "
                    "and it is not set",
                    fix=f"set {match[1]}, or write ${{{match[1]}:-default}}",
                )
            return found

        return value

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"the server {quoted(self._key)} {what}")


def _read(path: Path) -> bytes:
    """Read a regular file of bounded size; a FIFO of that name does not make anyone wait."""
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"{quoted(path.name)} is not a regular file")
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{quoted(path.name)} cannot be read: {error.strerror}") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{quoted(path.name)} is larger than {MAX_CONFIG_BYTES} bytes")
    return data


def _parse(data: bytes, name: str) -> object:
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_once, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{quoted(name)} is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{quoted(name)} is not JSON: line {error.lineno}, column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, _KeyTwiceError) else "it holds a value JSON does not have"
        raise ConfigError(f"{quoted(name)} cannot be used: {reason}") from error


class _KeyTwiceError(ValueError):
    """An object with two members of one name: readers disagree about which of them counts."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _KeyTwiceError(f"the key {quoted(twice)} occurs twice in one object")
    return found


def _no_number(text: str) -> object:
    raise ValueError(text)
