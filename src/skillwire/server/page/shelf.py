"""`Shelf`: what the page derives from a whole snapshot, kept until there is another one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from skillwire.core.entry import SkillEntry
from skillwire.core.relations import Relation, RelationGraph
from skillwire.core.uri import SKILL_FILE, segment_of
from skillwire.server.browsing import skills_below
from skillwire.server.page.addresses import place_of
from skillwire.sources import Snapshot

MAX_RELATED: Final = 20_000
"""In how many skills relations are looked for: they take all of them."""
_KEPT_FOLDERS = 32


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory that skills lie in and that is no skill: its address, its last segment, how many skills."""

    place: str
    name: str
    skills: int


class Shelf:
    """The skills of one view as people look through them. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._derived: _Derived | None = None

    def folders(self, snapshot: Snapshot, directory: str) -> tuple[Folder, ...]:
        """Return the folders right below a directory, sorted; below all there is if it is empty."""
        kept = self._of(snapshot).folders
        found = kept.get(directory)
        if found is None:
            found = _folders_below(snapshot, directory)
            if len(kept) < _KEPT_FOLDERS:
                kept[directory] = found
        return found

    def graph(self, snapshot: Snapshot) -> RelationGraph | None:
        """Return how the skills relate to each other, if any do and they are not too many."""
        return self._of(snapshot).graph

    def _of(self, snapshot: Snapshot) -> "_Derived":
        derived = self._derived
        if derived is None or derived.snapshot is not snapshot:
            derived = self._derived = _Derived(snapshot)
        return derived


class _Derived:
    """What was derived from one snapshot: a thread that is late adds to what nobody looks at any more."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.folders: dict[str, tuple[Folder, ...]] = {}

    @cached_property
    def graph(self) -> RelationGraph | None:
        entries = self.snapshot.entries
        if len(entries) <= MAX_RELATED and any(map(_has_relations, entries)):
            return RelationGraph.of(entries)
        return None


def entries_below(snapshot: Snapshot, directory: str) -> Sequence[SkillEntry]:
    """Return the skills below a directory, at any depth, sorted by URI; all if it is empty."""
    return skills_below(snapshot.entries, directory) if directory else snapshot.entries


def _folders_below(snapshot: Snapshot, directory: str) -> tuple[Folder, ...]:
    counts: Counter[str] = Counter()
    for entry in entries_below(snapshot, directory):
        text = entry.uri.text
        start = len(directory) + 1 if directory else text.index("://") + 3
        counts[text[: text.index("/", start)] if "/" in text[start:] else directory] += 1
    return tuple(
        Folder(place_of(child), segment_of(child), count)
        for child, count in counts.items()
        if child != directory and f"{child}/{SKILL_FILE}" not in snapshot.by_uri
    )


def _has_relations(entry: SkillEntry) -> bool:
    metadata = entry.frontmatter.fields.get("metadata")
    return isinstance(metadata, dict) and any(relation.key in metadata for relation in Relation)
