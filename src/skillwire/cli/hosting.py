"""Open a host for one command, from the configuration or from targets on the command line."""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import anyio
import typer

import skillwire.host
from skillwire.bridge.overview import StoredOverview
from skillwire.bridge.setup import is_own
from skillwire.cli.command import STYLES, MisuseError, Output, one_of, plural, progress
from skillwire.cli.prompt import require_trusted_config
from skillwire.cli.recent import RecentTargets, TargetKind, TypedTarget
from skillwire.cli.references import references_named
from skillwire.core import SkillError, SourceError, visible
from skillwire.host import (
    LOCAL,
    REFUSALS,
    ApprovalRequiredError,
    Ask,
    FileTrust,
    FolderTrust,
    HttpEndpoint,
    LocalRoot,
    LocalSkills,
    Refusal,
    ServerConfig,
    Servers,
    SiteEndpoint,
    SkillChangedError,
    StdioEndpoint,
    Storage,
    SyncedFolders,
    TooSlowError,
    UnknownReferenceError,
    default_roots,
    find_config,
    read_servers,
)
from skillwire.host.connect.config_file import label_of
from skillwire.runner import Policy

if TYPE_CHECKING:
    from skillwire.host import Host


SITE_PREFIX = "well-known:"
"""The prefix that marks the URL of a web site of skills; a bare URL is an MCP server."""

Config: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The mcpServers file to use instead of .mcp.json, .cursor/mcp.json or .vscode/mcp.json here.",
        show_default=False,
    ),
]
At: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="TARGET",
        help="Use only this URL, folder, or label of the configuration. Can be repeated.",
        show_default=False,
    ),
]
Lock: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--lock",
        metavar="FILE",
        help="The project's lock, instead of skills.lock here.",
        show_default=False,
    ),
]
Frozen: TypeAlias = Annotated[
    bool, typer.Option("--frozen", help="Use only the approvals of the lock, as it is.")
]
Wait: TypeAlias = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0.1, max=600, help="How long to wait for servers."),
]

Archives: TypeAlias = Annotated[
    bool, typer.Option("--archives", help="Also unpack skills that are published as archives, within limits.")
]

_ADDRESS = re.compile(r"(?:localhost|[\w-]+(?:\.[\w-]+)+|\[[0-9a-f:]+\])(?::\d+)?(?:/|$)", re.IGNORECASE)
_LOOPBACK = re.compile(r"(?:localhost|127\.|\[::1\])", re.IGNORECASE)

LOCK_NAME = "skills.lock"
DEFAULT_WAIT = 60.0
_MOST_MEANT = 5
_GRACE_SECONDS = 0.5
# A connection may have the same limit as `--wait`, and its message has the reason.
NOT_ANSWERED = ("failed", "waiting")
"""The states of a server whose skills are not known."""


@dataclass(frozen=True, slots=True)
class HostRequest:
    """The options of a command line from which its host is opened.

    `command` is a server to start, given after `--`. With `archives`, skills
    published as archives are included. `scripts` is the policy for scripts, if
    any are run. `reference` is the one skill or server that the command is
    about, if there is one: then no other server is contacted.
    """

    config: Path | None = None
    targets: Sequence[str] = ()
    command: Sequence[str] = ()
    lock: Path | None = None
    frozen: bool = False
    wait: float = DEFAULT_WAIT
    archives: bool = False
    scripts: Policy | None = None
    reference: str = ""

    @classmethod
    def for_skill(
        cls,
        reference: str,
        config: Path | None,
        at: Sequence[str] | None,
        lock: Path | None,
        *,
        frozen: bool,
        wait: float,
        archives: bool = False,
    ) -> HostRequest:
        """Return the request of a command that is about one skill."""
        return cls(
            config=config,
            targets=at or (),
            lock=lock,
            frozen=frozen,
            wait=wait,
            archives=archives,
            reference=reference,
        )

    @property
    def options(self) -> tuple[str, ...]:
        """The options with which another command finds the same skills, for suggested commands."""
        words: list[str] = []
        if self.config is not None:
            words += ["--config", str(self.config)]
        for target in self.targets:
            words += ["--at", target]
        if self.lock is not None:
            words += ["--lock", str(self.lock)]
        return (*words, "--archives") if self.archives else tuple(words)

    def command_line(self, *words: str) -> str:
        """Return a command line to suggest, which uses the same servers and folders."""
        return f"skillwire {shlex.join((*words, *self.options))}"


