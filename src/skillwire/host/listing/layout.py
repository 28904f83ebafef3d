"""The section of a list with one origin's skills, fitted into a number of bytes."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from skillwire.core import SKILL_FILE
from skillwire.host.listing.rows import ListingRow, ListingRows, RowDescription, Shown
from skillwire.host.listing.text import REMOVED, ChangeMark, ListingWriter, OriginHeading, Wording, clean
from skillwire.host.model import BYTES_PER_TOKEN, KnownSkill, TokenCounter, estimated_tokens, size_of
from skillwire.host.use.present import max_min_shares

OriginKey: TypeAlias = tuple[bool, str]
"""Whether an origin is a server, and its label: the key of an origin in a list."""

_DETAILED_ROOM = 1_000


@dataclass(frozen=True, slots=True)
class OriginContents:
    """What can be shown of one origin; both sequences are in the order of the list.

    `pins` come first and in full, and skills in `names_only` without
    description. `unlisted` is the number of further skills that cannot be
    listed. `marks` are changes by reference, and `qualifier` describes the
    skills that are only counted. `note` replaces the skills of an origin that
    has not listed any yet.
    """

    key: OriginKey
    heading: OriginHeading
    pins: Sequence[KnownSkill] = ()
    others: Sequence[KnownSkill] = ()
    names_only: frozenset[str] = frozenset()
    unlisted: int = 0
    marks: Mapping[str, ChangeMark] | None = None
    qualifier: str = ""
    note: str = ""

    @property
    def count(self) -> int:
        return len(self.pins) + len(self.others) + self.unlisted

    @property
    def has_lines(self) -> bool:
        return bool(self.pins or self.others)


@dataclass(frozen=True, slots=True)
class SectionLayout:
    """What is shown of one origin: rows with their descriptions, and the number of skills left out."""

    section: "Section"
    shown: tuple[Shown, ...]
    left_out: int
    more: str

    def text(self) -> str:
        heading, writer = self.section.contents.heading, self.section.writer
        lines = [
            writer.line(heading, row.reference, text, row.mark, row.location) for row, text in self.shown
        ]
        return writer.section(heading, lines, self.more)


class Section:
    """One origin's contents in one form, and their size."""

    def __init__(self, contents: OriginContents, writer: ListingWriter, wording: Wording) -> None:
        self.contents = contents
        self.writer = writer
        self._wording = wording
        self._marks = contents.marks or {}
        self._overhead = size_of(writer.section(contents.heading, (), "")) + len(writer.separator)
        with_text = writer.line(contents.heading, "x", "x", None)
        self._about = len(with_text) - len(writer.line(contents.heading, "x", "", None)) - 1
        self._pins = ListingRows(contents.pins, self._row, writer.text, self._about)
        self._others = ListingRows(contents.others, self._row, writer.text, self._about)
        self._minimum = 0

    @property
    def count(self) -> int:
        return self.contents.count

    @property
    def can_be_shown(self) -> bool:
        """Whether there is a line to show: a skill, a replacement or a note."""
        return self.contents.has_lines or self.contents.heading.is_replaced or bool(self.contents.note)

    @property
    def minimum(self) -> int:
        """The number of bytes below which no skill of this origin can be shown."""
        if not self._minimum:
            least = self._overhead + self._more_size()
            if self.contents.has_lines:
                least += (self._pins if self.contents.pins else self._others).minimum()
            self._minimum = min(least, self.demand(least))
        return self._minimum

    def demand(self, limit: int) -> int:
        """Return the size of everything in full, or a number above `limit`."""
        has_more = self.contents.unlisted or not self.contents.has_lines
        fixed = self._overhead + (self._more_size() if has_more else 0)
        return fixed + self._pins.full(limit) + self._others.full(limit)

    def pinned(self, limit: int) -> int:
        """Return the size of the pinned skills in full, or a number above `limit`."""
        return self._pins.full(limit)

    def arrange(self, room: int) -> SectionLayout:
        """Lay out as much as fits: pins in full, then all names, then descriptions of one length."""
        if self.demand(room) <= room:
            shown = (*self._pins.everything(), *self._others.everything())
            return SectionLayout(self, shown, self.contents.unlisted, self._more(self.contents.unlisted))
        room -= self._overhead
        is_all_named = not self.contents.unlisted and self._pins.full(room) + self._others.names(room) <= room
        is_detailed = not is_all_named and room >= _DETAILED_ROOM
        if not is_all_named:
            room -= self._more_size(is_detailed)
        pins, room = self._pins.fitted(room)
        others, _ = self._others.fitted(room)
        left = self.count - len(pins) - len(others)
        detail = ""
        if left and is_detailed:
            detail = self._others.groups.text({row.skill.reference for row, _ in others})
        return SectionLayout(self, (*pins, *others), left, self._more(left, detail))

    def _row(self, skill: KnownSkill) -> ListingRow:
        contents, writer, mark = self.contents, self.writer, self._marks.get(skill.reference)
        head = writer.reference(skill.reference)
        location = ""
        if skill.directory is not None and mark is not REMOVED:
            location = writer.location(str(skill.directory / SKILL_FILE))
        bare = size_of(writer.line(contents.heading, head, "", mark, location)) + len(writer.separator)
        return ListingRow(skill, head, mark, bare, self._describe, location)

    def _describe(self, skill: KnownSkill) -> RowDescription:
        text, is_cut = (
            ("", False) if skill.reference in self.contents.names_only else clean(skill.description)
        )
        if not text:
            return RowDescription()
        escaped = self.writer.text(text)
        return RowDescription(text, escaped, size_of(escaped) + self._about, is_cut)

    def _more_size(self, is_detailed: bool = False) -> int:
        """Return the maximum size of the line about skills that are left out."""
        detail = self._others.groups.text() if is_detailed else ""
        return size_of(self._more(self.count + 1, detail)) + len(self.writer.separator)

    def _more(self, left: int, detail: str = "") -> str:
        contents = self.contents
        if not left and contents.has_lines:
            return ""
        words = contents.note or self._wording.more(left, detail, qualifier=contents.qualifier)
        return self.writer.more(contents.heading, words, left)


