"""Sharing the room of a list between origins: no server can crowd out another.

Every origin first gets room for one line. Then come the skills the user has
pinned, wherever they are from, and then all others; each time, what is left is
shared out so that large wants take nothing from small ones.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from skillwire.host.listing.sections import Arranged, OriginKey, Section
from skillwire.host.listing.sharing import fill
from skillwire.host.listing.tokens import size_of
from skillwire.host.listing.wording import Wording
from skillwire.host.listing.writing import Writer


@dataclass(frozen=True, slots=True)
class Laid:
    """A list as it would be given: the text, and what of each origin is in it."""

    text: str
    arranged: tuple[Arranged, ...]
    left: int

    @property
    def is_whole(self) -> bool:
        """Whether everything is shown in full, so that more room would change nothing."""
        return not self.left and all(
            text == item.description.escaped for part in self.arranged for item, text in part.shown
        )


def lay_out(
    sections: Sequence[Section], writer: Writer, wording: Wording, room: int, caps: Mapping[OriginKey, int]
) -> Laid | None:
    """Show as much as fits into `room` bytes, and of single servers into theirs; None when nothing does."""
    between = len(writer.between)
    total = sum(section.count for section in sections)
    room -= size_of(writer.whole(wording, (), "")) + between
    shown = _sections_shown(sections, room, caps)
    if len(shown) < len(sections):
        rest = writer.rest(wording.rest(total + 1, len(sections) + 1), total)
        room -= size_of(rest) + between
        shown = _sections_shown(sections, room, caps)
    if not shown:
        return None
    arranged = tuple(
        section.arrange(share) for section, share in zip(shown, _shares(shown, room, caps), strict=True)
    )
    seen = set(map(id, shown))
    hidden = [section for section in sections if id(section) not in seen]
    unseen = sum(section.count for section in hidden)
    rest = writer.rest(wording.rest(unseen, len(hidden)), unseen) if unseen else ""
    text = writer.whole(wording, [part.written() for part in arranged], rest)
    return Laid(text, arranged, unseen + sum(part.left for part in arranged))


def _sections_shown(sections: Sequence[Section], room: int, caps: Mapping[OriginKey, int]) -> list[Section]:
    """Return the origins of which something can be shown: as many as possible."""
    least = {
        id(section): section.least
        for section in sections
        if section.can_be_shown and section.least <= _cap(section, caps)
    }
    needed = sum(least.values())
    for key in sorted(least, key=least.__getitem__, reverse=True):
        if needed <= room:
            break
        needed -= least.pop(key)
    return [section for section in sections if id(section) in least]


def _shares(shown: Sequence[Section], room: int, caps: Mapping[OriginKey, int]) -> list[int]:
    """Return the bytes that each origin may take; together they are at most `room`."""
    shares = [section.least for section in shown]
    room -= sum(shares)
    for demand in (_with_pins, Section.demand):
        wants = [
            partial(_missing, demand, section, share, _cap(section, caps))
            for section, share in zip(shown, shares, strict=True)
        ]
        granted = fill(room, wants)
        shares = [share + more for share, more in zip(shares, granted, strict=True)]
        room -= sum(granted)
    return shares


def _with_pins(section: Section, limit: int) -> int:
    return section.least + section.pinned(limit)


def _missing(
    demand: Callable[[Section, int], int], section: Section, share: int, cap: int, limit: int
) -> int:
    """Return how many bytes a section lacks to have what it demands and may have, or more than `limit`."""
    return min(demand(section, share + limit), cap) - share


def _cap(section: Section, caps: Mapping[OriginKey, int]) -> int:
    return caps.get(section.contents.key, sys.maxsize)
