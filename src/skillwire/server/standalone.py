"""A server of our own that serves nothing but skills: what `skillwire serve` runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.subscriptions import ListenHandler

from skillwire import __version__
from skillwire.runner import Policy
from skillwire.server.answers import Terms
from skillwire.server.handlers import add_listening, install
from skillwire.server.hot import HotAnswers
from skillwire.server.listing import EVERYTHING_LISTED, Listing
from skillwire.server.notes import Notes
from skillwire.server.pages import DEFAULT_PAGE_SIZE
from skillwire.server.scripts import Scripts
from skillwire.server.skills import Skills
from skillwire.sources import Source

_INSTRUCTIONS = (
    "This server publishes Agent Skills: folders of instructions, each with a SKILL.md. "
    "A client that knows the extension lists them with skills/list; "
    "others find every SKILL.md among the resources."
)
_KEPT_OF_PART = 5 * 1024 * 1024
_FINDING = " The tool find_skills finds skills by words about a task, also such as are not listed."


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
    listing: Listing = EVERYTHING_LISTED
    more: Callable[[], Sequence[Source]] | None = None
    """Makes further sources, in the process that serves them."""

    def skills(self) -> Skills:
        """Return everything that is to be served, for everyone."""
        scripts = None if self.scripts is None else Scripts(self.scripts)
        origins = (*self.folders, *(self.more() if self.more is not None else ()))
        return self._of(origins, self.strict, scripts, self._terms)

    def part(self, sources: Sequence[Source], scripts: Scripts | None) -> Skills:
        """Return skills that are served on the same terms, though not to everyone.

        There may be many such parts, so each keeps little ready to be sent.
        """
        terms = replace(self._terms, cache_scope="private", kept_bytes=_KEPT_OF_PART)
        return self._of(sources, False, scripts, terms)

    @property
    def _terms(self) -> Terms:
        return Terms(page_size=self.page_size, ttl_ms=round(self.ttl * 1000))

    def _of(
        self, origins: Sequence[Path | Source], strict: bool, scripts: Scripts | None, terms: Terms
    ) -> Skills:
        return Skills(
            origins,
            terms=terms,
            prefix=self.prefix,
            watch=self.watch,
            strict=strict,
            follow_links=self.follow_links,
            dialects=self.dialects,
            notes=Notes(mirror=self.mirror),
            find_tool=self.find_tool,
            scripts=scripts,
            listing=self.listing,
        )


class Standalone:
    """A lowlevel server with the skills of an `Offer`, or part of them, and the ready answers about them."""

    def __init__(self, offer: Offer, skills: Skills | None = None) -> None:
        self.offer = offer
        self.skills = offer.skills() if skills is None else skills
        words = _INSTRUCTIONS + (_FINDING if offer.find_tool else "")
        self.server: Server[Any] = Server("skillwire", version=__version__, instructions=words)
        install(self.server, self.skills)
        listen = add_listening(self.server, self.skills)
        assert listen is not None, "a new server serves no streams of its own"
        self.listen: ListenHandler = listen
        self.hot = HotAnswers(self.skills, self.server)
