"""Making a whole entry of what a site's index tells: all of the frontmatter, and a digest for every file.

A server of the released extension publishes both, so the artifact has to be
read for it. What the site promises is held against the bytes; the digests of
single files are then those of what came, which is what will be served.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import anyio.to_thread

from skillwire.core.archive import ArchiveFormat, UnpackBudget, unpack
from skillwire.core.archive_limits import DEFAULT_LIMITS
from skillwire.core.entry import SkillEntry, entry_findings
from skillwire.core.frontmatter import parse_skill_md
from skillwire.core.manifest import MAX_TOTAL_SIZE, Coverage, Manifest, ManifestFile
from skillwire.core.uri import SKILL_FILE, SkillUri
from skillwire.errors import FrontmatterMismatchError, InvalidEntryError
from skillwire.sources.wellknown.client import SiteClient, SiteIndex
from skillwire.sources.wellknown.entries import archive_uri, skill_entry
from skillwire.wire.wellknown import AnyEntry


@dataclass(frozen=True, slots=True)
class Copy:
    """A whole skill of a site: what the index said, the entry that is served, and the bytes by URI."""

    told: AnyEntry
    entry: SkillEntry
    contents: Mapping[str, bytes]
    size: int

    def is_of(self, item: AnyEntry) -> bool:
        """Tell whether this is still what the index says; what has no digest may be anything (DISC-09)."""
        told = self.told
        return (
            type(told) is type(item)
            and bool(item.digest)
            and (told.digest, told.description) == (item.digest, item.description)
        )


async def complete(
    client: SiteClient, index: SiteIndex, item: AnyEntry, uri: SkillUri, budget: UnpackBudget
) -> Copy:
    """Fetch a skill and return it whole, to be served at `uri`.

    Raises:
        VerificationError: It is not what the index promises.
        InvalidSkillError: It is no skill, or none that may be served.
        LimitError: It is too large.
        SkillError: It cannot be had.
    """
    known = skill_entry(item)
    if known.coverage is Coverage.ARCHIVE:
        files = await _unpacked(client, index, item, budget)
    else:
        files = await _fetched(client, index, known)
    return await anyio.to_thread.run_sync(_whole, item, uri, files)


async def _unpacked(
    client: SiteClient, index: SiteIndex, item: AnyEntry, budget: UnpackBudget
) -> dict[str, bytes]:
    data = await client.read(index, archive_uri(item.name), max_bytes=DEFAULT_LIMITS.max_stream_size)
    format = ArchiveFormat.of_content(data)
    assert format is not None, "the client has checked how it is packed"

    def work() -> dict[str, bytes]:
        return {file.path: file.content for file in unpack(data, format, budget=budget)}

    return await anyio.to_thread.run_sync(work)


async def _fetched(client: SiteClient, index: SiteIndex, known: SkillEntry) -> dict[str, bytes]:
    """Fetch the files of a skill one by one, all of them together within the size of one skill."""
    uris = known.manifest.uris if known.manifest is not None else (known.uri.text, *known.dynamic_files)
    files: dict[str, bytes] = {}
    left = MAX_TOTAL_SIZE
    for uri in uris:
        content = await client.read(index, uri, max_bytes=left)
        left -= len(content)
        files[known.uri.relative_path(uri)] = content
    return files


def _whole(item: AnyEntry, uri: SkillUri, files: Mapping[str, bytes]) -> Copy:
    own = parse_skill_md(files[SKILL_FILE]).frontmatter
    told = {"name": item.name, "description": item.description}
    differences = [name for name, value in told.items() if own.fields.get(name) != value]
    if differences:
        raise FrontmatterMismatchError(
            f"{uri} has another {' and another '.join(differences)} than the site's index says",
            uri=uri.text,
            differences=differences,
        )
    contents = {uri.join(path): content for path, content in files.items()}
    manifest = Manifest.of(ManifestFile.of(file, content) for file, content in contents.items())
    entry = SkillEntry(uri, own, manifest)
    entry.check_limits()
    for finding in entry_findings(entry):
        if finding.is_error:
            raise InvalidEntryError(f"{uri} cannot be served: {finding.message}", fix=finding.fix)
    return Copy(item, entry, contents, sum(map(len, contents.values())))
