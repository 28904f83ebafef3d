"""A host for one command: from the configuration at hand, or from what the command line names."""

import getpass
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

import anyio
import typer

from skillwire.cli.answer import Answer, plural
from skillwire.cli.failures import MisuseError
from skillwire.cli.progress import progress
from skillwire.cli.trusting import require_seen
from skillwire.errors import SkillError, SourceError
from skillwire.host import (
    REFUSALS,
    Ask,
    Host,
    HttpEndpoint,
    LocalRoot,
    Refusal,
    ServerConfig,
    Servers,
    StdioEndpoint,
    find_config,
    read_servers,
)
from skillwire.host.archives import ArchivePolicy
from skillwire.host.connections.endpoints import SiteEndpoint
from skillwire.host.connections.labels import label_of
from skillwire.runner import Policy

_SITE = "well-known:"
"""What stands before the address of a web site of skills, where a bare URL is an MCP server."""

Config: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The mcpServers file to use. Otherwise .mcp.json, .cursor/mcp.json or .vscode/mcp.json here.",
        show_default=False,
    ),
]
At: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="TARGET",
        help="Look only there: a URL, a folder, or a label of the configuration. Can be repeated.",
        show_default=False,
    ),
]
Lock: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--lock",
        metavar="FILE",
        help="The project's lock. Otherwise skills.lock here, if there is one.",
        show_default=False,
    ),
]
Frozen: TypeAlias = Annotated[
    bool, typer.Option("--frozen", help="Let the lock alone decide, as it lies there.")
]
Wait: TypeAlias = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0.1, max=600, help="How long to wait for servers."),
]

Archives: TypeAlias = Annotated[
    bool, typer.Option("--archives", help="Unpack skills that come as archives, within limits.")
]

