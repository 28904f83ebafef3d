"""Serving the client that started this process, over standard input and output.

While this runs, standard output belongs to the protocol alone: whatever else
writes to it writes to standard error instead.
"""

import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import anyio

from skillwire.server.connection import StdioConnection
from skillwire.server.footprint import settle_heap, share_one_heap
from skillwire.server.standalone import Offer, Standalone


async def serve_stdio(
    offer: Offer, *, on_ready: Callable[[Standalone], None] = lambda standalone: None
) -> None:
    """Serve the client that started this process, until it leaves or SIGTERM or SIGINT arrives.

    Raises:
        SkillError: The skills cannot be opened.
    """
    share_one_heap()
    standalone = Standalone(offer)
    with standard_streams() as (incoming, outgoing):
        async with standalone.skills.open(), anyio.create_task_group() as group:
            settle_heap()
            on_ready(standalone)
            connection = StdioConnection(
                standalone.server,
                standalone.hot if offer.is_fast else None,
                incoming=incoming,
                outgoing=outgoing,
                listen=standalone.listen,
            )
            group.start_soon(_stop_on_signal, connection)
            await connection.run()
            group.cancel_scope.cancel()


async def _stop_on_signal(connection: StdioConnection) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            connection.stop()


@contextmanager
def standard_streams() -> Generator[tuple[int, int]]:
    """Take standard input and output for the protocol, and put stand-ins in their place.

    Yields the descriptors to read from and to write to.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield incoming, outgoing
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()  # What was printed meanwhile waits there, and is no part of the protocol.
        os.dup2(incoming, 0)
        os.dup2(outgoing, 1)
        os.close(nothing)
        # The other two stay open: a thread may still wait for them, and a new file must not take their place.
