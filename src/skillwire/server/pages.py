"""Cutting listings into pages, bounded by count and by bytes."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from skillwire.core.entry import SkillEntry
from skillwire.server.bytecache import ByteCache
from skillwire.wire.core import LIST_SKILLS, write_entry
from skillwire.wire.cursor import write_cursor

Item = TypeVar("Item")

DEFAULT_PAGE_SIZE = 250
"""Skills to a page: far below the limit in bytes, and so many that a large catalog takes few requests."""
# Some clients refuse a message of more than 1 MiB; the rest of it is the envelope's.
MAX_PAGE_BYTES = 900_000
_KEPT_BYTES = 24 * 1024 * 1024

_TEXT = attrgetter("uri.text")


@dataclass(frozen=True, slots=True)
class Page:
    """Entries `start` to `stop` of a listing, written as the items of a JSON array.

    `ending` closes the array, and names the cursor of the next page if there is one.
    """

    start: int
    stop: int
    items: bytes
    ending: bytes
    next_cursor: str | None

    @property
    def is_last(self) -> bool:
        return self.next_cursor is None


def _as_it_is(entry: SkillEntry) -> SkillEntry:
    return entry


class EntryPages:
    """The pages of `skills/list` over the entries that are listed, each written once and then kept.

    `entries` are sorted by URI. A page begins after a URI, not at a number, so
    that it can be asked for by whoever holds a cursor of another snapshot or
    another process. `completed` adds to an entry what else is said about it.
    """

    def __init__(
        self,
        entries: tuple[SkillEntry, ...],
        page_size: int,
        completed: Callable[[SkillEntry], SkillEntry] = _as_it_is,
        *,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        self.entries = entries
        self._page_size = page_size
        self._completed = completed
        self._kept_bytes = kept_bytes
        self._kept: ByteCache[int, Page] = ByteCache(kept_bytes)

    def after(self, uri: str | None) -> Page:
        """Return the page that begins after the entry at `uri`, or the first."""
        entries = self.entries
        start = 0 if uri is None else bisect_right(entries, uri, key=_TEXT)
        page = self._kept.get(start)
        if page is None:
            page = self._written(start)
            self._kept.put(start, page, len(page.items))
        return page

    def for_entries(self, entries: tuple[SkillEntry, ...]) -> "EntryPages":
        """Return the pages of a newer listing, taking over those whose entries are the same objects."""
        pages = EntryPages(entries, self._page_size, self._completed, kept_bytes=self._kept_bytes)
        before, now = self.entries, entries
        for start, page, size in self._kept.items():
            same = len(now) >= page.stop and all(
                old is new for old, new in zip(before[start : page.stop], now[start : page.stop], strict=True)
            )
            if same and page.is_last == (page.stop == len(now)):
                pages._kept.put(start, page, size)
        return pages

    def _written(self, start: int) -> Page:
        entries = self.entries
        written, stop = cut(
            entries, start, self._page_size, lambda entry: write_entry(self._completed(entry))
        )
        cursor = None if stop == len(entries) else write_cursor(LIST_SKILLS, entries[stop - 1].uri.text)
        ending = b"]" if cursor is None else f'],"nextCursor":"{cursor}"'.encode()
        return Page(start, stop, b",".join(written), ending, cursor)


def cut(
    items: Sequence[Item], start: int, count: int, write: Callable[[Item], bytes]
) -> tuple[list[bytes], int]:
    """Write items from `start` on until a page is full, and say where it ends.

    A page holds at least one item, however large, because nothing can be split.
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
