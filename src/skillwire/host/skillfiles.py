"""The files of a skill as its texts name them, and as text."""

from collections.abc import Iterable
from urllib.parse import unquote

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.media import DIRECTORY_MEDIA_TYPE, media_type_of
from skillwire.core.paths import fold_path
from skillwire.core.uri import SKILL_FILE, canonical_uri, parse_uri
from skillwire.errors import InvalidUriError, UnlistedFileError
from skillwire.host.calls.directories import DirectoryItem
from skillwire.host.failures import NotTextError
from skillwire.host.presentation import SkillFileLine, files_of
from skillwire.host.promises import is_promised, promised_files
from skillwire.host.registry.known import KnownSkill

_SCRIPT_SUFFIXES = frozenset(
    "bash bat cjs cmd com exe fish jar js ksh lua mjs php pl ps1 psm1 "
    "py pyw pyz rb sh so ts vbs wasm zsh".split()
)

_TEXT_SUFFIXES = frozenset(("csv", "json", "md", "toml", "txt", "yaml", "yml"))


def uri_of(skill: KnownSkill, path: str, relative_to: str = SKILL_FILE) -> str:
    """Return the URI of a file that a text of the skill means by `path`.

    Raises:
        UnlistedFileError: It does not mean a file of this skill.
    """
    uri = skill.entry.uri
    if "://" in path:
        if uri.contains(path):
            return canonical_uri(path)
        raise UnlistedFileError(f"{quoted(path)} is no file of {skill.reference}", uri=path[:500])
    if relative_to == SKILL_FILE and (listed := _listed(skill, path)) is not None:
        return listed
    base, _, name = relative_to.rpartition("/")
    if name != SKILL_FILE:
        raise UnlistedFileError(f"{quoted(relative_to)} is not a {SKILL_FILE}", uri=relative_to[:500])
    found = uri.resolve(f"{base}/{path}" if base and not path.startswith("/") else path)
    root = uri.resolve(base) if base else uri.root
    if found is None or root is None or not found.startswith(root + "/"):
        raise UnlistedFileError(f"{quoted(path)} leads out of {skill.reference}", uri=path[:500])
    return found


def file_meant(skill: KnownSkill, uri: str) -> str | None:
    """Return the canonical URI when `uri` lies inside the skill; None when it lies elsewhere.

    A lenient server may take many spellings for one file. So what could be
    inside, and is not spelled as it is listed, is refused (SEP-2640,
    "Integrity and verification").

    Raises:
        UnlistedFileError: It cannot be told from a file of the skill.
    """
    own = skill.entry.uri
    if unquote(uri).strip().partition(":")[0].casefold() != own.scheme:
        return None
    if own.contains(uri):
        return canonical_uri(uri)
    try:
        _, segments = parse_uri(uri)
    except InvalidUriError:
        is_elsewhere = False
    else:
        is_elsewhere = not f"{fold_path('/'.join(segments))}/".startswith(f"{fold_path(own.path)}/")
    if is_elsewhere:
        return None
    raise UnlistedFileError(
        f"{quoted(uri)} may be a file of {skill.reference} in another spelling", uri=uri[:500]
    )


def _listed(skill: KnownSkill, path: str) -> str | None:
    """Return the URI of the file that is listed under exactly this path, odd characters and all."""
    try:
        uri = skill.entry.uri.join(path)
    except InvalidUriError:
        return None
    files = promised_files(skill.entry)
    return uri if files is not None and files.find(uri) else None


def published_directory(skill: KnownSkill, uri: str) -> str:
    """Return a directory's URI as the server spells it, as far as a file inside it tells."""
    depth = uri.count("/") + 1
    files = promised_files(skill.entry)
    for file in files.files if files is not None else ():
        if file.uri.startswith(uri + "/"):
            return "/".join(file.published.split("/")[:depth])
    return uri


def children_of(skill: KnownSkill, uri: str) -> tuple[SkillFileLine, ...]:
    """List the direct children of a directory of the skill, from its manifest."""
    below = "" if uri == skill.entry.uri.root else skill.entry.uri.relative_path(uri) + "/"
    found: dict[str, SkillFileLine] = {}
    for file in files_of(skill):
        if file.path.startswith(below):
            name, slash, _ = file.path[len(below) :].partition("/")
            path = below + name
            found[path] = SkillFileLine(path, None, DIRECTORY_MEDIA_TYPE) if slash else file
    return tuple(found.values())


def told_files(entry: SkillEntry, uri: str) -> tuple[SkillFileLine, ...]:
    """List all files that a dynamic skill's server told of and that lie below the directory at `uri`."""
    return tuple(
        SkillFileLine(path := entry.uri.relative_path(file), None, media_type_of(path))
        for file in entry.dynamic_files
        if file.startswith(f"{uri}/")
    )


def as_they_come(skill: KnownSkill, items: Iterable[DirectoryItem]) -> tuple[SkillFileLine, ...]:
    """List what a server says a directory holds, where not every file has a digest."""
    entry = skill.entry
    return tuple(
        SkillFileLine(
            entry.uri.relative_path(item.uri),
            item.size,
            item.media_type or "",
            is_unverified=not (entry.is_dynamic or item.is_directory or is_promised(entry, item.uri)),
        )
        for item in items
    )


def text_of(content: bytes, uri: str) -> str:
    """Return a file's text.

    Raises:
        NotTextError: It is not UTF-8, or has a zero byte in it as no text has.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        message = f"{quoted(uri)} has {len(content)} bytes that are no text"
        raise NotTextError(message, reference=uri[:500])
    return text


def is_script(path: str) -> bool:
    """Tell whether a file of a skill looks like something to run: by its suffix, or by its folder."""
    suffix = path.rpartition("/")[2].rpartition(".")[2].lower()
    return suffix in _SCRIPT_SUFFIXES or (path.startswith("scripts/") and suffix not in _TEXT_SUFFIXES)