# Sharing the size of a list between origins, so that no server can crowd out another.


@dataclass(frozen=True, slots=True)
class ListLayout:
    """A list that fits: its text, and what is shown of each origin."""

    text: str
    sections: tuple[SectionLayout, ...]
    left_out: int

    @property
    def is_complete(self) -> bool:
        """Whether everything is shown in full, so that more space would change nothing."""
        return not self.left_out and all(
            text == item.description.escaped for part in self.sections for item, text in part.shown
        )


def lay_out(
    sections: Sequence[Section],
    writer: ListingWriter,
    wording: Wording,
    room: int,
    caps: Mapping[OriginKey, int],
) -> ListLayout | None:
    """Lay out as much as fits into `room` bytes and the caps of single servers; None when nothing fits."""
    separator = len(writer.separator)
    total = sum(section.count for section in sections)
    room -= size_of(writer.document(wording, (), "")) + separator
    shown = _sections_shown(sections, room, caps)
    if len(shown) < len(sections):
        rest = writer.rest(wording.rest(total + 1, len(sections) + 1), total)
        room -= size_of(rest) + separator
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
    text = writer.document(wording, [part.text() for part in arranged], rest)
    return ListLayout(text, arranged, unseen + sum(part.left_out for part in arranged))


def _sections_shown(sections: Sequence[Section], room: int, caps: Mapping[OriginKey, int]) -> list[Section]:
    """Return the origins of which something fits: as many as possible."""
    least = {
        id(section): section.minimum
        for section in sections
        if section.can_be_shown and section.minimum <= _cap(section, caps)
    }
    needed = sum(least.values())
    for key in sorted(least, key=least.__getitem__, reverse=True):
        if needed <= room:
            break
        needed -= least.pop(key)
    return [section for section in sections if id(section) in least]


def _shares(shown: Sequence[Section], room: int, caps: Mapping[OriginKey, int]) -> list[int]:
    """Return the bytes that each origin may take; their sum is at most `room`."""
    shares = [section.minimum for section in shown]
    room -= sum(shares)
    for demand in (_with_pins, Section.demand):
        wants = [
            partial(_shortfall, demand, section, share, _cap(section, caps))
            for section, share in zip(shown, shares, strict=True)
        ]
        granted = max_min_shares(room, wants)
        shares = [share + more for share, more in zip(shares, granted, strict=True)]
        room -= sum(granted)
    return shares