@dataclass(frozen=True, slots=True)
class ResolvedTargets:
    """The servers and folders to use, and the configured servers that cannot be used.

    `found` is a configuration that was discovered, not named, and whose servers
    are used. `typed` are the targets of this command line. `recalled` is a
    target of an earlier command line, when a reference of this one belongs to it.
    """

    servers: tuple[ServerConfig, ...] = ()
    roots: tuple[LocalRoot, ...] | None = None
    refused: tuple[Refusal, ...] = ()
    found: tuple[Path, Servers] | None = None
    typed: tuple[TypedTarget, ...] = ()
    recalled: TypedTarget | None = None


def run_with_host(
    output: Output,
    wanted: HostRequest,
    work: Callable[[Host], Awaitable[None]],
    *,
    approve: Ask | None = None,
    must_answer: bool = True,
) -> None:
    """Open a host, run a command's work with it, and close it.

    With `must_answer`, the command fails when the server of its reference has
    not answered within `--wait`.

    Raises:
        SkillError: The command failed; `fix` is filled in where a remedy is known.
    """

    async def main() -> None:
        async with open_host(output, wanted, approve=approve) as host:
            if must_answer:
                _require_answer(host, wanted)
            await work(host)

    try:
        anyio.run(main)
    except SkillError as error:
        error.fix = error.fix or _fix_for(error, wanted)
        if not error.fix and error.refusal in REFUSALS:
            error.fix = REFUSALS[error.refusal].remedy
        raise


def host_of(wanted: HostRequest, places: ResolvedTargets, approve: Ask | None) -> Host:
    """Return the host for a command line, not open yet; it asks no server when it is opened."""
    policy = skillwire.host.HostPolicy(
        frozen=wanted.frozen,
        dynamic="decline" if approve is None else "ask",
        granted_by=_user_name(),
        archives=skillwire.host.ArchivePolicy() if wanted.archives else skillwire.host.NO_ARCHIVES,
    )
    return skillwire.host.Host(
        Servers(places.servers, places.refused),
        approve=approve,
        project=Path.cwd(),
        lock=_lock_of(wanted),
        roots=places.roots,
        policy=policy,
        limits=skillwire.host.HostLimits(wait_seconds=0),
        scripts=wanted.scripts,
    )


@asynccontextmanager
async def open_host(
    output: Output, wanted: HostRequest, *, approve: Ask | None = None
) -> AsyncGenerator[Host]:
    """Open the host for a command line, and show progress while its servers connect.

    Raises:
        MisuseError: A target is not a URL, a folder or a label.
        ConfigError: The configuration cannot be read.
        SkillError: The host cannot be opened.
    """
    places = resolve_targets(wanted)
    if places.found is not None:
        await require_trusted_config(*places.found)
    if places.recalled is not None:
        output.message(("note:", STYLES["note"]), f" using {_shown(places)} from an earlier command")
    host = host_of(wanted, places, approve)
    async with host:
        await _refresh_servers(output, host, wanted)
        if places.typed:
            failed = [status.origin.label for status in host.view.servers if status.state in NOT_ANSWERED]
            RecentTargets().remember(places.typed, failed=failed)
        yield host


async def _refresh_servers(output: Output, host: Host, wanted: HostRequest) -> None:
    """List the skills of the server that a reference starts with, or of all servers if it is not known."""
    servers = {status.origin.label for status in host.view.servers}
    label = wanted.reference.partition("/")[0]
    if label in servers:
        labels = {label, LOCAL}
    else:
        is_local = any(skill.reference == wanted.reference for skill in host.view.skills)
        labels = {LOCAL} if is_local else {*servers, LOCAL}
    count = len(labels - {LOCAL})
    with progress(output, f"connecting to {plural(count, 'server')}" if count else "looking for skills"):
        await host.refresh(labels, wait_seconds=wanted.wait + (_GRACE_SECONDS if label in servers else 0))


