"""`Listing`: which skills a server lists, of all that it serves.

A skill that is not listed is served all the same: `skills/get`, reading,
directories, completion, archives, names and the search answer for every skill.
An author keeps one out of listings, or asks for it to be listed first of all,
in `metadata` under our prefix:

    metadata:
      skillwire/listed: "false"
      skillwire/pinned: "true"
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from skillwire.core.entry import SkillEntry
from skillwire.core.yaml12 import JsonValue
from skillwire.server.access.sight import Sight, merged, place

LISTED: Final = "skillwire/listed"
PINNED: Final = "skillwire/pinned"

_NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server lists: everything but what lies in `unlisted` places, and of too much only the pinned.

    Places are written as `acme/billing`, and stand for what is there and
    everything below. When more than `most` skills would be listed, only those
    in the places of `pins` are, and those whose authors pinned them. What is
    unlisted stays so, pinned or not. The order is always that of the URIs.
    """

    pins: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    most: int | None = None

    def __post_init__(self) -> None:
        """Bring places into their canonical form.

        Raises:
            InvalidUriError: A place can be the URI of no directory.
            ValueError: `most` is negative.
        """
        if self.most is not None and self.most < 0:
            raise ValueError("most must not be negative")
        object.__setattr__(self, "pins", merged(map(place, self.pins)))
        object.__setattr__(self, "unlisted", merged(map(place, self.unlisted)))

    def of(
        self, entries: tuple[SkillEntry, ...], unlisted: Container[str] = _NOBODY
    ) -> tuple[SkillEntry, ...]:
        """Return the entries that are listed, in their order; `unlisted` are the URIs of more that are not.

        When all are, it is the same tuple.
        """
        hidden = Sight(self.unlisted)
        listed = tuple(
            [
                entry
                for entry in entries
                if _said(entry, LISTED) is not False
                and not (self.unlisted and hidden.sees(entry.uri))
                and entry.uri.text not in unlisted
            ]
        )
        if len(listed) == len(entries):
            listed = entries
        if self.most is None or len(listed) <= self.most:
            return listed
        pinned = Sight(self.pins)
        return tuple(entry for entry in listed if _said(entry, PINNED) or pinned.sees(entry.uri))


EVERYTHING_LISTED: Final = Listing()


def _said(entry: SkillEntry, key: str) -> bool | None:
    """Return what an author says about listing a skill; None when nothing that can be understood."""
    metadata = entry.frontmatter.fields.get("metadata")
    if not isinstance(metadata, dict) or key not in metadata:
        return None
    return _truth(metadata[key])


def _truth(value: JsonValue) -> bool | None:
    """Read yes or no. `metadata` maps strings to strings, and authors forget the quotes."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else None