LOCK_NAME = "skills.lock"
DEFAULT_WAIT = 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a command line says about the host it needs.

    `command` is what stands after `--`: a server to start. `archives` says that
    skills which come as archives are wanted too, and `scripts` how scripts are run, if any are.
    """

    config: Path | None = None
    targets: Sequence[str] = ()
    command: Sequence[str] = ()
    lock: Path | None = None
    frozen: bool = False
    wait: float = DEFAULT_WAIT
    archives: bool = False
    scripts: Policy | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """Where skills are looked for: servers, folders, and what was configured and cannot be used.

    `found` is a configuration that nobody named and whose servers are among these.
    """

    servers: tuple[ServerConfig, ...] = ()
    roots: tuple[LocalRoot, ...] | None = None
    refused: tuple[Refusal, ...] = ()
    found: tuple[Path, Servers] | None = None


def with_host(
    answer: Answer, wanted: Wanted, work: Callable[[Host], Awaitable[None]], *, approve: Ask | None = None
) -> None:
    """Open a host, do a command's work with it, and close it again.

    Raises:
        SkillError: What went wrong; `fix` says what to do about it.
    """

    async def main() -> None:
        async with opened(answer, wanted, approve=approve) as host:
            await work(host)

    try:
        anyio.run(main)
    except SkillError as error:
        if not error.fix and error.refusal in REFUSALS:
            error.fix = REFUSALS[error.refusal].remedy
        raise


@asynccontextmanager
async def opened(answer: Answer, wanted: Wanted, *, approve: Ask | None = None) -> AsyncGenerator[Host]:
    """Open the host that a command line asks for, with a sign of life while its servers connect.

    Raises:
        MisuseError: A target is nothing a host could look at.
        ConfigError: The configuration cannot be read.
        SkillError: The host cannot be opened.
    """
    places = places_of(wanted)
    if places.found is not None:
        await require_seen(*places.found)
    host = Host(
        places.servers,
        roots=places.roots,
        project=Path.cwd(),
        refused_servers=places.refused,
        approve=approve,
        dynamic="decline" if approve is None else "ask",
        granted_by=_user_name(),
        lock=_lock_of(wanted),
        frozen=wanted.frozen,
        archives=ArchivePolicy() if wanted.archives else None,
        wait_seconds=0,
        scripts=wanted.scripts,
    )
    async with host:
        count = len(host.view.servers)
        with progress(answer, f"connecting to {plural(count, 'server')}" if count else "looking for skills"):
            await host.refresh(wait_seconds=wanted.wait)
        yield host


def places_of(wanted: Wanted) -> Places:
    """Find what the targets mean; without any, everything that is configured.

    Raises:
        MisuseError: A target is no URL, no folder and no label.
        ConfigError: The configuration cannot be read.
    """
    path = wanted.config or find_config(Path.cwd())
    if not wanted.targets and not wanted.command:
        known = _configured(path)
        return Places(known.servers, None, known.refused, _unnamed(wanted, path, known))
    servers: list[ServerConfig] = []
    roots: list[LocalRoot] = []
    known: Servers | None = None
    is_configured = False
    for target in wanted.targets:
        if re.match(r"https?://", target):
            servers.append(ServerConfig(_label_for_url(target), HttpEndpoint(target), title=target))
            continue
        if target.startswith(_SITE):
            servers.append(_site(target.removeprefix(_SITE)))
            continue
        known = known or _configured(path)
        named = next((server for server in known.servers if server.label == target), None)
        if named is not None:
            servers.append(named)
            is_configured = True
        elif Path(target).is_dir():
            roots.append(LocalRoot(Path(target), "user"))
        else:
            raise _unknown(target, known)
    if wanted.command:
        program, *arguments = wanted.command
        endpoint = StdioEndpoint(program, tuple(arguments), cwd=str(Path.cwd()), env=_environment())
        servers.append(ServerConfig(_label_for_command(wanted.command), endpoint, title=program))
    found = _unnamed(wanted, path, known) if is_configured else None
    return Places(tuple(servers), tuple(roots), found=found)


def _configured(path: Path | None) -> Servers:
    return Servers() if path is None else read_servers(path)


def _unnamed(wanted: Wanted, path: Path | None, known: Servers | None) -> tuple[Path, Servers] | None:
    """Return a configuration that was only found; one that was named is the user's own choice."""
    return None if wanted.config is not None or path is None or known is None else (path, known)


def _lock_of(wanted: Wanted) -> Path | None:
    if wanted.lock is not None:
        return wanted.lock
    usual = Path(LOCK_NAME)
    return usual if wanted.frozen or usual.exists() else None


def _user_name() -> str:
    """Return who approves, for the record; empty where the system does not say."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def _environment() -> dict[str, str]:
    """Return what a program gets that the user starts by hand: everything the user's shell has."""
    return dict(os.environ)


def _site(url: str) -> ServerConfig:
    try:
        return ServerConfig(_label_for_url(url), SiteEndpoint(url), title=url)
    except SourceError as error:
        raise MisuseError(f"{url} cannot be used: {error}", fix=error.fix or "use https://HOST") from error


def _label_for_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        name = parts.hostname or ""
        port = f"-{parts.port}" if parts.port else ""
    except ValueError as error:
        raise MisuseError(f"{url} is no address of a server", fix="use http://HOST:PORT/PATH") from error
    return label_of(f"{name}{port}")


def _label_for_command(command: Sequence[str]) -> str:
    return label_of(Path(command[0]).name or command[0])


def _unknown(target: str, known: Servers) -> MisuseError:
    labels = ", ".join(server.label for server in known.servers)
    fix = f"use a URL, a folder, or one of the labels {labels}" if labels else "use a URL or a folder"
    refused = next((refusal for refusal in known.refused if refusal.subject == target), None)
    if refused is not None:
        return MisuseError(
            f"{target} is configured in a way that cannot be used: {refused.detail}", fix=refused.remedy
        )
    return MisuseError(f"{target} is no URL, no folder and no label of the configuration", fix=fix)
