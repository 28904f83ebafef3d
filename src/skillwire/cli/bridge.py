"""`skillwire bridge`: the skills of servers and folders for an agent that does not speak the extension."""

from __future__ import annotations

import socket
import sys
from functools import partial
from typing import Annotated

import anyio
import typer

from skillwire.cli.command import (
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
)
from skillwire.cli.hosting import Config, Frozen, HostRequest, Lock, bridge_module, bridge_options
from skillwire.runner import Policy
from skillwire.server.options import HttpOptions, OptionError

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
        running, options = bridge_module(), bridge_options(output, wanted, sys.argv[2:])
        if listener is None:
            anyio.run(running.run_stdio, options)
        else:
            anyio.run(running.run_http, options, listener, partial(_announce, output, listener))


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
