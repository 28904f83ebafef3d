"""The `primitive` dialect on a server: skills by name, with arguments and dependencies."""

import logging
from typing import Any, ClassVar

from mcp.server.lowlevel import Server

from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.core.links import links_in
from skillwire.errors import SourceError
from skillwire.server.dialects.by_name import ByName
from skillwire.server.dialects.compat import Context, Published
from skillwire.server.dialects.needs import missing_of
from skillwire.server.dialects.rendering import checked_values, filled, rendered
from skillwire.sources import Report, Snapshot
from skillwire.wire.core import GET_SKILL, LIST_SKILLS, JsonDict
from skillwire.wire.dialect import Dialect
from skillwire.wire.primitive import PrimitiveItem, SkillDefinition, SkillFile

logger = logging.getLogger(__name__)

# When to look whether the server offers what skills need: early, and with a client there to ask for.
_OCCASIONS = frozenset({"notifications/initialized", "server/discover", LIST_SKILLS, GET_SKILL})


class Primitive(ByName):
    """SEP-2076: `skills/list` and `skills/get` by name.

    Instructions are the body of `SKILL.md`; where the skill declares arguments,
    placeholders in it are filled, and where the author gave a function, that
    makes them. Files keep the URIs they have in the released extension, so a
    host that knows both can verify them (P2076-13).

    What skills declare to need is announced as they declare it, whether or not
    the server has it: leaving it out would change what the author says. A need
    that is not met is logged, and is among `reports`.
    """

    dialect: ClassVar[Dialect] = Dialect.PRIMITIVE

    def __init__(self, skills: Published) -> None:
        super().__init__(skills)
        self._looked_at: Snapshot | None = None
        self._missing: list[Report] = []
        self._told: set[tuple[str, str]] = set()

    def legacy_fields(self, entry: SkillEntry) -> JsonDict:
        declared = self.declared(entry)
        return PrimitiveItem(
            self.names.of(entry),
            title=declared.title,
            description=entry.frontmatter.description,
            version=declared.version,
            tags=declared.tags,
            arguments=declared.arguments,
            dependencies=declared.dependencies,
        ).to_json()

    def entry_named(self, name: str) -> SkillEntry | None:
        return self.names.find(name)

    async def get_named(self, entry: SkillEntry, arguments: object) -> JsonDict:
        """Answer `skills/get` by name.

        Raises:
            MCPError: The arguments are unusable, or a required one is missing (-32602).
            NotFoundError: The skill is not served any more.
            SourceError: It cannot be read, or its instructions cannot be made.
        """
        entry, document = await self.read_document(entry.uri)
        declared = self.declared(entry)
        values = checked_values(arguments, declared.arguments)
        render = self.skills.renderers.get(entry.uri.text)
        if render is not None:
            instructions = await rendered(render, document.body, values, entry.uri.text)
        else:
            instructions = filled(document.body, declared.arguments, values)
        linked = {entry.uri.resolve(link.target) for link in links_in(document.body)}
        notes = declared.files
        return SkillDefinition(
            instructions,
            description=entry.frontmatter.description,
            dependencies=declared.dependencies,
            files=tuple(
                SkillFile(
                    file.path,
                    file.uri,
                    description=(notes[file.path].description or None) if file.path in notes else None,
                    media_type=file.media_type,
                    required=False if entry.uri.join(file.path) in linked else None,
                )
                for file in self.supporting(entry)
            ),
        ).to_json()

    async def look_around(self, context: Context) -> None:
        """Find out, once for each snapshot, whether the server has what its skills declare to need."""
        if context.method in _OCCASIONS and self.server is not None:
            try:
                await self._compare(self.server, context)
            except SourceError:
                pass  # The skills are closed, or were meanwhile.

    async def _compare(self, server: Server[Any], context: Context) -> None:
        snapshot = self.names.snapshot
        if self._looked_at is snapshot:
            return
        self._looked_at = snapshot
        declared = {entry.uri: self.declared(entry).dependencies for entry in snapshot.entries}
        needs = {uri: dependencies for uri, dependencies in declared.items() if dependencies}
        missing = await missing_of(server, context, snapshot, needs)
        if missing is None and context.request_id is None:
            self._looked_at = None  # Not every server can be asked so early.
        self._missing = [
            Report(uri.text, tuple(Finding("dependency-missing", message) for message in words), uri)
            for uri, words in (missing or {}).items()
        ]
        self._tell()

    def reports(self) -> list[Report]:
        """Return what is wrong with what skills declare, and which needs are not met as far as is known."""
        served = self.names.snapshot.by_uri
        return [*super().reports(), *(report for report in self._missing if report.place in served)]

    def _tell(self) -> None:
        for report in self.reports():
            for finding in report.findings:
                if (report.place, finding.message) not in self._told:
                    self._told.add((report.place, finding.message))
                    logger.warning("%s: %s", report.place, finding.message)
