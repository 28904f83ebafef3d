"""Directories implied by the files of a snapshot: their children, and path completion."""

from collections.abc import Callable, Iterator
from itertools import islice, repeat, takewhile
from typing import Final

from skillwire.core import DIRECTORY_MEDIA_TYPE, JsonDict, SkillEntry, media_type_of
from skillwire.sources.snapshot import AFTER_SLASH, Snapshot, entries_below
from skillwire.wire.core import directory_resource, file_resource, skill_resource

Describe = Callable[[SkillEntry], JsonDict]
"""Describes a skill's `SKILL.md` as a resource."""

MAX_COMPLETED: Final = 10_000
"""The maximum number of completions that are counted."""


def children_of(
    snapshot: Snapshot, directory: str, describe: Describe = skill_resource, *, after: str = ""
) -> Iterator[JsonDict] | None:
    """Yield the direct children of a directory as resources, sorted by URI; None if there is no directory.

    `directory` is canonical: a skill's root, a folder inside it, or a prefix
    that skills share; the children of a prefix are generated lazily. They are
    sorted by the URIs of their contents, so `a-b` comes before `a`. With
    `after`, only the children after that URI are returned.
    """
    skill = skill_around(snapshot, directory)
    if skill is None:
        if not has_skills_below(snapshot, directory):
            return None
        return map(directory_resource, _prefixes(snapshot, directory, after + AFTER_SLASH if after else ""))
    found = _inside(snapshot, skill, directory, describe)
    if not found and directory not in snapshot.folders:
        return None
    return (found[child] for child in sorted(found) if child > after)


def completions(snapshot: Snapshot, scheme: str, typed: str, most: int = MAX_COMPLETED) -> list[str]:
    """Return at most `most` completions of a path after `scheme://`, one level at a time.

    Directories end in a slash.
    """
    start = f"{scheme}://"
    folder, slash, _ = typed.rpartition("/")
    directory = start + folder if slash else start.removesuffix("/")
    if skill_around(snapshot, directory) is None:
        found = (f"{child[len(start) :]}/" for child in _prefixes(snapshot, directory, start + typed))
        return list(islice(takewhile(lambda path: path.startswith(typed), found), most))
    paths = (
        path + "/" if child["mimeType"] == DIRECTORY_MEDIA_TYPE else path
        for child in children_of(snapshot, directory) or ()
        if (path := child["uri"].removeprefix(start)).startswith(typed)
    )
    return list(islice(paths, most))


def schemes_of(snapshot: Snapshot) -> list[str]:
    """Return the schemes under which skills are served, sorted."""
    found: list[str] = []
    low = ""
    while uri := snapshot.first_uri(low):
        found.append(uri.partition(":")[0])
        low = f"{found[-1]}:/{AFTER_SLASH}"
    return sorted(found)


def has_skills_below(snapshot: Snapshot, directory: str) -> bool:
    """Return whether any skill is in a directory or has it as its root."""
    return snapshot.first_uri(f"{directory}/", directory + AFTER_SLASH) is not None


def skill_around(snapshot: Snapshot, directory: str) -> SkillEntry | None:
    """Return the innermost skill that contains a directory or has it as its root."""
    return next(snapshot.skills_around(directory), None)


def _prefixes(snapshot: Snapshot, directory: str, start: str) -> Iterator[str]:
    """Yield the children of a directory outside all skills, beginning at `start`."""
    inside, end = directory + "/", directory + AFTER_SLASH
    position = max(inside, start)
    while uri := snapshot.first_uri(position, end):
        child = inside + uri[len(inside) :].partition("/")[0]
        yield child
        position = child + AFTER_SLASH


def _inside(snapshot: Snapshot, skill: SkillEntry, directory: str, describe: Describe) -> dict[str, JsonDict]:
    """Return the children of a directory inside a skill, by URI."""
    inside = directory + "/"
    found: dict[str, JsonDict] = {}
    for uri, size in _files_below(skill, directory):
        name, slash, _ = uri[len(inside) :].partition("/")
        child = inside + name
        if child in found:
            continue
        if slash:
            found[child] = directory_resource(child)
        else:
            media_type = snapshot.media_types.get(child) or media_type_of(child)
            found[child] = file_resource(child, media_type=media_type, size=size)
    for entry in entries_below(snapshot.entries, directory):
        name, slash, _ = entry.uri.text[len(inside) :].partition("/")
        child = inside + name
        if not slash:
            found[child] = describe(entry)
        elif child not in found:
            found[child] = directory_resource(child)
    for folder in snapshot.folders_below(directory):
        child = inside + folder[len(inside) :].partition("/")[0]
        found.setdefault(child, directory_resource(child))
    return found


def _files_below(skill: SkillEntry, directory: str) -> Iterator[tuple[str, int | None]]:
    """Yield the files below a directory inside a skill; `skill` is the innermost one around it."""
    manifest = skill.manifest
    sizes = manifest.sizes if manifest is not None else repeat(None)
    uris = manifest.uris if manifest is not None else skill.dynamic_files
    inside = directory + "/"
    yield from ((uri, size) for uri, size in zip(uris, sizes, strict=False) if uri.startswith(inside))
