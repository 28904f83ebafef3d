"""One server of a configuration: from what people wrote to an endpoint and its settings."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import httpx2

from skillwire.core.characters import quoted, visible
from skillwire.errors import SourceError
from skillwire.host.connections.configfile import read_bytes
from skillwire.host.connections.endpoints import (
    DEFAULT_SECONDS,
    Endpoint,
    HttpEndpoint,
    ServerConfig,
    SiteEndpoint,
    StdioEndpoint,
)
from skillwire.host.connections.envfile import parse_env_file
from skillwire.host.connections.labels import folded, label_of
from skillwire.host.connections.skillsettings import settings_of
from skillwire.host.connections.variables import Filled, Variables
from skillwire.host.failures import ConfigError

LONGEST_TITLE: Final = 200
MOST_SECONDS: Final = 300.0

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t -~]*")
_STDIO_TYPES = frozenset({"stdio", "local"})
_HTTP_TYPES = frozenset({"http", "streamable-http", "streamablehttp"})
_SITE_TYPE = "well-known"
_FEWEST_MILLISECONDS = 1000
_MOST_NAMED = 5


class Entry:
    """One server while it is read; what it has that is not known here is passed over."""

    def __init__(self, key: str, value: object, folder: Path, variables: Variables) -> None:
        self._key = key
        self._value = value
        self._folder = folder
        self._variables = variables
        self._owner = f"the server {quoted(key)}"

    def server(self, rivals: Mapping[str, Sequence[str]]) -> ServerConfig:
        """Return the server; `rivals` are the keys that give each label.

        Raises:
            ConfigError: It cannot be used.
        """
        label = label_of(self._key)
        claims = rivals[folded(label)]
        if len(claims) > 1:
            names = [quoted(claim) for claim in claims[:_MOST_NAMED]]
            if len(claims) > _MOST_NAMED:
                names.append(f"{len(claims) - _MOST_NAMED} more")
            raise ConfigError(
                f"the keys {' and '.join(names)} give one and the same label", fix="rename one of the servers"
            )
        value = self._value
        if not isinstance(value, dict):
            raise self._wrong("is no object")
        raw = cast(dict[str, object], value)
        is_enabled = self._flag(raw, "enabled", True) and not self._flag(raw, "disabled", False)
        return ServerConfig(
            label,
            self._endpoint(raw),
            title=visible(self._key)[:LONGEST_TITLE],
            is_enabled=is_enabled,
            seconds=self._seconds(raw),
            skills=settings_of(raw.get("skills", True), owner=self._owner),
        )

    def _endpoint(self, raw: Mapping[str, object]) -> Endpoint:
        kind = raw.get("type", "http" if "url" in raw else "stdio")
        if "command" in raw and "url" in raw:
            raise self._wrong("has both a `command` and a `url`")
        if isinstance(kind, str) and kind in _STDIO_TYPES:
            return self._stdio(raw)
        if isinstance(kind, str) and kind.lower() in _HTTP_TYPES:
            return self._http(raw)
        if kind == _SITE_TYPE:
            return self._site(raw)
        if kind == "sse":
            raise ConfigError(
                f"{self._owner} uses the retired transport `sse`",
                fix='use the server\'s streamable HTTP address and "type": "http"',
            )
        shown = quoted(kind) if isinstance(kind, str) else "no text"
        raise self._wrong(f"has a `type` that is not known: {shown}")

    def _stdio(self, raw: Mapping[str, object]) -> StdioEndpoint:
        command = self._plain(raw.get("command"), "command")
        if not command:
            raise self._wrong("has an empty `command`")
        args = [
            self._filled(value, f"args[{number}]") for number, value in enumerate(self._list(raw, "args"))
        ]
        cwd = None if raw.get("cwd") is None else self._plain(raw["cwd"], "cwd")
        return StdioEndpoint(
            command,
            tuple(arg.text for arg in args),
            self._env_file(raw) | self._env(raw),
            None if cwd is None else str((self._folder / cwd).absolute()),
            tuple(arg.shown for arg in args) if any(arg.has_input for arg in args) else None,
        )

    def _env(self, raw: Mapping[str, object]) -> dict[str, str]:
        env: dict[str, str] = {}
        for name, value in self._table(raw, "env").items():
            if not name or "=" in name or "\0" in name:
                raise self._wrong(f"has an environment variable that cannot be called {quoted(name)}")
            if value is None:
                continue
            if isinstance(value, int) and not isinstance(value, bool):
                value = str(value)
            env[name] = self._filled(value, f"env.{name}").text
        return env

    def _env_file(self, raw: Mapping[str, object]) -> dict[str, str]:
        if raw.get("envFile") is None:
            return {}
        path = self._folder / self._plain(raw["envFile"], "envFile")
        try:
            data = read_bytes(path)
            found = parse_env_file(data, path.name)
        except ConfigError as error:
            raise self._wrong(f"has an `envFile` that cannot be used: {error}") from error
        self._variables.spend(len(data), owner=self._owner)
        return found

    def _http(self, raw: Mapping[str, object]) -> HttpEndpoint:
        url = self._filled(raw.get("url"), "url")
        headers = {
            name: self._filled(value, f"headers.{name}").text
            for name, value in self._table(raw, "headers").items()
        }
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise self._wrong(f"has a header that cannot be called {quoted(name)}")
            if not _HEADER_VALUE.fullmatch(value):
                raise self._wrong(f"has a header {quoted(name)} whose value is not plain ASCII text")
        self._check_url(url.text)
        try:
            return HttpEndpoint(url.text, headers, url.shown if url.has_input else None)
        except (httpx2.InvalidURL, ValueError) as error:
            raise self._no_input_in("url") from error

    def _site(self, raw: Mapping[str, object]) -> SiteEndpoint:
        """Read a web site of skills; it gets no credentials, so there is no place for any."""
        if "headers" in raw:
            raise self._wrong("is a web site, which is asked without any `headers`")
        hosts = [
            self._plain(value, f"hosts[{number}]") for number, value in enumerate(self._list(raw, "hosts"))
        ]
        try:
            return SiteEndpoint(self._plain(raw.get("url"), "url"), tuple(hosts))
        except SourceError as error:
            message = f"{self._owner} is a web site that cannot be used: {error}"
            raise ConfigError(message, fix=error.fix) from error

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

    def _seconds(self, raw: Mapping[str, object]) -> float:
        """Read `timeout`: milliseconds, and below a whole second nothing, as in Claude Code."""
        value = raw.get("timeout")
        if value is None:
            return DEFAULT_SECONDS
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong("has a `timeout` that is no number of milliseconds")
        if value < _FEWEST_MILLISECONDS:
            return DEFAULT_SECONDS
        return min(value, MOST_SECONDS * 1000) / 1000

    def _flag(self, raw: Mapping[str, object], name: str, default: bool) -> bool:
        value = raw.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(f"has a `{name}` that is neither true nor false")
        return value

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

    def _plain(self, value: object, name: str) -> str:
        """Return a text that says what is started, and so is bound to approvals: no input stands in it."""
        filled = self._filled(value, name)
        if filled.has_input:
            raise self._no_input_in(name)
        return filled.text

    def _filled(self, value: object, name: str) -> Filled:
        if not isinstance(value, str):
            what = "no" if value is None else "something that is no text as"
            raise self._wrong(f"has {what} {quoted(name)}")
        filled = self._variables.fill(value, owner=self._owner, place=name)
        if "\0" in filled.text:
            raise self._wrong(f"has a NUL character in {quoted(name)}")
        try:
            os.fsencode(filled.text)
        except UnicodeEncodeError as error:
            raise self._wrong(f"has half a character in {quoted(name)}") from error
        return filled

    def _no_input_in(self, name: str) -> ConfigError:
        return ConfigError(
            f"{self._owner} has an input in {quoted(name)} that would decide which server is meant",
            fix="write it out, or use a variable of the environment",
        )

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{self._owner} {what}")
