"""Skills of which digests cover less than each file by itself, as older dialects tell of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from skillwire.core import Frontmatter
from skillwire.core.archive import pack
from skillwire.core.dialects import Dialect
from skillwire.core.entry import MEDIA_TYPE, SkillEntry
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import UNKNOWN_SIZE, Coverage, Manifest, ManifestFile, digest_of
from skillwire.core.media import ArchiveFormat
from skillwire.core.uri import SkillUri
from skillwire.host.model.origin import KnownSkill, Origin, SkillId
from skillwire.host.use.fetch import manifest_below
from unit.host.known_skills import server, skill_md

URL = "skill://shop/refunds.tar.gz"
FILES: Mapping[str, bytes] = {
    "SKILL.md": skill_md(extra="allowed-tools: Read\n"),
    "references/policy.md": b"Thirty days.\n",
    "scripts/check.sh": b"echo checked\n",
}


def archive(files: Mapping[str, bytes] = FILES, format: ArchiveFormat = ArchiveFormat.TAR_GZ) -> bytes:
    return pack(files, format=format)


def in_archive(
    data: bytes,
    *,
    url: str = URL,
    origin: Origin | None = None,
    skill_file: bytes | None = None,
    format: ArchiveFormat | None = ArchiveFormat.TAR_GZ,
    fields: Mapping[str, str] | None = None,
    size: int = UNKNOWN_SIZE,
) -> KnownSkill:
    """Make the record of a skill that comes as `data`; `skill_file` is promised too, where it is given.

    `fields` are all that the listing tells, where that is not all there is.
    """
    uri = SkillUri.build("shop/refunds")
    extra = None if format is None else {MEDIA_TYPE: format.media_type}
    lines = [ManifestFile(url, digest_of(data), size, "", extra)]
    if skill_file is not None:
        lines.append(ManifestFile(uri.text, digest_of(skill_file), UNKNOWN_SIZE))
    told = parse_skill_md(FILES["SKILL.md"]).frontmatter if fields is None else Frontmatter(dict(fields))
    entry = SkillEntry(uri, told, Manifest.of(lines, Coverage.ARCHIVE), is_summary=fields is not None)
    return _record(entry, origin)


def with_skill_file(
    content: bytes = FILES["SKILL.md"], *, origin: Origin | None = None, told: Sequence[str] = ()
) -> KnownSkill:
    """Make the record of a skill of which only `SKILL.md` has a digest; `told` are paths of other files."""
    uri = SkillUri.build("shop/refunds")
    line = ManifestFile(uri.text, digest_of(content), UNKNOWN_SIZE)
    entry = SkillEntry(
        uri,
        parse_skill_md(content).frontmatter,
        Manifest.of([line], Coverage.SKILL_FILE),
        dynamic_files=tuple(map(uri.join, told)),
    )
    return _record(entry, origin)


def unpacked(skill: KnownSkill, files: Mapping[str, bytes] = FILES) -> KnownSkill:
    """Return the record as it is once the archive was unpacked."""
    lines = Manifest.of(ManifestFile.of(path, content) for path, content in files.items())
    return replace(skill, entry=replace(skill.entry, unpacked=manifest_below(lines, skill.entry.uri)))


def _record(entry: SkillEntry, origin: Origin | None) -> KnownSkill:
    place = origin or server()
    return KnownSkill(
        SkillId(place, entry.uri.text), f"{place.label}/refunds", entry, dialect=Dialect.INDEX_JUNE
    )
