"""Lines for the skills of one origin, fitted into the room they are given.

Room is counted in bytes here. Of a large origin only as many skills are looked
at closely as could fit.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TypeAlias

from skillwire.host.listing.cleaning import ELLIPSIS, cut
from skillwire.host.listing.groups import Groups
from skillwire.host.listing.sharing import level
from skillwire.host.listing.tokens import size_of
from skillwire.host.listing.writing import Mark
from skillwire.host.registry.known import KnownSkill

# Models pay little heed to bare names, so where only some skills fit, each is meant to come with so many
# bytes of its description, or so many, or none: as many as leave a line for every group.
_WITH_EACH = (80, 40, 0)
_MOST_MISSES = 50
_MOST_SKIPPED = 4
_REFINEMENTS = 3
_ELLIPSIS_SIZE = size_of(ELLIPSIS)


@dataclass(frozen=True, slots=True)
class Description:
    """What could be shown of a description: all of it takes `size` bytes, with what stands around it."""

    text: str = ""
    escaped: str = ""
    size: int = 0
    is_cut: bool = False


@dataclass(frozen=True)
class Item:
    """One skill as it could be shown: its line takes `bare` bytes without the description."""

    skill: KnownSkill
    head: str
    mark: Mark | None
    bare: int
    describe: Callable[[KnownSkill], Description]

    @cached_property
    def description(self) -> Description:
        """The description, cleaned when it is first needed: most are not."""
        return self.describe(self.skill)

    @property
    def wanted(self) -> int:
        return self.description.size


Shown: TypeAlias = tuple[Item, str]
"""A skill, and as much of its description as it got."""


class Running:
    """A sum that is only drawn up as far as anyone asks."""

    def __init__(self, costs: Iterable[int]) -> None:
        self._costs = iter(costs)
        self._sum = 0
        self._is_whole = False

    def up_to(self, limit: int) -> int:
        """Return the sum, or some number larger than `limit` when the sum is."""
        while not self._is_whole and self._sum <= limit:
            cost = next(self._costs, None)
            if cost is None:
                self._is_whole = True
            else:
                self._sum += cost
        return self._sum


class Rows:
    """Skills of one origin that are treated alike, sorted by reference.

    `about` is what a description costs besides itself, and `escape` what its
    text goes through.
    """

    def __init__(
        self,
        skills: Sequence[KnownSkill],
        make: Callable[[KnownSkill], Item],
        escape: Callable[[str], str],
        about: int,
    ) -> None:
        self.skills = skills
        self._make = make
        self._escape = escape
        self._about = about
        self._items: dict[str, Item] = {}
        self._names = Running(self._item(skill).bare for skill in skills)
        self._full = Running(item.bare + item.wanted for item in map(self._item, skills))

    def names(self, limit: int) -> int:
        """Return the bytes that all lines take without descriptions, or more than `limit`."""
        return self._names.up_to(limit)

    def full(self, limit: int) -> int:
        """Return the bytes that all lines take with whole descriptions, or more than `limit`."""
        return self._full.up_to(limit)

    def least(self) -> int:
        """Return the bytes from which on one skill at least is shown."""
        return self._item(self.groups.first).bare

    @cached_property
    def groups(self) -> Groups:
        return Groups.of(self.skills)

    def everything(self) -> list[Shown]:
        return [(item, item.description.escaped) for item in map(self._item, self.skills)]

    def fitted(self, room: int) -> tuple[list[Shown], int]:
        """Show as many skills as fit, then as much of every description; return them and what room is left.

        All skills get a line, or else those that come first when their groups
        take turns. Descriptions are cut to one length, the longest that fits.
        """
        if self.names(room) <= room:
            items = list(map(self._item, self.skills))
        else:
            items = sorted(self._picked(room), key=lambda item: item.skill.reference)
        return self._described(items, room - sum(item.bare for item in items))

    def _item(self, skill: KnownSkill) -> Item:
        item = self._items.get(skill.reference)
        if item is None:
            item = self._items[skill.reference] = self._make(skill)
        return item

    def _picked(self, room: int) -> list[Item]:
        groups = self.groups
        picked: list[Item] = []
        for each in _WITH_EACH:
            if each and groups.count * (len(groups.shortest) + each) > room:
                continue
            picked, visited = self._around(room, each)
            if visited == groups.count:
                break
        return picked

    def _around(self, room: int, each: int) -> tuple[list[Item], int]:
        """Take skills from all groups in turn; return them, and how many groups got a line."""
        picked: list[Item] = []
        queues = self.groups.queues()
        visited = 0
        while queues:
            is_first = not picked
            going = list[Iterable[KnownSkill]]()
            misses = 0
            for queue in queues:
                item = self._next(queue, room, each)
                if item is not None:
                    picked.append(item)
                    room -= item.bare + min(item.wanted, each)
                    going.append(queue)
                    misses = 0
                elif (misses := misses + 1) == _MOST_MISSES:
                    break
            if is_first:
                visited = len(going)
            queues = going
        return picked, visited

    def _next(self, queue: Iterable[KnownSkill], room: int, each: int) -> Item | None:
        """Take the next skill of a group that fits; a few long names do not end the group."""
        for skill in islice(queue, _MOST_SKIPPED):
            if len(skill.reference) < room:
                item = self._item(skill)
                if item.bare + min(item.wanted, each) <= room:
                    return item
        return None

    def _described(self, items: Sequence[Item], room: int) -> tuple[list[Shown], int]:
        wants = [item.wanted for item in items]
        if (whole := sum(wants)) <= room:
            return [(item, item.description.escaped) for item in items], room - whole
        length = level(room, wants)
        texts, used = self._cut_to(items, length)
        # Cutting at words leaves something over, which lengthens the others.
        for _ in range(_REFINEMENTS):
            longer = length + (room - used) // max(sum(want > length for want in wants), 1)
            if longer == length:
                break
            more_texts, needed = self._cut_to(items, longer)
            if needed > room:
                break
            length, texts, used = longer, more_texts, needed
        return list(zip(items, texts, strict=True)), room - used

    def _cut_to(self, items: Iterable[Item], length: int) -> tuple[list[str], int]:
        texts = [
            item.description.escaped if item.wanted <= length else self._cut(item, length) for item in items
        ]
        return texts, sum(size_of(text) + self._about for text in texts if text)

    def _cut(self, item: Item, length: int) -> str:
        """Return the beginning of a description that takes at most `length` bytes with all it entails."""
        room = length - self._about - _ELLIPSIS_SIZE
        size = room
        while size > 0:
            escaped = self._escape(cut(item.description.text, size))
            if not escaped:
                break
            if (needed := size_of(escaped)) <= room:
                return escaped + ELLIPSIS
            # Escapes have made it longer, so less of it fits.
            size = min(size - 1, size * room // needed)
        return ""
