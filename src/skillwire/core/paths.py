"""The rules for the paths of files inside a skill."""

import re
import unicodedata
from collections.abc import Collection, Iterator

from skillwire.core.finding import Finding
from skillwire.core.uri import SKILL_FILE, SkillUri, are_plain
from skillwire.errors import InvalidUriError

_RESERVED = r"(?i:(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?|.*[. ])"
_GENERATED = (
    r"(?:.*/)?(?:__pycache__|node_modules)/.*|.*\.(?:pyc|pyo|swp|swo|orig|rej)|.*~|(?:.*/)?Thumbs\.db"
)
# Whatever the two patterns above may find in many paths in lower case, one on each line, and little else.
_NOTABLE = (
    r"(?m)(?:^|/)(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|/|$)|[. ](?:/|$)|~$"
    r"|__pycache__|node_modules|\.(?:pyc|pyo|swp|swo|orig|rej)$|thumbs\.db$"
)
# Cheap to look for, and at least one of them is there whenever the pattern above matches.
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
_SKILL_FILE_TWIN = SKILL_FILE.lower()
# A stand-in for the skill's own URI, to try paths on.
_HERE = SkillUri.build("skill")


def path_findings(paths: Collection[str]) -> list[Finding]:
    """Check the paths of all files of a skill, `/`-separated and relative to its folder."""
    return [] if _all_ordinary(paths) else list(_each(paths))


def fold_path(path: str) -> str:
    """Return a text that paths share when some file system takes them for one.

    This is Unicode's canonical caseless matching.
    """
    if path.isascii():
        return path.casefold()
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())


def as_text(path: str) -> str:
    """Return a path for display: what is not Unicode text in it is marked as such."""
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = path.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "replace")


def folders_of(paths: Collection[str]) -> set[str]:
    """Return every folder that lies above one of `paths`."""
    folders: set[str] = set()
    for path in paths:
        while "/" in path:
            path = path.rpartition("/")[0]
            folders.add(path)
    return folders


def _all_ordinary(paths: Collection[str]) -> bool:
    """Tell at a glance that there is nothing to say: the common case, decided fast."""
    if not are_plain(paths):
        return False
    text = "\n".join(paths) + "\n"
    # With no capitals but those of SKILL.md, paths that differ differ everywhere.
    rest = text.replace(f"{SKILL_FILE}\n", "", 1)
    if rest and (not rest.islower() or _SKILL_FILE_TWIN in rest):
        return False
    if any(map(text.__contains__, _HINTS)) and re.search(_NOTABLE, text):
        return False
    return folders_of(paths).isdisjoint(paths)


def _each(paths: Collection[str]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    folders = {fold_path(folder) for folder in folders_of(paths)}
    for path in sorted(paths):
        try:
            _HERE.join(path)
        except InvalidUriError as error:
            yield Finding("unusable-path", str(error), file=as_text(path), fix="rename the file")
            continue
        folded = fold_path(path)
        twin = seen.setdefault(folded, path)
        if twin != path:
            message = f"its path and {twin!r} are the same on systems that ignore case or Unicode form"
            yield Finding("path-twins", message, file=path, fix="rename one of the two")
        elif folded in folders:
            message = "it is a file, and its path is that of a folder too"
            yield Finding("path-twins", message, file=path, fix="rename one of the two")
        if any(re.fullmatch(_RESERVED, segment) for segment in path.split("/")):
            message = "the name is reserved on Windows, so hosts there cannot store the file"
            yield Finding("reserved-path", message, file=path, fix="rename the file")
        if re.fullmatch(_GENERATED, path):
            message = "this looks generated; each change to it changes the manifest and revokes approvals"
            yield Finding("generated-file", message, file=path, fix="delete it from the skill's folder")
