"""What became of an origin's skills while a host watched: which are gone, and which are called otherwise.

A reader who has a reference in a note, or a model that has one in its context,
is told why it means nothing any more, or something longer (ASK-34).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from skillwire.core.characters import quoted
from skillwire.host.refusals import Refusal
from skillwire.host.registry.known import KnownSkill

MAX_TOLD: Final = 100
"""How many skills of one origin are remembered as gone, and how many as called otherwise; the oldest go."""


class Aftermath:
    """What one origin listed before and does not list now, since the host was opened.

    A skill that comes back is forgotten here, as is one that gets its old
    reference back.
    """

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._gone: dict[str, str] = {}
        self._first: dict[str, str] = {}
        self._now: dict[str, str] = {}

    def take(self, skills: Iterable[KnownSkill]) -> None:
        """Take all that an origin lists now; what came only in part tells nothing about the rest."""
        now = {skill.id.uri: skill.reference for skill in skills if skill.is_listed}
        for uri, reference in self._before.items():
            current = now.get(uri)
            if current is None:
                self._gone[uri] = reference
            elif current != reference:
                self._first.setdefault(uri, reference)
        self._gone = _bounded({uri: was for uri, was in self._gone.items() if uri not in now})
        self._first = _bounded({uri: was for uri, was in self._first.items() if now.get(uri, was) != was})
        self._before, self._now = now, {uri: now[uri] for uri in self._first}

    def notices(self) -> Iterator[Refusal]:
        """Say what is gone, and what goes by another reference."""
        taken = set(self._before.values())
        for uri, was in self._gone.items():
            other = "; another skill goes by this reference now" if was in taken else ""
            yield Refusal("vanished", was, f"it was {quoted(uri)}{other}")
        for uri, was in self._first.items():
            yield Refusal(
                "reference-changed", was, f"it is {self._now[uri]} now", candidates=(self._now[uri],)
            )


def _bounded(found: Mapping[str, str]) -> dict[str, str]:
    return dict(list(found.items())[-MAX_TOLD:])
