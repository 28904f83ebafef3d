"""`DynamicSkill`: a skill whose content is made when it is read."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import TypeAlias

import anyio.to_thread

from skillwire.core.entry import SkillEntry
from skillwire.core.skill import Skill
from skillwire.core.uri import DEFAULT_SCHEME, SKILL_FILE, SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import NotFoundError, SourceError

Produce: TypeAlias = Callable[[], str | bytes | Awaitable[str | bytes]]
"""Makes a file's content. A plain function runs in a thread, a coroutine function in the loop."""


@dataclass(frozen=True, slots=True)
class DynamicSkill:
    """A skill published without digests, because nobody knows its content before it is asked for.

        DynamicSkill("live-status", description="… Use when …", body=render_status)

    The frontmatter is fixed; `body` makes the instructions on each read.
    Hosts may decline such skills, and ask their users again at every load.
    """

    name: str
    description: str
    body: Produce
    path: str = ""
    frontmatter: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    scheme: str = DEFAULT_SCHEME
    files: Mapping[str, Produce] = field(default_factory=dict[str, Produce])

    def with_file(self, path: str, produce: Produce) -> "DynamicSkill":
        """Return this skill with one more file.

        Raises:
            InvalidSkillError: The path is one no reference may have.
        """
        shape = self._shape()
        for known in self.files:
            shape = shape.with_reference(known, b"")
        shape.with_reference(path, b"")
        return replace(self, files={**self.files, path: produce})

    @property
    def uri(self) -> SkillUri:
        return self._shape().uri

    def entry(self) -> SkillEntry:
        """Return what is published about this skill.

        Raises:
            InvalidSkillError: A rule of the format is broken.
        """
        shape = self._shape()
        files = sorted([shape.uri.text, *map(shape.uri.join, self.files)])
        return SkillEntry(shape.uri, shape.frontmatter, None, dynamic_files=tuple(files))

    async def read(self, path: str) -> bytes:
        """Make the content of the file at `path` inside the skill.

        Raises:
            NotFoundError: The skill has no such file.
            SourceError: The function that makes it failed.
        """
        produce = self.body if path == SKILL_FILE else self.files.get(path)
        if produce is None:
            uri = self.uri.join(path)
            raise NotFoundError(f"no skill has a file at {uri}", uri=uri)
        try:
            content = await anyio.to_thread.run_sync(produce)
            if isawaitable(content):
                content = await content
            # A view takes only what is bytes, where `bytes` alone would take a number for a length.
            data = content.encode("utf-8") if isinstance(content, str) else bytes(memoryview(content))
            return self._shape(data).skill_md if path == SKILL_FILE else data
        except Exception as error:
            raise SourceError(f"the content of {self.uri.join(path)} could not be made") from error

    def _shape(self, body: bytes = b"") -> Skill:
        return Skill(
            self.name,
            body=body,
            description=self.description,
            path=self.path or None,
            frontmatter=self.frontmatter,
            scheme=self.scheme,
        )
