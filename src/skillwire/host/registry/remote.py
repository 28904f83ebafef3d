"""`Remote`: a server, as far as the registry needs to know one."""

from typing import Protocol

from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.host.calls.enumeration import Listing
from skillwire.host.origin import Origin


class Remote(Protocol):
    """A server to list and to get entries from. Every call has a deadline, and raises only `SkillError`."""

    @property
    def origin(self) -> Origin: ...

    @property
    def epoch(self) -> int:
        """A number that grows with every connection made."""
        ...

    @property
    def instructions(self) -> str: ...

    async def connect(self, *, at_once: bool = False) -> None:
        """Make sure of a connection; `at_once`, because a user asked, also after many failures."""
        ...

    async def list_skills(self) -> Listing:
        """Return what it lists, in whatever dialect.

        Raises:
            NotDeclaredError: It speaks no dialect of skills.
        """
        ...

    async def get_skill(self, uri: SkillUri | str) -> SkillEntry: ...
