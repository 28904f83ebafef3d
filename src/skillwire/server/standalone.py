"""A server of our own that serves nothing but skills: what `skillwire serve` runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.subscriptions import ListenHandler

from skillwire import __version__
from skillwire.runner import Policy
from skillwire.server.answers import Terms
from skillwire.server.handlers import add_listening, install
from skillwire.server.hot import HotAnswers
from skillwire.server.notes import Notes
from skillwire.server.pages import DEFAULT_PAGE_SIZE
from skillwire.server.skills import Skills
from skillwire.sources import Source

_INSTRUCTIONS = (
    "This server publishes Agent Skills: folders of instructions, each with a SKILL.md. "
    "A client that knows the extension lists them with skills/list; "
    "others find every SKILL.md among the resources."
)


@dataclass(frozen=True, slots=True)
class Offer:
    """What is to be served, and how. It can be sent to another process."""

    folders: tuple[Path, ...]
    prefix: str = ""
    page_size: int = DEFAULT_PAGE_SIZE
    ttl: float = 60.0
    watch: bool = True
    strict: bool = False
    follow_links: bool = False
    is_fast: bool = True
    dialects: tuple[str, ...] = ()
    mirror: bool = False
    find_tool: bool = False
    scripts: Policy | None = None
    more: Callable[[], Sequence[Source]] | None = None
    """Makes further sources, in the process that serves them."""


class Standalone:
    """A lowlevel server with the skills of an `Offer`, and the ready answers about them."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.skills = Skills(
            (*offer.folders, *(offer.more() if offer.more is not None else ())),
            terms=Terms(page_size=offer.page_size, ttl_ms=round(offer.ttl * 1000)),
            prefix=offer.prefix,
            watch=offer.watch,
            strict=offer.strict,
            follow_links=offer.follow_links,
            dialects=offer.dialects,
            notes=Notes(mirror=offer.mirror),
            find_tool=offer.find_tool,
            scripts=offer.scripts,
        )
        self.server: Server[Any] = Server("skillwire", version=__version__, instructions=_INSTRUCTIONS)
        install(self.server, self.skills)
        listen = add_listening(self.server, self.skills)
        assert listen is not None, "a new server serves no streams of its own"
        self.listen: ListenHandler = listen
        self.hot = HotAnswers(self.skills, self.server)
