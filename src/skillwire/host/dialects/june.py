"""`index-june`: entries with frontmatter, the digest of `SKILL.md`, and archives.

What an entry promises decides how its skill is held: all files, where the
server adds the lines of the released extension; else one archive, where policy
lets the host unpack it; else `SKILL.md` alone.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from skillwire.core.archive import ArchiveFormat
from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry, check_entry
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.manifest import (
    MAX_JSON_SIZE,
    UNKNOWN_SIZE,
    Coverage,
    Manifest,
    ManifestFile,
)
from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import InvalidUriError
from skillwire.host.dialects.gathering import Item, kept, unused
from skillwire.host.dialects.packed import Homes, archive_unsupported, archives_off, packed
from skillwire.host.dialects.voice import Hearing
from skillwire.wire.june import JuneArchive, JuneEntry, parse_june_entry


def june_items(values: Sequence[object], hearing: Hearing) -> list[Item]:
    """Read the entries of an index, each of which costs only itself."""
    parsed = [parse_june_entry(value) for value in values]
    entries = [entry for entry, _ in parsed if entry is not None]
    homes = Homes(
        [(_urls(entry), _name(entry)) for entry in entries if entry.url is None],
        [SkillUri.parse(entry.url).text for entry in entries if entry.url is not None],
    )
    return [
        unused(value, findings) if entry is None else _item(entry, homes, hearing)
        for value, (entry, findings) in zip(values, parsed, strict=True)
    ]


def _item(entry: JuneEntry, homes: Homes, hearing: Hearing) -> Item:
    try:
        uri = homes.home_of(_urls(entry), _name(entry)) if entry.url is None else SkillUri.parse(entry.url)
    except InvalidUriError as error:
        return Item(findings=(Finding("uri-invalid", str(error), file=""),))
    manifest, problem = _promise(entry, uri, hearing)
    if manifest is None:
        return Item(findings=problem, uri=uri.text)
    extra = kept(entry.extra, "size")
    return Item(SkillEntry(uri, Frontmatter(entry.frontmatter), manifest, extra))


def _promise(
    entry: JuneEntry, uri: SkillUri, hearing: Hearing
) -> tuple[Manifest | None, tuple[Finding, ...]]:
    """Return the most that an entry promises and this host can hold; none, and why, when that is nothing."""
    lines = entry.extra.get("resources")
    if entry.digest is not None and isinstance(lines, list):
        return _all_files(entry, uri, lines)
    for archive in entry.archives:
        format = ArchiveFormat.of_media_type(archive.media_type)
        if format is None or format not in hearing.formats or canonical_uri(archive.url) == uri.text:
            continue
        size, skill_digest = _size_in(archive.extra), entry.digest
        return packed(uri, archive.url, archive.digest, format, size=size, skill_digest=skill_digest), ()
    if entry.digest is None:
        return None, (_no_archive(entry.archives),)
    spelling = "" if uri.published == uri.text else uri.published
    line = ManifestFile(uri.text, entry.digest, _size_in(entry.extra), spelling)
    return Manifest.of([line], Coverage.SKILL_FILE), ()


def _all_files(
    entry: JuneEntry, uri: SkillUri, lines: JsonValue
) -> tuple[Manifest | None, tuple[Finding, ...]]:
    """Read the lines a server added, which mean what they mean in the released extension (IDX-12)."""
    checked, findings = check_entry(
        {"uri": uri.published, "frontmatter": entry.frontmatter, "resources": lines}
    )
    errors = tuple(finding for finding in findings if finding.is_error)
    manifest = None if checked is None else checked.manifest
    if manifest is None or errors:
        return None, errors
    if manifest.require(uri.text).digest != entry.digest:
        message = f"the entry and its `resources` disagree about the digest of {quoted(uri.text)}"
        return None, (Finding("resource-invalid", message, file=""),)
    return manifest, ()


def _no_archive(archives: Sequence[JuneArchive]) -> Finding:
    """Say why none of a skill's archives is used."""
    known = [ArchiveFormat.of_media_type(archive.media_type) for archive in archives]
    formats = [format for format in known if format is not None]
    if formats:
        return archives_off(dict.fromkeys(formats))
    types = ", ".join(quoted(archive.media_type[:100]) for archive in archives[:3])
    return archive_unsupported(f"the skill comes only as an archive of a kind that is not known: {types}")


def _size_in(extra: Mapping[str, JsonValue]) -> int:
    """Return the size a server added, or that there is none; what is no size counts as none."""
    size = extra.get("size")
    is_size = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_JSON_SIZE
    return cast(int, size) if is_size else UNKNOWN_SIZE


def _name(entry: JuneEntry) -> str:
    return cast(str, entry.frontmatter["name"])


def _urls(entry: JuneEntry) -> list[str]:
    return [archive.url for archive in entry.archives]