def is_waiting(host: Host, reference: str) -> bool:
    """Return whether the server of a reference has not answered yet."""
    label, slash, _ = reference.partition("/")
    return bool(slash) and any(
        status.origin.label == label and status.state == "waiting" for status in host.view.servers
    )


def _require_answer(host: Host, wanted: HostRequest) -> None:
    """Check that the server of the reference has answered: using it would wait longer than `--wait`.

    Raises:
        TooSlowError: It has not.
    """
    if not is_waiting(host, wanted.reference):
        return
    label = wanted.reference.partition("/")[0]
    fix = "allow more time with --wait SECONDS"
    if any(server.label == label and server.is_label_given for server in resolve_targets(wanted).servers):
        doctor = replace(wanted, targets=(), archives=False).command_line("doctor")
        fix += f", or check the server with `{doctor}`"
    raise TooSlowError(f"the server {label} has not answered in {wanted.wait:g} seconds", fix=fix)


def resolve_targets(wanted: HostRequest) -> ResolvedTargets:
    """Return the servers and folders of the targets; without any, everything that is configured.

    Raises:
        MisuseError: A target is not a URL, a folder or a label.
        ConfigError: The configuration cannot be read.
    """
    path = wanted.config or find_config(Path.cwd())
    if not wanted.targets and not wanted.command:
        known = _configured(path)
        recalled = _recent_target_for(wanted.reference, known)
        if recalled is not None:
            return _resolve_typed([recalled], recalled=recalled)
        return ResolvedTargets(known.servers, None, known.refused, _discovered_config(wanted, path, known))
    typed: list[TypedTarget] = []
    servers: list[ServerConfig] = []
    known: Servers | None = None
    for target in wanted.targets:
        if (address := _typed_address(target)) is not None:
            typed.append(address)
            continue
        known = known or _configured(path)
        named = next((server for server in known.servers if server.label == target), None)
        if named is not None:
            servers.append(named)
        elif Path(target).is_dir():
            typed.append(
                TypedTarget(TargetKind.FOLDER, "", (str(Path(target).absolute()),), _current_folder())
            )
        elif (recalled := RecentTargets().labelled(target)) is not None:
            typed.append(recalled)
        else:
            raise _unknown(target, known)
    if wanted.command:
        label = _label_for_command(wanted.command)
        typed.append(TypedTarget(TargetKind.COMMAND, label, tuple(wanted.command), _current_folder()))
    found = _discovered_config(wanted, path, known) if servers else None
    places = _resolve_typed(typed)
    return replace(places, servers=(*servers, *places.servers), found=found, typed=tuple(typed))


def _typed_address(target: str) -> TypedTarget | None:
    """Return the server or web site of a target that is a URL; None when it is not one.

    Raises:
        MisuseError: The URL is malformed.
    """
    if re.match(r"https?://", target):
        return TypedTarget(TargetKind.URL, _label_for_url(target), (target,))
    if target.startswith(SITE_PREFIX):
        url = target.removeprefix(SITE_PREFIX)
        return TypedTarget(TargetKind.SITE, _label_for_url(url), (url,))
    return None


def _resolve_typed(typed: Sequence[TypedTarget], *, recalled: TypedTarget | None = None) -> ResolvedTargets:
    """Return the servers and folders of typed targets, without the configuration."""
    roots = [LocalRoot(Path(item.words[0]), "user") for item in typed if item.kind is TargetKind.FOLDER]
    servers = [_typed_server(item) for item in typed if item.kind is not TargetKind.FOLDER]
    return ResolvedTargets(tuple(servers), tuple(roots), recalled=recalled)


def _typed_server(target: TypedTarget) -> ServerConfig:
    if target.kind is TargetKind.SITE:
        return _site(target.label, target.words[0])
    if target.kind is TargetKind.URL:
        endpoint = HttpEndpoint(target.words[0])
        return ServerConfig(target.label, endpoint, title=target.words[0], is_label_given=False)
    program, *arguments = target.words
    endpoint = StdioEndpoint(program, tuple(arguments), cwd=target.folder, env=_environment())
    return ServerConfig(target.label, endpoint, title=program, is_label_given=False)


