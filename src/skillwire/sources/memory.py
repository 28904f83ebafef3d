"""`MemorySource`: skills built in code."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import TypeAlias

import anyio.to_thread

from skillwire.core import (
    DEFAULT_SCHEME,
    SKILL_FILE,
    DuplicateSkillError,
    JsonValue,
    ManifestFile,
    NotFoundError,
    Skill,
    SkillEntry,
    SkillUri,
    SourceError,
    entry_findings,
    media_type_of,
)
from skillwire.sources.snapshot import (
    Report,
    Snapshot,
    SnapshotSource,
    complete_nested_manifests,
    over_limits,
)

# `DynamicSkill`: a skill whose content is generated when it is read.


ContentFunction: TypeAlias = Callable[[], str | bytes | Awaitable[str | bytes]]
"""Generates a file's content. A plain function runs in a thread, a coroutine function in the event loop."""


@dataclass(frozen=True, slots=True)
class DynamicSkill:
    """A skill published without digests, because its content is generated on each read.

        DynamicSkill("live-status", description="… Use when …", body=render_status)

    The frontmatter is fixed; `body` generates the instructions on each read.
    Hosts may refuse such skills, or ask their users again at every load.
    """

    name: str
    description: str
    body: ContentFunction
    path: str = ""
    frontmatter: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    scheme: str = DEFAULT_SCHEME
    files: Mapping[str, ContentFunction] = field(default_factory=dict[str, ContentFunction])

    def with_file(self, path: str, produce: ContentFunction) -> "DynamicSkill":
        """Return this skill with one more file.

        Raises:
            InvalidSkillError: The path is not valid for a supporting file.
        """
        shape = self._static_skill()
        for known in self.files:
            shape = shape.with_reference(known, b"")
        shape.with_reference(path, b"")
        return replace(self, files={**self.files, path: produce})

    @property
    def uri(self) -> SkillUri:
        return self._static_skill().uri

    def entry(self) -> SkillEntry:
        """Return what is published about this skill.

        Raises:
            InvalidSkillError: A rule of the format is broken.
        """
        shape = self._static_skill()
        files = sorted([shape.uri.text, *map(shape.uri.join, self.files)])
        return SkillEntry(shape.uri, shape.frontmatter, None, dynamic_files=tuple(files))

    async def read(self, path: str) -> bytes:
        """Generate the content of the file at `path` inside the skill.

        Raises:
            NotFoundError: The skill has no such file.
            SourceError: The function that generates it failed.
        """
        produce = self.body if path == SKILL_FILE else self.files.get(path)
        if produce is None:
            uri = self.uri.join(path)
            raise NotFoundError(f"no skill has a file at {uri}", uri=uri)
        try:
            content = await anyio.to_thread.run_sync(produce)
            if isawaitable(content):
                content = await content
            # `memoryview` accepts only bytes; `bytes` alone would accept a number as a length.
            data = content.encode("utf-8") if isinstance(content, str) else bytes(memoryview(content))
            return self._static_skill(data).skill_md if path == SKILL_FILE else data
        except Exception as error:
            raise SourceError(f"the content of {self.uri.join(path)} could not be generated") from error

    def _static_skill(self, body: bytes = b"") -> Skill:
        return Skill(
            self.name,
            body=body,
            description=self.description,
            path=self.path or None,
            frontmatter=self.frontmatter,
            scheme=self.scheme,
        )


BuiltSkill: TypeAlias = Skill | DynamicSkill
WithEntry: TypeAlias = tuple[BuiltSkill, SkillEntry]

logger = logging.getLogger(__name__)


