"""What a server promises about a skill before it is loaded, and in which words people are told.

Dialects differ in what their digests cover: every file, `SKILL.md` alone, or
one archive with everything in it. The lines of an archive's manifest are the
archive itself and, where the server tells its digest too, the `SKILL.md` that
must come out of it; an approval is bound to both.
"""

from skillwire.core.archive import ArchiveFormat
from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.manifest import UNKNOWN_SIZE, Coverage, Manifest, ManifestFile
from skillwire.errors import FrontmatterMismatchError

MEDIA_TYPE = "mimeType"
"""The field of an archive's line, in `extra`, that tells how it is packed."""

_MOST_DIFFERENCES = 10


def archive_line(manifest: Manifest, uri: str) -> ManifestFile:
    """Return the archive of the skill at `uri`, whose manifest covers one."""
    lines = manifest.files
    return next((line for line in lines if line.uri != uri), lines[0])


def packed_skill_file(manifest: Manifest, uri: str) -> ManifestFile | None:
    """Return what the `SKILL.md` in an archive must be, where the server promises that too."""
    return manifest.find(uri) if len(manifest) > 1 else None


def archive_format(line: ManifestFile) -> ArchiveFormat | None:
    """Return how an archive is packed: as the server says, else as its name ends; None when neither helps."""
    said = (line.extra or {}).get(MEDIA_TYPE)
    if isinstance(said, str):
        return ArchiveFormat.of_media_type(said)
    return ArchiveFormat.of_path(line.uri)


def promised_files(entry: SkillEntry) -> Manifest | None:
    """Return the files of a skill that have digests, as far as they are known; None when none is.

    Of a skill in an archive that is nothing, until it is unpacked.
    """
    if entry.files is not None:
        return entry.files
    return entry.manifest if entry.coverage is Coverage.SKILL_FILE else None


def is_promised(entry: SkillEntry, uri: str) -> bool:
    """Tell whether the file at `uri` has, or will have, a digest it is held against."""
    return entry.coverage in (Coverage.FILES, Coverage.ARCHIVE) or (
        entry.coverage is Coverage.SKILL_FILE and uri == entry.uri.text
    )


def path_in(entry: SkillEntry, uri: str) -> str:
    """Return a line of a manifest as people know it: the path inside the skill, or an archive's own URI."""
    return entry.uri.relative_path(uri) if entry.uri.contains(uri) else uri


def told_differences(entry: SkillEntry, own: Frontmatter) -> tuple[str, ...]:
    """Return the fields that a file's own frontmatter has otherwise than the listing told.

    A listing that tells only some fields says nothing about the others.
    """
    told = entry.frontmatter.fields
    return tuple(name for name in entry.frontmatter.differences(own) if not entry.is_summary or name in told)


def require_told(entry: SkillEntry, own: Frontmatter) -> None:
    """Check that a file's frontmatter is what the listing told of it.

    Raises:
        FrontmatterMismatchError: It is not.
    """
    differences = told_differences(entry, own)
    if differences:
        raise FrontmatterMismatchError(
            f"{entry.uri.text} has other values than the listing says: "
            f"{', '.join(quoted(name) for name in differences[:_MOST_DIFFERENCES])}",
            uri=entry.uri.text,
            differences=differences,
        )


def size_words(size: int | None) -> str:
    """Return `1,234 bytes`, or that nobody told how many."""
    return "size unknown" if size is None or size == UNKNOWN_SIZE else f"{size:,} bytes"


def total_words(manifest: Manifest) -> str:
    """Return how large all files are together, as far as that was told."""
    if UNKNOWN_SIZE not in manifest.sizes:
        return f"{manifest.total_size:,} bytes"
    return f"at least {manifest.total_size:,} bytes" if manifest.total_size else "size unknown"


def coverage_words(manifest: Manifest | None, uri: str = "") -> str:
    """Say in one clause what is promised about the skill at `uri`."""
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
