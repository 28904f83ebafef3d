"""One name for each skill of a server, for dialects that know skills by name."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from itertools import count

from skillwire.core.entry import SkillEntry
from skillwire.core.fields import MAX_NAME, is_name
from skillwire.sources import Snapshot

_TAIL = 8


class Names:
    """The names of one snapshot's skills, and the way back from a name to its skill.

    A skill keeps its own name where no other has it. Where names repeat, all
    that share one are called by their paths (P2076-11): `acme/billing/refunds`
    becomes `acme-billing-refunds`, which is itself a name by the rules of the
    format, as dialects that limit names to them ask for. A path that is no name
    even so, or gives one that is taken, is told apart by some digits of a hash
    of the URI. The same snapshot always gives the same names.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.by_uri: Mapping[str, str] = _named(snapshot)
        self._uris = {name: uri for uri, name in self.by_uri.items()}

    def of(self, entry: SkillEntry) -> str:
        """Return the name of a skill; one that came after this snapshot has its own."""
        return self.by_uri.get(entry.uri.text, entry.name)

    def find(self, name: str) -> SkillEntry | None:
        """Return the skill that has a name, if one has."""
        uri = self._uris.get(name)
        return None if uri is None else self.snapshot.by_uri[uri]


def names_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Map the URI of each skill to a name that no other has."""
    return Names(snapshot).by_uri


def _named(snapshot: Snapshot) -> dict[str, str]:
    repeats = Counter(entry.name for entry in snapshot.entries)
    named = {entry.uri.text: entry.name for entry in snapshot.entries if repeats[entry.name] == 1}
    taken = set(named.values())
    others = [entry for entry in snapshot.entries if repeats[entry.name] > 1]
    wanted = {entry.uri.text: _from_path(entry.uri.path) for entry in others}
    claims = Counter(wanted.values())
    for uri, name in wanted.items():
        if claims[name] == 1 and is_name(name) and name not in taken:
            named[uri] = name
    taken.update(named.values())
    for uri in sorted(wanted.keys() - named.keys()):
        named[uri] = _told_apart(wanted[uri], uri, taken)
        taken.add(named[uri])
    return named


def _from_path(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")


def _told_apart(name: str, uri: str, taken: set[str]) -> str:
    stem = name[: MAX_NAME - _TAIL - 1].strip("-") or "skill"
    for attempt in count():  # It ends: only so many names are taken.
        digits = hashlib.sha256(f"{attempt} {uri}".encode()).hexdigest()[:_TAIL]
        if f"{stem}-{digits}" not in taken:
            return f"{stem}-{digits}"
    raise AssertionError("there are more numbers than names")
