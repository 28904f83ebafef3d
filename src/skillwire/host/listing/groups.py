"""Groups of one origin's skills by where they lie, so that a list can go round them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from skillwire.core.uri import SKILL_FILE
from skillwire.host.listing.wording import groups_text
from skillwire.host.registry.known import KnownSkill

_MOST_NAMED = 6
_LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Groups:
    """Skills by the first segment of their paths in which they differ; those that lie there are one group.

    Within a group the order is that of the references.
    """

    members: Mapping[str, Sequence[KnownSkill]]

    @classmethod
    def of(cls, skills: Sequence[KnownSkill]) -> "Groups":
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
        """Say how many skills of the largest groups are not in `shown`, by reference."""
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
    """Return what all texts begin with."""
    first, last = min(texts, default=""), max(texts, default="")
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((index for index, (one, other) in pairs if one != other), len(first))]
