"""`Voice`: how one server talks about its skills, and what a voice may use to talk back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from mcp.client import Client
from mcp.types import METHOD_NOT_FOUND, Request

from skillwire.core.archive import ArchiveFormat
from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.errors import NotFoundError, SkillError
from skillwire.host.calls.declaration import declared
from skillwire.host.calls.enumeration import Listing
from skillwire.host.calls.exchange import Answer, ask
from skillwire.host.calls.paging import Limits
from skillwire.host.calls.reading import read_skill_uri
from skillwire.host.calls.resources import read_resource
from skillwire.host.connections.link import Link
from skillwire.host.failures import PeerError
from skillwire.wire.dialect import Dialect

MAX_INDEX_BYTES: Final = 32 * 1024 * 1024
"""How large an index may be; it is refused before anything of it is parsed."""


@dataclass(frozen=True, slots=True)
class Hearing:
    """How a server is to be heard.

    `formats` are the archives that policy lets this host unpack, none by
    default (ARC-18). `dialect` is the only one to be spoken, where the user
    said so. `limits` bound every listing, and `seconds` all of one call.
    """

    formats: frozenset[ArchiveFormat] = frozenset()
    dialect: Dialect | None = None
    limits: Limits = field(default_factory=Limits)
    seconds: float | None = None


class Peer:
    """A connected server, as voices see it."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def client(self) -> Client:
        return self._link.client

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the server declared, as it came: the SDK keeps only what its own models know."""
        return self._link.capabilities

    @property
    def declares_extension(self) -> bool:
        return declared(self.client) is not None

    @property
    def skills_capability(self) -> Mapping[str, Any] | None:
        """The capability `skills`, which the dialects that know skills by name declare (NEG-11)."""
        found = self.capabilities.get("skills")
        return cast(Mapping[str, Any], found) if isinstance(found, dict) else None

    @property
    def has_resources(self) -> bool:
        return self.client.server_capabilities.resources is not None

    @property
    def has_prompts(self) -> bool:
        return self.client.server_capabilities.prompts is not None

    async def read(self, uri: str, *, max_bytes: int) -> bytes:
        """Read one resource of at most `max_bytes`; see `reading.read_skill_uri`.

        Raises:
            NotFoundError: The server has no such resource.
            SkillError: It cannot be had.
        """
        with self._link.cap.allowing(max_bytes):
            return await read_skill_uri(self.client, uri, fresh=True, max_bytes=max_bytes, max_seconds=None)

    async def read_any(self, uri: str, *, max_bytes: int) -> bytes:
        """Read one resource of any scheme, spelled as the server spells it; see `resources.read_resource`.

        Raises:
            NotFoundError: The server has no such resource.
            SkillError: It cannot be had.
        """
        with self._link.cap.allowing(max_bytes):
            found = await read_resource(self.client, uri, max_bytes=max_bytes, max_seconds=None)
        return found.content

    async def ask(self, request: Request[Any, Any], *, max_bytes: int) -> Answer:
        """Send one request whose answer may hold a text of `max_bytes`; see `exchange.ask`.

        Raises:
            SkillError: There is no usable answer.
        """
        with self._link.cap.allowing(max_bytes):
            return await ask(self.client, request)


class Voice(Protocol):
    """One dialect, as one server speaks it. What it raises is always a `SkillError`.

    A voice remembers what it needs to read what it listed; it is used for as
    long as the connection lasts on which it was found.
    """

    @property
    def dialect(self) -> Dialect: ...

    async def list(self, peer: Peer, hearing: Hearing) -> Listing:
        """Return everything the server lists, one bad entry costing only itself."""
        ...

    async def get(self, peer: Peer, uri: SkillUri) -> SkillEntry:
        """Return the current entry of one skill, listed or not, with all that can be known of it.

        Raises:
            NotFoundError: The server serves no such skill.
        """
        ...

    async def read(self, peer: Peer, uri: str, *, max_bytes: int) -> bytes:
        """Return the bytes of a file of a skill, or of an archive that an entry names, unverified.

        Raises:
            NotFoundError: The server serves no such file.
        """
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """A voice, and the first listing, which showed that the server speaks it.

    The last resort is a voice that only might be the server's: any dialect
    that it turns out to speak is preferred.
    """

    voice: Voice
    listing: Listing
    is_last_resort: bool = False


def is_absent(error: SkillError) -> bool:
    """Tell whether an error only says that the server does not have what was asked for."""
    return isinstance(error, NotFoundError) or (
        isinstance(error, PeerError) and error.peer_code == METHOD_NOT_FOUND
    )


async def heard(voice: Voice, peer: Peer, hearing: Hearing) -> Found | None:
    """Return a voice with what the server lists in it; None when the server does not know the method.

    Raises:
        SkillError: It does, and the listing cannot be had.
    """
    try:
        return Found(voice, await voice.list(peer, hearing))
    except PeerError as error:
        if is_absent(error):
            return None
        raise
