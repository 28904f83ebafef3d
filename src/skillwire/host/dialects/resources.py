"""Walking `resources/list` for skills: within limits, and scoped where the server may know scopes."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final, Literal

from mcp.types import CONNECTION_CLOSED, PaginatedRequestParams, Request

from skillwire.core.uri import DEFAULT_SCHEME
from skillwire.errors import SkillError
from skillwire.host.calls.enumeration import Freshness
from skillwire.host.calls.exchange import within
from skillwire.host.calls.paging import Limits, Pager
from skillwire.host.dialects.voice import Hearing, Peer
from skillwire.host.failures import EndlessListingError, InvalidAnswerError, PeerError, TooSlowError
from skillwire.sources.garbage import collector_paused
from skillwire.wire.core import LIST_RESOURCES
from skillwire.wire.index import INDEX_URI
from skillwire.wire.march import ListedResource, parse_resource

ALL_SKILLS: Final = f"{DEFAULT_SCHEME}://"
"""The scope of every skill (DRAFT-07)."""

UNASKED: Final = Limits(max_pages=32, max_entries=10_000, max_bytes=16 * 1024 * 1024)
"""How much is looked through of a server that never said it had skills."""

_FEW = 20


class _ScopeParams(PaginatedRequestParams):
    """Parameters for a page of one place; without `uri`, of everything."""

    uri: str | None = None


class _ListRequest(Request[_ScopeParams, Literal["resources/list"]]):
    method: Literal["resources/list"] = LIST_RESOURCES


@dataclass(frozen=True, slots=True)
class Resources:
    """What a server lists, as far as skills go; `problem` says why the listing breaks off, if it does."""

    items: tuple[ListedResource, ...]
    freshness: Freshness
    problem: SkillError | None = None

    @property
    def has_index(self) -> bool:
        """Whether the index of skills is among them, which tells more than they do."""
        return any(item.uri == INDEX_URI for item in self.items)


async def walk(peer: Peer, hearing: Hearing, *, scope: str = ALL_SKILLS) -> Resources:
    """Ask for all resources: only those in `scope`, where the server declared skills and knows scopes.

    A server that does not know scopes answers with everything, or refuses and
    is asked for everything. What came before a problem is kept, with the problem.

    Raises:
        SkillError: Not even a first page came.
    """
    if not peer.declares_extension:
        few = Limits(
            min(hearing.limits.max_pages, UNASKED.max_pages),
            min(hearing.limits.max_entries, UNASKED.max_entries),
            min(hearing.limits.max_bytes, UNASKED.max_bytes),
        )
        return await _walk(peer, replace(hearing, limits=few), None)
    try:
        return await _walk(peer, hearing, scope)
    except PeerError as error:
        if is_closed(error):
            raise
    return await _walk(peer, hearing, None)


def is_closed(error: SkillError) -> bool:
    """Tell whether the connection ended, which says nothing about what was asked for."""
    return isinstance(error, PeerError) and error.peer_code == CONNECTION_CLOSED


async def _walk(peer: Peer, hearing: Hearing, scope: str | None) -> Resources:
    def request_for(cursor: str | None) -> _ListRequest:
        return _ListRequest(params=_ScopeParams(cursor=cursor, uri=scope))

    pager = Pager(peer.client, request_for, member="resources", limits=hearing.limits)
    items: list[ListedResource] = []
    seen, freshness = 0, Freshness()
    try:
        with within(hearing.seconds, LIST_RESOURCES):
            while (page := await pager.next_page()) is not None:
                if page.is_first:
                    items, seen, freshness = [], 0, Freshness()
                freshness.take(page.answer)
                with collector_paused() if len(page.items) > _FEW else nullcontext():
                    found = (parse_resource(seen + place, item) for place, item in enumerate(page.items))
                    items += [item for item in found if item is not None]
                seen += len(page.items)
    except (EndlessListingError, InvalidAnswerError, PeerError, TooSlowError) as error:
        if freshness.is_empty or is_closed(error):
            raise
        return Resources(tuple(items), freshness, error)
    return Resources(tuple(items), freshness)
