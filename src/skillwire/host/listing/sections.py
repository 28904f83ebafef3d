"""The part of a list that holds one origin's skills, fitted into the bytes it is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from skillwire.host.listing.cleaning import clean
from skillwire.host.listing.rows import Description, Item, Rows, Shown
from skillwire.host.listing.tokens import size_of
from skillwire.host.listing.wording import Place, Wording
from skillwire.host.listing.writing import Mark, Writer
from skillwire.host.registry.known import KnownSkill

OriginKey: TypeAlias = tuple[bool, str]
"""Whether an origin is a server, and its label: what a list knows an origin by."""

_DETAILED_ROOM = 1_000


@dataclass(frozen=True, slots=True)
class Contents:
    """What there is to show of one origin; both sequences are in the order of a list.

    `pins` come first and in full, and skills in `bare` without description.
    `unlisted` are so many more that no line could hold. `marks` say what
    happened to a skill, and `sort` what all the others have in common.
    """

    key: OriginKey
    place: Place
    pins: Sequence[KnownSkill] = ()
    others: Sequence[KnownSkill] = ()
    bare: frozenset[str] = frozenset()
    unlisted: int = 0
    marks: Mapping[str, Mark] | None = None
    sort: str = ""

    @property
    def count(self) -> int:
        return len(self.pins) + len(self.others) + self.unlisted

    @property
    def has_lines(self) -> bool:
        return bool(self.pins or self.others)


@dataclass(frozen=True, slots=True)
class Arranged:
    """What is shown of one origin: each skill with the description it got, and how many are left out."""

    section: "Section"
    shown: tuple[Shown, ...]
    left: int
    more: str

    def written(self) -> str:
        place, writer = self.section.contents.place, self.section.writer
        lines = [writer.line(place, item.head, text, item.mark) for item, text in self.shown]
        return writer.section(place, lines, self.more)


class Section:
    """One origin's contents in one form, and what they cost there."""

    def __init__(self, contents: Contents, writer: Writer, wording: Wording) -> None:
        self.contents = contents
        self.writer = writer
        self._wording = wording
        self._marks = contents.marks or {}
        self._overhead = size_of(writer.section(contents.place, (), "")) + len(writer.between)
        with_text = writer.line(contents.place, "x", "x", None)
        self._about = len(with_text) - len(writer.line(contents.place, "x", "", None)) - 1
        self._pins = Rows(contents.pins, self._made, writer.text, self._about)
        self._others = Rows(contents.others, self._made, writer.text, self._about)
        self._least = 0

    @property
    def count(self) -> int:
        return self.contents.count

    @property
    def can_be_shown(self) -> bool:
        """Whether there is a line to show, or one that says there is none any more."""
        return self.contents.has_lines or self.contents.place.is_replaced

    @property
    def least(self) -> int:
        """The bytes below which no skill of this origin can be shown."""
        if not self._least:
            least = self._overhead + self._more_size()
            if self.contents.has_lines:
                least += (self._pins if self.contents.pins else self._others).least()
            self._least = min(least, self.demand(least))
        return self._least

    def demand(self, limit: int) -> int:
        """Return the bytes that showing everything in full takes, or more than `limit`."""
        has_more = self.contents.unlisted or not self.contents.has_lines
        fixed = self._overhead + (self._more_size() if has_more else 0)
        return fixed + self._pins.full(limit) + self._others.full(limit)

    def pinned(self, limit: int) -> int:
        """Return the bytes that the pinned skills take in full, or more than `limit`."""
        return self._pins.full(limit)

    def arrange(self, room: int) -> Arranged:
        """Show as much as fits: pins in full, then a name for everyone, then descriptions of one length."""
        if self.demand(room) <= room:
            shown = (*self._pins.everything(), *self._others.everything())
            return Arranged(self, shown, self.contents.unlisted, self._more(self.contents.unlisted))
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
            detail = self._others.groups.text({item.skill.reference for item, _ in others})
        return Arranged(self, (*pins, *others), left, self._more(left, detail))

    def _made(self, skill: KnownSkill) -> Item:
        contents, writer, mark = self.contents, self.writer, self._marks.get(skill.reference)
        head = writer.reference(skill.reference)
        bare = size_of(writer.line(contents.place, head, "", mark)) + len(writer.between)
        return Item(skill, head, mark, bare, self._describe)

    def _describe(self, skill: KnownSkill) -> Description:
        text, is_cut = ("", False) if skill.reference in self.contents.bare else clean(skill.description)
        if not text:
            return Description()
        escaped = self.writer.text(text)
        return Description(text, escaped, size_of(escaped) + self._about, is_cut)

    def _more_size(self, is_detailed: bool = False) -> int:
        """Return the bytes that the line about what is left out takes at most."""
        detail = self._others.groups.text() if is_detailed else ""
        return size_of(self._more(self.count + 1, detail)) + len(self.writer.between)

    def _more(self, left: int, detail: str = "") -> str:
        contents = self.contents
        if not left and contents.has_lines:
            return ""
        words = self._wording.more(left, detail, sort=contents.sort)
        return self.writer.more(contents.place, words, left)
