"""Merging the snapshots of several sources into one, incrementally when little changed.

Skills affect each other only where they are nested or have the same URI. So
after a change only the outermost skills around it, with everything inside
them, are merged again; everything else is kept.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from skillwire.core import SKILL_FILE, Finding, NotFoundError, SkillEntry
from skillwire.sources.snapshot import (
    BY_URI,
    Snapshot,
    enclosures,
    has_files_below,
    nest,
    over_limits,
    upwards,
)

# With more changes than this, merging everything is no slower.
MAX_CHANGES = 256

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class MergedSnapshots:
    """The result of merging snapshots: the entries that are served, and the refused ones with findings."""

    parts: tuple[Snapshot, ...]
    entries: tuple[SkillEntry, ...]
    by_uri: Mapping[str, SkillEntry]
    media_types: Mapping[str, str]
    folders: frozenset[str]
    refused: Mapping[str, tuple[Finding, ...]]


def merge(parts: Sequence[Snapshot]) -> MergedSnapshots:
    """Merge the snapshots of several sources, refusing skills that conflict."""
    parts = tuple(parts)
    entries = [entry for part in parts for entry in part.entries]
    around = enclosures(entries)
    refused = {skill: (_clash(uri),) for uri, skills in _clashes(parts, around).items() for skill in skills}
    entries = [entry for entry in entries if entry.uri.text not in refused]
    if around:
        misplaced = _misplacements(entries)
        refused |= {uri: (_misplaced(outer),) for uri, outer in misplaced.items()}
        entries = nest(entry for entry in entries if entry.uri.text not in misplaced)
    refused |= over_limits(entries)
    served = tuple(sorted([entry for entry in entries if entry.uri.text not in refused], key=BY_URI))
    by_uri = {entry.uri.text: entry for entry in served}
    types, folders = dict(_media_types(parts, by_uri)), frozenset(_folders(parts, by_uri))
    return MergedSnapshots(parts, served, by_uri, types, folders, dict(sorted(refused.items())))


def merge_strictly(parts: Sequence[Snapshot]) -> MergedSnapshots:
    """Merge snapshots without conflicts.

    Raises:
        InvalidSkillError: A dynamic skill is inside one that has digests.
    """
    nest(entry for part in parts for entry in part.entries)
    return merge(parts)


def reuse_only_part(parts: Sequence[Snapshot], whole: Sequence[bool]) -> MergedSnapshots | None:
    """Reuse the only part with skills without copying; None when there is something to merge.

    `whole` states which parts need no merging if they are alone: their URIs
    are distinct, their manifests complete, and no skill exceeds a limit.
    """
    filled = [(part, ready) for part, ready in zip(parts, whole, strict=True) if part.entries]
    if len(filled) > 1 or not all(ready for _, ready in filled):
        return None
    part = filled[0][0] if filled else Snapshot.of(())
    return MergedSnapshots(tuple(parts), part.entries, part.by_uri, part.media_types, part.folders, {})


def merge_changes(before: MergedSnapshots, parts: Sequence[Snapshot]) -> MergedSnapshots:
    """Merge snapshots that are mostly unchanged; the result is that of `merge`."""
    places = _changes(before.parts, parts)
    if places is None:
        return merge(parts)
    tops = tuple(filter(None, {_outermost(place, (*before.parts, *parts)) for place in places}))
    if not tops:
        return replace(before, parts=tuple(parts))
    region = merge([_part_below(part, tops) for part in parts])
    entries = _spliced(before.entries, tops, region.entries)
    refused = {**_outside(before.refused, tops), **region.refused}
    return MergedSnapshots(
        tuple(parts),
        entries,
        _indexed(before.by_uri, entries, region),
        {**_outside(before.media_types, tops), **region.media_types},
        frozenset(folder for folder in before.folders if not folder.startswith(tops)) | region.folders,
        dict(sorted(refused.items())),
    )


def clashes(parts: Sequence[Snapshot]) -> dict[str, tuple[str, ...]]:
    """Map each conflicting URI to the skills concerned.

    That is a `SKILL.md` that is listed twice, or a file that has different
    bytes in a skill and in one nested in it from another source.
    """
    return _clashes(parts, enclosures(entry for part in parts for entry in part.entries))


def _clashes(
    parts: Sequence[Snapshot], around: Mapping[str, Sequence[SkillEntry]]
) -> dict[str, tuple[str, ...]]:
    owners: dict[str, int] = {}
    twice: dict[str, tuple[str, ...]] = {}
    for position, part in enumerate(parts):
        for entry in part.entries:
            uri = entry.uri.text
            if uri in owners:
                twice[uri] = (uri,)
            owners[uri] = position
    differing: dict[str, set[str]] = {}
    for uri, outers in around.items():
        for outer in outers:
            if not {uri, outer.uri.text} & twice.keys() and owners[uri] != owners[outer.uri.text]:
                for file in _differing(parts[owners[uri]].by_uri[uri], outer):
                    differing.setdefault(file, set()).update((uri, outer.uri.text))
    return dict(sorted({**twice, **{uri: tuple(sorted(found)) for uri, found in differing.items()}}.items()))


def _changes(before: Sequence[Snapshot], now: Sequence[Snapshot]) -> set[str] | None:
    """Return the URIs that changed in any part; None when they are too many."""
    places: set[str] = set()
    for old, new in zip(before, now, strict=True):
        if old is new:
            continue
        if len(old.entries) != len(old.by_uri) or len(new.entries) != len(new.by_uri):
            return None  # A source lists a skill twice: its changes are not visible in the mapping.
        known = old.by_uri
        places.update([uri for uri, entry in new.by_uri.items() if known.get(uri) is not entry])
        places.update(known.keys() - new.by_uri.keys())
        places.update(old.folders ^ new.folders)
        places.update(uri for uri, _ in old.media_types.items() ^ new.media_types.items())
        if len(places) > MAX_CHANGES:
            return None
    return places


def _outermost(place: str, parts: Sequence[Snapshot]) -> str:
    """Return the root of the outermost skill around `place`, with a slash; empty when there is none."""
    found = ""
    for folder in upwards(place.removesuffix(f"/{SKILL_FILE}")):
        skill = f"{folder}/{SKILL_FILE}"
        if any(skill in part.by_uri for part in parts):
            found = f"{folder}/"
    return found


def _part_below(part: Snapshot, tops: tuple[str, ...]) -> Snapshot:
    """Return the part of a snapshot below `tops`."""
    entries = tuple(entry for top in tops for entry in part.entries[slice(*_span(part.entries, top))])
    return Snapshot(
        part.revision,
        entries,
        (),
        {entry.uri.text: entry for entry in entries},
        {uri: kind for uri, kind in part.media_types.items() if uri.startswith(tops)},
        frozenset(folder for folder in part.folders if folder.startswith(tops)),
    )


def _span(entries: Sequence[SkillEntry], top: str) -> tuple[int, int]:
    """Return the start and end of the entries below `top`, which are adjacent in the order of URIs."""
    start = bisect_left(entries, top, key=BY_URI)
    # No character of a URI sorts after this one.
    return start, bisect_left(entries, f"{top}\x7f", lo=start, key=BY_URI)


def _spliced(
    entries: tuple[SkillEntry, ...], tops: Iterable[str], region: Iterable[SkillEntry]
) -> tuple[SkillEntry, ...]:
    """Replace the entries below `tops` by those of `region`."""
    spliced = list(entries)
    for top in tops:
        start, end = _span(spliced, top)
        spliced[start:end] = [entry for entry in region if entry.uri.text.startswith(top)]
    return tuple(spliced)


def _indexed(
    before: Mapping[str, SkillEntry], entries: Sequence[SkillEntry], region: MergedSnapshots
) -> Mapping[str, SkillEntry]:
    """Map URIs to entries in their order; faster where the set of URIs did not change."""
    if len(before) == len(entries) and region.by_uri.keys() <= before.keys():
        return {**before, **region.by_uri}
    return {entry.uri.text: entry for entry in entries}


def _outside(values: Mapping[str, Value], tops: tuple[str, ...]) -> dict[str, Value]:
    return {uri: value for uri, value in values.items() if not uri.startswith(tops)}


def _media_types(parts: Sequence[Snapshot], by_uri: Mapping[str, SkillEntry]) -> Iterator[tuple[str, str]]:
    """Yield the media types of served files, from the part that serves them."""
    snapshot = Snapshot(1, (), (), by_uri)
    for uri in {uri for part in parts for uri in part.media_types}:
        try:
            entry, _ = snapshot.locate(uri)
        except NotFoundError:
            continue
        owner = next(part for part in parts if entry.uri.text in part.by_uri)
        if uri in owner.media_types:
            yield uri, owner.media_types[uri]


def _folders(parts: Sequence[Snapshot], by_uri: Mapping[str, SkillEntry]) -> Iterator[str]:
    """Yield the empty directories of served skills, unless another part has a file there."""
    for part in parts:
        for folder in part.folders:
            skills = [f"{parent}/{SKILL_FILE}" for parent in upwards(folder)]
            around = [by_uri[skill] for skill in skills if skill in by_uri]
            if any(entry.uri.text in part.by_uri for entry in around) and not any(
                entry.manifest is not None and has_files_below(entry.manifest, folder) for entry in around
            ):
                yield folder


def _differing(inner: SkillEntry, outer: SkillEntry) -> list[str]:
    """Return the files that have different digests in two skills."""
    if inner.manifest is None or outer.manifest is None:
        return []
    return [
        file.uri
        for file in inner.manifest.files
        if (other := outer.manifest.find(file.uri)) is not None and other != file
    ]


def _misplacements(entries: Sequence[SkillEntry]) -> dict[str, str]:
    """Map each dynamic skill inside one that has digests to the root of the latter."""
    around = enclosures(entries)
    return {
        entry.uri.text: outer.uri.root
        for entry in entries
        if entry.is_dynamic
        for outer in around.get(entry.uri.text, ())
        if not outer.is_dynamic
    }


def _clash(uri: str) -> Finding:
    message = f"{uri} is served by more than one source, so none of them serves it"
    return Finding(
        "duplicate-uri", message, fix="give one of them another name, or serve its folder under a prefix"
    )


def _misplaced(outer: str) -> Finding:
    message = f"the skill is dynamic and inside {outer}, which has digests of all its files"
    return Finding("dynamic-inside-static", message, fix="move it out, or make the enclosing skill dynamic")
