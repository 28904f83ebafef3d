"""What the digests in a server's listing cover, and how that is described to people.

Dialects differ in what their digests cover: every file, `SKILL.md` alone, or
one archive with all files. The lines of an archive's manifest are the archive
itself and, if the server lists its digest too, the `SKILL.md` inside the
archive; an approval is bound to both.
"""

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.errors import FrontmatterMismatchError
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.manifest import UNKNOWN_SIZE, Coverage, Manifest, ManifestFile
from skillwire.core.media import ArchiveFormat

MEDIA_TYPE = "mimeType"
"""The key in the `extra` of an archive's line that holds its media type."""

_MOST_DIFFERENCES = 10


def archive_line(manifest: Manifest, uri: str) -> ManifestFile:
    """Return the line of the archive in the manifest of the skill at `uri`."""
    lines = manifest.files
    return next((line for line in lines if line.uri != uri), lines[0])


def packed_skill_file(manifest: Manifest, uri: str) -> ManifestFile | None:
    """Return the line of the `SKILL.md` inside an archive, if the server lists it too."""
    return manifest.find(uri) if len(manifest) > 1 else None


def archive_format(line: ManifestFile) -> ArchiveFormat | None:
    """Return an archive's format by its media type, else by its suffix; None if neither is known."""
    said = (line.extra or {}).get(MEDIA_TYPE)
    if isinstance(said, str):
        return ArchiveFormat.of_media_type(said)
    return ArchiveFormat.of_path(line.uri)


def promised_files(entry: SkillEntry) -> Manifest | None:
    """Return the known files of a skill that have digests; None if there are none.

    The files of an archive are unknown until it is unpacked.
    """
    if entry.files is not None:
        return entry.files
    return entry.manifest if entry.coverage is Coverage.SKILL_FILE else None


def is_promised(entry: SkillEntry, uri: str) -> bool:
    """Return whether the file at `uri` is covered by a digest."""
    return entry.coverage in (Coverage.FILES, Coverage.ARCHIVE) or (
        entry.coverage is Coverage.SKILL_FILE and uri == entry.uri.text
    )


def path_in(entry: SkillEntry, uri: str) -> str:
    """Return the path of a manifest line inside the skill, or the URI of an archive."""
    return entry.uri.relative_path(uri) if entry.uri.contains(uri) else uri


def frontmatter_differences(entry: SkillEntry, own: Frontmatter) -> tuple[str, ...]:
    """Return the names of the fields that differ between a file's frontmatter and the listing.

    If the listing has only some fields, only these are compared.
    """
    told = entry.frontmatter.fields
    return tuple(name for name in entry.frontmatter.differences(own) if not entry.is_summary or name in told)


def require_listed_frontmatter(entry: SkillEntry, own: Frontmatter) -> None:
    """Check that a file's frontmatter matches the listing.

    Raises:
        FrontmatterMismatchError: A field differs.
    """
    differences = frontmatter_differences(entry, own)
    if differences:
        raise FrontmatterMismatchError(
            f"the frontmatter of {entry.uri.text} differs from the listing: "
            f"{', '.join(quoted(name) for name in differences[:_MOST_DIFFERENCES])}",
            uri=entry.uri.text,
            differences=differences,
        )


def size_words(size: int | None) -> str:
    """Return a size as `1,234 bytes`, or `size unknown`."""
    return "size unknown" if size is None or size == UNKNOWN_SIZE else f"{size:,} bytes"


def total_words(manifest: Manifest) -> str:
    """Return the total size of all files, as far as it is listed."""
    if UNKNOWN_SIZE not in manifest.sizes:
        return f"{manifest.total_size:,} bytes"
    return f"at least {manifest.total_size:,} bytes" if manifest.total_size else "size unknown"


def coverage_words(manifest: Manifest | None, uri: str = "") -> str:
    """Return a clause about what the digests of the skill at `uri` cover."""
    if manifest is None:
        return "no digests"
    if manifest.coverage is Coverage.SKILL_FILE:
        return "only SKILL.md has a digest; other files are whatever the server sends"
    if manifest.coverage is Coverage.ARCHIVE:
        line = archive_line(manifest, uri)
        size = "" if line.known_size is None else f", {line.size:,} bytes"
        return f"one archive, digest {line.digest}{size}; its files are known when it is unpacked"
    count = len(manifest)
    return f"{'1 file' if count == 1 else f'{count:,} files'}, {total_words(manifest)}"
