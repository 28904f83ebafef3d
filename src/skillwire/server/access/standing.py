"""`Standing`: requests that last, held to what their callers may see while they do."""

import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio

from skillwire.errors import CredentialError
from skillwire.server.access.admission import Admitted

CHECK_SECONDS: Final = 1.0
"""How long a stream may outlive the right to it."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Held:
    """One request: how it was admitted, how to find that out again, and what ends it."""

    admitted: Admitted
    again: Callable[[], Awaitable[Admitted]]
    ended: anyio.Event = field(default_factory=anyio.Event)


class Standing:
    """The requests that are being answered at this moment, each with what ends it.

    A stream of changes stays open for as long as its client likes. When the
    credential expires or is revoked, or the rules say something else now, it
    ends; its client comes back and gets what it may have then.
    """

    def __init__(self) -> None:
        self._held: set[_Held] = set()

    @contextmanager
    def hold(self, admitted: Admitted, again: Callable[[], Awaitable[Admitted]]) -> Generator[anyio.Event]:
        """Keep an eye on a request meanwhile; the event says that it must end."""
        held = _Held(admitted, again)
        self._held.add(held)
        try:
            yield held.ended
        finally:
            self._held.discard(held)

    async def keep_checking(self) -> None:
        """End what is no longer allowed, until cancelled."""
        while True:
            await anyio.sleep(CHECK_SECONDS)
            for held in tuple(self._held):
                if not held.ended.is_set() and not await _is_allowed(held):
                    held.ended.set()


async def _is_allowed(held: _Held) -> bool:
    try:
        return await held.again() == held.admitted
    except CredentialError as error:
        logger.info("a stream ends: its credential is not good any more (%s)", error.reason)
        return False
    except Exception:
        logger.exception("a stream ends: it cannot be told whether its credential is good")
        return False
