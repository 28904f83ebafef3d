"""`skillwire bridge`: the skills of servers and folders for an agent that does not speak the extension."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import anyio
import typer

from skillwire.bridge.overview import StoredOverview
from skillwire.bridge.setup import is_own
from skillwire.cli.command import (
    STYLES,
    Json,
    MisuseError,
    Output,
    OutputError,
    TargetCommand,
    Targets,
    Verbose,
    command_in,
    command_output,
    new_app,
    progress,
)
from skillwire.cli.hosting import Config, Frozen, HostRequest, Lock, ResolvedTargets, host_of, resolve_targets
from skillwire.cli.recent import RecentTargets
from skillwire.core import SkillError
from skillwire.host import FileTrust, ServerConfig, StdioEndpoint, Storage
from skillwire.runner import Policy
from skillwire.server.options import HttpOptions, OptionError

_FIRST_SECONDS = 10.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")

app = new_app()


@app.command(cls=TargetCommand)
def bridge(
    context: typer.Context,
    targets: Targets = None,
    http: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve clients on this machine over HTTP, at /mcp, instead of standard input and output.",
            show_default=False,
        ),
    ] = "",
    scripts: Annotated[
        bool,
        typer.Option("--scripts", help="Let models run scripts of skills in a sandbox, if the user agrees."),
    ] = False,
    config: Config = None,
    lock: Lock = None,
    frozen: Frozen = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Offer skills to an agent as an MCP server with ordinary tools.

    For agents that use MCP servers but do not speak the skills extension:
    `skillwire setup CLIENT` adds this command to their configuration. The
    model loads skills with tools, people with prompts. Every skill of a server
    needs your approval first: the agent asks you, if it can, and else the model
    is told which command approves it. The next call then works.

    It cannot watch the other tools of the agent.
    """
    with command_output("bridge", json=json, verbose=verbose) as output:
        wanted = HostRequest(
            config=config,
            targets=targets or (),
            command=command_in(context),
            lock=lock,
            frozen=frozen,
            scripts=Policy() if scripts else None,
        )
        listener = _listening(http) if http else None
        if listener is None and (sys.stdin is None or sys.stdin.isatty()):
            raise MisuseError(
                "standard input is no MCP client",
                fix="let an agent start it (`skillwire setup CLIENT`), or use --http 127.0.0.1:8000",
            )
        running, options = _running(), bridge_options(output, wanted, sys.argv[2:])
        if listener is None:
            anyio.run(running.run_stdio, options)
        else:
            anyio.run(running.run_http, options, listener, partial(_announce, output, listener))


def _running() -> Any:
    """Return the module that runs bridges; the SDK is not needed to complete or to explain this command."""
    return import_module("skillwire.bridge.run")


def bridge_options(output: Output, wanted: HostRequest, args: Sequence[str]) -> Any:
    """Return the `BridgeOptions` for these arguments, and report what cannot be used."""
    places, note = _trusted(resolve_targets(wanted))
    if note:
        output.message(("warning:", "yellow"), f" {note}")
    servers = tuple(_without_environment(each) for each in places.servers if not _is_bridge(each))
    RecentTargets().remember(places.typed, failed=())
    # The commands that users type do not begin in this process, so they get an absolute path.
    named = wanted if wanted.config is None else replace(wanted, config=wanted.config.absolute())
    return _running().BridgeOptions(
        partial(host_of, wanted, replace(places, servers=servers)),
        named.command_line,
        StoredOverview.of(args),
        note,
        has_scripts=wanted.scripts is not None,
    )


async def prepare_first_start(output: Output, wanted: HostRequest, args: Sequence[str]) -> None:
    """Store the list of skills for the first start of the bridge in this folder; a failure is reported."""
    try:
        options = bridge_options(output, wanted, args)
        with progress(output, "asking for skills, to list them at the first start"):
            await _running().store_overview(options, seconds=_FIRST_SECONDS)
    except SkillError as error:
        output.message(("note:", STYLES["note"]), f" the skills are not listed at the first start: {error}")


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


def _listening(http: str) -> socket.socket:
    try:
        host, port = HttpOptions(http=http).address
    except OptionError as error:
        raise MisuseError(str(error), fix=error.fix) from error
    if host not in LOOPBACK:
        raise MisuseError(
            "a bridge acts with the approvals of one user, so it listens on this machine only",
            fix="use --http 127.0.0.1:8000; to serve others, use `skillwire serve`",
        )
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise OutputError(
            f"cannot listen on {http}: {error.strerror}", fix="choose another port; 0 takes any that is free"
        ) from error


def _announce(output: Output, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"
    if output.json:
        output.document({"url": url})
        sys.stdout.flush()
    output.message(f"bridge at {url}")
