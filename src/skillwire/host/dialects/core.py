"""The released extension: `skills/list` and `skills/get`, every file with a digest."""

from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.host.calls.enumeration import Listing, list_skills
from skillwire.host.calls.retrieval import get_skill
from skillwire.host.dialects.voice import Found, Hearing, Peer, heard
from skillwire.wire.dialect import Dialect


class CoreVoice:
    """A server that keeps to the released extension."""

    dialect = Dialect.CORE

    async def list(self, peer: Peer, hearing: Hearing) -> Listing:
        limits = hearing.limits
        return await list_skills(
            peer.client,
            max_pages=limits.max_pages,
            max_entries=limits.max_entries,
            max_bytes=limits.max_bytes,
            max_seconds=hearing.seconds,
            keep_partial=True,
        )

    async def get(self, peer: Peer, uri: SkillUri) -> SkillEntry:
        return await get_skill(peer.client, uri, max_seconds=None)

    async def read(self, peer: Peer, uri: str, *, max_bytes: int) -> bytes:
        return await peer.read(uri, max_bytes=max_bytes)


async def find(peer: Peer, hearing: Hearing) -> Found | None:
    """Return this voice if the server declared the extension and knows `skills/list`."""
    if not peer.declares_extension:
        return None
    voice = CoreVoice()
    return await heard(voice, peer, hearing)
