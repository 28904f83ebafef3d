"""`Sight`: which skills someone may see, and whose scripts they may run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from skillwire.core.characters import quoted
from skillwire.core.uri import SKILL_FILE, SkillUri
from skillwire.errors import InvalidUriError

EVERYTHING: Final = "*"


@dataclass(frozen=True, slots=True)
class Sight:
    """Places in the tree of URIs: each allows what is there and everything below it.

    A place is the canonical URI of a directory, such as `skill://acme/billing`,
    or `*` for all there is. Nothing can be taken out of a place again, so that
    a skill is never in sight without the skills inside it, whose files are its
    own. `runs` are the places whose scripts may be run, as far as they are in
    sight; `operates` allows to see how the server does.
    """

    places: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    operates: bool = False

    def sees(self, uri: SkillUri) -> bool:
        """Tell whether a skill is in sight."""
        return _covers(self.places, uri)

    def may_run(self, uri: SkillUri) -> bool:
        """Tell whether scripts of a skill may be run."""
        return _covers(self.runs, uri) and _covers(self.places, uri)

    @property
    def is_whole(self) -> bool:
        """Whether everything is in sight."""
        return self.places == (EVERYTHING,)

    def __or__(self, other: "Sight") -> "Sight":
        """Return what two sights come to together."""
        return Sight(
            merged((*self.places, *other.places)),
            merged((*self.runs, *other.runs)),
            self.operates or other.operates,
        )


def place(text: str) -> str:
    """Return the place that someone wrote: `acme/billing`, `docs://handbook`, or `*`.

    Raises:
        InvalidUriError: It cannot be the URI of a directory.
    """
    if text == EVERYTHING:
        return text
    if EVERYTHING in text:
        raise InvalidUriError(
            f"{quoted(text)} is no place: `*` stands alone, for everything",
            fix="name a folder; what is below it is meant too",
        )
    path = text.strip("/")
    if "://" in text:
        return SkillUri.parse(f"{text.rstrip('/')}/{SKILL_FILE}").root
    return SkillUri.build(path).root


def merged(places: Iterable[str]) -> tuple[str, ...]:
    """Return the fewest places that allow the same, sorted; equal sights are then equal values."""
    found: list[str] = []
    for one in sorted(set(places)):
        if one == EVERYTHING:
            return (EVERYTHING,)
        if not any(one.startswith(f"{outer}/") for outer in found):
            found.append(one)
    return tuple(found)


def _covers(places: tuple[str, ...], uri: SkillUri) -> bool:
    root = uri.root
    return any(one in (EVERYTHING, root) or root.startswith(f"{one}/") for one in places)


ALL: Final = Sight((EVERYTHING,), (EVERYTHING,), operates=True)
NOTHING: Final = Sight()