def _recent_target_for(reference: str, known: Servers) -> TypedTarget | None:
    """Return the earlier target that a reference belongs to, if the configuration has no such label.

    A bare name is a local skill: the user's own skills come first, then those
    of folders that were typed here.
    """
    label, slash, _ = reference.partition("/")
    if any(server.label == label for server in known.servers):
        return None
    if any(refusal.subject == label for refusal in known.refused):
        return None
    if slash or not reference:
        return RecentTargets().labelled(label)
    folders = RecentTargets().folders()
    if not folders or has_local_skill(default_roots(Path.cwd()), reference):
        return RecentTargets().labelled(label)
    for folder in folders:
        if has_local_skill([LocalRoot(folder, "user")], reference):
            return TypedTarget(TargetKind.FOLDER, "", (str(folder),), _current_folder())
    return RecentTargets().labelled(label)


def has_local_skill(roots: Sequence[LocalRoot], reference: str) -> bool:
    """Return whether a skill below `roots`, in a trusted folder, has this reference."""
    state = Storage().state
    found = LocalSkills(roots, FolderTrust(state), SyncedFolders(state)).scan()
    return any(skill.reference == reference for skill in found.skills)


def _shown(places: ResolvedTargets) -> str:
    """Return the recalled target for a message, without secrets in a URL."""
    assert places.recalled is not None
    endpoint = places.servers[0].endpoint if places.servers else None
    return endpoint.shown if isinstance(endpoint, HttpEndpoint) else places.recalled.shown


def _current_folder() -> str:
    return os.path.realpath(Path.cwd())


def _fix_for(error: SkillError, wanted: HostRequest) -> str:
    """Return a command that helps with a failure; empty where none is known."""
    reference = getattr(error, "reference", "") or wanted.reference
    if not reference or visible(reference) != reference:
        return ""
    if isinstance(error, SkillChangedError):
        look, agree = wanted.command_line("diff", reference), wanted.command_line("approve", reference)
        return f"review the change with `{look}`, then run `{agree}` on a terminal"
    if isinstance(error, ApprovalRequiredError):
        look, agree = wanted.command_line("show", reference), wanted.command_line("approve", reference)
        return f"review it with `{look}`, then run `{agree}` on a terminal"
    if isinstance(error, UnknownReferenceError) and not error.candidates:
        return _fix_for_unknown(wanted, reference)
    return ""


def _fix_for_unknown(wanted: HostRequest, reference: str) -> str:
    listing = replace(wanted, targets=())
    if is_address(reference):
        return f"run `{listing.command_line('list', reference)}`, and use a reference that it prints"
    if wanted.targets:
        return f"see all references there with `{listing.command_line('list', *wanted.targets)}`"
    label, slash, _ = reference.partition("/")
    if slash and any(server.label == label for server in resolve_targets(wanted).servers):
        return f"see all references of this server with `{listing.command_line('list', label)}`"
    if meant := typed_references(reference):
        return f"did you mean {one_of(meant)}?"
    fix = f"see all references with `{listing.command_line('list')}`"
    if not slash:
        return fix
    if folder := RecentTargets().folder_of_command(label):
        return f"{label} is a command that was typed in {folder}: use this reference there"
    added = shlex.join(("skillwire", "add", label, "URL"))
    return f"{fix}; no server has the label {label} here: name one with --at URL, or add it with `{added}`"


def is_address(reference: str) -> bool:
    """Return whether a reference is the URL of a server or a web site instead."""
    return re.match(r"https?://", reference.removeprefix(SITE_PREFIX)) is not None


def typed_references(reference: str) -> list[str]:
    """Return the references with the same name that were listed here for targets typed before."""
    name = reference.rpartition("/")[2]
    found = references_named(Path.cwd(), name) if name else []
    return [word for word in found if RecentTargets().labelled(word.partition("/")[0])][:_MOST_MEANT]


def _configured(path: Path | None) -> Servers:
    return Servers() if path is None else read_servers(path)


def _discovered_config(
    wanted: HostRequest, path: Path | None, known: Servers | None
) -> tuple[Path, Servers] | None:
    """Return a configuration that was discovered; one that was named is trusted."""
    return None if wanted.config is not None or path is None or known is None else (path, known)


