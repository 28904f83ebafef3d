"""Each server: whether it answers, what it speaks, whether it serves skills, and how long that took."""

import time
from collections.abc import Sequence

import anyio

from skillwire.cli.answer import plural
from skillwire.cli.checkup.check import Area, Check
from skillwire.errors import SkillError
from skillwire.host import REFUSALS, Listing, ServerConfig
from skillwire.host.connections.opening import connection_for
from skillwire.host.failures import NotDeclaredError
from skillwire.wire.dialect import Dialect

_AREA = Area("servers")


async def check_servers(servers: Sequence[ServerConfig], seconds: float) -> list[Check]:
    """Ask all servers side by side, each for at most `seconds`; nothing of them is kept or approved."""
    checks: dict[str, Check] = {}

    async def ask(server: ServerConfig) -> None:
        checks[server.label] = await _check(server, seconds)

    async with anyio.create_task_group() as group:
        for server in servers:
            group.start_soon(ask, server)
    return [checks[server.label] for server in servers]


async def _check(server: ServerConfig, seconds: float) -> Check:
    start = time.monotonic()
    speaks = ""
    try:
        async with connection_for(server) as connection:
            with anyio.fail_after(seconds):
                await connection.connect()
                version = connection.protocol_version
                speaks = "is a web site" if version is None else f"speaks MCP {version}"
                listing = await connection.list_skills()
            if listing.dialect not in (Dialect.CORE, Dialect.WELL_KNOWN):
                speaks = f"{speaks} and the older dialect {listing.dialect}"
            return _listed(server, speaks, listing, start)
    except NotDeclaredError:
        return _AREA.note(server.label, f"{speaks}, serves no skills, {_took(start)}")
    except TimeoutError:
        found = f"no answer within {seconds:g} seconds{f'; it {speaks}' if speaks else ''}"
        return _AREA.problem(
            server.label, found, "give it more time with --wait, or look at the server's log"
        )
    except SkillError as error:
        kind = REFUSALS.get(error.refusal)
        fix = error.fix or (kind.remedy if kind else "look at the server's log")
        return _AREA.problem(server.label, str(error), fix)


def _listed(server: ServerConfig, speaks: str, listing: Listing, start: float) -> Check:
    found = f"{speaks}, lists {plural(len(listing.entries), 'skill')}, {_took(start)}"
    if listing.problem is not None:
        words = f"{found}; the listing is incomplete: {listing.problem}"
        return _AREA.problem(server.label, words, "report it to the server's author")
    if listing.refused:
        words = f"{found}; refused {plural(len(listing.refused), 'entry')}".replace("entrys", "entries")
        return _AREA.warning(server.label, words, "see skillwire list -v for the rules they break")
    return _AREA.ok(server.label, found)


def _took(start: float) -> str:
    return f"{time.monotonic() - start:.2f} s"
