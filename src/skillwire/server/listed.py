"""`ListedSkills`: which skills are listed, and the pages of them."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass
from operator import attrgetter, is_, itemgetter
from typing import TypeVar

from skillwire.core import ByteCache, SkillEntry
from skillwire.server.limits import DEFAULT_PAGE_SIZE
from skillwire.server.meta import NO_ANNOTATIONS, MetaAnnotator
from skillwire.server.visibility import EVERYTHING_LISTED, ListingRules
from skillwire.sources.snapshot import RangedEntries, Snapshot, entries_after
from skillwire.wire.core import LIST_SKILLS, write_cursor, write_entry

Item = TypeVar("Item")

# Some clients refuse a message of more than 1 MiB; the rest is for the envelope.
MAX_PAGE_BYTES = 900_000
# Enough for the pages that clients repeat. All pages of 10,000 skills take 10 MiB and 35 ms to write.
_PAGE_BYTES = 512 * 1024

_ENTRY_URI = attrgetter("uri.text")


@dataclass(frozen=True, slots=True)
class _EntryPage:
    """Entries `start` to `stop` of a listing, written as the members `skills` and `nextCursor`."""

    start: int
    stop: int
    members: bytes
    is_last: bool


class ListedSkills:
    """The listed skills of one snapshot, and their pages as `skills/list` carries them. Thread-safe.

    `unlisted` are URIs to leave out besides those that the rules hide, and may
    change between two updates. A page begins after a URI, not at a number, so
    that a cursor works across snapshots and processes. `annotator` adds `_meta`
    to an entry. Written pages are cached: to write a page of 100 takes 580 us,
    and over stdio the budget of a repeated page would be missed.
    """

    def __init__(
        self,
        rules: ListingRules = EVERYTHING_LISTED,
        unlisted: Collection[str] = (),
        *,
        page_size: int = DEFAULT_PAGE_SIZE,
        annotator: MetaAnnotator = NO_ANNOTATIONS,
    ) -> None:
        self.entries: tuple[SkillEntry, ...] = ()
        """The listed entries, sorted by URI."""
        self._rules = rules
        self._unlisted = unlisted
        self._page_size = page_size
        self._annotator = annotator
        self._snapshot = Snapshot.of(())
        # The ids of hidden and pinned entries; an id is unique because the snapshot holds the objects.
        self._hidden: frozenset[int] = frozenset()
        self._pinned: frozenset[int] = frozenset()
        self._pages: ByteCache[int, _EntryPage] = ByteCache(_PAGE_BYTES)

    @property
    def cached_bytes(self) -> int:
        """The size of the cached pages in bytes."""
        return self._pages.size

    def update(self, snapshot: Snapshot) -> "ListedSkills":
        """Return the listing of another snapshot.

        Only new entries are checked, and pages whose entries are the same
        objects are reused, so a change of one skill among many costs little.
        """
        if snapshot is self._snapshot:
            return self
        listing = copy(self)
        listing._snapshot = snapshot
        listing._pages = ByteCache(_PAGE_BYTES)
        entries = tuple(snapshot.entries)
        listing._check(tuple(self._snapshot.entries), entries)
        listing.entries = listing._listed(entries)
        before, now = self.entries, listing.entries
        for start, page, size in self._pages.items():
            same = len(now) >= page.stop and all(map(is_, before[start : page.stop], now[start : page.stop]))
            if same and page.is_last == (page.stop == len(now)):
                listing._pages.put(start, page, size)
        return listing

    def after(self, uri: str | None) -> bytes:
        """Return the page that begins after the entry at `uri`, or the first: the members of a result.

        The object is not closed, so that more members can follow.
        """
        start = 0 if uri is None else bisect_right(self.entries, uri, key=_ENTRY_URI)
        page = self._pages.get(start)
        if page is None:
            page = self._write_page(start)
            self._pages.put(start, page, len(page.members))
        return page.members

    def includes(self, entry: SkillEntry) -> bool:
        """Return whether a skill is listed."""
        position = bisect_left(self.entries, entry.uri.text, key=_ENTRY_URI)
        return position < len(self.entries) and self.entries[position].uri == entry.uri

    def _check(self, before: tuple[SkillEntry, ...], entries: tuple[SkillEntry, ...]) -> None:
        """Apply the rules to the entries that are new, and forget those that are gone."""
        start = _common_length(before, entries)
        end = _common_length(before[start:][::-1], entries[start:][::-1])
        gone = {id(entry) for entry in before[start : len(before) - end]}
        now = entries[start : len(entries) - end]
        new = [entry for entry in now if id(entry) not in gone]
        gone.difference_update(map(id, now))
        rules = self._rules
        hidden = {id(entry) for entry in new if rules.is_hidden(entry)}
        pinned = {id(entry) for entry in new if rules.most is not None and rules.is_pinned(entry)}
        self._hidden, self._pinned = self._hidden - gone | hidden, self._pinned - gone | pinned

    def _listed(self, entries: tuple[SkillEntry, ...]) -> tuple[SkillEntry, ...]:
        listed, hidden, unlisted, most = entries, self._hidden, self._unlisted, self._rules.most
        if hidden or unlisted:
            shown = [e for e in entries if id(e) not in hidden and e.uri.text not in unlisted]
            listed = entries if len(shown) == len(entries) else tuple(shown)
        if most is None or len(listed) <= most:
            return listed
        return tuple([entry for entry in listed if id(entry) in self._pinned])

    def _write_page(self, start: int) -> _EntryPage:
        entries = self.entries
        written, stop = cut(
            entries, start, self._page_size, lambda entry: write_entry(self._annotator.entry(entry))
        )
        is_last = stop == len(entries)
        return _EntryPage(
            start, stop, _members(written, "" if is_last else entries[stop - 1].uri.text), is_last
        )


class StoredListing:
    """The listed skills of a snapshot in a database, with the same pages as those of `ListedSkills`.

    Thread-safe. Only the pages that are repeated are in memory.
    """

    def __init__(
        self,
        rules: ListingRules,
        entries: RangedEntries,
        *,
        page_size: int = DEFAULT_PAGE_SIZE,
        annotator: MetaAnnotator = NO_ANNOTATIONS,
    ) -> None:
        self.entries = entries.listed(unlisted=rules.unlisted, pins=rules.pins, most=rules.most)
        """The listed entries, sorted by URI."""
        self._rules = rules
        self._whole = entries
        self._page_size = page_size
        self._annotator = annotator
        self._pages: ByteCache[str | None, bytes] = ByteCache(_PAGE_BYTES)

    @property
    def cached_bytes(self) -> int:
        """The size of the cached pages in bytes."""
        return self._pages.size

    def update(self, snapshot: Snapshot) -> "StoredListing":
        """Return the listing of another snapshot."""
        entries = snapshot.entries
        if entries is self._whole or not isinstance(entries, RangedEntries):
            return self
        return StoredListing(self._rules, entries, page_size=self._page_size, annotator=self._annotator)

    def after(self, uri: str | None) -> bytes:
        """Return the page that begins after the entry at `uri`, or the first, as `ListedSkills` does."""
        page = self._pages.get(uri)
        if page is None:
            page = self._write_page(entries_after(self.entries, uri))
            self._pages.put(uri, page, len(page))
        return page

    def includes(self, entry: SkillEntry) -> bool:
        """Return whether a skill is listed."""
        return entry in self.entries

    def _write_page(self, rest: Sequence[SkillEntry]) -> bytes:
        if self._annotator.annotate is None and isinstance(rest, RangedEntries):
            found = rest.written(self._page_size + 1)
        else:
            found = [
                (entry.uri.text, write_entry(self._annotator.entry(entry)))
                for entry in rest[: self._page_size + 1]
            ]
        written, stop = cut(found, 0, self._page_size, itemgetter(1))
        return _members(written, "" if stop == len(found) else found[stop - 1][0])


def _members(written: Sequence[bytes], last: str) -> bytes:
    """Return the members of a page whose last entry is at the URI `last`, if more entries follow."""
    ending = f'],"nextCursor":"{write_cursor(LIST_SKILLS, last)}"'.encode() if last else b"]"
    return b"".join((b'"skills":[', b",".join(written), ending))


def _common_length(some: Sequence[object], others: Sequence[object]) -> int:
    """Return the length of the common prefix, compared by identity."""
    same = map(is_, some, others)
    return next((index for index, is_same in enumerate(same) if not is_same), min(len(some), len(others)))


def cut(
    items: Sequence[Item], start: int, count: int, write: Callable[[Item], bytes]
) -> tuple[list[bytes], int]:
    """Write items from `start` on until a page is full; return them and the end position.

    A page has at least one item, however large.
    """
    written: list[bytes] = []
    room = MAX_PAGE_BYTES
    stop = start
    for item in items[start : start + count]:
        text = write(item)
        room -= len(text) + 1
        if room < 0 and written:
            break
        written.append(text)
        stop += 1
    return written, stop
