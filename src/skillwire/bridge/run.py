"""Runs a bridge for the client that started this process, or over HTTP for clients on this machine."""

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import uvicorn

from skillwire.bridge.consent import ClientConsent, ConsentPages
from skillwire.bridge.overview import StoredOverview
from skillwire.bridge.server import Bridge
from skillwire.host import Ask, Host
from skillwire.server.early import take_opening
from skillwire.server.limits import limit_malloc_arenas
from skillwire.server.stdio import StdioConnection, run_until_signal, standard_streams


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """What a bridge is made of: its host, the commands that it names to users, and what it knew before."""

    new_host: Callable[[Ask], Host]
    command_line: Callable[..., str]
    stored: StoredOverview
    note: str = ""
    has_scripts: bool = False


@asynccontextmanager
async def open_bridge(options: BridgeOptions) -> AsyncGenerator[Bridge]:
    """Open the host of a bridge, and keep its list of skills up to date.

    Raises:
        SkillError: The host cannot be opened.
    """
    async with ConsentPages() as pages:
        consent = ClientConsent(options.command_line, pages)
        async with options.new_host(consent.ask) as host, anyio.create_task_group() as group:
            bridge = Bridge(host, consent, options.stored, note=options.note, has_scripts=options.has_scripts)
            group.start_soon(bridge.follow)
            yield bridge
            group.cancel_scope.cancel()


async def store_overview(options: BridgeOptions, *, seconds: float) -> None:
    """Ask the servers of a bridge for their skills, and store these for its first start.

    Raises:
        SkillError: The host cannot be opened.
    """
    async with open_bridge(options) as bridge:
        with anyio.move_on_after(seconds):
            await bridge.settled.wait()


async def run_stdio(options: BridgeOptions) -> None:
    """Serve the client that started this process, until it disconnects or SIGTERM or SIGINT arrives.

    Raises:
        SkillError: The host cannot be opened.
    """
    limit_malloc_arenas()
    with standard_streams() as (incoming, outgoing):
        async with open_bridge(options) as bridge:
            connection = StdioConnection(
                bridge.server,
                None,
                incoming=incoming,
                outgoing=outgoing,
                listen=bridge.listen,
                opening=take_opening(),
            )
            await run_until_signal(connection)


async def run_http(options: BridgeOptions, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve clients on this machine over HTTP, until SIGTERM or SIGINT arrives.

    The Host header must be one of the loopback interface, as for every server
    of the SDK there, so no web page can use it.

    Raises:
        SkillError: The host cannot be opened.
    """
    async with open_bridge(options) as bridge:
        config = uvicorn.Config(
            bridge.server.streamable_http_app(),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        on_ready()
        await uvicorn.Server(config).serve([listener])
