"""A reviewer in the tests' own process: looks at all of a skill and approves it, on a desk's machine."""

from pathlib import Path

import anyio

from skillwire.host import Host, HostLimits, Question, Reply, Storage
from terminals import Desk

WITHIN = 60.0


def places_of(desk: Desk) -> Storage:
    return Storage(desk.home / ".local/state/skillwire", desk.home / ".cache/skillwire/host")


async def always(_question: Question) -> Reply:
    return Reply.ALWAYS


def host_at(desk: Desk, *, lock: Path | None = None) -> Host:
    """Return the host that a command run at the desk would open, with a user who agrees to everything."""
    config = desk.folder / ".mcp.json"
    return Host.from_config(
        config,
        storage=places_of(desk),
        approve=always,
        roots=(),
        lock=lock,
        limits=HostLimits(wait_seconds=WITHIN),
    )


def approve(desk: Desk, *references: str, lock: Path | None = None) -> None:
    """Read all of some skills, as a reviewer does, and approve them; write the lock if there is one."""

    async def main() -> None:
        async with host_at(desk, lock=lock) as host:
            for reference in references:
                await host.compare(reference, full=True)
                await host.approve(await host.find(reference))
            if lock is not None:
                await host.write_lock()

    anyio.run(main)
