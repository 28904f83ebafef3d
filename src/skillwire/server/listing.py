"""`Listing`: which skills a server lists, of all that it serves.

A skill that is not listed is served all the same: `skills/get`, reading,
directories, completion, archives, names and the search answer for every skill.
An author keeps one out of listings, or asks for it to be listed first of all,
in `metadata` under our prefix:

    metadata:
      skillwire/listed: "false"
      skillwire/pinned: "true"
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Final

from skillwire.core.entry import SkillEntry
from skillwire.core.yaml12 import JsonValue
from skillwire.server.access.sight import Sight, merged, place

LISTED: Final = "skillwire/listed"
PINNED: Final = "skillwire/pinned"


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

    def of(self, entries: tuple[SkillEntry, ...], unlisted: Collection[str] = ()) -> tuple[SkillEntry, ...]:
        """Return the entries that are listed, in their order; `unlisted` are the URIs of more that are not.

        When all are, it is the same tuple.
        """
        return Lister(self, unlisted).of(entries)

    def hides(self, entry: SkillEntry) -> bool:
        """Tell whether a skill is never listed."""
        if self.unlisted and Sight(self.unlisted).sees(entry.uri):
            return True
        return _said(entry, LISTED) is False

    def pins_down(self, entry: SkillEntry) -> bool:
        """Tell whether a skill is listed also when there are too many."""
        return bool(_said(entry, PINNED)) or Sight(self.pins).sees(entry.uri)


EVERYTHING_LISTED: Final = Listing()


class Lister:
    """Lists what a `Listing` says of one tuple of entries after the other. Any thread may ask.

    What was there before is not judged again: a change of one skill among very
    many costs little. `unlisted` are the URIs of more that are not listed, and
    may change.
    """

    def __init__(self, listing: Listing, unlisted: Collection[str] = ()) -> None:
        self._listing = listing
        self._unlisted = unlisted
        self._last = _Judged()

    def of(self, entries: tuple[SkillEntry, ...]) -> tuple[SkillEntry, ...]:
        """Return the entries that are listed, in their order; when all are, it is the same tuple."""
        judged = self._last = self._last.followed_by(entries, self._listing)
        listed, hidden, unlisted, most = entries, judged.hidden, self._unlisted, self._listing.most
        if hidden or unlisted:
            shown = [e for e in entries if id(e) not in hidden and e.uri.text not in unlisted]
            listed = entries if len(shown) == len(entries) else tuple(shown)
        if most is None or len(listed) <= most:
            return listed
        return tuple([entry for entry in listed if id(entry) in judged.pinned])


@dataclass(frozen=True, slots=True)
class _Judged:
    """What became of some entries, known by their identity, which nothing else has while they are here."""

    entries: tuple[SkillEntry, ...] = ()
    hidden: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()

    def followed_by(self, entries: tuple[SkillEntry, ...], listing: Listing) -> "_Judged":
        """Return the same about other entries; only those are judged that were not here."""
        before = self.entries
        start = _common(before, entries)
        end = _common(before[start:][::-1], entries[start:][::-1])
        gone = {id(entry) for entry in before[start : len(before) - end]}
        now = entries[start : len(entries) - end]
        new = [entry for entry in now if id(entry) not in gone]
        gone.difference_update(map(id, now))
        hidden = {id(entry) for entry in new if listing.hides(entry)}
        pinned = {id(entry) for entry in new if listing.most is not None and listing.pins_down(entry)}
        return _Judged(entries, self.hidden - gone | hidden, self.pinned - gone | pinned)


def _common(some: Sequence[object], others: Sequence[object]) -> int:
    """Return how many objects are the same at the beginning of both."""
    same = map(is_, some, others)
    return next((place for place, is_same in enumerate(same) if not is_same), min(len(some), len(others)))


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
