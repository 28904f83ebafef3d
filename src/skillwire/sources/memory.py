"""`MemorySource`: skills built in code."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from skillwire.core.entry import entry_findings
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.errors import DuplicateSkillError, NotFoundError
from skillwire.sources.dynamic import DynamicSkill
from skillwire.sources.live import SnapshotSource
from skillwire.sources.snapshot import Report, Snapshot, nest, over_limits

BuiltSkill: TypeAlias = Skill | DynamicSkill

logger = logging.getLogger(__name__)


class MemorySource(SnapshotSource):
    """Skills held in memory; adding one publishes a new snapshot.

    One URI belongs to one skill. Whoever adds a second is told all clashes at
    once, and nothing is added. A skill beyond the extension's limits is kept
    and not served; a report says so.
    """

    def __init__(self, skills: Iterable[BuiltSkill] = ()) -> None:
        self._skills: dict[str, BuiltSkill] = {}
        self._contents: dict[str, bytes] = {}
        super().__init__(Snapshot.of(()))
        self.add(*skills)

    def add(self, *skills: BuiltSkill) -> None:
        """Publish more skills, all or none.

        Raises:
            DuplicateSkillError: A URI would be served twice; the error names every such URI.
            InvalidSkillError: A skill without digests would lie inside one that has them.
        """
        everything = [*self._skills.values(), *skills]
        _refuse_duplicates(everything)
        self._publish(everything)

    def merge(self, other: "MemorySource") -> None:
        """Publish every skill of `other` as well, under the rules of `add`."""
        self.add(*other._skills.values())

    def remove(self, uri: SkillUri) -> None:
        """Stop publishing a skill.

        Raises:
            NotFoundError: There is no such skill.
        """
        if uri.text not in self._skills:
            raise NotFoundError(f"no skill is served at {uri.text}", uri=uri.text)
        self._publish([skill for key, skill in self._skills.items() if key != uri.text])

    async def read_file(self, uri: str) -> bytes:
        entry, file = self.snapshot.locate(uri)
        if file is not None:
            return self._contents[file.uri]
        skill = self._skills[entry.uri.text]
        assert isinstance(skill, DynamicSkill), "only a dynamic skill has no manifest"
        return await skill.read(entry.uri.relative_path(uri))

    def place_of(self, uri: SkillUri) -> str:
        """Say where a published skill comes from, for people who run the server."""
        return f"{uri.path} (built in code)"

    def _publish(self, skills: Iterable[BuiltSkill]) -> None:
        by_uri = {skill.uri.text: skill for skill in skills}
        entries = nest(skill.entry() for skill in by_uri.values())
        refused = over_limits(entries)
        for uri, findings in refused.items():
            logger.warning("%s is not served: %s", uri, findings[0].message)
        reports = [
            Report(skill.uri.path, findings, None if uri in refused else skill.uri)
            for uri, skill in by_uri.items()
            if (findings := refused.get(uri) or tuple(entry_findings(skill.entry())))
        ]
        self._skills = by_uri
        self._contents = {
            uri: content
            for skill in by_uri.values()
            if isinstance(skill, Skill)
            for uri, content in _contents(skill)
        }
        served = [entry for entry in entries if entry.uri.text not in refused]
        revision = self.snapshot.revision + 1
        self._replace_snapshot(Snapshot.of(served, reports=reports, revision=revision))


def _refuse_duplicates(skills: Sequence[BuiltSkill]) -> None:
    """Find every URI that two skills would serve with different bytes, or as their own `SKILL.md`."""
    owners: dict[str, tuple[int, str]] = {}
    twice: set[str] = set()
    for position, skill in enumerate(skills):
        for uri, digest in _served(skill):
            owner, known = owners.setdefault(uri, (position, digest))
            same_bytes = digest and known == digest
            if owner != position and (not same_bytes or uri == skill.uri.text == skills[owner].uri.text):
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


def _served(skill: BuiltSkill) -> list[tuple[str, str]]:
    entry = skill.entry()
    if entry.manifest is not None:
        return [(file.uri, file.digest) for file in entry.manifest.files]
    paths = skill.files if isinstance(skill, DynamicSkill) else ()
    return [(entry.uri.text, ""), *((entry.uri.join(path), "") for path in paths)]
