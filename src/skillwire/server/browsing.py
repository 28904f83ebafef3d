"""The directories that a snapshot's files imply: their children, and completing a path to them."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import repeat
from operator import attrgetter

from skillwire.core.entry import SkillEntry
from skillwire.core.media import DIRECTORY_MEDIA_TYPE, media_type_of
from skillwire.core.uri import SKILL_FILE
from skillwire.sources import Snapshot
from skillwire.wire.core import JsonDict, directory_resource, file_resource, skill_resource

Describe = Callable[[SkillEntry], JsonDict]
"""Describes a skill's `SKILL.md` as a resource."""

_TEXT = attrgetter("uri.text")


def children_of(
    snapshot: Snapshot, directory: str, describe: Describe = skill_resource
) -> list[JsonDict] | None:
    """Return the direct children of a directory as resources, sorted by URI, or None if there is none.

    `directory` is canonical: a skill's root, a folder inside it, or a prefix
    that skills share.
    """
    inside = directory + "/"
    found: dict[str, JsonDict] = {}
    for uri, size in _files_below(snapshot, directory):
        name, slash, _ = uri[len(inside) :].partition("/")
        child = inside + name
        if child in found:
            continue
        if slash:
            found[child] = directory_resource(child)
        else:
            media_type = snapshot.media_types.get(child) or media_type_of(child)
            found[child] = file_resource(child, media_type=media_type, size=size)
    for entry in skills_below(snapshot, directory):
        name, slash, _ = entry.uri.text[len(inside) :].partition("/")
        child = inside + name
        if not slash:
            found[child] = describe(entry)
        elif child not in found:
            found[child] = directory_resource(child)
    for folder in snapshot.folders:
        if folder.startswith(inside):
            child = inside + folder[len(inside) :].partition("/")[0]
            found.setdefault(child, directory_resource(child))
    if not found and directory not in snapshot.folders:
        return None
    return [found[child] for child in sorted(found)]


def completions(snapshot: Snapshot, scheme: str, typed: str) -> list[str]:
    """Complete a path that someone types after `scheme://`, one level at a time.

    What can be entered further ends in a slash.
    """
    start = f"{scheme}://"
    folder, slash, _ = typed.rpartition("/")
    below = children_of(snapshot, start + folder if slash else start.removesuffix("/")) or []
    return [
        path + "/" if child["mimeType"] == DIRECTORY_MEDIA_TYPE else path
        for child in below
        if (path := child["uri"].removeprefix(start)).startswith(typed)
    ]


def schemes_of(snapshot: Snapshot) -> list[str]:
    """Return the schemes under which skills are served, sorted."""
    return sorted({entry.uri.scheme for entry in snapshot.entries})


def skills_below(snapshot: Snapshot, directory: str) -> tuple[SkillEntry, ...]:
    """Return the skills that lie in a directory, or whose own directory it is."""
    entries = snapshot.entries
    first = bisect_left(entries, directory + "/", key=_TEXT)
    # The character after the slash ends the range of everything below.
    return entries[first : bisect_left(entries, directory + "0", key=_TEXT)]


def skill_around(snapshot: Snapshot, directory: str) -> SkillEntry | None:
    """Return the innermost skill that a directory lies in, or whose own directory it is."""
    while directory.count("/") >= 2:
        entry = snapshot.by_uri.get(f"{directory}/{SKILL_FILE}")
        if entry is not None:
            return entry
        directory = directory.rpartition("/")[0]
    return None


def _files_below(snapshot: Snapshot, directory: str) -> Iterator[tuple[str, int | None]]:
    """Yield the files below a directory that lies in a skill: the innermost one around it has them all."""
    entry = skill_around(snapshot, directory)
    if entry is not None:
        manifest = entry.manifest
        sizes = manifest.sizes if manifest is not None else repeat(None)
        uris = manifest.uris if manifest is not None else entry.dynamic_files
        inside = directory + "/"
        yield from ((uri, size) for uri, size in zip(uris, sizes, strict=False) if uri.startswith(inside))