def _with_pins(section: Section, limit: int) -> int:
    return section.minimum + section.pinned(limit)


def _shortfall(
    demand: Callable[[Section, int], int], section: Section, share: int, cap: int, limit: int
) -> int:
    """Return the bytes that a section still lacks, within its cap, or a number above `limit`."""
    return min(demand(section, share + limit), cap) - share


def _cap(section: Section, caps: Mapping[OriginKey, int]) -> int:
    return caps.get(section.contents.key, sys.maxsize)


# Fitting a list into a number of tokens, for any token counter.


_MAX_TRIES: Final = 10
_MAX_GROWTHS: Final = 3
_MARGIN: Final = 0.98
_GOOD_ENOUGH: Final = 0.95


def fit(
    sections: Sequence[Section],
    writer: ListingWriter,
    wording: Wording,
    budget: int,
    caps: Mapping[OriginKey, int],
    count: TokenCounter,
) -> tuple[ListLayout, int] | None:
    """Return the layout that makes the best use of `budget` tokens, and its tokens; None if none fits."""
    return _BudgetFit(sections, writer, wording, budget, caps, count).best() if budget > 0 else None


class _BudgetFit:
    def __init__(
        self,
        sections: Sequence[Section],
        writer: ListingWriter,
        wording: Wording,
        budget: int,
        caps: Mapping[OriginKey, int],
        count: TokenCounter,
    ) -> None:
        self._sections = sections
        self._writer = writer
        self._wording = wording
        self._budget = budget
        self._caps = caps
        self._count = count
        self._factors = dict.fromkeys(caps, 1.0)

    def best(self) -> tuple[ListLayout, int] | None:
        """Search for the largest size in bytes that fits: by proportion first, then by bisection."""
        room = self._budget * BYTES_PER_TOKEN
        fits = too_much = growths = 0
        best: tuple[ListLayout, int] | None = None
        is_estimate = self._count is estimated_tokens
        for _ in range(_MAX_TRIES):
            layout = self._layout(room)
            if layout is None:
                # Nothing fits into so few bytes, but this counter may count few tokens in more bytes.
                if best or too_much or is_estimate or growths == _MAX_GROWTHS:
                    return best
                room, growths = room * 2, growths + 1
                continue
            tokens = self._count(layout.text)
            if tokens > self._budget:
                too_much = room
            elif self._exceeds_cap(layout):
                continue
            else:
                is_the_same = best is not None and best[0].text == layout.text
                fits, best = room, (layout, tokens)
                # The estimate follows from the bytes, so more room would exceed the budget.
                is_good = is_estimate or tokens >= self._budget * _GOOD_ENOUGH
                if is_good or is_the_same or layout.is_complete or growths == _MAX_GROWTHS:
                    return best
                growths += 1
            guess = int(room * self._budget / max(tokens, 1) * _MARGIN)
            if too_much and not fits < guess < too_much:
                guess = (fits + too_much) // 2
            if guess <= fits:
                return best
            room = guess
        return best or self._without_capped()

    def _layout(self, room: int) -> ListLayout | None:
        per_token = room / self._budget
        caps = {key: int(cap * per_token * self._factors[key]) for key, cap in self._caps.items()}
        return lay_out(self._sections, self._writer, self._wording, room, caps)

    def _exceeds_cap(self, layout: ListLayout) -> bool:
        """Return whether a server exceeds its cap, and reduce its share for the next layout."""
        is_over = False
        for part in layout.sections:
            key = part.section.contents.key
            if key in self._caps:
                tokens = self._count(part.text())
                if tokens > self._caps[key]:
                    self._factors[key] *= max(self._caps[key], 0) / tokens * _MARGIN
                    is_over = True
        return is_over

    def _without_capped(self) -> tuple[ListLayout, int] | None:
        """Return a layout without the servers that have a cap, for counters with which no cap can be met."""
        self._factors = dict.fromkeys(self._factors, 0.0)
        room = self._budget * BYTES_PER_TOKEN
        while (layout := self._layout(room)) is not None:
            tokens = self._count(layout.text)
            if tokens <= self._budget:
                return layout, tokens
            room //= 2
        return None
