"""`ByName`: what dialects that know skills by name have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from skillwire.core.entry import SkillEntry
from skillwire.core.frontmatter import SkillDocument, parse_skill_md
from skillwire.core.media import media_type_of
from skillwire.core.uri import SkillUri
from skillwire.errors import SourceError, VerificationError
from skillwire.server.dialects.compat import Compat, Published
from skillwire.server.dialects.names import Names
from skillwire.sources import Report
from skillwire.wire.core import JsonDict
from skillwire.wire.declared import Declared, declared_in
from skillwire.wire.primitive import CAPABILITY, LIST_CHANGED

_READ_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Supporting:
    """A file of a skill beside `SKILL.md`: its path inside, its URI as published, its media type."""

    path: str
    uri: str
    media_type: str


class ByName(Compat):
    """A dialect with an own `skills/list`, answered with the names and declarations of one snapshot."""

    is_by_name: ClassVar[bool] = True

    def __init__(self, skills: Published) -> None:
        super().__init__(skills)
        self._names: Names | None = None
        self._declared: dict[str, Declared] = {}

    @property
    def names(self) -> Names:
        """The names of all skills as they are now."""
        snapshot, names = self.skills.answers.catalog.snapshot, self._names
        if names is None or names.snapshot is not snapshot:
            names = self._names = Names(snapshot)
            self._declared = {}
        return names

    def declared(self, entry: SkillEntry) -> Declared:
        """Return what a skill declares in its frontmatter."""
        if self.names.snapshot.by_uri.get(entry.uri.text) is not entry:
            return declared_in(entry.frontmatter)
        known = self._declared.get(entry.uri.text)
        if known is None:
            known = self._declared[entry.uri.text] = declared_in(entry.frontmatter)
        return known

    def capabilities(self) -> JsonDict:
        return {CAPABILITY: {"listChanged": True}}

    def notifications(self) -> Sequence[str]:
        return (LIST_CHANGED,)

    def reports(self) -> Sequence[Report]:
        """Return what is wrong with what skills declare for this dialect."""
        found: list[Report] = []
        for entry in self.names.snapshot.entries:
            declared = self.declared(entry)
            if declared.findings:
                found.append(Report(entry.uri.text, declared.findings, entry.uri))
        return found

    async def read_document(self, uri: SkillUri) -> tuple[SkillEntry, SkillDocument]:
        """Read a skill's `SKILL.md`, and return it with the entry that it belongs to.

        Raises:
            NotFoundError: The skill is not served any more.
            SourceError: It keeps changing, or cannot be read.
        """
        for _ in range(_READ_ATTEMPTS):
            catalog = self.skills.answers.catalog
            entry = catalog.snapshot.get(uri)
            content = await catalog.read_file(uri.text)
            line = None if entry.manifest is None else entry.manifest.find(uri.text)
            try:
                if line is not None:
                    line.verify(content)
                return entry, parse_skill_md(content)
            except VerificationError:
                await catalog.refresh()
        raise SourceError(f"{uri} is changing and cannot be served as published")

    def supporting(self, entry: SkillEntry) -> list[Supporting]:
        """Return the files of a skill beside `SKILL.md`, sorted by URI."""
        media_types = self.skills.answers.catalog.snapshot.media_types
        if entry.manifest is None:
            pairs = [(uri, uri) for uri in entry.dynamic_files]
        else:
            pairs = [(file.uri, file.published) for file in entry.manifest.files]
        return [
            Supporting(entry.uri.relative_path(uri), published, media_types.get(uri) or media_type_of(uri))
            for uri, published in pairs
            if uri != entry.uri.text
        ]
