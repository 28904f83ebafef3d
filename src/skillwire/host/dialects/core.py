"""The released extension: `skills/list` and `skills/get`, every file with a digest."""

from skillwire.core import Dialect, SkillEntry, SkillUri
from skillwire.host.calls import Listing, get_skill, list_skills
from skillwire.host.dialects.base import DialectMatch, DialectOptions, Session, try_list


class CoreDialectClient:
    """A client for servers of the released extension."""

    dialect = Dialect.CORE

    async def list(self, session: Session, options: DialectOptions) -> Listing:
        limits = options.limits
        return await list_skills(
            session.client,
            max_pages=limits.max_pages,
            max_entries=limits.max_entries,
            max_bytes=limits.max_bytes,
            max_seconds=options.seconds,
            keep_partial=True,
        )

    async def get(self, session: Session, uri: SkillUri) -> SkillEntry:
        return await get_skill(session.client, uri, max_seconds=None)

    async def read(self, session: Session, uri: str, *, max_bytes: int) -> bytes:
        return await session.read(uri, max_bytes=max_bytes)


async def find(session: Session, options: DialectOptions) -> DialectMatch | None:
    """Return this client if the server declared the extension and supports `skills/list`."""
    if not session.declares_extension:
        return None
    client = CoreDialectClient()
    return await try_list(client, session, options)