def _lock_of(wanted: HostRequest) -> Path | None:
    if wanted.lock is not None:
        return wanted.lock
    usual = Path(LOCK_NAME)
    return usual if wanted.frozen or usual.exists() else None


def _user_name() -> str:
    """Return the user's name for approval records; empty where it is not known."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def _environment() -> dict[str, str]:
    """Return the environment of a server typed on the command line: the user's own, in full."""
    return dict(os.environ)


def _site(label: str, url: str) -> ServerConfig:
    try:
        return ServerConfig(label, SiteEndpoint(url), title=url, is_label_given=False)
    except SourceError as error:
        raise MisuseError(f"{url} cannot be used: {error}", fix=error.fix or "use https://HOST") from error


def _label_for_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        name = parts.hostname or ""
        port = f"-{parts.port}" if parts.port else ""
    except ValueError as error:
        raise MisuseError(f"{url} is not the URL of a server", fix="use http://HOST:PORT/PATH") from error
    return label_of(f"{name}{port}")


def _label_for_command(command: Sequence[str]) -> str:
    return label_of(Path(command[0]).name or command[0])


def with_scheme(target: str) -> str:
    """Return a URL for a target without a scheme; empty when it does not look like one."""
    if _ADDRESS.match(target) is None:
        return ""
    return f"{'http' if _LOOPBACK.match(target) else 'https'}://{target}"


def _unknown(target: str, known: Servers) -> MisuseError:
    labels = ", ".join(server.label for server in known.servers)
    fix = f"use a URL, a folder, or one of the labels {labels}" if labels else "use a URL or a folder"
    if address := with_scheme(target):
        fix = f"did you mean {address}?"
    refused = next((refusal for refusal in known.refused if refusal.subject == target), None)
    if refused is not None:
        return MisuseError(f"the configuration of {target} is invalid: {refused.detail}", fix=refused.remedy)
    return MisuseError(f"{target} is not a URL, a folder or a label of the configuration", fix=fix)


# The host of a bridge, which nobody can be asked about when an agent starts it.


def bridge_module() -> Any:
    """Return the module that runs bridges; the SDK is not needed to complete or to explain this command."""
    return import_module("skillwire.bridge.server")


def bridge_options(output: Output, wanted: HostRequest, args: Sequence[str]) -> Any:
    """Return the `BridgeOptions` for these arguments, and report what cannot be used."""
    places, note = _trusted(resolve_targets(wanted))
    if note:
        output.message(("warning:", "yellow"), f" {note}")
    servers = tuple(_without_environment(each) for each in places.servers if not _is_bridge(each))
    RecentTargets().remember(places.typed, failed=())
    # The commands that users type do not begin in this process, so they get an absolute path.
    named = wanted if wanted.config is None else replace(wanted, config=wanted.config.absolute())
    return bridge_module().BridgeOptions(
        partial(host_of, wanted, replace(places, servers=servers)),
        named.command_line,
        StoredOverview.of(args),
        note,
        has_scripts=wanted.scripts is not None,
    )


def _trusted(places: ResolvedTargets) -> tuple[ResolvedTargets, str]:
    """Return what may be used, and what the user must know: nobody can be asked about a configuration."""
    if places.found is None:
        return places, ""
    path, found = places.found
    if not found.servers or FileTrust(Storage().state).is_trusted(path, found.digest):
        return places, ""
    note = (
        f"The servers of {path.name} in this folder are not used, because it is not trusted. "
        "The user can review and trust it with `skillwire trust` there, and then restart this server."
    )
    return replace(places, servers=()), note


def _without_environment(server: ServerConfig) -> ServerConfig:
    """Return a server that gets nothing of this environment, unless its configuration names it.

    Agents hand over theirs to every server, with keys in it, also to one that
    is typed as a command.
    """
    endpoint = server.endpoint
    if server.is_label_given or not isinstance(endpoint, StdioEndpoint):
        return server
    return replace(server, endpoint=replace(endpoint, env={}))


def _is_bridge(server: ServerConfig) -> bool:
    """Return whether a configured server is this command, which agents have in the same files."""
    endpoint = server.endpoint
    return isinstance(endpoint, StdioEndpoint) and is_own(
        {"command": endpoint.command, "args": list(endpoint.args)}
    )
