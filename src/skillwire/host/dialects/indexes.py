"""`skill://index.json`: reading it, telling its form, and the voice of servers that list their skills there.

An index that is missing says nothing about what a server serves (IDX-07), so
a server that declared the extension can still be asked for a skill by its URI.
One that is there and cannot be used costs its listing and is told to the user;
if the server speaks another dialect as well, that one is preferred.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import anyio.to_thread

from skillwire.core.entry import SkillEntry
from skillwire.core.strictjson import StrictJsonError, parse_strictly
from skillwire.core.uri import SkillUri
from skillwire.errors import InvalidEntryError, LimitError, NotFoundError
from skillwire.host.calls.enumeration import Listing
from skillwire.host.dialects.april import april_items
from skillwire.host.dialects.gathering import gathered
from skillwire.host.dialects.june import june_items
from skillwire.host.dialects.resources import is_closed
from skillwire.host.dialects.unlisted import entry_from_file
from skillwire.host.dialects.voice import MAX_INDEX_BYTES, Found, Hearing, Peer, is_absent
from skillwire.host.failures import (
    EndlessListingError,
    FloodError,
    InvalidAnswerError,
    MessageTooLargeError,
    PeerError,
)
from skillwire.sources.garbage import collector_paused
from skillwire.wire.april import schema_findings
from skillwire.wire.dialect import Dialect
from skillwire.wire.index import INDEX_URI, index_shape

_SHAPES = (Dialect.INDEX_JUNE, Dialect.INDEX_APRIL)
_SMALL = 64 * 1024

logger = logging.getLogger(__name__)


class IndexVoice:
    """A server that lists its skills in an index, of either form; a server may change from one to the other.

    A skill that is not in the index is read from its own `SKILL.md` when
    somebody names its URI. One that is in it and not used stays so.
    """

    def __init__(self, dialect: Dialect, hearing: Hearing, listed: frozenset[str] = frozenset()) -> None:
        self.dialect = dialect
        self._hearing = hearing
        self._listed = listed

    async def list(self, peer: Peer, hearing: Hearing) -> Listing:
        self._hearing = hearing
        listing = await _read(peer, hearing) or Listing((), dialect=self.dialect)
        self.dialect = listing.dialect
        if listing.problem is None:
            self._listed = frozenset(entry.uri.text for entry in listing.entries)
        return listing

    async def get(self, peer: Peer, uri: SkillUri) -> SkillEntry:
        listing = await _read(peer, self._hearing) or Listing((), dialect=self.dialect)
        for entry in listing.entries:
            if entry.uri == uri:
                return entry
        for refused in listing.refused:
            if refused.uri == uri.text:
                raise InvalidEntryError("; ".join(finding.message for finding in refused.findings))
        if listing.problem is not None and uri.text in self._listed:
            # Its file could be read, but no longer with the promise that the index makes about it.
            raise listing.problem
        return await entry_from_file(peer, uri, any_path=self._hearing.dialect is not None)

    async def read(self, peer: Peer, uri: str, *, max_bytes: int) -> bytes:
        return await peer.read(uri, max_bytes=max_bytes)


async def find(peer: Peer, hearing: Hearing) -> Found | None:
    """Return the voice of a server that declared the extension, whichever form its index has.

    Without a usable index it is the last resort: every skill can still be
    loaded by its URI. A dialect that the user chose needs no declaration.
    """
    is_chosen = hearing.dialect in _SHAPES and peer.has_resources
    return await hear(peer, hearing) if peer.declares_extension or is_chosen else None


async def find_april(peer: Peer, hearing: Hearing) -> Found | None:
    """Return the same voice, where the user chose the April form; `find` has tried both forms otherwise."""
    return await find(peer, hearing) if hearing.dialect is Dialect.INDEX_APRIL else None


async def hear(peer: Peer, hearing: Hearing) -> Found:
    """Read the index of a server that may be asked for it, and return the voice that goes with it.

    Raises:
        SkillError: The connection is lost.
    """
    listing = await _read(peer, hearing)
    is_usable = listing is not None and (listing.problem is None or bool(listing.entries))
    if listing is None:
        listing = Listing((), dialect=_chosen(hearing))
    elif listing.problem is not None:
        logger.warning("the index of skills cannot be used: %s", listing.problem)
    listed = frozenset(entry.uri.text for entry in listing.entries)
    return Found(IndexVoice(listing.dialect, hearing, listed), listing, is_last_resort=not is_usable)


async def _read(peer: Peer, hearing: Hearing) -> Listing | None:
    """Read the index; None when there is none, and an empty listing with its problem when it is of no use.

    Raises:
        SkillError: The connection is lost, which says nothing about the index.
    """
    most = min(MAX_INDEX_BYTES, hearing.limits.max_bytes)
    try:
        data = await peer.read(INDEX_URI, max_bytes=most)
        work = partial(listing_of, data, hearing)
        return work() if len(data) <= _SMALL else await anyio.to_thread.run_sync(work)
    except (MessageTooLargeError, FloodError):
        raise
    except LimitError as error:
        problem = EndlessListingError(f"the index of skills is larger than {most} bytes")
        problem.__cause__ = error
        return Listing((), problem=problem, dialect=_chosen(hearing))
    except (NotFoundError, PeerError, InvalidAnswerError) as error:
        if is_absent(error):
            return None
        if is_closed(error):
            raise
        return Listing((), problem=error, dialect=_chosen(hearing))


def _chosen(hearing: Hearing) -> Dialect:
    """Return the dialect of an index that nobody has seen."""
    return Dialect.INDEX_APRIL if hearing.dialect is Dialect.INDEX_APRIL else Dialect.INDEX_JUNE


def listing_of(data: bytes, hearing: Hearing) -> Listing:
    """Read an index, in the form it has; where the user chose one, in no other.

    Raises:
        InvalidAnswerError: This is no index, or none of a form that is known or wanted.
    """
    with collector_paused():
        value = _parsed(data)
        shape = index_shape(value)
        if shape is None:
            raise _useless("has a form that is not known", fix="ask the server's author for another form")
        index = cast(Mapping[str, object], value)
        skills = cast("list[object]", index["skills"])
        if hearing.dialect in _SHAPES and shape is not hearing.dialect:
            if not skills:
                return Listing((), dialect=_chosen(hearing))
            raise _useless(f"is written in {shape}, and {hearing.dialect} was chosen", fix=f"choose {shape}")
        if shape is Dialect.INDEX_APRIL and (findings := schema_findings(index.get("$schema"))):
            raise InvalidAnswerError(findings[0].message, violates=findings[0].rule)
        items_of = april_items if shape is Dialect.INDEX_APRIL else june_items
        most = hearing.limits.max_entries
        listing = gathered(items_of(skills[:most], hearing), shape)
        if len(skills) > most:
            problem = EndlessListingError(f"the index of skills has more than {most} entries")
            return replace(listing, problem=problem)
        return listing


def _parsed(data: bytes) -> object:
    """Parse JSON that every reader understands alike.

    Raises:
        InvalidAnswerError: It is none, repeats a key, or is larger or deeper than any index has to be.
    """
    try:
        return parse_strictly(data)
    except StrictJsonError as error:
        raise _useless(str(error)) from error


def _useless(what: str, *, fix: str = "") -> InvalidAnswerError:
    return InvalidAnswerError(f"the index at {INDEX_URI} {what}", violates="NEG-13", fix=fix)
