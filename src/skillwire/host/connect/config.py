"""Reading MCP configuration files of Claude Code, Claude Desktop, Cursor and VS Code.

An invalid file raises an error; an invalid server does not affect the others.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

import httpx2

from skillwire.core import Dialect, SourceError, digest_of, quoted, visible
from skillwire.host.connect.config_file import (
    FilledText,
    Variables,
    folded,
    label_of,
    parse_env_file,
    parse_json,
    read_bytes,
    table_in,
)
from skillwire.host.model import (
    DEFAULT_SECONDS,
    ConfigError,
    Endpoint,
    HttpEndpoint,
    Refusal,
    ServerConfig,
    ShowRule,
    SiteEndpoint,
    SkillSettings,
    StdioEndpoint,
    Trust,
)

# Parsing `skills`, the settings of skillwire in a server's configuration.


_KEYS: Final = ("enabled", "trust", "budget", "show", "dialect")


def settings_of(value: object, *, owner: str) -> SkillSettings:
    """Parse the settings of one server; `owner` names it in messages.

    Raises:
        ConfigError: A key or value is unknown.
    """
    if isinstance(value, bool):
        return SkillSettings(is_on=value)
    if value == "off":
        return SkillSettings(is_on=False)
    if not isinstance(value, dict):
        raise ConfigError(
            f"{owner} has an invalid `skills`: {_describe(value)}",
            fix=f'use true, false, "off" or an object with {_listed(_KEYS)}',
        )
    table = cast(dict[str, object], value)
    for key in table:
        if key not in _KEYS:
            raise ConfigError(
                f"{owner} has an unknown {quoted(key)} in `skills`", fix=f"use {_listed(_KEYS)}"
            )
    return SkillSettings(
        is_on=_enabled(table.get("enabled", True), owner),
        trust=_trust(table.get("trust", Trust.ASK.value), owner),
        budget=_budget(table["budget"], owner) if "budget" in table else None,
        show=_show(table.get("show", {}), owner),
        dialect=_dialect(table["dialect"], owner) if "dialect" in table else None,
    )


def _enabled(value: object, owner: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{owner} has a `skills.enabled` that is neither true nor false")
    return value


def _trust(value: object, owner: str) -> Trust:
    if isinstance(value, str) and value in set(Trust):
        return Trust(value)
    raise ConfigError(
        f"{owner} has an unknown `skills.trust`: {_describe(value)}", fix=f"use {_listed(Trust)}"
    )


def _budget(value: object, owner: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{owner} has a `skills.budget` that is not a positive whole number of tokens")
    return value


def _dialect(value: object, owner: str) -> Dialect:
    spoken = [dialect for dialect in Dialect if dialect not in (Dialect.LOCAL, Dialect.WELL_KNOWN)]
    if isinstance(value, str) and value in spoken:
        return Dialect(value)
    raise ConfigError(
        f"{owner} has an unknown `skills.dialect`: {_describe(value)}", fix=f"use {_listed(spoken)}"
    )


def _show(value: object, owner: str) -> dict[str, ShowRule]:
    if not isinstance(value, dict):
        raise ConfigError(f"{owner} has a `skills.show` that is not an object")
    found: dict[str, ShowRule] = {}
    for name, rule in cast(dict[str, object], value).items():
        if not name:
            raise ConfigError(f"{owner} has an empty name in `skills.show`")
        if not isinstance(rule, str) or rule not in set(ShowRule):
            raise ConfigError(
                f"{owner} has an unknown value in `skills.show` for {quoted(name)}: {_describe(rule)}",
                fix=f"use {_listed(ShowRule)}",
            )
        found[name] = ShowRule(rule)
    return found


def _describe(value: object) -> str:
    return quoted(value) if isinstance(value, str) else "it is not a string"


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"


# Parsing one server of a configuration to an endpoint and its settings.


MAX_TITLE_LENGTH: Final = 200
MAX_TIMEOUT_SECONDS: Final = 300.0

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t -~]*")
_STDIO_TYPES = frozenset({"stdio", "local"})
_HTTP_TYPES = frozenset({"http", "streamable-http", "streamablehttp"})
_SITE_TYPE = "well-known"
_MIN_MILLISECONDS = 1000
_MAX_NAMED = 5


class ServerEntry:
    """Parses one server of a configuration; unknown members are ignored."""

    def __init__(self, key: str, value: object, folder: Path, variables: Variables) -> None:
        self._key = key
        self._value = value
        self._folder = folder
        self._variables = variables
        self._owner = f"the server {quoted(key)}"

    def server(self, keys_by_label: Mapping[str, Sequence[str]]) -> ServerConfig:
        """Return the server; `keys_by_label` are the keys that have the same label.

        Raises:
            ConfigError: It is invalid.
        """
        label = label_of(self._key)
        claims = keys_by_label[folded(label)]
        if len(claims) > 1:
            names = [quoted(claim) for claim in claims[:_MAX_NAMED]]
            if len(claims) > _MAX_NAMED:
                names.append(f"{len(claims) - _MAX_NAMED} more")
            raise ConfigError(
                f"the keys {' and '.join(names)} have the same label", fix="rename one of the servers"
            )
        value = self._value
        if not isinstance(value, dict):
            raise self._error("is not an object")
        raw = cast(dict[str, object], value)
        is_enabled = self._flag(raw, "enabled", True) and not self._flag(raw, "disabled", False)
        return ServerConfig(
            label,
            self._endpoint(raw),
            title=visible(self._key, most=MAX_TITLE_LENGTH),
            is_enabled=is_enabled,
            seconds=self._seconds(raw),
            skills=settings_of(raw.get("skills", True), owner=self._owner),
        )

    def _endpoint(self, raw: Mapping[str, object]) -> Endpoint:
        kind = raw.get("type", "http" if "url" in raw else "stdio")
        if "command" in raw and "url" in raw:
            raise self._error("has both a `command` and a `url`")
        if isinstance(kind, str) and kind in _STDIO_TYPES:
            return self._stdio(raw)
        if isinstance(kind, str) and kind.lower() in _HTTP_TYPES:
            return self._http(raw)
        if kind == _SITE_TYPE:
            return self._site(raw)
        if kind == "sse":
            raise ConfigError(
                f"{self._owner} uses the retired transport `sse`",
                fix='use the server\'s streamable HTTP address with "type": "http"',
            )
        shown = quoted(kind) if isinstance(kind, str) else "not a string"
        raise self._error(f"has an unknown `type`: {shown}")

    def _stdio(self, raw: Mapping[str, object]) -> StdioEndpoint:
        command = self._without_input(raw.get("command"), "command")
        if not command:
            raise self._error("has an empty `command`")
        args = [
            self._filled(value, f"args[{number}]") for number, value in enumerate(self._list(raw, "args"))
        ]
        cwd = None if raw.get("cwd") is None else self._without_input(raw["cwd"], "cwd")
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
                raise self._error(f"has an environment variable with the invalid name {quoted(name)}")
            if value is None:
                continue
            if isinstance(value, int) and not isinstance(value, bool):
                value = str(value)
            env[name] = self._filled(value, f"env.{name}").text
        return env

    def _env_file(self, raw: Mapping[str, object]) -> dict[str, str]:
        if raw.get("envFile") is None:
            return {}
        path = self._folder / self._without_input(raw["envFile"], "envFile")
        try:
            data = read_bytes(path)
            found = parse_env_file(data, path.name)
        except ConfigError as error:
            raise self._error(f"has an invalid `envFile`: {error}") from error
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
                raise self._error(f"has a header with the invalid name {quoted(name)}")
            if not _HEADER_VALUE.fullmatch(value):
                raise self._error(f"has a header {quoted(name)} whose value is not plain ASCII text")
        self._check_url(url.text)
        try:
            return HttpEndpoint(url.text, headers, url.shown if url.has_input else None)
        except (httpx2.InvalidURL, ValueError) as error:
            raise self._input_error("url") from error

    def _site(self, raw: Mapping[str, object]) -> SiteEndpoint:
        """Parse a web site of skills, which has no credentials."""
        if "headers" in raw:
            raise self._error("is a web site, for which `headers` are not supported")
        hosts = [
            self._without_input(value, f"hosts[{number}]")
            for number, value in enumerate(self._list(raw, "hosts"))
        ]
        try:
            return SiteEndpoint(self._without_input(raw.get("url"), "url"), tuple(hosts))
        except SourceError as error:
            message = f"{self._owner} is an invalid web site: {error}"
            raise ConfigError(message, fix=error.fix) from error

    def _check_url(self, url: str) -> None:
        """Check that `url` is a plain web address; messages omit it, because it may hold a secret."""
        try:
            parsed = httpx2.URL(url)
        except (httpx2.InvalidURL, ValueError) as error:
            raise self._error("has an invalid `url`") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise self._error("has a `url` that does not start with http:// or https:// and a host")
        if "#" in url:
            raise self._error("has a `url` with a fragment")
        if re.search(r"[\x00-\x20\x7f]", url):
            raise self._error("has a `url` with a space or control character")

    def _seconds(self, raw: Mapping[str, object]) -> float:
        """Return `timeout`, given in milliseconds; less than a second is ignored, as in Claude Code."""
        value = raw.get("timeout")
        if value is None:
            return DEFAULT_SECONDS
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error("has a `timeout` that is not a number of milliseconds")
        if value < _MIN_MILLISECONDS:
            return DEFAULT_SECONDS
        return min(value, MAX_TIMEOUT_SECONDS * 1000) / 1000

    def _flag(self, raw: Mapping[str, object], name: str, default: bool) -> bool:
        value = raw.get(name, default)
        if not isinstance(value, bool):
            raise self._error(f"has a `{name}` that is neither true nor false")
        return value

    def _list(self, raw: Mapping[str, object], name: str) -> list[object]:
        value = raw.get(name)
        if value is not None and not isinstance(value, list):
            raise self._error(f"has a `{name}` that is not a list")
        return cast(list[object], value or [])

    def _table(self, raw: Mapping[str, object], name: str) -> dict[str, object]:
        value = raw.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._error(f"has a `{name}` that is not an object")
        return cast(dict[str, object], value or {})

    def _without_input(self, value: object, name: str) -> str:
        """Return a text that identifies the server, to which approvals are bound; inputs are not allowed."""
        filled = self._filled(value, name)
        if filled.has_input:
            raise self._input_error(name)
        return filled.text

    def _filled(self, value: object, name: str) -> FilledText:
        if not isinstance(value, str):
            what = f"has no {quoted(name)}" if value is None else f"has a {quoted(name)} that is not a string"
            raise self._error(what)
        filled = self._variables.fill(value, owner=self._owner, place=name)
        if "\0" in filled.text:
            raise self._error(f"has a NUL character in {quoted(name)}")
        try:
            os.fsencode(filled.text)
        except UnicodeEncodeError as error:
            raise self._error(f"has an incomplete character in {quoted(name)}") from error
        return filled

    def _input_error(self, name: str) -> ConfigError:
        return ConfigError(
            f"{self._owner} has an input in {quoted(name)}, which identifies the server",
            fix="write the value, or use an environment variable",
        )

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"{self._owner} {what}")


_EDITOR_FOLDERS = frozenset({".cursor", ".vscode"})


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a configuration, and the refusals of invalid ones.

    `digest` is that of the file's bytes, if there is a file.
    """

    servers: tuple[ServerConfig, ...] = ()
    refused: tuple[Refusal, ...] = ()
    digest: str = field(default="", compare=False)