class MemorySource(SnapshotSource):
    """Skills held in memory; adding one publishes a new snapshot.

    One URI belongs to one skill. Adding skills with URIs that exist raises one
    error with all of them, and adds nothing. A skill that exceeds the
    extension's limits is kept but not served, and reported.
    """

    def __init__(self, skills: Iterable[BuiltSkill] = ()) -> None:
        self._skills: dict[str, WithEntry] = {}
        self._contents: dict[str, bytes] = {}
        super().__init__(Snapshot.of(()))
        self.add(*skills)

    def add(self, *skills: BuiltSkill) -> None:
        """Publish more skills, all or none.

        Raises:
            DuplicateSkillError: A URI would be served twice; the error names every such URI.
            InvalidSkillError: A dynamic skill would be inside one that has digests.
        """
        everything = [*self._skills.values(), *((skill, skill.entry()) for skill in skills)]
        _refuse_duplicates(everything)
        self._publish(everything)

    def merge(self, other: "MemorySource") -> None:
        """Publish every skill of `other` as well, under the rules of `add`."""
        self.add(*(skill for skill, _ in other._skills.values()))

    def remove(self, uri: SkillUri) -> None:
        """Stop publishing a skill.

        Raises:
            NotFoundError: There is no such skill.
        """
        if uri.text not in self._skills:
            raise NotFoundError(f"no skill is served at {uri.text}", uri=uri.text)
        self._publish([item for key, item in self._skills.items() if key != uri.text])

    async def read_file(self, uri: str) -> bytes:
        entry, file = self.snapshot.locate(uri)
        if file is not None:
            return self._contents[file.uri]
        skill, _ = self._skills[entry.uri.text]
        assert isinstance(skill, DynamicSkill), "only a dynamic skill has no manifest"
        return await skill.read(entry.uri.relative_path(uri))

    def read_now(self, entry: SkillEntry, line: ManifestFile) -> bytes | None:
        """Return the bytes of a file if they match `line`."""
        content = self._contents.get(line.uri)
        return content if content is not None and line == ManifestFile.of(line.uri, content) else None

    def place_of(self, uri: SkillUri) -> str:
        """Return where a published skill comes from, for the operator of the server."""
        return f"{uri.path} (built in code)"

    def order_of(self, uri: SkillUri) -> Sequence[str]:
        """Return the paths of a published skill's supporting files in the order they were added."""
        skill, _ = self._skills[uri.text]
        return [file.path for file in skill.files] if isinstance(skill, Skill) else list(skill.files)

    def _publish(self, skills: Iterable[WithEntry]) -> None:
        by_uri = {entry.uri.text: (skill, entry) for skill, entry in skills}
        entries = complete_nested_manifests(entry for _, entry in by_uri.values())
        refused = over_limits(entries)
        for uri, findings in refused.items():
            logger.warning("%s is not served: %s", uri, findings[0].message)
        reports = [
            Report(entry.uri.path, findings, None if uri in refused else entry.uri)
            for uri, (_, entry) in by_uri.items()
            if (findings := refused.get(uri) or tuple(entry_findings(entry)))
        ]
        self._skills = by_uri
        self._contents = {
            uri: content
            for skill, _ in by_uri.values()
            if isinstance(skill, Skill)
            for uri, content in _contents(skill)
        }
        served = [self._as_published(entry) for entry in entries if entry.uri.text not in refused]
        types = _media_types(skill for uri, (skill, _) in by_uri.items() if uri not in refused)
        revision = self.snapshot.revision + 1
        snapshot = Snapshot.of(served, reports=reports, revision=revision, media_types=types)
        self._replace_snapshot(snapshot)

    def _as_published(self, entry: SkillEntry) -> SkillEntry:
        """Return the last snapshot's entry if it is equal: change detection compares identity."""
        before = self.snapshot.by_uri.get(entry.uri.text)
        return entry if before is None or before != entry else before


def _media_types(skills: Iterable[BuiltSkill]) -> dict[str, str]:
    """Map the URI of each file whose media type differs from its name's to that type.

    Where a file belongs to nested skills, the innermost one decides.
    """
    types: dict[str, str] = {}
    for skill in sorted(skills, key=lambda skill: len(skill.uri.root)):
        for file in skill.files if isinstance(skill, Skill) else ():
            uri = skill.uri.join(file.path)
            if file.media_type != media_type_of(file.path):
                types[uri] = file.media_type
            else:
                types.pop(uri, None)
    return types


def _refuse_duplicates(skills: Sequence[WithEntry]) -> None:
    """Raise for URIs that two skills would serve with different bytes, or as their own `SKILL.md`."""
    owners: dict[str, tuple[int, str]] = {}
    twice: set[str] = set()
    for position, (skill, entry) in enumerate(skills):
        for uri, digest in _served(skill, entry):
            owner, known = owners.setdefault(uri, (position, digest))
            same_bytes = digest and known == digest
            if owner != position and (not same_bytes or uri == entry.uri.text == skills[owner][1].uri.text):
                twice.add(uri)
    if twice:
        listed = ", ".join(sorted(twice))
        raise DuplicateSkillError(
            f"more than one skill would be served at {listed}",
            uris=sorted(twice),
            fix="give one of them another path",
        )


def _contents(skill: Skill) -> Iterator[tuple[str, bytes]]:
    yield skill.uri.text, skill.skill_md
    for file in skill.files:
        yield skill.uri.join(file.path), file.content


def _served(skill: BuiltSkill, entry: SkillEntry) -> list[tuple[str, str]]:
    if entry.manifest is not None:
        return [(file.uri, file.digest) for file in entry.manifest.files]
    paths = skill.files if isinstance(skill, DynamicSkill) else ()
    return [(entry.uri.text, ""), *((entry.uri.join(path), "") for path in paths)]
