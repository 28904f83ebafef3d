"""Resolution of the paths that a skill's texts use, and lists of its files."""

from collections.abc import Iterable
from urllib.parse import unquote

from skillwire.core import (
    DIRECTORY_MEDIA_TYPE,
    SKILL_FILE,
    InvalidUriError,
    SkillEntry,
    UnlistedFileError,
    canonical_uri,
    files_with_digests,
    fold_path,
    has_digest,
    media_type_of,
    parse_uri,
    quoted,
)
from skillwire.host.calls import DirectoryItem
from skillwire.host.model import KnownSkill, NotTextError
from skillwire.host.use.present import SkillFileLine, files_of


def uri_of(skill: KnownSkill, path: str, relative_to: str = SKILL_FILE) -> str:
    """Return the URI of the file that `path` refers to in a text of the skill.

    Raises:
        UnlistedFileError: It is not a file of this skill.
    """
    uri = skill.entry.uri
    if "://" in path:
        if uri.contains(path):
            return canonical_uri(path)
        raise UnlistedFileError(f"{quoted(path)} is not a file of {skill.reference}", uri=path[:500])
    if relative_to == SKILL_FILE and (listed := _listed(skill, path)) is not None:
        return listed
    base, _, name = relative_to.rpartition("/")
    if name != SKILL_FILE:
        raise UnlistedFileError(f"{quoted(relative_to)} is not a {SKILL_FILE}", uri=relative_to[:500])
    found = uri.resolve(f"{base}/{path}" if base and not path.startswith("/") else path)
    root = uri.resolve(base) if base else uri.root
    if found is None or root is None or not found.startswith(root + "/"):
        raise UnlistedFileError(f"{quoted(path)} is outside of {skill.reference}", uri=path[:500])
    return found


def canonical_file_uri(skill: KnownSkill, uri: str) -> str | None:
    """Return the canonical form of a `uri` inside the skill; None for a URI outside of it.

    A lenient server may accept many spellings of one URI. So a URI that could
    be inside the skill, but is not spelled as listed, is refused (SEP-2640,
    "Integrity and verification").

    Raises:
        UnlistedFileError: It may be another spelling of a file of the skill.
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
        f"{quoted(uri)} may be another spelling of a file of {skill.reference}", uri=uri[:500]
    )


def _listed(skill: KnownSkill, path: str) -> str | None:
    """Return the URI of the file that is listed under exactly this path."""
    try:
        uri = skill.entry.uri.join(path)
    except InvalidUriError:
        return None
    files = files_with_digests(skill.entry)
    return uri if files is not None and files.find(uri) else None


def published_directory(skill: KnownSkill, uri: str) -> str:
    """Return a directory's URI as the server spells it, derived from a file inside it."""
    depth = uri.count("/") + 1
    files = files_with_digests(skill.entry)
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


def dynamic_file_lines(entry: SkillEntry, uri: str) -> tuple[SkillFileLine, ...]:
    """List the files of a dynamic skill that its server listed below the directory at `uri`."""
    return tuple(
        SkillFileLine(path := entry.uri.relative_path(file), None, media_type_of(path))
        for file in entry.dynamic_files
        if file.startswith(f"{uri}/")
    )


def directory_lines(skill: KnownSkill, items: Iterable[DirectoryItem]) -> tuple[SkillFileLine, ...]:
    """List a directory as the server returned it, if not every file has a digest."""
    entry = skill.entry
    return tuple(
        SkillFileLine(
            entry.uri.relative_path(item.uri),
            item.size,
            item.media_type or "",
            is_unverified=not (entry.is_dynamic or item.is_directory or has_digest(entry, item.uri)),
        )
        for item in items
    )


def text_of(content: bytes, uri: str) -> str:
    """Return a file's text.

    Raises:
        NotTextError: It is not UTF-8, or contains a null byte.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        message = f"{quoted(uri)} ({len(content)} bytes) is not a text file"
        raise NotTextError(message, reference=uri[:500])
    return text
