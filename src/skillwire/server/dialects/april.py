"""`index-april`: name, description and URI of every skill, and templates for those that nobody lists."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import anyio

from skillwire.core.archive import ArchiveFormat
from skillwire.core.entry import SkillEntry
from skillwire.core.uri import DEFAULT_SCHEME, SKILL_FILE
from skillwire.server.dialects.compat import Published
from skillwire.server.dialects.indexing import Formats, IndexCompat, Labels, archive_uri
from skillwire.sources import LiveSource
from skillwire.sources.source import Source
from skillwire.sources.templates import SkillTemplate, TemplatedSource
from skillwire.wire.april import SCHEMA, AprilEntry, AprilType
from skillwire.wire.core import JsonDict
from skillwire.wire.dialect import Dialect
from skillwire.wire.encoding import encode
from skillwire.wire.template import Template

logger = logging.getLogger(__name__)

_MAX_COMPLETIONS = 100
_LONGEST_VALUE = 1024
_COMPLETED_WITHIN = 5.0

ANY_SKILL = SkillTemplate(
    "skill",
    Template.parse(f"{DEFAULT_SCHEME}://{{+path}}/{SKILL_FILE}"),
    "A skill that this server does not list, by its path.",
)
"""For a source that serves more than it lists and does not say what."""


class IndexApril(IndexCompat):
    """The index of 23 April 2026, with the digests of 3 June.

    Here a skill is one entry of one type. It is `skill-md`, which leads to all
    files one by one, unless `as_archive` says otherwise; it is asked about
    each skill and may be replaced before the server starts. Skills without a
    digest are listed without one.
    """

    dialect: ClassVar[Dialect] = Dialect.INDEX_APRIL
    formats: ClassVar[Formats] = (ArchiveFormat.ZIP,)

    def __init__(self, skills: Published) -> None:
        super().__init__(skills)
        self.as_archive: Callable[[SkillEntry], bool] = _never

    def packs(self, entry: SkillEntry) -> bool:
        return self.as_archive(entry)

    def line(self, entry: SkillEntry, labels: Labels) -> bytes | None:
        frontmatter = entry.frontmatter
        name, description = frontmatter.name, frontmatter.description
        file = None if entry.manifest is None else entry.manifest.find(entry.uri.text)
        digest = None if file is None else file.digest
        line = AprilEntry(name, AprilType.SKILL_MD, description, entry.uri.published, digest)
        for format, label in labels.items():
            url = archive_uri(entry, format)
            line = AprilEntry(name, AprilType.ARCHIVE, description, url, label.digest)
        return encode(line.to_json())

    def document(self, lines: Sequence[bytes]) -> bytes:
        templates = [
            encode(AprilEntry(None, AprilType.TEMPLATE, made.description, made.template.text).to_json())
            for _, made in self._templates()
        ]
        return b'{"$schema":' + encode(SCHEMA) + b',"skills":[' + b",".join([*lines, *templates]) + b"]}"

    def templates(self) -> Sequence[JsonDict]:
        return [
            {
                "name": made.name,
                "uriTemplate": made.template.text,
                "description": made.description,
                "mimeType": "text/markdown",
            }
            for _, made in self._templates()
        ]

    async def complete(self, template: str, argument: str, typed: str) -> JsonDict | None:
        for source, made in self._templates():
            if made.template.text == template and argument in made.template.variables:
                values = await self._values(source, template, argument, typed)
                return {
                    "values": values[:_MAX_COMPLETIONS],
                    "total": len(values),
                    "hasMore": len(values) > _MAX_COMPLETIONS,
                }
        return None

    async def _values(self, source: Source, template: str, argument: str, typed: str) -> list[str]:
        if not isinstance(source, TemplatedSource):
            entries = self.skills.answers.catalog.snapshot.entries
            return [path for entry in entries if (path := entry.uri.path).startswith(typed)]
        try:
            with anyio.fail_after(_COMPLETED_WITHIN):
                values = await source.complete_template(template, argument, typed)
        except Exception:
            logger.warning("a source could not complete %s", template, exc_info=True)
            return []
        return [value for value in values if len(value) <= _LONGEST_VALUE]

    def _templates(self) -> Iterator[tuple[Source, SkillTemplate]]:
        """Yield each template once, with the source it comes from."""
        seen: set[str] = set()
        for source in self.skills.answers.catalog.sources:
            if isinstance(source, LiveSource):
                continue
            given = source.skill_templates() if isinstance(source, TemplatedSource) else [ANY_SKILL]
            for made in given:
                if made.template.text not in seen:
                    seen.add(made.template.text)
                    yield source, made


def _never(entry: SkillEntry) -> bool:
    return False
