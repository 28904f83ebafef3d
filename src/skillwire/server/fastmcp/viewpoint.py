"""From where skills are looked at: which of several servers was asked, and what it hides."""

from contextvars import ContextVar
from typing import Final

from skillwire.server.fastmcp.sight import Sight
from skillwire.server.outputs import Caller

ASKED: Final[ContextVar[Sight | None]] = ContextVar("skillwire_asked", default=None)
"""What the server shows that was asked by the client. Skills of one server are served by every parent too."""
CALLER: Final[ContextVar[Caller | None]] = ContextVar("skillwire_caller", default=None)
"""Who asks; None where no client does."""


class Viewpoint:
    """What who asks right now may see, for whatever older dialects add to the skills.

    `home` stands in where no client asked, as when a program calls its server.
    """

    def __init__(self, home: Sight) -> None:
        self._home = home

    async def is_limited(self) -> bool:
        """Tell whether anything could be hidden from the caller."""
        sight = ASKED.get() or self._home
        try:
            return await sight.is_limited()
        except RuntimeError:
            return sight.can_hide()  # Outside of a request FastMCP knows no session, which could hide more.

    async def may_see(self, uri: str) -> bool:
        """Tell whether the caller may see the skill or file at `uri`."""
        return not await self.is_limited() or await (ASKED.get() or self._home).sees(uri)
