"""Completing the entries of older dialects: all frontmatter, and a digest for every file.

Digests of the upstream are kept as they are. Files without digests are read
once, and their digests computed: the gateway serves its own copy, so they stay
valid, and the entry states that they were computed here.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from skillwire.core import (
    MAX_FILES,
    MAX_TOTAL_SIZE,
    UNKNOWN_SIZE,
    ArchiveFormat,
    Coverage,
    Dialect,
    FrontmatterMismatchError,
    LimitError,
    Manifest,
    ManifestFile,
    NotFoundError,
    SkillDocument,
    SkillEntry,
    SkillError,
    archive_format,
    archive_line,
    links_in,
    parse_entry,
    parse_skill_md,
    quoted,
)
from skillwire.core.archive import unpack
from skillwire.core.archive_tree import DEFAULT_LIMITS, UnpackBudget
from skillwire.host import DirectoryItem, SkillConnection

Digests: TypeAlias = Literal["upstream", "computed"]

_MAX_DIRECTORIES = 256
# In other dialects the URI of a skill is generated, and `resources/directory/read` does not know it.
_RESOURCE_DIALECTS = frozenset({Dialect.INDEX_JUNE, Dialect.INDEX_APRIL, Dialect.LIST_MARCH})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompletedEntry:
    """A complete entry under the upstream's URIs, the origin of its digests, and the files read, by URI."""

    entry: SkillEntry
    digests: Digests
    contents: Mapping[str, bytes]


class Completer:
    """Completes the entries of one upstream."""

    def __init__(self, connection: SkillConnection, budget: UnpackBudget) -> None:
        self._connection = connection
        self._budget = budget

    async def complete(self, entry: SkillEntry) -> CompletedEntry:
        """Return the complete entry of a skill.

        Raises:
            SkillError: A file cannot be read, or does not match its digest.
        """
        if entry.coverage is Coverage.FILES:
            return await self._with_frontmatter(entry)
        if entry.coverage is Coverage.ARCHIVE:
            contents = await self._unpacked(entry)
        else:
            contents = await self._read_all(entry)
        document = _document(entry, contents[entry.uri.text])
        files = [ManifestFile.of(uri, content) for uri, content in contents.items()]
        whole = replace(
            entry,
            frontmatter=document.frontmatter,
            manifest=Manifest.of(files),
            dynamic_files=(),
            is_summary=False,
        )
        return CompletedEntry(_checked(whole), "computed", contents)

    async def _with_frontmatter(self, entry: SkillEntry) -> CompletedEntry:
        """Complete an entry that has all digests, but may lack sizes and parts of the frontmatter."""
        assert entry.manifest is not None
        needed = [entry.manifest.require(entry.uri.text)]
        if UNKNOWN_SIZE in entry.manifest.sizes:
            entry.check_limits()
            needed = list(entry.manifest.files)
        contents: dict[str, bytes] = {}
        left = MAX_TOTAL_SIZE
        for line in needed:
            content = await self._connection.read_file(line.published, max_bytes=min(line.max_bytes, left))
            line.verify(content)
            left -= len(content)
            contents[line.uri] = content
        whole = replace(
            entry,
            frontmatter=_document(entry, contents[entry.uri.text]).frontmatter,
            manifest=_with_sizes(entry.manifest, contents),
            is_summary=False,
        )
        return CompletedEntry(_checked(whole), "upstream", contents)

    async def _unpacked(self, entry: SkillEntry) -> dict[str, bytes]:
        assert entry.manifest is not None
        line = archive_line(entry.manifest, entry.uri.text)
        data = await self._connection.read_file(line.published, max_bytes=DEFAULT_LIMITS.max_stream_size)
        format = archive_format(line) or ArchiveFormat.of_content(data)
        if format is None:
            raise NotFoundError(f"{quoted(line.uri)} is not an archive this gateway can unpack", uri=line.uri)
        files = unpack(data, format, digest=line.digest, budget=self._budget)
        return {entry.uri.join(file.path): file.content for file in files}

    async def _read_all(self, entry: SkillEntry) -> dict[str, bytes]:
        """Read `SKILL.md` and every file that the server lists, has in a directory, or the text links to."""
        current = await self._connection.get_skill(entry.uri)
        skill_md = await self._connection.read_file(current.uri.published, max_bytes=MAX_TOTAL_SIZE)
        if current.manifest is not None and current.coverage is Coverage.SKILL_FILE:
            current.manifest.require(current.uri.text).verify(skill_md)
        contents = {entry.uri.text: skill_md}
        left = MAX_TOTAL_SIZE - len(skill_md)
        listed = {*current.dynamic_files, *await self._in_directories(entry)} - {entry.uri.text}
        linked = _linked(entry, skill_md) - listed if not listed else set[str]()
        for uri in sorted(listed | linked):
            if len(contents) >= MAX_FILES:
                raise LimitError(f"{entry.uri} has more than {MAX_FILES} files")
            try:
                content = await self._connection.read_file(uri, max_bytes=left)
            except NotFoundError as error:
                # Scripts that only the server runs are listed but not readable; links may be broken.
                logger.info("%s is served without one of its files: %s", entry.uri, error)
                continue
            left -= len(content)
            contents[uri] = content
        return contents

    async def _in_directories(self, entry: SkillEntry) -> set[str]:
        declaration = self._connection.declaration
        if self._connection.dialect not in _RESOURCE_DIALECTS or declaration is None:
            return set()
        if not declaration.directory_read:
            return set()
        found: set[str] = set()
        waiting = [entry.uri.root]
        for _ in range(_MAX_DIRECTORIES):
            if not waiting:
                return found
            for item in await self._children(waiting.pop()):
                if item.is_directory:
                    waiting.append(item.uri)
                else:
                    found.add(item.uri)
        raise LimitError(f"{entry.uri} has more than {_MAX_DIRECTORIES} directories")

    async def _children(self, directory: str) -> tuple[DirectoryItem, ...]:
        try:
            return await self._connection.read_directory(directory)
        except NotFoundError:
            return ()


def _with_sizes(manifest: Manifest, contents: Mapping[str, bytes]) -> Manifest:
    """Return a manifest with unknown sizes replaced by those of the files that were read."""
    if UNKNOWN_SIZE not in manifest.sizes:
        return manifest
    return Manifest.of(replace(line, size=len(contents[line.uri])) for line in manifest.files)


def _linked(entry: SkillEntry, skill_md: bytes) -> set[str]:
    """Return the files of the skill that its text links to."""
    text = skill_md.decode("utf-8", "replace")
    found = {entry.uri.resolve(link.target) for link in links_in(text)}
    return {uri for uri in found if uri is not None and entry.uri.contains(uri)}


def _document(entry: SkillEntry, content: bytes) -> SkillDocument:
    """Parse a `SKILL.md`, and compare it with the listing."""
    document = parse_skill_md(content)
    listed = entry.frontmatter.fields
    fields = document.frontmatter.fields
    differences = [name for name in listed if name not in fields or fields[name] != listed[name]]
    if differences:
        raise FrontmatterMismatchError(
            f"{entry.uri} has other values than the listing says: "
            f"{', '.join(quoted(name) for name in differences[:10])}",
            uri=entry.uri.text,
            differences=differences,
        )
    return document


def _checked(entry: SkillEntry) -> SkillEntry:
    """Check a complete entry against the rules of the released extension."""
    try:
        parse_entry(entry.to_json())
    except SkillError as error:
        raise type(error)(f"{entry.uri} cannot be served: {error}") from error
    entry.check_limits()
    return entry
