"""`index-april`: names, descriptions and types; a digest at most for one file, and templates.

The index tells only a name and a description, so that is all that is compared
with the file later.
"""

from collections.abc import Sequence

from skillwire.core.archive import ArchiveFormat
from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry, check_frontmatter
from skillwire.core.finding import Finding
from skillwire.core.frontmatter import Frontmatter
from skillwire.core.manifest import UNKNOWN_SIZE, Coverage, Manifest, ManifestFile
from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.errors import InvalidUriError
from skillwire.host.dialects.gathering import Item, kept, unused
from skillwire.host.dialects.packed import Homes, archive_unsupported, archives_off, packed
from skillwire.host.dialects.unlisted import path_findings
from skillwire.host.dialects.voice import Hearing
from skillwire.sources.templates import SkillTemplate
from skillwire.wire.april import AprilEntry, AprilType, parse_april_entry
from skillwire.wire.template import Template


def april_items(values: Sequence[object], hearing: Hearing) -> list[Item]:
    """Read the entries of an index, each of which costs only itself."""
    parsed = [parse_april_entry(value) for value in values]
    entries = [entry for entry, _ in parsed if entry is not None]
    homes = Homes(
        [([entry.url], entry.name or "") for entry in entries if entry.type is AprilType.ARCHIVE],
        [SkillUri.parse(entry.url).text for entry in entries if entry.type is AprilType.SKILL_MD],
    )
    return [
        unused(value, findings) if entry is None else _item(entry, homes, hearing)
        for value, (entry, findings) in zip(values, parsed, strict=True)
    ]


def _item(entry: AprilEntry, homes: Homes, hearing: Hearing) -> Item:
    if entry.type is AprilType.TEMPLATE:
        template = Template.parse(entry.url)
        return Item(template=SkillTemplate(entry.name or "", template, entry.description))
    name = entry.name or ""
    frontmatter, findings = check_frontmatter({"name": name, "description": entry.description})
    try:
        uri = (
            homes.home_of([entry.url], name) if entry.type is AprilType.ARCHIVE else SkillUri.parse(entry.url)
        )
    except InvalidUriError as error:
        return Item(findings=(Finding("uri-invalid", str(error), file=""),))
    findings += path_findings(uri, name, any_path=hearing.dialect is not None)
    if frontmatter is None or any(finding.is_error for finding in findings):
        return Item(findings=tuple(findings), uri=uri.text)
    if entry.type is AprilType.ARCHIVE:
        return _archive(entry, uri, frontmatter, hearing)
    return Item(_skill(uri, frontmatter, _file_promise(entry, uri), entry), findings=tuple(findings))


def _file_promise(entry: AprilEntry, uri: SkillUri) -> Manifest | None:
    """Return what is promised about `SKILL.md`: before 3 June nothing was (DRAFT-04)."""
    if entry.digest is None:
        return None
    spelling = "" if uri.published == uri.text else uri.published
    return Manifest.of([ManifestFile(uri.text, entry.digest, UNKNOWN_SIZE, spelling)], Coverage.SKILL_FILE)


def _archive(entry: AprilEntry, uri: SkillUri, frontmatter: Frontmatter, hearing: Hearing) -> Item:
    """Hold a skill by its archive; the dialect tells no media type, so the suffix must do (ARC-02)."""
    format = ArchiveFormat.of_path(canonical_uri(entry.url))
    if format is None:
        problem = archive_unsupported(
            f"the suffix of {quoted(entry.url)} stands for no known kind of archive"
        )
    elif entry.digest is None:
        message = f"{quoted(entry.url)} has no digest, and an archive is unpacked only if it matches one"
        problem = Finding("archive-unverifiable", message, file="")
    elif format not in hearing.formats:
        problem = archives_off([format])
    else:
        return Item(_skill(uri, frontmatter, packed(uri, entry.url, entry.digest, format), entry))
    return Item(findings=(problem,), uri=uri.text)


def _skill(
    uri: SkillUri, frontmatter: Frontmatter, manifest: Manifest | None, entry: AprilEntry
) -> SkillEntry:
    return SkillEntry(uri, frontmatter, manifest, kept(entry.extra), is_summary=True)
