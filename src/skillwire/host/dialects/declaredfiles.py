"""Paths for files that a server declares by URIs of its own, and the way back to these URIs."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from skillwire.core.paths import fold_path, folders_of
from skillwire.core.uri import SKILL_FILE, SkillUri, canonical_uri
from skillwire.errors import InvalidUriError
from skillwire.wire.primitive import SkillFile

FOLDER: Final = "files"
"""Where the files lie, inside the skill as this host sees it, that have no path of their own in it."""

_MAX_NAME = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def placed(skill: SkillUri, files: Sequence[SkillFile]) -> dict[str, str]:
    """Give each declared file a URI inside `skill`; return the declared URIs by those.

    A file that lies in the skill's own directory, as the server publishes it,
    keeps its path there (P2076-13). Any other gets a path made of its name. The
    declared URI goes back to the server that declared it and to nobody else.
    """
    first: dict[str, SkillFile] = {}
    for file in files:
        first.setdefault(file.uri, file)
    paths: dict[str, str] = {}
    taken = {fold_path(SKILL_FILE)}
    for uri, file in first.items():
        path = _own_path(skill, file)
        if path is not None and is_free(path, taken):
            taken.add(fold_path(path))
            paths[uri] = path
    for uri, file in first.items():
        if uri not in paths:
            path = next(path for path in _invented(file.name) if is_free(path, taken))
            taken.add(fold_path(path))
            paths[uri] = path
    return {skill.join(paths[uri]): uri for uri in first}


def _own_path(skill: SkillUri, file: SkillFile) -> str | None:
    """Return the path that a file has inside its skill, where its URI or its name tells."""
    try:
        canonical = canonical_uri(file.uri)
        if canonical.startswith(skill.root + "/"):
            path = skill.relative_path(canonical)
        elif canonical.endswith(skill.join(file.name).removeprefix(skill.root)):
            path = file.name
        else:
            return None
    except InvalidUriError:
        return None
    # A file called like the folder for all others would be in their way.
    return None if fold_path(path) == FOLDER else path


def _invented(name: str) -> Iterator[str]:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    stem = _UNSAFE.sub("-", plain).strip(".-")[:_MAX_NAME].rstrip(".-") or "file"
    head, dot, suffix = stem.rpartition(".")
    yield f"{FOLDER}/{stem}"
    for number in count(2):
        yield f"{FOLDER}/{head}-{number}.{suffix}" if dot else f"{FOLDER}/{stem}-{number}"


def is_free(path: str, taken: set[str]) -> bool:
    """Tell whether a file may be at `path` beside those that are: no twin, and no file that is a folder.

    `taken` are the paths of the others, folded with `fold_path`.
    """
    folded = fold_path(path)
    return folded not in taken and folded not in folders_of(taken) and taken.isdisjoint(folders_of([folded]))
