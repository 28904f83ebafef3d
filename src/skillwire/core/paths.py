"""The rules for the paths of files inside a skill."""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from skillwire.core.errors import InvalidUriError
from skillwire.core.finding import SKILL_FILE, Finding
from skillwire.core.uri import SkillUri, are_plain

_RESERVED = r"(?i:(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?|.*[. ])"
_GENERATED = (
    r"(?:.*/)?(?:__pycache__|node_modules)/.*|.*\.(?:pyc|pyo|swp|swo|orig|rej)|.*~|(?:.*/)?Thumbs\.db"
)
# Matches whatever the two patterns above match, in many lowercase paths at once, one per line.
_NOTABLE = (
    r"(?m)(?:^|/)(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|/|$)|[. ](?:/|$)|~$"
    r"|__pycache__|node_modules|\.(?:pyc|pyo|swp|swo|orig|rej)$|thumbs\.db$"
)
# Cheap to search for: at least one of them is present whenever the pattern above matches.
_HINTS = (
    "con",
    "prn",
    "aux",
    "nul",
    "com",
    "lpt",
    "./",
    ".\n",
    "~\n",
    "__",
    "node_",
    ".pyc",
    ".pyo",
    ".sw",
    ".orig",
    ".rej",
    "thumbs",
)
_SKILL_FILE_FOLDED = SKILL_FILE.lower()
# A placeholder for the skill's own URI, to validate paths with.
_HERE = SkillUri.build("skill")


def path_findings(paths: Collection[str]) -> list[Finding]:
    """Check the paths of all files of a skill, `/`-separated and relative to its folder."""
    return [] if _all_ordinary(paths) else list(_findings_of_each(paths))


def fold_path(path: str) -> str:
    """Return a key that is equal for paths that some file systems treat as the same.

    This is Unicode's canonical caseless matching.
    """
    if path.isascii():
        return path.casefold()
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())


def as_text(path: str) -> str:
    """Return a path for display, with replacement characters for what is not valid Unicode."""
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = path.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "replace")


def folders_of(paths: Collection[str]) -> set[str]:
    """Return every parent folder of `paths`."""
    folders: set[str] = set()
    for path in paths:
        while "/" in path:
            path = path.rpartition("/")[0]
            folders.add(path)
    return folders


def _all_ordinary(paths: Collection[str]) -> bool:
    """Return whether all paths are free of findings: a fast check for the common case."""
    if not are_plain(paths):
        return False
    text = "\n".join(paths) + "\n"
    # Without capitals other than in SKILL.md, different paths stay different when case is ignored.
    rest = text.replace(f"{SKILL_FILE}\n", "", 1)
    if rest and (not rest.islower() or _SKILL_FILE_FOLDED in rest):
        return False
    if any(map(text.__contains__, _HINTS)) and re.search(_NOTABLE, text):
        return False
    return folders_of(paths).isdisjoint(paths)


def _findings_of_each(paths: Collection[str]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    folders = {fold_path(folder) for folder in folders_of(paths)}
    for path in sorted(paths):
        try:
            _HERE.join(path)
        except InvalidUriError as error:
            yield Finding("unusable-path", str(error), file=as_text(path), fix="rename the file")
            continue
        folded = fold_path(path)
        other = seen.setdefault(folded, path)
        if other != path:
            message = f"its path and {other!r} are the same on systems that ignore case or Unicode form"
            yield Finding("path-twins", message, file=path, fix="rename one of the two")
        elif folded in folders:
            message = "the same path is used for a file and for a folder"
            yield Finding("path-twins", message, file=path, fix="rename one of the two")
        if any(re.fullmatch(_RESERVED, segment) for segment in path.split("/")):
            message = "the name is reserved on Windows, so hosts there cannot store the file"
            yield Finding("reserved-path", message, file=path, fix="rename the file")
        if re.fullmatch(_GENERATED, path):
            message = "this looks generated; each change to it changes the manifest and revokes approvals"
            yield Finding("generated-file", message, file=path, fix="delete it from the skill's folder")


# Lookup of a requested file among those listed. A name is only compared, and never becomes a path.


Item = TypeVar("Item")


def last_segment(path: str) -> str:
    """Return the name of the file at `path`."""
    return path.rpartition("/")[2]


def stem_of(name: str) -> str:
    """Return a file name without its suffix; a name that is only a suffix is unchanged."""
    return name.rpartition(".")[0] or name


def matching(
    items: Iterable[Item],
    wanted: str,
    *,
    path_of: Callable[[Item], str],
    name_of: Callable[[Item], str] | None = None,
    aliases_of: Callable[[Item], Collection[str]] = lambda item: (),
) -> list[Item]:
    """Return the files that `wanted` matches: by name, or path, or stem or alias, in this order (EXEC-06).

    Only a single item is an unambiguous match. A step counts only when those
    before it matched nothing, so `plot.py` is never shadowed by another file's alias.
    """
    listed = list(items)
    names = [name_of(item) if name_of else last_segment(path_of(item)) for item in listed]
    for hits in (
        [item for item, name in zip(listed, names, strict=True) if name == wanted],
        [item for item in listed if path_of(item) == wanted],
    ):
        if hits:
            return hits
    return [
        item
        for item, name in zip(listed, names, strict=True)
        if stem_of(name) == wanted or wanted in aliases_of(item)
    ]
