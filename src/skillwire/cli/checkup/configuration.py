"""The configuration: found, readable, complete, and as private as what it holds."""

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from skillwire.cli.answer import plural
from skillwire.cli.checkup.check import Area, Check, Status
from skillwire.cli.states import is_used, place_of
from skillwire.host import (
    ConfigError,
    HttpEndpoint,
    Places,
    ServerConfig,
    Servers,
    StdioEndpoint,
    find_config,
    read_servers,
)
from skillwire.host.connections.configfile import parse_json, read_bytes
from skillwire.host.connections.endpoints import SiteEndpoint
from skillwire.host.state.filetrust import FileTrust

_AREA = Area("configuration")
_SECRET_NAME = re.compile(r"(?i)token|secret|passw|api.?key|auth|credential|cookie|private.?key")
_SECRET_ARGUMENT = re.compile(r"(?i)--?[\w-]*(?:token|secret|passw|api-?key|auth)[\w-]*=.")
_REFERENCE = re.compile(r"\$\{[^}]+\}")


@dataclass(frozen=True, slots=True)
class Configured:
    """What there is to say about the configuration, and the servers in which nothing stands in the way."""

    checks: tuple[Check, ...] = ()
    usable: tuple[ServerConfig, ...] = ()


def check_configuration(named: Path | None) -> Configured:
    """Read the configuration that is named, or lies here, and look at each server in it."""
    path = named or find_config(Path.cwd())
    if path is None:
        note = _AREA.note(
            "servers", "no .mcp.json, .cursor/mcp.json or .vscode/mcp.json here", "use --config FILE"
        )
        return Configured((note,))
    try:
        found = read_servers(path)
    except ConfigError as error:
        fix = error.fix or "correct the file"
        return Configured((_AREA.problem(_shown(path), str(error), fix),))
    servers = [(server, _server(server)) for server in found.servers]
    checks = (*_checks(path, found), *(check for _, check in servers))
    if (
        named is None
        and found.servers
        and not FileTrust(Places.default().state).is_trusted(path, found.digest)
    ):
        words = "nobody has agreed to it yet, so nothing in it is started or contacted"
        fix = f"run `skillwire trust`, or use --config {_shown(path)}"
        return Configured((*checks, _AREA.warning(_shown(path), words, fix)))
    usable = [server for server, check in servers if check.status is not Status.PROBLEM and is_used(server)]
    return Configured(checks, tuple(usable))


def _checks(path: Path, found: Servers) -> Iterator[Check]:
    yield _AREA.ok(_shown(path), plural(len(found.servers) + len(found.refused), "server"))
    yield from _privacy(path)
    for refusal in found.refused:
        yield _AREA.problem(refusal.subject, refusal.detail or refusal.sentence, refusal.remedy)


def _shown(path: Path) -> str:
    """Return a path as the user would type it here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _server(server: ServerConfig) -> Check:
    if not is_used(server):
        return _AREA.note(server.label, "turned off")
    endpoint = server.endpoint
    if isinstance(endpoint, StdioEndpoint):
        return _program(server.label, endpoint)
    if _is_open_to_others(endpoint):
        return _AREA.warning(
            server.label,
            f"{endpoint.shown} is not encrypted, and is not on this machine",
            "use https, or anyone on the way can read and change what it says",
        )
    return _AREA.ok(server.label, place_of(server))


def _program(label: str, endpoint: StdioEndpoint) -> Check:
    """Look for the program as it will be looked for when it is started."""
    path = endpoint.env.get("PATH") or os.environ.get("PATH")
    command = endpoint.command
    if os.path.dirname(command) and endpoint.cwd is not None:  # noqa: PTH120 - Path drops a leading ./
        command = str(Path(endpoint.cwd, command))
    if endpoint.cwd is not None and not Path(endpoint.cwd).is_dir():
        return _AREA.problem(label, "its `cwd` is no folder", "correct `cwd` in the configuration")
    if shutil.which(command, path=path) is None:
        return _AREA.problem(
            label,
            f"the program {endpoint.command} is not found",
            "install it, or write its whole path in the configuration",
        )
    return _AREA.ok(label, f"program {endpoint.command} is there")


def _is_open_to_others(endpoint: HttpEndpoint | SiteEndpoint) -> bool:
    parts = urlsplit(endpoint.shown)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True


def _privacy(path: Path) -> Iterator[Check]:
    """Say when secrets are written into a file that others can read; the secrets are not repeated."""
    holders = sorted(_secret_holders(path))
    if not holders:
        return
    mode = stat.S_IMODE(path.stat().st_mode) if hasattr(os, "geteuid") else 0
    named = ", ".join(holders[:5]) + (", …" if len(holders) > 5 else "")
    if mode & 0o077:
        yield _AREA.warning(
            _shown(path),
            f"it seems to hold secrets ({named}), and other users here may read it (mode {mode:o})",
            f"run chmod 600 {_shown(path)}, or write ${{VARIABLE}} in their place",
        )
    else:
        yield _AREA.note(
            _shown(path),
            f"it seems to hold secrets ({named})",
            "write ${VARIABLE} in their place to share the file",
        )


def _secret_holders(path: Path) -> Iterator[str]:
    """Yield where literal secrets seem to stand: the server and the name, never a value."""
    try:
        document = parse_json(read_bytes(path), path.name)
    except ConfigError:
        return
    whole = _table(document)
    for key, value in (_table(whole.get("mcpServers")) | _table(whole.get("servers"))).items():
        server = _table(value)
        for kind in ("env", "headers"):
            for name, content in _table(server.get(kind)).items():
                if _SECRET_NAME.search(name) and _is_literal(content):
                    yield f"{key}: {name}"
        arguments = server.get("args")
        for argument in cast(list[object], arguments) if isinstance(arguments, list) else []:
            if isinstance(argument, str) and _SECRET_ARGUMENT.match(argument) and _is_literal(argument):
                yield f"{key}: {argument.partition('=')[0]}"
        url = server.get("url")
        if isinstance(url, str) and _has_password(url):
            yield f"{key}: url"


def _table(value: object) -> dict[str, object]:
    return dict(cast(Mapping[str, object], value)) if isinstance(value, dict) else {}


def _is_literal(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not _REFERENCE.search(value)


def _has_password(url: str) -> bool:
    try:
        return bool(urlsplit(url).password) and not _REFERENCE.search(url)
    except ValueError:
        return False
