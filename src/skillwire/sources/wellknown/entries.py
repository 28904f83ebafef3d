"""What a site says about a skill, as an entry: made-up URIs, and as much of a promise as there is.

A site knows its skills by name alone, so `skill://NAME/SKILL.md` is a name
inside the site's origin and nothing else. An archive has a URI no skill and no
file can have. Where an artifact really is stays with the index.
"""

from typing import Final

from skillwire.core.entry import SkillEntry
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.manifest import UNKNOWN_SIZE, Coverage, Manifest, ManifestFile
from skillwire.core.uri import DEFAULT_SCHEME, SKILL_FILE, SkillUri
from skillwire.errors import InvalidUriError
from skillwire.wire.wellknown import AnyEntry, ArtifactType, FilesEntry

_PREFIX: Final = f"{DEFAULT_SCHEME}://"
_ARCHIVE: Final = ".archive"


def skill_entry(entry: AnyEntry) -> SkillEntry:
    """Return the entry of a skill, of which a site tells the name, the description and what it promises.

    A single `SKILL.md`, and files with digests, are all files there are. An
    archive covers everything in it. Files without digests are promised by
    nobody (CONF-20).

    Raises:
        InvalidUriError: One of its files cannot have a URI.
    """
    uri = SkillUri.build(entry.name)
    told = Frontmatter({"name": entry.name, "description": entry.description})
    if not isinstance(entry, FilesEntry):
        is_archive = entry.type is ArtifactType.ARCHIVE
        line = ManifestFile(archive_uri(entry.name) if is_archive else uri.text, entry.digest, UNKNOWN_SIZE)
        manifest = Manifest.of([line], Coverage.ARCHIVE if is_archive else Coverage.FILES)
        return SkillEntry(uri, told, manifest, is_summary=True)
    files = {uri.join(file.path): file.digest for file in entry.files}
    if all(files.values()):
        lines = [ManifestFile(file, digest, UNKNOWN_SIZE) for file, digest in files.items()]
        return SkillEntry(uri, told, Manifest.of(lines), is_summary=True)
    others = tuple(file for file in files if file != uri.text)
    return SkillEntry(uri, told, None, dynamic_files=others, is_summary=True)


def archive_uri(name: str) -> str:
    """Return the URI of the archive a skill comes in. No skill is called so: names have no dots."""
    return f"{_PREFIX}{name}{_ARCHIVE}"


def name_in(uri: str) -> str:
    """Return the name of the skill that a URI of ours is about; what is no such URI gives no skill's name."""
    return uri.removeprefix(_PREFIX).partition("/")[0].removesuffix(_ARCHIVE)


def path_in(uri: str) -> str:
    """Return the path of a skill's file from its URI.

    Raises:
        InvalidUriError: It is no URI of a file.
    """
    name = name_in(uri)
    try:
        return SkillUri.build(name).relative_path(uri)
    except InvalidUriError:
        raise InvalidUriError(
            f"nothing of a site is at such a URI; a skill's file is at skill://NAME/{SKILL_FILE}"
        ) from None
