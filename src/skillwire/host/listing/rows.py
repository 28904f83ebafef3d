"""Lines for the skills of one origin, fitted into a number of bytes.

Of a large origin, only as many skills are processed as could fit.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

from skillwire.core import SKILL_FILE
from skillwire.host.listing.text import ELLIPSIS, ChangeMark, cut, groups_text
from skillwire.host.model import KnownSkill, size_of

# Groups of one origin's skills by path, so that a short list can include all groups.


_MOST_NAMED = 6
_LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class SkillGroups:
    """Skills grouped by the first path segment in which they differ; skills at that level form one group.

    Within a group, skills are sorted by reference.
    """

    members: Mapping[str, Sequence[KnownSkill]]

    @classmethod
    def of(cls, skills: Sequence[KnownSkill]) -> "SkillGroups":
        paths = _paths_of(skills)
        shared = _shared(paths)
        prefix = shared.rfind("/") + 1
        members: dict[str, list[KnownSkill]] = {}
        for path, skill in zip(paths, skills, strict=True):
            name, _, rest = path[prefix:].partition("/")
            if rest == SKILL_FILE:
                name = ""
            if name in members:
                members[name].append(skill)
            else:
                members[name] = [skill]
        return cls(dict(sorted(members.items())))

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def first(self) -> KnownSkill:
        return next(iter(self.members.values()))[0]

    @property
    def shortest(self) -> str:
        """The shortest reference among the first of each group."""
        return min((group[0].reference for group in self.members.values()), key=len)

    def queues(self) -> list[Iterator[KnownSkill]]:
        return [iter(group) for group in self.members.values()]

    def text(self, shown: Collection[str] = ()) -> str:
        """Return a text with the number of skills of the largest groups that are not in `shown`."""
        if self.count < 2:
            return ""
        left = {
            name: sum(skill.reference not in shown for skill in group) if shown else len(group)
            for name, group in self.members.items()
        }
        fit = [name for name in self.members if 0 < len(name) <= _LONGEST_NAME]
        largest = sorted(fit, key=lambda name: (-len(self.members[name]), name))[:_MOST_NAMED]
        others = sum(count > 0 for name, count in left.items() if name not in largest)
        return groups_text([(name, left[name]) for name in largest], others, sum(left.values()))


def _paths_of(skills: Sequence[KnownSkill]) -> list[str]:
    """Return the URIs of skills, without their schemes where these differ."""
    uris = list(map(attrgetter("id.uri"), skills))
    if "://" in _shared(uris):
        return uris
    return [uri.partition("://")[2] for uri in uris]


def _shared(texts: Sequence[str]) -> str:
    """Return the common prefix of all texts."""
    first, last = min(texts, default=""), max(texts, default="")
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((index for index, (one, other) in pairs if one != other), len(first))]


def common_limit(total: int, wants: Sequence[int]) -> int:
    """Return the highest common limit for all demands with which their sum is at most `total`."""
    left = max(total, 0)
    for place, want in enumerate(sorted(wants)):
        equal = left // (len(wants) - place)
        if want > equal:
            return equal
        left -= want
    return max(wants, default=0)


# Models rarely use bare names, so if only some skills fit, reserve this many bytes for each description:
# the first size that leaves a line for every group.
_DESCRIPTION_SIZES = (80, 40, 0)
_MOST_MISSES = 50
_MOST_SKIPPED = 4
_REFINEMENTS = 3
_ELLIPSIS_SIZE = size_of(ELLIPSIS)


@dataclass(frozen=True, slots=True)
class RowDescription:
    """A description to show: in full it takes `size` bytes, with the markup around it."""

    text: str = ""
    escaped: str = ""
    size: int = 0
    is_cut: bool = False


@dataclass(frozen=True)
class ListingRow:
    """The line of one skill: it takes `name_size` bytes without the description."""

    skill: KnownSkill
    reference: str
    mark: ChangeMark | None
    name_size: int
    describe: Callable[[KnownSkill], RowDescription]
    location: str = ""

    @cached_property
    def description(self) -> RowDescription:
        """The description, cleaned at first use, because most are not needed."""
        return self.describe(self.skill)

    @property
    def description_size(self) -> int:
        return self.description.size


Shown: TypeAlias = tuple[ListingRow, str]
"""A row, and the part of its description that is shown."""


class LazySum:
    """A sum that is computed only up to the requested limit."""

    def __init__(self, costs: Iterable[int]) -> None:
        self._costs = iter(costs)
        self._sum = 0
        self._is_complete = False

    def up_to(self, limit: int) -> int:
        """Return the sum, or any number larger than `limit` if the sum is larger."""
        while not self._is_complete and self._sum <= limit:
            cost = next(self._costs, None)
            if cost is None:
                self._is_complete = True
            else:
                self._sum += cost
        return self._sum


class ListingRows:
    """The rows of one origin's pinned or other skills, sorted by reference.

    `about` is the size of the markup around a description, and `escape`
    escapes its text.
    """

    def __init__(
        self,
        skills: Sequence[KnownSkill],
        make: Callable[[KnownSkill], ListingRow],
        escape: Callable[[str], str],
        about: int,
    ) -> None:
        self.skills = skills
        self._make = make
        self._escape = escape
        self._about = about
        self._rows: dict[str, ListingRow] = {}
        self._names = LazySum(self._row(skill).name_size for skill in skills)
        self._full = LazySum(row.name_size + row.description_size for row in map(self._row, skills))

    def names(self, limit: int) -> int:
        """Return the size of all lines without descriptions, or a number above `limit`."""
        return self._names.up_to(limit)

    def full(self, limit: int) -> int:
        """Return the size of all lines with full descriptions, or a number above `limit`."""
        return self._full.up_to(limit)

    def minimum(self) -> int:
        """Return the number of bytes from which on at least one skill is shown."""
        return self._row(self.groups.first).name_size

    @cached_property
    def groups(self) -> SkillGroups:
        return SkillGroups.of(self.skills)

    def everything(self) -> list[Shown]:
        return [(row, row.description.escaped) for row in map(self._row, self.skills)]

    def fitted(self, room: int) -> tuple[list[Shown], int]:
        """Return the rows that fit, with descriptions as long as fit, and the bytes that are left.

        If not all skills fit, rows are taken from the groups in turn.
        Descriptions are truncated to one common length, the longest that fits.
        """
        if self.names(room) <= room:
            rows = list(map(self._row, self.skills))
        else:
            rows = sorted(self._selected(room), key=lambda row: row.skill.reference)
        return self._described(rows, room - sum(row.name_size for row in rows))

    def _row(self, skill: KnownSkill) -> ListingRow:
        row = self._rows.get(skill.reference)
        if row is None:
            row = self._rows[skill.reference] = self._make(skill)
        return row

    def _selected(self, room: int) -> list[ListingRow]:
        groups = self.groups
        picked: list[ListingRow] = []
        for each in _DESCRIPTION_SIZES:
            if each and groups.count * (len(groups.shortest) + each) > room:
                continue
            picked, visited = self._round_robin(room, each)
            if visited == groups.count:
                break
        return picked

    def _round_robin(self, room: int, each: int) -> tuple[list[ListingRow], int]:
        """Take rows from all groups in turn; return them, and the number of groups with a row."""
        picked: list[ListingRow] = []
        queues = self.groups.queues()
        visited = 0
        while queues:
            is_first = not picked
            going = list[Iterable[KnownSkill]]()
            misses = 0
            for queue in queues:
                row = self._next(queue, room, each)
                if row is not None:
                    picked.append(row)
                    room -= row.name_size + min(row.description_size, each)
                    going.append(queue)
                    misses = 0
                elif (misses := misses + 1) == _MOST_MISSES:
                    break
            if is_first:
                visited = len(going)
            queues = going
        return picked, visited

    def _next(self, queue: Iterable[KnownSkill], room: int, each: int) -> ListingRow | None:
        """Return the next row of a group that fits, skipping a few long names."""
        for skill in islice(queue, _MOST_SKIPPED):
            if len(skill.reference) < room:
                row = self._row(skill)
                if row.name_size + min(row.description_size, each) <= room:
                    return row
        return None

    def _described(self, rows: Sequence[ListingRow], room: int) -> tuple[list[Shown], int]:
        wants = [row.description_size for row in rows]
        if (whole := sum(wants)) <= room:
            return [(row, row.description.escaped) for row in rows], room - whole
        length = common_limit(room, wants)
        texts, used = self._cut_to(rows, length)
        # Cutting at words leaves some bytes unused, which go to the other descriptions.
        for _ in range(_REFINEMENTS):
            longer = length + (room - used) // max(sum(want > length for want in wants), 1)
            if longer == length:
                break
            more_texts, needed = self._cut_to(rows, longer)
            if needed > room:
                break
            length, texts, used = longer, more_texts, needed
        return list(zip(rows, texts, strict=True)), room - used

    def _cut_to(self, rows: Iterable[ListingRow], length: int) -> tuple[list[str], int]:
        texts = [
            row.description.escaped if row.description_size <= length else self._cut(row, length)
            for row in rows
        ]
        return texts, sum(size_of(text) + self._about for text in texts if text)

    def _cut(self, row: ListingRow, length: int) -> str:
        """Return the start of a description that takes at most `length` bytes with its markup."""
        room = length - self._about - _ELLIPSIS_SIZE
        size = room
        while size > 0:
            escaped = self._escape(cut(row.description.text, size))
            if not escaped:
                break
            if (needed := size_of(escaped)) <= room:
                return escaped + ELLIPSIS
            # Escaping made it longer, so less of it fits.
            size = min(size - 1, size * room // needed)
        return ""