def read_servers(path: Path, *, environ: Mapping[str, str] | None = None) -> Servers:
    """Read a configuration file such as `.mcp.json`.

    Raises:
        ConfigError: It cannot be read, is larger than 1 MiB, or is not a configuration.
    """
    content = read_bytes(path)
    document = parse_json(content, path.name)
    found = servers_of(document, base=project_of(path), environ=os.environ if environ is None else environ)
    return replace(found, digest=digest_of(content))


def servers_of(document: object, *, base: Path, environ: Mapping[str, str]) -> Servers:
    """Return the servers of a parsed configuration; `base` is the folder of its project.

    A relative `cwd` or `envFile` is relative to `base`, and `${workspaceFolder}` is `base`.

    Raises:
        ConfigError: The document has no object `mcpServers` or `servers`.
    """
    if not isinstance(document, dict):
        raise ConfigError("the configuration is not an object")
    whole = cast(dict[str, object], document)
    keys = _table_of(whole)
    variables = Variables(base.absolute(), environ, whole.get("inputs"))
    keys_by_label = _keys_by_label(keys)
    found: list[ServerConfig] = []
    refused: list[Refusal] = []
    for key, value in keys.items():
        try:
            found.append(ServerEntry(key, value, base, variables).server(keys_by_label))
        except ConfigError as error:
            refused.append(Refusal.of(error, visible(key, most=MAX_TITLE_LENGTH)))
    return Servers(tuple(found), tuple(refused))


def project_of(path: Path) -> Path:
    """Return the folder of the project: editors keep their file in a subfolder of it."""
    folder = path.absolute().parent
    return folder.parent if folder.name in _EDITOR_FOLDERS else folder


def _table_of(document: Mapping[str, object]) -> dict[str, object]:
    """Return the servers object of a configuration, under either of its names."""
    table = table_in(document)
    if table is not None:
        return cast(dict[str, object], document[table])
    if "projects" in document:
        raise ConfigError(
            "the configuration has servers only inside `projects`, which is not supported",
            fix="move them to the project's `.mcp.json`, or to a top-level `mcpServers`",
        )
    if "mcp" in document or "mcp.servers" in document:
        raise ConfigError(
            "the configuration has its servers inside an editor's settings, which is not supported",
            fix="move them to `.vscode/mcp.json`, in an object `servers`",
        )
    raise ConfigError("the configuration has no object `mcpServers` or `servers`")


def _keys_by_label(keys: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the keys by their label; a label with several keys is refused."""
    keys_by_label: defaultdict[str, list[str]] = defaultdict(list)
    for key in keys:
        try:
            keys_by_label[folded(label_of(key))].append(key)
        except ConfigError:
            continue
    return keys_by_label
